"""Models in plain torch with the widths of well-known ones and one layer each.

Their lookup keys are recorded on a real GPU and compared with the simulation's. Weights have
torch's default initialisation; only shapes, strides and dtypes matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


def split_heads(x: Any, heads: int) -> Any:
    """Turn (batch, tokens, width) into (batch, heads, tokens, width / heads)."""
    return x.view(x.shape[0], x.shape[1], heads, -1).transpose(1, 2)


def merge_heads(x: Any) -> Any:
    """Undo :func:`split_heads`."""
    return x.transpose(1, 2).flatten(2)


class RMSNorm(nn.Module):
    """Root mean square norm, computed in float32 as Llama does."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Any) -> Any:
        """Return the normalised input, in its dtype."""
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * scaled.to(x.dtype)


def rotary_tables(positions: Any, size: int, dtype: torch.dtype) -> tuple[Any, Any]:
    """Return cosines and sines for positions (batch, tokens), each (batch, 1, tokens, size)."""
    steps = torch.arange(0, size, 2, device=positions.device, dtype=torch.float32)
    frequencies = (1.0 / 10000.0 ** (steps / size))[None, :, None]
    frequencies = frequencies.expand(positions.shape[0], -1, 1)
    angles = (frequencies @ positions[:, None, :].float()).transpose(1, 2)
    angles = torch.cat((angles, angles), dim=-1)[:, None]
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Any, tables: tuple[Any, Any]) -> Any:
    """Apply rotary embeddings to (batch, heads, tokens, size)."""
    cosines, sines = tables
    left, right = x.chunk(2, dim=-1)
    return x * cosines + torch.cat((-right, left), dim=-1) * sines


@dataclass(frozen=True, kw_only=True)
class DecoderShape:
    """Sizes of a decoder with grouped-query attention and a gated MLP."""

    width: int
    heads: int
    kv_heads: int
    hidden: int
    vocabulary: int = 32000
    qkv_bias: bool = False
    tied: bool = False


LLAMA = DecoderShape(width=4096, heads=32, kv_heads=8, hidden=14336)
SMALL_LLAMA = DecoderShape(width=2048, heads=32, kv_heads=8, hidden=8192)
QWEN = DecoderShape(width=3584, heads=28, kv_heads=4, hidden=18944, qkv_bias=True, tied=True)


class DecoderLayer(nn.Module):
    """Attention with rotary embeddings, then a SwiGLU MLP."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.shape = shape
        kv_width = shape.width // shape.heads * shape.kv_heads
        self.norm_attention = RMSNorm(shape.width)
        self.norm_mlp = RMSNorm(shape.width)
        self.query = nn.Linear(shape.width, shape.width, bias=shape.qkv_bias)
        self.key = nn.Linear(shape.width, kv_width, bias=shape.qkv_bias)
        self.value = nn.Linear(shape.width, kv_width, bias=shape.qkv_bias)
        self.out = nn.Linear(shape.width, shape.width, bias=False)
        self.gate = nn.Linear(shape.width, shape.hidden, bias=False)
        self.up = nn.Linear(shape.width, shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)

    def heads(self, x: Any, tables: Any) -> tuple[Any, Any, Any]:
        """Return rotated queries and keys, and values."""
        x = self.norm_attention(x)
        query = split_heads(self.query(x), self.shape.heads)
        key = split_heads(self.key(x), self.shape.kv_heads)
        value = split_heads(self.value(x), self.shape.kv_heads)
        return rotate(query, tables), rotate(key, tables), value

    def mlp(self, x: Any) -> Any:
        """Return the residual of the MLP."""
        x = self.norm_mlp(x)
        return self.down(functional.silu(self.gate(x)) * self.up(x))

    def forward(self, x: Any, tables: Any) -> Any:
        """Prefill: causal attention within the input."""
        query, key, value = self.heads(x, tables)
        attended = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=True
        )
        x = x + self.out(merge_heads(attended))
        return x + self.mlp(x)

    def decode(self, x: Any, tables: Any, cache: tuple[Any, Any], position: Any) -> Any:
        """One token a sequence: write it into the static cache and attend to all before it."""
        query, key, value = self.heads(x, tables)
        keys = cache[0].index_copy_(2, position, key)
        values = cache[1].index_copy_(2, position, value)
        groups = self.shape.heads // self.shape.kv_heads
        mask = torch.arange(keys.shape[2], device=x.device)[None, None, None] <= position
        attended = functional.scaled_dot_product_attention(
            query, repeat_heads(keys, groups), repeat_heads(values, groups), attn_mask=mask
        )
        x = x + self.out(merge_heads(attended))
        return x + self.mlp(x)


def repeat_heads(x: Any, groups: int) -> Any:
    """Give every query head its own copy of its group's keys or values."""
    batch, heads, tokens, size = x.shape
    x = x[:, :, None].expand(batch, heads, groups, tokens, size)
    return x.reshape(batch, heads * groups, tokens, size)


