"""Compile up to the generated source, and hand back a function that returns fake outputs."""

from __future__ import annotations

import contextlib
import os
import tempfile
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._inductor import compile_fx, config
from torch._inductor.graph import GraphLowering
from torch._subclasses.fake_tensor import FakeTensor

from inductor_tables.simulation.driver import refuse_launch
from inductor_tables.simulation.patching import Patches
from inductor_tables.simulation.records import Phase, Recorder


def patch_codegen(patches: Patches, recorder: Recorder, folder: str, *, codegen: bool) -> None:
    """Stop before the generated module is loaded: loading it compiles kernels to be launched.

    Without ``codegen`` even the scheduler is left out; the choices are made by then.
    """

    def compile_to_module(_original: Any, graph: Any) -> Any:
        code = ""
        if codegen:
            code = graph.codegen()[0].value
            recorder.codes.append(code)
        else:
            graph.scheduler = types.SimpleNamespace(nodes=[])
        path = _written(code, folder)
        graph.cache_key, graph.cache_path, graph.cache_linemap = os.path.basename(path), path, []
        return types.SimpleNamespace(__file__=path, call=refuse_launch, runner=None)

    patches.wrap(GraphLowering, "compile_to_module", compile_to_module)


def _written(code: str, folder: str) -> str:
    """Write the source to a new file: later steps of the compile ask for its path."""
    descriptor, path = tempfile.mkstemp(suffix=".py", dir=folder)
    with os.fdopen(descriptor, "w") as file:
        file.write(code)
    return path


def patch_compile_fx(patches: Patches, recorder: Recorder, fake_mode: Any) -> None:
    """Lower each graph with the real ``compile_fx_inner``, but return a stub that fakes outputs.

    ``torch.compile`` looks the backend's function up in its module at every call, so that user
    code which knows nothing of the simulation is served too.
    """
    real_inner = compile_fx.compile_fx_inner

    def inner(graph_module: Any, example_inputs: Any, *args: Any, **kwargs: Any) -> Any:
        stub = _stub(graph_module, fake_mode)
        with _graph(recorder, kwargs), _plain_wrapper(kwargs):
            real_inner(graph_module, example_inputs, *args, **kwargs)
        return stub

    def lowered(
        original: Any, model: Any, example_inputs: Any, inner_compile: Any = None, *args: Any,
        **kwargs: Any,
    ) -> Any:  # fmt: skip
        if inner_compile is None or inner_compile is real_inner:
            inner_compile = inner
        return original(model, _refaked(example_inputs), inner_compile, *args, **kwargs)

    patches.wrap(compile_fx, "compile_fx", lowered)


@contextlib.contextmanager
def _graph(recorder: Recorder, kwargs: dict[str, Any]) -> Iterator[None]:
    """Record for one graph: calls that no operation took stay with their graph."""
    before = recorder.phase, recorder.pending
    recorder.phase, recorder.pending = _phase_of(kwargs), [[]]
    try:
        yield
    finally:
        recorder.phase, recorder.pending = before


def _phase_of(kwargs: dict[str, Any]) -> Phase:
    if kwargs.get("is_backward"):
        return "backward"
    return "inference" if kwargs.get("is_inference") else "forward"


@contextlib.contextmanager
def _plain_wrapper(kwargs: dict[str, Any]) -> Iterator[None]:
    """Switch off what only wraps the finished kernels and would need a device.

    CUDA graphs wrap the finished callable; the C++ wrapper generates code in two passes, between
    which it runs the first on real inputs.  The kernels are the same.
    """
    if hasattr(kwargs.get("cudagraphs"), "value"):
        kwargs["cudagraphs"].value = False
    if kwargs.get("cpp_wrapper"):
        kwargs["cpp_wrapper"] = False
    with config.patch(cpp_wrapper=False):
        yield


def _refaked(example_inputs: Sequence[Any]) -> Sequence[Any]:
    """Move the inputs into the fake mode of the trace.

    torch 2.10 hands the backend the caller's fake tensors as they are; 2.11 and later do this.
    """
    context = torch._guards.TracingContext.try_get()
    if context is None or context.fake_mode is None:
        return example_inputs
    mode = context.fake_mode

    def moved(value: Any) -> Any:
        if not isinstance(value, FakeTensor) or value.fake_mode is mode:
            return value
        symbolic = context.tensor_to_context.get(value)
        source = getattr(symbolic, "tensor_source", None)
        return mode.from_tensor(value, symbolic_context=symbolic, source=source)

    return [moved(value) for value in example_inputs]


def _stub(graph_module: Any, fake_mode: Any) -> Callable[[Any], list[Any]]:
    """Return a function that stands for the compiled graph.

    An output that is an input of the graph is passed through; any other is made anew with the
    traced sizes and strides, symbols replaced by their hints.
    """
    inputs = [node for node in graph_module.graph.nodes if node.op == "placeholder"]
    outputs = next(n for n in graph_module.graph.nodes if n.op == "output").args[0]

    def value_of(output: Any, args: Sequence[Any], mode: Any) -> Any:
        if not isinstance(output, torch.fx.Node):
            return output
        if output.op == "placeholder":
            return args[inputs.index(output)]
        return _fresh(output.meta.get("val"), mode)

    def call(args: Any) -> list[Any]:
        args = list(args)
        mode = next((a.fake_mode for a in args if hasattr(a, "fake_mode")), fake_mode)
        return [value_of(output, args, mode) for output in outputs]

    call._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd passes one list
    return call


def _fresh(value: Any, mode: Any) -> Any:
    if isinstance(value, torch.SymInt):
        return _hint(value)
    if not isinstance(value, torch.Tensor):
        return value
    size, stride = map(_hint, value.shape), map(_hint, value.stride())
    with mode:
        return torch.empty_strided(list(size), list(stride), dtype=value.dtype, device=value.device)


def _hint(size: Any) -> int:
    return size if type(size) is int else int(size.node.hint)
