"""The files of problems of widely used models, and the models that they are collected from."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from build_tools.problems import __main__ as command
from build_tools.problems import collecting
from build_tools.problems import targets as target_module
from build_tools.problems.collecting import collected
from build_tools.problems.families import FAMILIES, targets
from inductor_tables import problems
from inductor_tables.errors import TargetError
from inductor_tables.keys import TensorKey
from inductor_tables.problems import Problem, problem_from_key

FILES = Path(command.__file__).parent
BF16 = "torch.bfloat16"


@cache
def family(name: str) -> tuple[Problem, ...]:
    """Return what a family's file holds."""
    return problems.read(FILES / f"{name}.json")


def of(name: str, origin: str) -> list[Problem]:
    """Return a family's problems that come from a layer."""
    return [problem for problem in family(name) if origin in problem.origins]


def with_rows(name: str, origin: str, rows: int) -> Problem:
    """Return the one of them whose first matrix has so many rows."""
    (found,) = (p for p in of(name, origin) if rows in {p.inputs[n].size[0] for n in (0, 1)})
    return found


# --- the files --------------------------------------------------------------------------


def test_every_family_has_a_file_and_no_other_file_is_left() -> None:
    """A family that goes takes its file with it."""
    assert {path.stem for path in FILES.glob("*.json")} == set(FAMILIES)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_file(name: str) -> None:
    """It is as it would be written, and has every model of the family and no other."""
    path = FILES / f"{name}.json"
    assert problems.render(family(name), path.name) == path.read_bytes()
    expected = {model.name for group in FAMILIES[name] for model in group.models}
    assert {model for problem in family(name) for model in problem.models} == expected


def test_there_are_many_models_and_not_too_much_data() -> None:
    """Variants (ranks, fused layers, fp8) are not models of their own."""
    names = {model.name.split()[0] for model in targets().values()}
    assert len(names) >= 25
    assert sum(path.stat().st_size for path in FILES.glob("*.json")) < 3_000_000


def test_the_most_shared_come_first_over_all_files() -> None:
    """Merged, what several models have stands before what one has."""
    merged = problems.merge(problem for name in FAMILIES for problem in family(name))
    shared = [len(problem.models) for problem in merged]
    assert shared == sorted(shared, reverse=True) and shared[0] >= 5
    rows = {p.inputs[0].size[0] for p in merged[:400] if p.op_name == "mm"}
    assert {1, 64, 128, 8192} <= rows


def _key(*tensors: tuple[Sequence[int], Sequence[int]], dtype: str = BF16) -> str:
    return "(" + ", ".join(f"({dtype}, {list(s)}, {list(t)})" for s, t in tensors) + ")"


KNOWN = {
    "decoders llama-3.1-8b:down_proj": _key(
        ([16, 14336], [14336, 1]), ([14336, 4096], [1, 14336])
    ) + "+mm",
    "decoders qwen2.5-7b:k_proj": _key(
        ([64, 512], [0, 1]), ([64, 3584], [3584, 1]), ([3584, 512], [1, 3584])
    ) + "+alpha=1&beta=1+addmm",
    "decoders gpt2:c_fc": _key(
        ([512, 3072], [0, 1]), ([512, 768], [768, 1]), ([768, 3072], [3072, 1])
    ) + "+alpha=1&beta=1+addmm",
    "decoders_sharded llama-3.1-70b tp8:down_proj": _key(
        ([1, 3584], [3584, 1]), ([3584, 8192], [1, 3584])
    ) + "+mm",
    "encoders bert-base:fc2": _key(
        ([128, 768], [0, 1]), ([128, 3072], [3072, 1]), ([3072, 768], [1, 3072])
    ) + "+alpha=1&beta=1+addmm",
    "encoders t5-base:attention": _key(
        ([12, 128, 64], [64, 768, 1]), ([12, 64, 128], [64, 1, 768])
    ) + "+bmm",
    "encoders_fp16 whisper-small:key": _key(
        ([1500, 768], [768, 1]), ([768, 768], [1, 768]), dtype="torch.float16"
    ) + "+mm",
    "vision vit-b-16:classifier": _key(
        ([8, 1000], [0, 1]), ([8, 768], [197 * 768, 1]), ([768, 1000], [1, 768])
    ) + "+alpha=1&beta=1+addmm",
    "diffusion_fp16 sdxl:at_64x64_cross_to_k": _key(
        ([154, 2048], [2048, 1]), ([2048, 640], [1, 2048]), dtype="torch.float16"
    ) + "+mm",
    "experts mixtral-8x7b tp2:expert.gate_proj": _key(
        ([32, 4096], [4096, 1]), ([4096, 7168], [1, 4096])
    ) + "+mm",
    "experts deepseek-v3:kv_a_proj": _key(
        ([2, 7168], [7168, 1]), ([7168, 576], [1, 7168])
    ) + "+mm",
    "state_space mamba2-1.3b:in_proj": _key(
        ([512, 2048], [2048, 1]), ([2048, 8512], [1, 2048])
    ) + "+mm",
    "training gpt2:c_fc": _key(  # the weight's gradient
        ([768, 2048], [1, 768]), ([2048, 3072], [3072, 1])
    ) + "+mm",
    "training llama-3.2-1b:up_proj": _key(  # the input's gradient
        ([2048, 8192], [8192, 1]), ([8192, 2048], [2048, 1])
    ) + "+mm",
}  # fmt: skip
"""Keys as real models have them (``tests/data/simulation``), by file and origin."""


