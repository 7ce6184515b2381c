"""Decides which table each row of a dump belongs to, and under which key.

A row goes to the table of its dump's torch series, or of that which the dump was carried over
to, and of its key's device.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, fields, replace

from inductor_tables.arch import base_arch
from inductor_tables.dumps import Dump, Row
from inductor_tables.errors import BuildError, InvalidDumpError, InvalidKeyError
from inductor_tables.keys import ParsedKey, parse_key, problem_of
from inductor_tables.schema import Entry, Source, proof_order
from inductor_tables.versions import TorchSeries, torch_series


@dataclass(frozen=True, kw_only=True, order=True)
class Target:
    """Identity of a table: the torch series and the gcnArchName, ``""`` for keys without one."""

    series: TorchSeries
    device: str

    @property
    def arch(self) -> str | None:
        """The gcnArchName as a table's header has it: None for keys without a device."""
        return self.device or None


@dataclass(frozen=True, kw_only=True)
class PlacedRow:
    """A row of a dump, with the table it goes to.

    ``key`` is the key as the table has it, ``problem`` what competes for ``topk``: two keys
    of one addmm are one problem. ``resource`` is the dump's name.
    """

    target: Target
    key: str
    problem: ParsedKey
    row: Row
    source: Source
    resource: str

    @property
    def recorded_on(self) -> TorchSeries:
        """The torch that the row was recorded with; another than the table's if it was carried."""
        if self.source.carried is None or self.source.torch is None:
            return self.target.series
        return torch_series(self.source.torch)

    @property
    def entry(self) -> Entry:
        """The row as a table holds it."""
        row = self.row
        return Entry(config=row.config, time_ns=row.time_ns, source=self.source, proof=row.proof)

    @property
    def speed(self) -> tuple[float, int, tuple[str, ...]]:
        """Sort key: fastest first; rows without a time by rank after those; ties by content."""
        if self.row.time_ns is None:
            return (math.inf, self.row.rank, self.row.config.order)
        return (self.row.time_ns, 0, self.row.config.order)

    @property
    def order(self) -> tuple[object, ...]:
        """A total order: by speed, then by what identifies the measurement, a proved one first."""
        proof = self.row.proof
        source = identity(self.source)
        return (self.speed, self.key, proof is None, source, self.resource, proof_order(proof))


def identity(source: Source) -> tuple[str, ...]:
    """Return what tells a source from others, in an order."""
    return tuple(str(getattr(source, field.name)) for field in fields(Source))


@dataclass(frozen=True, kw_only=True)
class Places:
    """What the command line says about places that the dumps do not tell.

    Attributes:
        torch: version or series for dumps that do not say what they were recorded with.
        arch: gcnArchName for keys without a device; None leaves them as they are.
        base_archs: AMD archs without feature flags (``gfx942``) whose table shall serve
            all flags: rows of every flag go there, under the base name.
    """

    torch: str | None = None
    arch: str | None = None
    base_archs: Collection[str] = ()

    def rename(self, parsed: ParsedKey) -> ParsedKey:
        """Return a key with the device that it has in a table."""
        device = parsed.device or self.arch
        base = device and base_arch(device)
        return replace(parsed, device=base if base in self.base_archs else device)


def place(dumps: Iterable[Dump], places: Places) -> list[PlacedRow]:
    """Return all rows of all dumps, each with its table and key.

    Raises:
        BuildError: the torch series of a dump cannot be told, or a base arch gets no row.
        InvalidDumpError: a key does not follow the host's grammar.
    """
    placed = [row for dump in dumps for row in _placed(dump, places)]
    devices = {row.target.device for row in placed}
    for base in sorted(set(places.base_archs) - devices):
        found = ", ".join(map(repr, sorted(devices)))
        raise BuildError(
            f"expected keys of the arch {base!r} to serve all its flags, found {found}"
        )
    return placed


def _placed(dump: Dump, places: Places) -> Iterator[PlacedRow]:
    recorded = recorded_series(dump, places.torch)
    series = dump.carried.series if dump.carried else recorded
    keys: dict[str, tuple[ParsedKey, Source]] = {}
    for row in dump.rows:
        if row.key not in keys:
            source = dump.source_of(row)
            named = source if source.torch else replace(source, torch=places.torch)
            keys[row.key] = places.rename(_parsed(dump.resource, row.key)), named
        parsed, source = keys[row.key]
        yield PlacedRow(
            target=Target(series=series, device=parsed.device or ""),
            key=str(parsed),
            problem=problem_of(parsed),
            row=row,
            source=source,
            resource=dump.resource,
        )


def recorded_series(dump: Dump, torch: str | None = None) -> TorchSeries:
    """Return the series that a dump was recorded on; ``torch`` is that of one that does not say.

    Raises:
        BuildError: it cannot be told.
    """
    resource, version = dump.resource, dump.source.torch or torch
    if version is None:
        raise BuildError(
            f"{resource}: the dump does not say which torch it was recorded with; "
            "name it with --torch, e.g. --torch 2.13"
        )
    try:
        return torch_series(version)
    except ValueError as error:
        raise BuildError(
            f"{resource}: expected the version of a torch such as '2.13.0', found {version!r}; "
            "correct its provenance"
        ) from error


def _parsed(resource: str, key: str) -> ParsedKey:
    try:
        return parse_key(key)
    except InvalidKeyError as error:
        raise InvalidDumpError(resource, key[:200], f"{error}; remove it from the dump") from error
