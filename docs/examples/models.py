"""Models for ``inductor-tables coverage`` and ``collect``, as used in the documents."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class GatedMlp(nn.Module):  # type: ignore[misc]
    """The feed-forward part of a Llama-like layer: (tokens, hidden) to the same shape."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate = nn.Linear(hidden, inner, bias=False)
        self.up = nn.Linear(hidden, inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``down(silu(gate(x)) * up(x))``."""
        return self.down(functional.silu(self.gate(x)) * self.up(x))


def mlp(tokens: int = 16) -> tuple[nn.Module, torch.Tensor]:
    """Return a model and its input, whose products the packaged H200 tables hold."""
    return GatedMlp(4096, 14336).bfloat16(), torch.empty(tokens, 4096, dtype=torch.bfloat16)


def odd(tokens: int = 16) -> tuple[nn.Module, torch.Tensor]:
    """Return the same with an inner size that no packaged table holds."""
    return GatedMlp(4096, 14208).bfloat16(), torch.empty(tokens, 4096, dtype=torch.bfloat16)
