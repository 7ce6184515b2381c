"""What coverage says of models in this process: outcomes, counts, origins and times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from coverage_models import (
    ATEN,
    BF16,
    H200,
    HIDDEN,
    OUT,
    WIDTH,
    Experts,
    meta,
    mm_key,
    needs_simulation,
    offered,
    stack,
    table_file,
    tokens,
)
from torch import nn

import inductor_tables
from inductor_tables.analysis.records import Coverage, Gemm
from inductor_tables.errors import InvalidTableError, SimulationError, TargetError
from inductor_tables.keys import parse_key
from inductor_tables.simulation import simulate, vendor

pytestmark = needs_simulation

SERIES = tuple(int(part) for part in torch.__version__.split(".")[:2])
BIASED = "addmm" if SERIES >= (2, 11) else "mm"
"""What a bf16 layer with a bias is lowered to."""

HEAD = mm_key(16, OUT, WIDTH)
"""The key of the last layer of a stack."""

DOWN = mm_key(16, WIDTH, HIDDEN)


def of(model: Any, *args: Any, **settings: Any) -> Coverage:
    """Return the coverage of a model on an H200."""
    return inductor_tables.coverage(model, args, device=H200, **settings)


def by_size(found: Coverage, n: int, k: int) -> Gemm:
    """Return the one GEMM with these sizes."""
    (gemm,) = (g for g in found.gemms if (g.n, g.k) == (n, k))
    return gemm


# --- outcomes ---------------------------------------------------------------------------


def test_hit_miss_and_drop(tmp_path: Path) -> None:
    """One table that holds a key, lacks one, and has one whose template has changed."""
    model, x = meta(stack), tokens()
    kinds = offered(model, x)
    triton = next(c for c in kinds[HEAD] if c.template_id == "triton::mm")
    up_key = [key for key in kinds if f"[{WIDTH}, {HIDDEN}], [1," in key][-1]
    stale = replace(triton, template_hash="ab" * 32)
    table = table_file(
        tmp_path / "gemm.msgpack",
        {HEAD: [(triton, 9_000), (ATEN, 12_000)], up_key: [(stale, 1_000)]},
    )
    found = of(model, x, tables=table)

    hit, dropped = by_size(found, OUT, WIDTH), by_size(found, HIDDEN, WIDTH)
    assert (hit.outcome, hit.template_id, hit.table) == ("hit", "triton::mm", str(table))
    assert (hit.time_us, hit.estimated_us, hit.count) == (9.0, 9.0, 1)
    assert hit.margin == pytest.approx(12 / 9 - 1)
    assert [other["template_id"] for other in hit.alternatives] == ["aten::mm"]
    assert hit.params["BLOCK_M"] == dict(triton.params)["BLOCK_M"]
    assert hit.advice is None and hit.nearest == ()

    assert (dropped.outcome, dropped.count, dropped.table) == ("dropped", 2, str(table))
    (reason,) = dropped.dropped
    assert "recorded abababababab, installed " in reason
    assert dropped.template_id is None and dropped.time_us is None
    assert dropped.advice == "record it with this torch: no entry of the table can be used"

    missed = by_size(found, WIDTH, HIDDEN)
    assert (missed.outcome, missed.template_id, missed.table) == ("miss", None, None)
    assert missed.nearest and missed.advice
    assert [found.count(kind) for kind in ("hit", "miss", "dropped")] == [1, 1, 1]
    assert found.tables[0] == str(table)


def test_shares_are_of_recorded_times_else_of_the_roofline(tmp_path: Path) -> None:
    """The covered share counts hits at their recorded times, the rest at the roofline's."""
    model, x = meta(stack), tokens()
    table = table_file(tmp_path / "gemm.msgpack", {HEAD: [(ATEN, 5_000)]})
    found = of(model, x, tables=table)
    others = sum(g.roofline_us * g.count for g in found.gemms if g.key != HEAD)
    assert found.total_us == pytest.approx(5 + others)
    assert found.covered == pytest.approx(5 / (5 + others))
    assert sum(map(found.share, found.gemms)) == pytest.approx(1)
    shares = list(map(found.share, found.gemms))
    assert shares == sorted(shares, reverse=True)


