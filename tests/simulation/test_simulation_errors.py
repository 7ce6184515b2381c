"""Uses of the simulation that are refused, each with a reason."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from simulation_support import needs_simulation, run_script

from inductor_tables import simulation
from inductor_tables.errors import InductorTablesError, SimulationError

H200 = "NVIDIA H200"


def enter(device: str, pick: str = "first") -> None:
    """Enter and leave a simulation."""
    with simulation.simulate(device, pick=pick):
        pass


def test_unknown_device() -> None:
    """A name that the catalogue lacks is refused with the names that it has."""
    with pytest.raises(SimulationError, match=r"no device 'H200'.*known: 'NVIDIA H200', .*gfx942"):
        enter("H200")


def test_real_gpu_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    """A visible GPU is never shadowed."""
    monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", lambda: 2, raising=False)
    with pytest.raises(SimulationError, match=r'2 real GPU\(s\).*CUDA_VISIBLE_DEVICES=""'):
        enter(H200)


def test_triton_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without triton there is nothing to lower for."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "triton" else find(name)
    )
    with pytest.raises(SimulationError, match="triton is not installed"):
        enter(H200)


@needs_simulation
def test_triton_backend_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A triton without the vendor's backend is named."""
    from triton import backends

    monkeypatch.setattr(backends, "backends", {"amd": None})
    with pytest.raises(SimulationError, match=r"no 'nvidia' backend.*found: amd"):
        enter(H200)


@needs_simulation
def test_nested() -> None:
    """A simulation inside a simulation is refused; the outer one goes on."""
    with simulation.simulate(H200) as sim:
        with pytest.raises(SimulationError, match="already running"):
            enter(H200)
        assert sim.empty(2).device.type == "cuda"


@needs_simulation
def test_other_vendor() -> None:
    """A process keeps the vendor that torch._inductor was imported for."""
    enter(H200)
    with pytest.raises(SimulationError, match=r"imported for 'cuda'.*fresh process"):
        enter("gfx942:sramecc+:xnack-")


@needs_simulation
def test_unknown_pick() -> None:
    """A rule that is none is refused, and the process stays usable."""
    with pytest.raises(SimulationError, match="pick must be 'first', 'extern' or a function"):
        enter(H200, pick="fastest")
    enter(H200)


def test_the_error_is_the_packages_and_a_runtime_error() -> None:
    """Callers may catch either base."""
    assert issubclass(SimulationError, InductorTablesError)
    assert issubclass(SimulationError, RuntimeError)


def test_importing_imports_no_torch() -> None:
    """The package is light until it is used."""
    script = """
import sys
import inductor_tables.simulation as simulation
simulation.device_spec("NVIDIA H200")
print(sorted(name for name in sys.modules if name.split(".")[0] in ("torch", "triton", "numpy")))
"""
    assert run_script(script).strip() == "[]"
