"""Precomputed kernel choices for ``torch.compile``: GEMMs from a table, not autotuning.

>>> import inductor_tables
>>> inductor_tables.enable()  # doctest: +SKIP

Importing this package imports nothing but itself; torch is imported when it is needed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from inductor_tables import config as config
    from inductor_tables import recorder as recorder
    from inductor_tables.activation import disable, enable, is_enabled, status
    from inductor_tables.agreement import check_agreement
    from inductor_tables.analysis.survey import coverage
    from inductor_tables.errors import (
        BuildError,
        DisagreementError,
        ForeignHandlerError,
        InductorTablesError,
        InvalidDumpError,
        InvalidKeyError,
        InvalidProblemsError,
        InvalidTableError,
        NoTableError,
        SimulationError,
        TargetError,
        UnsupportedTorchError,
    )
    from inductor_tables.recorder import record
    from inductor_tables.simulation import simulate

__version__ = "0.1.0"

_HOME = {
    "disable": "activation",
    "enable": "activation",
    "is_enabled": "activation",
    "status": "activation",
    "check_agreement": "agreement",
    "coverage": "analysis.survey",
    "record": "recorder",
    "simulate": "simulation",
    "BuildError": "errors",
    "DisagreementError": "errors",
    "ForeignHandlerError": "errors",
    "InductorTablesError": "errors",
    "InvalidDumpError": "errors",
    "InvalidKeyError": "errors",
    "InvalidProblemsError": "errors",
    "InvalidTableError": "errors",
    "NoTableError": "errors",
    "SimulationError": "errors",
    "TargetError": "errors",
    "UnsupportedTorchError": "errors",
}
_MODULES = frozenset({"config", "recorder", "simulation"})

__all__ = [
    "BuildError",
    "DisagreementError",
    "ForeignHandlerError",
    "InductorTablesError",
    "InvalidDumpError",
    "InvalidKeyError",
    "InvalidProblemsError",
    "InvalidTableError",
    "NoTableError",
    "SimulationError",
    "TargetError",
    "UnsupportedTorchError",
    "check_agreement",
    "config",
    "coverage",
    "disable",
    "enable",
    "is_enabled",
    "record",
    "recorder",
    "simulate",
    "status",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
