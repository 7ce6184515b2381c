"""The command ``carry`` of ``python -m build_tools``."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table as Grid
from rich.text import Text

from build_tools.carry.carrying import Compare, carry, write
from build_tools.carry.code import Advance, Comparer, Pythons
from build_tools.carry.rules import BY_CODE, BY_HASH, Carry, Compared, Pair
from build_tools.hashes import installed_series, read_committed
from build_tools.people import errors_for_people, print_grids, read_dumps, series_of, torch_named
from inductor_tables.errors import BuildError
from inductor_tables.terminal import print_json
from inductor_tables.versions import TorchSeries, series_order, torch_series

_REASONS: Final = 12
"""Reasons that are printed; all of them are in the JSON."""


def _series(
    _context: click.Context, _option: click.Parameter, values: Sequence[str]
) -> list[TorchSeries]:
    return [series_of(value, "2.12") for value in values]


@click.command("carry")
@click.argument("dumps", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--to", "targets", multiple=True, callback=_series, metavar="SERIES",
              help="Torch to serve, e.g. 2.12; several for several. Default: all.")  # fmt: skip
@click.option("--out", required=True, type=click.Path(file_okay=False, path_type=Path),
              help="Directory of carried dumps to write into.")  # fmt: skip
@click.option("--torch", callback=torch_named, help="Torch of dumps that do not say, e.g. 2.13.")
@click.option("--by-code", is_flag=True,
              help="Where a template's text differs, compare what is compiled.")  # fmt: skip
@click.option("--python", "pythons", multiple=True, metavar="SERIES=PATH",
              help="Python that has a torch, for --by-code; the running one is known.")  # fmt: skip
@click.option("--jobs", type=click.IntRange(min=1),
              help="Processes that compare; default: one a core.")  # fmt: skip
@click.option("--timeout", "timeout_s", default=300.0, show_default=True,
              type=click.FloatRange(min=0, min_open=True),
              help="Seconds after which comparing an entry is given up.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@errors_for_people
def carry_command(
    *,
    dumps: Sequence[Path],
    targets: Sequence[TorchSeries],
    out: Path,
    torch: str | None,
    by_code: bool,
    pythons: Sequence[str],
    jobs: int | None,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Carry DUMPS (files, or directories of them) over to other torches that they serve too.

    Writes dumps, which build makes tables of beside those that were recorded there.
    """
    if pythons and not by_code:
        raise click.UsageError("--python: only with --by-code")
    compare = None
    if by_code:
        known = pythons_of(pythons, installed_series(), Path(sys.executable))
        compare = comparing(known, jobs, timeout_s)
    carried = carry(read_dumps(dumps), targets, read_committed(), torch=torch, compare=compare)
    written = write(carried, out, torch=torch)
    if as_json:
        print_json(as_data(carried, written))
        return
    print_grids(grid(carried))
    for line in reasons(carried):
        click.echo(line)
    click.echo(f"{len(written)} dumps written to {out}", err=True)


def pythons_of(texts: Sequence[str], installed: TorchSeries | None, running: Path) -> Pythons:
    """Return the Pythons that ``2.12=/path/to/python`` and the like name, and the running one.

    Raises:
        BuildError: a text has another form, or names no file.
    """
    found = {} if installed is None else {installed: running}
    for text in texts:
        series, _, path = text.partition("=")
        try:
            known = torch_series(series)
        except ValueError as error:
            raise BuildError(f"--python {text}: {error}; expected SERIES=PATH") from error
        if not os.access(path, os.X_OK) or Path(path).is_dir():
            raise BuildError(
                f"--python {text}: expected SERIES=PATH, and {path!r} is no file that can be run"
            )
        found[known] = Path(path).absolute()
    return found


def comparing(pythons: Pythons, jobs: int | None, timeout_s: float) -> Compare:
    """Return what compares all pairs that there are Pythons for, with a progress bar."""

    def compare(pairs: Sequence[Pair]) -> Compared:
        with _progress() as advance:
            comparer = Comparer(
                pythons=pythons,
                jobs=jobs or os.cpu_count() or 1,
                timeout_s=timeout_s,
                advance=advance,
            )
            possible = [pair for pair in pairs if comparer.can(pair.source, pair.target)]
            if pairs and not possible:
                wanted = {pair.source for pair in pairs} | {pair.target for pair in pairs}
                raise BuildError(
                    f"nothing can be compared: there are Pythons of {_listed(pythons)}, wanted are "
                    f"two of {_listed(wanted)}; name them with --python SERIES=PATH"
                )
            return comparer.compare(possible)

    return compare


def _listed(series: Iterable[str]) -> str:
    return ", ".join(f"torch {one}" for one in sorted(series, key=series_order)) or "no torch"


@contextlib.contextmanager
def _progress() -> Iterator[Advance]:
    console = Console(stderr=True)
    columns = (
        TextColumn("comparing"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("comparing")
        yield lambda done, total: progress.update(bar, completed=done, total=total)


def grid(carries: Sequence[Carry]) -> Grid:
    """Return what became of each dump's rows for each series."""
    shown = Grid()
    for name in ("dump", "recorded on", "for torch"):
        shown.add_column(name)
    for name in ("rows", "by hash", "by code", "left"):
        shown.add_column(name, justify="right")
    for one in carries:
        texts = (Path(one.dump.resource).name, one.source, one.target)
        counts = (len(one.dump.rows), _count(one, BY_HASH), _count(one, BY_CODE), len(one.left))
        shown.add_row(*map(Text, texts), *map(str, counts))
    return shown


def reasons(carries: Sequence[Carry]) -> Iterator[str]:
    """Yield a line for each reason why rows do not carry, the most frequent first."""
    counted: Counter[tuple[TorchSeries, TorchSeries, str]] = Counter()
    for one in carries:
        counted.update({(one.source, one.target, why): n for why, n in one.reasons.items()})
    listed = counted.most_common()
    for (source, target, why), count in listed[:_REASONS]:
        yield f"{source} -> {target}: {count} rows: {why}"
    if len(listed) > _REASONS:
        yield f"and {len(listed) - _REASONS} more reasons (--json lists them)"


def as_data(carries: Sequence[Carry], written: Sequence[Path]) -> dict[str, Any]:
    """Return the JSON form of the report."""
    return {
        "carries": [
            {
                "dump": one.dump.resource,
                "recorded_on": one.source,
                "torch_series": one.target,
                "rows": len(one.dump.rows),
                BY_HASH: _count(one, BY_HASH),
                BY_CODE: _count(one, BY_CODE),
                "left": dict(one.reasons.most_common()),
            }
            for one in carries
        ],
        "written": [str(path) for path in written],
    }


def _count(one: Carry, by: str) -> int:
    return len(one.rows.get(by, ()))
