"""Notes what this process asked the tables for in vain, as problems to tune elsewhere.

With ``config.record_misses`` on, :func:`note` is told of every op that no table answered. Noting is
an entry in a dict; a thread of its own writes the file in ``config.recorder_record_dir``, at most
every few seconds and at exit. Importing this module imports no torch.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Final
from weakref import WeakSet

from inductor_tables import config
from inductor_tables.decisions import Decision, Origin
from inductor_tables.dumps import write_atomically
from inductor_tables.errors import InvalidKeyError
from inductor_tables.problems import MISSES_PREFIX, Problem, problem_from_key, render
from inductor_tables.process_files import create_file

log = logging.getLogger(__name__)

PAUSE_S: Final = 5.0
"""Seconds from a miss to the file that has it; more where writing takes a hundredth of it."""

MAX_KEYS: Final = 100_000
"""How many keys a process notes; later ones are left out, with a warning."""

MAX_ORIGINS: Final = 64
"""How many places of a model are noted for a key."""

_MAX_TEXT: Final = 256


@dataclass
class _Noted:
    count: int = 0
    origins: set[Origin] = field(default_factory=set)


class Misses:
    """The misses of this process, and the one file that it keeps of them. Thread safe.

    Misses belong to the directory that is configured when they come, those that come while none
    is to the first that is. Another directory begins another file. A forked child starts empty.

    Attributes:
        path: the file, None as long as nothing was written.
    """

    def __init__(self) -> None:
        self.path: Path | None = None
        self._directory: str | None = None
        self._pause = PAUSE_S
        self._told: set[object] = set()
        self._begin()
        _forkable.add(self)

    def _begin(self) -> None:
        """Start empty, with locks that nobody holds, and no thread."""
        self._lock = threading.Lock()
        self._saving = threading.RLock()
        self._timer: threading.Timer | None = None
        self._at_exit = False
        self._forget()

    def _forget(self) -> None:
        self.path = None
        self._noted: dict[str, _Noted] = {}
        self._problems: dict[str, Problem | None] = {}
        self._unsaved = False

    def add(self, decision: Decision) -> None:
        """Note an op that no table answered; costs some µs, writes nothing."""
        if (config.recorder_record_dir or None) != self._directory:
            self._follow_directory()
        with self._lock:
            noted = self._noted.get(decision.key)
            if noted is None:
                if len(self._noted) >= MAX_KEYS:
                    self._tell_once("full", "%d keys are noted; further ones are not", MAX_KEYS)
                    return
                noted = self._noted[decision.key] = _Noted()
            noted.count += 1
            if len(noted.origins) < MAX_ORIGINS:
                noted.origins.add(decision.origin)
            self._unsaved = True
            if self._directory is None:
                self._tell_once(
                    "directory",
                    "config.record_misses is on, but config.recorder_record_dir is None: misses "
                    "are kept in memory until it is set",
                )
            elif self._timer is None:
                self._save_later()

    def _save_later(self) -> None:
        if not self._at_exit:
            # Not atexit: the children that multiprocessing forks end without calling that.
            from multiprocessing.util import Finalize

            self._at_exit = True
            Finalize(None, self.save, exitpriority=0)
        timer = threading.Timer(self._pause, self._save_in_time)
        timer.daemon = True
        try:
            timer.start()
            self._timer = timer
        except RuntimeError as error:  # no more threads, or Python is shutting down
            self._tell_once("thread", "misses are written at exit only: %s", error)

    def _save_in_time(self) -> None:
        with self._lock:
            self._timer = None
        self.save()

    def _follow_directory(self) -> None:
        with self._saving:
            wanted = config.recorder_record_dir or None
            if self._directory is not None and wanted != self._directory:
                self.save()
                with self._lock:
                    self._forget()
            self._directory = wanted

    def save(self) -> None:
        """Write what was noted since the last time, if a directory is configured.

        A file that cannot be written costs a warning; what was there is whole, and the next miss
        tries again.
        """
        with self._saving:
            with self._lock:
                if not self._unsaved or self._directory is None:
                    return
                self._unsaved = False
                noted = {key: replace(n, origins=set(n.origins)) for key, n in self._noted.items()}
            began = time.monotonic()
            try:
                self._write(Path(self._directory).absolute(), noted)
            except OSError as error:
                self._unsaved = True
                self._tell_once(
                    error.errno, "misses cannot be written to %s: %s", self._directory, error
                )
            self._pause = max(PAUSE_S, 100 * (time.monotonic() - began))

    def _write(self, directory: Path, noted: Mapping[str, _Noted]) -> None:
        found = [
            replace(problem, count=misses.count, origins=tuple(map(_text, misses.origins)))
            for key, misses in noted.items()
            if (problem := self._problem(key)) is not None
        ]
        if not found:
            return
        content = render(found, "misses")
        directory.mkdir(parents=True, exist_ok=True)
        if self.path is None:
            moment = datetime.now(timezone.utc)
            self.path = create_file(directory, MISSES_PREFIX, content, moment)
            log.info("noting misses in %s", self.path)
        else:
            write_atomically(self.path, content)

    def _problem(self, key: str) -> Problem | None:
        """Return the problem of a key, None, with a warning, where a file may not hold it."""
        if key not in self._problems:
            try:
                self._problems[key] = problem_from_key(key)
            except InvalidKeyError as error:
                self._problems[key] = None
                self._tell_once("key", "a miss is left out: %s", error)
        return self._problems[key]

    def _tell_once(self, cause: object, message: str, *args: object) -> None:
        if cause not in self._told:
            self._told.add(cause)
            log.warning(message, *args)


def _text(origin: Origin) -> str:
    """Return ``<program>:<module path>``, or the file's name and the line where there is none.

    No directories: they may hold a user's name, and differ between machines.
    """
    place = origin.module
    if place is None and origin.line is not None:
        place = os.path.basename(origin.line)
    text = _program() if place is None else f"{_program()}:{place}"
    return "".join(sign if sign.isprintable() else "?" for sign in text[:_MAX_TEXT])


def _program() -> str:
    """Return the name of the running script or package; the same for all of its processes."""
    script = Path((getattr(sys, "argv", None) or [""])[0])
    name = script.parent.name if script.name == "__main__.py" else script.name
    return name.replace(":", "_") if name and name != "-c" else "python"


_forkable: WeakSet[Misses] = WeakSet()


def _after_fork_in_child() -> None:
    for misses in list(_forkable):
        misses._begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)

_MISSES = Misses()


def note(decision: Decision) -> None:
    """Note a decision of this process, if ``config.record_misses`` is on and it is no hit."""
    if config.record_misses and decision.outcome != "hit":
        _MISSES.add(decision)


def save() -> None:
    """Write what this process noted so far, now."""
    _MISSES.save()
