"""What tables know of models, found by lowering these for a GPU that is not there."""

from __future__ import annotations

import contextlib
import importlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from inductor_tables.analysis.records import Coverage, Gemm
from inductor_tables.decisions import Decision, decisions_to
from inductor_tables.errors import (
    InductorTablesError,
    InvalidKeyError,
    InvalidTableError,
    SimulationError,
    TargetError,
)
from inductor_tables.keys import ParsedKey, parse_key
from inductor_tables.simulation.catalogue import DeviceSpec, device_spec
from inductor_tables.simulation.records import Note, OpLowering

if TYPE_CHECKING:
    import torch

    from inductor_tables.analysis.roofline import Roofline
    from inductor_tables.analysis.targets import Case
    from inductor_tables.resources import UserTables
    from inductor_tables.simulation.session import Simulation
    from inductor_tables.table import Table


def coverage(
    model: torch.nn.Module | Callable[..., Any],
    args: Sequence[Any] | Any = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    device: str | DeviceSpec,
    tables: UserTables | Sequence[UserTables] | None = None,
    backward: bool = False,
    dynamic: bool | None = None,
    dtype: torch.dtype | None = None,
    name: str | None = None,
) -> Coverage:
    """Say for every GEMM of a model whether the tables have a kernel for it.

    Lowers the model in this process for a simulated device, which patches torch meanwhile
    (:func:`inductor_tables.simulate`): compile nothing else in the process at the time. Nothing
    runs; the model and the inputs are read for their layouts and stay as they are.

    Args:
        model: a module or a function, as ``torch.compile`` takes it; on the CPU or the meta device.
        args: positional arguments of one call; tensors on the CPU or the meta device. One that is
            no tuple or list stands for itself.
        kwargs: keyword arguments of the call.
        device: a gcnArchName of the simulation's catalogue, or a spec.
        tables: as for ``enable``, asked before the packaged ones; None: those that are enabled,
            else the packaged ones.
        backward: lower the backward graph too; parameters or inputs must require gradients.
        dynamic: as in ``torch.compile``. A key holds the sizes of this call all the same.
        dtype: the type that floating-point tensors get, None: they stay as they are.
        name: what the model is called in the result; None: the name of its type or its own.

    Raises:
        TargetError: the model cannot be lowered.
        SimulationError: a real GPU is visible, or the device cannot be simulated.
        InvalidTableError, OSError: one of ``tables`` is damaged, for another torch, or missing.
    """
    from inductor_tables.analysis.targets import Case

    called = name or getattr(model, "__name__", None) or type(model).__name__
    listed = tuple(args) if isinstance(args, tuple | list) else (args,)
    case = Case(name=called, model=model, args=listed, kwargs=dict(kwargs or {}), dtype=dtype)
    return survey([case], device=device, tables=tables, backward=backward, dynamic=dynamic)


def survey(
    cases: Sequence[Case],
    *,
    device: str | DeviceSpec,
    tables: UserTables | Sequence[UserTables] | None = None,
    backward: bool = False,
    dynamic: bool | None = None,
) -> Coverage:
    """Say of several calls of models what :func:`coverage` says of one.

    Raises:
        As :func:`coverage` does.
    """
    from inductor_tables import activation, config
    from inductor_tables.simulation.context import simulate

    spec = device_spec(device)
    _refuse_real_gpu()
    seen = _Seen()
    quiet = {"active": True, "recording_active": False, "record_misses": False}
    with config.patch(quiet), _tables_of_its_own(tables):
        with simulate(spec, codegen=False) as simulation:
            for case in cases:
                seen.add(case, _lowered(simulation, case, backward, dynamic))
                seen.remark(simulation.ops, simulation.notes)
        current = activation.current_activation()
        assert current is not None
        served = [candidate.table for candidate in current.candidates(spec.gcn_arch_name)]
        problems = activation.status().problems
    return seen.coverage(spec, served, problems, backward)


def _refuse_real_gpu() -> None:
    from inductor_tables.simulation import vendor

    try:
        vendor.refuse_real_gpu()
    except SimulationError as error:
        raise SimulationError(
            f"{error}. The command line, inductor-tables coverage, does that in a process of its "
            "own"
        ) from error


@contextlib.contextmanager
def _tables_of_its_own(tables: UserTables | Sequence[UserTables] | None) -> Iterator[None]:
    """Enable tables with counts of their own, and put back what was enabled.

    Raises:
        InvalidTableError, OSError: one of ``tables`` cannot be used.
    """
    from inductor_tables.activation import Handle, current_activation, disable, enable

    before = current_activation()
    if tables is not None:
        _check(tables)
    with Handle(before):
        disable()
        if tables is None and before is not None:
            version = None if before.version is None else str(before.version)
            enable(before.tables, version=version)
        else:
            enable(tables)
        yield


