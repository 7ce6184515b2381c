"""For a key that no table has: the nearest ones that one has, and what to do about it."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from operator import attrgetter
from typing import Final

from inductor_tables.analysis.differences import (
    FINE,
    Difference,
    Kind,
    differences,
    size_log,
)
from inductor_tables.analysis.key_index import Cell, Group, key_index
from inductor_tables.analysis.products import OPS, product_of
from inductor_tables.analysis.records import Neighbour
from inductor_tables.decisions import Decision
from inductor_tables.errors import InvalidKeyError
from inductor_tables.keys import ParsedKey, parse_key
from inductor_tables.table import Table

FAR: Final = 32.0
"""Distance in factors of two of a size beyond which a key is no neighbour.

Another device alone is 24, another op and another type together are 20.
"""

_SLACK: Final = 1e-9
"""More than what sums of the same weights in another order differ by."""


def nearest(key: str, tables: Sequence[Table], *, limit: int = 3) -> tuple[Neighbour, ...]:
    """Return the keys of tables that are nearest to one that they lack, the nearest first.

    First come keys of the same op, type and layout with near sizes, then other layouts, then
    other types, then other ops, then other devices; a much nearer size counts for as much. Equal
    ones are in the order of their text; those beyond :data:`FAR` are left out.

    The first call for a table reads its keys, later ones do not. Of more keys than
    :data:`~inductor_tables.analysis.key_index.MAX_COMPARED`, or where a table is damaged, a sample
    is compared, which the differences then say.

    Args:
        key: the lookup key, as the host makes it; one of no matrix product has no neighbours.
        tables: those that were asked. Keys in them that are of no matrix product are left out.
        limit: how many are returned at most.
    """
    try:
        search = _Search(parse_key(key), limit)
    except InvalidKeyError:
        return ()
    regions = [region for table in tables for region in search.regions(table)]
    for region in sorted(regions, key=attrgetter("bound")):
        if region.bound > search.reach:
            break
        search.look(region)
    return tuple(found.neighbour for found in search.best)


@dataclass(frozen=True, kw_only=True)
class _Region:
    """A cell of a table's index, and how near its keys can be at the nearest.

    ``kind`` is how far the keys are but for their sizes and :data:`FINE` differences.
    """

    bound: float
    kind: float
    group: Group
    cell: Cell
    serves_base_arch: bool
    note: str | None


@dataclass(frozen=True, order=True)
class _Found:
    distance: float
    key: str
    neighbour: Neighbour = field(compare=False)


class _Search:
    """The nearest keys so far."""

    def __init__(self, asked: ParsedKey, limit: int) -> None:
        self._asked = asked
        self._logs = [size_log(size) for size in product_of(asked).sizes]
        self._limit = limit
        self._gaps = [[_gap(log, bits) for bits in range(65)] for log in self._logs]
        self.best: list[_Found] = []

    @property
    def reach(self) -> float:
        """How far a key may be to be among the nearest."""
        if self._limit <= 0:
            return -inf
        return (FAR if len(self.best) < self._limit else self.best[-1].distance) + _SLACK

    def regions(self, table: Table) -> Iterator[_Region]:
        """Yield all parts of a table."""
        index, serves = key_index(table), table.header.serves_base_arch
        batches, ms, ns, ks = self._gaps
        for group in index.groups:
            kinds: dict[tuple[int, ...], float] = {}
            for cell in group.cells:
                kind = kinds.get(cell.kind)
                if kind is None:
                    kind = kinds[cell.kind] = self._kind(group, cell, serves)
                batch, m, n, k = cell.bits
                yield _Region(
                    bound=kind + batches[batch] + ms[m] + ns[n] + ks[k],
                    kind=kind,
                    group=group,
                    cell=cell,
                    serves_base_arch=serves,
                    note=index.note,
                )

    def _kind(self, group: Group, cell: Cell, serves_base_arch: bool) -> float:
        found = self._differences(group.key(cell, 0), serves_base_arch) or ()
        return sum(d.weight for d in found if d.kind != "size" and d.weight > FINE)

    def _differences(self, key: str, serves_base_arch: bool) -> tuple[Difference, ...] | None:
        try:
            return differences(self._asked, parse_key(key), serves_base_arch=serves_base_arch)
        except InvalidKeyError:
            return None

    def look(self, region: _Region) -> None:
        """Take what is near enough of a part."""
        log_batch, log_m, log_n, log_k = self._logs
        for at, batch, m, n, k in region.group.sizes_in(region.cell):
            least = (
                region.kind
                + abs(size_log(batch) - log_batch)
                + abs(size_log(m) - log_m)
                + abs(size_log(n) - log_n)
                + abs(size_log(k) - log_k)
            )
            if least <= self.reach:
                self._take(region, at)

    def _take(self, region: _Region, at: int) -> None:
        key = region.group.key(region.cell, at)
        found = self._differences(key, region.serves_base_arch)
        distance = inf if found is None else sum(d.weight for d in found)
        if found is None or distance > FAR or any(known.key == key for known in self.best):
            return
        texts = [d.text for d in found] + ([region.note] if region.note else [])
        neighbour = Neighbour(key=key, differences=tuple(texts))
        insort(self.best, _Found(distance, key, neighbour))
        del self.best[self._limit :]


def _gap(log: float, bits: int) -> float:
    """Return how far a size is at least from those that have so many bits."""
    smallest, largest = 1 << bits >> 1, (1 << bits) - 1
    return max(0.0, size_log(smallest) - log, log - size_log(largest))


def help_for(decision: Decision, tables: Sequence[Table]) -> tuple[tuple[Neighbour, ...], str]:
    """Return what comes near and one line of advice for an op that got no kernel of a table.

    Args:
        decision: a miss, or one whose entries were all dropped.
        tables: those that were asked.
    """
    if decision.outcome == "dropped":
        return (), "record it with this torch: no entry of the table can be used"
    neighbours = nearest(decision.key, tables)
    return neighbours, advice(decision.key, neighbours)


# --- advice -----------------------------------------------------------------------------


def advice(key: str, neighbours: Sequence[Neighbour]) -> str:
    """Return one line that says what to do about a key that missed.

    Args:
        key: the lookup key.
        neighbours: what :func:`nearest` found for it.
    """
    if not neighbours:
        return "collect and tune it: no table has a product like it"
    try:
        asked, known = parse_key(key), parse_key(neighbours[0].key)
        found = differences(asked, known, serves_base_arch=True)
    except InvalidKeyError:
        return "tune it: it cannot be compared with what the tables have"
    coarse = [d for d in found if d.weight > FINE or d.kind == "size"] or list(found)
    kinds = {d.kind for d in coarse}
    special = _SPECIAL.get(kinds.pop()) if len(kinds) == 1 else None
    return special(asked, known, coarse) if special else _tune([_name(d) for d in coarse])


def _tune(names: Sequence[str]) -> str:
    *first, last = dict.fromkeys(names) or ["nothing"]
    listed = f"{', '.join(first)} and {last}" if first else last
    return f"collect and tune it: the nearest differs in {listed}"


def _name(difference: Difference) -> str:
    return difference.text.split()[0] if difference.kind == "size" else difference.kind


def _device_advice(asked: ParsedKey, known: ParsedKey, _: Sequence[Difference]) -> str:
    mine = asked.device or "this one"
    return f"the table holds this product for {known.device}: record it on {mine}"


def _dtype_advice(asked: ParsedKey, known: ParsedKey, found: Sequence[Difference]) -> str:
    mine, theirs = product_of(asked).first.dtype, product_of(known).first.dtype
    if mine == theirs:
        return _tune([_name(d) for d in found])
    return f"the table holds this product for {theirs}: record it for {mine}"


def _op_advice(asked: ParsedKey, known: ParsedKey, _: Sequence[Difference]) -> str:
    return f"the table holds this product as {known.op_name}: record it as {asked.op_name}"


def _stride_advice(asked: ParsedKey, known: ParsedKey, found: Sequence[Difference]) -> str:
    record = "record this layout"
    op = OPS.get(asked.op_name)
    weight = op is not None and op.inputs[op.second] == "weight"
    if not weight or len(found) != 1 or not found[0].text.startswith("stride: weight "):
        return record
    asks, held = product_of(asked).second, product_of(known).second
    if asks.stride[1] == 1 and held.stride == (1, held.size[0]):
        return (
            f"{record}; or, if the weight is a parameter, keep it as nn.Linear does, [N, K], and "
            "multiply by its transpose, which the table has"
        )
    if asks.stride[0] == 1 and held.stride == (held.size[1], 1):
        return (
            f"{record}; or, if the weight is a parameter, keep it as a contiguous [K, N], which "
            "the table has"
        )
    return record


_MORE_ROWS: Final = 2.0
_MORE_ZEROS: Final = 1.1
"""How much larger a size may be for padding to it to be worth a thought."""


def _size_advice(asked: ParsedKey, known: ParsedKey, _: Sequence[Difference]) -> str:
    names = ("batch", "M", "N", "K")
    mine, theirs = product_of(asked).sizes, product_of(known).sizes
    differing = [at for at in range(4) if mine[at] != theirs[at]]
    name, ask, hold = names[differing[0]], mine[differing[0]], theirs[differing[0]]
    if len(differing) == 1 and ask < hold:
        if name in {"batch", "M"} and hold <= _MORE_ROWS * ask:
            return (
                f"record it for {name} {ask}; or fill {name} up to {hold}, which the table has, "
                "where the number of tokens is yours to choose"
            )
        if name in {"N", "K"} and hold <= _MORE_ZEROS * ask:
            return (
                f"record it for {name} {ask}; or pad {name} with zeros to {hold}, which the table "
                "has, if the model is yours to change"
            )
    return _tune([names[at] for at in differing])


_SPECIAL: Final[Mapping[Kind, Callable[[ParsedKey, ParsedKey, Sequence[Difference]], str]]] = {
    "device": _device_advice,
    "dtype": _dtype_advice,
    "op": _op_advice,
    "stride": _stride_advice,
    "size": _size_advice,
}
"""What to say where keys differ in nothing else."""
