"""Read a catalogue entry from a real device."""

from __future__ import annotations

import torch
from triton.runtime import driver

from inductor_tables.simulation.catalogue import DeviceSpec, device_spec_from_properties


def read_device_spec(index: int = 0) -> DeviceSpec:
    """Read the spec of a GPU of this machine; needs torch, triton and the GPU. Launches nothing.

    Raises:
        RuntimeError: torch or triton finds no GPU.
    """
    target = driver.active.get_current_target()
    return device_spec_from_properties(
        torch.cuda.get_device_properties(index),
        driver.active.utils.get_device_properties(index),
        backend=target.backend,
        arch=target.arch,
    )
