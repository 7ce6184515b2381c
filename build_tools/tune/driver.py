"""Runs searches over a bench: several problems in flight, so that compiles and GPU overlap.

One thread does everything: while workers compile one problem's next candidates, another's
are measured.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Final

from build_tools.tune.handout import MOST_ATTEMPTS, Ticket, Tickets
from build_tools.tune.model import Chip
from build_tools.tune.outcome import tuned_line
from build_tools.tune.records import Answers, Ask, Bench, Job
from build_tools.tune.results import (
    FAILED,
    SKIPPED,
    TUNED,
    Done,
    Line,
    Writer,
    config_of,
    problem_id,
)
from build_tools.tune.search import Effort, Search, exhaust, search
from build_tools.tune.shapes import Shape, shape_of
from inductor_tables.errors import DeadDeviceError, InductorTablesError, SkippedProblemError
from inductor_tables.problems import Problem
from inductor_tables.schema import Config

log = logging.getLogger(__name__)

_POLL_S: Final = 0.2
_NEIGHBOURS: Final = 4
_WINNERS: Final = 2

History = list[tuple[Shape, list[Config]]]
Finished = Callable[[str, str], None]
"""Told (problem id, status) of each problem that is done."""

Procedure = Generator[Ask, Answers, Line]
"""Asks for measurements of one problem, and ends with the line of the results."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to do with each problem.

    Attributes:
        effort: of a search.
        ahead: problems in flight.
        exhaustive: measure every legal candidate instead of searching.
        previous: problem id → the entry that a table has now.
        seeds: shapes with candidates that searches begin from, besides the results.
        chip: the device, for the model.
        procedure: makes what is done with a problem instead of a search, of (problem id, job).
            Its line holds ``status``, and under ``best`` configurations in plain form if tuned.
    """

    effort: Effort = field(default_factory=Effort)
    ahead: int = 3
    exhaustive: bool = False
    previous: dict[str, Config] = field(default_factory=dict)
    seeds: History = field(default_factory=list)
    chip: Chip = field(default_factory=Chip)
    procedure: Callable[[str, Job], Procedure] | None = None


@dataclass
class _Running:
    ticket: Ticket
    key: str
    problem: Problem
    job: Job
    procedure: Procedure
    ask: Ask
    begun: float


class Driver:
    """Tunes problems until there are no more, or it is told to stop."""

    def __init__(
        self,
        bench: Bench,
        problems: Sequence[Problem],
        *,
        tickets: Tickets,
        writer: Writer,
        plan: Plan,
        done: Done,
        finished: Finished = lambda _key, _status: None,
    ) -> None:
        """Prepare a run.

        Args:
            bench: what measures.
            problems: all problems; tickets are their numbers.
            tickets: where problems come from.
            writer: where results go.
            plan: what to do with each.
            done: what the directory holds from before.
            finished: told of each result.
        """
        self._bench, self._problems, self._tickets = bench, problems, tickets
        self._writer, self._plan, self._finished = writer, plan, finished
        self._broken = done.broken
        self._history: History = [*done.history, *plan.seeds]
        self._running: list[_Running] = []
        self.stopping = False
        """Set from anywhere: begin nothing more, and leave what is in flight undone."""
        self.closing = False
        """Set from anywhere: begin nothing more, and finish what is in flight."""

    def run(self) -> None:
        """Tune until no problem is left.

        Raises:
            DeadDeviceError: a candidate broke the GPU's context, and is noted as broken; the
                process must be started anew.
        """
        try:
            while not self.stopping:
                self._begin_more()
                if self._running:
                    self._work()
                elif self.closing or self._tickets.finished():
                    return
                else:
                    time.sleep(_POLL_S)
        finally:
            for running in self._running:
                running.job.close()

    def _begin_more(self) -> None:
        while len(self._running) < self._plan.ahead and not (self.closing or self.stopping):
            ticket = self._tickets.next()
            if ticket is None:
                return
            self._begin(ticket)

    def _begin(self, ticket: Ticket) -> None:
        problem = self._problems[ticket.number]
        key = problem_id(problem)
        if ticket.lost >= MOST_ATTEMPTS:
            self._end(ticket, key, {"status": FAILED, "reason": f"it ended {ticket.lost} workers"})
            return
        begun = time.monotonic()
        try:
            job = self._bench.open(
                problem,
                self._broken.get(key, set()),
                lambda config: self._writer.mark(key, config),
            )
            procedure = (self._plan.procedure or self._tuning)(key, job)
        except SkippedProblemError as error:
            self._end(ticket, key, {"status": SKIPPED, "reason": str(error)})
            return
        running = _Running(ticket, key, problem, job, procedure, next(procedure), begun)
        job.prepare(running.ask.candidates)
        self._running.append(running)

    def _tuning(self, key: str, job: Job) -> Procedure:
        return tuned_line(job, (yield from self._search(key, job)))

    def _search(self, key: str, job: Job) -> Search:
        plan = self._plan
        if plan.exhaustive:
            return exhaust(job.space, plan.effort, job.host_pick)
        return search(
            job.space,
            plan.effort,
            job.host_pick,
            seeds=nearest(job.space.shape, self._history),
            previous=plan.previous.get(key),
            chip=plan.chip,
        )

    def _work(self) -> None:
        """Measure the first problem whose candidates are compiled, or wait."""
        for running in self._running:
            if running.job.ready():
                self._step(running)
                return
        self._bench.wait(_POLL_S)

    def _step(self, running: _Running) -> None:
        try:
            answers = running.job.measure(running.ask)
            try:
                running.ask = running.procedure.send(answers)
            except StopIteration as stop:
                seconds = time.monotonic() - running.begun
                self._close(running, {**stop.value, "seconds": seconds})
            else:
                running.job.prepare(running.ask.candidates)
        except DeadDeviceError as error:
            if not self._writer.adopt_own_mark(str(error)):  # else it would happen again
                self._close(running, {"status": FAILED, "reason": "it broke the GPU's context"})
            raise
        except (InductorTablesError, RuntimeError, ValueError, OSError) as error:
            log.warning("%s failed", running.key, exc_info=True)
            self._close(running, {"status": FAILED, "reason": _reason(error)})

    def _close(self, running: _Running, line: Line) -> None:
        self._running.remove(running)
        running.job.close()
        if line["status"] == TUNED:
            best = [config_of(plain) for plain in line["best"]]
            self._history.append((shape_of(running.problem), best))
        self._end(running.ticket, running.key, line)

    def _end(self, ticket: Ticket, key: str, line: Line) -> None:
        problem = self._problems[ticket.number]
        self._writer.write(
            {
                "kind": "problem",
                "problem": key,
                "count": problem.count,
                "origins": list(problem.origins),
                **line,
            }
        )
        self._tickets.done(ticket.number)
        self._finished(key, line["status"])


def nearest(shape: Shape, history: History) -> list[Config]:
    """Return the best candidates of the problems most like one."""
    near = sorted(
        ((shape.distance(other), number) for number, (other, _) in enumerate(history)),
    )[:_NEIGHBOURS]
    found = [
        config
        for distance, number in near
        if distance != float("inf")
        for config in history[number][1][: _WINNERS if distance else 2 * _NEIGHBOURS]
    ]
    return list(dict.fromkeys(found))


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"[:300]
