"""Random inputs of a problem, its exact result, and how far a kernel's result is from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch

from inductor_tables.keys import TensorKey

Tensors = Mapping[str, torch.Tensor]

_CHUNK: Final = 2**26
"""Elements that are compared at once: the differences are made in the reference's precision."""

_SCALE_BLOCK: Final = 128
"""Elements that share a scale along K, where each row has several (``kernel/mm.py``, 2.13)."""

_EXACT_FLOPS: Final = 4e12
"""Up to this many operations the reference is float64, above it float32."""


@dataclass(frozen=True, kw_only=True)
class Error:
    """Distance of a result from the reference; NaN where the result is not finite.

    Attributes:
        total: norm of the difference by that of the reference.
        largest: largest difference of an element by the largest element of the reference;
            one wrong tile of a large result shows here alone.
    """

    total: float
    largest: float

    def within(self, other: Error, factor: float) -> bool:
        """Whether it is at most ``factor`` times another; never for NaN."""
        return self.total <= factor * other.total and self.largest <= factor * other.largest

    def __str__(self) -> str:
        return f"{self.total:.2e} (largest {self.largest:.2e})"


def empty(key: TensorKey, device: torch.device) -> torch.Tensor:
    """Return a tensor of a key's dtype, sizes and strides, its storage as small as can be."""
    last = sum((n - 1) * stride for n, stride in zip(key.size, key.stride, strict=True))
    storage = torch.empty(max(last + 1, 1), dtype=getattr(torch, key.dtype), device=device)
    return storage.as_strided(key.size, key.stride)


def fill(tensor: torch.Tensor, *, positive: bool = False) -> None:
    """Fill a tensor's storage with random numbers; ``positive``: as scales are, 0.5 to 1.5."""
    flat = tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)
    if not flat.dtype.is_floating_point:
        limits = torch.iinfo(flat.dtype)
        flat.random_(max(limits.min, -128), min(limits.max, 127) + 1)
    elif positive:
        flat.uniform_(0.5, 1.5)
    elif flat.element_size() == 1:
        flat.copy_(torch.randn(flat.shape, device=flat.device, dtype=torch.float16))
    else:
        flat.normal_()


def poison(tensor: torch.Tensor) -> None:
    """Write what no product is: NaN, or for whole numbers the least one."""
    if tensor.dtype.is_floating_point:
        tensor.fill_(math.nan)
    else:
        tensor.fill_(torch.iinfo(tensor.dtype).min)


def result_dtype(op_name: str, inputs: Tensors, scaled: str) -> torch.dtype:
    """Return the dtype of a product's result; ``scaled``: of scaled products."""
    if op_name == "int_mm":
        return torch.int32
    if op_name == "scaled_mm":
        found: torch.dtype = getattr(torch, scaled)
        return found
    return next(iter(inputs.values())).dtype


def exact_dtype(flops: int) -> torch.dtype:
    """Return the dtype that a product of that many operations is checked in."""
    return torch.float64 if flops <= _EXACT_FLOPS else torch.float32


def reference(
    op_name: str, inputs: Tensors, scalars: Mapping[str, float], dtype: torch.dtype
) -> torch.Tensor:
    """Return the result of a product in another precision."""
    values = list(inputs.values())
    # by way of float32: not every conversion from 8 bits exists
    wide = [(v.float() if v.element_size() == 1 else v).to(dtype) for v in values]
    if op_name == "scaled_mm":
        first = wide[0] * _scale(wide[2], values[0])
        second = wide[1] * _scale(wide[3], values[1])
        product = first @ second
        return product + wide[4] if len(wide) > 4 else product
    if op_name in ("addmm", "baddbmm"):
        product = wide[1] @ wide[2]
        return product.mul_(scalars.get("alpha", 1)).add_(wide[0], alpha=scalars.get("beta", 1))
    if op_name == "mm_plus_mm":
        return (wide[0] @ wide[1]).add_(wide[2] @ wide[3])
    return wide[0] @ wide[1]


def _scale(scale: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """Stretch a scale over its matrix: one number, one a row or column, or one a block."""
    if scale.numel() == 1:
        return scale.reshape(())
    for place, size in enumerate(matrix.shape):
        if scale.size(place) not in (1, size):
            scale = scale.repeat_interleave(_SCALE_BLOCK, place).narrow(place, 0, size)
    return scale


def error_of(result: torch.Tensor, exact: torch.Tensor) -> Error:
    """Return how far a result is from the reference."""
    flat, right = result.reshape(-1), exact.reshape(-1)
    squares = largest = norm = top = 0.0
    for begin in range(0, flat.numel(), _CHUNK):
        part = right[begin : begin + _CHUNK]
        difference = flat[begin : begin + _CHUNK].to(part.dtype) - part
        numbers = torch.stack(
            [difference.square().sum(), difference.abs().max(), part.square().sum(),
             part.abs().max()]
        ).tolist()  # fmt: skip
        squares, norm = squares + numbers[0], norm + numbers[2]
        # max() would drop a NaN that stands second
        largest = numbers[1] if not numbers[1] <= largest else largest
        top = max(top, numbers[3])
        if math.isnan(largest):
            break
    return Error(total=_share(math.sqrt(squares), math.sqrt(norm)), largest=_share(largest, top))


def _share(part: float, whole: float) -> float:
    return part / whole if whole else part
