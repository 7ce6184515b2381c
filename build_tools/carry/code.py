"""Compares what two torches compile for entries, each torch in Pythons of its own.

Two torches cannot be in one process, so that each renders its kernels in workers of its own
(``worker``), which may be any Python that has the torch, its triton and this project. Both
kernels are then compiled by the triton of the torch that the entries shall serve.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import build_tools
from build_tools.carry.rules import Pair
from inductor_tables.errors import BuildError
from inductor_tables.simulation import CATALOGUE
from inductor_tables.versions import TorchSeries, torch_series

Pythons = Mapping[TorchSeries, Path]
"""Series → the Python that has it."""

Advance = Callable[[int, int], None]
"""Told how many of how many comparisons are done."""

_ROOT: Final = Path(build_tools.__file__).parents[1]
_LAST: Final = 2000
"""Signs of a worker's last words that are looked at."""

_Task = dict[str, Any]
_Answer = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Comparer:
    """Compares pairs by the Pythons of both torches.

    Attributes:
        pythons: which there are.
        jobs: processes at a time.
        timeout_s: seconds after which rendering or compiling one kernel is given up.
        advance: told of progress.
    """

    pythons: Pythons
    jobs: int
    timeout_s: float = 300.0
    advance: Advance = lambda _done, _total: None

    def can(self, source: TorchSeries, target: TorchSeries) -> bool:
        """Whether there is a Python for both."""
        return {source, target} <= self.pythons.keys()

    def compare(self, pairs: Sequence[Pair]) -> dict[Pair, str | None]:
        """Return for each pair why it does not carry, None if the compiled code is the same.

        Raises:
            BuildError: a Python has not the torch it is said to have, or cannot work at all.
            OSError: a Python cannot be started.
        """
        found: dict[Pair, str | None] = {}
        total = len(pairs)
        groups: dict[tuple[TorchSeries, TorchSeries, str], list[Pair]] = defaultdict(list)
        for pair in pairs:
            if pair.device is None:
                found[pair] = "neither key nor dump names a device to compile for"
            elif pair.device not in CATALOGUE:
                found[pair] = f"{pair.device} cannot be simulated"
            else:
                groups[pair.source, pair.target, pair.device].append(pair)
        done = 2 * len(found)

        def advance() -> None:
            nonlocal done
            done += 1  # a pair has two halves: what each torch does
            self.advance(done // 2, total)

        for (source, target, device), group in groups.items():
            theirs = self._ask(source, device, [_task(p.key, p.recorded) for p in group], advance)
            asked = [
                _task(pair.key, pair.config, answer["kernel"])
                for pair, answer in zip(group, theirs, strict=True)
                if "kernel" in answer
            ]
            ours = iter(self._ask(target, device, asked, advance))
            for pair, answer in zip(group, theirs, strict=True):
                if "kernel" in answer:
                    reason = next(ours)["reason"]
                    found[pair] = reason and f"torch {target}: {reason}"
                else:
                    found[pair] = f"torch {source}: {answer['reason']}"
                    advance()
        return found

    def _ask(
        self,
        series: TorchSeries,
        device: str,
        tasks: Sequence[_Task],
        advance: Callable[[], None],
    ) -> list[_Answer]:
        """Return the answers of one torch, in the order of the tasks."""
        lanes = [tasks[first :: self.jobs] for first in range(self.jobs)]
        crew = _Crew()

        def work(lane: Sequence[_Task]) -> list[_Answer]:
            return list(self._lane(series, device, lane, advance, crew))

        with ThreadPoolExecutor(self.jobs) as pool:
            running = [pool.submit(work, lane) for lane in lanes]
            try:
                answered = [future.result() for future in running]
            finally:  # also when interrupted: the pool would otherwise wait for all of them
                crew.end()
        return [answered[n % self.jobs][n // self.jobs] for n in range(len(tasks))]

    def _lane(
        self,
        series: TorchSeries,
        device: str,
        tasks: Sequence[_Task],
        advance: Callable[[], None],
        crew: _Crew,
    ) -> Iterator[_Answer]:
        """Yield the answers to tasks, by one process after another if they die of some."""
        left = list(tasks)
        while left and not crew.ended:
            with self._worker(series, device, left, crew) as worker:
                answered = 0
                for line in worker.answers:
                    answered += 1
                    advance()
                    yield line
            left = left[answered:]
            if left:
                advance()
                yield {"reason": self._death(worker.exit_status)}
                left = left[1:]

    def _death(self, status: int) -> str:
        """Say how a worker ended."""
        if status == -signal.SIGALRM:
            return f"no result after {self.timeout_s:g} s"
        how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        return f"the compiler ended its process ({how})"

    @contextlib.contextmanager
    def _worker(
        self, series: TorchSeries, device: str, tasks: Sequence[_Task], crew: _Crew
    ) -> Iterator[_Worker]:
        with tempfile.TemporaryDirectory(prefix="carry_") as scratch, contextlib.ExitStack() as end:
            asked = Path(scratch, "tasks.json")
            asked.write_text(
                json.dumps({"device": device, "timeout_s": self.timeout_s, "tasks": tasks}),
                encoding="utf-8",
            )
            said = end.enter_context(open(Path(scratch, "said.txt"), "w+", encoding="utf-8"))
            process = subprocess.Popen(
                [self.pythons[series], "-m", "build_tools.carry.worker", asked],
                cwd=_ROOT,
                env={**os.environ, "TMPDIR": scratch},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )
            worker = _Worker(process, said)
            crew.add(process)
            try:
                worker.check(self.pythons[series], series)
                yield worker
            finally:
                process.kill()
                process.wait()


class _Crew:
    """The processes at work, which end together."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[str]] = []
        self.ended = False

    def add(self, process: subprocess.Popen[str]) -> None:
        """Take a process in."""
        self._processes.append(process)
        if self.ended:
            process.kill()

    def end(self) -> None:
        """Kill all that are left, and those to come."""
        self.ended = True
        for process in self._processes:
            process.kill()


class _Worker:
    """A process at work."""

    def __init__(self, process: subprocess.Popen[str], said: IO[str]) -> None:
        assert process.stdout is not None
        self._process, self._said, self._lines = process, said, process.stdout

    def check(self, python: Path, series: TorchSeries) -> None:
        """Wait until it can work.

        Raises:
            BuildError: it cannot, or it has another torch.
        """
        first = self._lines.readline()
        if not first:
            self._process.wait()
            self._said.seek(0)
            *_, last = ["it said nothing", *self._said.read()[-_LAST:].strip().splitlines()]
            raise BuildError(
                f"{python}: cannot render kernels: {last}; expected a Python with torch {series}, "
                "its triton and this project (pip install -e '.[build]')"
            )
        torch = json.loads(first)["torch"]
        if torch_series(torch) != series:
            raise BuildError(f"{python}: expected torch {series}, found {torch}")

    @property
    def answers(self) -> Iterator[_Answer]:
        """The answers as they come, until it ends."""
        yield from map(json.loads, self._lines)

    @property
    def exit_status(self) -> int:
        """The exit status, the negative number of the signal that ended it."""
        return self._process.wait()


def _task(key: str, config: Any, kernel: Any = None) -> _Task:
    return {"key": key, "entry": dict(config.plain), "kernel": kernel}
