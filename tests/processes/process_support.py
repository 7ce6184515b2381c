"""Fresh Python processes that enable tables and lower a product, and what they print."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

KEY: Final = (
    "NVIDIA H200+((torch.bfloat16, [16, 4096], [4096, 1]), "
    "(torch.bfloat16, [4096, 1024], [1024, 1]))+mm"
)
TABLE: Final[Mapping[str, Any]] = {KEY: [{"template_id": "aten::mm"}]}

needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="the simulated device needs triton"
)

PRELUDE: Final = """
import json, os, sys, threading

def lower(rows=16):
    import torch
    from inductor_tables.simulation import simulate
    with simulate("NVIDIA H200") as sim:
        x = sim.empty(rows, 4096, dtype=torch.bfloat16)
        sim.compile(torch.mm, x, sim.empty(4096, 1024, dtype=torch.bfloat16))
        (op,) = sim.ops
    return {"kernel": op.chosen.template_id, "autotuned": op.benchmarked}

def show(**found):
    print(json.dumps(found))
"""
"""What scripts have to work with: ``lower()`` lowers the product of ``KEY``."""

HIT: Final = {"kernel": "aten::mm", "autotuned": False}
"""What ``lower()`` returns where the table answers."""


def write_table(path: Path) -> Path:
    """Write a file in the host's plain form that answers ``KEY`` with one choice."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(TABLE), encoding="ascii")
    path.chmod(0o644)
    return path


def environment(**changes: object) -> dict[str, str]:
    """Return this process's environment without settings of ours, changed; None removes."""
    kept = {n: v for n, v in os.environ.items() if not n.startswith("INDUCTOR_TABLES_")}
    kept.update({name: str(value) for name, value in changes.items()})
    return {name: value for name, value in kept.items() if changes.get(name, "") is not None}


def run(
    script: str,
    *arguments: object,
    options: tuple[str, ...] = (),
    cwd: Path | None = None,
    **variables: object,
) -> subprocess.CompletedProcess[str]:
    """Run a script after the prelude in a fresh process; it must end well."""
    done = subprocess.run(
        [sys.executable, *options, "-c", PRELUDE + textwrap.dedent(script), *map(str, arguments)],
        env=environment(**variables),
        cwd=cwd,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def shown(script: str, *arguments: object, **how: Any) -> dict[str, Any]:
    """Run a script and return what its last ``show(...)`` said."""
    found: dict[str, Any] = json.loads(run(script, *arguments, **how).stdout.splitlines()[-1])
    return found
