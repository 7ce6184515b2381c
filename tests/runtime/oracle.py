"""Is an entry right for a graph it was not recorded on? Stock Inductor is the judge.

An entry that answers must lead to the very code that stock Inductor generates for that
graph when its autotuning picks the same tile; one that cannot must leave stock code.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from products import H200, Plain

import inductor_tables
from inductor_tables.parameters import TUNING
from inductor_tables.simulation import (
    CATALOGUE,
    Choice,
    DeviceSpec,
    OpLowering,
    Simulation,
    simulate,
)

TMA = {"triton.enable_persistent_tma_matmul": True}

_CACHE_PATH = re.compile(r"# kernel path: .*")


@dataclass(frozen=True, kw_only=True, eq=False)
class Graph:
    """A graph of one matrix product, and the state of the process that compiles it.

    Attributes:
        fn: what is compiled.
        args: makes its arguments.
        options: Inductor settings.
        state: a context that sets what else of the process the graph depends on.
        device: the simulated device.
    """

    fn: Callable[..., Any]
    args: Callable[[Simulation], Sequence[Any]]
    options: Mapping[str, Any] = field(default_factory=dict)
    state: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext
    device: DeviceSpec = CATALOGUE[H200]


@dataclass(frozen=True, kw_only=True)
class Lowered:
    """What a compile made of a graph's product: the op, its keys, the generated code."""

    op: OpLowering
    keys: tuple[str, ...]
    code: str

    @property
    def offered(self) -> list[tuple[str | None, str]]:
        """The choices in a form that can be compared: reprs tell ``True`` from ``1``."""
        return [_comparable(choice) for choice in self.op.offered]

    @property
    def chosen(self) -> tuple[str | None, str]:
        """The choice that was taken, in a form that can be compared."""
        return _comparable(self.op.chosen)


def lower(graph: Graph, pick: Any = "first") -> Lowered:
    """Compile a graph on its simulated device."""
    with graph.state(), simulate(graph.device, pick=pick) as sim:
        sim.compile(graph.fn, *graph.args(sim), options=graph.options)
        (op,) = (op for op in sim.ops if op.depth == 0)
        # The first line counts the graphs of the process.
        code = "\n".join(text.partition("\n")[2] for text in sim.codes)
        keys = tuple(dict.fromkeys(call.device_key or "" for call in op.calls))
        return Lowered(op=op, keys=keys, code=_CACHE_PATH.sub("# kernel path", code))


@functools.cache
def stock(graph: Graph) -> Lowered:
    """Compile a graph without tables."""
    with inductor_tables.config.patch(active=False):
        return lower(graph)


def tuning(choice: Choice) -> dict[str, Any]:
    """What of a choice is a table's to decide."""
    return {name: value for name, value in choice.params.items() if name in TUNING}


def untrue(choice: Choice) -> dict[str, Any]:
    """The choice as an entry that lies about all that is not a table's to decide."""
    from torch._inductor import select_algorithm

    told = {**choice.params, "ALLOW_TF32": True, "OUT_DTYPE": "tl.float16"}
    lies = {name: _lie(value) for name, value in told.items() if name not in TUNING}
    lies = {name: value for name, value in lies.items() if value is not NotImplemented}
    lies |= {"ACC_TYPE": "tl.float16"} if "ACC_TYPE" in choice.params else {}
    (template,) = (
        t
        for t in select_algorithm.TritonTemplate.all_templates.values()
        if t.uid == choice.template_id
    )
    return {
        "template_id": choice.template_id,
        "template_hash": template.src_hash,
        **lies,
        **tuning(choice),
    }


def _lie(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    return NotImplemented


def entry_of(choice: Choice) -> dict[str, Any]:
    """The choice as a plain entry that is as wrong as it can be where that must not matter."""
    if (choice.template_id or "").startswith("triton::"):
        return untrue(choice)
    return {"template_id": choice.template_id, **tuning(choice)}


def templates_used(recorded: Graph, run: Graph) -> set[str] | None:
    """Check entries recorded on one graph in a run of another; None: the keys differ.

    Returns the templates whose entries answered. An entry that did answer led to the
    code that stock Inductor makes of the same tile; one that did not left stock code.
    """
    before, after = stock(recorded), stock(run)
    shared = [key for key in before.keys if key in after.keys]
    if not shared:
        return None
    used = set()
    for choice in _representatives(before.op, after.op):
        table: Plain = {key: [entry_of(choice)] for key in shared}
        with inductor_tables.enable(table):
            found = lower(run)
            status = inductor_tables.status()
        if not status.hits:
            assert status.dropped, "an entry that does not answer has a reason"
            assert (found.offered, found.code) == (after.offered, after.code), choice
            continue
        with inductor_tables.config.patch(active=False):
            expected = lower(run, pick=_picker(choice))
        assert found.chosen == expected.chosen, choice
        assert found.code == expected.code, choice
        used.add(choice.template_id or "")
    return used


def _representatives(before: OpLowering, after: OpLowering) -> list[Choice]:
    """One choice a template: the smallest tile that is not the heuristic's first one."""
    found = []
    for template_id in dict.fromkeys(choice.template_id for choice in before.offered):
        listed = [choice for choice in before.offered if choice.template_id == template_id]
        there = [tuning(c) for c in after.offered if c.template_id == template_id]
        common = [choice for choice in listed if tuning(choice) in there] or listed
        found.append(min(common[1:] or common, key=_size))
    return found


def _size(choice: Choice) -> tuple[int, str]:
    size = 1
    for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_stages", "k_split"):
        size *= max(1, choice.params.get(name) or 1)
    return size, repr(choice)


def _picker(wanted: Choice) -> Callable[[list[Any]], Any]:
    def pick(callers: list[Any]) -> Any:
        for caller in callers:
            ktc = getattr(caller, "annotations", {}).get("ktc")
            if ktc is not None and ktc.template.uid == wanted.template_id:
                params = ktc.params.to_kwargs()
                if tuning(Choice(wanted.template_id, params)) == tuning(wanted):
                    return caller
        raise AssertionError(f"stock Inductor does not offer {wanted} here")

    return pick


def _comparable(choice: Choice) -> tuple[str | None, str]:
    return choice.template_id, repr(sorted(choice.params.items()))
