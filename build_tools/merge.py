"""Merges the rows of dumps into the entries of tables, and accounts for every row.

A row goes to the table of its dump's torch series and of its key's device. The same
configuration of the same key is kept once, with its fastest measurement; with ``topk``
only the fastest configurations of every problem stay. The result depends neither on the
order of the dumps nor on the order of rows in them.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from inductor_tables.dumps import Dump, Row
from inductor_tables.errors import BuildError, InvalidDumpError, InvalidKeyError
from inductor_tables.keys import ParsedKey, parse_key, problem_of
from inductor_tables.schema import Entry, Source
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
    def entry(self) -> Entry:
        """The row as a table holds it."""
        return Entry(config=self.row.config, time_ns=self.row.time_ns, source=self.source)

    @property
    def speed(self) -> tuple[float, int, tuple[str, ...]]:
        """Sort key: fastest first; rows without a time by rank after those; ties by content."""
        time_ns = self.row.time_ns
        measured = (math.inf, self.row.rank) if time_ns is None else (time_ns, 0)
        return (*measured, self.row.config.order)

    @property
    def order(self) -> tuple[object, ...]:
        """A total order: by speed, then by what identifies the measurement."""
        identity = tuple(str(getattr(self.source, f.name)) for f in fields(Source))
        return (self.speed, self.key, identity, self.resource)


@dataclass(kw_only=True)
class DumpReport:
    """What became of a dump's rows; ``dropped`` is reason → count."""

    resource: str
    rows: int
    kept: int = 0
    merged: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def account(self) -> None:
        """Check that every row is explained.

        Raises:
            BuildError: rows are missing, or appear twice.
        """
        explained = self.kept + self.merged + self.dropped.total()
        if explained != self.rows:
            raise BuildError(
                f"{self.resource}: unexplained loss: {self.rows} rows came in, but {self.kept} "
                f"kept + {self.merged} merged + {self.dropped.total()} dropped = {explained}; "
                "this is a bug of the build tools, please report it with the dump"
            )


@dataclass(frozen=True, kw_only=True)
class Merged:
    """The rows that stay, fastest first within each key, and a report per dump."""

    tables: Mapping[Target, Mapping[str, Sequence[PlacedRow]]]
    reports: Sequence[DumpReport]


def merge(
    dumps: Iterable[Dump],
    *,
    topk: int | None = None,
    torch: str | None = None,
    arch: str | None = None,
) -> Merged:
    """Merge dumps; without ``topk`` no configuration is lost.

    Args:
        dumps: in any order.
        topk: how many configurations of each problem stay, the fastest; None keeps all.
        torch: version or series for dumps that do not say what they were recorded with.
        arch: gcnArchName for keys without a device; None leaves them as they are.

    Raises:
        BuildError: the torch series of a dump cannot be told, or a row is unaccounted for.
        InvalidDumpError: a key does not follow the host's grammar.
    """
    by_name = sorted(dumps, key=lambda dump: (dump.resource, dump.digest))
    reports = [_report(dump) for dump in by_name]
    of_resource = {report.resource: report for report in reports}
    if len(of_resource) != len(reports):
        raise BuildError(f"a dump is named twice: {', '.join(r.resource for r in reports)}")
    placed = [row for dump in by_name for row in _placed(dump, torch, arch)]
    kept = _fastest_per_problem(_without_repeats(placed, of_resource), topk, of_resource)
    tables: dict[Target, dict[str, list[PlacedRow]]] = defaultdict(lambda: defaultdict(list))
    for row in kept:
        of_resource[row.resource].kept += 1
        tables[row.target][row.key].append(row)
    for report in reports:
        report.account()
    return Merged(
        tables={target: dict(sorted(tables[target].items())) for target in sorted(tables)},
        reports=reports,
    )


def _report(dump: Dump) -> DumpReport:
    return DumpReport(resource=dump.resource, rows=len(dump.rows))


def _placed(dump: Dump, torch: str | None, arch: str | None) -> Iterable[PlacedRow]:
    source = dump.source if dump.source.torch else replace(dump.source, torch=torch)
    series = _series(dump.resource, source.torch)
    keys: dict[str, tuple[str, ParsedKey]] = {}
    for row in dump.rows:
        if row.key not in keys:
            keys[row.key] = _with_device(dump.resource, row.key, arch)
        key, parsed = keys[row.key]
        yield PlacedRow(
            target=Target(series=series, device=parsed.device or ""),
            key=key,
            problem=problem_of(parsed),
            row=row,
            source=source,
            resource=dump.resource,
        )


def _series(resource: str, version: str | None) -> TorchSeries:
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


def _with_device(resource: str, key: str, arch: str | None) -> tuple[str, ParsedKey]:
    try:
        parsed = parse_key(key)
    except InvalidKeyError as error:
        raise InvalidDumpError(resource, key[:200], f"{error}; remove it from the dump") from error
    if parsed.device is None and arch is not None:
        parsed = replace(parsed, device=arch)
    return str(parsed), parsed


def _without_repeats(
    rows: Iterable[PlacedRow], reports: Mapping[str, DumpReport]
) -> list[PlacedRow]:
    """Keep the fastest measurement of each configuration of each key."""
    best: dict[tuple[object, ...], PlacedRow] = {}
    for row in sorted(rows, key=lambda row: row.order):
        identity = (row.target, row.key, row.row.config)
        if identity in best:
            reports[row.resource].merged += 1
        else:
            best[identity] = row
    return list(best.values())


def _fastest_per_problem(
    rows: Sequence[PlacedRow], topk: int | None, reports: Mapping[str, DumpReport]
) -> list[PlacedRow]:
    """Keep ``topk`` of the rows of each problem; ``rows`` come fastest first."""
    if topk is None:
        return list(rows)
    taken: Counter[tuple[Target, ParsedKey]] = Counter()
    kept = []
    for row in rows:
        taken[row.target, row.problem] += 1
        if taken[row.target, row.problem] <= topk:
            kept.append(row)
        else:
            reports[row.resource].dropped[f"beyond the {topk} fastest of its problem"] += 1
    return kept
