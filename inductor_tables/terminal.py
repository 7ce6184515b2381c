"""What the commands share: errors, grids and JSON as people read them."""

from __future__ import annotations

import importlib
import json
import warnings
from collections.abc import Callable, Collection
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import click
from rich.console import Console
from rich.table import Table as Grid

from inductor_tables import host
from inductor_tables.errors import InductorTablesError

_P = ParamSpec("_P")
_R = TypeVar("_R")


def messages_for(
    *errors: type[Exception],
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Return what has a command show these errors as messages, not as tracebacks."""

    def decorate(command: Callable[_P, _R]) -> Callable[_P, _R]:
        @wraps(command)
        def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            try:
                return command(*args, **kwargs)
            except errors as error:
                raise click.ClickException(str(error)) from error

        return run

    return decorate


def errors_for_people(command: Callable[_P, _R]) -> Callable[_P, _R]:
    """Show the package's own errors as messages, not as tracebacks."""
    return messages_for(InductorTablesError)(command)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def import_torch() -> None:
    """Import torch, without its warning that NumPy is not installed.

    Raises:
        UnsupportedTorchError: it is not installed or too old.
    """
    host.installed_series()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
        importlib.import_module("torch")


def new_grid(*columns: str, numbers: Collection[str] = ()) -> Grid:
    """Return an empty table; the columns of ``numbers`` are aligned to the right."""
    made = Grid()
    for column in columns:
        justify: Any = "right" if column in numbers else "left"
        made.add_column(column, overflow="fold", justify=justify)
    return made


def new_console() -> Console:
    """Return a console that is wide where no person's terminal sets a width."""
    made = Console()
    return made if made.is_terminal else Console(width=200)


def print_json(data: Any) -> None:
    """Print plain data."""
    click.echo(json.dumps(data, indent=2, ensure_ascii=False))
