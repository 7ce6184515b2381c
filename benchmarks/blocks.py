"""Models that the benchmarks compile, from public architecture parameters, in plain torch.

A decoder maps token ids (batch, tokens) to the logits of each sequence's last token, as
generation takes them. Where its cache holds tokens already, the new ones come behind these.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True, kw_only=True)
class DecoderSizes:
    """Sizes of a Llama-like decoder; the defaults are Llama 3 8B's, with a small vocabulary."""

    hidden: int = 4096
    intermediate: int = 14336
    heads: int = 32
    key_value_heads: int = 8
    head: int = 128
    layers: int = 2
    vocabulary: int = 32000
    query_key_norm: bool = False
    tied: bool = False


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Sequences at once, new tokens of each, and tokens of each that the cache holds."""

    batch: int = 1
    new: int
    cached: int = 0


class _Cache(nn.Module):
    """Keys and values of all tokens so far; the new ones are written behind the others."""

    def __init__(self, tokens: Tokens, heads: int, head: int) -> None:
        super().__init__()
        size = (tokens.batch, heads, tokens.cached + tokens.new, head)
        self.register_buffer("keys", torch.randn(size))
        self.register_buffer("values", torch.randn(size))
        self.register_buffer("places", torch.arange(tokens.cached, tokens.cached + tokens.new))

    def forward(self, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write (batch, heads, new tokens, head) and return all."""
        return self.keys.index_copy_(2, self.places, key), self.values.index_copy_(
            2, self.places, value
        )


def _split(x: torch.Tensor, heads: int) -> torch.Tensor:
    return x.unflatten(2, (heads, -1)).transpose(1, 2)


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cache: _Cache | None, causal: bool
) -> torch.Tensor:
    """Attend (batch, heads, tokens, head), and merge the heads."""
    if cache is not None:
        key, value = cache(key, value)
    groups = query.shape[1] != key.shape[1]
    causal = causal and cache is None  # a single new token may look at all
    mixed = functional.scaled_dot_product_attention(
        query, key, value, is_causal=causal, enable_gqa=groups
    )
    return mixed.transpose(1, 2).flatten(2)


class _GatedLayer(nn.Module):
    def __init__(self, sizes: DecoderSizes, tokens: Tokens) -> None:
        super().__init__()
        self.heads, self.key_value_heads = sizes.heads, sizes.key_value_heads
        wide, narrow = sizes.heads * sizes.head, sizes.key_value_heads * sizes.head
        self.before_attention = nn.RMSNorm(sizes.hidden)
        self.before_mlp = nn.RMSNorm(sizes.hidden)
        self.query = nn.Linear(sizes.hidden, wide, bias=False)
        self.key = nn.Linear(sizes.hidden, narrow, bias=False)
        self.value = nn.Linear(sizes.hidden, narrow, bias=False)
        self.output = nn.Linear(wide, sizes.hidden, bias=False)
        self.gate = nn.Linear(sizes.hidden, sizes.intermediate, bias=False)
        self.up = nn.Linear(sizes.hidden, sizes.intermediate, bias=False)
        self.down = nn.Linear(sizes.intermediate, sizes.hidden, bias=False)
        norm = sizes.query_key_norm
        self.query_norm = nn.RMSNorm(sizes.head) if norm else nn.Identity()
        self.key_norm = nn.RMSNorm(sizes.head) if norm else nn.Identity()
        self.cache = _Cache(tokens, sizes.key_value_heads, sizes.head) if tokens.cached else None

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Map (batch, tokens, hidden) to the same shape."""
        normed = self.before_attention(x)
        query = self.query_norm(_split(self.query(normed), self.heads))
        key = self.key_norm(_split(self.key(normed), self.key_value_heads))
        value = _split(self.value(normed), self.key_value_heads)
        query, key = _rotate(query, cos, sin), _rotate(key, cos, sin)
        x = x + self.output(_attend(query, key, value, self.cache, causal=True))
        normed = self.before_mlp(x)
        return x + self.down(functional.silu(self.gate(normed)) * self.up(normed))


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


class Decoder(nn.Module):
    """A Llama-like decoder: grouped-query attention, rotary positions, a gated MLP."""

    def __init__(self, sizes: DecoderSizes, tokens: Tokens) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.hidden)
        self.layers = nn.ModuleList(_GatedLayer(sizes, tokens) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.hidden)
        self.head = nn.Linear(sizes.hidden, sizes.vocabulary, bias=False)
        if sizes.tied:
            self.head.weight = self.embedding.weight
        half = sizes.head // 2
        places = torch.arange(tokens.cached, tokens.cached + tokens.new)
        angles = torch.outer(places, 500000.0 ** (-torch.arange(half) / half))
        angles = torch.cat((angles, angles), dim=-1)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the logits (batch, vocabulary) of the last tokens."""
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits: torch.Tensor = self.head(self.norm(x[:, -1]))
        return logits


