"""The simulated device as torch.cuda, Dynamo and fake tensors see it."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch._dynamo import device_interface
from torch._inductor import utils
from torch._subclasses import fake_tensor

from inductor_tables.simulation.catalogue import DeviceSpec
from inductor_tables.simulation.patching import Patches

_NO_UUID = "00000000-0000-0000-0000-000000000000"


def properties_of(spec: DeviceSpec) -> types.SimpleNamespace:
    """Return a stand-in for ``torch.cuda.get_device_properties()``."""
    properties = types.SimpleNamespace(
        name=spec.name,
        gcnArchName=spec.gcn_arch_name,
        major=spec.capability[0],
        minor=spec.capability[1],
        multi_processor_count=spec.multi_processor_count,
        total_memory=spec.total_memory,
        warp_size=spec.warp_size,
        max_threads_per_multi_processor=spec.max_threads_per_multi_processor,
        max_threads_per_block=spec.max_threads_per_block,
        regs_per_multiprocessor=spec.regs_per_multiprocessor,
        shared_memory_per_block=spec.shared_memory_per_block,
        L2_cache_size=spec.l2_cache_size,
        is_integrated=0,
        is_multi_gpu_board=0,
        uuid=_NO_UUID,
    )
    if spec.backend == "cuda":  # ROCm builds have none of these
        properties.shared_memory_per_block_optin = spec.shared_memory_per_block_optin
        properties.shared_memory_per_multiprocessor = spec.shared_memory_per_multiprocessor
        properties.clock_rate = spec.clock_rate
        properties.memory_clock_rate = spec.memory_clock_rate
        properties.memory_bus_width = spec.memory_bus_width
    return properties


def _always(answer: Any) -> Callable[..., Any]:
    """Return a new function each time: Dynamo keeps its handlers by function."""
    return lambda *_args, **_kwargs: answer


def _nothing() -> Callable[..., None]:
    """Stand in for calls that only have an effect on a real device."""
    return _always(None)


def _device_answers(spec: DeviceSpec) -> dict[str, Any]:
    """Return the functions that both torch.cuda and Dynamo's interface hold, by name."""
    properties = properties_of(spec)
    stream = types.SimpleNamespace(
        cuda_stream=0, stream_id=0, device_index=0, device_type=1, synchronize=_nothing()
    )
    bf16 = spec.backend == "hip" or spec.capability >= (8, 0)
    return {
        "current_device": _always(0),
        "current_stream": _always(stream),
        "device_count": _always(1),
        "get_device_properties": _always(properties),
        "is_bf16_supported": _always(bf16),
        "memory_allocated": _always(0),
        "set_device": _nothing(),
        "synchronize": _nothing(),
    }


def _rng_state(_device: Any = "cuda") -> Any:
    return torch.zeros(16, dtype=torch.uint8, device="cpu")


def patch_torch_cuda(patches: Patches, spec: DeviceSpec) -> None:
    """Answer questions about the device, and never initialise one."""
    memory = (spec.total_memory, spec.total_memory)
    arch = f"sm_{spec.triton_arch}" if spec.backend == "cuda" else spec.triton_arch
    answers = _device_answers(spec) | {
        "_exchange_device": _always(0),
        "_lazy_init": _nothing(),
        "_maybe_exchange_device": _always(0),
        "get_arch_list": _always([arch]),
        "get_device_capability": _always(spec.capability),
        "get_device_name": _always(spec.name),
        "get_rng_state": _rng_state,
        "is_available": _always(True),
        "is_current_stream_capturing": _always(False),
        # Code that finds it initialised goes on to call into the driver.
        "is_initialized": _always(False),
        "max_memory_allocated": _always(0),
        "mem_get_info": _always(memory),
        "set_rng_state": _nothing(),
    }
    for name, answer in answers.items():
        patches.replace(torch.cuda, name, answer, if_present=True)


def patch_dynamo_interface(patches: Patches, spec: DeviceSpec) -> None:
    """Answer in Dynamo's interface too: it took its own references when it was imported."""
    answers = _device_answers(spec) | {
        "exchange_device": _always(0),
        "get_raw_stream": _always(0),
        "maybe_exchange_device": _always(0),
    }
    for name, answer in answers.items():
        patches.replace(device_interface.CudaInterface, name, staticmethod(answer), if_present=True)
    # The worker's caches are filled once a process, and would outlive the simulation.
    properties = answers["get_device_properties"]()
    patches.replace(device_interface, "caching_worker_device_properties", {"cuda": [properties]})
    patches.replace(device_interface, "caching_worker_current_devices", {"cuda": 0})


def patch_accelerator_device(patches: Patches) -> None:
    """Name the device where torch 2.15 asks torch.accelerator for roofline numbers.

    Patching torch.accelerator itself breaks Dynamo on CPU builds.
    """
    device = torch.device("cuda", 0)
    patches.replace(utils, "_current_accelerator_device", lambda: device, if_present=True)


def patch_fake_tensors(patches: Patches) -> None:
    """Keep fake tensors from initialising the device that now "is available"."""
    patches.replace(fake_tensor.FakeTensorMode, "avoid_device_init", property(_always(True)))
    patches.replace(fake_tensor, "init_gpu_context", _nothing(), if_present=True)
