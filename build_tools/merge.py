"""Merges placed rows into what the tables hold, and accounts for every row.

Of a problem only measurements that compare are kept. Where some have a proof, no others: what
autotuning measured in line proves nothing. Of these what one torch recorded: the table's own, else
the one nearest to it that something was carried from. Of proved ones the latest tuning: times of
two days differ by more than the choices do. The same configuration of the same key is kept once,
with its fastest measurement; with ``topk`` only the fastest configurations of every problem stay.
The result depends neither on the order of the dumps nor on the order of rows in them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from build_tools.place import PlacedRow, Target, identity
from inductor_tables.errors import BuildError
from inductor_tables.keys import ParsedKey
from inductor_tables.schema import Source
from inductor_tables.versions import TorchSeries, distance


@dataclass(kw_only=True)
class DumpReport:
    """What became of a dump's rows; ``dropped`` is reason → count.

    ``unordered`` of the ``kept`` rows have no time, and nor have others of their key: a table
    can order these by content only.
    """

    resource: str
    rows: int
    kept: int = 0
    unordered: int = 0
    merged: int = 0
    dropped: Counter[str] = field(default_factory=Counter)

    def account(self) -> None:
        """Check that every row is explained.

        Raises:
            BuildError: rows are missing, or appear twice.
        """
        dropped = sum(self.dropped.values())
        explained = self.kept + self.merged + dropped
        if explained != self.rows:
            raise BuildError(
                f"{self.resource}: unexplained loss: {self.rows} rows came in, but {self.kept} "
                f"kept + {self.merged} merged + {dropped} dropped = {explained}; "
                "this is a bug of the build tools, please report it with the dump"
            )


_Place = tuple[Target, ParsedKey]
"""A problem in a table."""

Merged = Mapping[Target, Mapping[str, Sequence[PlacedRow]]]
"""Table → key → the rows that stay, fastest first."""


def merge(
    placed: Iterable[PlacedRow],
    reports: Mapping[str, DumpReport],
    *,
    topk: int | None = None,
    proved: bool = False,
) -> Merged:
    """Merge rows; without ``topk`` no configuration that compares is lost.

    Args:
        placed: the rows of all dumps, in any order.
        reports: by resource, with the rows that came in; what became of them is added.
        topk: how many configurations of each problem stay, the fastest; None keeps all.
        proved: whether problems without a proof are left out.

    Raises:
        BuildError: a row is unaccounted for.
    """
    tables: dict[Target, dict[str, list[PlacedRow]]] = defaultdict(lambda: defaultdict(list))
    found = _of_nearest_torch(_proved(list(placed), reports, alone=proved), reports)
    found = _of_latest_tuning(found, reports)
    for row in _fastest_per_problem(_without_repeats(found, reports), topk, reports):
        reports[row.resource].kept += 1
        tables[row.target][row.key].append(row)
    for report in reports.values():
        report.account()
    for keys in tables.values():
        for rows in keys.values():
            _count_unordered(rows, reports)
    return {target: dict(sorted(tables[target].items())) for target in sorted(tables)}


def _count_unordered(rows: Sequence[PlacedRow], reports: Mapping[str, DumpReport]) -> None:
    untimed = [row for row in rows if row.row.time_ns is None]
    for row in untimed if len(untimed) > 1 else ():
        reports[row.resource].unordered += 1


def _sieved(
    rows: Iterable[PlacedRow],
    reports: Mapping[str, DumpReport],
    fault: Callable[[PlacedRow], str | None],
) -> list[PlacedRow]:
    """Keep the rows without a fault, in their order; the others are counted by theirs."""
    kept = []
    for row in rows:
        reason = fault(row)
        if reason is None:
            kept.append(row)
        else:
            reports[row.resource].dropped[reason] += 1
    return kept


def _of_nearest_torch(
    rows: Sequence[PlacedRow], reports: Mapping[str, DumpReport]
) -> list[PlacedRow]:
    """Keep of each problem what the nearest torch recorded.

    Times of two torches do not compare: their tritons and ATen kernels differ.
    """
    nearest: dict[_Place, TorchSeries] = {}
    for row in rows:
        place, recorded = _place(row), row.recorded_on
        known = nearest.setdefault(place, recorded)
        nearest[place] = min(known, recorded, key=lambda s: distance(s, row.target.series))

    def fault(row: PlacedRow) -> str | None:
        near = row.recorded_on == nearest[_place(row)]
        return None if near else "a nearer torch has its problem"

    return _sieved(rows, reports, fault)


def _proved(
    rows: Sequence[PlacedRow], reports: Mapping[str, DumpReport], *, alone: bool
) -> list[PlacedRow]:
    """Keep of each problem the proved rows; all of them if none is, unless ``alone``."""
    places = {_place(row) for row in rows if row.row.proof is not None}

    def fault(row: PlacedRow) -> str | None:
        if row.row.proof is not None:
            return None
        if _place(row) in places:
            return "its problem has proved choices"
        return "not proved" if alone else None

    return _sieved(rows, reports, fault)


def _of_latest_tuning(
    rows: Sequence[PlacedRow], reports: Mapping[str, DumpReport]
) -> list[PlacedRow]:
    """Keep of each problem's proved rows those that were proved together, the latest."""
    latest: dict[_Place, tuple[str, ...]] = {}
    for row in rows:
        if row.row.proof is not None:
            latest[_place(row)] = max(latest.get(_place(row), ()), _tuning(row.source))

    def fault(row: PlacedRow) -> str | None:
        early = row.row.proof is not None and _tuning(row.source) != latest[_place(row)]
        return "a later tuning has its problem" if early else None

    return _sieved(rows, reports, fault)


def _tuning(source: Source) -> tuple[str, ...]:
    """Return what identifies a tuning, by date; what was carried of it is of it."""
    return (source.date or "", *identity(replace(source, carried=None)))


def _without_repeats(
    rows: Iterable[PlacedRow], reports: Mapping[str, DumpReport]
) -> list[PlacedRow]:
    """Keep the fastest measurement of each configuration of each key; fastest first."""
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
    taken: Counter[_Place] = Counter()

    def fault(row: PlacedRow) -> str | None:
        taken[_place(row)] += 1
        beyond = topk is not None and taken[_place(row)] > topk
        return f"beyond the {topk} fastest of its problem" if beyond else None

    return _sieved(rows, reports, fault)


def _place(row: PlacedRow) -> _Place:
    return row.target, row.problem
