"""Look-ups inside the host's real lowering, on a simulated H200."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from products import (
    ADDMM_EXPANDED,
    ADDMM_FLAT,
    MM_16,
    MM_17,
    SERIES,
    Plain,
    agnostic,
    inputs,
    lower,
    lower_addmm,
    mm,
    triton_entry,
)

import inductor_tables
from inductor_tables import config
from inductor_tables.simulation import OpLowering, simulate


def test_hit_takes_the_one_choice_without_autotuning() -> None:
    """One entry: one choice, its parameters, no autotuning."""
    inductor_tables.enable({MM_16: [triton_entry(BLOCK_N=32)]})
    (op,) = lower(mm)
    assert not op.benchmarked
    assert (op.chosen.template_id, op.chosen.params["BLOCK_N"]) == ("triton::mm", 32)
    assert inductor_tables.status().last_hits == [MM_16]


def test_several_entries_are_autotuned_among() -> None:
    """Two entries: those two are offered and nothing else."""
    inductor_tables.enable({MM_16: [triton_entry(BLOCK_N=32), {"template_id": "aten::mm"}]})
    (op,) = lower(mm)
    assert op.benchmarked
    assert {choice.template_id for choice in op.offered} == {"triton::mm", "aten::mm"}


def test_miss_is_stock_behaviour() -> None:
    """A key that the table lacks is lowered as without a table."""
    (stock,) = lower(mm, rows=17)
    inductor_tables.enable({MM_16: [triton_entry()]})
    (op,) = lower(mm, rows=17)
    assert _offered(op) == _offered(stock)
    assert inductor_tables.status().last_misses == [MM_17]


def test_generated_code_of_a_miss_is_stock_code() -> None:
    """Bit for bit: the code of a miss is the code without a table."""

    def code() -> list[str]:
        with simulate("NVIDIA H200") as sim:
            sim.compile(mm, *inputs(sim, rows=17))
            # The first line counts the graphs of the process.
            return [text.partition("\n")[2] for text in sim.codes]

    stock = code()
    inductor_tables.enable({MM_16: [triton_entry()]})
    assert code() == stock


ONE_ROW = MM_16.replace("[16, 4096]", "[1, 4096]")
COMPUTED_ROW = ONE_ROW.replace("[4096, 1])", "[0, 1])", 1)


def _one_row(table: Any, *, computed: bool) -> tuple[OpLowering, list[str]]:
    """Lower a product of one row, an input or one that Inductor computes as in a decode step."""
    shape = (1, 1, 4096) if computed else (1, 4096)

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (torch.relu(x) if computed else x) @ w

    with simulate("NVIDIA H200") as sim, inductor_tables.enable(table):
        _, weight = inputs(sim)
        sim.compile(fn, sim.empty(*shape, dtype=torch.bfloat16), weight)
        (op,), (code,) = sim.ops, sim.codes
        assert inductor_tables.status().last_hits == [COMPUTED_ROW if computed else ONE_ROW]
    lines = code.splitlines()[1:]  # the first counts the graphs of the process
    return op, [line for line in lines if not line.startswith("# kernel path")]


@pytest.mark.parametrize(("recorded", "asked"), [(ONE_ROW, COMPUTED_ROW), (COMPUTED_ROW, ONE_ROW)])
def test_the_stride_of_a_single_row_does_not_matter(recorded: str, asked: str) -> None:
    """An entry of one spelling serves the other, to the code that an exact entry gives."""
    entries, computed = [triton_entry(BLOCK_N=32)], asked == COMPUTED_ROW
    _, exact = _one_row({asked: entries}, computed=computed)
    op, code = _one_row({recorded: entries}, computed=computed)
    assert op.chosen.params["BLOCK_N"] == 32 and not op.benchmarked
    assert "BLOCK_N : tl.constexpr = 32" in "".join(code)
    assert code == exact


def test_the_key_as_it_is_goes_before_other_spellings() -> None:
    """In each table; an earlier table goes before a later one however it spells the key."""
    other, exact = [triton_entry(BLOCK_N=32)], [triton_entry(BLOCK_N=128)]
    op, _ = _one_row({ONE_ROW: other, COMPUTED_ROW: exact}, computed=True)
    assert op.chosen.params["BLOCK_N"] == 128
    op, _ = _one_row([{ONE_ROW: other}, {COMPUTED_ROW: exact}], computed=True)
    assert op.chosen.params["BLOCK_N"] == 32


def test_the_stride_of_two_rows_matters() -> None:
    """Rows that are one row of memory are not two rows."""
    rows = MM_16.replace("[16, 4096]", "[2, 4096]")
    inductor_tables.enable({rows: [triton_entry()]})
    (op,) = lower(lambda x, w: x.expand(2, 4096) @ w, rows=1)
    assert op.benchmarked
    assert inductor_tables.status().last_misses == [rows.replace("[4096, 1])", "[0, 1])", 1)]


def test_agnostic_key_serves_after_the_device_key() -> None:
    """Both variants of the key are asked, the device's first."""
    inductor_tables.enable({agnostic(MM_16): [triton_entry(BLOCK_N=32)]})
    assert lower(mm)[0].chosen.params["BLOCK_N"] == 32
    inductor_tables.enable(
        {agnostic(MM_16): [triton_entry(BLOCK_N=32)], MM_16: [triton_entry(BLOCK_N=128)]}
    )
    assert lower(mm)[0].chosen.params["BLOCK_N"] == 128


