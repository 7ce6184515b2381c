"""Compiles rendered candidates on all cores and binds them to tensors.

The compiles go to Inductor's own pool of worker processes, which hands back kernels that
need only be loaded; what is launched is what ``torch/_inductor/autotune_process.py``,
``TritonBenchmarkRequest.make_run_fn`` launches on 2.11 and 2.13.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch._inductor import config as inductor_config
from torch._inductor.async_compile import AsyncCompile, shutdown_compile_workers
from torch._inductor.autotune_process import TensorMeta
from torch._inductor.codecache import PyCodeCache
from torch._inductor.compile_worker.subproc_pool import SubprocException
from torch._inductor.select_algorithm import ExternKernelCaller, TritonTemplateCaller
from triton.errors import TritonError

from build_tools.tune.lowering import Lowered

Tensors = Mapping[str, torch.Tensor]
Launch = Callable[[], "torch.Tensor | None"]
"""Launches once; returns the result if it does not write it to the output it was bound to."""

FAILURES: Final = (
    RuntimeError, ValueError, TypeError, OSError, AssertionError, NotImplementedError, LookupError,
    SubprocException, TritonError,
)  # fmt: skip
"""What compiling, loading and launching a candidate raise."""

_POOL_TIMEOUT_S: Final = 120


class Kernel:
    """A candidate that can be launched once it is compiled.

    Attributes:
        choice: the host's choice caller.
        output: sizes and strides of the result.
        future: its compile in a worker process, None where there is none to wait for.
        returns: a launch returns its result, and writes nothing into the output.
    """

    future: Any = None
    returns = False

    def __init__(self, choice: Any) -> None:
        self.choice = choice
        self.output = choice.bmreq.output_tensor_meta

    def load(self) -> None:
        """Make it ready to launch.

        Raises:
            RuntimeError: it could not be compiled or loaded.
        """

    def arguments(self, tensors: Tensors) -> list[torch.Tensor]:
        """Return what it takes, from the inputs by their names in the graph."""
        return _views(self.choice.bmreq.input_tensor_meta, tensors)

    def bind(self, tensors: Tensors, out: torch.Tensor) -> Launch:
        """Bind it to inputs, by their names in the graph, an output and the current stream."""
        raise NotImplementedError

    def unload(self) -> None:
        """Forget what was loaded."""


class TritonKernel(Kernel):
    """A template's kernel, compiled by a worker process."""

    def __init__(self, choice: Any) -> None:
        super().__init__(choice)
        with open(choice.bmreq.module_path, encoding="utf-8") as file:
            source = file.read()
        found = AsyncCompile().triton(choice.bmreq.kernel_name, source)
        self._pending: Any = found if hasattr(found, "result") else None
        self._kernel: Any = None if self._pending is not None else found
        self.future = getattr(self._pending, "future", None)

    def load(self) -> None:
        """Load the binary into this process."""
        if self._kernel is None:
            self._kernel = self._pending.result()
            self._pending = self.future = None

    def arguments(self, tensors: Tensors) -> list[torch.Tensor]:
        """Return the buffers that its inputs are views of."""
        return [tensors[meta.name] for meta in self.choice.bmreq.input_tensor_meta]

    def bind(self, tensors: Tensors, out: torch.Tensor) -> Launch:
        """Bind it; templates with a workspace get one of their own."""
        extra = [
            self._workspace(out) if isinstance(value, str) else value
            for value in self.choice.bmreq.extra_args
        ]
        stream = torch.cuda.current_stream().cuda_stream
        inputs = self.arguments(tensors)
        return functools.partial(
            self._kernel.run, *inputs, out, *extra, stream=stream, benchmark_run=True
        )

    def unload(self) -> None:
        """Drop the kernel and the module that the template was rendered to."""
        path = self.choice.bmreq.module_path
        self._kernel = self._pending = self.future = None
        PyCodeCache.modules[:] = [
            module for module in PyCodeCache.modules if getattr(module, "__file__", None) != path
        ]
        PyCodeCache.modules_no_attr.pop(path, None)
        PyCodeCache.linemaps.pop(path, None)

    def _workspace(self, out: torch.Tensor) -> torch.Tensor:
        """Return what stands for the placeholder among the arguments."""
        size = self.choice.bmreq.workspace_size
        make = torch.zeros if self.choice.bmreq.workspace_zero_fill else torch.empty
        return make((size,), dtype=torch.uint8, device=out.device)


class ExternKernel(Kernel):
    """One of ATen's kernels."""

    def __init__(self, choice: Any) -> None:
        super().__init__(choice)
        self.returns = not choice.has_out_variant

    def bind(self, tensors: Tensors, out: torch.Tensor) -> Launch:
        """Bind it to views as the graph has them."""
        function = self.choice.to_callable()
        inputs = self.arguments(tensors)
        if self.choice.has_out_variant:
            return functools.partial(function, *inputs, out=out)
        return functools.partial(function, *inputs)


class SubgraphKernel(Kernel):
    """A choice that is a graph, such as a product split along K."""

    returns = True

    def __init__(self, choice: Any, lowered: Lowered) -> None:
        self.choice = choice
        with lowered.context():
            self.output = TensorMeta.from_irnodes(choice.layout)
            self._inputs = TensorMeta.from_irnodes(choice.input_nodes)
            self._module = choice._compile_for_benchmarking()
        choice._compiled_module = self._module  # for the host's own benchmarker

    def arguments(self, tensors: Tensors) -> list[torch.Tensor]:
        """Return views as the graph has them."""
        return _views(self._inputs, tensors)

    def bind(self, tensors: Tensors, out: torch.Tensor) -> Launch:  # noqa: ARG002 - it returns it
        """Bind it to views as the graph has them."""
        inputs = self.arguments(tensors)
        sizes, call = self.choice.sym_input_values, self._module.call

        def launch() -> torch.Tensor:
            result: torch.Tensor = call([*sizes, *inputs])[0]  # the call empties its list
            return result

        return launch


def kernel_of(choice: Any, lowered: Lowered) -> Kernel:
    """Begin to compile a choice.

    Raises:
        ValueError: it is of a kind that the tuner does not know.
        RuntimeError: it is a graph and cannot be compiled.
    """
    if isinstance(choice, TritonTemplateCaller):
        return TritonKernel(choice)
    if isinstance(choice, ExternKernelCaller):
        return ExternKernel(choice)
    if hasattr(choice, "_compile_for_benchmarking"):
        if not hasattr(choice, "sym_input_values"):
            raise ValueError("a graph as a choice is launched otherwise before torch 2.11")
        return SubgraphKernel(choice, lowered)
    raise ValueError(f"the tuner does not know choices of type {type(choice).__name__}")


def start_pool(workers: int) -> None:
    """Start the worker processes, and wait until they answer; 1 worker: compile in here.

    Importing torch._inductor may have started others, before the environment was set.
    """
    shutdown_compile_workers()
    inductor_config.compile_threads = workers
    if workers > 1:
        AsyncCompile.wait_pool_ready(_POOL_TIMEOUT_S)


def stop_pool() -> None:
    """End the worker processes."""
    shutdown_compile_workers()


def cores() -> int:
    """Return how many cores this process may use, shared by the workers of its host."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max((usable or 1) // max(int(os.environ.get("LOCAL_WORLD_SIZE", "1")), 1), 1)


def _views(metas: Sequence[Any], tensors: Tensors) -> list[torch.Tensor]:
    return [
        torch.as_strided(tensors[meta.name], meta.sizes, meta.strides, meta.offset)
        for meta in metas
    ]
