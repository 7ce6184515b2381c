"""How a matrix lies in memory, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from inductor_tables.keys import TensorKey


class Layout(NamedTuple):
    """One way to see a matrix or a batch of them.

    ``order`` is ``row-major`` (a row lies together), ``column-major``, ``one row for all rows``
    (a row that is broadcast) and so on; ``spacing`` says what lies further apart than it must,
    and is empty for a matrix that is packed.
    """

    order: str
    spacing: str

    def __str__(self) -> str:
        return f"{self.order} with {self.spacing}" if self.spacing else self.order


def layouts(tensor: TensorKey) -> tuple[Layout, ...]:
    """Return every way to see [rows, columns] or [batch, rows, columns]; at least one.

    A matrix of one row or one column is both row-major and column-major.
    """
    (*_, rows, columns), (*_, down, right) = tensor.size, tensor.stride
    found = []
    if columns <= 1 or right == 1:
        found.append(_layout(tensor, "row-major", "rows", (rows, down), columns))
    if rows <= 1 or down == 1:
        found.append(_layout(tensor, "column-major", "columns", (columns, right), rows))
    if rows > 1 and down == 0:
        found = [_layout(tensor, "one row for all rows", "elements", (columns, right), 1)]
    elif columns > 1 and right == 0:
        found = [_layout(tensor, "one column for all columns", "elements", (rows, down), 1)]
    return tuple(found) or (Layout("strided", f"strides {list(tensor.stride)}"),)


def _layout(
    tensor: TensorKey, order: str, lines: str, outer: tuple[int, int], length: int
) -> Layout:
    """Return a layout of ``outer`` = (count, stride) lines of ``length`` elements each."""
    count, stride = outer
    spacing = []
    packed = max(length, 1)
    if count > 1 and stride != packed:
        spacing.append(f"{lines} {stride} apart")
    if len(tensor.size) == 3 and tensor.size[0] > 1:
        if tensor.stride[0] == 0:
            order += ", one matrix for the whole batch"
        elif tensor.stride[0] != tensor.size[-2] * tensor.size[-1]:
            spacing.append(f"matrices {tensor.stride[0]} apart")
    return Layout(order, " and ".join(spacing))


def alike(one: Sequence[Layout], other: Sequence[Layout]) -> tuple[Layout, Layout]:
    """Return the pair of one's and the other's ways that are most alike."""
    pairs = [(a, b) for a in one for b in other]
    same = [pair for pair in pairs if pair[0] == pair[1]]
    ordered = [pair for pair in pairs if pair[0].order == pair[1].order]
    return next(iter([*same, *ordered, *pairs]))
