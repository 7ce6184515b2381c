"""What means precision or semantics comes from the running process, never from a table."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("triton")
import torch
from oracle import TMA, Graph, Lowered, entry_of, lower, stock, templates_used
from products import H200, SERIES, inputs, mm, triton_entry

import inductor_tables
from inductor_tables.simulation import CATALOGUE, Simulation

FP8 = torch.float8_e4m3fn
BLOCKWISE = {"aten::_scaled_mm", "triton::scaled_mm_device_tma_main_loop_scaling"}
SCALE_SHAPES = {
    "tensor": ((), ()),
    "row": ((256, 1), (1, 256)),
    "block": ((256, 4), (4, 2)),  # A by 1x128, B by 128x128
}


@contextlib.contextmanager
def tf32(allowed: bool) -> Iterator[None]:
    """Allow TF32 in matrix products or not."""
    matmul = torch.backends.cuda.matmul
    before, matmul.allow_tf32 = matmul.allow_tf32, allowed
    try:
        yield
    finally:
        matmul.allow_tf32 = before


def fp32_mm(allowed: bool, rows: int = 64) -> Graph:
    """A product of FP32 matrices, large enough for TF32."""
    return Graph(
        fn=mm,
        args=lambda sim: (sim.empty(rows, 1024), sim.empty(1024, 1024)),
        state=lambda: tf32(allowed),
    )


def scaled_mm(recipe: str, **kwargs: Any) -> Graph:
    """A product of FP8 matrices with TMA kernels on offer."""
    kwargs = {"out_dtype": torch.bfloat16, **kwargs}

    def args(sim: Simulation) -> tuple[torch.Tensor, ...]:
        a, b = (sim.empty(256, 512, dtype=FP8) for _ in range(2))
        scale_a, scale_b = (sim.empty(shape) for shape in SCALE_SHAPES[recipe])
        return a, b.t(), scale_a, scale_b

    return Graph(fn=lambda *given: torch._scaled_mm(*given, **kwargs), args=args, options=TMA)


def constants(lowered: Lowered) -> dict[str, str]:
    """The compile-time constants of the one kernel that was generated, as its source has them."""
    return dict(re.findall(r"^    (\w+) : tl\.constexpr = (.+)$", lowered.code, re.MULTILINE))


def with_table(graph: Graph, **params: Any) -> Lowered:
    """Compile a product with an entry that says ``params``; it must answer."""
    (key, *_) = stock(graph).keys
    inductor_tables.enable({key: [triton_entry(**params)]})
    found = lower(graph)
    assert inductor_tables.status().hits == 1, inductor_tables.status().dropped
    return found


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("allowed", [True, False])
def test_tf32_is_the_processs(recorded: bool, allowed: bool) -> None:
    """ALLOW_TF32 in the kernel is the setting of this process, whatever the entry says."""
    found = with_table(fp32_mm(allowed), ALLOW_TF32=recorded)
    assert constants(found)["ALLOW_TF32"] == str(allowed)


@pytest.mark.parametrize("allowed", [True, False])
def test_an_entry_recorded_under_the_other_tf32_setting_gives_stock_code(allowed: bool) -> None:
    """The key is the same under both; the code is what stock makes of the tile in this run."""
    used = templates_used(fp32_mm(not allowed), fp32_mm(allowed))
    assert used == {"aten::mm", "triton::mm"}


def test_tf32_follows_the_size_rule_of_the_host() -> None:
    """From 2.13 on the host does without TF32 below 16 rows; an entry does as the host does."""
    used = templates_used(fp32_mm(allowed=False, rows=8), fp32_mm(allowed=True, rows=8))
    assert used == {"aten::mm", "triton::mm"}


@pytest.mark.parametrize(
    ("name", "told", "expected"),
    [
        ("ACC_TYPE", "tl.float16", "tl.float32"),
        ("ACC_TYPE", "tl.float64", "tl.float32"),
        ("USE_FAST_ACCUM", True, "False"),
        ("EVEN_K", False, "True"),
        ("INDEX_DTYPE", "tl.int64", "tl.int32"),
        ("OUT_DTYPE", "tl.float16", "tl.bfloat16" if SERIES == (2, 12) else None),
        ("SCALE_RECIPE_A", 1, None),
        ("B_PROLOGUE_CAST_TYPE", "tl.float16", None),
        ("allow_tf32", True, None),
        ("input_precision", True, None),
    ],
)
def test_what_an_entry_says_of_semantics_is_not_used(
    name: str, told: Any, expected: str | None
) -> None:
    """Constants that are no tuning choice have the host's value; unknown ones do not appear."""
    found = with_table(Graph(fn=mm, args=inputs), **{name: told})
    assert constants(found).get(name) == expected
    assert found.op.chosen.params.get(name) != told


