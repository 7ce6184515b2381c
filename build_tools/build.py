"""Builds tables from dumps: place, check against the committed hashes, merge, encode, write."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from packaging.version import Version

from build_tools.files import replace_file, table_files, table_path
from build_tools.hashes import TemplateHashes, read_committed
from build_tools.merge import DumpReport, merge
from build_tools.place import PlacedRow, Places, Target, place
from inductor_tables.dumps import Dump
from inductor_tables.errors import BuildError, InvalidTableError
from inductor_tables.schema import MAX_ENTRIES_PER_KEY
from inductor_tables.table import Table, write_table
from inductor_tables.versions import TorchSeries


@dataclass(frozen=True, kw_only=True)
class BuiltTable:
    """A table that is ready to be written: where, its bytes, and the table they make."""

    path: PurePosixPath
    data: bytes
    table: Table


@dataclass(frozen=True, kw_only=True)
class Built:
    """Tables ready to be written, and what became of every dump's rows."""

    tables: Sequence[BuiltTable]
    reports: Sequence[DumpReport]


def build(
    dumps: Iterable[Dump],
    *,
    table_version: str,
    topk: int | None = None,
    proved: bool = False,
    places: Places | None = None,
    committed: Mapping[TorchSeries, TemplateHashes] | None = None,
) -> Built:
    """Build all tables in memory, each read back and verified; nothing is written.

    Args:
        dumps: in any order.
        table_version: PEP 440 version of the data.
        topk: how many configurations of each problem stay; None keeps all.
        proved: whether only problems with a proof are taken.
        places: what the dumps do not say of series and archs.
        committed: hashes by series; None reads the committed ones.

    Raises:
        BuildError: the dumps hold no rows, the series of one cannot be told, templates do
            not fit their series, two archs share a folder, a key has too many entries, or
            a row is unaccounted for; names files and keys.
        InvalidDumpError: a key does not follow the host's grammar.
        ValueError: ``table_version`` is not a PEP 440 version.
    """
    version = str(Version(table_version))
    places = places or Places()
    by_name = sorted(dumps, key=lambda dump: dump.resource)
    reports = {d.resource: DumpReport(resource=d.resource, rows=len(d.rows)) for d in by_name}
    if len(reports) != len(by_name):
        raise BuildError(f"expected each dump once, found {', '.join(d.resource for d in by_name)}")
    placed = place(by_name, places)
    if not placed:
        raise BuildError(f"expected rows to build from, found none in {', '.join(reports) or '-'}")
    check_templates(placed, read_committed() if committed is None else committed)
    check_folders(placed)
    merged = merge(placed, reports, topk=topk, proved=proved)
    tables = [
        _encode(target, keys, version, target.device in places.base_archs)
        for target, keys in merged.items()
    ]
    return Built(tables=tables, reports=list(reports.values()))


def write(tables: Sequence[BuiltTable], directory: Path) -> list[Path]:
    """Write tables below a directory, each file replaced atomically.

    Returns:
        The tables in the directory that were there before and are none of these.

    Raises:
        BuildError: an existing table of another arch is in the place of one of these.
        OSError: a file cannot be written.
    """
    for one in tables:
        _check_same_arch(directory / one.path, one.table)
    for one in tables:
        replace_file(directory / one.path, one.data)
    written = {directory / one.path for one in tables}
    return [path for path in table_files(directory) if path not in written]


def _encode(
    target: Target, keys: Mapping[str, Sequence[PlacedRow]], table_version: str, serves_base: bool
) -> BuiltTable:
    for key, rows in keys.items():
        if len(rows) > MAX_ENTRIES_PER_KEY:
            raise BuildError(
                f"{_names(rows)}: {key}: {len(rows)} entries; at most {MAX_ENTRIES_PER_KEY} "
                "fit under a key: use --topk"
            )
    data = write_table(
        {key: [row.entry for row in rows] for key, rows in keys.items()},
        table_version=table_version,
        series=target.series,
        arch=target.arch,
        serves_base_arch=serves_base,
    )
    path = table_path(target.series, target.arch)
    table = Table(data, str(path))
    table.verify()
    return BuiltTable(path=path, data=data, table=table)


def check_templates(
    placed: Iterable[PlacedRow], committed: Mapping[TorchSeries, TemplateHashes]
) -> None:
    """Check that every row's template is one of its series, with the series' hash.

    Raises:
        BuildError: some are not; one line for each dump, template and hash, with a key.
    """
    bad: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in placed:
        problem = _template_problem(row, committed)
        if problem is not None:
            bad[row.resource, problem].append(row.key)
    if bad:
        raise BuildError(
            "\n".join(
                f"{resource}: {min(keys)}: {problem} (rows: {len(keys)})"
                for (resource, problem), keys in sorted(bad.items())
            )
        )


def _template_problem(
    row: PlacedRow, committed: Mapping[TorchSeries, TemplateHashes]
) -> str | None:
    series, device = row.target.series, row.target.device
    hashes = committed.get(series)
    if hashes is None:
        return (
            f"expected template hashes of torch {series} in the committed data, found those of "
            f"{', '.join(committed)}; run 'python -m build_tools hashes --write' on torch {series}"
        )
    config = row.row.config
    rocm = device.startswith("gfx") or row.source.hip is not None
    problem = hashes.problem(config.template_id, config.template_hash, rocm=rocm)
    return problem and f"{problem}; record it again on torch {series}, or remove it from the dump"


def check_folders(placed: Iterable[PlacedRow]) -> None:
    """Check that every arch has a folder of its own.

    Raises:
        BuildError: two arch names share a folder, or a name makes none; names dumps and keys.
    """
    first: dict[Target, PlacedRow] = {}
    for row in sorted(placed, key=lambda row: (row.key, row.resource)):
        first.setdefault(row.target, row)
    owners: dict[PurePosixPath, PlacedRow] = {}
    for target, row in sorted(first.items()):
        where = f"{row.resource}: {row.key}"
        try:
            path = table_path(target.series, target.arch)
        except ValueError as error:
            raise BuildError(f"{where}: {error}; correct the key") from error
        other = owners.setdefault(path, row)
        if other is not row:
            raise BuildError(
                f"{where}: the arch {target.device!r} shares the folder {path.parent} with "
                f"{other.target.device!r} ({other.resource}: {other.key}); expected one "
                "gcnArchName a folder: correct the dumps"
            )


def _check_same_arch(path: Path, table: Table) -> None:
    if not path.exists():
        return
    try:
        there = Table.open(path).header.arch
    except InvalidTableError:
        return  # damaged: the build replaces it
    if there != table.header.arch:
        raise BuildError(
            f"{path}: holds the table of {there!r}, but this build wants to put that of "
            f"{table.header.arch!r} there: two archs share a folder; correct the dumps or remove it"
        )


def _names(rows: Iterable[PlacedRow]) -> str:
    return ", ".join(sorted({row.resource for row in rows}))
