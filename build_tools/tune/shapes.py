"""What a search needs to know of a problem: its sizes, the bytes it moves, its neighbours."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

from inductor_tables.keys import TensorKey
from inductor_tables.problems import Problem

MATRICES: Final = {
    "mm": (0, 1),
    "bmm": (0, 1),
    "int_mm": (0, 1),
    "addmm": (1, 2),
    "baddbmm": (1, 2),
    "scaled_mm": (0, 1),
    "mm_plus_mm": (0, 1),
}
"""Where the two matrices stand among the inputs, by op; these are the ops the tuner knows."""

_RESULT_BYTES: Final = {"int_mm": 4, "scaled_mm": 2}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes and layouts of one product.

    Attributes:
        op_name: as in the lookup key.
        batch, m, n, k: sizes; ``batch`` is 1 for all but batched products.
        dtype: of the first matrix, such as ``bfloat16``.
        element_bytes: of the first matrix.
        result_bytes: of an element of the result.
        transposed: whether each matrix is stored by columns.
        input_bytes: storage of all inputs in bytes.
    """

    op_name: str
    batch: int
    m: int
    n: int
    k: int
    dtype: str
    element_bytes: int
    result_bytes: int
    transposed: tuple[bool, bool]
    input_bytes: int

    @property
    def flops(self) -> int:
        """Floating point operations; two products are added by ``mm_plus_mm``."""
        return 2 * self.batch * self.m * self.n * self.k * (1 + (self.op_name == "mm_plus_mm"))

    @property
    def output_bytes(self) -> int:
        """Bytes of the result."""
        return self.batch * self.m * self.n * self.result_bytes

    @property
    def bytes(self) -> int:
        """Bytes that go through memory at least: inputs read once, the result written once."""
        return self.input_bytes + self.output_bytes

    def distance(self, other: Shape) -> float:
        """How unlike two products are; infinite where a winner of one says nothing of the other."""
        if (self.dtype, self.element_bytes) != (other.dtype, other.element_bytes):
            return math.inf
        sizes = ((self.m, other.m), (self.n, other.n), (self.k, other.k))
        logs = [abs(math.log2(max(a, 1) / max(b, 1))) for a, b in sizes]
        batches = abs(math.log2(max(self.batch, 1) / max(other.batch, 1)))
        layouts = sum(a != b for a, b in zip(self.transposed, other.transposed, strict=True))
        return logs[0] + 0.5 * (logs[1] + logs[2]) + batches + layouts + _unlike(self, other)


def _unlike(one: Shape, other: Shape) -> float:
    if one.op_name == other.op_name:
        return 0.0
    return 0.5 if {one.op_name, other.op_name} <= {"mm", "addmm"} else 3.0


def shape_of(problem: Problem) -> Shape:
    """Return the sizes and layouts of a problem.

    Raises:
        ValueError: the op is none that the tuner knows, or the inputs do not fit it; says which.
    """
    places = MATRICES.get(problem.op_name)
    if places is None:
        raise ValueError(f"the tuner knows {', '.join(MATRICES)}, not {problem.op_name}")
    if len(problem.inputs) <= max(places):
        raise ValueError(f"{problem.op_name} with {len(problem.inputs)} inputs")
    first, second = (problem.inputs[place] for place in places)
    if len(first.size) < 2 or len(first.size) != len(second.size):
        raise ValueError(f"{problem.op_name} of matrices of sizes {first.size} and {second.size}")
    if first.size[-1] != second.size[-2] or 0 in (*first.size, *second.size):
        raise ValueError(f"{problem.op_name} of sizes {first.size} and {second.size}: no product")
    element = item_bytes(first.dtype)
    return Shape(
        op_name=problem.op_name,
        batch=math.prod(first.size[:-2]),
        m=first.size[-2],
        n=second.size[-1],
        k=first.size[-1],
        dtype=first.dtype,
        element_bytes=element,
        result_bytes=_RESULT_BYTES.get(problem.op_name, element),
        transposed=(_by_columns(first), _by_columns(second)),
        input_bytes=sum(storage_bytes(tensor) for tensor in problem.inputs),
    )


def storage_bytes(tensor: TensorKey) -> int:
    """Return the bytes between a tensor's first and last element."""
    if 0 in tensor.size:
        return 0
    last = sum((n - 1) * stride for n, stride in zip(tensor.size, tensor.stride, strict=True))
    return (last + 1) * item_bytes(tensor.dtype)


def item_bytes(dtype: str) -> int:
    """Return the bytes of an element by the dtype's name, such as ``float8_e4m3fn``."""
    if dtype == "bool":
        return 1
    found = re.fullmatch(r"[a-z]+?(\d+)(?:_\w+)?", dtype)
    if found is None:
        raise ValueError(f"a dtype with its width was expected, found {dtype}")
    return max(int(found[1]) // 8, 1)


def _by_columns(tensor: TensorKey) -> bool:
    return tensor.stride[-1] != 1 and tensor.stride[-2] == 1
