"""Which attention stays one kernel on a simulated device, and which becomes two products."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from simulation_support import needs_simulation
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from inductor_tables import simulation

pytestmark = needs_simulation

BF16 = torch.bfloat16
SERIES = tuple(int(part) for part in torch.__version__.split(".")[:2])


def _attend(query: Any, key: Any, value: Any, mask: Any = None) -> Any:
    return functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, enable_gqa=True
    )


@pytest.mark.parametrize(
    ("device", "dtype", "masked", "products"),
    [
        ("NVIDIA H200", BF16, True, 0 if SERIES >= (2, 11) else 2),
        ("NVIDIA H200", torch.float32, True, 2),
        ("NVIDIA A100-SXM4-80GB", BF16, True, 2),
        ("NVIDIA A100-SXM4-80GB", BF16, False, 0),
    ],
)
def test_grouped_heads(device: str, dtype: torch.dtype, masked: bool, products: int) -> None:
    """With a mask only cuDNN has a kernel for grouped heads, which comes first on Hopper."""
    with simulation.simulate(device, codegen=False) as sim:
        heads = [sim.empty(2, count, 64, 64, dtype=dtype) for count in (8, 2, 2)]
        mask = sim.zeros(2, 1, 64, 64, dtype=torch.bool) if masked else None
        sim.compile(_attend, *heads, mask)
        assert [call.op_name for call in sim.calls] == ["bmm"] * products


def test_checkpointed_attention() -> None:
    """A checkpointed layer is lowered in the forward graph and again in the backward one."""

    def layer(x: Any, weight: Any) -> Any:
        heads = (x @ weight).view(2, 64, 8, 64).transpose(1, 2)
        return functional.scaled_dot_product_attention(heads, heads, heads)

    def loss(x: Any, weight: Any) -> Any:
        return checkpoint(layer, x, weight, use_reentrant=False).float().pow(2).mean()

    with simulation.simulate("NVIDIA H200", codegen=False) as sim:
        x = sim.empty(2, 64, 512, dtype=BF16)
        weight = sim.empty(512, 512, dtype=BF16).requires_grad_()
        sim.compile(loss, x, weight, grad=True)
        phases = [op.phase for op in sim.ops if op.name == "mm"]
    assert phases == ["forward", "backward", "backward"]
