"""What user code holds inside a simulation."""

from __future__ import annotations

import copy
import importlib
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from inductor_tables.simulation.catalogue import DeviceSpec
from inductor_tables.simulation.records import ChoicesCall, KernelReport, Note, OpLowering, Recorder

_DEVICE = "cuda:0"
_DEFAULT_OPTIONS = {"max_autotune_gemm": True}


class Simulation:
    """A simulated device: makes tensors and modules on it, compiles, and shows what happened.

    Attributes:
        spec: the device.
        fake_mode: the fake tensor mode of every tensor made here; user code that compiles by
            itself runs under it (``with sim.fake_mode:``).
        patched: dotted names of every attribute that is replaced meanwhile.
        seconds: duration of the last ``compile``, in seconds.
    """

    def __init__(
        self, spec: DeviceSpec, recorder: Recorder, fake_mode: Any, patched: tuple[str, ...]
    ) -> None:
        self.spec = spec
        self.fake_mode = fake_mode
        self.patched = patched
        self.seconds = 0.0
        self._recorder = recorder

    @property
    def calls(self) -> list[ChoicesCall]:
        """One record per call of the choices handler, in order."""
        return self._recorder.calls

    @property
    def ops(self) -> list[OpLowering]:
        """One record per operation that got a kernel, in order."""
        return self._recorder.ops

    @property
    def codes(self) -> list[str]:
        """The generated wrapper sources, one per graph; empty without ``codegen``."""
        return self._recorder.codes

    @property
    def notes(self) -> list[Note]:
        """What a real run would have decided with a stopwatch, in order."""
        return self._recorder.notes

    def clear(self) -> None:
        """Forget all records so far."""
        self._recorder.clear()

    def empty(self, *size: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return a contiguous simulated tensor; ``size`` as for ``torch.empty``."""
        with self.fake_mode:
            return torch.empty(*size, dtype=dtype, device=_DEVICE)

    def zeros(self, *size: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return what :meth:`empty` does: simulated tensors hold no values."""
        with self.fake_mode:
            return torch.zeros(*size, dtype=dtype, device=_DEVICE)

    def fake(self, tensor: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return a simulated tensor with the sizes and strides of one on another device.

        A parameter stays a parameter and ``requires_grad`` is kept.

        Args:
            tensor: read for its layout only.
            dtype: replaces the type of a floating-point tensor.
        """
        if dtype is None or not tensor.is_floating_point():
            dtype = tensor.dtype
        with self.fake_mode:
            fake = torch.empty_strided(tensor.size(), tensor.stride(), dtype=dtype, device=_DEVICE)
        if isinstance(tensor, torch.nn.Parameter):
            return torch.nn.Parameter(fake, requires_grad=tensor.requires_grad)
        return fake.requires_grad_(tensor.requires_grad)

    def module(
        self,
        module: torch.nn.Module | Callable[[], torch.nn.Module],
        dtype: torch.dtype | None = None,
    ) -> torch.nn.Module:
        """Return a copy of a module whose tensors are simulated; no weight is copied.

        Args:
            module: a module, left as it is, or a function that builds one; the function runs with
                the meta device as default, so that it allocates nothing.
            dtype: replaces the type of floating-point parameters and buffers.
        """
        if not isinstance(module, torch.nn.Module):
            with torch.device("meta"):
                module = module()
        # A copy that finds the simulated tensors in its memo takes them for the originals
        # wherever they are, so that tied weights stay tied.
        memo: dict[int, Any] = {}
        for tensor in _tensors_of(module):
            if id(tensor) not in memo:
                memo[id(tensor)] = self.fake(tensor, dtype)
        return copy.deepcopy(module, memo)

    def compile(
        self,
        function: Callable[..., Any],
        *args: Any,
        options: Mapping[str, Any] | None = None,
        grad: bool = False,
        dynamic: bool | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Compile a function or module, call it once, and return its simulated outputs.

        Dynamo is reset first.  Nothing runs.

        Args:
            function: what ``torch.compile`` takes.
            args: positional arguments of the call; tensors must be simulated.
            options: Inductor settings, added to ``{"max_autotune_gemm": True}``.
            grad: trace with gradients, which lowers the forward and the backward graph.
            dynamic: as in ``torch.compile``.
            kwargs: keyword arguments of the call.
        """
        torch._dynamo.reset()
        start = time.perf_counter()
        compiled: Any = torch.compile(
            function, options={**_DEFAULT_OPTIONS, **(options or {})}, dynamic=dynamic
        )
        with self.fake_mode, torch.set_grad_enabled(grad):
            outputs = compiled(*args, **(kwargs or {}))
        self.seconds = time.perf_counter() - start
        return outputs

    def kernel_sources(self) -> dict[str, str]:
        """Return the Triton sources of the generated code, by the kernel's name."""
        kernels = _kernels()
        return {name: text for c in self.codes for name, text in kernels.kernel_sources(c).items()}

    def compile_kernel(self, source: str, name: str | None = None) -> list[KernelReport]:
        """Compile one Triton source for the device, once per configuration that it lists.

        Takes 0.1 to 1 s a configuration and loads nothing.

        Args:
            source: one of :meth:`kernel_sources` or of ``OpLowering.sources``.
            name: the kernel's; needed where the source defines several.

        Raises:
            SimulationError: the source defines no such kernel.
        """
        reports: list[KernelReport] = _kernels().compile_kernel(self.spec, source, name)
        return reports


def _kernels() -> Any:
    """Import what needs torch._inductor, which a running simulation has imported."""
    return importlib.import_module("inductor_tables.simulation.kernels")


def _tensors_of(module: torch.nn.Module) -> list[torch.Tensor]:
    """Return parameters, buffers and plain tensor attributes of a module and all inside it."""
    tensors: list[torch.Tensor] = []
    for inner in module.modules():
        held = (*inner._parameters.values(), *inner._buffers.values(), *vars(inner).values())
        tensors.extend(value for value in held if isinstance(value, torch.Tensor))
    return tensors
