"""Watch the choices handler and the algorithm selector, whichever handler is active."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch._inductor.choices import InductorChoices
from torch._inductor.lookup_table.choices import LookupTableChoices
from torch._inductor.select_algorithm import AlgorithmSelectorCache, ExternKernelCaller

from inductor_tables.errors import SimulationError
from inductor_tables.simulation.patching import Patches
from inductor_tables.simulation.records import (
    Choice,
    ChoicesCall,
    Note,
    OpLowering,
    Recorder,
)

Pick = str | Callable[[Sequence[Any]], Any]
"""``"first"``, ``"extern"``, or a function of Inductor's ``ChoiceCaller``s that returns one."""


def describe(choice: Any) -> Choice:
    """Return the record of one of Inductor's choice callers."""
    ktc = getattr(choice, "annotations", {}).get("ktc")
    if ktc is None:
        return Choice(None, {"name": choice.name})
    return Choice(ktc.template.uid, dict(ktc.params.to_serializeable_dict()))


def chooser(pick: Pick) -> Callable[[Sequence[Any]], Any]:
    """Return the function that takes one of several choices.

    Raises:
        SimulationError: ``pick`` is neither a known rule nor callable.
    """
    if callable(pick):
        return pick
    if pick == "first":
        return lambda choices: choices[0]
    if pick == "extern":
        return _first_extern
    raise SimulationError(f"pick must be 'first', 'extern' or a function of the choices: {pick!r}")


def _first_extern(choices: Sequence[Any]) -> Any:
    return next((c for c in choices if isinstance(c, ExternKernelCaller)), choices[0])


def patch_handler_calls(patches: Patches, recorder: Recorder) -> None:
    """Record every call of ``get_template_configs``.

    Handlers override ``_finalize_template_configs`` and inherit this method, so that wrapping
    the base class's sees any handler.  A choice's parameters are final once it returns.
    """
    keys: Any = LookupTableChoices()

    def record(
        original: Any, handler: Any, kernel_inputs: Any, templates: Any, op_name: str, *rest: Any,
        **kwargs: Any,
    ) -> Any:  # fmt: skip
        recorder.pending.append([])
        try:
            choices = original(handler, kernel_inputs, templates, op_name, *rest, **kwargs)
        finally:
            recorder.pending.pop()
        call = ChoicesCall(
            op_name=op_name,
            device_key=keys.make_lookup_key(kernel_inputs, op_name, include_device=True),
            agnostic_key=keys.make_lookup_key(kernel_inputs, op_name, include_device=False),
            templates=tuple(template.uid for template in templates),
            choices=tuple(describe(choice) for choice in choices),
            phase=recorder.phase,
            depth=len(recorder.pending) - 1,
        )
        recorder.calls.append(call)
        recorder.pending[-1].append(call)
        return choices

    patches.wrap(InductorChoices, "get_template_configs", record)


def patch_selector(patches: Patches, recorder: Recorder, pick: Pick) -> None:
    """Record every operation that gets a kernel, and take one choice where several are left.

    The real selector would compile and time them; given one choice it returns that one.
    """
    take = chooser(pick)

    def select(
        original: Any, selector: Any, name: str, choices: Any, *rest: Any, **kwargs: Any
    ) -> Any:
        calls, recorder.pending[-1][:] = tuple(recorder.pending[-1]), ()
        left = choices
        for function in selector.preprocessing_fns:
            left = function(left)
        chosen = _chosen(name, left, take)
        if chosen is not None:
            _record_op(recorder, name, calls, left, chosen)
            left = [chosen]
        recorder.pending.append([])
        try:
            with _preprocessed(selector):
                return original(selector, name, left, *rest, **kwargs)
        finally:
            recorder.pending.pop()

    patches.wrap(AlgorithmSelectorCache, "__call__", select)


def _chosen(name: str, left: Sequence[Any], take: Callable[[Sequence[Any]], Any]) -> Any:
    """Return the choice to take; None where the selector will say that there is none."""
    if not left:
        return None
    chosen = left[0] if len(left) == 1 else take(left)
    if not any(chosen is choice for choice in left):
        raise SimulationError(f"pick returned {chosen!r} for {name}, not one of the choices")
    return chosen


@contextlib.contextmanager
def _preprocessed(selector: Any) -> Iterator[None]:
    """Let the selector's next run of its preprocessing functions pass: they have run.

    They may count or record, so that a second run would be seen.  What the selector lowers after
    that (a subgraph choice's own operations) meets them again.
    """
    functions = selector.preprocessing_fns

    def put_back(choices: Any) -> Any:
        selector.preprocessing_fns = functions
        return choices

    selector.preprocessing_fns = [put_back]
    try:
        yield
    finally:
        selector.preprocessing_fns = functions


def _source(choice: Any) -> str | None:
    """Return the module that a Triton template rendered for the choice."""
    path = getattr(getattr(choice, "bmreq", None), "module_path", None)
    return pathlib.Path(path).read_text() if path else None


def _record_op(
    recorder: Recorder, name: str, calls: tuple[ChoicesCall, ...], left: Sequence[Any], chosen: Any
) -> None:
    op = OpLowering(
        name=name,
        calls=calls,
        offered=tuple(describe(choice) for choice in left),
        chosen=describe(chosen),
        benchmarked=len(left) > 1,
        phase=recorder.phase,
        depth=len(recorder.pending) - 1,
        sources=tuple(map(_source, left)) if recorder.keep_sources else (),
    )
    recorder.ops.append(op)
    if op.benchmarked:
        what = calls[-1].device_key if calls and calls[-1].device_key else name
        decision = f"took {op.chosen.template_id or op.chosen.params['name']} of {len(left)}"
        recorder.notes.append(Note(kind="choices", what=what, decision=decision))