class _Conv1D(nn.Module):
    """GPT-2's linear layer, whose weight is (inputs, outputs)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply it to the last dimension."""
        flat = torch.addmm(self.bias, x.flatten(0, -2), self.weight)
        return flat.unflatten(0, x.shape[:-1])


class _GPT2Layer(nn.Module):
    def __init__(self, hidden: int, heads: int, tokens: Tokens) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(hidden)
        self.before_mlp = nn.LayerNorm(hidden)
        self.together = _Conv1D(hidden, 3 * hidden)
        self.output = _Conv1D(hidden, hidden)
        self.up = _Conv1D(hidden, 4 * hidden)
        self.down = _Conv1D(4 * hidden, hidden)
        self.cache = _Cache(tokens, heads, hidden // heads) if tokens.cached else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, tokens, hidden) to the same shape."""
        parts = self.together(self.before_attention(x)).chunk(3, dim=-1)
        query, key, value = (_split(part, self.heads) for part in parts)
        x = x + self.output(_attend(query, key, value, self.cache, causal=True))
        up = functional.gelu(self.up(self.before_mlp(x)), approximate="tanh")
        return x + self.down(up)


class GPT2(nn.Module):
    """GPT-2: learned positions, layers with biases, the head tied to the embedding."""

    def __init__(
        self, layers: int, tokens: Tokens, *, hidden: int = 768, heads: int = 12,
        vocabulary: int = 50257,
    ) -> None:  # fmt: skip
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.positions = nn.Embedding(1024, hidden)
        self.layers = nn.ModuleList(_GPT2Layer(hidden, heads, tokens) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocabulary, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("places", torch.arange(tokens.cached, tokens.cached + tokens.new))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the logits (batch, vocabulary) of the last tokens."""
        x = self.embedding(ids) + self.positions(self.places)
        for layer in self.layers:
            x = layer(x)
        logits: torch.Tensor = self.head(self.norm(x[:, -1]))
        return logits


class _EncoderLayer(nn.Module):
    """Attention and MLP with biases; ``before``: norms are in front of them, as in ViT."""

    def __init__(self, hidden: int, heads: int, *, before: bool) -> None:
        super().__init__()
        self.heads, self.before = heads, before
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)
        self.output = nn.Linear(hidden, hidden)
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)
        self.attention_norm = nn.LayerNorm(hidden)
        self.mlp_norm = nn.LayerNorm(hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, tokens, hidden) to the same shape."""
        if self.before:
            x = x + self._attention(self.attention_norm(x))
            return x + self._mlp(self.mlp_norm(x))
        x = self.attention_norm(x + self._attention(x))
        normed: torch.Tensor = self.mlp_norm(x + self._mlp(x))
        return normed

    def _attention(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            _split(layer(x), self.heads) for layer in (self.query, self.key, self.value)
        )
        mixed: torch.Tensor = self.output(_attend(query, key, value, None, causal=False))
        return mixed

    def _mlp(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down(functional.gelu(self.up(x)))
        return result


class Bert(nn.Module):
    """BERT with its head for masked tokens: ids (batch, tokens) to logits of every token."""

    def __init__(
        self, layers: int, *, hidden: int = 768, heads: int = 12, vocabulary: int = 30522
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, hidden)
        self.positions = nn.Embedding(512, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.layers = nn.ModuleList(
            _EncoderLayer(hidden, heads, before=False) for _ in range(layers)
        )
        self.transform = nn.Linear(hidden, hidden)
        self.head_norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocabulary)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the logits (batch, tokens, vocabulary)."""
        x = self.norm(self.embedding(ids) + self.positions.weight[: ids.shape[1]])
        for layer in self.layers:
            x = layer(x)
        logits: torch.Tensor = self.head(self.head_norm(functional.gelu(self.transform(x))))
        return logits


class ViT(nn.Module):
    """A vision transformer: images (batch, 3, 224, 224) to scores of 1000 classes."""

    def __init__(self, layers: int, *, hidden: int = 1024, heads: int = 16) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, hidden, 16, stride=16)
        self.token = nn.Parameter(torch.empty(1, 1, hidden))
        self.positions = nn.Parameter(torch.empty(1, 197, hidden))
        self.layers = nn.ModuleList(
            _EncoderLayer(hidden, heads, before=True) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, 1000)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the scores (batch, 1000)."""
        patches = self.patch(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(images.shape[0], -1, -1), patches), dim=1)
        x = x + self.positions
        for layer in self.layers:
            x = layer(x)
        scores: torch.Tensor = self.head(self.norm(x)[:, 0])
        return scores
