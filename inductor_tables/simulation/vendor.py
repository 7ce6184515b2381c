"""What the process must be before it can simulate: its GPUs, its triton, its vendor."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

import torch

from inductor_tables.errors import SimulationError
from inductor_tables.simulation.catalogue import Backend, DeviceSpec
from inductor_tables.simulation.patching import Patches

TRITON_BACKEND = {"cuda": "nvidia", "hip": "amd"}
"""Triton's name of each backend's folder."""

# What a build without the vendor's runtime claims while it simulates.
_RUNTIME_VERSION = {"cuda": "13.0", "hip": "7.0"}

# Set once a process: template registration and some settings read the vendor at import.
_vendor: Backend | None = None


def refuse_real_gpu() -> None:
    """Check that no GPU is visible.

    Raises:
        SimulationError: one is.
    """
    count = getattr(torch._C, "_cuda_getDeviceCount", lambda: 0)()
    if count:
        raise SimulationError(
            f"{count} real GPU(s) visible to this process, which the simulation would shadow; "
            'start it with CUDA_VISIBLE_DEVICES="" (HIP_VISIBLE_DEVICES="" on ROCm)'
        )


def require_triton(spec: DeviceSpec) -> None:
    """Check that triton can compile for the device.

    Raises:
        SimulationError: it is not installed, or has no backend for the vendor.
    """
    if importlib.util.find_spec("triton") is None:
        raise SimulationError(
            "triton is not installed, and Inductor lowers nothing for a GPU without it; "
            "install the triton release that belongs to this torch (CPU builds leave it out)"
        )
    backends: Any = importlib.import_module("triton.backends").backends
    name = TRITON_BACKEND[spec.backend]
    if name not in backends:
        found = ", ".join(sorted(backends))
        raise SimulationError(
            f"this triton has no {name!r} backend, which {spec.name} needs; found: {found}"
        )


def settle_vendor(spec: DeviceSpec) -> None:
    """Bind the process to the device's vendor, unless torch._inductor has bound it already.

    Raises:
        SimulationError: the process is bound to the other vendor.
    """
    global _vendor  # noqa: PLW0603 - it is the process's
    if _vendor is None:
        imported = "torch._inductor.config" in sys.modules
        _vendor = ("hip" if torch.version.hip else "cuda") if imported else spec.backend
    if _vendor != spec.backend:
        raise SimulationError(
            f"torch._inductor was imported for {_vendor!r} in this process and keeps that; "
            f"simulate {spec.gcn_arch_name} ({spec.backend!r}) in a fresh process"
        )


def patch_build(patches: Patches, spec: DeviceSpec) -> None:
    """Claim a build for the device's vendor; before torch._inductor is first imported.

    Template registration and some defaults of the configuration read ``torch.version.hip`` once,
    at import.
    """
    for vendor in ("cuda", "hip"):
        version = getattr(torch.version, vendor) or _RUNTIME_VERSION[vendor]
        patches.replace(torch.version, vendor, version if vendor == spec.backend else None)
