"""Where a table lies in a directory of tables, and how a file is replaced."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from inductor_tables.arch import AGNOSTIC_FOLDER, arch_folder
from inductor_tables.errors import BuildError

TABLE_FILE: Final = "gemm.msgpack"
"""Name of every table's file."""


def table_path(series: str, arch: str | None) -> PurePosixPath:
    """Return where the table of a torch series and arch lies below the tables directory.

    Raises:
        ValueError: no folder can be named after the arch.
    """
    folder = AGNOSTIC_FOLDER if arch is None else arch_folder(arch)
    return PurePosixPath(series, folder, TABLE_FILE)


def table_files(directory: Path) -> list[Path]:
    """Return every table file below a directory, misplaced ones too, sorted."""
    return sorted(path for path in directory.rglob("*.msgpack") if path.is_file())


def dump_files(paths: Sequence[Path]) -> list[Path]:
    """Return the dumps that are named or lie in a named directory, each once, sorted.

    Raises:
        BuildError: a directory holds no dump.
    """
    found: set[Path] = set()
    for path in paths:
        inside = set(path.glob("*.json")) if path.is_dir() else {path}
        if not inside:
            raise BuildError(f"{path}: expected dumps (*.json) in the directory, found none")
        found |= inside
    return sorted(found)


def replace_file(path: Path, data: bytes) -> None:
    """Write a file so that readers see the old content or the new, never a part.

    Raises:
        OSError: the file cannot be written; what was there is unharmed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
