"""What a worker process of the compile check does: one case at a time, on one simulated device.

Importing this module imports nothing of torch; a worker does at its first case.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from build_tools.compile_state import Result, State
from build_tools.distinct import Case

_TELLING = re.compile(r"\w*(?:error|exception)\b: .*|Assertion .* failed.*", re.IGNORECASE)
_LONGEST: Final = 300


@dataclass(frozen=True, kw_only=True)
class Task:
    """One case for a worker.

    Attributes:
        case: the entry and the key.
        device: gcnArchName of the device to simulate; a worker serves one.
        state: the file of earlier results; what a source was compiled to is taken from it.
        scratch: a directory for caches and logs that outlives the workers.
        timeout_s: seconds until the process is killed.
    """

    case: Case
    device: str
    state: Path
    scratch: Path
    timeout_s: float


Work = Callable[[Task], Result]


def in_worker(work: Work, task: Task) -> Result:
    """Do a task in this process, which the system kills if it takes too long.

    What it writes goes to its log: compilers print, and the output of the command is ours.
    """
    _settle(task.scratch)
    os.truncate(log_of(task.scratch, os.getpid()), 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # what hangs in a compiler runs no Python
    signal.setitimer(signal.ITIMER_REAL, task.timeout_s)
    try:
        return work(task)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def compile_case(task: Task) -> Result:
    """Render and compile one case; an error is the case's.

    Raises:
        SimulationError: the device cannot be simulated here, whatever the case.
    """
    worker = _worker(task.device, task.state)
    begin = time.perf_counter()
    try:
        result = worker.compile(task.case)
    except Exception as error:  # noqa: BLE001 - torch and triton raise anything
        text = f"{type(error).__name__}: {error}"
        result = Result(outcome="failed", reason=text, lasting=False)
    if result.outcome == "failed":
        told = telling_line(log_of(task.scratch, os.getpid())) or result.reason
        result = replace(result, reason=told.strip().splitlines()[0][:_LONGEST])
    return replace(result, seconds=time.perf_counter() - begin)


def telling_line(log: Path) -> str:
    """Return the first line of a worker's log that tells of an error; empty if none does."""
    try:
        found = _TELLING.search(log.read_text(errors="replace"))
    except OSError:
        return ""
    return found[0].strip()[:_LONGEST] if found else ""


def log_of(scratch: Path, pid: int) -> Path:
    """Return where the output of a worker goes."""
    return scratch / f"worker-{pid}.log"


@functools.cache
def _settle(scratch: Path) -> None:
    os.setpgid(0, 0)  # so that what a compiler starts can be killed with this process
    log = os.open(log_of(scratch, os.getpid()), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for standard in (1, 2):
        os.dup2(log, standard)
    os.close(log)
    tempfile.tempdir = str(scratch)
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        os.environ[name] = ""  # a process that sees a GPU may not simulate one


class _Worker:
    """The simulated device of this process, for as long as it lives."""

    def __init__(self, device: str, state: Path) -> None:
        self._render: Any = importlib.import_module("build_tools.render")
        self._known = State(state)
        simulate = importlib.import_module("inductor_tables.simulation").simulate
        self._simulation = simulate(device)
        self._sim = self._simulation.__enter__()  # left when the process ends

    def compile(self, case: Case) -> Result:
        """Return what becomes of a case."""
        rendered = self._render.render(self._sim, case)
        if rendered.source is None:
            return Result(outcome="dropped", reason=rendered.dropped)
        identity = self._render.identity(self._sim, rendered.source)
        known = self._known.of_source(identity)
        if known is not None:
            return known
        try:
            result: Result = self._render.compile_source(self._sim, rendered.source)
        finally:  # a MB a kernel, which nothing reads again
            shutil.rmtree(os.environ["TRITON_CACHE_DIR"], ignore_errors=True)
        return replace(result, source=identity)


_worker = functools.cache(_Worker)
