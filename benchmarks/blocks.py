"""Models that the benchmarks compile, from public architecture parameters."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True, kw_only=True)
class DecoderSizes:
    """Sizes of a Llama-like decoder; the defaults are Llama 3 8B's."""

    hidden: int = 4096
    intermediate: int = 14336
    heads: int = 32
    key_value_heads: int = 8
    layers: int = 2
    vocabulary: int = 32000


class _Layer(nn.Module):
    def __init__(self, sizes: DecoderSizes) -> None:
        super().__init__()
        self.heads, self.key_value_heads = sizes.heads, sizes.key_value_heads
        self.head = sizes.hidden // sizes.heads
        narrow = sizes.key_value_heads * self.head
        self.before_attention = nn.RMSNorm(sizes.hidden)
        self.before_mlp = nn.RMSNorm(sizes.hidden)
        self.query = nn.Linear(sizes.hidden, sizes.hidden, bias=False)
        self.key = nn.Linear(sizes.hidden, narrow, bias=False)
        self.value = nn.Linear(sizes.hidden, narrow, bias=False)
        self.output = nn.Linear(sizes.hidden, sizes.hidden, bias=False)
        self.gate = nn.Linear(sizes.hidden, sizes.intermediate, bias=False)
        self.up = nn.Linear(sizes.hidden, sizes.intermediate, bias=False)
        self.down = nn.Linear(sizes.intermediate, sizes.hidden, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Map (batch, tokens, hidden) to the same shape."""
        normed = self.before_attention(x)
        query = _rotate(self._split(self.query(normed), self.heads), cos, sin)
        key = _rotate(self._split(self.key(normed), self.key_value_heads), cos, sin)
        value = self._split(self.value(normed), self.key_value_heads)
        groups = self.heads // self.key_value_heads
        mixed = functional.scaled_dot_product_attention(
            query,
            key.repeat_interleave(groups, dim=1),
            value.repeat_interleave(groups, dim=1),
            is_causal=True,
        )
        x = x + self.output(mixed.transpose(1, 2).flatten(2))
        normed = self.before_mlp(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))

    def _split(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        return x.unflatten(2, (heads, self.head)).transpose(1, 2)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


class Decoder(nn.Module):
    """A Llama-like decoder: token ids (batch, tokens) to logits (batch, tokens, vocabulary)."""

    def __init__(self, sizes: DecoderSizes, tokens: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.layers = nn.ModuleList(_Layer(sizes) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.hidden)
        self.head = nn.Linear(sizes.hidden, sizes.vocabulary, bias=False)
        half = sizes.hidden // sizes.heads // 2
        angles = torch.outer(torch.arange(tokens), 500000.0 ** (-torch.arange(half) / half))
        angles = torch.cat((angles, angles), dim=-1)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the logits of every token."""
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits
