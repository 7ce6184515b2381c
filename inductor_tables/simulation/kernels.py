"""Compile generated Triton kernels for the simulated device, without loading them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import triton
from torch._inductor import config
from torch._inductor.codecache import PyCodeCache
from triton.errors import TritonError

from inductor_tables.errors import SimulationError
from inductor_tables.simulation.binaries import kernel_usage
from inductor_tables.simulation.catalogue import DeviceSpec
from inductor_tables.simulation.patching import Patches
from inductor_tables.simulation.records import KernelReport

_GENERATED = re.compile(
    r"^\w+ = async_compile\.triton\('(\w+)', '''\n(.*?)''', device_str=", re.DOTALL | re.MULTILINE
)


def kernel_sources(code: str) -> dict[str, str]:
    """Return the Triton sources inside one generated wrapper, by the kernel's name."""
    return {found[1]: found[2] for found in _GENERATED.finditer(code)}


def compile_kernel(spec: DeviceSpec, source: str, name: str | None = None) -> list[KernelReport]:
    """Compile one generated Triton module, once for each configuration that it lists.

    Args:
        spec: the device, which must be the one that is being simulated.
        source: what ``async_compile.triton`` gets, or a template renders.
        name: the kernel's; needed where the source defines several.

    Raises:
        SimulationError: the source defines no such kernel.
    """
    tuner = _tuner(PyCodeCache.load(source), name)
    return [_report(spec, tuner, configuration) for configuration in tuner.configs]


def _tuner(module: Any, name: str | None) -> Any:
    """Return Inductor's autotuner object, which a decorator put in the kernel's place."""
    found = {k: v for k, v in vars(module).items() if hasattr(v, "_precompile_config")}
    if name is None and len(found) == 1:
        return next(iter(found.values()))
    if name not in found:
        raise SimulationError(
            f"no kernel {name!r} in the source; it defines {sorted(found)}: name one of these"
        )
    return found[name]


def _report(spec: DeviceSpec, tuner: Any, configuration: Any) -> KernelReport:
    compiled: list[Any] = []
    error = ""
    start = time.perf_counter()
    with Patches() as patches:
        # The static launcher would load the binary.
        patches.enter_context(config.patch(use_static_cuda_launcher=False))
        patches.wrap(triton, "compile", _keeping(compiled))
        try:
            tuner._precompile_config(configuration)
        except (TritonError, RuntimeError) as failure:
            error = f"{type(failure).__name__}: {failure}"
    return KernelReport(
        name=str(tuner.inductor_meta.get("kernel_name") or tuner.fn.__name__),
        configuration=str(configuration),
        seconds=time.perf_counter() - start,
        error=error,
        **(dict(_figures(spec, compiled[0])) if compiled else {}),
    )


def _keeping(compiled: list[Any]) -> Any:
    def compile_and_keep(original: Any, *args: Any, **kwargs: Any) -> Any:
        compiled.append(original(*args, **kwargs))
        return compiled[-1]

    return compile_and_keep


def _figures(spec: DeviceSpec, compiled: Any) -> Iterator[tuple[str, Any]]:
    usage = kernel_usage(spec.backend, compiled.kernel, compiled.asm.get("amdgcn"))
    shared = compiled.metadata.shared
    yield "shared_memory", shared
    yield "registers", usage.registers
    yield "spills", usage.spills
    threads = compiled.metadata.num_warps * spec.warp_size
    yield (
        "fits",
        shared <= spec.shared_memory_per_block_optin and threads <= spec.max_threads_per_block,
    )
