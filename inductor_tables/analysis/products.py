"""Which matrix product a lookup key stands for: its sizes, and what each input is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NoReturn

from inductor_tables.errors import InvalidKeyError
from inductor_tables.keys import ParsedKey, TensorKey


@dataclass(frozen=True, kw_only=True)
class Op:
    """What an op's inputs are, in the order of the key, and how many products it takes.

    Attributes:
        inputs: their names for people; a key may have fewer (a bias that is left out).
        first, second: which of them are multiplied.
        products: how many products of these sizes the op adds up.
    """

    inputs: tuple[str, ...]
    first: int = 0
    second: int = 1
    products: int = 1


_BIASED: Final = {"first": 1, "second": 2}

OPS: Final[Mapping[str, Op]] = {
    "mm": Op(inputs=("input", "weight")),
    "addmm": Op(inputs=("bias", "input", "weight"), **_BIASED),
    "bmm": Op(inputs=("mat1", "mat2")),
    "baddbmm": Op(inputs=("bias", "mat1", "mat2"), **_BIASED),
    "mm_plus_mm": Op(inputs=("mat1", "mat2", "mat3", "mat4"), products=2),
    "int_mm": Op(inputs=("input", "weight")),
    "scaled_mm": Op(inputs=("input", "weight", "scale of input", "scale of weight", "bias")),
}
"""All ops that ask the choices handler (``torch/_inductor/kernel``, 2.10 to 2.15)."""


@dataclass(frozen=True, kw_only=True)
class Product:
    """A product of [batch, m, k] and [batch, k, n]; ``batch`` is 1 for plain matrices."""

    op: Op
    first: TensorKey
    second: TensorKey
    batch: int
    m: int
    n: int
    k: int

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Batch, m, n and k."""
        return self.batch, self.m, self.n, self.k


def product_of(parsed: ParsedKey) -> Product:
    """Return the product of a key.

    The inputs of an op that is not in :data:`OPS` are taken to end in the two matrices, which
    is the host's rule (``torch/_inductor/kernel_inputs.py``, ``MMKernelInputs``).

    Raises:
        InvalidKeyError: the key has no two matrices where the op has them.
    """
    count = len(parsed.inputs)
    op = OPS.get(parsed.op_name) or Op(
        inputs=tuple(f"input {n}" for n in range(count)), first=count - 2, second=count - 1
    )
    if not 0 <= op.first < op.second < count <= len(op.inputs):
        _refuse(parsed, f"{count} inputs")
    if not all(len(tensor.size) == len(tensor.stride) for tensor in parsed.inputs):
        _refuse(parsed, "an input has not as many strides as sizes")
    first, second = parsed.inputs[op.first], parsed.inputs[op.second]
    if len(first.size) != len(second.size) or len(first.size) not in {2, 3}:
        _refuse(parsed, f"inputs {op.first} and {op.second} are no two matrices")
    if min(*first.size, *second.size) < 0:
        _refuse(parsed, "a size is negative")
    return Product(
        op=op,
        first=first,
        second=second,
        batch=first.size[0] if len(first.size) == 3 else 1,
        m=first.size[-2],
        n=second.size[-1],
        k=first.size[-1],
    )


def _refuse(parsed: ParsedKey, problem: str) -> NoReturn:
    raise InvalidKeyError(f"no matrix product that is known: {problem} in {str(parsed)[:200]!r}")
