"""A Triton driver that answers questions and launches nothing."""

from __future__ import annotations

import importlib.util
from typing import Any

from inductor_tables.errors import SimulationError
from inductor_tables.simulation.binaries import kernel_usage
from inductor_tables.simulation.catalogue import DeviceSpec
from inductor_tables.simulation.patching import Patches

_BACKEND_NAME = {"cuda": "nvidia", "hip": "amd"}


def refuse_launch(*_args: Any, **_kwargs: Any) -> Any:
    """Stand in for everything that needs a device.

    Raises:
        SimulationError: always.
    """
    raise SimulationError("a simulated device runs no kernels; only lowering and compiling work")


def triton_backend(spec: DeviceSpec) -> Any:
    """Return Triton's backend for the device.

    Raises:
        SimulationError: triton is not installed, or was built without the backend.
    """
    name = _BACKEND_NAME[spec.backend]
    if importlib.util.find_spec("triton") is None:
        raise SimulationError(
            "triton is not installed, and Inductor lowers nothing for a GPU without it; "
            "install the triton release that this torch names (CPU builds of torch leave it out)"
        )
    from triton.backends import backends

    if name not in backends:
        found = ", ".join(sorted(backends))
        raise SimulationError(
            f"this triton has no {name!r} backend, which {spec.name} needs; found: {found}"
        )
    return backends[name]


class _Utils:
    """Stands in for the driver's compiled helper module."""

    def __init__(self, spec: DeviceSpec) -> None:
        self._spec = spec

    def get_device_properties(self, device: int = 0) -> dict[str, int]:
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

    def load_binary(
        self, name: str, kernel: bytes, shared: int, device: int
    ) -> tuple[int, int, int, int, int]:
        """Return (module, function, registers, spills, most threads) as the real one does."""
        usage = kernel_usage(self._spec.backend, kernel)
        return 0, 0, usage.registers, usage.spills, self._spec.max_threads_per_block

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # so that copying and inspection see what is there
            raise AttributeError(name)
        return refuse_launch


def simulated_driver(spec: DeviceSpec) -> Any:
    """Return an instance of a subclass of the real driver: torch checks with isinstance."""
    import torch
    from triton.backends.compiler import GPUTarget

    base: Any = triton_backend(spec).driver
    target = GPUTarget(spec.backend, spec.triton_arch, spec.warp_size)
    methods = {
        # The real initialiser compiles and loads a helper against the vendor's runtime.
        "__init__": lambda self: None,
        "utils": _Utils(spec),
        "launcher_cls": staticmethod(lambda src, metadata: refuse_launch),
        "is_active": staticmethod(lambda: True),
        "get_current_target": lambda self: target,
        "get_current_device": lambda self: 0,
        "set_current_device": lambda self, device: None,
        "get_device_capability": lambda self, device=0: spec.capability,
        "get_current_stream": lambda self, device=0: 0,
        "get_active_torch_device": lambda self: torch.device("cuda", 0),
        "get_benchmarker": refuse_launch,
        "get_empty_cache_for_benchmark": refuse_launch,
        "clear_cache": refuse_launch,
    }
    return type("SimulatedDriver", (base,), methods)()


def patch_triton_driver(patches: Patches, spec: DeviceSpec) -> None:
    """Make the simulated driver the active one: the templates ask it for limits and the target."""
    from triton.runtime import driver

    # "active" is a property over "_active" since triton 3.5; the attribute itself before.
    name = "_active" if hasattr(driver, "_active") else "active"
    patches.replace(driver, name, simulated_driver(spec))
