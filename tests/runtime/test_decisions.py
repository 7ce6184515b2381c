"""What is said of every op: to listeners, in status(), in the log, the counters and the trace."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from products import ADDMM_EXPANDED, MM_16, MM_17, lower, lower_addmm, triton_entry
from products import mm as product

import inductor_tables
from inductor_tables import config, host
from inductor_tables.decisions import Decision, decisions_to
from inductor_tables.dumps import make_row, render_dump
from inductor_tables.schema import Proof
from inductor_tables.simulation import simulate

BROKEN = {**triton_entry(), "template_hash": "0" * 64}


class Model(torch.nn.Module):  # type: ignore[misc]
    """Two linear layers, the second in a list, and a product outside of all modules."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(4096, 1024, bias=False)
        self.rest = torch.nn.ModuleList([torch.nn.Linear(1024, 512, bias=False)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (rows, 4096) to (rows, rows)."""
        y = self.rest[0](torch.relu(self.up(x)))
        return y @ y.T


def decisions_of_model(**options: Any) -> list[Decision]:
    """Lower the model on the simulated H200 and return what was decided."""
    found: list[Decision] = []
    with simulate("NVIDIA H200") as sim, decisions_to(found.append):
        model = sim.module(Model, torch.bfloat16)
        x = sim.empty(16, 4096, dtype=torch.bfloat16)
        if options.get("grad"):
            x.requires_grad_()
        sim.compile(model, x, **options)
    return found


UP = (
    "NVIDIA H200+((torch.bfloat16, [16, 4096], [4096, 1]), "
    "(torch.bfloat16, [4096, 1024], [1, 4096]))+mm"
)


def test_each_op_is_decided_once_and_says_where_it_comes_from() -> None:
    """Hit, dropped and miss, with the module's path or else the line."""
    down = UP.replace("4096", "1024").replace("[1024, 1024], [1,", "[1024, 512], [1,")
    inductor_tables.enable({UP: [triton_entry()], down: [BROKEN]})
    up, rest, product_of_all = decisions_of_model()
    assert (up.outcome, up.key, str(up.origin)) == ("hit", UP, "up")
    assert [entry.config.template_id for entry in up.entries] == ["triton::mm"]
    assert (rest.outcome, rest.table_key, str(rest.origin)) == ("dropped", down, "rest.0")
    assert "recorded 000000000000, installed" in rest.dropped[0].reason
    assert (product_of_all.outcome, product_of_all.table) == ("miss", None)
    assert product_of_all.origin.module is None
    assert "test_decisions.py:" in str(product_of_all.origin)


def test_ops_of_a_backward_graph_come_from_their_forward_modules() -> None:
    """The two gradients of a layer name the layer."""
    inductor_tables.enable({})
    found = [str(decision.origin) for decision in decisions_of_model(grad=True)]
    assert found.count("up") == 3  # forward, and the gradients of weight and input
    assert found.count("rest.0") == 3


def test_an_addmm_that_asks_several_times_is_decided_once() -> None:
    """Whatever keys it asks under, the one that hit is named."""
    inductor_tables.enable({ADDMM_EXPANDED: [triton_entry()]})
    found: list[Decision] = []
    with decisions_to(found.append):
        lower_addmm()
    assert [(d.outcome, d.table_key) for d in found if d.outcome == "hit"]
    assert len(found) == 1


def test_ops_within_a_choice_do_not_hide_the_op() -> None:
    """decompose_k lowers a batched product of its own; the op is still decided once."""
    found: list[Decision] = []

    def last(choices: Any) -> Any:
        return choices[-1]  # a decompose_k, whose graph is then lowered

    inductor_tables.enable({})
    with simulate("NVIDIA H200", pick=last) as sim, decisions_to(found.append):
        a, b = (sim.empty(*size, dtype=torch.bfloat16) for size in ((32, 32768), (32768, 32)))
        sim.compile(product, a, b)
        outermost = [op.calls[-1].device_key or "" for op in sim.ops if op.depth == 0 and op.calls]
        assert any(op.depth for op in sim.ops), "nothing is nested: the test tests nothing"
    assert [decision.key for decision in found].count(outermost[0]) == 1


def test_status_tells_the_decisions_of_every_key() -> None:
    """Verbose only; with counts, and for a miss what comes near."""
    inductor_tables.enable({MM_16: [triton_entry()]})
    lower(product)
    lower(product)
    lower(product, rows=17)
    assert inductor_tables.status().gemms == []
    status = inductor_tables.status(verbose=True)
    hit, miss = status.gemms
    assert (hit["key"], hit["outcome"], hit["count"]) == (MM_16, "hit", 2)
    assert (miss["key"], miss["outcome"], miss["count"]) == (MM_17, "miss", 1)
    assert "16" in miss["nearest"][0]
    text = str(status)
    assert f"hit x2: {MM_16}" in text
    assert f"miss x1: {MM_17}" in text
    assert miss["advice"] in text


def test_status_tells_the_margin_of_a_tuned_entry(tmp_path: Path) -> None:
    """Also where the user gives the tuner's dump as it is."""
    proof = Proof(spread_ns=50, aten_ns=10_000, host_ns=8_000, rounds=24)
    row = make_row(MM_16, triton_entry(), time_ns=6_000, rank=0, proof=proof)
    path = tmp_path / "tuned.json"
    path.write_bytes(render_dump([row], {}))
    inductor_tables.enable(str(path))
    lower(product)
    status = inductor_tables.status(verbose=True)
    assert status.gemms[0]["entries"][0]["margin"] == 0.25
    assert "recorded at 6.0 us, margin 25.0%" in str(status)


def test_a_dropped_entry_is_counted_and_told() -> None:
    """By its reason, under the key of its table."""
    inductor_tables.enable({MM_16: [BROKEN]})
    lower(product)
    status = inductor_tables.status(verbose=True)
    (reason,) = status.dropped
    assert reason in status.gemms[0]["dropped"]
    assert "record it with this torch" in status.gemms[0]["advice"]
    assert status.last_dropped == [MM_16]
    assert f"dropped {reason}" in str(status)


def test_the_log_says_it_once_a_key(caplog: pytest.LogCaptureFixture) -> None:
    """Misses and drops at info, hits at debug."""
    caplog.set_level(logging.DEBUG, "inductor_tables")
    inductor_tables.enable({MM_16: [triton_entry()]})
    for rows in (16, 16, 17, 17):
        lower(product, rows=rows)
    told = [(r.levelname, r.getMessage()) for r in caplog.records if " x1: " in r.getMessage()]
    assert [level for level, _ in told] == ["DEBUG", "INFO"]
    assert MM_17 in told[1][1]
    assert "near: " in told[1][1]


def test_the_log_looks_for_near_keys_at_debug_level_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The first search of a large table takes seconds, which a compile is not to pay at info."""
    caplog.set_level(logging.INFO, "inductor_tables")
    inductor_tables.enable({MM_16: [triton_entry()]})
    lower(product, rows=17)
    (told,) = [r.getMessage() for r in caplog.records if " x1: " in r.getMessage()]
    assert told.startswith(f"miss x1: {MM_17} (in ")
    assert "near: " not in told


def test_counters_count_the_outcomes() -> None:
    """In the host's own counters, which a cached graph restores."""
    from torch._dynamo.utils import counters

    inductor_tables.enable({MM_16: [triton_entry()]})
    counters.clear()
    lower(product)
    lower(product, rows=17)
    found = {n: c for n, c in counters["inductor"].items() if n.startswith("inductor_tables")}
    assert found == {"inductor_tables_hit": 1, "inductor_tables_miss": 1}


def test_each_graph_has_an_artifact_in_the_structured_trace() -> None:
    """One a graph, so that tlparse shows it there, with every op of the graph."""
    inductor_tables.enable({UP: [triton_entry()]})
    traced: list[Any] = []

    def trace(name: str, payload: Any) -> None:
        traced.append((name, payload()))

    with mock.patch.object(host, "trace", trace):
        decided = decisions_of_model(grad=True)
    assert {name for name, _ in traced} == {"inductor_tables"}
    assert len(traced) == 2  # forward and backward
    assert [g for _, graph in traced for g in graph] == [d.as_dict() for d in decided]


def test_a_trace_that_fails_does_not_end_the_compile() -> None:
    """It is a problem that status() shows."""
    inductor_tables.enable({UP: [triton_entry()]})
    with mock.patch.object(host, "trace", side_effect=TypeError("no JSON")):
        assert decisions_of_model()
    (problem,) = inductor_tables.status().problems
    assert "the structured trace could not be written (TypeError: no JSON)" in problem


def test_the_artifact_is_json_of_the_host(caplog: pytest.LogCaptureFixture) -> None:
    """It passes through the host's own tracing under the name that tlparse shows."""
    caplog.set_level(logging.DEBUG, "torch.__trace")
    host.trace("inductor_tables", lambda: [{"outcome": "hit"}])
    metadata = [getattr(record, "metadata", {}) for record in caplog.records]
    (artifact,) = [found["artifact"] for found in metadata if "artifact" in found]
    assert artifact == {"name": "inductor_tables", "encoding": "json"}


def test_nothing_is_decided_where_tables_are_off() -> None:
    """Neither disabled nor under active=False."""
    assert decisions_of_model() == []
    inductor_tables.enable({UP: [triton_entry()]})
    with config.patch(active=False):
        assert decisions_of_model() == []


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("L['self'].layers.0.up", "layers.0.up"),
        ("L['self'].layers[0].up", "layers.0.up"),
        ("L['self']._modules['layers']._modules['0'].up", "layers.0.up"),
        ("L['model'].blocks['a b']", "blocks.a b"),
        ("G['model'].up", "model.up"),
        ("L['self']", None),
    ],
)
def test_module_paths_are_those_of_named_modules(text: str, path: str | None) -> None:
    """What Dynamo writes becomes what ``named_modules`` calls it."""
    assert host._module_path(text) == path
