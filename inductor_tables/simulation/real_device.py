"""Read a catalogue entry from a real device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inductor_tables.simulation.catalogue import Backend, DeviceSpec


def device_spec_from_properties(
    properties: Any, triton_properties: Mapping[str, int], *, backend: Backend, arch: int | str
) -> DeviceSpec:
    """Build a spec from what a real device says about itself.

    Args:
        properties: ``torch.cuda.get_device_properties(index)``.
        triton_properties: ``triton.runtime.driver.active.utils.get_device_properties(index)``;
            it holds the opt-in shared memory limit and the clocks, which ROCm's properties lack.
        backend: ``GPUTarget.backend``.
        arch: ``GPUTarget.arch``.
    """
    optin = triton_properties["max_shared_mem"]
    return DeviceSpec(
        name=properties.name,
        gcn_arch_name=properties.gcnArchName,
        backend=backend,
        triton_arch=arch,
        warp_size=properties.warp_size,
        capability=(properties.major, properties.minor),
        multi_processor_count=properties.multi_processor_count,
        total_memory=properties.total_memory,
        shared_memory_per_block=properties.shared_memory_per_block,
        shared_memory_per_block_optin=optin,
        shared_memory_per_multiprocessor=getattr(
            properties, "shared_memory_per_multiprocessor", optin
        ),
        regs_per_multiprocessor=properties.regs_per_multiprocessor,
        l2_cache_size=properties.L2_cache_size,
        clock_rate=triton_properties["sm_clock_rate"],
        memory_clock_rate=triton_properties["mem_clock_rate"],
        memory_bus_width=triton_properties["mem_bus_width"],
        max_threads_per_multi_processor=properties.max_threads_per_multi_processor,
        max_threads_per_block=getattr(properties, "max_threads_per_block", 1024),
    )


def read_device_spec(index: int = 0) -> DeviceSpec:
    """Read the spec of a GPU of this machine; needs torch, triton and the GPU. Launches nothing.

    Raises:
        RuntimeError: torch or triton finds no GPU.
    """
    import torch
    from triton.runtime import driver

    active: Any = driver.active
    target = active.get_current_target()
    return device_spec_from_properties(
        torch.cuda.get_device_properties(index),
        active.utils.get_device_properties(index),
        backend=target.backend,
        arch=target.arch,
    )
