"""The keys of one table by the size and the kind of their product.

Keys of one kind (skeleton, scalars, layouts) whose sizes lie between the same powers of two share
a cell, so that of a million keys only some hundred are looked at to find the nearest.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from inductor_tables.analysis.products import Product, product_of
from inductor_tables.errors import InvalidKeyError, InvalidTableError
from inductor_tables.keys import ParsedKey, join_key, parse_key
from inductor_tables.table import Table

log = logging.getLogger(__name__)

MAX_COMPARED: Final = 2**20
"""How many keys of a table are compared at most: some 40 MB of memory, and seconds, once."""

Bits = tuple[int, int, int, int]
"""Bit lengths of batch, m, n and k."""

# Stands for the first number of a skeleton, the next one for the second, and so on. A number that
# is left in a skeleton is negative or has at least 20 digits.
_FIRST: Final = 1000


class Cell(NamedTuple):
    """Keys that lie near one another.

    ``kind`` tells apart, within a group, which layouts, biases and scales the keys have.
    ``typecode`` is that of the arrays which hold them.
    """

    bits: Bits
    kind: tuple[int, ...]
    typecode: str


@dataclass(frozen=True, kw_only=True)
class Group:
    """Keys that share all but the numbers of their inputs.

    Attributes:
        skeleton: as :func:`~inductor_tables.keys.split_key` gives it.
        width: how many numbers a key has.
        sizes: where among the numbers batch, m, n and k are; None for a batch of 1.
        operands: for both operands, where sizes and strides are, outermost first.
        cells: the numbers of all keys, one key after the other.
    """

    skeleton: str
    width: int
    sizes: tuple[int | None, int, int, int]
    operands: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    cells: dict[Cell, array[int]] = field(default_factory=dict)

    def add(self, numbers: array[int]) -> None:
        """Put a key into its cell."""
        batch, m, n, k = self.sizes
        bits = (
            1 if batch is None else numbers[batch].bit_length(),
            numbers[m].bit_length(),
            numbers[n].bit_length(),
            numbers[k].bit_length(),
        )
        cell = Cell(bits, self._kind(numbers), numbers.typecode)
        known = self.cells.get(cell)
        if known is None:
            self.cells[cell] = numbers
        else:
            known += numbers

    def _kind(self, numbers: array[int]) -> tuple[int, ...]:
        """Return what decides every difference but those of sizes and of spacings.

        That is which of the numbers are 0 or 1, and which operands are packed
        (:mod:`~inductor_tables.analysis.layouts`).
        """
        found = [number if number < 2 else 2 for number in numbers]
        for sizes, strides in self.operands:
            rows, columns = numbers[sizes[-2]], numbers[sizes[-1]]
            found.append((numbers[strides[-2]] == columns) + 2 * (numbers[strides[-1]] == rows))
            if len(sizes) == 3:
                found.append(numbers[strides[0]] == rows * columns)
        return tuple(found)

    def sizes_in(self, cell: Cell) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield where every key of a cell begins, and its batch, m, n and k."""
        held = self.cells[cell]
        batch, m, n, k = self.sizes
        for at in range(0, len(held), self.width):
            size = 1 if batch is None else held[at + batch]
            yield at, size, held[at + m], held[at + n], held[at + k]

    def key(self, cell: Cell, at: int) -> str:
        """Return the text of the key that begins at a place of a cell."""
        return join_key(self.skeleton, self.cells[cell][at : at + self.width].tolist())


class KeyIndex:
    """The keys of a table.

    Attributes:
        groups: those of matrix products.
        compared: how many of the table's keys were read.
        total: how many it has.
    """

    def __init__(self, table: Table, most: int = MAX_COMPARED) -> None:
        """Read the keys, ``most`` of them at most: a sample, since they are in order of a hash.

        A table that is damaged is read up to where it is damaged.
        """
        self.total = table.header.key_count
        self.compared = 0
        self._groups: dict[tuple[str, tuple[int, ...]], Group | None] = {}
        self._forms: dict[str, _Form | None] = {}
        try:
            for skeleton, numbers in islice(table.split_keys(), most):
                self.compared += 1
                self._add(skeleton, numbers)
        except InvalidTableError as error:
            log.info("keys of %s cannot be compared: %s", table.resource, error)
        self.groups = [group for group in self._groups.values() if group is not None]

    @property
    def note(self) -> str | None:
        """Say that not all keys were read, None where they were."""
        if self.compared >= self.total:
            return None
        return f"a sample: {self.compared:,} of the table's {self.total:,} keys were compared"

    def _add(self, skeleton: str, listed: list[int]) -> None:
        if skeleton not in self._forms:
            self._forms[skeleton] = _form(skeleton)
        form = self._forms[skeleton]
        numbers = _stored(listed)
        if form is None or numbers is None or len(numbers) != form.width:
            return
        name = (skeleton, tuple([numbers[at] for at in form.others]) if form.others else ())
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = form.group(skeleton)
        group.add(numbers)


def _stored(numbers: list[int]) -> array[int] | None:
    """Return the numbers of a key in little space, None if they are no plain numbers."""
    for typecode in "IQ":
        try:
            return array(typecode, numbers)
        except OverflowError:
            continue
        except TypeError:
            break
    return None


@dataclass(frozen=True, kw_only=True)
class _Form:
    """What the numbers of a skeleton are.

    ``parsed`` is the skeleton with a number of its own in every place.
    """

    parsed: ParsedKey
    product: Product
    width: int

    @cached_property
    def others(self) -> tuple[int, ...]:
        """Where the numbers are that belong to no input: scalars, and a device's name."""
        inputs = {
            place - _FIRST
            for tensor in self.parsed.inputs
            for place in (*tensor.size, *tensor.stride)
        }
        return tuple(at for at in range(self.width) if at not in inputs)

    def group(self, skeleton: str) -> Group:
        batch, *sizes = self.product.sizes
        operands = (self.product.first, self.product.second)
        m, n, k = (size - _FIRST for size in sizes)
        return Group(
            skeleton=skeleton,
            width=self.width,
            sizes=(None if batch == 1 else batch - _FIRST, m, n, k),
            operands=tuple(
                (
                    tuple(place - _FIRST for place in operand.size),
                    tuple(place - _FIRST for place in operand.stride),
                )
                for operand in operands
            ),
        )


def _form(skeleton: str) -> _Form | None:
    """Return what a skeleton's numbers are, None where it is of no matrix product."""
    width = skeleton.count("#")
    try:
        parsed = parse_key(join_key(skeleton, list(range(_FIRST, _FIRST + width))))
        product = product_of(parsed)
    except InvalidKeyError:
        return None
    places = {place for t in parsed.inputs for place in (*t.size, *t.stride)}
    if not places <= set(range(_FIRST, _FIRST + width)):
        return None  # a number that is negative or has more than 19 digits: no real size
    return _Form(parsed=parsed, product=product, width=width)


_INDEXES: WeakKeyDictionary[Table, KeyIndex] = WeakKeyDictionary()


def key_index(table: Table) -> KeyIndex:
    """Return the index of a table, made once for as long as the table lives."""
    found = _INDEXES.get(table)
    if found is None:  # two threads may make it twice, which does no harm
        found = _INDEXES[table] = KeyIndex(table)
    return found
