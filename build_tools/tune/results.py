"""Results on disk: a file of JSON lines a worker, which may be killed at any moment.

A line is written whole and synced once its problem is done; a torn last line is a problem
that was not. What a worker is about to launch for the first time stands in a small file
beside it, so that a kernel that takes the process with it is not launched again.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

from build_tools.tune.shapes import Shape, shape_of
from inductor_tables.errors import BuildError
from inductor_tables.problems import Problem, problem_from_key
from inductor_tables.schema import Config, plain_config

FORMAT: Final = 1
TUNED: Final = "tuned"
SKIPPED: Final = "skipped"
FAILED: Final = "failed"

_SUFFIX: Final = ".jsonl"
_MARK: Final = ".launching"

Line = dict[str, Any]


def problem_id(problem: Problem) -> str:
    """Return the problem's lookup key without a device, which identifies it."""
    return problem.key(None)


@dataclass
class Done:
    """What a directory holds of one torch and one device.

    Attributes:
        lines: by problem id, each problem once.
        broken: problem id → configurations, as their text, that ended a process.
        history: shapes with their best candidates, for the search to begin from.
        torn: lines that could not be read, because a worker was killed while it wrote.
    """

    lines: dict[str, Line] = field(default_factory=dict)
    broken: dict[str, set[str]] = field(default_factory=dict)
    torn: int = 0

    def ids(self, *, retry: bool = False) -> set[str]:
        """Return the problems that need no more work; ``retry``: failed ones do."""
        return {key for key, line in self.lines.items() if not (retry and line["status"] == FAILED)}

    @property
    def history(self) -> list[tuple[Shape, list[Config]]]:
        """Return shapes with their best candidates, in the order of the problems' ids."""
        return [
            found
            for key in sorted(self.lines)
            if (found := _history_of(self.lines[key])) is not None
        ]


def read_results(directory: Path, *, torch: str | None = None, arch: str | None = None) -> Done:
    """Read all results below a directory, of one torch and device or of any.

    A problem that several workers did counts once: tuned before skipped before failed, then
    the first by the files' names.

    Raises:
        BuildError: a file was written by a newer release.
        OSError: a file cannot be read.
    """
    done = Done()
    for path in sorted(directory.glob(f"*{_SUFFIX}")):
        where: Line = {}
        for line in _lines(path, done):
            if line.get("kind") == "worker":
                _check_format(line, path)
                where = line
            elif torch in (None, where.get("torch")) and arch in (None, where.get("arch")):
                _take(done, {**line, "worker": where})
    return done


def holds_results(path: Path) -> bool:
    """Whether a path is a directory with results in it."""
    return path.is_dir() and any(path.glob(f"*{_SUFFIX}"))


def _take(done: Done, line: Line) -> None:
    key = line["problem"]
    if line["kind"] == "broken":
        done.broken.setdefault(key, set()).add(line["config"])
        return
    ranks = {TUNED: 0, SKIPPED: 1, FAILED: 2}  # a status of a newer release comes last
    known = done.lines.get(key)
    if known is None or ranks.get(line["status"], 3) < ranks.get(known["status"], 3):
        done.lines[key] = line


def _lines(path: Path, done: Done) -> Iterable[Line]:
    for text in path.read_bytes().split(b"\n"):
        if not text:
            continue
        try:
            line = json.loads(text)
        except ValueError:
            done.torn += 1
            continue
        if isinstance(line, dict) and "kind" in line:
            yield line


def _check_format(line: Line, path: Path) -> None:
    if line.get("format") != FORMAT:
        raise BuildError(
            f"{path}: results of format {line.get('format')!r}; this release reads {FORMAT}: "
            "use the release that wrote them, or another --out"
        )


def _history_of(line: Line) -> tuple[Shape, list[Config]] | None:
    if line["status"] != TUNED:
        return None
    return shape_of(problem_from_key(line["problem"])), [config_of(found) for found in line["best"]]


def config_of(plain: Mapping[str, Any]) -> Config:
    """Return the candidate that a line holds in plain form.

    Raises:
        BuildError: it is none.
    """

    def fail(where: str, problem: str) -> NoReturn:
        raise BuildError(f"results: {where}: {problem}")

    return plain_config(dict(plain), "best", fail)


