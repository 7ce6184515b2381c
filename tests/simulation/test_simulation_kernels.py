"""Kernels compiled for the simulated device and never loaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from simulation_support import needs_simulation

from inductor_tables import simulation
from inductor_tables.errors import SimulationError

pytestmark = needs_simulation

H200 = "NVIDIA H200"
KEY = "((torch.bfloat16, [512, 4096], [4096, 1]), (torch.bfloat16, [4096, 4096], [4096, 1]))+mm"


@pytest.fixture
def sim() -> Iterator[simulation.Simulation]:
    """Yield a simulated H200 that keeps sources and takes the first Triton choice."""
    with simulation.simulate(H200, pick=lambda choices: choices[1], keep_sources=True) as sim:
        yield sim


def lower(sim: simulation.Simulation) -> simulation.OpLowering:
    """Lower one product with an epilogue."""
    x, w = (sim.empty(n, 4096, dtype=torch.bfloat16) for n in (512, 4096))
    sim.compile(lambda x, w: torch.relu(x @ w), x, w)
    return sim.ops[-1]


def test_kernels_of_the_generated_code(sim: simulation.Simulation) -> None:
    """The fused kernel of the final source compiles, with figures within the device's limits."""
    lower(sim)
    ((name, source),) = sim.kernel_sources().items()
    (report,) = sim.compile_kernel(source)
    assert report.name == name
    assert name.startswith("triton_tem_fused_")
    assert report.error == ""
    assert report.fits
    assert 0 < report.shared_memory <= 232_448
    assert 0 < report.registers <= 255
    assert report.seconds > 0


def test_sources_of_the_choices(sim: simulation.Simulation) -> None:
    """Every offered Triton choice has a source, ATen's has none."""
    op = lower(sim)
    has_source = [source is not None for source in op.sources]
    assert has_source == [choice.template_id == "triton::mm" for choice in op.offered]
    (report,) = sim.compile_kernel(str(op.sources[1]))
    assert report.fits


def test_a_kernel_that_does_not_fit(sim: simulation.Simulation) -> None:
    """The shared memory that a device would refuse is told: the figure that an H200 reported."""
    from torch._inductor.lookup_table.choices import LookupTableChoices
    from torch._inductor.virtualized import V

    entry: dict[str, Any] = {"template_id": "triton::mm", **lower(sim).offered[1].params}
    entry |= {"BLOCK_M": 256, "BLOCK_N": 256, "BLOCK_K": 128, "num_stages": 5, "num_warps": 8}
    before = V.choices
    V.set_choices_handler(LookupTableChoices())
    try:
        with torch._inductor.config.patch({"lookup_table.table": {f"{H200}+{KEY}": [entry]}}):
            (source,) = lower(sim).sources
    finally:
        V.set_choices_handler(before)
    (report,) = sim.compile_kernel(str(source))
    assert (report.shared_memory, report.fits) == (655_360, False)


def test_a_broken_kernel(sim: simulation.Simulation) -> None:
    """What the compiler says is in the report."""
    source = str(lower(sim).sources[1])
    (report,) = sim.compile_kernel(source.replace("tl.dot(", "tl.no_such_function("))
    assert "no_such_function" in report.error
    assert (report.fits, report.registers) == (False, 0)


def test_an_unknown_kernel(sim: simulation.Simulation) -> None:
    """A name that the source lacks is refused with the names that it has."""
    source = str(lower(sim).sources[1])
    with pytest.raises(SimulationError, match=r"no kernel 'other' in the source; it defines \["):
        sim.compile_kernel(source, "other")
