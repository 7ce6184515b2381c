"""Whether all ranks of a job choose alike, asked before choices that differ can hang them.

Ranks compare through the store that their process group was made with, on the CPU and
without a collective: the group's own communication is not touched, whatever its backend,
and a rank that never comes is a timeout here and nothing left behind there.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Final

from inductor_tables.activation import current_activation
from inductor_tables.errors import DisagreementError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Store

log = logging.getLogger(__name__)

GRACE_S: Final = 10.0
"""How long to wait for the rank that compares, once all have answered or time is up."""

_PREFIX: Final = "inductor_tables/agreement"
_READ_S: Final = 2.0
_SHORTEST_POLL_S: Final = 0.005
_LONGEST_POLL_S: Final = 0.25
_MAX_TEXT: Final = 2000
_MAX_SHOWN: Final = 16


def check_agreement(group: ProcessGroup | None = None, *, timeout_s: float = 30) -> None:
    """Raise on every rank unless all ranks of a process group choose alike.

    Every rank calls it, also one that is disabled or has no table; ranks that are not in
    the group return at once. Ranks agree if the ``digest`` of ``status()`` is the same or
    all are disabled. It is the first call that initialises CUDA in a process that sees a
    GPU, as the first compile would.

    Args:
        group: of ``torch.distributed``, of any backend; None: the default group.
        timeout_s: how long the last rank may come after the first. The call takes at most
            12 s longer, unless the group's store itself does not answer.

    Raises:
        DisagreementError: the ranks differ, one could not read its tables, one did not
            call in time, or the store broke down; the text says which ranks have what.
        RuntimeError: ``torch.distributed`` is not initialised.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not (distributed.is_available() and distributed.is_initialized()):
        raise RuntimeError(
            "check_agreement() compares the ranks of a process group, and there is none; call "
            "torch.distributed.init_process_group() first"
        )
    rank = distributed.get_rank(group)
    if rank < 0:
        return
    members = group or distributed.group.WORLD
    names = distributed.get_process_group_ranks(members)
    own = _own_answer(names[rank])
    try:
        problem = _Meeting(members.get_group_store(), rank, names).verdict(own, timeout_s)
    except RuntimeError as error:  # torch.distributed.DistError and what a store raises itself
        raise DisagreementError(
            f"the ranks could not be compared, the store of their group failed: {error}; this "
            f"rank ({names[rank]}) has: {own.text}"
        ) from error
    if problem:
        raise DisagreementError(problem)
    log.debug("all %d ranks agree: %s", len(names), own.text)


@dataclass(frozen=True)
class _Answer:
    """What a rank says: ranks with one ``digest`` agree; ``text`` is for people."""

    digest: str
    text: str


def _own_answer(name: int) -> _Answer:
    """Say what decides on this process's choices; a rank that cannot tell still answers."""
    activation = current_activation()
    if activation is None:
        return _Answer("off", "tables are off")
    try:
        return _Answer(activation.digest(), "; ".join(activation.decisive(names=True)))
    except Exception as error:  # noqa: BLE001 - the other ranks wait for an answer
        return _Answer(f"rank {name} failed", f"tables cannot be used: {error}")


class _Meeting:
    """One comparison; all that ranks know of each other is in the store.

    Each rank counts its calls there, so that the n-th calls of all ranks meet. It puts its
    answer down and counts itself in. One rank settles: the last to come or the first whose
    time is up, whichever takes the ``settler`` key first. Its verdict is everybody's, also
    that of a rank that comes late.
    """

    def __init__(self, store: Store, rank: int, names: Sequence[int]) -> None:
        self.store = store
        self.rank = rank
        self.names = list(names)
        self.place = f"{_PREFIX}/{store.add(f'{_PREFIX}/calls/{rank}', 1)}"

    def verdict(self, own: _Answer, timeout_s: float) -> str:
        """Return what is wrong; empty: all agree."""
        text = own.text if len(own.text) <= _MAX_TEXT else f"{own.text[:_MAX_TEXT]}..."
        self.store.set(f"{self.place}/{self.rank}", json.dumps([own.digest, text]))
        arrived = self.store.add(f"{self.place}/arrived", 1)
        if arrived == len(self.names) or not self._wait(timeout_s):
            self._settle(timeout_s)
        if not self._wait(GRACE_S):
            return "the ranks could not be compared: the rank that was to compare has died"
        problem: str = self.store.get(f"{self.place}/verdict").decode()
        if problem:
            self._wait_for_readers()
        return problem

    def _settle(self, timeout_s: float) -> None:
        """Give the verdict, unless another rank does."""
        key, name = f"{self.place}/settler", str(self.rank)
        if self.store.compare_set(key, "", name).decode() != name:
            return
        keys = [f"{self.place}/{rank}" for rank in range(len(self.names))]
        came = [self.store.check([key]) for key in keys]
        answers = {
            name: _Answer(*json.loads(self.store.get(key)))
            for name, key, there in zip(self.names, keys, came, strict=True)
            if there
        }
        self.store.set(f"{self.place}/verdict", _problem(answers, self.names, timeout_s))

    def _wait(self, timeout_s: float) -> bool:
        """Wait for the verdict by asking; a blocking wait would hold the store's lock."""
        deadline = time.monotonic() + timeout_s
        for tries in count():
            if self.store.check([f"{self.place}/verdict"]):
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(left, _LONGEST_POLL_S, _SHORTEST_POLL_S * 2 ** min(tries, 10)))
        raise AssertionError("unreachable")

    def _wait_for_readers(self) -> None:
        """Stay until the others know too: the store may live in this process, which may end."""
        deadline = time.monotonic() + _READ_S
        read = self.store.add(f"{self.place}/read", 1)
        while time.monotonic() < deadline and read < self.store.add(f"{self.place}/arrived", 0):
            time.sleep(_SHORTEST_POLL_S)
            read = self.store.add(f"{self.place}/read", 0)


def _problem(answers: Mapping[int, _Answer], names: Sequence[int], timeout_s: float) -> str:
    """Say which ranks have what, if they differ or some are missing; else nothing."""
    alike: dict[str, list[int]] = {}
    for name, answer in sorted(answers.items()):
        alike.setdefault(answer.digest, []).append(name)
    missing = sorted(set(names) - set(answers))
    failed = any(digest.endswith("failed") for digest in alike)
    if not missing and not failed and len(alike) == 1:
        return ""
    problem = (
        f"not all ranks called check_agreement() within {timeout_s:g} s of the first"
        if missing
        else "the ranks of this job do not choose alike"
    )
    lines = [f"{_ranks(found)}: {answers[found[0]].text}" for found in alike.values()]
    if len(lines) > _MAX_SHOWN:
        lines[_MAX_SHOWN:] = [f"... and {len(lines) - _MAX_SHOWN} other kinds of answers"]
    if missing:
        lines.append(f"{_ranks(missing)}: did not call")
    advice = (
        "give every rank the same tables, settings and versions, or call "
        "inductor_tables.disable() on all"
    )
    return "\n  ".join([f"{problem}:", *lines]) + f"\n{advice}"


def _ranks(numbers: Sequence[int]) -> str:
    """Name ranks: ``ranks 0-3, 6``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    shown = ", ".join("-".join(map(str, run)) for run in runs)
    return f"rank {shown}" if len(numbers) == 1 else f"ranks {shown}"
