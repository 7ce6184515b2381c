"""Sizes of widely used models, as their published configurations have them.

The source of the numbers of each group is the ``config.json`` (for Stable Diffusion XL and Flux
that of the U-Net or transformer) which its makers publish with the weights, under the names that
stand below each group.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from build_tools.problems.architectures import (
    GPT2,
    CrossAttention,
    Decoder,
    DiT,
    Encoder,
    Experts,
    LatentAttention,
    Mamba2,
    UNetTransformer,
)


def _decoder(
    name: str,
    hidden: int,
    heads: tuple[int, int, int],
    intermediate: int,
    vocabulary: int,
    **others: Any,
) -> Decoder:
    """Return a decoder; ``heads`` are those of queries, of keys and values, and their size."""
    queries, keys, head = heads
    return Decoder(
        name=name, hidden=hidden, heads=queries, kv_heads=keys, head=head,
        intermediate=intermediate, vocabulary=vocabulary, **others,
    )  # fmt: skip


LLAMA: Final = (
    _decoder("llama-3.2-1b", 2048, (32, 8, 64), 8192, 128256),
    _decoder("llama-3.2-3b", 3072, (24, 8, 128), 8192, 128256),
    _decoder("llama-3.1-8b", 4096, (32, 8, 128), 14336, 128256),
    _decoder("llama-3.1-70b", 8192, (64, 8, 128), 28672, 128256),
)
"""meta-llama/Llama-3.2-1B, 3.2-3B, 3.1-8B, 3.1-70B."""

QWEN2: Final = (
    _decoder("qwen2.5-0.5b", 896, (14, 2, 64), 4864, 151936, qkv_bias=True),
    _decoder("qwen2.5-1.5b", 1536, (12, 2, 128), 8960, 151936, qkv_bias=True),
    _decoder("qwen2.5-7b", 3584, (28, 4, 128), 18944, 152064, qkv_bias=True),
    _decoder("qwen2.5-32b", 5120, (40, 8, 128), 27648, 152064, qkv_bias=True),
)
"""Qwen/Qwen2.5-0.5B, 1.5B, 7B, 32B."""

QWEN3: Final = (
    _decoder("qwen3-0.6b", 1024, (16, 8, 128), 3072, 151936),
    _decoder("qwen3-1.7b", 2048, (16, 8, 128), 6144, 151936),
    _decoder("qwen3-4b", 2560, (32, 8, 128), 9728, 151936),
    _decoder("qwen3-8b", 4096, (32, 8, 128), 12288, 151936),
    _decoder("qwen3-14b", 5120, (40, 8, 128), 17408, 151936),
    _decoder("qwen3-32b", 5120, (64, 8, 128), 25600, 151936),
)
"""Qwen/Qwen3-0.6B to 32B: heads of 128 whatever the width."""

MISTRAL: Final = (_decoder("mistral-7b", 4096, (32, 8, 128), 14336, 32768),)
"""mistralai/Mistral-7B-v0.3."""

GEMMA: Final = (
    _decoder("gemma-2-2b", 2304, (8, 4, 256), 9216, 256000),
    _decoder("gemma-2-9b", 3584, (16, 8, 256), 14336, 256000),
    _decoder("gemma-3-1b", 1152, (4, 1, 256), 6912, 262144),
    _decoder("gemma-3-4b", 2560, (8, 4, 256), 10240, 262208),
    _decoder("gemma-3-12b", 3840, (16, 8, 256), 15360, 262208),
)
"""google/gemma-2-2b, 2-9b, 3-1b-pt; the language models of 3-4b-pt and 3-12b-pt."""

PHI: Final = (
    _decoder("phi-3-mini", 3072, (32, 32, 96), 8192, 32064, fused=True),
    _decoder("phi-4", 5120, (40, 10, 128), 17920, 100352, fused=True),
)
"""microsoft/Phi-3-mini-4k-instruct, phi-4."""

GPT: Final = (GPT2(name="gpt2", hidden=768, vocabulary=50257),)
"""openai-community/gpt2."""

MIXTURES: Final = (
    _decoder("mixtral-8x7b", 4096, (32, 8, 128), 0, 32000, mlp=False),
    _decoder("qwen3-30b-a3b", 2048, (32, 4, 128), 0, 151936, mlp=False),
)
"""mistralai/Mixtral-8x7B-v0.1 and Qwen/Qwen3-30B-A3B without their experts."""

DEEPSEEK: Final = LatentAttention(
    name="deepseek-v3", hidden=7168, q_rank=1536, kv_rank=512, heads=128, nope=128, rope=64,
    value=128, intermediate=18432, vocabulary=129280,
)  # fmt: skip
"""deepseek-ai/DeepSeek-V3."""

MIXTRAL_EXPERT: Final = Experts(
    name="mixtral-8x7b", part="expert", hidden=4096, intermediate=14336, experts=8
)
QWEN3_EXPERT: Final = Experts(
    name="qwen3-30b-a3b", part="expert", hidden=2048, intermediate=768, experts=128
)
DEEPSEEK_EXPERT: Final = Experts(
    name="deepseek-v3", part="expert", hidden=7168, intermediate=2048, experts=0
)

MAMBA: Final = (
    Mamba2(name="mamba2-130m", hidden=768, vocabulary=50288),
    Mamba2(name="mamba2-780m", hidden=1536, vocabulary=50288),
    Mamba2(name="mamba2-1.3b", hidden=2048, vocabulary=50288),
    Mamba2(name="mamba2-2.7b", hidden=2560, vocabulary=50288),
)
"""state-spaces/mamba2-130m to 2.7b; 50277 words, padded to a multiple of 16."""

BERT: Final = (
    Encoder(name="minilm-l6", hidden=384, intermediate=1536, pooled=(("pooler", 384),)),
    Encoder(name="bert-base", hidden=768, intermediate=3072, pooled=(("pooler", 768),)),
    Encoder(name="bert-large", hidden=1024, intermediate=4096, pooled=(("pooler", 1024),)),
    Encoder(name="roberta-base", hidden=768, intermediate=3072, pooled=(("dense", 768),)),
)
"""sentence-transformers/all-MiniLM-L6-v2, google-bert/bert-base-uncased and
bert-large-uncased, FacebookAI/roberta-base."""

MODERN_BERT: Final = (
    Encoder(name="modernbert-base", hidden=768, intermediate=1152, fused=True, bias=False,
            gated=True),
    Encoder(name="modernbert-large", hidden=1024, intermediate=2624, fused=True, bias=False,
            gated=True),
)  # fmt: skip
"""answerdotai/ModernBERT-base and large."""

T5: Final = Encoder(
    name="t5-base", hidden=768, intermediate=3072, bias=False, heads=12, vocabulary=32128
)
"""google-t5/t5-base; the layers of its decoder have the same sizes."""

WHISPER: Final = (
    Encoder(name="whisper-small", hidden=768, intermediate=3072, key_bias=False, length=1500),
    Encoder(name="whisper-large-v3", hidden=1280, intermediate=5120, key_bias=False, length=1500),
)
WHISPER_DECODER: Final = (
    Encoder(
        name="whisper-small", part="decoder", hidden=768, intermediate=3072, key_bias=False,
        vocabulary=51865,
    ),
    Encoder(
        name="whisper-large-v3", part="decoder", hidden=1280, intermediate=5120, key_bias=False,
        vocabulary=51866,
    ),
)  # fmt: skip
WHISPER_CROSS: Final = (
    CrossAttention(name="whisper-small", part="cross", hidden=768, length=1500),
    CrossAttention(name="whisper-large-v3", part="cross", hidden=1280, length=1500),
)
"""openai/whisper-small and whisper-large-v3, over 30 s of sound."""


def _vit(name: str, hidden: int, length: int, **others: Any) -> Encoder:
    return Encoder(name=name, hidden=hidden, intermediate=4 * hidden, length=length, **others)


_CLASSES = (("classifier", 1000),)

VIT: Final = (
    _vit("vit-b-16", 768, 197, pooled=_CLASSES),
    _vit("vit-l-16", 1024, 197, pooled=_CLASSES),
    _vit("vit-h-14", 1280, 257, pooled=(("pooler", 1280),)),
)
"""google/vit-base-patch16-224, vit-large-patch16-224, vit-huge-patch14-224-in21k: 224 x 224
pixels, one token for each patch and one for the class."""

TIMM: Final = tuple(
    replace(model, name=f"{model.name} timm", fused=True, besides=model) for model in VIT[:2]
)
"""timm/vit_base_patch16_224 and vit_large_patch16_224, with one product for queries, keys and
values."""

DINO: Final = (_vit("dinov2-b", 768, 257), _vit("dinov2-l", 1024, 257))
"""facebook/dinov2-base and dinov2-large, at 224 x 224 pixels."""

CLIP: Final = (
    _vit("clip-b-32", 768, 50, projected=512),
    _vit("clip-l-14", 1024, 257, projected=768),
)
CLIP_TEXT: Final = (
    _vit("clip-b-32", 512, 77, part="text", projected=512),
    _vit("clip-l-14", 768, 77, part="text", projected=768),
)
"""openai/clip-vit-base-patch32 and clip-vit-large-patch14."""

SIGLIP: Final = (
    _vit("siglip-base", 768, 196),
    Encoder(name="siglip-so400m", hidden=1152, intermediate=4304, length=729),
)
SIGLIP_TEXT: Final = (
    _vit("siglip-base", 768, 64, part="text", pooled=(("head", 768),)),
    Encoder(
        name="siglip-so400m", part="text", hidden=1152, intermediate=4304, length=64,
        pooled=(("head", 1152),),
    ),
)  # fmt: skip
"""google/siglip-base-patch16-224 and siglip-so400m-patch14-384."""

DIFFUSION: Final = (
    UNetTransformer(
        name="sdxl", widths=((64, 640), (32, 1280)), context=2048, context_length=77, times=1280,
        added=2816,
    ),
    DiT(name="flux", hidden=3072, length=4096, patch=64, text_length=512, text=4096, pooled=768),
    DiT(name="dit-xl-2", hidden=1152, length=256, patch=32),
)  # fmt: skip
"""stabilityai/stable-diffusion-xl-base-1.0 and black-forest-labs/FLUX.1-dev at 1024 x 1024
pixels, facebook/DiT-XL-2-256."""