def test_best_recorded_time_counts_whatever_the_order(tmp_path: Path) -> None:
    """Several entries are autotuned among; the fastest recorded one stands for them."""
    x = tokens()
    model = meta(lambda: nn.Linear(WIDTH, OUT, bias=False))
    triton = [c for c in offered(model, x)[HEAD] if c.template_id == "triton::mm"][:2]
    table = table_file(
        tmp_path / "gemm.msgpack",
        {HEAD: [(ATEN, 8_000), (triton[0], 7_000), (triton[1], None)]},
    )
    (gemm,) = of(model, x, tables=table).gemms
    assert (gemm.template_id, gemm.time_us) == ("triton::mm", 7.0)
    assert gemm.margin == pytest.approx(8 / 7 - 1)
    assert [other["time_us"] for other in gemm.alternatives] == [8.0, None]


def test_tables_as_a_dict() -> None:
    """Tables may be what ``enable`` takes; entries without times are costed by the roofline."""
    found = of(meta(stack), tokens(), tables={HEAD: [{"template_id": "aten::mm"}]})
    gemm = by_size(found, OUT, WIDTH)
    assert (gemm.outcome, gemm.time_us, gemm.margin) == ("hit", None, None)
    assert gemm.estimated_us == gemm.roofline_us > 0


def test_products_inside_a_choice_are_not_the_models() -> None:
    """What a decomposed product is lowered to is not reported besides it."""
    key = f"{H200}+((torch.bfloat16, [32, 16384], [16384, 1]), "
    key += "(torch.bfloat16, [16384, 32], [32, 1]))+mm"
    a, b = (torch.empty(*size, dtype=BF16, device="meta") for size in ((32, 16384), (16384, 32)))
    entry = {"template_id": "decompose_k", "k_split": 16}
    (gemm,) = of(lambda a, b: a @ b, a, b, tables={key: [entry]}).gemms
    assert (gemm.outcome, gemm.template_id, gemm.params) == ("hit", "decompose_k", {"k_split": 16})


# --- what is counted, and where it comes from -------------------------------------------


def test_each_gemm_once_with_its_count_and_origins() -> None:
    """A key comes once for all layers that have it; an addmm's several look-ups are one GEMM."""
    found = of(meta(lambda: stack(3)), tokens(), name="mlp")
    assert {(g.op_name, g.n, g.k): g.count for g in found.gemms} == {
        (BIASED, HIDDEN, WIDTH): 3,
        ("mm", WIDTH, HIDDEN): 3,
        ("mm", OUT, WIDTH): 1,
    }
    assert by_size(found, HIDDEN, WIDTH).origins == ("0.up", "1.up", "2.up")
    assert by_size(found, OUT, WIDTH).origins == ("3",)
    assert {g.targets for g in found.gemms} == {("mlp",)} and found.targets == ("mlp",)
    assert {g.phase for g in found.gemms} == {"inference"}


def test_sizes_and_costs() -> None:
    """Sizes are those of the key, a batch too."""
    (gemm,) = of(meta(Experts), tokens()).gemms
    assert (gemm.op_name, gemm.batch, gemm.m, gemm.n, gemm.k) == ("bmm", 4, 16, HIDDEN, WIDTH)
    assert gemm.flops == 2 * 4 * 16 * HIDDEN * WIDTH
    assert gemm.dtype == "bfloat16"
    assert parse_key(gemm.key).device == H200


def test_encoder_layer() -> None:
    """A layer of torch's own has its four products, and attention none."""
    build = lambda: nn.TransformerEncoderLayer(WIDTH, 4, HIDDEN, batch_first=True)  # noqa: E731
    x = torch.empty(2, 8, WIDTH, dtype=BF16, device="meta")
    found = of(meta(build), x)
    assert sum(g.count for g in found.gemms) == 4
    assert {o for g in found.gemms for o in g.origins} == {"self_attn", "linear1", "linear2"}


def test_training_step() -> None:
    """A backward graph has two products a layer, which come from the forward's modules."""
    model = meta(stack)
    found = of(lambda x: model(x).float().sum(), tokens(), backward=True)
    counts = dict.fromkeys(("forward", "backward"), 0)
    for gemm in found.gemms:
        counts[gemm.phase] += gemm.count
    assert counts == {"forward": 5, "backward": 9}  # the input needs no gradient
    backward = [g for g in found.gemms if g.phase == "backward"]
    assert all("unknown" not in g.origins for g in backward if g.op_name == "mm")
    assert found.notes == ()


def test_backward_of_nothing() -> None:
    """A model without parameters that require gradients says why there is no backward graph."""
    model = meta(stack).requires_grad_(False)
    found = of(model, tokens(), backward=True)
    assert {g.phase for g in found.gemms} == {"inference"}
    assert "there is no backward graph" in found.notes[0]


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_keys_hold_the_sizes_of_the_call(dynamic: bool | None) -> None:
    """With dynamic sizes a key holds the sizes that are seen first."""
    found = of(meta(stack), tokens(24), dynamic=dynamic)
    assert {g.m for g in found.gemms} == {24}


