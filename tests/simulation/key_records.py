"""What one compile asked for, as plain data: the same code for a real and a simulated device."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from real_cases import Case

from inductor_tables.simulation.records import Choice, ChoicesCall

_GRAPH_OPS = ("mm", "attention", "convolution", "constant_pad")


def record_case(device: Any, case: Case) -> dict[str, Any]:
    """Compile a case on a device and return what it asked for.

    Returns:
        ``calls``, rows of phase, lookup key, what was offered, and how often; ``graph_ops``, the
        matrix products and their like of the final graphs and how often each occurs.
    """
    device.clear()
    ops: collections.Counter[str] = collections.Counter()
    function, inputs = case.build(device)
    with _precision(case.precision), torch._inductor.config.patch(
        post_grad_custom_post_pass=lambda graph: _count_ops(graph, ops)
    ):  # fmt: skip
        device.compile(function, *inputs, grad=case.grad, dynamic=case.dynamic)
    return {"calls": call_rows(device.calls), "graph_ops": dict(sorted(ops.items()))}


def call_rows(calls: list[ChoicesCall]) -> list[list[Any]]:
    """Return phase, key, offer and count of the calls that no other lowering encloses."""
    counts = collections.Counter(
        (call.phase, str(call.device_key), _offer(call.choices))
        for call in calls
        if call.choices and call.depth == 0
    )
    return [[*row, count] for row, count in sorted(counts.items())]


def _offer(choices: tuple[Choice, ...]) -> str:
    """Say how many choices each template has, such as ``aten::mm 1, triton::mm 18``."""
    counts = collections.Counter(choice.template_id or "other" for choice in choices)
    return ", ".join(f"{template} {count}" for template, count in counts.items())


def _count_ops(graph: Any, counts: collections.Counter[str]) -> None:
    for node in graph.nodes:
        # Checkpointing hands a random operation to a wrapper, as an argument.
        for op in (node.target, *node.args[:2]):
            name = str(op) if isinstance(op, torch._ops.OpOverload) else ""
            if name.startswith("aten.") and any(part in name for part in _GRAPH_OPS):
                counts[name] += 1


@contextmanager
def _precision(precision: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
