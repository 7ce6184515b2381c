"""What the tests of the simulation share: when they run, and where their reference data is."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import subprocess
import sys
from typing import Any

import pytest
import torch

ROOT = pathlib.Path(__file__).parents[2]
DATA = ROOT / "tests" / "data" / "simulation"

needs_simulation = pytest.mark.skipif(
    torch.cuda.is_available() or importlib.util.find_spec("triton") is None,
    reason="needs triton and no visible GPU (CUDA_VISIBLE_DEVICES='')",
)


def reference() -> dict[str, Any]:
    """Return the keys of the newest reference file that is not newer than the running torch."""
    running = _series(torch.__version__)
    files = {
        _series(path.stem.removeprefix("keys_torch")): path
        for path in DATA.glob("keys_torch*.json")
    }
    newest = max(series for series in files if series <= running)
    content: dict[str, Any] = json.loads(files[newest].read_text())
    return content


def _series(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def run_script(script: str, *arguments: str) -> str:
    """Run Python source in a process of its own and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout
