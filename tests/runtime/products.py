"""Matrix products that the runtime's tests lower on the simulated H200, and entries for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("triton")
import torch

from inductor_tables.simulation import OpLowering, Simulation, simulate

Plain = dict[str, list[dict[str, Any]]]

H200 = "NVIDIA H200"
MM_16 = (
    "NVIDIA H200+((torch.bfloat16, [16, 4096], [4096, 1]), "
    "(torch.bfloat16, [4096, 1024], [1024, 1]))+mm"
)
MM_17 = MM_16.replace("[16,", "[17,")
ADDMM_FLAT = (
    "NVIDIA H200+((torch.bfloat16, [1024], [1]), (torch.bfloat16, [16, 4096], [4096, 1]), "
    "(torch.bfloat16, [4096, 1024], [1024, 1]))+alpha=1&beta=1+addmm"
)
ADDMM_EXPANDED = ADDMM_FLAT.replace("[1024], [1]", "[16, 1024], [0, 1]")
SERIES = tuple(int(part) for part in torch.__version__.split(".")[:2])


def agnostic(key: str) -> str:
    """The device-agnostic variant of a key."""
    return key.partition("+")[2]


def triton_entry(**params: Any) -> dict[str, Any]:
    """A plain entry for the installed ``triton::mm`` template."""
    from torch._inductor.kernel.mm import mm_template

    return {
        "template_id": "triton::mm",
        "template_hash": mm_template.src_hash,
        "BLOCK_M": 16,
        "BLOCK_N": 64,
        "BLOCK_K": 128,
        "GROUP_M": 8,
        "num_stages": 4,
        "num_warps": 4,
        "EVEN_K": True,
        "ACC_TYPE": "tl.float32",
        "USE_FAST_ACCUM": False,
        **params,
    }


def mm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """One product."""
    return x @ w


def inputs(sim: Simulation, rows: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """The operands of ``MM_16`` (with other rows: of another key)."""
    bf16 = torch.bfloat16
    return sim.empty(rows, 4096, dtype=bf16), sim.empty(4096, 1024, dtype=bf16)


def lower(fn: Callable[..., Any], rows: int = 16, **options: Any) -> list[OpLowering]:
    """Lower ``fn(x, w)`` on the simulated H200 and return its ops."""
    with simulate(H200) as sim:
        sim.compile(fn, *inputs(sim, rows), **options)
        return list(sim.ops)


def lower_addmm() -> OpLowering:
    """Lower one addmm with a bias of 1,024 and return it."""
    with simulate(H200) as sim:
        bias = sim.empty(1024, dtype=torch.bfloat16)
        sim.compile(torch.addmm, bias, *inputs(sim))
        (op,) = sim.ops
        return op
