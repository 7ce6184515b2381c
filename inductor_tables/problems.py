"""GEMM problems: what is to be tuned, as it comes out of models and running processes."""

from __future__ import annotations

from dataclasses import dataclass

from inductor_tables.keys import TensorKey


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One matrix product to find a kernel for, on whichever device.

    Attributes:
        op_name: as in the lookup key, such as ``addmm``.
        inputs: dtype, sizes and strides of every input, as in the key.
        scalars: names and texts of the key's scalars, such as ``("alpha", "1")``.
        count: how often the models have it.
        origins: where it comes from: names of models and module paths, sorted.
    """

    op_name: str
    inputs: tuple[TensorKey, ...]
    scalars: tuple[tuple[str, str], ...]
    count: int
    origins: tuple[str, ...]
