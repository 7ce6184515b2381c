"""The commands ``inductor-tables coverage`` and ``inductor-tables collect``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from rich.console import Console
from rich.table import Table as Grid
from rich.text import Text

from inductor_tables import host, problems
from inductor_tables.analysis.origins import shortened
from inductor_tables.analysis.records import Coverage, Gemm
from inductor_tables.analysis.worker import Request, in_fresh_process
from inductor_tables.parameters import kernel_text
from inductor_tables.problems import Problem
from inductor_tables.simulation.catalogue import CATALOGUE
from inductor_tables.terminal import (
    errors_for_people,
    json_option,
    new_console,
    new_grid,
)
from inductor_tables.versions import torch_series

DEVICE: Final = "NVIDIA H200"
"""The device that models are lowered for unless told otherwise."""

SHOWN: Final = 50
"""How many GEMMs ``coverage`` prints for people unless told otherwise."""

_SHOWN_ORIGINS: Final = 3
_MAX_ORIGIN: Final = 256  # longer texts may not be in a file of problems
_STYLES: Final = {"hit": "green", "miss": "yellow", "dropped": "red"}

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _token_counts(_ctx: click.Context, _option: click.Parameter, text: str | None) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",")] if text else []
    except ValueError:
        counts = [0]
    if any(count < 1 for count in counts):
        raise click.BadParameter(f"{text!r}: expected whole numbers from 1 on, such as 1,16,512")
    return list(dict.fromkeys(counts))


def _this_torch(_ctx: click.Context, _option: click.Parameter, text: str | None) -> None:
    """Refuse a torch that is not the one which would lower."""
    if text is None:
        return
    try:
        asked = torch_series(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    installed = host.installed_series()
    if asked != installed:
        raise click.BadParameter(
            f"keys and templates are those of the torch that lowers, which is {installed} here; "
            f"for torch {asked} run this in an environment that has it: "
            f"pip install 'torch=={asked}.*' 'inductor-tables[demo]'"
        )


_TARGET_OPTIONS = (
    click.argument("targets", nargs=-1, required=True, metavar="TARGET..."),
    click.option("--device", default=DEVICE, show_default=True, metavar="NAME",
                 type=click.Choice(list(CATALOGUE)),
                 help="gcnArchName of the device: " + ", ".join(CATALOGUE) + "."),
    click.option("--torch", "_torch", metavar="SERIES", callback=_this_torch, expose_value=False,
                 help="Fail unless this torch is installed: it is the one that lowers."),
    click.option("--tables", multiple=True, metavar="PATH",
                 help="A table of yours, asked before the packaged ones; may be repeated."),
    click.option("--tokens", callback=_token_counts, metavar="N,N,...",
                 help="Token counts; each target is lowered for each."),
    click.option("--dtype", metavar="NAME",
                 help="Type of floating-point tensors, such as bfloat16; default: the target's."),
    click.option("--backward", is_flag=True, help="Lower the backward graph too."),
    click.option("--dynamic", is_flag=True, help="Compile for sizes that may change."),
)  # fmt: skip


def _takes_targets(command: _Command) -> _Command:
    for option in reversed(_TARGET_OPTIONS):
        command = option(command)
    return command


def _looked_at(*, tables: Sequence[str], dynamic: bool, **asked: Any) -> list[Coverage]:
    host.installed_series()  # without a torch the fresh process would end in a traceback
    request = Request(tables=tables or None, dynamic=True if dynamic else None, **asked)
    with Console(stderr=True).status("lowering in a fresh process ..."):
        return in_fresh_process(request)


# --- coverage ---------------------------------------------------------------------------


@click.command("coverage")
@_takes_targets
@json_option
@click.option("--html", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Write one page that needs no network.")  # fmt: skip
@click.option("--limit", type=click.IntRange(min=1), default=SHOWN, show_default=True, metavar="N",
              help="At most N GEMMs for people.")  # fmt: skip
@click.option("--fail-under", type=click.FloatRange(0, 100), metavar="PERCENT",
              help="Exit with 1 if less of the estimated GEMM time is covered.")  # fmt: skip
@click.pass_context
@errors_for_people
def coverage_command(
    ctx: click.Context,
    /,
    as_json: bool,
    html: Path | None,
    limit: int,
    fail_under: float | None,
    **asked: Any,
) -> None:
    """Say for every GEMM of a model whether the tables have a kernel for it.

    TARGET is package.module:callable (it returns a model and its inputs), the .pt2 file of an
    exported model, or a Hugging Face config.json. Nothing runs and no GPU is needed: the model is
    lowered for a simulated device, in a process of its own.
    """
    if as_json and html:
        raise click.UsageError("--json and --html exclude each other")
    (found,) = _looked_at(**asked)
    if as_json:
        click.echo(found.to_json())
    elif html:
        html.write_text(_page(found), encoding="utf-8")
        click.echo(f"{found.summary()}\n{html}")
    else:
        _print(found, limit)
    if fail_under is not None and (100 * found.covered < fail_under or not found.gemms):
        why = f"{100 * found.covered:.1f} % is covered" if found.gemms else "there is no GEMM"
        click.echo(f"{why}, which is under --fail-under {fail_under:g}", err=True)
        ctx.exit(1)


def _page(coverage: Coverage) -> str:
    try:
        from inductor_tables.analysis.page import page

        return page(coverage)
    except ModuleNotFoundError as error:
        if error.name not in {"jinja2", "markupsafe"}:
            raise
        raise click.ClickException(
            f"--html needs {error.name}; run: pip install 'inductor-tables[cli]'"
        ) from error


def _print(found: Coverage, limit: int) -> None:
    console = new_console()
    console.print(Text(found.summary()), soft_wrap=True)
    names = ", ".join(found.tables) or f"none serves {found.device} on torch {found.torch}"
    console.print(Text(f"tables: {names}"), soft_wrap=True)
    shown = found.gemms[:limit]
    if shown:
        console.print(_gemms_grid(found, shown))
    for gemm in shown:
        if gemm.outcome != "hit":
            console.print(*_explained(gemm), sep="\n", soft_wrap=True)
    if len(found.gemms) > limit:
        console.print(f"{limit} of {len(found.gemms)} GEMMs; --limit {len(found.gemms)} shows all")
    for note in found.notes:
        console.print(Text(f"note: {note}"), soft_wrap=True)


def _gemms_grid(found: Coverage, gemms: Iterable[Gemm]) -> Grid:
    numbers = ("share", "M", "N", "K", "count", "µs", "next")
    grid = new_grid(
        "share", "", "op", "M", "N", "K", "dtype", "count", "µs", "next", "kernel", "in",
        numbers=numbers,
    )  # fmt: skip
    for gemm in gemms:
        grid.add_row(
            f"{100 * found.share(gemm):.1f} %",
            Text(gemm.outcome, _STYLES[gemm.outcome]),
            Text(_op(gemm)),
            *map(str, (gemm.m, gemm.n, gemm.k)),
            Text(gemm.dtype),
            str(gemm.count),
            _us(gemm.time_us) if gemm.time_us is not None else f"> {_us(gemm.roofline_us)}",
            "" if gemm.margin is None else f"+{100 * gemm.margin:.0f} %",
            Text(kernel_text(gemm.template_id, gemm.params) if gemm.template_id else "autotuned"),
            Text(_origins(gemm)),
        )
    return grid


def _us(time: float) -> str:
    return f"{time:.1f}" if time >= 10 else f"{time:.2f}"


def _op(gemm: Gemm) -> str:
    batch = f" ({gemm.batch} x)" if gemm.batch != 1 else ""
    return f"{gemm.op_name}{batch}" + (", backward" if gemm.phase == "backward" else "")


def _origins(gemm: Gemm) -> str:
    texts = shortened(gemm.origins)
    more = len(texts) - _SHOWN_ORIGINS
    return ", ".join(texts[:_SHOWN_ORIGINS]) + (f" and {more} more" if more > 0 else "")


def _explained(gemm: Gemm) -> Iterator[Text]:
    yield Text(f"{gemm.outcome}: {gemm.key}", _STYLES[gemm.outcome])
    for reason in gemm.dropped:
        yield Text(f"  dropped {reason}")
    for near in gemm.nearest[:1]:
        yield Text(f"  near: {near.key}: {'; '.join(near.differences)}")
    if gemm.advice:
        yield Text(f"  {gemm.advice}")


# --- collect ----------------------------------------------------------------------------


@click.command("collect")
@_takes_targets
@click.option("--out", required=True, type=click.Path(dir_okay=False, path_type=Path),
              metavar="FILE", help="Where the problems go.")  # fmt: skip
@click.option("--append", is_flag=True, help="Add to what FILE holds; it may be missing.")
@click.option("--misses", is_flag=True, help="Only what the tables have no kernel for.")
@errors_for_people
def collect_command(
    out: Path, append: bool, misses: bool, targets: Sequence[str], **asked: Any
) -> None:
    """Write the GEMMs of models down as problems to tune elsewhere.

    TARGET is as for coverage. Equal problems are one, with their counts added.
    """
    kept = problems.read(out) if append and out.exists() else ()
    new: list[Problem] = []
    for target, found in zip(
        targets, _looked_at(targets=targets, apart=True, **asked), strict=True
    ):
        click.echo(f"{target}: {found.summary()}")
        for note in found.notes:
            click.echo(f"note: {note}")
        wanted = (gemm for gemm in found.gemms if not (misses and gemm.outcome == "hit"))
        new += [_problem(gemm, target.replace(":", ".")) for gemm in wanted]
    merged = problems.merge([*kept, *new])
    problems.write(out, merged)
    click.echo(f"{len(merged)} problems in {out}")


def _problem(gemm: Gemm, model: str) -> Problem:
    """Return what there is to tune of a GEMM of a model, on whichever device."""
    origins = {f"{model}:{origin}"[:_MAX_ORIGIN] for origin in gemm.origins}
    return problems.problem_from_key(gemm.key, count=gemm.count, origins=origins)