def test_earlier_tables_go_first() -> None:
    """In a list, the first table that has the key answers."""
    inductor_tables.enable([{MM_16: [triton_entry(BLOCK_N=32)]}, {MM_16: [triton_entry()]}])
    assert lower(mm)[0].chosen.params["BLOCK_N"] == 32


def test_the_hosts_own_table_goes_first() -> None:
    """What the user set in torch's config is asked before ours."""
    import torch._inductor.config as inductor

    inductor_tables.enable({MM_16: [triton_entry(BLOCK_N=32)]})
    table: Plain = {MM_16: [{"template_id": "aten::mm"}]}
    with inductor.patch({"lookup_table.table": table}):
        (op,) = lower(mm)
    assert op.chosen.template_id == "aten::mm"
    assert not op.benchmarked


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (
            lambda: triton_entry(template_hash="0" * 64),
            "triton::mm: the template has changed: recorded 000",
        ),
        (lambda: triton_entry(template_id="triton::other"), "triton::other: not offered here"),
        (lambda: triton_entry(kpack=2), "triton::mm: the template takes no kpack here"),
        (lambda: triton_entry(BLOCK_K=24), "triton::mm: BLOCK_K=24 is not a value"),
        (lambda: triton_entry(num_warps=None), "triton::mm: num_warps=None is not a value"),
        (lambda: triton_entry(GROUP_M=0), "triton::mm: GROUP_M=0 is not a value"),
        (lambda: triton_entry(BLOCK_K=8), "triton::mm: BLOCK_K=8 is less than 16"),
        (
            lambda: {k: v for k, v in triton_entry().items() if k != "BLOCK_M"},
            "triton::mm: the entry lacks BLOCK_M",
        ),
    ],
)
def test_entries_that_cannot_run_are_dropped(
    entry: Callable[[], dict[str, Any]], reason: str
) -> None:
    """An entry that does not fit is dropped with its reason; the op is lowered as stock."""
    (stock,) = lower(mm)
    inductor_tables.enable({MM_16: [entry()]})
    (op,) = lower(mm)
    assert _offered(op) == _offered(stock)
    status = inductor_tables.status()
    assert any(found.startswith(reason) for found in status.dropped), status.dropped
    assert (status.hits, status.misses) == (0, 1)


def test_hash_check_can_be_switched_off() -> None:
    """config.check_src_hash=False keeps entries of another template text."""
    inductor_tables.enable({MM_16: [triton_entry(template_hash="0" * 64)]})
    with config.patch(check_src_hash=False):
        assert not lower(mm)[0].benchmarked


def test_inactive_table_is_not_asked() -> None:
    """config.active=False: enabled, but nothing is looked up or counted."""
    inductor_tables.enable({MM_16: [triton_entry()]})
    with config.patch(active=False):
        assert lower(mm)[0].benchmarked
    assert inductor_tables.status().misses == 0


def test_even_k_is_derived_from_the_graph() -> None:
    """A dynamic K: the recorded EVEN_K is no promise, whatever the hint."""
    import torch

    inductor_tables.enable({MM_16: [triton_entry(EVEN_K=True)]})
    with simulate("NVIDIA H200") as sim:
        x = sim.empty(16, 4096, dtype=torch.bfloat16)
        w = sim.empty(4096, 1024, dtype=torch.bfloat16)
        torch._dynamo.mark_dynamic(x, 1)
        torch._dynamo.mark_dynamic(w, 0)
        sim.compile(mm, x, w)
        (op,) = sim.ops
    assert op.chosen.template_id == "triton::mm"
    assert op.chosen.params["EVEN_K"] is False


