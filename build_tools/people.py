"""How every command tells people what it found and what went wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ParamSpec, TypeVar

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table as Grid

from build_tools.files import dump_files
from inductor_tables.dumps import Dump, read_dump
from inductor_tables.errors import InductorTablesError
from inductor_tables.terminal import messages_for, new_console
from inductor_tables.versions import TorchSeries, torch_series

_P = ParamSpec("_P")
_R = TypeVar("_R")


def errors_for_people(command: Callable[_P, _R]) -> Callable[_P, _R]:
    """Show the package's own errors and those of files as messages, not as tracebacks."""
    return messages_for(InductorTablesError, OSError)(command)


def series_of(text: str, example: str = "2.13") -> TorchSeries:
    """Return the torch series that an option names; ``example`` is for the message.

    Raises:
        click.BadParameter: it names none.
    """
    try:
        return torch_series(text)
    except ValueError as error:
        raise click.BadParameter(f"{error}; expected e.g. {example}") from error


def torch_named(_context: click.Context, _option: click.Parameter, value: str | None) -> str | None:
    """Check an option that names a torch and keep its text; a ``callback`` of click."""
    return value and series_of(value) and value


def print_grids(*grids: Grid) -> None:
    """Print tables, in a file or a log without folding them."""
    new_console().print(*grids)


def read_dumps(paths: Sequence[Path]) -> list[Dump]:
    """Read the dumps that are named or lie in named directories, with a progress bar.

    Raises:
        BuildError: a directory holds no dump.
        InvalidDumpError: a file is none.
        OSError: a file cannot be read.
    """
    files = dump_files(paths)
    console = Console(stderr=True)
    shown = track(files, "reading dumps", console=console, disable=not console.is_terminal)
    return [read_dump(file) for file in shown]
