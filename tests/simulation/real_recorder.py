"""A real device behind the interface of the simulated one: compiles, runs, and is watched.

The records are made by the code that makes the simulation's, so that they can be compared.
Nothing is benchmarked but what the pad_mm pass times: the first choice is always taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._functorch import config as functorch_config
from torch._inductor import compile_fx, config
from torch._inductor.fx_passes import pad_mm

from inductor_tables.simulation import codegen, observe
from inductor_tables.simulation.patching import Patches
from inductor_tables.simulation.records import ChoicesCall, Recorder

OPTIONS = {"max_autotune_gemm": True}


class RealDevice:
    """Makes tensors and modules on a device, compiles and runs, and keeps what was asked.

    Attributes:
        padding: what the pad_mm pass decided with its stopwatch, as (what, padded), in order.
        run_error: what the last compiled function raised when it ran; None where it ran.
    """

    def __init__(self, device: str, recorder: Recorder) -> None:
        self.device = device
        self.padding: list[tuple[str, bool]] = []
        self.run_error: str | None = None
        self.open_graphs = 0
        self._recorder = recorder

    @property
    def calls(self) -> list[ChoicesCall]:
        """One record per call of the choices handler, in order."""
        return self._recorder.calls

    def clear(self) -> None:
        """Forget all records so far."""
        self._recorder.clear()
        self.padding.clear()
        self.run_error = None
        self.open_graphs = 0

    def empty(self, *size: Any, dtype: Any = None) -> Any:
        """Return a contiguous tensor of random numbers."""
        return torch.randn(*size, device=self.device).to(dtype)

    def zeros(self, *size: Any, dtype: Any = None) -> Any:
        """Return a contiguous tensor of zeros."""
        return torch.zeros(*size, device=self.device, dtype=dtype)

    def module(self, module: Callable[[], Any], dtype: Any = None) -> Any:
        """Build a module on the device, its floating-point tensors in a dtype."""
        with torch.device(self.device):
            return module().to(dtype)

    def compile(
        self, function: Any, *args: Any, grad: bool = False, dynamic: bool | None = None
    ) -> None:
        """Compile a function, run it, and where ``grad``, its backward.

        An exception of a compiled function that runs is kept in :attr:`run_error`, because what
        it asked for is known by then; one of the compilation is raised.
        """
        torch._dynamo.reset()
        compiled: Any = torch.compile(function, options=OPTIONS, dynamic=dynamic)
        try:
            with torch.set_grad_enabled(grad):
                result = compiled(*args)
                if grad:
                    result.backward()
            if self.device == "cuda":
                torch.cuda.synchronize()
        except Exception as error:
            if self.open_graphs or not self.calls:
                raise
            self.run_error = f"{type(error).__name__}: {error}"


@contextmanager
def recorded_device(device: str = "cuda") -> Iterator[RealDevice]:
    """Watch Inductor on a real device until the context ends.

    Caches of whole graphs are off: a hit would skip the lowering that is watched.
    """
    recorder = Recorder()
    real = RealDevice(device, recorder)
    with Patches() as patches:
        patches.enter_context(config.patch(fx_graph_cache=False, fx_graph_remote_cache=False))
        patches.enter_context(functorch_config.patch(enable_autograd_cache=False))
        observe.patch_handler_calls(patches, recorder)
        observe.patch_selector(patches, recorder, "first")
        _watch_graphs(patches, recorder, real)
        _watch_padding(patches, real)
        yield real


def _watch_graphs(patches: Patches, recorder: Recorder, real: RealDevice) -> None:
    """Note which graph is being compiled, and whether it came to its end."""
    real_inner = compile_fx.compile_fx_inner

    def inner(*args: Any, **kwargs: Any) -> Any:
        real.open_graphs += 1
        with codegen._graph(recorder, kwargs):
            compiled = real_inner(*args, **kwargs)
        real.open_graphs -= 1
        return compiled

    def lowered(
        original: Any, model: Any, inputs: Any, inner_compile: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        if inner_compile is None or inner_compile is real_inner:
            inner_compile = inner
        return original(model, inputs, inner_compile, *args, **kwargs)

    patches.wrap(compile_fx, "compile_fx", lowered)


def _watch_padding(patches: Patches, real: RealDevice) -> None:
    """Note what the pad_mm pass decides where its rules leave the question to a benchmark."""
    timed: list[bool] = []

    def key(original: Any, *args: Any, **kwargs: Any) -> Any:
        timed.append(True)
        return original(*args, **kwargs)

    def should_pad(original: Any, *args: Any, **kwargs: Any) -> Any:
        timed.clear()
        answer = original(*args, **kwargs)
        if timed or answer:
            _match, left, right, op = args[:4]
            what = f"{op} of {list(left.shape)} and {list(right.shape)}"
            real.padding.append((what, bool(answer)))
        return answer

    patches.wrap(pad_mm, "should_pad_bench_key", key)
    # The function is called _should_pad_bench in 2.10.
    patches.wrap(pad_mm, "_should_pad", should_pad, if_present=True)
    patches.wrap(pad_mm, "_should_pad_bench", should_pad, if_present=True)
