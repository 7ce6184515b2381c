"""What ``max_autotune_gemm`` picks, recorded while each product is compiled by itself.

    python benchmarks/host_picks.py problems.json --out picks/ --minutes 8

Nothing is warmed: as for a user, the GPU is idle while kernels compile, and the host times each
choice in line. ``kernels.py --picks`` compares with what was picked. Started again it goes on with
the problems that have no pick yet. One that cannot be compiled is told and passed over.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

sys.path.insert(0, str(Path(__file__).parents[1]))

from kernels import sample

from build_tools.files import dump_files
from build_tools.people import errors_for_people
from build_tools.tune.asked import read_asked
from build_tools.tune.results import problem_id
from inductor_tables.dumps import read_dump
from inductor_tables.problems import Problem, problem_from_key

OPS: Final = ("mm", "addmm", "bmm")

OPTIONS: Final[dict[str, Any]] = {"max_autotune_gemm": True, "shape_padding": False}
"""No padding: it would be another problem's pick, or none, as a stopwatch decides."""


def recorded(directory: Path) -> set[str]:
    """Return the ids of the problems that dumps in a directory hold, none if it has no dump.

    Raises:
        InvalidDumpError: a dump is damaged.
        OSError: a dump cannot be read.
    """
    paths = dump_files([directory]) if any(directory.glob("*.json")) else []
    keys = {row.key for path in paths for row in read_dump(path).rows}
    return {problem_id(problem_from_key(key)) for key in keys}


def operands(problem: Problem, device: Any) -> list[Any]:
    """Return random inputs with the problem's sizes and strides; a bias has one row."""
    from build_tools.tune.lowering import graph_inputs
    from build_tools.tune.reference import empty, fill

    found = [empty(key, device) for _, key in graph_inputs(problem)]
    for tensor in found:
        fill(tensor)
    return found


def product(problem: Problem) -> Callable[..., Any]:
    """Return torch's function of a problem, with its ``alpha`` and ``beta``.

    Raises:
        SkippedProblemError: one of these is no number.
    """
    import torch

    from build_tools.tune.lowering import scalars_of

    return partial(getattr(torch, problem.op_name), **scalars_of(problem))


def pick(problem: Problem, device: Any) -> None:
    """Compile one product as a user would, with cold caches; a recorder sees what is timed.

    Raises one of ``build_tools.tune.kernels.FAILURES`` if it cannot be compiled or run.
    """
    import torch
    from torch._inductor.utils import fresh_cache

    torch._dynamo.reset()
    with fresh_cache(), torch.no_grad():
        torch.compile(product(problem), options=OPTIONS)(*operands(problem, device))


def run(problems: Sequence[Problem], out: Path, minutes: float | None, device: Any) -> str:
    """Record picks of the problems that have none, until the time is up; failures go to stderr.

    Returns:
        How many problems had picks, have them now, and have none for which reason.

    Raises:
        InvalidDumpError: a dump in ``out`` is damaged.
        OSError: a dump in ``out`` cannot be read.
    """
    import inductor_tables
    from build_tools.tune.kernels import FAILURES

    ends = time.monotonic() + 60 * (minutes if minutes is not None else float("inf"))
    wanted = {problem_id(problem): problem for problem in problems}
    before = recorded(out) & wanted.keys()
    compiled, failed = set(), set()
    with inductor_tables.record(out, topk=1):
        for key in [key for key in wanted if key not in before]:
            if time.monotonic() > ends:
                break
            try:
                pick(wanted[key], device)
            except FAILURES as error:
                failed.add(key)
                first = next(iter(str(error).splitlines()), "")
                click.echo(f"{key}: {type(error).__name__}: {first}", err=True)
            else:
                compiled.add(key)
    after = recorded(out) & wanted.keys()
    return (
        f"{len(before)} had picks, {len(after - before)} more have, {len(failed - after)} failed, "
        f"{len(compiled - after)} the host does not autotune, "
        f"{len(wanted.keys() - after - failed - compiled)} left, of {len(wanted)}"
    )


@click.command()
@click.argument("problems", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Directory of dumps.")
@click.option("--minutes", type=float, help="Begin no problem after that.")
@click.option("--most", type=int, help="Problems at most, the same sample as of kernels.py.")
@click.option("--seed", default=0, show_default=True, help="Of the sample.")
@errors_for_people
def main(
    problems: Sequence[Path], out: Path, minutes: float | None, most: int | None, seed: int
) -> None:
    """Record what the host picks for PROBLEMS: files of problems, dumps or keys."""
    import inductor_tables
    from build_tools.tune.device import own_device

    device = own_device()
    inductor_tables.disable()  # a table that INDUCTOR_TABLES=1 brought would answer for the host
    wanted = sample([p for p in read_asked(problems) if p.op_name in OPS], most, seed)
    click.echo(run(wanted, out, minutes, device))


if __name__ == "__main__":
    main()
