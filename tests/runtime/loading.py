"""Compile the kernels of the generated code, as loading it on a real device would do."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch._inductor.graph import GraphLowering

from inductor_tables.simulation import Simulation
from inductor_tables.simulation.kernels import kernel_sources


@contextlib.contextmanager
def loading(sim: Simulation, load: Callable[[str, str], Any] | None = None) -> Iterator[None]:
    """Load the template kernels of every graph inside its compilation.

    Args:
        sim: the running simulation.
        load: takes a kernel's name and source; by default what the generated code calls,
            ``AsyncCompile.triton``. Triton then compiles for the simulated device and compares
            with its limits.
    """
    stub = GraphLowering.compile_to_module

    def compile_to_module(graph: Any) -> Any:
        module = stub(graph)
        for name, source in kernel_sources(sim.codes[-1]).items():
            if name.startswith("triton_tem"):
                (load or _load)(name, source)
        return module

    with mock.patch.object(GraphLowering, "compile_to_module", compile_to_module):
        yield


@contextlib.contextmanager
def not_loading(error: Exception, tries: list[int]) -> Iterator[None]:
    """Fail whatever the kernels are, and count how often."""

    def compile_to_module(_graph: Any) -> Any:
        tries.append(1)
        raise error

    with mock.patch.object(GraphLowering, "compile_to_module", compile_to_module):
        yield


def _load(name: str, source: str) -> None:
    from torch._inductor.async_compile import AsyncCompile

    setting = "use_static_triton_launcher"  # 2.12 and later; it would load a real binary
    if not hasattr(torch._inductor.config, setting):
        setting = "use_static_cuda_launcher"
    with torch._inductor.config.patch({setting: False}):
        AsyncCompile().triton(name, source)