class Writer:
    """Writes one worker's results.

    Attributes:
        path: the file; made when the first line is written.
    """

    def __init__(self, directory: Path, provenance: Mapping[str, Any], worker: str) -> None:
        self.directory, self.worker = directory, worker
        self.path = directory / f"{worker}{_SUFFIX}"
        self._mark = directory / f"{worker}{_MARK}"
        self._provenance = dict(provenance)

    def write(self, line: Mapping[str, Any]) -> None:
        """Append a line, and have it on the disk when this returns."""
        new = not self.path.exists()
        with open(self.path, "ab") as file:
            if new:
                self.directory.mkdir(parents=True, exist_ok=True)
                file.write(_encoded({"kind": "worker", "format": FORMAT, **self._provenance}))
            file.write(_encoded(line))
            file.flush()
            os.fsync(file.fileno())

    def broken(self, problem: str, config: str, reason: str) -> None:
        """Note that a candidate ended a process."""
        self.write({"kind": "broken", "problem": problem, "config": config, "reason": reason})

    def mark(self, problem: str, config: str) -> None:
        """Note what is about to be launched for the first time; ``""``: that it went well."""
        self._mark.write_text(json.dumps({"problem": problem, "config": config}) if config else "")

    def adopt_own_mark(self, reason: str) -> bool:
        """Note that what this worker is launching broke the device; False: it launches nothing."""
        return self._adopt(self._mark, reason)

    def close(self) -> None:
        """Remove the mark."""
        self._mark.unlink(missing_ok=True)

    def adopt_marks(self) -> None:
        """Note what dead workers of this host were about to launch."""
        for mark in sorted(self.directory.glob(f"{_host()}-*{_MARK}")):
            pid = re.search(r"-(\d+)$", mark.stem)
            if mark == self._mark or pid is None or _alive(int(pid[1])):
                continue
            self._adopt(mark, "the process ended at its first launch")

    def _adopt(self, mark: Path, reason: str) -> bool:
        try:
            held = json.loads(mark.read_text() or "{}")
        except (ValueError, OSError):  # gone, or torn
            held = {}
        if held:
            self.broken(held["problem"], held["config"], reason)
        mark.unlink(missing_ok=True)
        return bool(held)


def worker_name(rank: int) -> str:
    """Return a name that no other worker has had: host, rank, a token, process."""
    return f"{_host()}-{rank}-{secrets.token_hex(4)}-{os.getpid()}"


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9]+", "_", socket.gethostname()) or "host"


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _encoded(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, sort_keys=True).encode("ascii") + b"\n"


@dataclass(frozen=True, kw_only=True)
class Report:
    """What became of the problems that were asked for.

    ``skipped`` and ``failed`` are reason → count; ``before``: tuned in an earlier run.
    """

    asked: int
    tuned: int
    before: int
    skipped: Mapping[str, int]
    failed: Mapping[str, int]
    left: int

    @property
    def text(self) -> str:
        """One paragraph for people."""
        parts = [
            f"{self.asked} problems asked for: {self.tuned} tuned"
            + (f" ({self.before} of them before)" if self.before else ""),
            f"{sum(self.skipped.values())} skipped",
            f"{sum(self.failed.values())} failed",
            f"{self.left} left",
        ]
        reasons = [
            f"  {status}, {count}: {reason}"
            for status, counts in ((SKIPPED, self.skipped), (FAILED, self.failed))
            for reason, count in sorted(counts.items())
        ]
        return "\n".join([", ".join(parts), *reasons])


def report(problems: Sequence[Problem], done: Done, before: set[str]) -> Report:
    """Count what became of problems."""
    ids = [problem_id(problem) for problem in problems]
    lines = [done.lines[key] for key in ids if key in done.lines]
    reasons = {
        status: Counter(line["reason"] for line in lines if line["status"] == status)
        for status in (SKIPPED, FAILED)
    }
    tuned = [line for line in lines if line["status"] == TUNED]
    return Report(
        asked=len(ids),
        tuned=len(tuned),
        before=sum(line["problem"] in before for line in tuned),
        skipped=dict(reasons[SKIPPED]),
        failed=dict(reasons[FAILED]),
        left=len(ids) - len(lines),
    )
