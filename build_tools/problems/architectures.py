"""The builders: which products a kind of model has, and what a call feeds to them.

A :class:`Model` is a target of ``inductor-tables collect``. What its ``tokens`` count is said in
each class; the sizes are the model's own (:mod:`build_tools.problems.models`).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from torch import nn

from build_tools.problems.layers import (
    Absorbed,
    Conv1D,
    FirstLinear,
    Inputs,
    Linear,
    Part,
    Parts,
    PlainAttention,
    ScaledLinear,
    Stream,
    Streams,
)

MOST_DECODED: Final = 64
"""Up to this many tokens are a decode step of as many sequences, as for ``coverage``; above, one
sequence's prefill, of which only the last token is turned into a word."""

LONGEST: Final = 512
"""Tokens of the longest sequence of an encoder that does not say."""

_Self = TypeVar("_Self", bound="Sharded")


@dataclass(frozen=True, kw_only=True)
class Model(ABC):
    """Sizes of one model; one layer of each kind is looked at.

    Attributes:
        name: for people, such as ``llama-3.1-8b``; no colon.
        part: which part of the model this is, if there are several, such as ``decoder``.
        besides: a model of which this is a variant; what both have is looked at there only.
    """

    name: str
    part: str = ""
    besides: Model | None = None

    @abstractmethod
    def parts(self) -> Iterator[Part]:
        """Yield the products of one layer of each kind, and those around the layers."""

    @abstractmethod
    def streams(self, tokens: int) -> Streams:
        """Return what the products are applied to."""

    @property
    def target(self) -> str:
        """How it is called as a target: ``llama_3_1_8b``."""
        return re.sub(r"\W", "_", f"{self.name} {self.part}".strip())

    def origin(self, module: str) -> str:
        """Return where a product comes from, by the path of its module in :class:`Parts`."""
        return f"{self.name}:{self.part}.{module}" if self.part else f"{self.name}:{module}"

    def __call__(self, tokens: int) -> tuple[nn.Module, tuple[Inputs, ...]]:
        """Return the module and the inputs of a call, as ``collect`` takes them."""
        streams = self.streams(tokens)
        known = set(self.besides.parts()) if self.besides else set()
        parts = [part for part in self.parts() if part.stream in streams and part not in known]
        return Parts(parts), tuple(part.inputs(streams[part.stream]) for part in parts)


@dataclass(frozen=True, kw_only=True)
class Sharded(Model):
    """A model that several ranks can share, each with a part of every layer (tensor parallel).

    Attributes:
        ranks: how many; heads, hidden features of MLPs and words are divided among them.
    """

    ranks: int = 1

    def shared_by(self: _Self, ranks: int) -> _Self:
        """Return the same model on one of several ranks, without what is not divided."""
        return replace(self, name=f"{self.name} tp{ranks}", ranks=ranks, besides=self)


def _generated(tokens: int) -> Streams:
    """Return one new token for each of a few sequences, or all those of one."""
    if tokens > MOST_DECODED:
        return {"tokens": Stream(batch=1, length=tokens)}
    return {"tokens": Stream(batch=tokens), "words": Stream(batch=tokens)}


def _words(width: int, vocabulary: int, *, name: str = "lm_head", bias: bool = False) -> Linear:
    return Linear(name=name, inner=width, outer=vocabulary, bias=bias, stream="words")


def _biased(name: str, inner: int, outer: int, stream: str) -> Linear:
    return Linear(name=name, inner=inner, outer=outer, bias=True, stream=stream)


