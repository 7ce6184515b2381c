"""Inductor's real lowering for a GPU that is not there.

Importing this package imports nothing of torch; using :func:`simulate` does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from inductor_tables.simulation.catalogue import (
    CATALOGUE,
    DeviceSpec,
    device_spec,
    device_spec_from_properties,
)
from inductor_tables.simulation.records import Choice, ChoicesCall, KernelReport, Note, OpLowering

if TYPE_CHECKING:
    from inductor_tables.simulation.context import simulate
    from inductor_tables.simulation.real_device import read_device_spec
    from inductor_tables.simulation.session import Simulation

__all__ = [
    "CATALOGUE",
    "Choice",
    "ChoicesCall",
    "DeviceSpec",
    "KernelReport",
    "Note",
    "OpLowering",
    "Simulation",
    "device_spec",
    "device_spec_from_properties",
    "read_device_spec",
    "simulate",
]

_HOME = {"Simulation": "session", "read_device_spec": "real_device", "simulate": "context"}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