class Decoder(nn.Module):
    """A language model of one :class:`DecoderLayer`."""

    def __init__(self, shape: DecoderShape, checkpointed: bool = False) -> None:
        super().__init__()
        self.shape = shape
        self.checkpointed = checkpointed
        self.embed = nn.Embedding(shape.vocabulary, shape.width)
        self.layer = DecoderLayer(shape)
        self.norm = RMSNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)
        if shape.tied:
            self.head.weight = self.embed.weight

    def tables(self, positions: Any) -> tuple[Any, Any]:
        """Return the rotary tables for positions (batch, tokens)."""
        size = self.shape.width // self.shape.heads
        return rotary_tables(positions, size, self.embed.weight.dtype)

    def forward(self, tokens: Any) -> Any:
        """Return logits for token ids (batch, tokens)."""
        tables = self.tables(torch.arange(tokens.shape[1], device=tokens.device)[None])
        x = self.embed(tokens)
        if self.checkpointed:
            x = checkpoint(self.layer, x, tables, use_reentrant=False)
        else:
            x = self.layer(x, tables)
        return self.head(self.norm(x))

    def decode(self, tokens: Any, keys: Any, values: Any, position: Any) -> Any:
        """Return logits for one new token a sequence, tokens (batch, 1), position (1,)."""
        x = self.embed(tokens)
        x = self.layer.decode(x, self.tables(position[None]), (keys, values), position)
        return self.head(self.norm(x))


class Conv1D(nn.Module):
    """GPT-2's linear layer: the weight is (inputs, outputs), and it calls addmm itself."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Any) -> Any:
        """Return the layer's output over the last dimension."""
        flat = torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight)
        return flat.view(*x.shape[:-1], -1)


class GPT2(nn.Module):
    """GPT-2 small with one layer; the vocabulary of 50,257 is odd."""

    def __init__(self, width: int = 768, heads: int = 12, vocabulary: int = 50257) -> None:
        super().__init__()
        self.heads = heads
        self.embed = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(1024, width)
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = Conv1D(width, 3 * width)
        self.project = Conv1D(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.expand = Conv1D(width, 4 * width)
        self.shrink = Conv1D(4 * width, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Any) -> Any:
        """Return logits for token ids (batch, tokens)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.embed(tokens) + self.positions(places)
        parts = self.qkv(self.norm_attention(x)).chunk(3, dim=-1)
        query, key, value = (split_heads(part, self.heads) for part in parts)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(merge_heads(attended))
        hidden = functional.gelu(self.expand(self.norm_mlp(x)), approximate="tanh")
        return self.head(self.norm(x + self.shrink(hidden)))


class EncoderLayer(nn.Module):
    """BERT's layer: biases everywhere, norms after the residuals."""

    def __init__(self, width: int = 768, heads: int = 12, key_bias: bool = True) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=key_bias)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.norm_attention = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.shrink = nn.Linear(4 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Any, mask: Any = None) -> Any:
        """Return the output for (batch, tokens, width) and a mask of true where to attend."""
        query, key, value = (
            split_heads(layer(x), self.heads) for layer in (self.query, self.key, self.value)
        )
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = self.norm_attention(x + self.out(merge_heads(attended)))
        return self.norm(x + self.shrink(functional.gelu(self.expand(x))))


