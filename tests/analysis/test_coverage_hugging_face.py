"""Models of transformers by their configuration: which inputs they get, and that they lower."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from coverage_models import H200, needs_simulation

from inductor_tables.analysis.survey import survey
from inductor_tables.analysis.targets import Options, load
from inductor_tables.errors import TargetError

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 512,
}
LLAMA = {
    **SMALL,
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_key_value_heads": 2,
    "dtype": "bfloat16",
}
BERT = {**SMALL, "model_type": "bert", "architectures": ["BertForMaskedLM"]}
VIT = {
    **SMALL,
    "model_type": "vit",
    "architectures": ["ViTForImageClassification"],
    "image_size": 32,
    "patch_size": 8,
}
T5 = {
    "model_type": "t5",
    "architectures": ["T5ForConditionalGeneration"],
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 128,
    "num_layers": 1,
    "num_heads": 4,
    "vocab_size": 512,
}


def written(folder: Path, **config: Any) -> str:
    """Write a configuration and return its path."""
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return str(path)


def test_without_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where transformers is missing, the error says how to get it."""
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.delitem(sys.modules, "inductor_tables.analysis.hugging_face", raising=False)
    with pytest.raises(TargetError, match=r"config\.json: .* pip install transformers"):
        load(written(tmp_path, **LLAMA), Options())


@pytest.fixture(scope="module", autouse=False)
def transformers() -> Any:
    """The library, without which these tests are skipped."""
    return pytest.importorskip("transformers")


@pytest.mark.parametrize(
    ("config", "tokens", "expected"),
    [
        (LLAMA, (), {"decode batch=1": (1, 1), "prefill tokens=512": (1, 512)}),
        (LLAMA, (16, 65), {"decode batch=16": (16, 1), "prefill tokens=65": (1, 65)}),
        (BERT, (), {"tokens=512": (1, 512)}),
        ({**BERT, "max_position_embeddings": 128}, (), {"tokens=128": (1, 128)}),
        (VIT, (), {"images=1": (1, 3, 32, 32)}),
        (VIT, (4,), {"images=4": (4, 3, 32, 32)}),
        (T5, (32,), {"tokens=32": (1, 32)}),
    ],
)
def test_inputs(
    transformers: Any,
    tmp_path: Path,
    config: dict[str, Any],
    tokens: tuple[int, ...],
    expected: dict[str, tuple[int, ...]],
) -> None:
    """Inputs are those of the kind of model, on the meta device, as its weights are."""
    target = written(tmp_path, **config)
    cases = load(target, Options(tokens=tokens))
    inputs = {
        case.name.removeprefix(f"{target} "): next(iter(case.kwargs.values())) for case in cases
    }
    assert {name: tuple(x.shape) for name, x in inputs.items()} == expected
    model: Any = cases[0].model
    held = [*inputs.values(), *model.parameters()]
    assert {t.device.type for t in held} == {"meta"}
    assert not model.training


def test_types(transformers: Any, tmp_path: Path) -> None:
    """The type is that of the configuration, else what is asked for."""

    def dtype(config: dict[str, Any], asked: str | None) -> torch.dtype:
        model: Any = load(written(tmp_path, **config), Options(tokens=(1,), dtype=asked))[0].model
        (found,) = {p.dtype for p in model.parameters()}
        assert isinstance(found, torch.dtype)
        return found

    assert dtype(LLAMA, None) is torch.bfloat16
    assert dtype(LLAMA, "float16") is torch.float16
    assert dtype(BERT, None) is torch.float32
    assert torch.get_default_dtype() is torch.float32


def test_folder_of_a_model(transformers: Any, tmp_path: Path) -> None:
    """The folder of a configuration stands for it."""
    written(tmp_path, **LLAMA)
    assert load(str(tmp_path), Options(tokens=(1,)))[0].name == f"{tmp_path} decode batch=1"


@pytest.mark.parametrize(
    ("config", "match"),
    [
        ({"model_type": "no_such_model"}, "cannot read the configuration"),
        ({**LLAMA, "quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantized model"),
        ({"model_type": "wav2vec2"}, "takes 'input_values', of which .* 'package.module:callable'"),
    ],
)
def test_configurations_that_do_not_say_enough(
    transformers: Any, tmp_path: Path, config: dict[str, Any], match: str
) -> None:
    """What cannot be built or called from a configuration alone is named."""
    with pytest.raises(TargetError, match=match):
        load(written(tmp_path, **config), Options())


@needs_simulation
@pytest.mark.parametrize(
    ("config", "layers", "rest"),
    [
        (LLAMA, 7, {"lm_head"}),
        (BERT, 6, {"cls.predictions.transform.dense", "cls.predictions.decoder"}),
        (VIT, 6, {"classifier"}),
    ],
)
def test_lowering(
    transformers: Any, tmp_path: Path, config: dict[str, Any], layers: int, rest: set[str]
) -> None:
    """Each layer has its products, and what is outside of the layers comes once."""
    found = survey(load(written(tmp_path, **config), Options(tokens=(96,))), device=H200)
    inside = {o for g in found.gemms for o in g.origins if ".1." in o}
    assert len(inside) == layers
    outside = {o.removeprefix("0.") for g in found.gemms for o in g.origins if ".layer" not in o}
    assert outside == rest


@needs_simulation
def test_training(transformers: Any, tmp_path: Path) -> None:
    """With a backward graph a model gets labels, so that its loss is in the graph."""
    cases = load(written(tmp_path, **LLAMA), Options(tokens=(96,), backward=True))
    assert set(cases[0].kwargs) == {"input_ids", "labels", "use_cache"}
    found = survey(cases, device=H200, backward=True)
    counts = {p: sum(g.count for g in found.gemms if g.phase == p) for p in ("forward", "backward")}
    assert counts == {"forward": 15, "backward": 30}
