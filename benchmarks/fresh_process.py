"""Samples in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any


def sample(script: str, *arguments: str, **environment: str) -> dict[str, Any]:
    """Run ``script --child ARGUMENTS`` and return the JSON of the last line that it prints.

    Raises:
        RuntimeError: the process failed; the end of its stderr is in the text.
    """
    return sample_within(None, script, *arguments, **environment)


def sample_within(
    limit_s: float | None, script: str, *arguments: str, **environment: str
) -> dict[str, Any]:
    """Do the same, and end the process after ``limit_s`` seconds.

    Raises:
        RuntimeError: the process failed, or was ended.
    """
    try:
        done = subprocess.run(
            [sys.executable, script, "--child", *arguments],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"{script} {' '.join(arguments)} took more than {limit_s} s") from error
    if done.returncode:
        raise RuntimeError(f"{script} {' '.join(arguments)} failed:\n{done.stderr[-4000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
