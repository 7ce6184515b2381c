"""What is collected into which file: models, token counts, types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final, TypeVar

from build_tools.problems import models
from build_tools.problems.architectures import Decoder, Model, ScaledDecoder, Sharded

DECODE: Final = (1, 2, 4, 8, 16, 32, 64)
PREFILL: Final = (128, 256, 512, 1024, 2048, 4096, 8192)
TEXTS: Final = (128, 512, 1024, 4096, 16384)
"""Tokens of encoders: 1, 8 or 32 sequences of 128 or 512."""

IMAGES: Final = (1, 8, 32)
RANKS: Final = (2, 4, 8)
"""Over how many ranks large models are spread, besides one."""

_M = TypeVar("_M", bound=Sharded)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Models that are collected alike, as by one call of ``inductor-tables collect``.

    Attributes:
        models: the targets.
        tokens: token counts, as each model takes them.
        dtype: the type of all floating-point tensors; None: the models say.
        backward: the gradients' products too.
    """

    models: Sequence[Model]
    tokens: Sequence[int]
    dtype: str | None = "bfloat16"
    backward: bool = False


def _spread(several: Iterable[_M]) -> list[_M]:
    return [model.shared_by(ranks) for model in several for ranks in RANKS]


def _named(several: Iterable[Model], *names: str) -> list[Model]:
    return [model for model in several if model.name in names]


def _scaled(model: Decoder, kind: str) -> ScaledDecoder:
    same = {field.name: getattr(model, field.name) for field in fields(model)}
    whole = model.besides
    same |= {
        "name": f"{model.name} fp8 {kind}",
        "besides": _scaled(whole, kind) if isinstance(whole, Decoder) else None,
    }
    return ScaledDecoder(**same, rowwise=kind == "rowwise")


_DENSE = (*models.LLAMA, *models.QWEN2, *models.QWEN3, *models.MISTRAL)
_LARGE = [m for m in _DENSE if m.name in {"llama-3.1-70b", "qwen2.5-32b", "qwen3-32b"}]
_SCALED = [
    *(m for m in _DENSE if m.name.endswith(("-7b", "-8b", "-14b", "-32b", "-70b"))),
    *_spread(m for m in models.LLAMA if m.name == "llama-3.1-70b"),
]
_STEPS = (*DECODE, *PREFILL)
_FUSED = [
    replace(m, name=f"{m.name} fused", fused=True, besides=m)
    for m in _DENSE
    if m.name in {"llama-3.2-1b", "llama-3.1-8b", "mistral-7b", "qwen2.5-7b", "qwen3-8b"}
]
_EXPERTS = (models.MIXTRAL_EXPERT, models.QWEN3_EXPERT, models.DEEPSEEK_EXPERT)
_VISION = (*models.VIT, *models.TIMM, *models.DINO, *models.CLIP, *models.SIGLIP)
_TEXT_TOWERS = (*models.CLIP_TEXT, *models.SIGLIP_TEXT)


def _encoders(dtype: str) -> tuple[Group, ...]:
    return (
        Group(models=(*models.BERT, *models.MODERN_BERT), tokens=TEXTS, dtype=dtype),
        Group(models=(*models.WHISPER, *models.WHISPER_CROSS), tokens=(1, 8), dtype=dtype),
        Group(models=models.WHISPER_DECODER, tokens=DECODE, dtype=dtype),
    )


FAMILIES: Final[Mapping[str, tuple[Group, ...]]] = {
    "decoders": (
        Group(models=(*models.LLAMA, *models.MISTRAL), tokens=_STEPS),
        Group(models=models.QWEN2, tokens=_STEPS),
        Group(models=models.QWEN3, tokens=_STEPS),
        Group(models=(*models.GEMMA, *models.PHI), tokens=_STEPS),
        Group(models=models.GPT, tokens=_STEPS),
    ),
    "decoders_sharded": tuple(Group(models=_spread([m]), tokens=_STEPS) for m in _LARGE),
    "decoders_fused": (Group(models=_FUSED, tokens=_STEPS),),
    "experts": (
        Group(models=(*models.MIXTURES, models.DEEPSEEK), tokens=_STEPS),
        Group(models=_spread([models.MIXTURES[0], models.DEEPSEEK]), tokens=_STEPS),
        Group(models=_EXPERTS, tokens=_STEPS[:-1]),
        Group(models=_spread([models.MIXTRAL_EXPERT]), tokens=_STEPS[:-1]),
    ),
    "state_space": (Group(models=models.MAMBA, tokens=_STEPS),),
    "encoders": (
        *_encoders("bfloat16"),
        Group(models=(models.T5,), tokens=(*DECODE, *TEXTS[:-1])),
    ),
    "encoders_fp16": _encoders("float16"),
    "vision": (Group(models=(*_VISION, *_TEXT_TOWERS), tokens=IMAGES),),
    "vision_fp16": (Group(models=(*_VISION, *_TEXT_TOWERS), tokens=IMAGES, dtype="float16"),),
    "diffusion": (Group(models=models.DIFFUSION, tokens=(1, 2, 4)),),
    "diffusion_fp16": (Group(models=models.DIFFUSION, tokens=(1, 2, 4), dtype="float16"),),
    "fp8": tuple(
        Group(models=[_scaled(m, kind) for m in _SCALED], tokens=_STEPS, dtype=None)
        for kind in ("rowwise", "tensorwise")
    ),
    "training": (
        Group(
            models=_named(
                (*_DENSE, *models.GPT, *models.BERT),
                "llama-3.2-1b", "qwen3-0.6b", "gpt2", "bert-base",
            ),
            tokens=(2048, 8192),
            backward=True,
        ),
        Group(models=_named(models.VIT, "vit-b-16"), tokens=(8, 32), backward=True),
    ),
}  # fmt: skip
"""By the name of the file, without ``.json``."""


def targets() -> dict[str, Model]:
    """Return every model by its name as a target."""
    return {m.target: m for groups in FAMILIES.values() for g in groups for m in g.models}
