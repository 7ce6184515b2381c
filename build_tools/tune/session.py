"""One worker's run from problems to results, on the GPU that is its own."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from build_tools.tune.driver import Driver, Plan
from build_tools.tune.handout import LocalTickets, StoreTickets, Tickets, job_store
from build_tools.tune.records import Bench
from build_tools.tune.results import (
    Done,
    Report,
    Writer,
    problem_id,
    read_results,
    report,
    worker_name,
)
from inductor_tables.errors import DeadDeviceError
from inductor_tables.problems import Problem

_ENDS: Final = "INDUCTOR_TABLES_TUNE_ENDS"
"""Environment variable: when the time is up, for the process that takes over after a crash."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a run is asked for.

    Attributes:
        problems: what to tune, in this order.
        out: where results go, and are found again.
        plan: what to do with each.
        minutes: begin nothing more after that; None: no limit.
        retry: do problems again that failed before.
        seeds: directories of further results, of any torch, that searches may begin from.
        lease_s: seconds after which a silent worker's problem is given to another.
    """

    problems: Sequence[Problem]
    out: Path
    plan: Plan = field(default_factory=Plan)
    minutes: float | None = None
    retry: bool = False
    seeds: Sequence[Path] = ()
    lease_s: float = 30.0


Progress = Callable[[int, int], None]
"""Told (problems that this run need not begin any more, problems in all)."""


def tune(
    run: Run,
    bench: Bench,
    provenance: dict[str, Any],
    *,
    progress: Progress = lambda _done, _all: None,
) -> Report:
    """Tune problems until none is left, the time is up, or a signal asks to end.

    Raises:
        BuildError: other workers of the job have other problems, or results cannot be read.
        DeadDeviceError: the GPU's context is broken; see :func:`start_anew`.
        OSError: results cannot be written.
    """
    run.out.mkdir(parents=True, exist_ok=True)
    shared = job_store()
    writer = Writer(run.out, provenance, worker_name(shared[1] if shared else 0))
    writer.adopt_marks()
    done = _read(run.out, provenance)
    before = done.ids(retry=run.retry)
    ids = [problem_id(problem) for problem in run.problems]
    numbers = {number for number, key in enumerate(ids) if key in before}
    tickets: Tickets = LocalTickets(len(ids), numbers)
    if shared is not None:
        tickets = StoreTickets(
            shared[0], ids, worker=writer.worker, done=numbers, lease_s=run.lease_s
        )
    for directory in run.seeds:
        done.lines.update(
            {f"{directory}: {key}": line for key, line in read_results(directory).lines.items()}
        )
    finished = len(numbers)

    def count(_key: str, _status: str) -> None:
        nonlocal finished
        finished += 1
        progress(finished, len(ids))

    driver = Driver(
        bench, run.problems, tickets=tickets, writer=writer, plan=run.plan, done=done,
        finished=count,
    )  # fmt: skip
    progress(finished, len(ids))
    with _ending(driver, run.minutes):
        try:
            driver.run()
        finally:
            tickets.close()
            writer.close()
    return report(run.problems, _read(run.out, provenance), before)


def start_anew(error: DeadDeviceError) -> None:
    """Replace this process by one with the same command line, and a GPU context that works."""
    print(f"{error}\nstarting anew", file=sys.stderr, flush=True)  # noqa: T201 - nothing else is up
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - no shell is


def _read(out: Path, provenance: dict[str, Any]) -> Done:
    return read_results(out, torch=provenance.get("torch"), arch=provenance.get("arch"))


@contextlib.contextmanager
def _ending(driver: Driver, minutes: float | None) -> Iterator[None]:
    """Have signals and the clock end a driver cleanly."""

    def stop(number: int, _frame: Any) -> None:
        driver.stopping = True
        signal.signal(number, signal.SIG_DFL)  # a second one ends at once

    def close() -> None:
        driver.closing = True

    timer = threading.Timer(_left(minutes), close) if minutes is not None else None
    main = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if main else ()
    held = {number: signal.signal(number, stop) for number in numbers}
    try:
        if timer is not None:
            timer.daemon = True
            timer.start()
        yield
    except DeadDeviceError:
        raise  # the process that takes over has to know when the time is up
    except BaseException:
        os.environ.pop(_ENDS, None)
        raise
    else:
        os.environ.pop(_ENDS, None)
    finally:
        if timer is not None:
            timer.cancel()
        for number, handler in held.items():
            signal.signal(number, handler)


def _left(minutes: float) -> float:
    """Return the seconds that are left; a process that took over has only the rest."""
    ends = float(os.environ.setdefault(_ENDS, str(time.time() + 60 * minutes)))
    return max(ends - time.time(), 0.0)
