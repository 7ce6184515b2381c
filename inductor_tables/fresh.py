"""Run a module of ours in a process of its own.

A simulation patches torch for the whole process, and a compile time means something only where no
cache is warm.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from inductor_tables.errors import InductorTablesError

NO_GPU: Final[Mapping[str, str]] = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
"""Environment of a process that sees no GPU: a simulation refuses to shadow a real one."""

_SHOWN_LINES: Final = 12


class FreshProcessError(InductorTablesError, RuntimeError):
    """The process ended in an error.

    Attributes:
        status: its exit status; minus the signal's number where a signal ended it.
        ending: the last lines that it wrote to standard error.
    """

    def __init__(self, module: str, status: int, ending: str) -> None:
        super().__init__(f"python -m {module} failed (exit status {status}):\n{ending}")
        self.module = module
        self.status = status
        self.ending = ending

    def __reduce__(self) -> tuple[type[FreshProcessError], tuple[str, int, str]]:
        return type(self), (self.module, self.status, self.ending)


def run_fresh(module: str, *arguments: str, environment: Mapping[str, str]) -> Any:
    """Run ``python -m module RESULT *arguments`` and return what it wrote to RESULT as JSON.

    The process has empty caches of Inductor and Triton, which go with it. What it prints is not
    shown.

    Args:
        module: its name.
        arguments: given to it after the path of the result.
        environment: variables in addition to this process's.

    Raises:
        FreshProcessError: it failed, or wrote no result.
    """
    with tempfile.TemporaryDirectory(prefix="inductor-tables-") as folder:
        result = Path(folder, "result.json")
        caches = {
            "TORCHINDUCTOR_CACHE_DIR": str(Path(folder, "inductor")),
            "TRITON_CACHE_DIR": str(Path(folder, "triton")),
        }
        done = subprocess.run(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-m", module, str(result), *arguments],
            env={**os.environ, **caches, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode or not result.is_file():
            ending = "\n".join(done.stderr.strip().splitlines()[-_SHOWN_LINES:])
            raise FreshProcessError(module, done.returncode, ending)
        return json.loads(result.read_text(encoding="utf-8"))