# --- decoders ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Decoder(Sharded):
    """A decoder with grouped queries and a gated MLP (Llama, Qwen, Mistral, Gemma, Phi).

    ``tokens`` are those of a step. Sizes are named as in a Hugging Face ``config.json``.

    Attributes:
        hidden, intermediate, vocabulary: widths.
        heads, kv_heads, head: number of heads, and the size of one.
        qkv_bias: queries, keys and values have a bias (Qwen 2).
        fused: one product for queries, keys and values, and one for gate and up (Phi).
        mlp: the layers have an MLP; those of a mixture of experts have none of their own.
    """

    hidden: int
    heads: int
    kv_heads: int
    head: int
    intermediate: int
    vocabulary: int
    qkv_bias: bool = False
    fused: bool = False
    mlp: bool = True

    def parts(self) -> Iterator[Part]:
        """Yield the layers of attention, the MLP's, and the last one."""
        query = self.heads * self.head // self.ranks
        key = self.kv_heads * self.head // self.ranks
        bias = self.qkv_bias
        if self.fused:
            yield Linear(name="qkv_proj", inner=self.hidden, outer=query + 2 * key, bias=bias)
        else:
            for name, outer in (("q_proj", query), ("k_proj", key), ("v_proj", key)):
                yield Linear(name=name, inner=self.hidden, outer=outer, bias=bias)
        yield Linear(name="o_proj", inner=query, outer=self.hidden)
        if self.mlp:
            yield from gated_mlp(self.hidden, self.intermediate // self.ranks, fused=self.fused)
        yield _words(self.hidden, self.vocabulary // self.ranks)

    def streams(self, tokens: int) -> Streams:
        """Return a decode step of up to 64 sequences, or a prefill."""
        return _generated(tokens)


def gated_mlp(hidden: int, intermediate: int, *, fused: bool = False) -> Iterator[Part]:
    """Yield the layers of a gated MLP."""
    if fused:
        yield Linear(name="gate_up_proj", inner=hidden, outer=2 * intermediate)
    else:
        yield Linear(name="gate_proj", inner=hidden, outer=intermediate)
        yield Linear(name="up_proj", inner=hidden, outer=intermediate)
    yield Linear(name="down_proj", inner=intermediate, outer=hidden)


@dataclass(frozen=True, kw_only=True)
class ScaledDecoder(Decoder):
    """A decoder whose projections without a bias multiply fp8; the others are left out.

    ``rowwise``: scales for each row of inputs and weights, else one for each of both.
    """

    rowwise: bool

    def parts(self) -> Iterator[Part]:
        """Yield the projections."""
        for part in super().parts():
            if isinstance(part, Linear) and part.stream == "tokens" and not part.bias:
                yield ScaledLinear(
                    name=part.name, inner=part.inner, outer=part.outer, rowwise=self.rowwise
                )


@dataclass(frozen=True, kw_only=True)
class GPT2(Model):
    """GPT-2, whose layers are ``Conv1D`` with biases; ``tokens`` as for :class:`Decoder`."""

    hidden: int
    vocabulary: int

    def parts(self) -> Iterator[Part]:
        """Yield the layers of a block and the last one."""
        hidden = self.hidden
        sizes = {"c_attn": (hidden, 3 * hidden), "attn_c_proj": (hidden, hidden)}
        sizes |= {"c_fc": (hidden, 4 * hidden), "mlp_c_proj": (4 * hidden, hidden)}
        for name, (inner, outer) in sizes.items():
            yield Conv1D(name=name, inner=inner, outer=outer, bias=True)
        yield _words(hidden, self.vocabulary)

    def streams(self, tokens: int) -> Streams:
        """Return a decode step of up to 64 sequences, or a prefill."""
        return _generated(tokens)


@dataclass(frozen=True, kw_only=True)
class Experts(Sharded):
    """A gated MLP among many, of which a router picks a few for each token.

    ``tokens`` are those that one expert gets; the router's are as many.

    Attributes:
        hidden, intermediate: widths of one expert.
        experts: how many there are; 0: the router is left out (DeepSeek's is float32).
        fused: one product for gate and up.
    """

    hidden: int
    intermediate: int
    experts: int
    fused: bool = False

    def parts(self) -> Iterator[Part]:
        """Yield one expert's layers and the router."""
        yield from gated_mlp(self.hidden, self.intermediate // self.ranks, fused=self.fused)
        if self.experts:
            yield Linear(name="router", inner=self.hidden, outer=self.experts)

    def streams(self, tokens: int) -> Streams:
        """Return the rows that an expert gets."""
        return {"tokens": Stream(batch=tokens)}


@dataclass(frozen=True, kw_only=True)
class LatentAttention(Sharded):
    """DeepSeek's attention, whose queries, keys and values come out of narrow latent vectors.

    ``tokens`` are those of a step. The products into the latent vectors are not sharded.

    Attributes:
        hidden, q_rank, kv_rank: widths of the model and the latent vectors.
        heads: number of heads.
        nope, rope, value: features of a head without and with rotary position, and of its values.
        intermediate: width of the MLP of the first layers, which are dense.
        vocabulary: words.
    """

    hidden: int
    q_rank: int
    kv_rank: int
    heads: int
    nope: int
    rope: int
    value: int
    intermediate: int
    vocabulary: int

    def parts(self) -> Iterator[Part]:
        """Yield the projections, the MLP of a dense layer, and the last layer."""
        heads = self.heads // self.ranks
        sizes = {
            "q_a_proj": (self.hidden, self.q_rank),
            "q_b_proj": (self.q_rank, heads * (self.nope + self.rope)),
            "kv_a_proj": (self.hidden, self.kv_rank + self.rope),
            "kv_b_proj": (self.kv_rank, heads * (self.nope + self.value)),
            "o_proj": (heads * self.value, self.hidden),
        }
        for name, (inner, outer) in sizes.items():
            yield Linear(name=name, inner=inner, outer=outer)
        yield Absorbed(
            name="absorbed", stream="words", heads=heads, nope=self.nope, rope=self.rope,
            value=self.value, rank=self.kv_rank,
        )  # fmt: skip
        yield from gated_mlp(self.hidden, self.intermediate // self.ranks)
        yield _words(self.hidden, self.vocabulary // self.ranks)

    def streams(self, tokens: int) -> Streams:
        """Return a decode step of up to 64 sequences, or a prefill."""
        return _generated(tokens)


@dataclass(frozen=True, kw_only=True)
class Mamba2(Model):
    """A Mamba-2 mixer; its scan is a kernel of its own. ``tokens`` as for :class:`Decoder`.

    Attributes:
        hidden, vocabulary: widths.
        state: size of the state; the inner width is twice ``hidden``, in heads of 64.
    """

    hidden: int
    vocabulary: int
    state: int = 128

    def parts(self) -> Iterator[Part]:
        """Yield the projections and the last layer."""
        inner = 2 * self.hidden
        outer = 2 * inner + 2 * self.state + inner // 64
        yield Linear(name="in_proj", inner=self.hidden, outer=outer)
        yield Linear(name="out_proj", inner=inner, outer=self.hidden)
        yield _words(self.hidden, self.vocabulary)

    def streams(self, tokens: int) -> Streams:
        """Return a decode step of up to 64 sequences, or a prefill."""
        return _generated(tokens)


# --- encoders ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Encoder(Model):
    """A Transformer's encoder with biases (BERT, ViT, CLIP), and what follows it.

    ``tokens`` are sequences of ``length`` if that is given (images, say), else tokens, in sequences
    of :data:`LONGEST` at most.

    Attributes:
        hidden, intermediate: widths.
        fused: one product for queries, keys and values.
        bias: all layers but ``extra`` ones have a bias.
        key_bias: the keys' layer has one too (Whisper's has none).
        gated: the MLP's first product is twice as wide (ModernBERT).
        length: tokens of a sequence; 0: they vary.
        pooled: layers on the first token of each sequence: name and outputs, with a bias.
        projected: outputs of a layer on one vector a sequence, without a bias; 0: none.
        heads: attention is two batched products of so many heads of 64; 0: a fused kernel.
        vocabulary: a decoder has such layers too, which makes so many words; 0: none has. Then up
            to 64 ``tokens`` are a decode step.
    """

    hidden: int
    intermediate: int
    fused: bool = False
    bias: bool = True
    key_bias: bool = True
    gated: bool = False
    length: int = 0
    pooled: tuple[tuple[str, int], ...] = ()
    projected: int = 0
    heads: int = 0
    vocabulary: int = 0

    def parts(self) -> Iterator[Part]:
        """Yield the layers of a block and those after the last one."""
        hidden, bias = self.hidden, self.bias
        if self.fused:
            yield Linear(name="qkv", inner=hidden, outer=3 * hidden, bias=bias)
        else:
            yield Linear(name="query", inner=hidden, outer=hidden, bias=bias)
            yield Linear(name="key", inner=hidden, outer=hidden, bias=bias and self.key_bias)
            yield Linear(name="value", inner=hidden, outer=hidden, bias=bias)
        if self.heads:
            yield PlainAttention(name="attention", heads=self.heads, head=64, stream="sequences")
        yield Linear(name="out", inner=hidden, outer=hidden, bias=bias)
        widened = self.intermediate * (2 if self.gated else 1)
        yield Linear(name="fc1", inner=hidden, outer=widened, bias=bias)
        yield Linear(name="fc2", inner=self.intermediate, outer=hidden, bias=bias)
        for name, outer in self.pooled:
            yield FirstLinear(name=name, inner=hidden, outer=outer, bias=True, stream="sequences")
        if self.projected:
            yield Linear(name="projection", inner=hidden, outer=self.projected, stream="pooled")
        if self.vocabulary:
            yield _words(hidden, self.vocabulary)

    def streams(self, tokens: int) -> Streams:
        """Return whole sequences, the first token of each, and, if they are few, all as words."""
        if self.vocabulary and tokens <= MOST_DECODED:
            return _generated(tokens)
        length = self.length or min(tokens, LONGEST)
        batch = tokens if self.length else -(-tokens // length)
        whole = Stream(batch=batch, length=length)
        return {"tokens": whole, "sequences": whole, "pooled": Stream(batch=batch)}


@dataclass(frozen=True, kw_only=True)
class CrossAttention(Model):
    """A decoder's attention to what was encoded: keys and values of so many sequences.

    ``tokens`` are the sequences (sounds), each of ``length``.
    """

    hidden: int
    length: int
    key_bias: bool = False

    def parts(self) -> Iterator[Part]:
        """Yield the layers of keys and values."""
        yield Linear(name="key", inner=self.hidden, outer=self.hidden, bias=self.key_bias)
        yield Linear(name="value", inner=self.hidden, outer=self.hidden, bias=True)

    def streams(self, tokens: int) -> Streams:
        """Return what was encoded."""
        return {"tokens": Stream(batch=tokens, length=self.length)}


# --- diffusion --------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class UNetTransformer(Model):
    """The transformer blocks of Stable Diffusion's U-Net; ``tokens`` are images.

    Attributes:
        widths: channels by edge of the latent image at that depth, which has its square of tokens.
        context, context_length: width and length of the text.
        times: width of the embedded time, added to each residual block.
        added: width of what else conditions an image (size, crop, pooled text).
    """

    widths: tuple[tuple[int, int], ...]
    context: int
    context_length: int
    times: int
    added: int

    def parts(self) -> Iterator[Part]:
        """Yield the layers of a block at each depth, and those of the time."""
        for edge, width in self.widths:
            yield from self._block(f"at_{edge}x{edge}", str(edge), width)
        first, times = self.times // 4, self.times
        sizes = {"time_1": (first, times), "time_2": (times, times), "added": (self.added, times)}
        sizes |= {
            f"time_to_{width}": (times, width) for width in (first, *dict(self.widths).values())
        }
        for name, (inner, outer) in sizes.items():
            yield Linear(name=name, inner=inner, outer=outer, bias=True, stream="images")

    def _block(self, prefix: str, stream: str, width: int) -> Iterator[Part]:
        without = {"to_q": width, "to_k": width, "to_v": width, "cross_to_q": width}
        for name, outer in without.items():
            yield Linear(name=f"{prefix}_{name}", inner=width, outer=outer, stream=stream)
        for name in ("cross_to_k", "cross_to_v"):
            yield Linear(name=f"{prefix}_{name}", inner=self.context, outer=width, stream="text")
        biased = {
            "proj_in": (width, width),
            "to_out": (width, width),
            "cross_to_out": (width, width),
            "ff_proj": (width, 8 * width),
            "ff_out": (4 * width, width),
            "proj_out": (width, width),
        }
        for name, (inner, outer) in biased.items():
            yield Linear(
                name=f"{prefix}_{name}", inner=inner, outer=outer, bias=True, stream=stream
            )

    def streams(self, tokens: int) -> Streams:
        """Return latent images, their texts, and what there is once an image."""
        found = {
            str(edge): Stream(batch=tokens, length=edge * edge) for edge, _width in self.widths
        }
        text = Stream(batch=tokens, length=self.context_length)
        return found | {"text": text, "images": Stream(batch=tokens)}


@dataclass(frozen=True, kw_only=True)
class DiT(Model):
    """A diffusion transformer that conditions its norms; ``tokens`` are images.

    Attributes:
        hidden: width; MLPs are four times as wide.
        length: tokens of an image.
        text_length: tokens of its text, which has layers of its own in a double block (Flux);
            0: there is no text.
        text: width of the text before it is embedded.
        patch: values of a patch.
        times: width of the embedded time.
        pooled: width of the pooled text; 0: none.
    """

    hidden: int
    length: int
    patch: int
    times: int = 256
    text_length: int = 0
    text: int = 0
    pooled: int = 0

    def parts(self) -> Iterator[Part]:
        """Yield the layers of a block of each kind, and those around the blocks."""
        hidden = self.hidden
        yield from self._block("", "tokens")
        sizes = {"time_1": (self.times, hidden), "time_2": (hidden, hidden)}
        sizes["norm"] = (hidden, 6 * hidden)
        sizes["norm_out"] = (hidden, 2 * hidden)
        if self.text_length:
            yield from self._block("text_", "text")
            yield from self._single_block()
            sizes["single_norm"] = (hidden, 3 * hidden)
            yield _biased("embed_text", self.text, hidden, "text")
            yield _biased("embed_image", self.patch, hidden, "tokens")
        if self.pooled:
            sizes["pooled_1"] = (self.pooled, hidden)
        for name, (inner, outer) in sizes.items():
            yield _biased(name, inner, outer, "images")
        yield _biased("proj_out", hidden, self.patch, "tokens")

    def _block(self, prefix: str, stream: str) -> Iterator[Part]:
        for name in ("to_q", "to_k", "to_v", "to_out"):
            yield _biased(f"{prefix}{name}", self.hidden, self.hidden, stream)
        yield _biased(f"{prefix}ff_1", self.hidden, 4 * self.hidden, stream)
        yield _biased(f"{prefix}ff_2", 4 * self.hidden, self.hidden, stream)

    def _single_block(self) -> Iterator[Part]:
        for name in ("to_q", "to_k", "to_v"):
            yield _biased(f"single_{name}", self.hidden, self.hidden, "both")
        yield _biased("single_mlp", self.hidden, 4 * self.hidden, "both")
        yield _biased("single_out", 5 * self.hidden, self.hidden, "both")

    def streams(self, tokens: int) -> Streams:
        """Return images, their texts, both as one sequence, and what there is once an image."""
        return {
            "tokens": Stream(batch=tokens, length=self.length),
            "text": Stream(batch=tokens, length=self.text_length),
            "both": Stream(batch=tokens, length=self.length + self.text_length),
            "images": Stream(batch=tokens),
        }
