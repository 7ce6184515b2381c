"""Renders the kernel of one entry for one key and compiles it, on the simulated device.

Importing this module imports torch; the workers of ``compile_check`` do.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Final

import torch
import triton

import inductor_tables
from build_tools.compile_state import Outcome, Result
from build_tools.distinct import Case
from inductor_tables.decisions import Decision, decisions_to
from inductor_tables.errors import BuildError
from inductor_tables.keys import ParsedKey, TensorKey
from inductor_tables.simulation import KernelReport, Simulation

_NO_PACKAGED_TABLE: Final = "<0"
"""A version that no table has: only the entry in question may answer."""

_TEMPLATE_KERNEL: Final = "triton_tem_"
"""What Inductor's names of kernels that a template made begin with."""

_STAGES = re.compile(r"^num_stages=(\d+),$", re.MULTILINE)
_RETRIES: Final = "'dynamic_disable_pipelining': True"
"""In a source that torch compiles with one stage where it does not fit (2.13 and later)."""

Function = Callable[..., Any]


@dataclass(frozen=True, kw_only=True)
class Rendered:
    """The source of a case's kernel; None: the entry is not used, and ``dropped`` says why."""

    source: str | None
    dropped: str = ""


def render(sim: Simulation, case: Case) -> Rendered:
    """Lower the op of a case's key with the entry as the only table, as a user's compile does.

    Raises:
        BuildError: no graph is known for the op of the key, or the generated code has no kernel.
        Exception: whatever torch's lowering raises.
    """
    # A table of a base arch, or of keys without a device, serves this one too.
    key = replace(case.key, device=sim.spec.gcn_arch_name)
    seen: set[str] = set()
    for function, inputs in _graphs(key, case.config.plain):
        decided = _lower(sim, case, key, function, inputs)
        if any(decision.outcome == "hit" for decision in decided):
            return Rendered(source=_template_source(sim))
        reasons = [dropped.reason for decision in decided for dropped in decision.dropped]
        if reasons:  # the op's last call of the handler is the one for Triton's templates
            return Rendered(source=None, dropped=reasons[-1])
        seen.update(decision.key for decision in decided)
    asked = f"its last key is {', '.join(sorted(seen))}" if seen else "it asks for no choices"
    return Rendered(source=None, dropped=f"the op does not ask under this key here: {asked}")


def identity(sim: Simulation, source: str) -> str:
    """Return what identifies a compilation: the source, the device and the triton."""
    parts = (source, repr(sim.spec), triton.__version__)
    return blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()


def compile_source(sim: Simulation, source: str) -> Result:
    """Compile a rendered kernel; with one stage where torch would do so because it does not fit.

    Raises:
        Exception: what the compiler raises that is no error of Triton's own.
    """
    limit = sim.spec.shared_memory_per_block_optin
    (report,) = sim.compile_kernel(source)
    needed, stages = report.shared_memory, _STAGES.search(source)
    unpipelined = needed > limit and _RETRIES in source and stages is not None and stages[1] != "1"
    if unpipelined:
        (report,) = sim.compile_kernel(_STAGES.sub("num_stages=1,", source, count=1))
    outcome, reason = _judged(report, limit)
    if unpipelined and outcome == "compiled":
        outcome = "unpipelined"
        reason = (
            f"needs {needed} B of shared memory, the device has {limit}; torch compiles it once "
            f"more with one stage, which needs {report.shared_memory}"
        )
    return Result(
        outcome=outcome,
        reason=reason,
        shared_memory=report.shared_memory,
        registers=report.registers,
        spills=report.spills,
    )


def _judged(report: KernelReport, limit: int) -> tuple[Outcome, str]:
    if report.error:
        return "failed", report.error
    if report.shared_memory > limit:
        return "exceeds", f"needs {report.shared_memory} B of shared memory, the device has {limit}"
    if not report.fits:
        return "exceeds", f"needs more threads a block than the device has: {report.configuration}"
    return "compiled", ""