def test_dtype() -> None:
    """Floating-point tensors get the type that is asked for, the model keeps its own."""
    model = nn.Linear(WIDTH, OUT, bias=False)
    (gemm,) = of(model, torch.empty(16, WIDTH), dtype=BF16).gemms
    assert gemm.key == HEAD
    assert model.weight.dtype is torch.float32


@pytest.mark.parametrize("device", [H200, "NVIDIA A100-SXM4-80GB"])
def test_device(device: str) -> None:
    """Keys, peaks and tables are those of the device."""
    found = inductor_tables.coverage(meta(stack), tokens(), device=device)
    assert found.device == device
    assert {parse_key(g.key).device for g in found.gemms} == {device}
    assert found.peak_gb_s > 1000 and found.peak_tflops["bfloat16"] > 100


def test_inputs_by_name_and_alone() -> None:
    """A model may get keyword arguments; an argument that is no tuple stands for itself."""
    model = meta(lambda: nn.Linear(WIDTH, OUT, bias=False))
    x = tokens()
    named = inductor_tables.coverage(model, kwargs={"input": x}, device=H200)
    alone = inductor_tables.coverage(model, x, device=H200)
    assert [g.key for g in named.gemms] == [g.key for g in alone.gemms] == [HEAD]


def test_without_gemms() -> None:
    """A model without products is covered, which is noted."""
    found = of(meta(nn.ReLU), tokens())
    assert (found.gemms, found.covered, found.notes) == ((), 1.0, ("no GEMM was lowered",))


def test_convolutions_are_named() -> None:
    """What gets a kernel without a look-up is no GEMM of the tables, but is said."""
    x = torch.empty(1, 8, 32, 32, dtype=BF16, device="meta")
    found = of(meta(lambda: nn.Conv2d(8, 16, 3)), x)
    assert any("1 x convolution" in note for note in found.notes)


def test_padding_is_named() -> None:
    """Where a stopwatch would decide on other sizes, the result says so."""
    x = torch.empty(2048, 4097, dtype=BF16, device="meta")
    found = of(meta(lambda: nn.Linear(4097, 4097, bias=False)), x)
    assert any("pad_mm" in note and "not padded" in note for note in found.notes)


def test_other_forms_of_a_result() -> None:
    """A result is a text, and JSON that holds all of it."""
    found = of(meta(stack), tokens(), tables={HEAD: [{"template_id": "aten::mm"}]})
    import json

    assert Coverage.from_dict(json.loads(found.to_json())) == found
    text = str(found)
    assert text.startswith("3 GEMMs, 5 in all, on NVIDIA H200") and HEAD in text
    assert "    aten::mm of tables[0]" in text and "    near: " in text


# --- what it leaves ---------------------------------------------------------------------


def test_the_model_stays_as_it_is() -> None:
    """Weights, their device and memory, tied weights and the grad mode are untouched."""
    model = stack(1)
    model[0].down.weight = nn.Parameter(model[0].up.weight.T)
    before = {name: (p, p.data_ptr(), p.device) for name, p in model.named_parameters()}
    of(model, torch.empty(16, WIDTH), dtype=BF16, backward=True)
    after = {name: (p, p.data_ptr(), p.device) for name, p in model.named_parameters()}
    assert all(after[name][0] is p and after[name] == (p, *rest)
               for name, (p, *rest) in before.items())  # fmt: skip
    assert torch.is_grad_enabled()
    assert model(torch.zeros(2, WIDTH)).shape == (2, OUT)


def test_what_is_enabled_stays_enabled_and_counts_nothing() -> None:
    """Tables that are enabled are those asked, and neither counts nor state change."""
    with inductor_tables.enable({HEAD: [{"template_id": "aten::mm"}]}):
        found = of(meta(stack), tokens())
        assert by_size(found, OUT, WIDTH).outcome == "hit"
        status = inductor_tables.status()
        assert (status.hits, status.misses) == (0, 0)
        other = of(meta(stack), tokens(), tables={DOWN: [{"template_id": "aten::mm"}]})
        assert by_size(other, OUT, WIDTH).outcome == "miss"
        assert inductor_tables.is_enabled()
    assert not inductor_tables.is_enabled()
    of(meta(stack), tokens())
    assert not inductor_tables.is_enabled()


