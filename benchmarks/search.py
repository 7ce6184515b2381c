"""How near the tuner's search comes to the best of the whole space, replayed without a GPU.

    python benchmarks/search.py
    python benchmarks/search.py results/ --noise 0.006 --seeds 5 --json

RESULTS are directories that ``python -m build_tools.tune.trial --exhaustive --out`` wrote, where
every kernel of a problem that the tuner considers worth a compile (with ``GROUP_M`` 8) was measured
once, or such lines as ``.jsonl.gz``; by default those in ``benchmarks/data/exhaustive``. Persistent
TMA kernels are left out (``Options(tma=False)``). Searches run anew and are told these times, each
with an error of its own, as first evaluations have; they know nothing else, no winners of other
problems either. How far a search is behind is said among the templates' kernels alone, since the
host's other choices, ATen's among them, are always tried: those that were told the least times go
to final rounds, which are exact here, and the best of them is what was found.

Bars: within 3 % of the best on at least 90 % of the problems, with at most a fifth of the
evaluations.
"""

from __future__ import annotations

import gzip
import json
import math
import random
import statistics
import sys
import tempfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

sys.path.insert(0, str(Path(__file__).parents[1]))

from ratios import name_of
from rich.console import Console
from rich.table import Table as Grid

from build_tools.people import errors_for_people
from build_tools.tune.records import Answer, Answers, Ask, Failure, HostPick, Timing
from build_tools.tune.results import TUNED, Line, config_of, read_results
from build_tools.tune.search import Effort, search
from build_tools.tune.shapes import shape_of
from build_tools.tune.space import Space, candidate
from inductor_tables.errors import BuildError
from inductor_tables.problems import problem_from_key
from inductor_tables.schema import Config

DATA: Final = Path(__file__).parent / "data" / "exhaustive"
NEAR: Final = 1.03
SHARE: Final = 0.2

Kernel = tuple[str, tuple[tuple[str, Any], ...]]
"""Template and tuning parameters: what a candidate is on any torch."""


@dataclass(frozen=True, kw_only=True)
class Replay:
    """One search.

    Attributes:
        evaluated: candidates that it asked for.
        behind: true time of the template's kernel that it finds, by that of the best of all;
            infinite if it asked for none.
    """

    evaluated: int
    behind: float


def kernel_of(config: Config) -> Kernel:
    """Return what a candidate is on any torch."""
    return config.template_id, config.params


def measured(line: Line) -> dict[Kernel, float]:
    """Return µs of every candidate of an exhaustive result."""
    found = {}
    for text, us in line["times_us"]:
        config = config_of(json.loads(text))
        found[kernel_of(candidate(config.template_id, None, dict(config.params)))] = float(us)
    return found


def replay(
    space: Space, times: Mapping[Kernel, float], effort: Effort, *, noise: float, seed: int
) -> Replay:
    """Search a space in which everything is measured.

    Args:
        space: of the problem.
        times: µs by kernel.
        effort: of the search.
        noise: standard error of a first evaluation, relative.
        seed: of the errors.

    Raises:
        BuildError: no kernel of a template is among ``times``.
    """
    best = best_us(space, times)
    draw = random.Random(seed)

    def answer(config: Config, ask: Ask) -> Answer:
        us = times.get(kernel_of(config))
        if us is None:
            return Failure(stage="time", reason="not in the results")
        told = us if ask.final else us * (1 + noise * draw.gauss(0, 1))
        return Timing(samples_us=(told,) * ask.rounds)

    def host_pick(answers: Answers) -> HostPick | None:
        timed = {c: a.median_us for c in space.host if isinstance(a := answers.get(c), Timing)}
        pick = min(timed, key=lambda config: (timed[config], config.order), default=None)
        return None if pick is None else HostPick(config=pick, how="the fastest here")

    procedure = search(space, effort, host_pick)
    ask = next(procedure)
    while True:
        try:
            ask = procedure.send({config: answer(config, ask) for config in ask.candidates})
        except StopIteration as stop:
            answers = stop.value.answers
            break
    told = {
        config: answer.median_us
        for config, answer in answers.items()
        if isinstance(answer, Timing) and config.template_id in space.templates
    }
    finalists = sorted(told, key=lambda config: (told[config], config.order))[: effort.finalists]
    found = min((times[kernel_of(config)] for config in finalists), default=math.inf)
    return Replay(evaluated=len(answers), behind=found / best)


def best_us(space: Space, times: Mapping[Kernel, float]) -> float:
    """Return the least time of a kernel of a template.

    Raises:
        BuildError: there is none.
    """
    tiled = [us for (template_id, _), us in times.items() if template_id in space.templates]
    if not tiled:
        raise BuildError(
            f"{name_of(space.shape)}: no kernel of {', '.join(sorted(space.templates))} is in the "
            "results: measure it anew with tune.trial --exhaustive"
        )
    return min(tiled)


def read_lines(paths: Iterable[Path]) -> list[Line]:
    """Read results, packed or not.

    Returns:
        Lines of problems whose candidates were all timed, by M.

    Raises:
        BuildError: there is no such line, or a packed file is damaged.
        OSError: a file cannot be read.
    """
    with tempfile.TemporaryDirectory() as folder:
        for number, path in enumerate(paths):
            files = sorted(path.glob("*.jsonl*")) if path.is_dir() else [path]
            for file in files:
                name = f"{number}-{file.name.removesuffix('.gz')}"
                Path(folder, name).write_bytes(_unpacked(file))
        found = read_results(Path(folder)).lines.values()
    lines = [
        line
        for line in found
        if line.get("status") == TUNED and "times_us" in line and "arch" in line["worker"]
    ]
    if not lines:
        raise BuildError("no exhaustive result there: tune.trial --exhaustive --out writes them")
    return sorted(lines, key=lambda line: shape_of(problem_from_key(line["problem"])).m)


def _unpacked(file: Path) -> bytes:
    content = file.read_bytes()
    if file.suffix != ".gz":
        return content
    try:
        return gzip.decompress(content)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BuildError(f"{file}: damaged, cannot be unpacked: {error}; pack it again") from error


def compare(line: Line, effort: Effort, noise: float, seeds: int) -> dict[str, Any]:
    """Replay searches of one problem, on a simulated device.

    Returns:
        ``problem``, its lookup key; ``space``, how many kernels were measured; ``aten_us`` and
        ``best_us``, the best times of ATen (None without it) and of a template's kernel; of each
        search ``behind`` and ``evaluated``, see ``Replay``.

    Raises:
        BuildError: no kernel of a template was measured.
        SkippedProblemError: the problem cannot be lowered.
    """
    import torch

    from build_tools.tune.lowering import Lowered, Options

    lowered = Lowered(problem_from_key(line["problem"]), torch.device("cuda:0"), Options(tma=False))
    times = measured(line)
    found = [replay(lowered.space, times, effort, noise=noise, seed=seed) for seed in range(seeds)]
    lowered.close()
    aten = [us for (template_id, _), us in times.items() if template_id.startswith("aten::")]
    return {
        "problem": line["problem"],
        "space": len(times),
        "aten_us": min(aten, default=None),
        "best_us": best_us(lowered.space, times),
        "behind": [one.behind for one in found],
        "evaluated": [one.evaluated for one in found],
    }


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print a table, and whether the bars are met."""
    grid = Grid(
        title="searches over all that the tuner considers worth a compile, without persistent TMA "
        "kernels"
    )
    for name in ("problem", "kernels", "ATen µs", "best tile µs", "found / best", "evaluated"):
        grid.add_column(name, justify="left" if name == "problem" else "right")
    for row in rows:
        behind = f"{statistics.median(row['behind']):.3f}, worst {max(row['behind']):.3f}"
        aten, asked = row["aten_us"], row["evaluated"]
        grid.add_row(
            name_of(shape_of(problem_from_key(row["problem"]))),
            str(row["space"]),
            "-" if aten is None else f"{aten:.2f}",
            f"{row['best_us']:.2f}",
            behind,
            f"{statistics.median(asked):.0f}, at most {max(asked)}",
        )
    Console(width=120).print(grid)
    runs = [
        (behind, asked / row["space"])
        for row in rows
        for behind, asked in zip(row["behind"], row["evaluated"], strict=True)
    ]
    near = sum(behind <= NEAR and share <= SHARE for behind, share in runs)
    click.echo(
        f"{near} of {len(runs)} searches of {len(rows)} problems come within 3 % of the best with "
        "at most a fifth of the evaluations (bar 90 %)"
    )


@click.command()
@click.argument("results", nargs=-1, type=click.Path(path_type=Path, exists=True))
@click.option("--noise", default=0.004, show_default=True, help="Error of a first evaluation.")
@click.option(
    "--seeds", default=5, show_default=True, type=click.IntRange(min=1),
    help="Searches of each problem.",
)  # fmt: skip
@click.option("--candidates", default=Effort().candidates, show_default=True)
@click.option("--batch", default=Effort().batch, show_default=True)
@click.option("--patience", default=Effort().patience, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print every search as JSON.")
@errors_for_people
def main(results: Sequence[Path], noise: float, seeds: int, as_json: bool, **effort: int) -> None:
    """Replay searches over RESULTS."""
    import inductor_tables

    lines = read_lines(results or [DATA])
    rows: list[dict[str, Any]] = []
    for arch in sorted({line["worker"]["arch"] for line in lines}):
        with inductor_tables.simulate(arch):
            for line in lines:
                if line["worker"]["arch"] == arch:
                    rows.append(compare(line, Effort(**effort), noise, seeds))
    if as_json:
        click.echo(json.dumps(rows, indent=1))
    else:
        show(rows)


if __name__ == "__main__":
    main()
