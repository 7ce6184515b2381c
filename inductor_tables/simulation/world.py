"""Every patch of a simulation, in the order that they need.

Importing this module imports torch._inductor: claim the vendor's build first.
"""

from __future__ import annotations

import torch

# Dynamo's rules list the functions of torch.cuda: they must be imported before any is replaced.
import torch._dynamo.trace_rules
from torch._subclasses.fake_tensor import FakeTensorMode

from inductor_tables.simulation import (
    attention,
    autograd,
    caches,
    codegen,
    driver,
    guard,
    identity,
    observe,
    small_tensors,
    stopwatch,
)
from inductor_tables.simulation.catalogue import DeviceSpec
from inductor_tables.simulation.patching import Patches
from inductor_tables.simulation.records import Recorder


def patch_device(patches: Patches, spec: DeviceSpec) -> str:
    """Put the device in place; return a folder for files that live as long as the patches."""
    patches.callback(_forget_device)
    guard.ensure_device_guard()
    identity.patch_torch_cuda(patches, spec)
    identity.patch_dynamo_interface(patches, spec)
    identity.patch_accelerator_device(patches)
    identity.patch_fake_tensors(patches)
    driver.patch_triton_driver(patches, spec)
    folder = caches.patch_settings(patches)
    _forget_device()
    return folder


def patch_lowering(
    patches: Patches,
    recorder: Recorder,
    folder: str,
    *,
    pick: observe.Pick,
    codegen_too: bool,
    pad_mm: bool,
) -> FakeTensorMode:
    """Make lowering go on where it would need the device, and record what it decides."""
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    small_tensors.patch_small_tensors(patches)
    attention.patch_attention(patches)
    autograd.patch_autograd(patches)
    stopwatch.patch_pad_mm(patches, recorder, answer=pad_mm)
    observe.patch_handler_calls(patches, recorder)
    observe.patch_selector(patches, recorder, pick)
    codegen.patch_codegen(patches, recorder, folder, codegen=codegen_too)
    codegen.patch_compile_fx(patches, recorder, fake_mode)
    return fake_mode


def _forget_device() -> None:
    """Drop what Dynamo and Inductor remember of a device, simulated or real."""
    caches.clear_device_caches()
    torch._dynamo.reset()