class Bert(nn.Module):
    """BERT base with one layer, a pooler and two classes."""

    def __init__(self, width: int = 768, broken: bool = False) -> None:
        super().__init__()
        self.broken = broken
        self.embed = nn.Embedding(30522, width)
        self.positions = nn.Embedding(512, width)
        self.norm = nn.LayerNorm(width)
        self.layer = EncoderLayer(width)
        self.pool = nn.Linear(width, width)
        self.classify = nn.Linear(width, 2)

    def forward(self, tokens: Any, present: Any) -> Any:
        """Return class scores for ids (batch, tokens) and what of them is no padding."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.embed(tokens) + self.positions(places))
        x = self.layer(x, present[:, None, None, :].expand(-1, 1, tokens.shape[1], -1))
        if self.broken:
            torch._dynamo.graph_break()
        return self.classify(torch.tanh(self.pool(x[:, 0])))


class ViT(nn.Module):
    """A vision transformer (base, 16 by 16 patches) with one layer."""

    def __init__(self, width: int = 768, heads: int = 12) -> None:
        super().__init__()
        self.heads = heads
        self.patch = nn.Conv2d(3, width, 16, stride=16)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, 197, width))
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.expand = nn.Linear(width, 4 * width)
        self.shrink = nn.Linear(4 * width, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 1000)

    def forward(self, images: Any) -> Any:
        """Return class scores for images (batch, 3, 224, 224)."""
        patches = self.patch(images).flatten(2).transpose(1, 2)
        token = self.token.expand(images.shape[0], -1, -1)
        x = torch.cat((token, patches), dim=1) + self.positions
        batch, tokens, width = x.shape
        heads = self.qkv(self.norm_attention(x)).reshape(batch, tokens, 3, self.heads, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4).unbind(0)
        attended = functional.scaled_dot_product_attention(query, key, value)
        x = x + self.project(attended.transpose(1, 2).reshape(batch, tokens, width))
        x = x + self.shrink(functional.gelu(self.expand(self.norm_mlp(x))))
        return self.head(self.norm(x)[:, 0])


class DiT(nn.Module):
    """A diffusion transformer (XL width) with one layer and cross-attention to a text."""

    def __init__(self, width: int = 1152, heads: int = 16, text: int = 768) -> None:
        super().__init__()
        self.heads = heads
        self.patch = nn.Linear(16, width)
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.modulate = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.cross_query = nn.Linear(width, width)
        self.cross_keys = nn.Linear(text, 2 * width)
        self.cross_out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )
        self.final_modulate = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))
        self.final = nn.Linear(width, 32)

    def attend(self, query: Any, key: Any, value: Any) -> Any:
        """Return attention of (batch, tokens, width) inputs."""
        heads = (split_heads(x, self.heads) for x in (query, key, value))
        return merge_heads(functional.scaled_dot_product_attention(*heads))

    def forward(self, latents: Any, times: Any, text: Any) -> Any:
        """Return the noise for latents (batch, tokens, 16), times (batch, 256) and a text."""
        condition = self.time(times)
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = self.modulate(condition)[
            :, None
        ].chunk(6, dim=-1)
        x = self.patch(latents)
        inner = self.norm(x) * (1 + scale) + shift
        x = x + gate * self.project(self.attend(*self.qkv(inner).chunk(3, dim=-1)))
        key, value = self.cross_keys(text).chunk(2, dim=-1)
        x = x + self.cross_out(self.attend(self.cross_query(x), key, value))
        x = x + mlp_gate * self.mlp(self.norm(x) * (1 + mlp_scale) + mlp_shift)
        shift, scale = self.final_modulate(condition)[:, None].chunk(2, dim=-1)
        return self.final(self.norm(x) * (1 + scale) + shift)


class UNetBlock(nn.Module):
    """A residual block and self-attention of a latent diffusion U-Net; heads of size 40."""

    def __init__(self, inputs: int = 320, outputs: int = 640, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.norm_in = nn.GroupNorm(32, inputs)
        self.conv_in = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time = nn.Linear(1280, outputs)
        self.norm_out = nn.GroupNorm(32, outputs)
        self.conv_out = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1)
        self.norm = nn.LayerNorm(outputs)
        self.qkv = nn.Linear(outputs, 3 * outputs, bias=False)
        self.out = nn.Linear(outputs, outputs)
        self.gated = nn.Linear(outputs, 8 * outputs)
        self.shrink = nn.Linear(4 * outputs, outputs)

    def forward(self, x: Any, times: Any) -> Any:
        """Return the block's output for images (batch, inputs, rows, columns)."""
        inner = self.conv_in(functional.silu(self.norm_in(x)))
        inner = inner + self.time(functional.silu(times))[:, :, None, None]
        inner = self.conv_out(functional.silu(self.norm_out(inner)))
        x = inner + self.shortcut(x)
        tokens = x.flatten(2).transpose(1, 2)
        parts = self.qkv(self.norm(tokens)).chunk(3, dim=-1)
        heads = (split_heads(part, self.heads) for part in parts)
        attended = merge_heads(functional.scaled_dot_product_attention(*heads))
        tokens = tokens + self.out(attended)
        value, gate = self.gated(self.norm(tokens)).chunk(2, dim=-1)
        tokens = tokens + self.shrink(value * functional.gelu(gate))
        return tokens.transpose(1, 2).reshape(x.shape)


