"""The simulated device's lookup keys against recorded ones."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from simulation_cases import CASES
from simulation_support import needs_simulation, reference

from inductor_tables import simulation

pytestmark = needs_simulation

_OPS = ("mm", "attention", "conv", "constant_pad")


@pytest.fixture(scope="module")
def sim() -> Iterator[simulation.Simulation]:
    """Yield one simulated H200 for all cases; the keys do not depend on the generated code."""
    with simulation.simulate("NVIDIA H200", codegen=False) as sim:
        yield sim


def _count_ops(graph: Any, counts: collections.Counter[str]) -> None:
    for node in graph.nodes:
        target = str(node.target)
        if node.op == "call_function" and "aten" in target and any(op in target for op in _OPS):
            counts[target] += 1


@pytest.mark.parametrize("case", CASES)
def test_keys_equal_the_reference(sim: simulation.Simulation, case: str) -> None:
    """Every case asks for the recorded keys, as often, in graphs with the recorded operations."""
    sim.clear()
    function, inputs = CASES[case](sim)
    ops: collections.Counter[str] = collections.Counter()
    with torch._inductor.config.patch(
        post_grad_custom_post_pass=lambda graph: _count_ops(graph, ops)
    ):
        sim.compile(function, *inputs, grad=case.endswith("_train"))
    keys = collections.Counter(f"{c.phase} {c.device_key}" for c in sim.calls if c.choices)
    assert {"keys": dict(keys), "ops": dict(ops)} == reference()[case]
