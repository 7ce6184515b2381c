"""Enter and leave a simulated device."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

from inductor_tables.errors import SimulationError
from inductor_tables.simulation import attention, autograd, caches, codegen, driver, guard
from inductor_tables.simulation import identity, observe, small_tensors, stopwatch
from inductor_tables.simulation.catalogue import Backend, DeviceSpec, device_spec
from inductor_tables.simulation.patching import Patches
from inductor_tables.simulation.records import Recorder
from inductor_tables.simulation.session import Simulation

_entered = threading.Lock()

# Set once a process: template registration and some settings read the vendor at import.
_vendor: Backend | None = None


@contextlib.contextmanager
def simulate(
    device: str | DeviceSpec,
    *,
    pick: observe.Pick = "first",
    codegen: bool = True,
    pad_mm: bool = False,
) -> Iterator[Simulation]:
    """Run Inductor's lowering for a device that is not there, until the context ends.

    Patches torch and triton for the whole process: give it a process of its own, and compile
    nothing else meanwhile.  Any choices handler may be active, before or inside the context.

    Args:
        device: a ``gcnArchName`` of the catalogue, or a spec.
        pick: which choice to take where several are left and a real run would time them:
            ``"first"`` of the list, ``"extern"`` (the first of ATen's kernels if there is one), or
            a function that gets the list of Inductor's choice callers and returns one of them.
        codegen: generate the wrapper sources (``Simulation.codes``); False saves that time.
        pad_mm: the answer where the pad_mm pass would time a padded product.

    Raises:
        SimulationError: the device is unknown; a real GPU is visible; a simulation is running;
            triton or its backend is missing; this process has imported torch._inductor for the
            other vendor; or ``pick`` is no rule.
    """
    spec = device_spec(device)
    observe.chooser(pick)
    driver.triton_backend(spec)
    _refuse_real_gpu()
    if not _entered.acquire(blocking=False):
        raise SimulationError("a simulation is already running in this process; leave it first")
    try:
        _settle_vendor(spec)
        with Patches() as patches:
            yield _simulation(patches, spec, pick=pick, codegen=codegen, pad_mm=pad_mm)
    finally:
        _entered.release()


def _refuse_real_gpu() -> None:
    import torch

    count = getattr(torch._C, "_cuda_getDeviceCount", lambda: 0)()
    if count:
        raise SimulationError(
            f"{count} real GPU(s) visible to this process, which the simulation would shadow; "
            'start it with CUDA_VISIBLE_DEVICES="" (HIP_VISIBLE_DEVICES="" on ROCm)'
        )


def _settle_vendor(spec: DeviceSpec) -> None:
    global _vendor
    import torch

    if _vendor is None:
        imported = "torch._inductor.config" in sys.modules
        _vendor = ("hip" if torch.version.hip else "cuda") if imported else spec.backend
    if _vendor != spec.backend:
        raise SimulationError(
            f"torch._inductor was imported for {_vendor!r} in this process and keeps that; "
            f"simulate {spec.gcn_arch_name} ({spec.backend!r}) in a fresh process"
        )


def _simulation(
    patches: Patches, spec: DeviceSpec, *, pick: observe.Pick, codegen: bool, pad_mm: bool
) -> Simulation:
    """Apply every patch.  The order matters at the marked places."""
    # First: what is imported next registers templates for the vendor.
    identity.patch_build(patches, spec)
    # Before torch.cuda is patched: Dynamo's rules refuse objects that are not the originals.
    _import_compiler()
    patches.callback(_forget)
    guard.ensure_device_guard()
    identity.patch_torch_cuda(patches, spec)
    identity.patch_dynamo_interface(patches, spec)
    identity.patch_accelerator_device(patches)
    identity.patch_fake_tensors(patches)
    driver.patch_triton_driver(patches, spec)
    folder = caches.patch_settings(patches)
    # After the device answers: what is cached from here on is cleared on leaving.
    _forget()
    return _recording(patches, spec, folder, pick=pick, codegen=codegen, pad_mm=pad_mm)


def _recording(
    patches: Patches,
    spec: DeviceSpec,
    folder: str,
    *,
    pick: observe.Pick,
    codegen: bool,
    pad_mm: bool,
) -> Simulation:
    from torch._subclasses.fake_tensor import FakeTensorMode

    recorder = Recorder()
    fake_mode = FakeTensorMode(allow_non_fake_inputs=True)
    small_tensors.patch_small_tensors(patches)
    attention.patch_attention(patches)
    autograd.patch_autograd(patches)
    stopwatch.patch_pad_mm(patches, recorder, answer=pad_mm)
    observe.patch_handler_calls(patches, recorder)
    observe.patch_selector(patches, recorder, pick)
    codegen.patch_codegen(patches, recorder, folder, codegen=codegen)
    codegen.patch_compile_fx(patches, recorder, fake_mode)
    return Simulation(spec, recorder, fake_mode, tuple(patches.names))


def _import_compiler() -> None:
    import torch._dynamo.device_interface
    import torch._dynamo.trace_rules
    import torch._inductor.compile_fx
    import torch._inductor.lookup_table.choices  # noqa: F401


def _forget() -> None:
    """Drop what Dynamo and Inductor remember of a device, simulated or real."""
    from typing import cast

    import torch

    caches.clear_device_caches()
    cast(Any, torch._dynamo).reset()
