"""Entries recorded at one size serve dynamic graphs: right at every size, on a real GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from real_device import OPTIONS, close, cold_and_stock, compiled, entry, mm, mm_key, random

import inductor_tables

pytestmark = pytest.mark.gpu

HINT = {"b": 4, "m": 512, "n": 512, "k": 512}
ANY = (512, 520, 509, 500, 24, 7, 2, 1, 1024)
SIZES = {"b": (4, 5, 7, 2, 1, 13), "m": ANY, "n": ANY, "k": ANY}
SIXTEENS = (512, 528, 496, 48, 32, 16, 1040)
OF_FP8 = {"m": ANY, "n": SIXTEENS, "k": SIXTEENS}
"""cuBLAS wants multiples of 16 for N and K, and no tile of the entry divides these."""


@dataclass(frozen=True)
class Op:
    """A product: how it is computed, its operands, and which of their sizes are which.

    ``dims`` lists, for each of its sizes, the (operand, dimension) that have it.
    """

    fn: Callable[..., Any]
    make: Callable[..., tuple[Any, ...]]
    template: str
    dims: Mapping[str, Sequence[tuple[int, int]]]
    exact: Callable[..., Any] | None = None
    sizes: Mapping[str, Sequence[int]] | None = None

    def expected(self, args: tuple[Any, ...]) -> Any:
        """Compute it in float64."""
        return (self.exact or self.fn)(*(a.double() for a in args))


def _fp8(*size: int) -> Any:
    return random(*size).to(torch.float8_e4m3fn)


def _scales(*size: int) -> Any:
    return torch.rand(*size, device="cuda") + 0.5


def _scaled(a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
    return torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=torch.bfloat16)


def _scaled_exact(a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
    return (a * scale_a) @ (b * scale_b)


OPS = {
    "mm": Op(
        mm,
        lambda b, m, n, k: (random(m, k), random(k, n)),
        "triton::mm",
        {"m": [(0, 0)], "n": [(1, 1)], "k": [(0, 1), (1, 0)]},
    ),
    "addmm": Op(
        lambda x, w, b: torch.addmm(b, x, w),
        lambda b, m, n, k: (random(m, k), random(k, n), random(n)),
        "triton::mm",
        {"m": [(0, 0)], "n": [(1, 1), (2, 0)], "k": [(0, 1), (1, 0)]},
    ),
    "bmm": Op(
        torch.bmm,
        lambda b, m, n, k: (random(b, m, k), random(b, k, n)),
        "triton::bmm",
        {"b": [(0, 0), (1, 0)], "m": [(0, 1)], "n": [(1, 2)], "k": [(0, 2), (1, 1)]},
    ),
    "baddbmm": Op(
        lambda x, w, c: torch.baddbmm(c, x, w),
        lambda b, m, n, k: (random(b, m, k), random(b, k, n), random(b, m, n)),
        "triton::bmm",
        {
            "b": [(0, 0), (1, 0), (2, 0)],
            "m": [(0, 1), (2, 1)],
            "n": [(1, 2), (2, 2)],
            "k": [(0, 2), (1, 1)],
        },
    ),
    "mm_plus_mm": Op(
        lambda a, b, c, d: a @ b + c @ d,
        lambda b, m, n, k: (random(m, k), random(k, n), random(m, k), random(k, n)),
        "triton::mm_plus_mm",
        {
            "m": [(0, 0), (2, 0)],
            "n": [(1, 1), (3, 1)],
            "k": [(0, 1), (1, 0), (2, 1), (3, 0)],
        },
    ),
    "scaled_mm": Op(
        _scaled,
        lambda b, m, n, k: (_fp8(m, k), _fp8(n, k).t(), _scales(m, 1), _scales(1, n)),
        "triton::mm",
        {"m": [(0, 0), (2, 0)], "n": [(1, 1), (3, 1)], "k": [(0, 1), (1, 0)]},
        _scaled_exact,
        OF_FP8,
    ),
}
CASES = [(name, size) for name, op in OPS.items() for size in op.dims]


@pytest.mark.parametrize(("name", "dynamic"), CASES, ids=["-".join(case) for case in CASES])
def test_dynamic_sizes_are_right_off_the_hint(name: str, dynamic: str) -> None:
    """An entry recorded at the hint (EVEN_K true): right on the hint, off it, at 1, at primes."""
    if name == "scaled_mm" and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("needs fp8")
    op = OPS[name]
    args = op.make(**HINT)
    key = _key_of(op.fn, args)
    inductor_tables.enable({key: [entry(template_id=op.template, template_hash=None)]})
    torch._dynamo.reset()
    for operand, dim in op.dims[dynamic]:
        torch._dynamo.mark_dynamic(args[operand], dim)
    with torch.no_grad():
        dynamically = torch.compile(op.fn, options=OPTIONS)
        dynamically(*args)
        if (name, dynamic) != ("mm_plus_mm", "k"):  # its heuristic wants to know K
            assert inductor_tables.status().hits == 1
        for size in (op.sizes or SIZES)[dynamic]:
            args = op.make(**{**HINT, dynamic: size})
            close(dynamically(*args), op.expected(args), 2e-2)


def _key_of(fn: Callable[..., Any], args: tuple[Any, ...]) -> str:
    """The key that Triton choices of an op are looked up under."""
    from inductor_tables.keys import parse_key, problem_of

    inductor_tables.enable({"none": [entry()]})
    compiled(fn, *args, max_autotune_gemm_backends="ATEN")
    return str(problem_of(parse_key(inductor_tables.status().last_misses[-1])))


@pytest.mark.parametrize("rows", [1, 2, 16])
def test_tma_is_right_for_few_rows(rows: int) -> None:
    """The kernel of persistent TMA is wrong for one row; the entry is dropped there."""
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs an arch whose heuristic offers the template")
    x, w = random(rows, 4096), random(4096, 1024)
    tma = entry(template_id="triton::mm_persistent_tma", template_hash=None, num_warps=8)
    inductor_tables.enable({mm_key(rows, 1024, 4096): [tma]})
    found = compiled(mm, x, w, **{"triton.enable_persistent_tma_matmul": True})
    assert inductor_tables.status().hits == (rows > 1)
    if rows > 1:  # else it is stock torch's choice, which may be the wrong kernel
        close(found, x.double() @ w.double())
