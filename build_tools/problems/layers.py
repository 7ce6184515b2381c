"""Matrix products of models as modules that can be lowered: each on inputs of its own.

What stands between the products (norms, activations, attention) does not change their lookup keys
and is left out; what gives an input its strides is not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import nn
from torch.nn import functional

Inputs = tuple[torch.Tensor, ...]

FP8: Final = torch.float8_e4m3fn


@dataclass(frozen=True, kw_only=True)
class Stream:
    """What a layer is applied to: ``batch`` sequences of ``length`` vectors."""

    batch: int
    length: int = 1

    def of(self, width: int) -> torch.Tensor:
        """Return an input, (batch, length, width), with a gradient as inside of a model."""
        return torch.empty(self.batch, self.length, width, requires_grad=True)


Streams = Mapping[str, Stream]
"""What a call of a model feeds to its layers, by the name that a part gives; those that are
missing have no products in that call."""


@dataclass(frozen=True, kw_only=True)
class Part(ABC):
    """One or more products under one name, such as ``q_proj``.

    Attributes:
        name: the layer's, much as in the model's own code.
        stream: which of the call's streams it is applied to.
    """

    name: str
    stream: str = "tokens"

    @abstractmethod
    def module(self) -> nn.Module:
        """Return the module."""

    @abstractmethod
    def inputs(self, stream: Stream) -> Inputs:
        """Return what the module is called with."""


@dataclass(frozen=True, kw_only=True)
class Linear(Part):
    """``nn.Linear``: the weight is stored as (out, in)."""

    inner: int
    outer: int
    bias: bool = False

    def module(self) -> nn.Module:
        """Return the layer."""
        return nn.Linear(self.inner, self.outer, bias=self.bias)

    def inputs(self, stream: Stream) -> Inputs:
        """Return its input."""
        return (stream.of(self.inner),)


@dataclass(frozen=True, kw_only=True)
class FirstLinear(Linear):
    """A layer on the first vector of each sequence, which a norm has made: BERT's pooler.

    Its rows are as far apart as the sequences.
    """

    def module(self) -> nn.Module:
        """Return the layer."""
        return _FirstLinear(self.inner, self.outer, bias=self.bias)


@dataclass(frozen=True, kw_only=True)
class Conv1D(Linear):
    """GPT-2's linear layer: the weight is stored as (in, out), with a bias."""

    def module(self) -> nn.Module:
        """Return the layer."""
        return _Conv1D(self.inner, self.outer)


@dataclass(frozen=True, kw_only=True)
class ScaledLinear(Linear):
    """A linear layer of fp8 (e4m3) inputs and weights with scales in float32, bf16 results.

    ``rowwise``: a scale for each row of the input and of the weight, else one for each of both.
    """

    rowwise: bool

    def module(self) -> nn.Module:
        """Return the layer."""
        return _ScaledLinear(self.inner, self.outer, self.rowwise)

    def inputs(self, stream: Stream) -> Inputs:
        """Return the input and its scale."""
        rows = stream.batch * stream.length
        x = torch.empty(rows, self.inner, dtype=FP8)
        return x, torch.empty((rows, 1) if self.rowwise else (), dtype=torch.float32)


@dataclass(frozen=True, kw_only=True)
class PlainAttention(Part):
    """Attention as two batched products and a softmax, without a fused kernel, as T5 has it."""

    heads: int
    head: int

    def module(self) -> nn.Module:
        """Return the attention without its projections."""
        return _PlainAttention(self.heads)

    def inputs(self, stream: Stream) -> Inputs:
        """Return queries, keys and values."""
        query, key, value = (stream.of(self.heads * self.head) for _ in range(3))
        return query, key, value


@dataclass(frozen=True, kw_only=True)
class Absorbed(Part):
    """The products of a decode step that DeepSeek's attention takes instead of ``kv_b_proj``.

    Each head's share of its weight is multiplied with queries before attention and with latent
    values after it (deepseek-ai/DeepSeek-V3, ``inference/model.py``).

    Attributes:
        heads: number of heads.
        nope, rope, value: features of a head's queries without and with position, of its values.
        rank: width of the latent vectors.
    """

    heads: int
    nope: int
    rope: int
    value: int
    rank: int

    def module(self) -> nn.Module:
        """Return the products."""
        return _Absorbed(self.heads, self.nope, self.value, self.rank)

    def inputs(self, stream: Stream) -> Inputs:
        """Return queries and what attention makes of the latent values."""
        steps = (stream.batch, stream.length, self.heads)
        query = torch.empty(*steps, self.nope + self.rope, requires_grad=True)
        return query, torch.empty(*steps, self.rank, requires_grad=True)


class Parts(nn.Module):
    """The parts of a model, each called with inputs of its own."""

    def __init__(self, parts: Sequence[Part]) -> None:
        super().__init__()
        for part in parts:
            setattr(self, part.name, part.module())
        self._names = tuple(part.name for part in parts)

    def forward(self, *inputs: Inputs) -> list[torch.Tensor | Inputs]:
        """Return what each part makes of its inputs."""
        return [getattr(self, name)(*x) for name, x in zip(self._names, inputs, strict=True)]


class _FirstLinear(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(functional.layer_norm(x, x.shape[-1:])[:, 0])


class _Conv1D(nn.Module):
    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inner, outer))
        self.bias = nn.Parameter(torch.empty(outer))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight)
        return flat.view(*x.shape[:-1], -1)


class _ScaledLinear(nn.Module):
    def __init__(self, inner: int, outer: int, rowwise: bool) -> None:
        super().__init__()
        self.register_buffer("weight", torch.empty(outer, inner, dtype=FP8))
        scale = torch.empty((outer, 1) if rowwise else (), dtype=torch.float32)
        self.register_buffer("scale", scale)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        weight_scale = self.scale.t() if self.scale.dim() else self.scale
        return torch._scaled_mm(x, self.weight.t(), scale, weight_scale, out_dtype=torch.bfloat16)


class _Absorbed(nn.Module):
    def __init__(self, heads: int, nope: int, value: int, rank: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(heads * (nope + value), rank))
        self._sizes = (heads, nope, value)

    def forward(self, query: torch.Tensor, latent: torch.Tensor) -> Inputs:
        heads, nope, value = self._sizes
        weight = self.weight.view(heads, nope + value, -1)
        scores = torch.einsum("bshd,hdc->bshc", query[..., :nope], weight[:, :nope])
        return scores, torch.einsum("bshc,hdc->bshd", latent, weight[:, -value:])


class _PlainAttention(nn.Module):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self._heads = heads

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        query, key, value = map(self._split, (query, key, value))
        scores = torch.matmul(query, key.transpose(3, 2))
        shares = functional.softmax(scores.float(), dim=-1).type_as(scores)
        return torch.matmul(shares, value).transpose(1, 2).flatten(2)

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _width = x.shape
        return x.view(batch, length, self._heads, -1).transpose(1, 2)
