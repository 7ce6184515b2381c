"""Says what changed between two tables or two directories of tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from build_tools.files import table_files
from inductor_tables.errors import BuildError
from inductor_tables.schema import Config, Entry, Header, Proof
from inductor_tables.table import Table


@dataclass(frozen=True, kw_only=True)
class KeyChange:
    """A key whose choices are others, or come in another order; each fastest first."""

    key: str
    old: tuple[Entry, ...]
    new: tuple[Entry, ...]

    @property
    def fastest_changed(self) -> bool:
        """Another choice than before is the fastest."""
        return self.old[0].config != self.new[0].config

    def as_data(self) -> dict[str, Any]:
        """Return the JSON form: the host's plain entries with ``time_us`` added."""
        return {"key": self.key, "old": _plain(self.old), "new": _plain(self.new)}


@dataclass(frozen=True, kw_only=True)
class TimeChange:
    """A key with the same choices in the same order, but other times; µs of the fastest."""

    key: str
    old_us: float | None
    new_us: float | None


@dataclass(frozen=True, kw_only=True)
class ProofChange:
    """A key with the same choices and times, but other proofs; margins of the fastest."""

    key: str
    old_margin: float | None
    new_margin: float | None


@dataclass(frozen=True, kw_only=True)
class HeaderChange:
    """A field of the header that differs."""

    name: str
    old: Any
    new: Any


@dataclass(frozen=True, kw_only=True)
class TableDiff:
    """What changed in one table; ``status`` is added, removed, changed or same.

    Of an added or removed table only the counts are told.
    """

    table: str
    status: str
    old_keys: int
    new_keys: int
    header: tuple[HeaderChange, ...] = ()
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    choices: tuple[KeyChange, ...] = ()
    times: tuple[TimeChange, ...] = ()
    proofs: tuple[ProofChange, ...] = ()

    def as_data(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            **{f.name: getattr(self, f.name) for f in fields(self)},
            "header": [asdict(change) for change in self.header],
            "choices": [change.as_data() for change in self.choices],
            "times": [asdict(change) for change in self.times],
            "proofs": [asdict(change) for change in self.proofs],
        }


def diff_paths(old: Path, new: Path) -> list[TableDiff]:
    """Compare two table files, or two directories table by table.

    Raises:
        BuildError: one is a file and the other a directory, or neither holds a table.
        InvalidTableError: a table is damaged.
    """
    if old.is_dir() != new.is_dir():
        raise BuildError(f"expected two files or two directories, found one each: {old}, {new}")
    if not old.is_dir():
        return [diff_tables(f"{old} -> {new}", Table.open(old), Table.open(new))]
    before, after = _tables(old), _tables(new)
    if not before and not after:
        raise BuildError(f"expected tables (*.msgpack), found none in {old} and {new}")
    return [
        diff_tables(name, before.get(name), after.get(name)) for name in sorted({*before, *after})
    ]


def _tables(directory: Path) -> dict[str, Table]:
    files = table_files(directory)
    return {file.relative_to(directory).as_posix(): Table.open(file) for file in files}


def diff_tables(name: str, old: Table | None, new: Table | None) -> TableDiff:
    """Compare two tables; None stands for a table that does not exist.

    Raises:
        InvalidTableError: a table is damaged.
    """
    if old is None or new is None or old.digest == new.digest:
        status = "added" if old is None else "removed" if new is None else "same"
        return TableDiff(
            table=name, status=status, old_keys=len(old or ()), new_keys=len(new or ())
        )
    before, after = dict(old.items()), dict(new.items())
    both = [(key, before[key], after[key]) for key in sorted(before.keys() & after.keys())]
    choices = [(key, a, b) for key, a, b in both if _configs(a) != _configs(b)]
    alike = [(key, a, b) for key, a, b in both if _configs(a) == _configs(b)]
    times = [(key, a, b) for key, a, b in alike if _times(a) != _times(b)]
    proofs = [
        (key, a, b) for key, a, b in alike if _times(a) == _times(b) and _proofs(a) != _proofs(b)
    ]
    return TableDiff(
        table=name,
        status="changed",
        old_keys=len(before),
        new_keys=len(after),
        header=tuple(_header_changes(old.header, new.header)),
        added=tuple(sorted(after.keys() - before.keys())),
        removed=tuple(sorted(before.keys() - after.keys())),
        choices=tuple(KeyChange(key=key, old=a, new=b) for key, a, b in choices),
        times=tuple(
            TimeChange(key=key, old_us=a[0].time_us, new_us=b[0].time_us) for key, a, b in times
        ),
        proofs=tuple(
            ProofChange(key=key, old_margin=a[0].margin, new_margin=b[0].margin)
            for key, a, b in proofs
        ),
    )


def _header_changes(old: Header, new: Header) -> Iterator[HeaderChange]:
    before, after = _header_fields(old), _header_fields(new)
    for name, value in before.items():
        if value != after[name]:
            yield HeaderChange(name=name, old=value, new=after[name])


def _header_fields(header: Header) -> dict[str, Any]:
    named = {
        "table_version": header.table_version,
        "torch_series": header.torch_series,
        "arch": header.arch,
        "serves_base_arch": header.serves_base_arch,
        "key_count": header.key_count,
        "entry_count": header.entry_count,
        "proof_count": header.proof_count,
        "templates": [f"{name} {digest or 'no hash'}" for name, digest in header.templates],
        "sm_counts": list(header.sm_counts),
    }
    recorded = {f"recorded with {name}": list(v) for name, v in header.recorded_with.items()}
    dumps = sorted({source.dump_digest for source in header.sources})
    return {**named, **recorded, "dumps": dumps}


def _plain(rows: Sequence[Entry]) -> list[dict[str, Any]]:
    return [{**row.config.plain, "time_us": row.time_us} for row in rows]


def _configs(rows: Sequence[Entry]) -> list[Config]:
    return [row.config for row in rows]


def _times(rows: Sequence[Entry]) -> list[int | None]:
    return [row.time_ns for row in rows]


def _proofs(rows: Sequence[Entry]) -> list[Proof | None]:
    return [row.proof for row in rows]
