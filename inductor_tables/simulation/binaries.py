"""Registers and spills of a compiled kernel, read from the binary instead of from a driver."""

from __future__ import annotations

import dataclasses
import importlib.util
import pathlib
import re
import subprocess
import tempfile

from inductor_tables.errors import SimulationError
from inductor_tables.simulation.catalogue import Backend


@dataclasses.dataclass(frozen=True, kw_only=True)
class KernelUsage:
    """Registers a thread (vector registers on ROCm) and 32-bit registers spilled to memory."""

    registers: int
    spills: int


def kernel_usage(backend: Backend, binary: bytes, assembly: str | None = None) -> KernelUsage:
    """Return what one kernel uses, by its binary or its assembly text.

    Args:
        backend: which of the two to read.
        binary: a cubin; not looked at for ``"hip"``.
        assembly: the amdgcn text, for ``"hip"``; without it the figures are 0.

    Raises:
        SimulationError: the cubin could not be read.
    """
    if backend == "hip":
        return _amdgcn_usage(assembly or "")
    return _cubin_usage(binary)


def _amdgcn_usage(assembly: str) -> KernelUsage:
    def figure(name: str) -> int:
        found = re.search(rf"\.{name}:\s+(\d+)", assembly)
        return int(found[1]) if found else 0

    return KernelUsage(registers=figure("vgpr_count"), spills=figure("vgpr_spill_count"))


def _cubin_usage(binary: bytes) -> KernelUsage:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        command = [str(_cuobjdump()), "--dump-resource-usage", file.name]
        text = subprocess.run(command, capture_output=True, text=True, check=False).stdout  # noqa: S603
    found = re.search(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", text)
    if found is None:
        raise SimulationError(f"cuobjdump told no resource usage of a cubin; it said {text!r}")
    registers, stack, local = (int(figure) for figure in found.groups())
    return KernelUsage(registers=registers, spills=max(stack, local) // 4)


def _cuobjdump() -> pathlib.Path:
    spec = importlib.util.find_spec("triton.backends.nvidia")
    if spec is None or spec.origin is None:
        raise SimulationError("this triton has no nvidia backend, so no cuobjdump")
    return pathlib.Path(spec.origin).parent / "bin" / "cuobjdump"
