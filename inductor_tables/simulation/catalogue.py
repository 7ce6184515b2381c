"""Devices that can be simulated, as facts; this module imports nothing of torch.

The values of a device decide what Inductor lowers for it: its name is part of every lookup key,
its multiprocessor count gates whole templates, its shared memory limits configurations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from inductor_tables.errors import SimulationError

Backend = Literal["cuda", "hip"]

_KIB = 1024
_MIB = 1024 * _KIB


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceSpec:
    """Everything a simulated device answers about itself.

    Sizes are in bytes and clock rates in kHz, as ``torch.cuda.get_device_properties`` gives them.

    Attributes:
        name: marketing name, ``torch.cuda.get_device_name()``.
        gcn_arch_name: ``gcnArchName``, the device part of a lookup key: the marketing name on
            CUDA, e.g. ``gfx942:sramecc+:xnack-`` on ROCm.
        backend: Triton's backend.
        triton_arch: the arch of Triton's ``GPUTarget``: 90 for sm_90, ``"gfx942"`` on ROCm.
        warp_size: threads of a warp (wavefront on ROCm).
        capability: (major, minor) compute capability.
        multi_processor_count: SMs (compute units on ROCm).
        total_memory: device memory, bytes.
        shared_memory_per_block: default limit of one block, bytes.
        shared_memory_per_block_optin: hard limit of one block, bytes; Triton checks this one.
        shared_memory_per_multiprocessor: bytes.
        regs_per_multiprocessor: 32-bit registers.
        l2_cache_size: bytes.
        clock_rate: SM clock, kHz.
        memory_clock_rate: kHz.
        memory_bus_width: bits.
        max_threads_per_multi_processor: threads.
        max_threads_per_block: threads.
    """

    name: str
    gcn_arch_name: str
    backend: Backend
    triton_arch: int | str
    warp_size: int
    capability: tuple[int, int]
    multi_processor_count: int
    total_memory: int
    shared_memory_per_block: int
    shared_memory_per_block_optin: int
    shared_memory_per_multiprocessor: int
    regs_per_multiprocessor: int
    l2_cache_size: int
    clock_rate: int
    memory_clock_rate: int
    memory_bus_width: int
    max_threads_per_multi_processor: int = 2048
    max_threads_per_block: int = 1024


_H200 = DeviceSpec(
    name="NVIDIA H200",
    gcn_arch_name="NVIDIA H200",
    backend="cuda",
    triton_arch=90,
    warp_size=32,
    capability=(9, 0),
    multi_processor_count=132,
    total_memory=150_109_880_320,
    shared_memory_per_block=48 * _KIB,
    shared_memory_per_block_optin=227 * _KIB,
    shared_memory_per_multiprocessor=228 * _KIB,
    regs_per_multiprocessor=65_536,
    l2_cache_size=60 * _MIB,
    clock_rate=1_980_000,
    memory_clock_rate=3_201_000,
    memory_bus_width=6016,
)

# Every entry below is taken from public data sheets, not read from a device.
_H100 = dataclasses.replace(
    _H200,
    name="NVIDIA H100 80GB HBM3",
    gcn_arch_name="NVIDIA H100 80GB HBM3",
    total_memory=85_017_493_504,
    l2_cache_size=50 * _MIB,
    memory_clock_rate=2_619_000,
    memory_bus_width=5120,
)

_A100 = dataclasses.replace(
    _H200,
    name="NVIDIA A100-SXM4-80GB",
    gcn_arch_name="NVIDIA A100-SXM4-80GB",
    triton_arch=80,
    capability=(8, 0),
    multi_processor_count=108,
    total_memory=84_974_239_744,
    shared_memory_per_block_optin=163 * _KIB,
    shared_memory_per_multiprocessor=164 * _KIB,
    l2_cache_size=40 * _MIB,
    clock_rate=1_410_000,
    memory_clock_rate=1_593_000,
    memory_bus_width=5120,
)

_B200 = dataclasses.replace(
    _H200,
    name="NVIDIA B200",
    gcn_arch_name="NVIDIA B200",
    triton_arch=100,
    capability=(10, 0),
    multi_processor_count=148,
    total_memory=191_503_138_816,
    l2_cache_size=126 * _MIB,
    clock_rate=1_965_000,
    memory_clock_rate=3_996_000,
    memory_bus_width=8192,
)

_MI300X = DeviceSpec(
    name="AMD Instinct MI300X",
    gcn_arch_name="gfx942:sramecc+:xnack-",
    backend="hip",
    triton_arch="gfx942",
    warp_size=64,
    capability=(9, 4),
    multi_processor_count=304,
    total_memory=206_141_652_992,
    shared_memory_per_block=64 * _KIB,
    shared_memory_per_block_optin=64 * _KIB,
    shared_memory_per_multiprocessor=64 * _KIB,
    regs_per_multiprocessor=131_072,
    l2_cache_size=4 * _MIB,
    clock_rate=2_100_000,
    memory_clock_rate=1_300_000,
    memory_bus_width=8192,
)

CATALOGUE: Mapping[str, DeviceSpec] = MappingProxyType(
    {spec.gcn_arch_name: spec for spec in (_H200, _H100, _A100, _B200, _MI300X)}
)
"""Known devices by ``gcnArchName``."""


def device_spec(device: str | DeviceSpec) -> DeviceSpec:
    """Return the catalogue's entry for a ``gcnArchName``, or the given spec itself.

    Raises:
        SimulationError: the catalogue has no such name.
    """
    if isinstance(device, DeviceSpec):
        return device
    try:
        return CATALOGUE[device]
    except KeyError:
        known = ", ".join(repr(name) for name in CATALOGUE)
        raise SimulationError(
            f"no device {device!r} in the simulation's catalogue; known: {known}. "
            "Give one of these, or a DeviceSpec of your own."
        ) from None


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
