"""The options of ``check --compile``, and what it prints."""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from build_tools.compile_check import Advance, CompileReport

_FLAGS = {
    "devices": "--device",
    "jobs": "--jobs",
    "timeout_s": "--timeout",
    "state": "--state",
    "strict": "--strict",
}
"""Arguments of ``compile_directory`` and the options that give them."""

_OPTIONS = (
    click.option("--compile", "compiling", is_flag=True,
                 help="Also compile what the entries lead to, for their GPU, without one."),
    click.option("--device", "devices", multiple=True, metavar="NAME",
                 help="Compile for this gcnArchName, such as 'NVIDIA H200'; several times for "
                      "several. Default: each table's own."),
    click.option("--jobs", type=click.IntRange(min=1),
                 help="Worker processes that compile; default: one a core."),
    click.option("--timeout", "timeout_s", type=click.FloatRange(min=0, min_open=True),
                 help="Seconds after which compiling an entry is given up; default: 300."),
    click.option("--state", type=click.Path(dir_okay=False, path_type=Path),
                 help="File of results that a later run goes on from; default: in your caches."),
    click.option("--strict", is_flag=True, help="Fail on what is only warned of, too."),
)  # fmt: skip


def compile_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a command, which gets them as keywords, none without ``--compile``."""

    @functools.wraps(command)
    def checked(*args: Any, **options: Any) -> None:
        stray = [flag for name, flag in _FLAGS.items() if options[name]]
        if stray and not options["compiling"]:
            raise click.UsageError(f"{', '.join(stray)}: only with --compile")
        command(*args, **options)

    for option in reversed(_OPTIONS):
        checked = option(checked)
    return checked


def compiled(directory: Path, options: Mapping[str, Any]) -> CompileReport | None:
    """Run the compile check that the options ask for, with a progress bar; None: none.

    Raises:
        InductorTablesError, OSError: it cannot be made.
    """
    if not options["compiling"]:
        return None
    # pebble, torch and triton: what no other command needs.
    check = importlib.import_module("build_tools.compile_check")
    given = {name: options[name] for name in _FLAGS if options[name]}
    with _progress() as advance:
        report: CompileReport = check.compile_directory(directory, advance=advance, **given)
    return report


@contextlib.contextmanager
def _progress() -> Iterator[Advance]:
    console = Console(stderr=True)
    with Progress(
        TextColumn("compiling for {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    ) as progress:
        bars: dict[str, Any] = {}

        def advance(device: str, done: int, total: int) -> None:
            if device not in bars:  # what is done already says nothing of the speed
                bars[device] = progress.add_task(device, total=total, completed=done)
            else:
                progress.update(bars[device], completed=done)

        yield advance
