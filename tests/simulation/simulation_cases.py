"""The cases whose lookup keys the reference files hold: small models that meet every kind of op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from inductor_tables.simulation import Simulation

BF16 = torch.bfloat16
Built = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]


class Block(nn.Module):  # type: ignore[misc]
    """A transformer block over (batch, sequence, width)."""

    def __init__(self, width: int, heads: int, hidden: int, bias: bool, fused: bool) -> None:
        super().__init__()
        self.heads = heads
        self.fused = fused
        self.norm_attention = nn.LayerNorm(width)
        self.norm_hidden = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.project = nn.Linear(width, width, bias=bias)
        self.expand = nn.Linear(width, hidden, bias=bias)
        self.shrink = nn.Linear(hidden, width, bias=bias)

    def attend(self, query: Any, key: Any, value: Any) -> Any:
        """Return attention over the heads, fused or as two products."""
        if self.fused:
            return functional.scaled_dot_product_attention(query, key, value)
        # No softmax, so that no pattern turns it into fused attention.
        return (torch.relu(query @ key.transpose(-1, -2)) / 7.0) @ value

    def forward(self, x: Any) -> Any:
        """Return the block's output, of the same shape."""
        batch, length, width = x.shape
        heads = self.qkv(self.norm_attention(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        attended = self.attend(query, key, value).transpose(1, 2).reshape(batch, length, width)
        x = x + self.project(attended)
        activation = functional.gelu if self.fused else functional.relu
        return x + self.shrink(activation(self.expand(self.norm_hidden(x))))


def blocks(
    width: int = 1024, heads: int = 16, hidden: int = 4096, bias: bool = True, fused: bool = True
) -> nn.Module:
    """Return two blocks."""
    return nn.Sequential(*(Block(width, heads, hidden, bias, fused) for _ in range(2)))


def _net_inf(sim: Simulation) -> Built:
    return sim.module(blocks, BF16).eval(), (sim.empty(2, 256, 1024, dtype=BF16),)


def _net_train(sim: Simulation) -> Built:
    net = sim.module(blocks, BF16)
    return lambda x: net(x).float().pow(2).mean(), (sim.empty(2, 256, 1024, dtype=BF16),)


def _net_bmm_train(sim: Simulation) -> Built:
    net = sim.module(lambda: blocks(fused=False), BF16)
    return lambda x: net(x).float().pow(2).mean(), (sim.empty(2, 256, 1024, dtype=BF16),)


def _net_nobias_odd(sim: Simulation) -> Built:
    net = sim.module(lambda: blocks(width=960, heads=15, hidden=2500, bias=False), BF16)
    return net.eval(), (sim.empty(1, 77, 960, dtype=BF16),)


def _mm_plus_mm(sim: Simulation) -> Built:
    square = tuple(sim.empty(512, 512, dtype=BF16) for _ in range(4))
    return lambda a, b, c, d: a @ b + c @ d, square


def _baddbmm(sim: Simulation) -> Built:
    shapes = ((16, 256, 256), (16, 256, 128), (16, 128, 256))
    return torch.baddbmm, tuple(sim.empty(shape, dtype=BF16) for shape in shapes)


def _heads(sim: Simulation, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    return tuple(sim.empty(2, 16, 256, 64, dtype=dtype) for _ in range(3))


def _sdpa_causal(sim: Simulation) -> Built:
    def attention(query: Any, key: Any, value: Any) -> Any:
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True)

    return attention, _heads(sim, BF16)


def _sdpa_mask(sim: Simulation) -> Built:
    def attention(query: Any, key: Any, value: Any, mask: Any) -> Any:
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)

    return attention, (*_heads(sim, BF16), sim.empty(2, 1, 256, 256, dtype=BF16))


def _sdpa_fp32(sim: Simulation) -> Built:
    return functional.scaled_dot_product_attention, _heads(sim, torch.float32)


def _conv1x1(sim: Simulation) -> Built:
    def build() -> nn.Module:
        return nn.Sequential(nn.Conv2d(64, 128, 1), nn.ReLU(), nn.Conv2d(128, 64, 3, padding=1))

    return sim.module(build, BF16).eval(), (sim.empty(8, 64, 32, 32, dtype=BF16),)


def _tfenc_train(sim: Simulation) -> Built:
    layer = sim.module(lambda: nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True), BF16)
    return lambda x: layer(x).sum(), (sim.empty(4, 128, 512, dtype=BF16),)


def _matvec(sim: Simulation) -> Built:
    return torch.matmul, (sim.empty(1, 4096, dtype=BF16), sim.empty(4096, 4096, dtype=BF16))


def _skinny_k(sim: Simulation) -> Built:
    return torch.matmul, (sim.empty(32, 32768, dtype=BF16), sim.empty(32768, 32, dtype=BF16))


CASES: dict[str, Callable[[Simulation], Built]] = {
    "net_inf": _net_inf,
    "net_train": _net_train,
    "net_bmm_train": _net_bmm_train,
    "net_nobias_odd": _net_nobias_odd,
    "mm_plus_mm": _mm_plus_mm,
    "baddbmm": _baddbmm,
    "sdpa_causal": _sdpa_causal,
    "sdpa_mask": _sdpa_mask,
    "sdpa_fp32": _sdpa_fp32,
    "conv1x1": _conv1x1,
    "tfenc_train": _tfenc_train,
    "matvec": _matvec,
    "skinny_k": _skinny_k,
}
