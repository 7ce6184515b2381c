"""What became of compiled entries, and the file that remembers it from run to run.

One JSON object a line, appended as results come in, so that a run which is killed at any time
loses the entries at work only. A line that is torn or not ours is passed over.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

Outcome = Literal["compiled", "unpipelined", "exceeds", "failed", "dropped"]
"""What became of an entry.

``compiled``: the kernel fits the device. ``unpipelined``: it does not, so that torch compiles it
once more with one stage, and that fits. ``exceeds``: what torch would run needs more shared memory
or threads than the device has. ``failed``: lowering or compiling ended in an error, a crash or not
at all. ``dropped``: the handler does not use the entry.
"""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What became of one entry.

    Attributes:
        outcome: see :data:`Outcome`.
        reason: one line on every outcome but ``compiled``.
        shared_memory: bytes a block of the kernel that torch would run.
        registers: a thread's.
        spills: 32-bit registers a thread spills to memory.
        seconds: lowering and compiling took.
        source: what the kernel was compiled from, as :func:`~build_tools.render.identity`
            tells it; None: nothing was rendered.
        lasting: the next run would find the same, so that it need not try; False for a crash, a
            time-out, and an error of the lowering.
    """

    outcome: Outcome
    reason: str = ""
    shared_memory: int = 0
    registers: int = 0
    spills: int = 0
    seconds: float = 0.0
    source: str | None = None
    lasting: bool = True


class State:
    """Results by what was asked: the entry of a table, or a rendered source.

    Args:
        path: the file; made at the first result.

    Raises:
        OSError: the file is there and cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._by_entry: dict[tuple[str, str], Result] = {}
        self._by_source: dict[str, Result] = {}
        self._torn = False
        if path.exists():
            text = path.read_bytes()
            self._torn = bool(text) and not text.endswith(b"\n")
            for line in text.splitlines():
                self._take(line)

    def of_entry(self, run: str, entry: str) -> Result | None:
        """Return what became of an entry in a run of the same table, torch, triton and code."""
        return self._by_entry.get((run, entry))

    def of_source(self, source: str) -> Result | None:
        """Return what a source was compiled to, whichever table had it rendered."""
        return self._by_source.get(source)

    def add(self, run: str, entry: str, result: Result) -> None:
        """Remember a lasting result, on disk before this returns.

        Raises:
            OSError: the file cannot be written.
        """
        self._keep(run, entry, result)
        if not result.lasting:
            return
        line = json.dumps({"run": run, "entry": entry, **asdict(result)}).encode() + b"\n"
        if self._torn:
            line, self._torn = b"\n" + line, False
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, line)
        finally:
            os.close(file)

    def _take(self, line: bytes) -> None:
        try:
            read = json.loads(line)
        except ValueError:
            return
        if not isinstance(read, dict):
            return
        result = _result(read)
        run, entry = read.get("run"), read.get("entry")
        if result is not None and isinstance(run, str) and isinstance(entry, str):
            self._keep(run, entry, result)

    def _keep(self, run: str, entry: str, result: Result) -> None:
        if result.lasting:
            self._by_entry[run, entry] = result
            if result.source is not None:
                self._by_source[result.source] = replace(result, seconds=0.0)


def _result(read: Mapping[str, Any]) -> Result | None:
    """Return the result that a line holds, None where it is not one of this version's."""
    given: dict[str, Any] = {field.name: read.get(field.name) for field in fields(Result)}
    numbers = [given[name] for name in ("shared_memory", "registers", "spills", "seconds")]
    sound = (
        given["outcome"] in get_args(Outcome)
        and given["lasting"] is True
        and isinstance(given["reason"], str)
        and isinstance(given["source"], str | None)
        and all(isinstance(number, int | float) for number in numbers)
    )
    return Result(**given) if sound else None


def default_state(torch: str, triton: str) -> Path:
    """Return where the results for a torch and a triton are kept unless one says otherwise."""
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(caches, "inductor-tables", "compile-check", f"torch-{torch}-triton-{triton}.jsonl")
