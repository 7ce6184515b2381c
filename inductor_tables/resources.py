"""Where tables come from: the packaged resources and what a user gives to ``enable``."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from inductor_tables.arch import AGNOSTIC_FOLDER, ArchFolder, arch_folder, base_arch
from inductor_tables.errors import InvalidTableError
from inductor_tables.keys import MAX_KEY_LENGTH
from inductor_tables.schema import Entry, Source, plain_config
from inductor_tables.table import Table, write_table
from inductor_tables.trust import checked_file
from inductor_tables.versions import TorchSeries, series_order

if TYPE_CHECKING:
    from importlib.abc import Traversable  # importlib.resources.abc from Python 3.11 on

PACKAGE = "inductor_tables.tables"
TABLE_FILE = "gemm.msgpack"
"""Name of a table below ``<series>/<arch folder>/``."""

DUMP_PATTERN = "inductor_lut_*.json"

UserTables = str | os.PathLike[str] | Mapping[str, Sequence[Mapping[str, Any]]]
"""What ``enable(tables=...)`` takes, alone or in a list."""


@dataclass(frozen=True)
class Candidate:
    """A table that may serve a device, and how it matches: exact, base or agnostic."""

    table: Table
    level: str


def packaged_candidates(series: TorchSeries, arch: str) -> Iterator[Candidate]:
    """Yield the packaged tables that may serve an arch, the closest first.

    The exact gcnArchName, then the AMD base name where its table says it serves all
    feature flags, then the agnostic table.

    Raises:
        InvalidTableError: a packaged table is damaged or is not what its place says.
    """
    exact = _packaged(series, arch_folder(arch))
    if exact is not None and exact.header.arch == arch:
        yield Candidate(exact, "exact")
    base = base_arch(arch)
    shared = None if base is None else _packaged(series, arch_folder(base))
    if shared is not None and shared.header.serves_base_arch and shared.header.arch == base:
        yield Candidate(shared, "base")
    agnostic = _packaged(series, AGNOSTIC_FOLDER)
    if agnostic is not None and agnostic.header.arch is None:
        yield Candidate(agnostic, "agnostic")


def packaged_tables() -> Iterator[tuple[TorchSeries, ArchFolder, Table]]:
    """Yield every packaged table with its series and folder, in order.

    Raises:
        InvalidTableError: a packaged table is damaged.
    """
    root = files(PACKAGE)
    for series in packaged_series():
        for folder in sorted(f.name for f in root.joinpath(series).iterdir() if f.is_dir()):
            table = _packaged(series, ArchFolder(folder))
            if table is not None:
                yield series, ArchFolder(folder), table


def packaged_series() -> tuple[TorchSeries, ...]:
    """Return the torch series that any table is packaged for; reads no table."""
    names = (f.name for f in files(PACKAGE).iterdir() if f.is_dir() and f.name[:1].isdigit())
    return tuple(TorchSeries(name) for name in sorted(names, key=series_order))


@functools.cache
def _packaged(series: TorchSeries, folder: ArchFolder) -> Table | None:
    resource = files(PACKAGE) / series / folder / TABLE_FILE
    if not resource.is_file():
        return None
    table = _open(resource, f"{PACKAGE}/{series}/{folder}/{TABLE_FILE}")
    if table.header.torch_series != series:
        raise InvalidTableError(
            table.resource, "header.torch_series", f"{table.header.torch_series} in {series}/"
        )
    return table


def _open(resource: Traversable, name: str) -> Table:
    if isinstance(resource, Path):
        return Table.open(resource)
    return Table(resource.read_bytes(), name)  # inside a zipped wheel


def user_tables(given: UserTables, series: TorchSeries, place: str) -> list[Table]:
    """Open what a user gave: a table or dump file, a directory of them, or a plain dict.

    A directory holds ``<series>/<arch>/gemm.msgpack`` as the build tools write it, of
    which those of ``series`` are taken, or table and dump files side by side.

    Raises:
        InvalidTableError: a file is damaged or others may change it (see
            :func:`~inductor_tables.trust.checked_file`), or a dict is not in the host's
            plain form.
        FileNotFoundError: there is no such path, or the directory holds no table.
        OSError: a file cannot be read.
    """
    if isinstance(given, Mapping):
        return [_plain_table(given, series, place)]
    path = Path(given)
    if not path.is_dir():
        return [_table_file(path, series)]
    found = sorted(path.glob(f"{series}/*/{TABLE_FILE}"))
    if not found and not any(path.glob(f"*/*/{TABLE_FILE}")):
        found = sorted([*path.glob("*.msgpack"), *path.glob(DUMP_PATTERN)])
        if not found:
            raise FileNotFoundError(
                f"{path}: no {series}/<arch>/{TABLE_FILE}, no *.msgpack and no {DUMP_PATTERN}"
            )
    return [_table_file(file, series) for file in found]


def _table_file(given: Path, series: TorchSeries) -> Table:
    path = checked_file(given)
    with path.open("rb") as file:
        is_json = file.read(64).lstrip()[:1] == b"{"
    if not is_json:
        return Table.open(path)
    from inductor_tables.dumps import read_dump

    dump = read_dump(path)
    entries: dict[str, list[Entry]] = {}
    for row in dump.rows:
        entry = Entry(config=row.config, time_ns=row.time_ns, source=dump.source, proof=row.proof)
        entries.setdefault(row.key, []).append(entry)
    return _in_memory(entries, series, str(path))


def _plain_table(plain: Mapping[str, Any], series: TorchSeries, place: str) -> Table:
    source = Source(dump_digest="0" * 32)

    def fail(where: str, problem: str) -> NoReturn:
        raise InvalidTableError(place, where, problem)

    entries: dict[str, list[Entry]] = {}
    for key, rows in plain.items():
        where = f"[{key!r:.200}]"
        if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY_LENGTH:
            fail(where, "expected a lookup key")
        if not isinstance(rows, Sequence) or isinstance(rows, str | bytes):
            fail(where, f"expected a list of entries, found {type(rows).__name__}")
        entries[key] = [
            Entry(config=plain_config(row, f"{where}[{at}]", fail), time_ns=None, source=source)
            for at, row in enumerate(rows)
        ]
    return _in_memory({key: rows for key, rows in entries.items() if rows}, series, place)


def _in_memory(entries: Mapping[str, Sequence[Entry]], series: TorchSeries, place: str) -> Table:
    """Hold the user's entries in the one form that is looked up in."""
    try:
        data = write_table(entries, table_version="0", series=series, arch=None)
    except ValueError as error:
        raise InvalidTableError(place, "entries", str(error)) from error
    return Table(data, place)