def test_facts_of_the_recording_device_and_graph_are_not_used() -> None:
    """A persistent TMA kernel has this device's SM count and this graph's majors."""
    graph = Graph(fn=mm, args=inputs, options=TMA)
    template = "triton::mm_persistent_tma"
    choice = next(c for c in stock(graph).op.offered if c.template_id == template)
    lying = {**entry_of(choice), "NUM_SMS": 7, "A_ROW_MAJOR": False, "TMA_SIZE": 64}
    fewer = dataclasses.replace(CATALOGUE[H200], multi_processor_count=100)
    inductor_tables.enable({stock(graph).keys[0]: [lying]})
    for device, sms in ((CATALOGUE[H200], "132"), (fewer, "100")):
        found = constants(lower(dataclasses.replace(graph, device=device)))
        assert (found["NUM_SMS"], found["A_ROW_MAJOR"], found["TMA_SIZE"]) == (sms, "True", "128")
    assert inductor_tables.status().hits == 2


@pytest.mark.parametrize("fast", [True, False])
def test_fast_accumulation_is_the_calls(fast: bool) -> None:
    """use_fast_accum is not in the key; the kernel has what the call says."""
    run, other = (
        scaled_mm("block", use_fast_accum=fast),
        scaled_mm("block", use_fast_accum=not fast),
    )
    used = templates_used(other, run)
    assert used and used >= BLOCKWISE  # 2.10 offers triton::mm as well
    for entry in stock(run).op.offered:
        said = entry.params.get("use_fast_accum", entry.params.get("USE_FAST_ACCUM"))
        assert said is fast


def test_output_type_of_a_scaled_product_is_the_calls() -> None:
    """out_dtype is not in the key; layout, accumulator and kernel have what the call says."""
    run = scaled_mm("block", out_dtype=torch.float32)
    used = templates_used(scaled_mm("block"), run)
    assert used and used >= BLOCKWISE


def test_scaling_recipe_is_the_graphs() -> None:
    """An entry that tells another recipe gets the one of the scales at hand."""
    graph = scaled_mm("tensor")
    template = "triton::scaled_mm_device_tma_epilogue_scaling"
    choice = next(c for c in stock(graph).op.offered if c.template_id == template)
    lying = {**entry_of(choice), "SCALE_RECIPE_A": 1, "SCALE_RECIPE_B": 5, "USE_FAST_ACCUM": True}
    inductor_tables.enable({stock(graph).keys[0]: [lying]})
    found = lower(graph)
    assert found.op.chosen.template_id == template
    told = ("SCALE_RECIPE_A", "SCALE_RECIPE_B", "USE_FAST_ACCUM")
    assert [found.op.chosen.params[name] for name in told] == [choice.params[name] for name in told]


def test_integer_products_accumulate_in_integers() -> None:
    """An entry with a floating-point accumulator does not change an int8 product."""
    graph = Graph(
        fn=torch._int_mm,
        args=lambda sim: (
            sim.empty(64, 128, dtype=torch.int8),
            sim.empty(128, 64, dtype=torch.int8),
        ),
    )
    found = with_table(graph, ACC_TYPE="tl.float16", BLOCK_M=64, BLOCK_K=64)
    assert constants(found)["ACC_TYPE"] == "tl.int32"


@pytest.mark.skipif(SERIES < (2, 12), reason="before 2.12 no Triton kernel is offered for it")
def test_output_type_of_a_batched_product_is_the_calls() -> None:
    """A bmm with out_dtype has the key of one without; the kernel stores what the call says."""

    def args(sim: Simulation) -> tuple[torch.Tensor, ...]:
        bf16 = torch.bfloat16
        return sim.empty(4, 64, 128, dtype=bf16), sim.empty(4, 128, 64, dtype=bf16)

    plain = Graph(fn=torch.bmm, args=args)
    wide = Graph(fn=lambda a, b: torch.bmm(a, b, out_dtype=torch.float32), args=args)
    assert templates_used(plain, wide) == {"triton::bmm"}
    choice = next(c for c in stock(plain).op.offered if c.template_id == "triton::bmm")
    inductor_tables.enable({stock(plain).keys[0]: [entry_of(choice)]})
    for graph, stored in ((plain, "bf16"), (wide, "fp32")):
        assert f"'out_ptr0': '*{stored}'" in lower(graph).code
