"""A Triton driver that answers questions and launches nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from triton.backends import backends
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from inductor_tables.errors import SimulationError
from inductor_tables.simulation.binaries import kernel_usage
from inductor_tables.simulation.catalogue import DeviceSpec
from inductor_tables.simulation.patching import Patches
from inductor_tables.simulation.vendor import TRITON_BACKEND


def refuse_launch(*_args: Any, **_kwargs: Any) -> Any:
    """Stand in for everything that needs a device.

    Raises:
        SimulationError: always.
    """
    raise SimulationError("a simulated device runs no kernels; only lowering and compiling work")


class _Utils:
    """Stands in for the driver's compiled helper module."""

    def __init__(self, spec: DeviceSpec) -> None:
        self._spec = spec

    def get_device_properties(self, _device: int = 0) -> dict[str, int]:
        spec = self._spec
        return {
            "max_shared_mem": spec.shared_memory_per_block_optin,
            "max_num_regs": spec.regs_per_multiprocessor,
            "multiprocessor_count": spec.multi_processor_count,
            "warpSize": spec.warp_size,
            "sm_clock_rate": spec.clock_rate,
            "mem_clock_rate": spec.memory_clock_rate,
            "mem_bus_width": spec.memory_bus_width,
        }

    def load_binary(self, _name: str, kernel: bytes, *_rest: Any) -> tuple[int, ...]:
        """Return (module, function, registers, spills, most threads) as the real one does."""
        usage = kernel_usage(self._spec.backend, kernel)
        return 0, 0, usage.registers, usage.spills, self._spec.max_threads_per_block

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # so that copying and inspection see what is there
            raise AttributeError(name)
        return refuse_launch


def _answering(answer: Any) -> Callable[..., Any]:
    return lambda *_args, **_kwargs: answer


def simulated_driver(spec: DeviceSpec) -> Any:
    """Return an instance of a subclass of the real driver: torch checks with isinstance."""
    base: Any = backends[TRITON_BACKEND[spec.backend]].driver
    target = GPUTarget(spec.backend, spec.triton_arch, spec.warp_size)
    methods = {
        # The real initialiser compiles and loads a helper against the vendor's runtime.
        "__init__": _answering(None),
        "utils": _Utils(spec),
        "launcher_cls": staticmethod(_answering(refuse_launch)),
        "is_active": staticmethod(_answering(True)),
        "get_current_target": _answering(target),
        "get_current_device": _answering(0),
        "set_current_device": _answering(None),
        "get_device_capability": _answering(spec.capability),
        "get_current_stream": _answering(0),
        "get_active_torch_device": _answering(torch.device("cuda", 0)),
        "get_benchmarker": refuse_launch,
        "get_empty_cache_for_benchmark": refuse_launch,
        "clear_cache": refuse_launch,
    }
    return type("SimulatedDriver", (base,), methods)()


def patch_triton_driver(patches: Patches, spec: DeviceSpec) -> None:
    """Make the simulated driver the active one: the templates ask it for limits and the target."""
    patches.replace(driver, "_active", simulated_driver(spec))
