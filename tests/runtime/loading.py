"""Compile the kernels of the generated code, as loading it on a real device would do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._inductor.graph import GraphLowering

from inductor_tables.simulation import Simulation
from inductor_tables.simulation.kernels import kernel_sources


def load_kernels(
    sim: Simulation,
    monkeypatch: pytest.MonkeyPatch,
    load: Callable[[str, str], Any] | None = None,
) -> list[str]:
    """Load the template kernels of every graph inside its compilation, and return their sources.

    Args:
        sim: the running simulation.
        monkeypatch: undoes it.
        load: takes a kernel's name and source; by default what the generated code calls,
            ``AsyncCompile.triton``. Triton then compiles for the simulated device and compares
            with its limits.
    """
    stub = GraphLowering.compile_to_module
    loaded: list[str] = []

    def compile_to_module(graph: Any) -> Any:
        module = stub(graph)
        for name, source in kernel_sources(sim.codes[-1]).items():
            if name.startswith("triton_tem"):
                loaded.append(source)
                (load or _load)(name, source)
        return module

    monkeypatch.setattr(GraphLowering, "compile_to_module", compile_to_module)
    return loaded


def _load(name: str, source: str) -> None:
    from torch._inductor.async_compile import AsyncCompile

    setting = "use_static_triton_launcher"  # 2.12 and later; it would load a real binary
    if not hasattr(torch._inductor.config, setting):
        setting = "use_static_cuda_launcher"
    with torch._inductor.config.patch({setting: False}):
        AsyncCompile().triton(name, source)
