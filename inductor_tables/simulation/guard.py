"""Keep a CPU build of torch from aborting when autograd meets a CUDA tensor.

Every node of an autograd graph asks c10's registry for the guard of its tensors' device, from a
function that may not raise: where a CPU build's registry has no guard for CUDA, the process aborts.
A CUDA build has one, and its own ``torch._C._ensureCUDADeviceGuardSet``, which fake tensor modes
call, makes it a guard that does nothing where no device is there.  No call from Python reaches the
empty slot of a CPU build, so that the address of the guard for meta tensors, which does nothing
either, is copied into it.  (``c10/core/impl/DeviceGuardImplInterface.h``, 2.10 to 2.15.)
"""

from __future__ import annotations

import ctypes
import pathlib

import torch

from inductor_tables.errors import SimulationError

# c10::DeviceType
_CUDA = 1
_META = 14
_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"


def ensure_device_guard() -> None:
    """Give a CPU build a device guard for CUDA that does nothing; a CUDA build has its own.

    The guard stays when the simulation ends: nothing else in a CPU build reads the slot, and a
    simulated tensor that outlives its simulation would otherwise still abort the process.

    Raises:
        SimulationError: this build's registry is not where it is in the supported versions.
    """
    if torch.cuda._is_compiled():
        return
    slots = _registry(pathlib.Path(torch.__file__).parent / "lib")
    if not slots[_META]:
        raise SimulationError(
            f"torch {torch.__version__} has no device guard for meta tensors, so that training "
            "graphs cannot be simulated with this CPU build; a CUDA build needs no such help"
        )
    if not slots[_CUDA]:
        slots[_CUDA] = slots[_META]


def _registry(folder: pathlib.Path) -> ctypes.Array[ctypes.c_void_p]:
    for name in ("libc10.so", "libc10.dylib", "c10.dll"):
        if (folder / name).exists():
            try:
                return (ctypes.c_void_p * (_META + 1)).in_dll(
                    ctypes.CDLL(str(folder / name)), _REGISTRY
                )
            except ValueError as error:
                raise SimulationError(f"{name} has no device guard registry: {error}") from error
    raise SimulationError(f"no c10 library in {folder}, so no device guard can be set")