@pytest.mark.parametrize("place", KNOWN)
def test_known_keys(place: str) -> None:
    """The layouts are those of the models: bias, weight order, first tokens, gradients."""
    name, origin = place.split(" ", 1)
    assert KNOWN[place] in {problem.key(None) for problem in of(name, origin)}


def _tensor(dtype: str, size: Sequence[int], stride: Sequence[int]) -> TensorKey:
    return TensorKey(dtype=dtype, size=tuple(size), stride=tuple(stride))


@pytest.mark.parametrize(
    ("kind", "scales"),
    [
        ("rowwise", (((16, 1), (1, 1)), ((1, 4096), (1, 1)))),
        ("tensorwise", (((), ()), ((), ()))),
    ],
)
def test_fp8(kind: str, scales: Sequence[tuple[Sequence[int], Sequence[int]]]) -> None:
    """Scaled products have a scale a row or one a tensor."""
    found = with_rows("fp8", f"llama-3.1-8b fp8 {kind}:down_proj", 16)
    assert found.op_name == "scaled_mm"
    assert found.inputs == (
        _tensor("float8_e4m3fn", (16, 14336), (14336, 1)),
        _tensor("float8_e4m3fn", (14336, 4096), (1, 14336)),
        *(_tensor("float32", size, stride) for size, stride in scales),
    )


def test_last_layers_only_at_decode() -> None:
    """Of a prefill only the last token becomes a word."""
    rows = sorted(p.inputs[0].size[0] for p in of("decoders", "llama-3.1-8b:lm_head"))
    assert rows == [1, 2, 4, 8, 16, 32, 64]
    rows = sorted(p.inputs[0].size[0] for p in of("decoders", "llama-3.1-8b:up_proj"))
    assert rows == [2**n for n in range(14)]


def test_what_is_not_divided_is_not_shared_among_ranks() -> None:
    """DeepSeek's products into latent vectors count as one model's."""
    origins = {origin for problem in family("experts") for origin in problem.origins}
    assert "deepseek-v3 tp8:q_b_proj" in origins and "deepseek-v3:q_a_proj" in origins
    assert "deepseek-v3 tp8:q_a_proj" not in origins


def test_half_precision_has_the_same_problems() -> None:
    """Types change nothing but themselves."""
    for name in ("vision", "diffusion"):
        halves = json.dumps([p.key(None) for p in family(f"{name}_fp16")])
        assert halves.replace("float16", "bfloat16") == json.dumps(
            [p.key(None) for p in family(name)]
        )


# --- collecting -------------------------------------------------------------------------


def test_a_model_is_collected_again() -> None:
    """Its products, gradients too, are those of the file."""
    found = {p.key(None): p.origins for p in collected("training", ["gpt2"])}
    expected = {
        problem.key(None): tuple(o for o in problem.origins if o.startswith("gpt2:"))
        for problem in family("training")
        if "gpt2" in problem.models
    }
    assert found == expected and len(found) > 20


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_collected_again(name: str) -> None:
    """The file is the same, byte for byte."""
    path = FILES / f"{name}.json"
    assert problems.render(collected(name), path.name) == path.read_bytes()


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It writes the files of the families that are named."""
    problem = problem_from_key(KNOWN["experts deepseek-v3:kv_a_proj"], origins=["deepseek-v3:a"])
    monkeypatch.setattr(command, "collected", lambda name: (problem,))
    result = CliRunner().invoke(command.main, ["experts", "fp8", "--out", str(tmp_path / "new")])
    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == [
        "experts: 1 problems of 1 models", "fp8: 1 problems of 1 models",
    ]  # fmt: skip
    for name in ("experts", "fp8"):
        assert problems.read(tmp_path / "new" / f"{name}.json") == (problem,)


def test_the_command_says_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that cannot be lowered is an error without a traceback."""
    monkeypatch.setattr(collecting, "run_fresh", lambda *_args, **_kw: {"error": "gpt2: no"})
    result = CliRunner().invoke(command.main, ["training", "--out", str(tmp_path)])
    assert result.exit_code == 1 and result.output == "Error: gpt2: no\n"
    with pytest.raises(TargetError, match="gpt2: no"):
        collected("training", ["gpt2"])


def test_names_of_targets() -> None:
    """Each model is a target of collect by its name; no two share one."""
    models = [m for groups in FAMILIES.values() for group in groups for m in group.models]
    assert {model.target: model for model in models} == targets()
    assert all(targets()[model.target] == model for model in models)
    assert target_module.llama_3_1_70b_tp8.name == "llama-3.1-70b tp8"
    assert "bert_base" in dir(target_module)
    with pytest.raises(AttributeError, match="there is no model 'llama'"):
        _ = target_module.llama
    assert all(re.fullmatch(r"\w+", target) for target in targets())


def test_parts_of_a_call() -> None:
    """A sharded model has its share of each layer and inputs to fit."""
    with torch.device("meta"):
        module, inputs = targets()["llama_3_1_70b_tp8"](16)
    sizes = {name: tuple(layer.weight.shape) for name, layer in module.named_children()}
    assert sizes["q_proj"] == (1024, 8192) and sizes["lm_head"] == (16032, 8192)
    assert [tuple(x.shape) for (x,) in inputs[:2]] == [(16, 1, 8192), (16, 1, 8192)]
