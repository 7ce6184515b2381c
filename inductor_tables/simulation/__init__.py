"""Inductor's real lowering for a GPU that is not there.

Importing this package imports nothing of torch; entering :func:`simulate` does.
"""

from __future__ import annotations

from inductor_tables.simulation.catalogue import CATALOGUE, DeviceSpec, device_spec
from inductor_tables.simulation.context import simulate
from inductor_tables.simulation.real_device import device_spec_from_properties, read_device_spec
from inductor_tables.simulation.records import Choice, ChoicesCall, Note, OpLowering
from inductor_tables.simulation.session import Simulation


__all__ = [
    "CATALOGUE",
    "Choice",
    "ChoicesCall",
    "DeviceSpec",
    "Note",
    "OpLowering",
    "Simulation",
    "device_spec",
    "device_spec_from_properties",
    "read_device_spec",
    "simulate",
]