def _lower(
    sim: Simulation, case: Case, key: ParsedKey, function: Function, inputs: Sequence[TensorKey]
) -> list[Decision]:
    """Lower one graph; return what was decided for its ops."""
    decided: list[Decision] = []
    sim.clear()
    with (
        inductor_tables.config.patch(active=True, check_src_hash=True, recording_active=False),
        inductor_tables.enable({str(key): [case.config.plain]}, version=_NO_PACKAGED_TABLE),
        decisions_to(decided.append),
    ):
        arguments = [_tensor(sim, tensor) for tensor in inputs]
        sim.compile(function, *arguments, options=_options(case.config.template_id))
    return decided


def _options(template_id: str) -> dict[str, Any]:
    """Return the setting without which torch does not offer a persistent template."""
    return {
        "triton.enable_persistent_tma_matmul": "persistent" in template_id or "tma" in template_id
    }


def _tensor(sim: Simulation, tensor: TensorKey) -> Any:
    dtype = getattr(torch, tensor.dtype)
    layout = torch.empty_strided(tensor.size, tensor.stride, dtype=dtype, device="meta")
    return sim.fake(layout)


def _template_source(sim: Simulation) -> str:
    sources = [s for name, s in sim.kernel_sources().items() if name.startswith(_TEMPLATE_KERNEL)]
    if len(sources) != 1:
        raise BuildError(
            f"expected one template's kernel in the generated code, found {len(sources)}"
        )
    return sources[0]


# --- a graph for each op ----------------------------------------------------------------------


def _graphs(
    key: ParsedKey, entry: Mapping[str, Any]
) -> Iterator[tuple[Function, Sequence[TensorKey]]]:
    """Yield graphs that may ask under a key: a function and the layouts of its arguments."""
    function = _function(key, entry)
    bias, *operands = key.inputs
    if key.op_name == "addmm" and len(bias.size) == 2 and bias.stride[0] == 0:
        # As models have it: the lowering expands it, and asks under both from 2.12 on.
        yield function, [replace(bias, size=bias.size[1:], stride=bias.stride[1:]), *operands]
    yield function, key.inputs


def _function(key: ParsedKey, entry: Mapping[str, Any]) -> Function:
    scalars = {name: _number(text) for name, text in key.scalars}
    op_name = key.op_name
    if op_name in _WITHOUT_SCALARS:
        return _WITHOUT_SCALARS[op_name]
    if op_name in _WITH_BIAS:
        return lambda bias, a, b: _WITH_BIAS[op_name](bias, a, b, **scalars)
    if op_name == "scaled_mm":
        fast = bool(entry.get("USE_FAST_ACCUM", False))
        return lambda *inputs: _scaled_mm(*inputs, use_fast_accum=fast)
    known = ", ".join([*_WITHOUT_SCALARS, *_WITH_BIAS, "scaled_mm"])
    raise BuildError(f"no graph is known for the op {op_name!r} (known: {known})")


def _number(text: str) -> int | float:
    try:
        number = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        number = None
    if not isinstance(number, int | float):
        raise BuildError(f"expected a number as scalar of the key, found {text!r}")
    return number


def _mm_plus_mm(a: Any, b: Any, c: Any, d: Any) -> Any:
    return torch.mm(a, b) + torch.mm(c, d)


def _scaled_mm(
    a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any = None, *, use_fast_accum: bool
) -> Any:
    """Neither key nor entry tells the result's type: bfloat16, as models have it."""
    return torch.ops.aten._scaled_mm(
        a, b, scale_a, scale_b, bias, out_dtype=torch.bfloat16, use_fast_accum=use_fast_accum
    )


_WITHOUT_SCALARS: Final[Mapping[str, Function]] = {
    "bmm": torch.bmm,
    "int_mm": torch.ops.aten._int_mm,
    "mm": torch.mm,
    "mm_plus_mm": _mm_plus_mm,
}
_WITH_BIAS: Final[Mapping[str, Function]] = {"addmm": torch.addmm, "baddbmm": torch.baddbmm}
