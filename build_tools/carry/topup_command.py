"""The command ``topup`` of ``python -m build_tools``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

from build_tools.carry.topup import TopUp, top_up
from build_tools.hashes import installed_series, read_committed
from build_tools.held import read_held
from build_tools.people import errors_for_people, series_of, torch_named
from build_tools.tune.command import run_tuning, tuning_options
from inductor_tables import problems
from inductor_tables.errors import UnsupportedTorchError
from inductor_tables.versions import TorchSeries

PROBLEMS_FILE: Final = "topup_problems.json"


def _series(
    _context: click.Context, _option: click.Parameter, value: str | None
) -> TorchSeries | None:
    return None if value is None else series_of(value, "2.14")


@click.command("topup")
@click.argument("held", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--list", "only_list", is_flag=True,
              help="Only write the problems; needs no GPU.")  # fmt: skip
@click.option("--to", "target", callback=_series, metavar="SERIES",
              help="With --list: torch to tune for; default: the installed one.")  # fmt: skip
@click.option("--arch", help="With --list: gcnArchName whose keys count; default: all.")
@click.option("--torch", callback=torch_named, help="Torch of dumps that do not say, e.g. 2.13.")
@tuning_options
@errors_for_people
def topup_command(
    *,
    held: Sequence[Path],
    only_list: bool,
    target: TorchSeries | None,
    arch: str | None,
    torch: str | None,
    out: Path,
    seeds: Sequence[Path],
    previous: Sequence[Path],
    **options: Any,
) -> None:
    """Tune again what of HELD does not serve the running torch; everything else is left.

    HELD are dumps, carried ones too, tables, or directories of them. Searches begin from their
    entries, which are incumbents as well. The problems are written to DIR/topup_problems.json.
    The options are those of tune.
    """
    if not only_list:
        if target is not None or arch is not None:
            raise click.UsageError("--to, --arch: only with --list")
        arch = _own_arch()
    series = target or installed_series()
    if series is None:
        raise UnsupportedTorchError("torch is not installed; name one with --list --to 2.14")
    found = top_up(read_held(held), series, read_committed(), arch=arch, torch=torch)
    out.mkdir(parents=True, exist_ok=True)
    problems.write(out / PROBLEMS_FILE, found.left)
    click.echo(_summary(found, series), err=True)
    if not only_list and found.left:
        run_tuning(
            found.left, out=out, seeds=[*seeds, *held], previous=[*previous, *held], **options
        )


def _own_arch() -> str | None:
    # What imports torch is imported where a GPU is wanted.
    from build_tools.tune.device import described, own_device  # noqa: PLC0415

    arch: str | None = described(own_device())["arch"]
    return arch


def _summary(found: TopUp, series: TorchSeries) -> str:
    total = found.own + found.carried + len(found.left)
    return (
        f"torch {series}: {total} problems: {found.own} have entries of its own, {found.carried} "
        f"carry, {len(found.left)} are to be tuned"
    )