@pytest.mark.skipif(SERIES < (2, 11), reason="2.10 unfuses a bf16 addmm")
@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({ADDMM_EXPANDED: "triton"}, "triton::mm"),
        ({ADDMM_FLAT: "aten"}, "aten::addmm"),
    ],
)
def test_one_choice_means_no_autotuning_per_op(table: dict[str, str], expected: str) -> None:
    """One addmm asks under two keys; an answer to one of them is the op's answer."""
    if SERIES < (2, 12) and ADDMM_FLAT in table:
        pytest.skip("before 2.12 an addmm asks under one key")
    entries = {"triton": triton_entry(), "aten": {"template_id": "aten::addmm"}}
    inductor_tables.enable({key: [entries[which]] for key, which in table.items()})
    op = lower_addmm()
    assert not op.benchmarked
    assert op.chosen.template_id == expected
    status = inductor_tables.status()
    assert (status.hits, status.misses) == (1, 0)


@pytest.mark.skipif(SERIES < (2, 12), reason="before 2.12 an addmm asks under one key")
def test_answers_under_both_keys_are_autotuned_among() -> None:
    """Entries under both keys of an addmm are all offered."""
    inductor_tables.enable(
        {ADDMM_FLAT: [{"template_id": "aten::addmm"}], ADDMM_EXPANDED: [triton_entry()]}
    )
    op = lower_addmm()
    assert [choice.template_id for choice in op.offered] == ["aten::addmm", "triton::mm"]


def test_default_mode_says_why_an_entry_is_not_used() -> None:
    """Without max_autotune_gemm the template is not in use, and status() says so."""
    inductor_tables.enable({MM_16: [triton_entry()]})
    (op,) = lower(mm, options={"max_autotune_gemm": False})
    assert op.chosen.template_id == "aten::mm"
    (reason,) = inductor_tables.status().dropped
    assert "max_autotune_gemm" in reason


def test_an_entry_that_cannot_be_rendered_leaves_the_stock_choices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A template that refuses the entry's parameters: the stock choices, no failure."""
    from torch._inductor.kernel.mm import mm_template

    generate = type(mm_template).generate

    def refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("GROUP_M") == 7:
            raise ValueError("no such tile")
        return generate(self, *args, **kwargs)

    inductor_tables.enable({MM_16: [triton_entry(GROUP_M=7)]})
    monkeypatch.setattr(type(mm_template), "generate", refuse)
    (op,) = lower(mm)
    assert op.benchmarked
    assert "no such tile" in inductor_tables.status().problems[0]


def test_an_error_in_a_look_up_never_ends_the_compile(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever goes wrong in our code: stock choices and one warning."""
    from inductor_tables import handler

    def broken(*_: object) -> None:
        raise RuntimeError("broken for the test")

    inductor_tables.enable({MM_16: [triton_entry()]})
    monkeypatch.setattr(handler, "_matches", broken)
    assert lower(mm)[0].benchmarked
    assert lower(mm)[0].benchmarked
    warned = [r for r in caplog.records if "broken for the test" in r.getMessage()]
    assert len(warned) == 1


@pytest.mark.parametrize(("rows", "used"), [(1, 0), (2, 1), (16, 1)])
def test_tma_is_not_used_for_a_vector(rows: int, used: int) -> None:
    """The kernel is wrong for one row."""
    template_id = "triton::mm_persistent_tma"
    given = {**triton_entry(BLOCK_M=64), "template_id": template_id, "template_hash": None}
    inductor_tables.enable({MM_16.replace("[16,", f"[{rows},"): [given]})
    lower(mm, rows=rows, options={"triton.enable_persistent_tma_matmul": True})
    status = inductor_tables.status()
    assert status.hits == used
    reason = f"{template_id}: M, N and K are not all larger than 1 for certain, which TMA needs"
    assert status.dropped == ({} if used else {reason: 1})


def test_status_text_dict_and_json() -> None:
    """The three forms of status() agree."""
    import json

    inductor_tables.enable({MM_16: [triton_entry()]})
    lower(mm)
    status = inductor_tables.status()
    assert json.loads(status.to_json()) == json.loads(json.dumps(status.as_dict()))
    assert "1 hits, 0 misses" in str(status)
    table = status.devices["NVIDIA H200"][0]
    assert (table.level, table.keys) == ("overlay", 1)


def _offered(op: OpLowering) -> list[tuple[str | None, str]]:
    return [(choice.template_id, repr(choice.params)) for choice in op.offered]