def _check(tables: UserTables | Sequence[UserTables]) -> None:
    """Refuse what ``enable`` would report and go on without."""
    from inductor_tables import host
    from inductor_tables.activation import as_list
    from inductor_tables.resources import user_tables

    series = host.installed_series()
    for number, given in enumerate(as_list(tables)):
        for table in user_tables(given, series, f"tables[{number}]"):
            if table.header.torch_series != series:
                raise InvalidTableError(
                    table.resource,
                    "header.torch_series",
                    f"it is for torch {table.header.torch_series}, this is torch {series}",
                )


# --- lowering ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Lowered:
    """One op that was lowered, and what was decided for it."""

    decision: Decision
    op: OpLowering


def _lowered(
    simulation: Simulation, case: Case, backward: bool, dynamic: bool | None
) -> list[_Lowered]:
    """Return the GEMMs of a call, in the order they are lowered.

    Those inside a choice of another one (a decomposed product) are not the model's.
    """
    told: list[tuple[Decision, int]] = []
    simulation.clear()
    with decisions_to(lambda decision: told.append((decision, len(simulation.ops)))):
        try:
            _compile(simulation, case, backward, dynamic, ranges=True)
        except InductorTablesError:
            raise
        except Exception as error:
            if not case.dynamic or not _is_violation(error):
                raise _not_lowered(case, error) from error
            # The ranges that it was exported for do not hold for what is lowered.
            told.clear()
            simulation.clear()
            try:
                _compile(simulation, case, backward, dynamic, ranges=False)
            except Exception as again:
                raise _not_lowered(case, again) from again
    # A decision is told right before its op is recorded.
    found = [
        _Lowered(decision=decision, op=simulation.ops[at])
        for decision, at in told
        if at < len(simulation.ops)
    ]
    return [lowered for lowered in found if lowered.op.depth == 0]


def _compile(
    simulation: Simulation, case: Case, backward: bool, dynamic: bool | None, *, ranges: bool
) -> None:
    from inductor_tables.analysis.moving import Mover, leaves

    move = Mover(
        lambda tensor: simulation.fake(tensor, case.dtype),
        lambda module: simulation.module(module, case.dtype),
    )
    model, args, kwargs = move(case.model), move(case.args), move(dict(case.kwargs))
    tensors = list(leaves((args, kwargs)))
    for size in case.dynamic:
        _mark_dynamic(tensors[size.leaf], size.dim, size.least, size.most, ranges)
    simulation.compile(model, *args, kwargs=kwargs, grad=backward, dynamic=dynamic)


def _mark_dynamic(
    tensor: torch.Tensor, dim: int, least: int | None, most: int | None, ranges: bool
) -> None:
    dynamo = importlib.import_module("torch._dynamo")
    if ranges:
        dynamo.mark_dynamic(tensor, dim, min=least, max=most)
    else:
        dynamo.maybe_mark_dynamic(tensor, dim)


def _is_violation(error: Exception) -> bool:
    from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

    return isinstance(error, ConstraintViolationError)


def _not_lowered(case: Case, error: Exception) -> TargetError:
    """Return the error for a model that Dynamo or Inductor cannot lower."""
    kind = type(error).__name__
    text = str(error).strip().split("\n\nfrom user code")[0].split("\nSet TORCHDYNAMO_VERBOSE")[0]
    hint = ""
    if "DataDependent" in kind or "data-dependent" in text.lower() or ".item()" in text:
        hint = (
            "\nWhat the model does next depends on values of tensors, which nothing that is "
            "simulated has: leave that part out, or lower the parts around it for themselves."
        )
    elif "meta" in text and "device" in text:
        hint = (
            "\nA tensor was left where it was: return the module itself or a function that has it "
            "as a free variable or a global."
        )
    return TargetError(f"{case.name}: lowering it raised {kind}: {text}{hint}")


# --- what was found ---------------------------------------------------------------------


@dataclass
class _Found:
    """Occurrences of one GEMM for which the same was decided."""

    lowered: _Lowered
    count: int = 0
    targets: dict[str, None] = field(default_factory=dict)
    origins: dict[str, None] = field(default_factory=dict)


