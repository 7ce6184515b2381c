"""Models of Hugging Face transformers by their ``config.json``, as calls that can be lowered.

Only the configuration is read: no weights, no tokenizer, no network, and no code that a repository
brings along.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from inductor_tables.analysis.targets import Case, Options, dtype_of
from inductor_tables.errors import TargetError

MOST_DECODED: Final = 64
"""Up to this many tokens are a decode step of as many sequences; more are one sequence's prefill.

The linear layers of both multiply the same matrices; what differs is around attention.
"""

_GENERATED: Final = (1, 512)
_ENCODED: Final = (512,)
_SEEN: Final = (1,)
"""Token counts of decoders and encoders, images or sounds of the rest, unless others are asked for.
"""

_TOKEN_LABELS: Final = ("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForConditionalGeneration")
_CLASS_LABELS: Final = ("ForSequenceClassification", "ForImageClassification")


def configured_cases(path: Path, target: str, options: Options) -> list[Case]:
    """Return a call of a configured model for each token count.

    The model is that of ``architectures`` in the configuration, else the one without a head, in
    the configuration's type unless another is asked for.

    =====================  ==============================================================
    model                  inputs for a count of n
    =====================  ==============================================================
    causal language model  n <= 64: ``input_ids`` [n, 1], a decode step of n sequences; else
                           [1, n], a prefill; no cache (``use_cache=False``)
    text encoder           ``input_ids`` [1, n]; one image too where there is a vision part
    encoder-decoder        ``input_ids`` and ``decoder_input_ids`` [1, n]
    vision                 ``pixel_values`` of n images
    speech (Whisper)       ``input_features`` of n sounds, as many ``decoder_input_ids``
    =====================  ==============================================================

    With a backward graph, models of language and for classification get ``labels`` and are in
    training mode; the others have all of their outputs differentiated.

    Raises:
        TargetError: transformers is not installed, does not know the model, or its inputs are
            none of these.
    """
    transformers = _transformers(target)
    config = _config(transformers, path, target)
    dtype = dtype_of(options.dtype) or _dtype(config)
    try:
        with _default_dtype(dtype), torch.device("meta"):
            model = _model(transformers, config, dtype)
    except Exception as error:
        raise TargetError(
            f"{target}: transformers {transformers.__version__} cannot build the model on the "
            f"meta device ({type(error).__name__}: {error})"
        ) from error
    model.train(options.backward)
    made = []
    for call in _calls(model, target, options.tokens, dtype):
        kwargs = {**call.inputs, **(_labels(model, call) if options.backward else {})}
        if "use_cache" in _parameters(model):
            kwargs["use_cache"] = False
        made.append(Case(name=f"{target} {call.name}", model=model, kwargs=kwargs))
    return made


def _transformers(target: str) -> Any:
    try:
        import transformers
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise TargetError(
            f"{target}: a Hugging Face configuration needs transformers, which is not installed: "
            "pip install transformers"
        ) from error
    return transformers


def _config(transformers: Any, path: Path, target: str) -> Any:
    try:
        config = transformers.AutoConfig.from_pretrained(str(path), trust_remote_code=False)
    except Exception as error:
        raise TargetError(
            f"{target}: transformers {transformers.__version__} cannot read the configuration "
            f"({type(error).__name__}: {error})"
        ) from error
    if getattr(config, "quantization_config", None):
        raise TargetError(
            f"{target}: the configuration is of a quantized model, whose products depend on the "
            "library that quantizes; write a function that builds it, and name it as "
            "'package.module:callable'"
        )
    return config


def _dtype(config: Any) -> torch.dtype:
    """Return the type of the weights; transformers 4 calls it ``torch_dtype``."""
    for part in (config, config.get_text_config()):
        for name in ("dtype", "torch_dtype"):
            found = getattr(part, name, None)
            if isinstance(found, torch.dtype):
                return found
            if isinstance(found, str):
                return dtype_of(found) or torch.float32
    return torch.float32


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _model(transformers: Any, config: Any, dtype: torch.dtype) -> Any:
    for name in getattr(config, "architectures", None) or ():
        kind = getattr(transformers, name, None)
        if isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel):
            return kind(config)
    return transformers.AutoModel.from_config(config, dtype=dtype)


def _parameters(model: Any) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(model.forward).parameters


# --- inputs -----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Call:
    """One call: its name, its inputs, the token ids among them that labels look like."""

    name: str
    inputs: Mapping[str, torch.Tensor]
    ids: torch.Tensor | None = None
    batch: int = 1


def _calls(model: Any, target: str, tokens: tuple[int, ...], dtype: torch.dtype) -> list[_Call]:
    main = getattr(model, "main_input_name", "input_ids")
    if main == "input_ids":
        return _text_calls(model, target, tokens, dtype)
    if main == "pixel_values":
        return [_images(model, target, n, dtype) for n in tokens or _SEEN]
    if main == "input_features" and model.config.is_encoder_decoder:
        return [_sounds(model, target, n, dtype) for n in tokens or _SEEN]
    raise TargetError(
        f"{target}: {type(model).__name__} takes {main!r}, of which a configuration does not say "
        "the sizes; write a function that returns the model and its inputs, and name it as "
        "'package.module:callable'"
    )


def _ids(*size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.int64, device="meta")


def _text_calls(
    model: Any, target: str, tokens: tuple[int, ...], dtype: torch.dtype
) -> list[_Call]:
    longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if model.config.is_encoder_decoder:
        return [_translated(n) for n in tokens or _capped(_ENCODED, longest)]
    if model.can_generate():
        return [_generated(n) for n in tokens or _capped(_GENERATED, longest)]
    calls = [_encoded(n) for n in tokens or _capped(_ENCODED, longest)]
    if not hasattr(model.config, "vision_config"):
        return calls
    images = _images(model, target, 1, dtype).inputs  # a model of both, as CLIP
    return [replace(call, inputs={**call.inputs, **images}) for call in calls]


def _capped(counts: tuple[int, ...], longest: int | None) -> tuple[int, ...]:
    return tuple(min(n, longest) if longest else n for n in counts)


def _translated(n: int) -> _Call:
    ids = _ids(1, n)
    inputs = {"input_ids": ids, "decoder_input_ids": _ids(1, n)}
    return _Call(name=f"tokens={n}", inputs=inputs, ids=ids)


def _generated(n: int) -> _Call:
    if n <= MOST_DECODED:
        ids = _ids(n, 1)
        return _Call(name=f"decode batch={n}", inputs={"input_ids": ids}, ids=ids, batch=n)
    ids = _ids(1, n)
    return _Call(name=f"prefill tokens={n}", inputs={"input_ids": ids}, ids=ids)


def _encoded(n: int) -> _Call:
    ids = _ids(1, n)
    return _Call(name=f"tokens={n}", inputs={"input_ids": ids}, ids=ids)


def _images(model: Any, target: str, n: int, dtype: torch.dtype) -> _Call:
    config = getattr(model.config, "vision_config", model.config)
    size = getattr(config, "image_size", None)
    if isinstance(size, Mapping):
        size = (size.get("height"), size.get("width"))
    height, width = size if isinstance(size, list | tuple) else (size, size)
    if not isinstance(height, int) or not isinstance(width, int):
        raise TargetError(
            f"{target}: the configuration has no image_size; write a function that returns the "
            "model and its inputs, and name it as 'package.module:callable'"
        )
    channels = getattr(config, "num_channels", 3)
    pixels = torch.empty(n, channels, height, width, dtype=dtype, device="meta")
    return _Call(name=f"images={n}", inputs={"pixel_values": pixels}, batch=n)


def _sounds(model: Any, target: str, n: int, dtype: torch.dtype) -> _Call:
    bins, positions = (
        getattr(model.config, name, None) for name in ("num_mel_bins", "max_source_positions")
    )
    if bins is None or positions is None:
        raise TargetError(
            f"{target}: the configuration does not say how long a sound is; write a function that "
            "returns the model and its inputs, and name it as 'package.module:callable'"
        )
    # Two convolutions, of which one halves, come before the positions (Whisper).
    features = torch.empty(n, bins, 2 * positions, dtype=dtype, device="meta")
    ids = _ids(n, 1)
    inputs = {"input_features": features, "decoder_input_ids": ids}
    return _Call(name=f"sounds={n}", inputs=inputs, ids=ids, batch=n)


def _labels(model: Any, call: _Call) -> dict[str, torch.Tensor]:
    name = type(model).__name__
    if "labels" not in _parameters(model):
        return {}
    if name.endswith(_TOKEN_LABELS) and call.ids is not None:
        return {"labels": torch.empty_like(call.ids)}
    return {"labels": _ids(call.batch)} if name.endswith(_CLASS_LABELS) else {}
