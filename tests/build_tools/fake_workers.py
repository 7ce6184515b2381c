"""What workers of the compile check do in tests: nothing, or what compilers should not."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from build_tools.compile_check import compile_directory
from build_tools.compile_state import Result
from build_tools.compile_worker import Task
from inductor_tables.errors import SimulationError

DIES, ABORTS, EXITS, HANGS = 1, 2, 16, 32
"""``num_warps`` of entries that something happens to."""


def succeed(task: Task) -> Result:
    """Say that an entry compiles to as many registers as it has warps."""
    warps = int(str(dict(task.case.config.params)["num_warps"]))
    return Result(outcome="compiled", registers=warps, source=f"source of {warps} warps")


def misbehave(task: Task) -> Result:
    """Do what the entry's number of warps says."""
    result = succeed(task)
    if result.registers == DIES:
        os.kill(os.getpid(), signal.SIGSEGV)
    if result.registers == ABORTS:
        os.write(2, b"some chatter\nLLVM ERROR: Cannot select: t1\n")
        os.abort()
    if result.registers == EXITS:
        os._exit(3)
    if result.registers == HANGS:
        time.sleep(600)
    return result


def refuse(task: Task) -> Result:
    """Fail as a worker does whose device cannot be simulated."""
    raise SimulationError("this triton has no 'amd' backend")


def dawdle(task: Task) -> Result:
    """Take a while."""
    time.sleep(0.3)
    return succeed(task)


if __name__ == "__main__":
    compile_directory(Path(sys.argv[1]), state=Path(sys.argv[2]), jobs=1, work=dawdle)
