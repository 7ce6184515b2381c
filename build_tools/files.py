"""Where a table lies in a directory of tables, and how a file is replaced."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from inductor_tables.arch import AGNOSTIC_FOLDER, arch_folder
from inductor_tables.dumps import write_atomically
from inductor_tables.errors import BuildError
from inductor_tables.problems import MISSES_PREFIX
from inductor_tables.resources import TABLE_FILE


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


_MISSES: Final = f"{MISSES_PREFIX}_*.json"


def dump_files(paths: Sequence[Path]) -> list[Path]:
    """Return the dumps that are named or lie in a named directory, each once, sorted.

    Files of misses, which processes write beside their dumps, are left out.

    Raises:
        BuildError: a directory holds no dump.
    """
    found: set[Path] = set()
    for path in paths:
        inside = set(path.glob("*.json")) - set(path.glob(_MISSES)) if path.is_dir() else {path}
        if not inside:
            raise BuildError(f"{path}: expected dumps (*.json) in the directory, found none")
        found |= inside
    return sorted(found)


def problem_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files of problems that are named, and those of misses in named directories.

    Raises:
        BuildError: a directory holds none.
    """
    found: set[Path] = set()
    for path in paths:
        inside = set(path.glob(_MISSES)) if path.is_dir() else {path}
        if not inside:
            raise BuildError(f"{path}: expected {_MISSES} in the directory, found none")
        found |= inside
    return sorted(found)


def replace_file(path: Path, data: bytes) -> None:
    """Write a file, and its folder where there is none; readers never see a part of it.

    Raises:
        OSError: the file cannot be written; what was there is unharmed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data)
