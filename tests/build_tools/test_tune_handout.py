"""Problems shared by the workers of a job, some of which are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import tune_samples as samples

from build_tools.tune.handout import LocalTickets, StoreTickets, Ticket, job_store
from build_tools.tune.results import problem_id, read_results, report
from inductor_tables.errors import BuildError

WORKER = Path(__file__).with_name("tune_worker.py")


@pytest.fixture(name="store")
def _store() -> Any:
    from torch.distributed import TCPStore

    return TCPStore("localhost", 0, is_master=True, wait_for_workers=False)


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def _tickets(store: Any, worker: str, count: int = 4, **keywords: Any) -> StoreTickets:
    names = [f"problem {n}" for n in range(count)]
    return StoreTickets(store, names, worker=worker, **keywords)


def test_each_problem_goes_to_one_worker(store: Any) -> None:
    """Tickets of several workers never meet, and end together."""
    workers = [_tickets(store, name) for name in ("a", "b", "c")]
    numbers = []
    for turn in range(4):
        ticket = workers[turn % 3].next()
        assert ticket is not None and ticket.lost == 0
        numbers.append(ticket.number)
        assert not workers[0].finished()
        workers[turn % 3].done(ticket.number)
    assert numbers == [0, 1, 2, 3]
    assert all(worker.next() is None and worker.finished() for worker in workers)
    for worker in workers:
        worker.close()


def test_a_dead_workers_problem_is_taken_over_once(store: Any) -> None:
    """When a counter stands still for the lease, exactly one of the others gets the problem."""
    clock = Clock()
    dead = _tickets(store, "dead", 1, lease_s=600)
    ticket = dead.next()
    dead.close()
    others = [_tickets(store, name, 1, lease_s=600, clock=clock) for name in ("b", "c")]
    assert ticket == Ticket(number=0)
    assert [other.next() for other in others] == [None, None]
    clock.now = 599
    assert [other.next() for other in others] == [None, None]
    clock.now = 601
    assert [other.next() for other in others] == [Ticket(number=0, lost=1), None]
    for other in others:
        other.close()


def test_a_living_worker_keeps_its_problem(store: Any) -> None:
    """Beats renew the lease, however long a problem takes."""
    clock = Clock()
    living = _tickets(store, "living", 1, lease_s=0.06)
    other = _tickets(store, "other", 1, lease_s=0.06, clock=clock)
    assert living.next() is not None
    for _ in range(5):
        time.sleep(0.1)
        clock.now += 0.1
        assert other.next() is None
    living.close()
    other.close()


def test_what_files_hold_is_not_handed_out(store: Any) -> None:
    """Problems that a worker has results of are done for all."""
    tickets = _tickets(store, "a", done={0, 2})
    other = _tickets(store, "b")
    assert tickets.next() == Ticket(number=1)
    assert other.next() == Ticket(number=3)
    tickets.close()
    other.close()


def test_workers_must_have_the_same_problems(store: Any) -> None:
    """A worker with other files is told so."""
    first = _tickets(store, "a", 4)
    with pytest.raises(BuildError, match="give all workers the same files"):
        _tickets(store, "b", 5)
    first.close()


def test_a_worker_alone_has_all_problems() -> None:
    """Outside of a job problems come in order."""
    tickets = LocalTickets(3, {1})
    assert [tickets.next(), tickets.next(), tickets.next()] == [
        Ticket(number=0),
        Ticket(number=2),
        None,
    ]
    assert not tickets.finished()
    tickets.done(0)
    tickets.done(2)
    assert tickets.finished()


def test_outside_of_a_job_there_is_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torchrun's variables the process works alone."""
    monkeypatch.delenv("RANK", raising=False)
    assert job_store() is None


@pytest.mark.timeout(180)
def test_eight_workers_two_of_them_killed(store: Any, tmp_path: Path) -> None:
    """Every problem is done exactly once in the merged result, whoever dies."""
    count = 40
    workers = [_worker(store, tmp_path, rank, 8, count, seconds=0.4) for rank in range(8)]
    _wait_for(
        lambda: _owned(store, count) >= 12 and len(_busy(store, count, workers)) >= 2, workers
    )
    killed = _busy(store, count, workers)[:2]
    for worker in killed:
        worker.send_signal(signal.SIGKILL)
    codes = [worker.wait(timeout=150) for worker in workers]
    assert [code != 0 for code in codes] == [worker in killed for worker in workers]
    problems = [samples.problem(8 + n, 64, 64) for n in range(count)]
    done = read_results(tmp_path)
    assert set(done.lines) == {problem_id(problem) for problem in problems}
    assert report(problems, done, set()).tuned == count
    assert _lost(store, count) >= 1
    written = Counter(
        json.loads(line)["problem"]
        for path in tmp_path.glob("*.jsonl")
        for line in path.read_text().splitlines()
        if '"kind": "problem"' in line
    )
    assert set(written.values()) <= {1, 2}  # twice where a worker died between file and store


def _worker(
    store: Any, out: Path, rank: int, size: int, count: int, *, seconds: float
) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "localhost",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(WORKER), str(out), f"--count={count}", f"--seconds={seconds}"]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)


def _wait_for(condition: Any, workers: list[Any]) -> None:
    for _ in range(1200):
        if condition():
            return
        assert all(worker.poll() in (None, 0) for worker in workers)
        time.sleep(0.05)
    pytest.fail("the workers did not begin within a minute")


def _keys(count: int, name: str) -> list[str]:
    return [f"inductor_tables.tune/0/{name}/{number}" for number in range(count)]


def _owned(store: Any, count: int) -> int:
    return sum(store.check([key]) for key in _keys(count, "owner"))


def _busy(store: Any, count: int, workers: list[Any]) -> list[Any]:
    """Return the workers that have a problem which is not done; a name ends with the process."""
    owners = [
        bytes(store.get(owner)).decode()
        for owner, done in zip(_keys(count, "owner"), _keys(count, "done"), strict=True)
        if store.check([owner]) and not store.check([done])
    ]
    return [w for w in workers if any(name.endswith(f"-{w.pid}") for name in owners)]


def _lost(store: Any, count: int) -> int:
    return sum(store.check([key]) for key in _keys(count, "lost"))
