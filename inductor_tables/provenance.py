"""Where a recording comes from: versions, device and clocks of this process.

Only torch's public API is asked, only if torch is imported already, and its device only
if CUDA is initialised already.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any, Final

_QUERY_TIMEOUT_S: Final = 10
_TRITON_NAMES = ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-rocm")
_AMD_DRIVER = Path("/sys/module/amdgpu/version")


def provenance(arch: str | None = None) -> dict[str, str | int | None]:
    """Describe this process for a dump; what is not known is None.

    ``arch`` is the gcnArchName that the dump's keys name: on a box with two GPU models
    that device is described, else the current one. Never raises for want of a device or
    a driver, and never waits for a driver's tool longer than 10 s.

    Fields: ``torch``, ``triton``, ``cuda``, ``hip`` and ``driver`` versions, ``device``
    (marketing name), ``arch`` (gcnArchName), ``sm_count``, ``clocks`` (text, in MHz) and
    ``date`` (UTC, ISO 8601, whole seconds).
    """
    torch = sys.modules.get("torch")
    built_for = getattr(torch, "version", None)
    hip = getattr(built_for, "hip", None)
    properties = _device_properties(torch, arch)
    driver, clocks = _amd_state() if hip else _nvidia_state(getattr(properties, "uuid", None))
    return {
        "torch": _text(_version("torch")),
        "triton": _text(_version(*_TRITON_NAMES)),
        "cuda": _text(getattr(built_for, "cuda", None)),
        "hip": _text(hip),
        "driver": _text(driver),
        "device": _text(getattr(properties, "name", None)),
        "arch": _text(getattr(properties, "gcnArchName", None)),
        "sm_count": getattr(properties, "multi_processor_count", None),
        "clocks": _text(clocks),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def _text(value: object) -> str | None:
    """Make a value fit for a dump: printable and at most 256 signs."""
    shown = "" if value is None else "".join(filter(str.isprintable, str(value))).strip()
    return shown[:256] or None


def _version(name: str, *other_names: str) -> str | None:
    """Return the version of the imported module, else of an installed distribution."""
    loaded = getattr(sys.modules.get(name), "__version__", None)
    if loaded is not None:
        return str(loaded)
    for distribution in (name, *other_names):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None


def _device_properties(torch: Any, arch: str | None) -> Any | None:
    try:
        if torch is None or not torch.cuda.is_initialized():
            return None
        current = torch.cuda.current_device()
        found = [current, *(n for n in range(torch.cuda.device_count()) if n != current)]
        listed = [torch.cuda.get_device_properties(index) for index in found]
    except (AssertionError, AttributeError, RuntimeError):  # a lost device, a build without CUDA
        return None
    named = [p for p in listed if arch in (None, getattr(p, "gcnArchName", None))]
    return named[0] if named else None


def _amd_state() -> tuple[str | None, str | None]:
    try:
        return _AMD_DRIVER.read_text(encoding="ascii", errors="replace"), None
    except OSError:
        return None, None


def _nvidia_state(uuid: Any) -> tuple[str | None, str | None]:
    """Return the driver's version and the clocks of the GPU with that UUID."""
    listed = _query_gpus("uuid,driver_version,clocks.sm,clocks.mem")
    driver = next((fields[1] for fields in listed), None)
    wanted = str(uuid).removeprefix("GPU-")
    clocks = (
        f"sm {sm} MHz, memory {memory} MHz"
        for found, _, sm, memory in listed
        if found.removeprefix("GPU-") == wanted and sm.isdecimal() and memory.isdecimal()
    )
    return driver, next(clocks, None)


def _query_gpus(fields: str) -> list[tuple[str, ...]]:
    """Ask nvidia-smi for fields of every GPU; [] where it is missing, fails or hangs."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    command = [tool, f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    output = _output(command)
    lines = (tuple(re.split(r",\s*", line.strip())) for line in output.splitlines())
    return [line for line in lines if len(line) == fields.count(",") + 1]


def _output(command: list[str]) -> str:
    try:
        process = subprocess.Popen(  # noqa: S603 - a tool of the driver, with fixed arguments
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            errors="replace",
        )
    except OSError:
        return ""
    try:
        return process.communicate(timeout=_QUERY_TIMEOUT_S)[0] if process.stdout else ""
    except subprocess.TimeoutExpired:
        process.kill()  # not waited for: a process stuck in the driver cannot be reaped
        return ""
