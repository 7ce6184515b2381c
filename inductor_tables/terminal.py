"""What the commands share: errors, grids and kernels as people read them."""

from __future__ import annotations

import importlib
import json
import warnings
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import click
from rich.console import Console
from rich.table import Table as Grid

from inductor_tables import host
from inductor_tables.errors import InductorTablesError
from inductor_tables.parameters import TUNING

_P = ParamSpec("_P")
_R = TypeVar("_R")


def errors_for_people(command: Callable[_P, _R]) -> Callable[_P, _R]:
    """Show the package's own errors as messages, not as tracebacks."""

    @wraps(command)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return command(*args, **kwargs)
        except InductorTablesError as error:
            raise click.ClickException(str(error)) from error

    return run


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


def kernel_text(template_id: str, params: Mapping[str, Any]) -> str:
    """Return a template and its tuning choices: ``triton::mm 64x128x32, 4 warps, 3 stages``."""
    tuning = {name: value for name, value in params.items() if name in TUNING}
    block = [tuning.pop(f"BLOCK_{side}", None) for side in "MNK"]
    parts = [template_id] if None in block else [f"{template_id} {'x'.join(map(str, block))}"]
    for name, unit in (("num_warps", "warps"), ("num_stages", "stages")):
        if name in tuning:
            parts.append(f"{tuning.pop(name)} {unit}")
    return ", ".join([*parts, *(f"{name}={tuning[name]}" for name in sorted(tuning))])


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
    return made if made.is_terminal else Console(width=160)


def print_json(data: Any) -> None:
    """Print plain data."""
    click.echo(json.dumps(data, indent=2, ensure_ascii=False))
