"""How every command tells people what it found and what went wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import click
from rich.console import Console
from rich.progress import track
from rich.table import Table as Grid

from build_tools.files import dump_files
from inductor_tables.dumps import Dump, read_dump
from inductor_tables.errors import InductorTablesError

_P = ParamSpec("_P")
_R = TypeVar("_R")


def errors_for_people(command: Callable[_P, _R]) -> Callable[_P, _R]:
    """Show the package's own errors and those of files as messages, not as tracebacks."""

    @wraps(command)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return command(*args, **kwargs)
        except (InductorTablesError, OSError) as error:
            raise click.ClickException(str(error)) from error

    return run


def print_grids(*grids: Grid) -> None:
    """Print tables, in a file or a log without folding them."""
    console = Console()
    if not console.is_terminal:
        console.width = 200
    console.print(*grids)


def print_json(data: Any) -> None:
    """Print data as JSON."""
    click.echo(json.dumps(data, indent=2, ensure_ascii=False))


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
