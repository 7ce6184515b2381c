"""Enter and leave a simulated device."""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from inductor_tables.errors import SimulationError
from inductor_tables.simulation import vendor
from inductor_tables.simulation.catalogue import DeviceSpec, device_spec
from inductor_tables.simulation.patching import Patches
from inductor_tables.simulation.records import Recorder
from inductor_tables.simulation.session import Simulation

_running = threading.Lock()


@contextlib.contextmanager
def simulate(
    device: str | DeviceSpec,
    *,
    pick: str | Callable[[Sequence[Any]], Any] = "first",
    codegen: bool = True,
    pad_mm: bool = False,
    keep_sources: bool = False,
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
        keep_sources: keep the Triton source of every offered choice (``OpLowering.sources``).

    Raises:
        SimulationError: the device is unknown; a real GPU is visible; a simulation is running;
            triton or its backend is missing; this process has imported torch._inductor for the
            other vendor; or ``pick`` is no rule.
    """
    spec = device_spec(device)
    vendor.refuse_real_gpu()
    vendor.require_triton(spec)
    if not _running.acquire(blocking=False):
        raise SimulationError("a simulation is already running in this process; leave it first")
    try:
        vendor.settle_vendor(spec)
        with Patches() as patches:
            vendor.patch_build(patches, spec)
            world = _import_world()
            folder = world.patch_device(patches, spec)
            recorder = Recorder(keep_sources=keep_sources)
            fake_mode = world.patch_lowering(
                patches, recorder, folder, pick=pick, codegen_too=codegen, pad_mm=pad_mm
            )
            yield Simulation(spec, recorder, fake_mode, tuple(patches.names))
    finally:
        _running.release()


def _import_world() -> Any:
    """Import torch._inductor and what patches it, now that the build is the vendor's."""
    return importlib.import_module("inductor_tables.simulation.world")
