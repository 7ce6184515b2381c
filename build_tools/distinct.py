"""Which entries of a table lead to different code, and one key to stand for each kind.

Sizes and strides are constants of the generated source, so that no two keys share it to the
letter. Keys of one class differ in nothing that decides what the compiler does with them: which
accesses are vectorised, masked or pipelined, and how wide an index is.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

from inductor_tables.errors import InvalidKeyError
from inductor_tables.keys import ParsedKey, TensorKey, parse_key
from inductor_tables.parameters import TUNING
from inductor_tables.schema import Config
from inductor_tables.table import Table

COMPILED: Final = "triton::"
"""What the ids of templates begin with that are rendered and compiled."""

_VECTOR: Final = 16
"""Bytes of the widest access of one thread."""

_BIAS_FIRST: Final = frozenset({"addmm", "baddbmm"})
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One kind of code: the entry to compile, and the key to compile it for.

    ``pairs`` is how many pairs of key and entry of the table it stands for.
    """

    key: ParsedKey
    config: Config
    pairs: int

    def __str__(self) -> str:
        shown = [f"{name}={v}" for name, v in self.config.params if name in TUNING]
        others = f" and {self.pairs - 1} more" if self.pairs > 1 else ""
        return f"{self.config.template_id} ({', '.join(shown)}) for {self.key}{others}"


@dataclass(frozen=True, kw_only=True)
class Distinct:
    """The cases of a table, in its order, and how many of its entries have no Triton source."""

    cases: tuple[Case, ...]
    without_source: int


def distinct(table: Table) -> Distinct:
    """Return one case for each kind of code that a table's entries lead to.

    The first key of a class, in the order of the keys' text, stands for it. Keys that are none
    are left out: ``check`` reports them.

    Raises:
        InvalidTableError: a part of the table is damaged.
    """
    found: dict[Hashable, Case] = {}
    without_source = 0
    for text, entries in table.items():
        try:
            key = parse_key(text)
        except InvalidKeyError:
            continue
        for config in (entry.config for entry in entries):
            if not config.template_id.startswith(COMPILED):
                without_source += 1
                continue
            kind = code_class(key, config)
            first = found.get(kind) or Case(key=key, config=config, pairs=0)
            found[kind] = Case(key=first.key, config=first.config, pairs=first.pairs + 1)
    return Distinct(cases=tuple(found.values()), without_source=without_source)


def code_class(key: ParsedKey, config: Config) -> Hashable:
    """Return what decides how the kernel of an entry is compiled for a key.

    The template and the parameters that a table may set; the op and its scalars; for each input
    its dtype, layout and alignment; how the sizes compare with the tile; the width of an index.
    """
    params = tuple((n, type(v), v) for n, v in config.params if n in TUNING)
    return (
        (config.template_id, config.template_hash, params),
        (key.device, key.op_name, key.scalars),
        tuple(map(_tensor_class, key.inputs)),
        _tile_class(key, dict(config.params)),
        math.gcd(product_sizes(key)[1], _VECTOR),  # rows of the result
        any(_span(tensor) >= 2**31 for tensor in key.inputs) or _result_size(key) >= 2**31,
    )


def product_sizes(key: ParsedKey) -> tuple[int, int, int]:
    """Return M, N and K of the product of a key; zeros where it has no two matrices."""
    at = 1 if key.op_name in _BIAS_FIRST else 0
    left, right = (*key.inputs, None, None)[at : at + 2]
    if left is None or right is None or min(len(left.size), len(right.size)) < 2:
        return 0, 0, 0
    return left.size[-2], right.size[-1], left.size[-1]


def _tensor_class(tensor: TensorKey) -> Hashable:
    size, stride = tensor.size, tensor.stride
    width = itemsize(tensor.dtype)
    by_size = sorted(zip(stride, size, strict=True))
    dense = all(
        step == math.prod(n for _, n in by_size[:at]) for at, (step, _) in enumerate(by_size)
    )
    # Accesses go along the dimension whose stride is 1, as wide as its size allows.
    steps = tuple(
        (step, math.gcd(n * width, _VECTOR))
        if step in (0, 1)
        else (None, math.gcd(step * width, _VECTOR))
        for step, n in zip(stride, size, strict=True)
    )
    # The templates tell the compiler of a dense operand.
    return tensor.dtype, dense, tuple(n == 1 for n in size), steps


def _tile_class(key: ParsedKey, params: dict[str, object]) -> Hashable:
    """Return how the sizes compare with the tile, and whether K is a multiple (``EVEN_K``)."""
    compared: list[object] = []
    for size, name in zip(product_sizes(key), ("BLOCK_M", "BLOCK_N", "BLOCK_K"), strict=True):
        block = params.get(name)
        if isinstance(block, int) and block > 0:
            even = name == "BLOCK_K" and size % block == 0
            compared.append(((size > block) - (size < block), even))
    return tuple(compared)


def _span(tensor: TensorKey) -> int:
    return 1 + sum((n - 1) * step for n, step in zip(tensor.size, tensor.stride, strict=True))


def _result_size(key: ParsedKey) -> int:
    m, n, _ = product_sizes(key)
    batch = key.inputs[-1].size[0] if len(key.inputs[-1].size) == 3 else 1
    return batch * m * n


def itemsize(dtype: str) -> int:
    """Return the bytes of an element: 2 for ``bfloat16``, 1 for ``float8_e4m3fn`` and ``bool``."""
    bits = _DIGITS.search(dtype)
    return max(1, int(bits[0]) // 8) if bits else 1
