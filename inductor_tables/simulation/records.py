"""What a simulated compile leaves behind; this module imports nothing of torch."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple

Phase = Literal["inference", "forward", "backward"]


class Choice(NamedTuple):
    """One candidate kernel.

    Attributes:
        template_id: the template's uid, e.g. ``triton::mm``; None for a choice that no template
            of the handler made (some subgraphs, convolutions, attention).
        params: the template's parameters; ``{"name": ...}`` where ``template_id`` is None.
    """

    template_id: str | None
    params: dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChoicesCall:
    """One call of the choices handler's ``get_template_configs``.

    Attributes:
        op_name: the operation's name in the key, e.g. ``addmm``.
        device_key: lookup key with the device in front; None for tensors not on the device.
        agnostic_key: the same key without the device.
        templates: uids of the templates that the lowering offered.
        choices: the choices that the handler returned, in order.
        phase: the graph that was being lowered.
        depth: 0, or how many lowerings enclose this one (subgraph choices lower their own ops).
    """

    op_name: str
    device_key: str | None
    agnostic_key: str | None
    templates: tuple[str, ...]
    choices: tuple[Choice, ...]
    phase: Phase
    depth: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class OpLowering:
    """One call of the algorithm selector: one operation that got one kernel.

    Attributes:
        name: the selector's name of the operation.
        calls: the handler calls since the graph's previous operation at the same depth; empty for
            operations that do not ask the handler (convolution, attention).
        offered: the choices left once the selector's preprocessing functions ran.
        chosen: the choice that was taken.
        benchmarked: more than one choice was left, so a real run would autotune.
        phase: the graph that was being lowered.
        depth: 0, or how many lowerings enclose this one.
        sources: the Triton source of each offered choice, None for those that have none; empty
            unless the simulation keeps sources.
    """

    name: str
    calls: tuple[ChoicesCall, ...]
    offered: tuple[Choice, ...]
    chosen: Choice
    benchmarked: bool
    phase: Phase
    depth: int = 0
    sources: tuple[str | None, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Note:
    """A decision that a real run makes with a stopwatch and the simulation made without one.

    Attributes:
        kind: ``"pad_mm"`` (whether to pad a matrix product) or ``"choices"`` (which kernel).
        what: the operation.
        decision: what the simulation did.
    """

    kind: Literal["pad_mm", "choices"]
    what: str
    decision: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelReport:
    """One Triton kernel in one configuration, compiled for the simulated device.

    Attributes:
        name: the kernel's.
        configuration: Triton's text of the configuration.
        shared_memory: bytes a block.
        registers: a thread's registers (vector registers on ROCm).
        spills: 32-bit registers a thread spills to memory.
        fits: shared memory and threads are within the device's limits for a block.
        seconds: time it took to compile.
        error: what the compiler said; the figures are 0 then.
    """

    name: str
    configuration: str
    shared_memory: int = 0
    registers: int = 0
    spills: int = 0
    fits: bool = False
    seconds: float
    error: str = ""


@dataclasses.dataclass
class Recorder:
    """Collects the records of one simulation, in order of occurrence."""

    calls: list[ChoicesCall] = dataclasses.field(default_factory=list)
    ops: list[OpLowering] = dataclasses.field(default_factory=list)
    codes: list[str] = dataclasses.field(default_factory=list)
    notes: list[Note] = dataclasses.field(default_factory=list)
    phase: Phase = "inference"
    keep_sources: bool = False
    # One list of not yet attributed handler calls per enclosing lowering.
    pending: list[list[ChoicesCall]] = dataclasses.field(default_factory=lambda: [[]])

    def clear(self) -> None:
        """Forget every record."""
        for records in (self.calls, self.ops, self.codes, self.notes):
            records.clear()
        self.pending[:] = [[]]
