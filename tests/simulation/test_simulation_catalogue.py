"""The catalogue of devices."""

from __future__ import annotations

import dataclasses
import types

import pytest

from inductor_tables.simulation import (
    CATALOGUE,
    DeviceSpec,
    device_spec,
    device_spec_from_properties,
)
from inductor_tables.simulation.binaries import kernel_usage
from inductor_tables.simulation.identity import properties_of

SPECS = list(CATALOGUE.values())


def test_keys_are_gcn_arch_names() -> None:
    """The catalogue is keyed by the device part of lookup keys."""
    assert {name: spec.gcn_arch_name for name, spec in CATALOGUE.items()} == {
        name: name
        for name in (
            "NVIDIA A100-SXM4-80GB",
            "NVIDIA B200",
            "NVIDIA H100 80GB HBM3",
            "NVIDIA H200",
            "gfx942:sramecc+:xnack-",
        )
    }


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.gcn_arch_name)
def test_values_are_plausible(spec: DeviceSpec) -> None:
    """Limits are ordered, the warp is the backend's, and the arch is the capability's."""
    assert (
        spec.shared_memory_per_block
        <= spec.shared_memory_per_block_optin
        <= spec.shared_memory_per_multiprocessor
    )
    assert spec.warp_size == {"cuda": 32, "hip": 64}[spec.backend]
    if spec.backend == "cuda":
        assert spec.triton_arch == spec.capability[0] * 10 + spec.capability[1]


def test_specs_are_frozen_and_keyword_only() -> None:
    """A spec cannot change under a running simulation."""
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign"):
        device_spec("NVIDIA H200").warp_size = 64  # type: ignore[misc]
    with pytest.raises(TypeError, match="positional argument"):
        DeviceSpec("NVIDIA H200")  # type: ignore[call-arg]


def test_a_spec_is_its_own_spec() -> None:
    """What is no catalogue entry can be simulated as well."""
    spec = dataclasses.replace(device_spec("NVIDIA H200"), gcn_arch_name="NVIDIA H20")
    assert device_spec(spec) is spec


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.gcn_arch_name)
def test_round_trip_through_properties(spec: DeviceSpec) -> None:
    """A spec read from a device that answers as the simulated one does is the same spec."""
    read = device_spec_from_properties(
        properties_of(spec),
        {
            "max_shared_mem": spec.shared_memory_per_block_optin,
            "sm_clock_rate": spec.clock_rate,
            "mem_clock_rate": spec.memory_clock_rate,
            "mem_bus_width": spec.memory_bus_width,
        },
        backend=spec.backend,
        arch=spec.triton_arch,
    )
    assert read == spec


def test_properties_are_the_vendors() -> None:
    """ROCm's properties lack what only CUDA's have."""
    assert isinstance(properties_of(device_spec("NVIDIA H200")), types.SimpleNamespace)
    assert hasattr(properties_of(device_spec("NVIDIA H200")), "shared_memory_per_block_optin")
    amd = properties_of(device_spec("gfx942:sramecc+:xnack-"))
    assert not hasattr(amd, "shared_memory_per_block_optin")


def test_usage_in_amdgcn_text() -> None:
    """Registers and spills are read from the assembly of an AMD kernel."""
    text = "    .vgpr_count:     84\n    .vgpr_spill_count: 3\n"
    usage = kernel_usage("hip", b"", text)
    assert (usage.registers, usage.spills) == (84, 3)