def test_settings_of_the_process_do_not_matter() -> None:
    """Tables are asked although look-ups are switched off; nothing is recorded."""
    with inductor_tables.config.patch(active=False, recording_active=True, record_misses=True):
        found = of(meta(stack), tokens(), tables={HEAD: [{"template_id": "aten::mm"}]})
        assert inductor_tables.config.active is False
    assert by_size(found, OUT, WIDTH).outcome == "hit"


def test_every_op_that_is_looked_up_is_told() -> None:
    """No product that asks for choices is missing from the result."""
    model, x = meta(lambda: nn.Sequential(stack(), nn.Linear(OUT, 8))), tokens()
    with simulate(H200, codegen=False) as sim:
        sim.compile(sim.module(model), sim.fake(x), grad=True)
        asked = sum(1 for op in sim.ops if op.calls and op.depth == 0)
    assert sum(g.count for g in of(model, x, backward=True).gemms) == asked > 10


# --- errors -----------------------------------------------------------------------------


def _by_value(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.sum().item() > 0 else x


def _raises(x: torch.Tensor) -> torch.Tensor:
    raise LookupError("no such expert")


def _on_two_devices(x: torch.Tensor) -> torch.Tensor:
    return x @ torch.empty(WIDTH, WIDTH, dtype=BF16, device="meta")


@pytest.mark.parametrize(
    ("function", "match"),
    [
        (_by_value, r"_by_value: lowering it raised \w+(.|\n)*depends on values of tensors"),
        (_raises, r"_raises: lowering it raised \w+: (.|\n)*no such expert"),
        (_on_two_devices, r"_on_two_devices: lowering it raised"),
    ],
)
def test_a_model_that_cannot_be_lowered(function: Callable[..., Any], match: str) -> None:
    """The error names the model and what it raised; a later call works."""
    with pytest.raises(TargetError, match=match):
        of(function, tokens())
    assert of(meta(stack), tokens()).gemms
    assert not inductor_tables.is_enabled()


def test_a_real_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a GPU is visible, the error points to the command line."""

    def refuse() -> None:
        raise SimulationError("1 real GPU(s) visible to this process")

    monkeypatch.setattr(vendor, "refuse_real_gpu", refuse)
    with pytest.raises(SimulationError, match=r"1 real GPU.* inductor-tables coverage, does that"):
        of(meta(stack), tokens())


def test_unknown_device() -> None:
    """An unknown device is an error that names the known ones."""
    with pytest.raises(SimulationError, match=r"no device 'NVIDIA H20'.*known: 'NVIDIA H200'"):
        inductor_tables.coverage(meta(stack), tokens(), device="NVIDIA H20")


def test_tables_that_cannot_be_used(tmp_path: Path) -> None:
    """A table that is named and cannot be used is an error, not a column of misses."""
    damaged = tmp_path / "gemm.msgpack"
    damaged.write_bytes(b"not a table")
    with pytest.raises(InvalidTableError, match=r"gemm\.msgpack"):
        of(meta(stack), tokens(), tables=damaged)
    with pytest.raises(FileNotFoundError, match=r"missing\.msgpack"):
        of(meta(stack), tokens(), tables=[tmp_path / "missing.msgpack"])


def test_a_table_of_another_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table for another torch is an error too."""
    from inductor_tables import host

    table = table_file(tmp_path / "gemm.msgpack", {HEAD: [(ATEN, 5_000)]})
    monkeypatch.setattr(host, "installed_series", lambda: "2.99")
    with pytest.raises(InvalidTableError, match=r"it is for torch 2\.\d+, this is torch 2.99"):
        of(meta(stack), tokens(), tables=table)


def test_a_fused_addition_is_the_products() -> None:
    """A product that is fused with a residual, forward or backward, keeps its own module."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp = stack(1)[0]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.mlp(x)

    model = meta(lambda: nn.Sequential(Residual(), Residual()))
    found = of(model, tokens(), backward=SERIES >= (2, 11))
    assert {o for g in found.gemms for o in g.origins} == {
        "0.mlp.up", "0.mlp.down", "1.mlp.up", "1.mlp.down",
    }  # fmt: skip


def test_the_model_itself_is_named_by_its_class() -> None:
    """A product of a library's module that has no path has the class's name."""
    (gemm,) = of(meta(lambda: nn.Linear(WIDTH, OUT, bias=False)), tokens()).gemms
    assert gemm.origins == ("Linear",)
