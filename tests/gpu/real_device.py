"""What the tests on a real GPU share: operands, entries, compiles, comparisons."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

import inductor_tables
from inductor_tables import recovery

DEVICE = torch.cuda.get_device_properties(0).gcnArchName
OPTIONS = {"max_autotune_gemm": True, "shape_padding": False}
"""No padding: whether 2 rows become 8 a stopwatch decides, which other tests disturb."""
SERIES = tuple(int(part) for part in torch.__version__.split(".")[:2])


@pytest.fixture(autouse=True)
def cold_and_stock() -> Iterator[None]:
    """Start a test with cold caches, and end it with stock torch."""
    from torch._inductor.utils import fresh_cache

    with fresh_cache():
        torch._dynamo.reset()
        counters.clear()
        recovery.forget()
        yield
    inductor_tables.disable()
    recovery.forget()
    torch._dynamo.reset()


def autotuned() -> int:
    """How many ops the last compile autotuned."""
    return int(counters["inductor"]["select_algorithm_autotune"])


def compiled(fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Compile a function anew, call it without gradients and return what it gives."""
    torch._dynamo.reset()
    counters.clear()
    with torch.no_grad():
        return torch.compile(fn, options={**OPTIONS, **options})(*args)


def close(found: Any, expected: Any, tolerance: float = 1e-2) -> None:
    """Fail if the relative error of the whole tensor is above the tolerance."""
    error = ((found.double() - expected.double()).norm() / expected.double().norm()).item()
    assert error < tolerance, error


def random(*size: int, dtype: Any = torch.bfloat16) -> Any:
    """Return normally distributed numbers on the device."""
    return torch.randn(*size, device="cuda", dtype=dtype)


def mm(x: Any, w: Any) -> Any:
    """One product."""
    return x @ w


def mm_key(m: int, n: int, k: int) -> str:
    """The key of a bf16 product with a row-major weight."""
    inputs = f"((torch.bfloat16, [{m}, {k}], [{k}, 1]), (torch.bfloat16, [{k}, {n}], [{n}, 1]))"
    return f"{DEVICE}+{inputs}+mm"


def entry(**params: Any) -> dict[str, Any]:
    """A plain entry for the installed ``triton::mm``."""
    from torch._inductor.kernel.mm import mm_template

    return {
        "template_id": "triton::mm",
        "template_hash": mm_template.src_hash,
        "BLOCK_M": 64,
        "BLOCK_N": 64,
        "BLOCK_K": 64,
        "GROUP_M": 8,
        "num_stages": 3,
        "num_warps": 4,
        "EVEN_K": True,
        "ACC_TYPE": "tl.float32",
        **params,
    }