class MoE(nn.Module):
    """Eight experts of which each token takes two; experts are stored as one tensor."""

    def __init__(self, width: int = 2048, hidden: int = 5632, experts: int = 8) -> None:
        super().__init__()
        self.experts = experts
        self.router = nn.Linear(width, experts, bias=False)
        self.gate = nn.Parameter(torch.zeros(experts, hidden, width))
        self.up = nn.Parameter(torch.zeros(experts, hidden, width))
        self.down = nn.Parameter(torch.zeros(experts, width, hidden))

    def route(self, x: Any) -> tuple[Any, Any]:
        """Return weights and experts of every token, each (tokens, 2)."""
        shares = functional.softmax(self.router(x).float(), dim=-1)
        weights, experts = torch.topk(shares, 2, dim=-1)
        return (weights / weights.sum(dim=-1, keepdim=True)).to(x.dtype), experts

    def forward(self, x: Any) -> Any:
        """Run every expert on every token (tokens, width), and keep what was routed."""
        weights, experts = self.route(x)
        dense = torch.zeros(x.shape[0], self.experts, device=x.device, dtype=x.dtype)
        dense = dense.scatter(1, experts, weights)
        every = x.expand(self.experts, -1, -1)
        gated = functional.silu(torch.bmm(every, self.gate.transpose(1, 2)))
        hidden = gated * torch.bmm(every, self.up.transpose(1, 2))
        out = torch.bmm(hidden, self.down.transpose(1, 2))
        return (out * dense.t()[..., None]).sum(dim=0)

    def grouped(self, x: Any) -> Any:
        """Run every expert on its tokens only, as grouped products."""
        weights, experts = self.route(x)
        order = experts.flatten().argsort()
        counts = functional.one_hot(experts.flatten(), self.experts).sum(dim=0)
        ends = counts.cumsum(0).to(torch.int32)
        rows = x[order // 2]
        gated = functional.silu(torch._grouped_mm(rows, self.gate.transpose(1, 2), offs=ends))
        hidden = gated * torch._grouped_mm(rows, self.up.transpose(1, 2), offs=ends)
        out = torch._grouped_mm(hidden, self.down.transpose(1, 2), offs=ends)
        out = out * weights.flatten()[order][:, None]
        return torch.zeros_like(x).index_add(0, order // 2, out)


class T5Attention(nn.Module):
    """Attention without scaling, with an added bias, as two products and a softmax."""

    def __init__(self, width: int, heads: int, size: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, heads * size, bias=False)
        self.key = nn.Linear(width, heads * size, bias=False)
        self.value = nn.Linear(width, heads * size, bias=False)
        self.out = nn.Linear(heads * size, width, bias=False)

    def forward(self, x: Any, memory: Any, bias: Any) -> Any:
        """Return attention of x to memory, both (batch, tokens, width)."""
        query = split_heads(self.query(x), self.heads)
        key, value = (split_heads(p(memory), self.heads) for p in (self.key, self.value))
        scores = torch.matmul(query, key.transpose(3, 2)) + bias
        shares = functional.softmax(scores.float(), dim=-1).type_as(scores)
        return self.out(merge_heads(torch.matmul(shares, value)))


class T5(nn.Module):
    """A T5 1.1 encoder layer and decoder layer of the large size, with relative positions."""

    def __init__(self, width: int = 1024, heads: int = 16, hidden: int = 2816) -> None:
        super().__init__()
        self.embed = nn.Embedding(32128, width)
        self.buckets = nn.Embedding(32, heads)
        self.encoder = T5Attention(width, heads, 64)
        self.decoder = T5Attention(width, heads, 64)
        self.cross = T5Attention(width, heads, 64)
        self.norms = nn.ModuleList(RMSNorm(width) for _ in range(5))
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)
        self.head = nn.Linear(width, 32128, bias=False)

    def bias(self, tokens: int, device: Any) -> Any:
        """Return the bias (1, heads, tokens, tokens) by distance."""
        places = torch.arange(tokens, device=device)
        distance = (places[None, :] - places[:, None]).clamp(-16, 15) + 16
        return self.buckets(distance).permute(2, 0, 1)[None]

    def mlp(self, x: Any) -> Any:
        """Return the residual of the gated MLP."""
        gated = functional.gelu(self.gate(x), approximate="tanh")
        return self.down(gated * self.up(x))

    def forward(self, source: Any, target: Any) -> Any:
        """Return logits for source and target token ids, each (batch, tokens)."""
        first, second, third, fourth, fifth = self.norms
        memory = self.embed(source)
        inner = first(memory)
        memory = memory + self.encoder(inner, inner, self.bias(source.shape[1], source.device))
        memory = second(memory + self.mlp(memory))
        x = self.embed(target)
        inner = third(x)
        past = torch.full((target.shape[1],) * 2, float("-inf"), device=target.device).triu(1)
        bias = self.bias(target.shape[1], target.device) + past.to(x.dtype)
        x = x + self.decoder(inner, inner, bias)
        nothing = torch.zeros(1, 1, 1, 1, device=target.device, dtype=x.dtype)
        x = x + self.cross(fourth(x), memory, nothing)
        return self.head(fifth(x + self.mlp(x)))


class Whisper(nn.Module):
    """The front and one encoder layer of Whisper base, over 30 s of sound."""

    def __init__(self, width: int = 512, heads: int = 8) -> None:
        super().__init__()
        self.front = nn.Conv1d(80, width, 3, padding=1)
        self.halve = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.positions = nn.Parameter(torch.zeros(1500, width))
        self.layer = EncoderLayer(width, heads, key_bias=False)

    def forward(self, sound: Any) -> Any:
        """Return the states (batch, 1500, width) for features (batch, 80, 3000)."""
        x = functional.gelu(self.front(sound))
        x = functional.gelu(self.halve(x)).permute(0, 2, 1)
        return self.layer(x + self.positions)


class Mamba2(nn.Module):
    """A Mamba-2 mixer: projections, a short convolution, and the scan in chunks of 128."""

    def __init__(self, width: int = 2048, state: int = 128, size: int = 64) -> None:
        super().__init__()
        self.inner = 2 * width
        self.state = state
        self.size = size
        self.heads = self.inner // size
        mixed = self.inner + 2 * state
        self.project_in = nn.Linear(width, self.inner + mixed + self.heads, bias=False)
        self.conv = nn.Conv1d(mixed, mixed, 4, groups=mixed, padding=3)
        self.decay = nn.Parameter(torch.zeros(self.heads))
        self.norm = RMSNorm(self.inner)
        self.project_out = nn.Linear(self.inner, width, bias=False)

    def scan(self, x: Any, steps: Any, inputs: Any, outputs: Any) -> Any:
        """Return the scan of x (batch, heads, chunks, 128, size).

        ``steps`` is (batch, heads, chunks, 128); ``inputs`` and ``outputs`` are
        (batch, 1, chunks, 128, state).
        """
        total = steps.cumsum(-1)
        within = (total[..., :, None] - total[..., None, :]).tril().exp().tril()
        near = ((outputs @ inputs.transpose(-1, -2)) * within.to(x.dtype)) @ x
        left = (total[..., -1:] - total).exp()[..., None].to(x.dtype)
        states = (x * left).transpose(-1, -2) @ inputs
        carried = [torch.zeros_like(states[:, :, 0])]
        for chunk in range(states.shape[2] - 1):
            kept = total[:, :, chunk, -1].exp()[..., None, None].to(x.dtype)
            carried.append(carried[-1] * kept + states[:, :, chunk])
        far = outputs @ torch.stack(carried, dim=2).transpose(-1, -2)
        return near + far * total.exp()[..., None].to(x.dtype)

    def forward(self, x: Any) -> Any:
        """Return the mixer's output for (batch, tokens, width), tokens a multiple of 128."""
        batch, tokens, _width = x.shape
        chunks = tokens // 128
        sizes = (self.inner, self.inner + 2 * self.state, self.heads)
        gate, mixed, steps = self.project_in(x).split(sizes, dim=-1)
        mixed = functional.silu(self.conv(mixed.transpose(1, 2))[..., :tokens].transpose(1, 2))
        values, inputs, outputs = mixed.split((self.inner, self.state, self.state), dim=-1)
        steps = -functional.softplus(steps.float()) * self.decay.float().exp()
        y = self.scan(
            values.reshape(batch, chunks, 128, self.heads, self.size).permute(0, 3, 1, 2, 4),
            steps.reshape(batch, chunks, 128, self.heads).permute(0, 3, 1, 2),
            inputs.reshape(batch, 1, chunks, 128, self.state),
            outputs.reshape(batch, 1, chunks, 128, self.state),
        )
        y = y.permute(0, 2, 3, 1, 4).reshape(batch, tokens, self.inner)
        return self.project_out(self.norm(y * functional.silu(gate)))


class LoRA(nn.Module):
    """A frozen projection with a trainable low-rank update of rank 16."""

    def __init__(self, width: int = 4096, rank: int = 16) -> None:
        super().__init__()
        self.base = nn.Linear(width, width, bias=False).requires_grad_(False)
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)

    def forward(self, x: Any) -> Any:
        """Return the updated projection over the last dimension."""
        return self.base(x) + 2.0 * self.up(self.down(x))