class _Seen:
    """The GEMMs of all calls so far."""

    def __init__(self) -> None:
        self._found: dict[Any, _Found] = {}
        self._targets: dict[str, None] = {}
        self._padded: Counter[str] = Counter()
        self._others: Counter[str] = Counter()
        self._backward = False

    def remark(self, ops: Sequence[OpLowering], notes: Sequence[Note]) -> None:
        """Count what one call has besides: ops without a key, decisions by a stopwatch."""
        self._others.update(op.name for op in ops if not op.calls and op.depth == 0)
        self._padded.update(note.decision for note in notes if note.kind == "pad_mm")

    def add(self, case: Case, lowered: Sequence[_Lowered]) -> None:
        """Add those of one call."""
        from inductor_tables.analysis.origins import origin_text

        self._targets[case.name] = None
        for one in lowered:
            decision = one.decision
            same = (decision.key, one.op.phase, decision.outcome, decision.dropped)
            found = self._found.setdefault(same, _Found(one))
            found.count += 1
            found.targets[case.name] = None
            found.origins[origin_text(decision.origin)] = None
            self._backward = self._backward or one.op.phase == "backward"

    def coverage(
        self, spec: DeviceSpec, tables: Sequence[Table], problems: Sequence[str], backward: bool
    ) -> Coverage:
        """Return what the tables know of them."""
        import torch
        import triton

        from inductor_tables.analysis.roofline import roofline

        limits = roofline(spec, tf32=torch.get_float32_matmul_precision() != "highest")
        gemms = [gemm for f in self._found.values() if (gemm := _gemm(f, limits, tables))]
        return Coverage(
            device=spec.gcn_arch_name,
            torch=str(torch.__version__),
            triton=str(triton.__version__),
            tables=tuple(table.resource for table in tables),
            targets=tuple(self._targets),
            gemms=tuple(sorted(gemms, key=_by_time)),
            peak_tflops=dict(limits.peak_tflops),
            peak_gb_s=limits.peak_gb_s,
            notes=(*problems, *self._remarks(backward)),
        )

    def _remarks(self, backward: bool) -> Iterator[str]:
        if not self._found:
            yield "no GEMM was lowered"
        elif backward and not self._backward:
            yield (
                "there is no backward graph: neither the inputs nor the parameters that the "
                "outputs depend on require gradients"
            )
        if self._others:
            counted = ", ".join(f"{count} x {name}" for name, count in sorted(self._others.items()))
            yield f"not in these figures, since torch never looks it up in tables: {counted}"
        for decision, count in sorted(self._padded.items()):
            yield (
                f"{count} x torch would pad a product if a benchmark on the device said so "
                f"(pad_mm); here it is {decision}"
            )


def _by_time(gemm: Gemm) -> tuple[float, str, str]:
    return -gemm.estimated_us * gemm.count, gemm.key, gemm.phase


def _gemm(found: _Found, limits: Roofline, tables: Sequence[Table]) -> Gemm | None:
    """Return the record of a GEMM; None for a key of no matrix product."""
    from inductor_tables.analysis.roofline import cost

    decision, op = found.lowered.decision, found.lowered.op
    try:
        parsed: ParsedKey = parse_key(decision.key)
        costs = cost(parsed)
    except InvalidKeyError:
        return None
    return Gemm(
        op_name=parsed.op_name,
        key=decision.key,
        phase=op.phase,
        count=found.count,
        targets=tuple(found.targets),
        origins=tuple(found.origins),
        batch=costs.batch,
        m=costs.m,
        n=costs.n,
        k=costs.k,
        dtype=costs.dtype,
        outcome=decision.outcome,
        dropped=tuple(map(str, decision.dropped)),
        table=decision.table,
        flops=costs.flops,
        bytes=costs.bytes,
        roofline_us=limits.time_us(costs),
        **_kernels(decision, op),
        **_help(decision, tables),
    )


def _kernels(decision: Decision, op: OpLowering) -> dict[str, Any]:
    """Return what a table chose: the entry with the best recorded time, and the others."""
    if decision.outcome != "hit":
        return {}
    if not decision.entries:  # the table in torch's own config
        return {"template_id": op.chosen.template_id, "params": op.chosen.params}
    entries = list(decision.entries)
    params = [dict(entry.config.params) for entry in entries]
    if len(op.offered) == len(entries):  # in the same order, as the host completed them
        params = [choice.params for choice in op.offered]
    ranked = sorted(range(len(entries)), key=lambda at: entries[at].order)
    best, *others = ranked
    times = [entry.time_us for entry in entries]
    first, second = times[best], times[others[0]] if others else None
    return {
        "template_id": entries[best].config.template_id,
        "params": params[best],
        "time_us": first,
        "margin": second / first - 1 if first and second else None,
        "alternatives": tuple(
            {
                "template_id": entries[at].config.template_id,
                "params": params[at],
                "time_us": times[at],
            }
            for at in others
        ),
    }


def _help(decision: Decision, tables: Sequence[Table]) -> dict[str, Any]:
    if decision.outcome == "hit":
        return {}
    from inductor_tables.analysis.nearest import help_for

    neighbours, advice = help_for(decision, tables)
    return {"nearest": neighbours, "advice": advice}
