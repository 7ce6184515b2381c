"""What ``max_autotune_gemm`` picks, recorded while each product is compiled by itself.

    python benchmarks/host_picks.py problems.json --out picks/ --minutes 8

Nothing is warmed: as for a user, the GPU is idle while kernels compile, and the host times each
choice in line. ``kernels.py --picks`` compares with what was picked. Started again it goes on.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
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
    """Return the ids of the problems that dumps below a directory hold."""
    paths = dump_files([directory]) if directory.exists() else []
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


def pick(problem: Problem, device: Any) -> None:
    """Compile one product as a user would, with cold caches; a recorder sees what is timed."""
    import torch
    from torch._inductor.utils import fresh_cache

    product: Callable[..., Any] = getattr(torch, problem.op_name)
    torch._dynamo.reset()
    with fresh_cache(), torch.no_grad():
        torch.compile(product, options=OPTIONS)(*operands(problem, device))


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
    import torch

    import inductor_tables

    inductor_tables.disable()  # a table that INDUCTOR_TABLES=1 brought would answer for the host
    end = time.monotonic() + 60 * minutes if minutes is not None else float("inf")
    wanted = sample([p for p in read_asked(problems) if p.op_name in OPS], most, seed)
    done = recorded(out)
    left = [problem for problem in wanted if problem_id(problem) not in done]
    begun = 0
    with inductor_tables.record(out, topk=1):
        for problem in left:
            if time.monotonic() > end:
                break
            pick(problem, torch.device("cuda", torch.cuda.current_device()))
            begun += 1
    click.echo(f"{len(wanted) - len(left)} had picks, {begun} more have, of {len(wanted)}")


if __name__ == "__main__":
    main()
