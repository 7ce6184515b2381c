"""Hands problems out to workers: one process, or all ranks of a ``torchrun`` job.

The ranks share the key-value store that their process group would use. A ticket is an
atomic increment; a worker's counter beats as long as it lives, and the problem of one whose
counter stands still is taken over by a compare-and-set. Nothing else is scheduled.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from inductor_tables.errors import BuildError

MOST_ATTEMPTS: Final = 3
"""Workers that a problem may end before it counts as failed."""


@dataclass(frozen=True, kw_only=True)
class Ticket:
    """A problem to do: its number, and how many workers had it before."""

    number: int
    lost: int = 0


class Tickets(Protocol):
    """Where problems come from."""

    def next(self) -> Ticket | None:
        """Return a problem to do, None if there is none now."""

    def done(self, number: int) -> None:
        """Say that a problem's result is on the disk."""

    def finished(self) -> bool:
        """Whether every problem is done."""

    def close(self) -> None:
        """Stop asking for problems."""


class LocalTickets:
    """All problems in order, for a single worker."""

    def __init__(self, count: int, done: Collection[int] = ()) -> None:
        self._left = [number for number in range(count) if number not in done]
        self._open: set[int] = set()

    def next(self) -> Ticket | None:
        """Return the next problem."""
        if not self._left:
            return None
        number = self._left.pop(0)
        self._open.add(number)
        return Ticket(number=number)

    def done(self, number: int) -> None:
        """Forget a problem."""
        self._open.discard(number)

    def finished(self) -> bool:
        """Whether every problem is done."""
        return not self._left and not self._open

    def close(self) -> None:
        """Do nothing."""


class StoreTickets:
    """Problems shared through a ``torch.distributed`` store."""

    def __init__(
        self,
        store: Any,
        problems: Sequence[str],
        *,
        worker: str,
        done: Collection[int] = (),
        lease_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Join the workers of a store.

        Args:
            store: a TCPStore, or what wraps one.
            problems: the ids of all problems; every worker must have the same.
            worker: a name that no other worker has or had.
            done: numbers of problems that this worker's files hold results of.
            lease_s: how long a worker's counter may stand still before its problems go to
                others.
            clock: for tests.

        Raises:
            BuildError: another worker has other problems.
        """
        self._store, self._count, self._worker = store, len(problems), worker
        self._lease_s, self._clock = lease_s, clock
        self._known_done: set[int] = set()
        self._seen: dict[int, tuple[str, int, float]] = {}
        self._handed_out = False
        self._check_same(problems)
        for number in sorted(done):
            self.done(number)
        self._stop = threading.Event()
        self._beats = threading.Thread(target=self._beat, name="tune-lease", daemon=True)
        self._beats.start()

    def next(self) -> Ticket | None:
        """Return a problem that nobody has, else one of a worker that stopped beating."""
        while not self._handed_out:
            number = self._store.add("next", 1) - 1
            if number >= self._count:
                self._handed_out = True
            elif not self._is_done(number) and self._own(number, ""):
                return Ticket(number=number)
        return self._taken_over()

    def done(self, number: int) -> None:
        """Tell all workers."""
        self._known_done.add(number)
        self._store.set(f"done/{number}", self._worker)

    def finished(self) -> bool:
        """Whether every problem is done, whoever did it."""
        return all(self._is_done(number) for number in range(self._count))

    def close(self) -> None:
        """Stop beating: what this worker has not done, others may take."""
        self._stop.set()
        self._beats.join()

    def _taken_over(self) -> Ticket | None:
        now = self._clock()
        for number in range(self._count):
            if self._is_done(number):
                continue
            owner = self._owner(number)
            beat = self._store.add(f"beat/{owner}", 0)
            seen = self._seen.get(number)
            if owner == self._worker or seen is None or seen[:2] != (owner, beat):
                self._seen[number] = (owner, beat, now)
            elif now - seen[2] > self._lease_s and self._own(number, owner):
                return Ticket(number=number, lost=self._store.add(f"lost/{number}", 1))
        return None

    def _own(self, number: int, owner: str) -> bool:
        """Become a problem's owner in the place of another; ``""``: of nobody."""
        found = self._store.compare_set(f"owner/{number}", owner, self._worker)
        return bytes(found).decode() == self._worker

    def _owner(self, number: int) -> str:
        key = f"owner/{number}"
        return bytes(self._store.get(key)).decode() if self._store.check([key]) else ""

    def _is_done(self, number: int) -> bool:
        if number not in self._known_done and self._store.check([f"done/{number}"]):
            self._known_done.add(number)
        return number in self._known_done

    def _check_same(self, problems: Sequence[str]) -> None:
        digest = hashlib.sha256("\n".join(problems).encode()).hexdigest()
        first = bytes(self._store.compare_set("problems", "", digest)).decode()
        if first != digest:
            raise BuildError(
                f"this worker has {len(problems)} problems of digest {digest[:12]}, another has "
                f"those of digest {first[:12]}: give all workers the same files"
            )

    def _beat(self) -> None:
        while not self._stop.wait(self._lease_s / 6):
            try:
                self._store.add(f"beat/{self._worker}", 1)
            except RuntimeError:  # the store's host is gone: the main thread will meet it too
                return


def job_store() -> tuple[Any, int, int] | None:
    """Return the store of the ``torchrun`` job that this process is a rank of, with rank and size.

    None outside of one. Keys of a job that was restarted do not meet those of before.
    """
    if "RANK" not in os.environ or "MASTER_ADDR" not in os.environ:
        return None
    from torch.distributed import PrefixStore, rendezvous  # noqa: PLC0415 - heavy

    store, rank, size = next(rendezvous("env://"))
    generation = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"inductor_tables.tune/{generation}", store), rank, size
