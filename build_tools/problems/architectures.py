"""Linear layers of widely used decoders, by their public configurations.

Targets of ``inductor-tables collect``, such as ``build_tools.problems.architectures:llama_8b``:
each layer is applied to inputs of its own, as its product in the model has the same key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

Target = Callable[[int], tuple[nn.Module, tuple[torch.Tensor, ...]]]


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """Sizes of one decoder layer, and how many ranks share it (tensor parallel)."""

    hidden: int
    heads: int
    kv_heads: int
    head: int
    intermediate: int
    ranks: int = 1

    @property
    def layers(self) -> dict[str, tuple[int, int]]:
        """Input and output features of every linear layer on one rank."""
        query = self.heads * self.head // self.ranks
        key_value = self.kv_heads * self.head // self.ranks
        inner = self.intermediate // self.ranks
        return {
            "q_proj": (self.hidden, query),
            "k_proj": (self.hidden, key_value),
            "v_proj": (self.hidden, key_value),
            "o_proj": (query, self.hidden),
            "gate_proj": (self.hidden, inner),
            "up_proj": (self.hidden, inner),
            "down_proj": (inner, self.hidden),
        }


class Layers(nn.Module):  # type: ignore[misc]
    """The linear layers of a decoder layer, without bias, each on an input of its own."""

    def __init__(self, sizes: dict[str, tuple[int, int]]) -> None:
        super().__init__()
        for name, (inputs, outputs) in sizes.items():
            setattr(self, name, nn.Linear(inputs, outputs, bias=False))
        self._names = tuple(sizes)

    def forward(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        """Apply layer i to input i, of (tokens, its input features)."""
        return [getattr(self, name)(x) for name, x in zip(self._names, inputs, strict=True)]


def _target(decoder: Decoder) -> Target:
    def build(tokens: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        sizes = decoder.layers
        return Layers(sizes), tuple(torch.empty(tokens, inputs) for inputs, _ in sizes.values())

    return build


llama_8b = _target(Decoder(hidden=4096, heads=32, kv_heads=8, head=128, intermediate=14336))
mistral_7b = llama_8b
qwen3_8b = _target(Decoder(hidden=4096, heads=32, kv_heads=8, head=128, intermediate=12288))
llama_1b = _target(Decoder(hidden=2048, heads=32, kv_heads=8, head=64, intermediate=8192))
llama_70b_tp8 = _target(
    Decoder(hidden=8192, heads=64, kv_heads=8, head=128, intermediate=28672, ranks=8)
)
