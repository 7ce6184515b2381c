"""The command ``tune`` of ``python -m build_tools``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from build_tools.people import errors_for_people
from build_tools.tune.asked import read_asked
from build_tools.tune.driver import Plan
from build_tools.tune.dumping import write_dumps
from build_tools.tune.previous import read_previous, read_seeds
from build_tools.tune.results import holds_results, read_results
from build_tools.tune.search import Effort
from build_tools.tune.session import Run, start_anew, tune
from inductor_tables.errors import DeadDeviceError
from inductor_tables.problems import Problem

_FILES = click.Path(exists=True, dir_okay=False, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)

_OPTIONS = (
    click.option("--out", required=True, type=_FOLDER, help="Directory of results and dumps."),
    click.option("--minutes", type=click.FloatRange(min=0),
                 help="Begin no problem after that; 0: only write the dumps anew."),
    click.option("--candidates", default=Effort().candidates, show_default=True,
                 type=click.IntRange(min=1), help="Kernels tried a problem at most."),
    click.option("--workers", type=click.IntRange(min=1),
                 help="Compiling processes; default: its share of the cores."),
    click.option("--ahead", default=Plan().ahead, show_default=True, type=click.IntRange(min=1),
                 help="Problems in flight."),
    click.option("--tma/--no-tma", default=True, show_default=True,
                 help="Try persistent TMA kernels, which users have to switch on."),
    click.option("--fast-accum/--no-fast-accum", default=True, show_default=True,
                 help="What scaled products are called with."),
    click.option("--host-pick", default="timed", show_default=True,
                 type=click.Choice(["timed", "inline"]),
                 help="Take for the host's pick the fastest of its choices, or what its own "
                 "benchmarker says."),
    click.option("--seeds", multiple=True, type=click.Path(exists=True, path_type=Path),
                 help="Results, dumps or tables to begin searches from; may be another torch's."),
    click.option("--previous", multiple=True, type=click.Path(exists=True, path_type=Path),
                 help="Dumps or tables whose entries are to be beaten too."),
    click.option("--exhaustive", is_flag=True, help="Measure every legal kernel instead."),
    click.option("--retry", is_flag=True, help="Do problems again that failed before."),
    click.option("--seed", default=0, show_default=True, help="Of random data and orders."),
)  # fmt: skip


def tuning_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add to a command what :func:`run_tuning` wants to know besides the problems."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command("tune")
@click.argument("problems", nargs=-1, required=True, type=_FILES)
@tuning_options
@errors_for_people
def tune_command(*, problems: Sequence[Path], **options: Any) -> None:
    """Find and prove the fastest kernel of each of PROBLEMS on this machine's GPU.

    PROBLEMS are files of problems, dumps, or lookup keys, one a line (.txt). Started again it
    goes on where it was killed. Under torchrun all GPUs of all hosts share the problems.
    """
    run_tuning(read_asked(problems), **options)


def run_tuning(
    asked: Sequence[Problem], *, out: Path, minutes: float | None, **options: Any
) -> None:
    """Tune problems with the options of the command, and write the dumps of all results.

    Raises:
        InductorTablesError, OSError: as :func:`~build_tools.tune.session.tune` does.
    """
    if minutes != 0:
        results = [path for path in options["seeds"] if holds_results(path)]
        _tune(
            Run(problems=asked, out=out, minutes=minutes, retry=options["retry"], seeds=results),
            options,
        )
    if os.environ.get("RANK", "0") == "0":
        paths = write_dumps(read_results(out), out) if out.is_dir() else []
        for path in paths:
            click.echo(f"{path} written", err=True)
        if not paths:
            click.echo(f"{out} holds nothing tuned: no dump was written", err=True)


def _tune(run: Run, options: dict[str, Any]) -> None:
    # What imports torch is imported where a GPU is wanted.
    from build_tools.tune.device import chip_of, described, own_device  # noqa: PLC0415
    from build_tools.tune.kernels import cores  # noqa: PLC0415
    from build_tools.tune.lowering import Options  # noqa: PLC0415
    from build_tools.tune.measure import gpu_bench  # noqa: PLC0415

    device = own_device()
    plan = Plan(
        effort=replace(Effort(), candidates=options["candidates"]),
        ahead=options["ahead"],
        exhaustive=options["exhaustive"],
        chip=chip_of(device),
    )
    provenance = described(device)
    plan.previous.update(read_previous(options["previous"], provenance))
    others = [path for path in options["seeds"] if path not in run.seeds]
    plan.seeds.extend(read_seeds(others, provenance))
    bench = gpu_bench(
        device,
        Options(tma=options["tma"], fast_accum=options["fast_accum"]),
        workers=options["workers"] or cores(),
        inline=options["host_pick"] == "inline",
        seed=options["seed"],
    )
    try:
        with _shown(len(run.problems)) as progress:
            found = tune(replace(run, plan=plan), bench, provenance, progress=progress)
    except DeadDeviceError as error:
        bench.close()
        start_anew(error)
        raise
    bench.close()
    click.echo(found.text)


@contextmanager
def _shown(count: int) -> Iterator[Callable[[int, int], None]]:
    """Show a bar with problems done, problems in all, time spent and time left."""
    console = Console(stderr=True)
    columns = (
        TextColumn("tuning"), BarColumn(), MofNCompleteColumn(), TextColumn("spent"),
        TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(elapsed_when_finished=False),
    )  # fmt: skip
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("tuning", total=count)

        def advance(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)
            if not console.is_terminal:
                click.echo(f"{done} of {total} problems done", err=True)

        yield advance
