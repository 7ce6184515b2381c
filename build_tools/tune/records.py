"""What measuring says of a candidate, and what is asked of the measurer."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

from build_tools.tune.space import Space
from inductor_tables.problems import Problem
from inductor_tables.schema import Config, ParamValue

Stage = Literal["render", "compile", "launch", "wrong", "time"]
"""Where a candidate failed; ``wrong``: its result was."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """GPU times of one candidate in µs, one a round, in the order of the rounds.

    ``dropped``: it was so slow at its first runs that no rounds were spent on it.
    """

    samples_us: tuple[float, ...]
    dropped: bool = False

    @cached_property
    def median_us(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.samples_us)

    @cached_property
    def spread_us(self) -> float:
        """What would be the standard deviation, from the median deviation from the median."""
        return spread(self.samples_us)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a candidate is out: the stage, and what was found there."""

    stage: Stage
    reason: str


Answer = Timing | Failure
Answers = Mapping[Config, Answer]


@dataclass(frozen=True, kw_only=True)
class Ask:
    """Candidates to measure together.

    Attributes:
        candidates: in order of interest.
        rounds: how many times each is timed, all of them once a round.
        final: check the results again, on fresh inputs, before timing, and drop nothing.
    """

    candidates: tuple[Config, ...]
    rounds: int
    final: bool = False


@dataclass(frozen=True, kw_only=True)
class HostPick:
    """What the host's own autotuner would take, and how that is known."""

    config: Config
    how: str


@dataclass(frozen=True, kw_only=True)
class EntryText:
    """A configuration as a dump has it: the lookup key, and the host's plain form."""

    key: str
    plain: Mapping[str, ParamValue]


Marker = Callable[[str], None]
"""Told what is about to be launched for the first time, should the process not survive it."""


def unmarked(_candidate: str) -> None:
    """Mark nothing."""


class Job(Protocol):
    """One problem under measurement."""

    @property
    def space(self) -> Space:
        """What may be tried for it."""

    def prepare(self, candidates: Sequence[Config]) -> None:
        """Begin to compile candidates; those known already are left as they are."""

    def ready(self) -> bool:
        """Whether all that was prepared is compiled or has failed."""

    def measure(self, ask: Ask) -> Answers:
        """Measure candidates, each prepared before; a timing has ``ask.rounds`` samples."""

    def host_pick(self, answers: Answers) -> HostPick | None:
        """Return what the host would take, given the times so far; None: it has no choice."""

    def entry(self, config: Config) -> EntryText:
        """Return a configuration as a dump has it."""

    def close(self) -> None:
        """Give memory and files back."""


class Bench(Protocol):
    """What measures: a GPU, or in tests a formula."""

    def open(self, problem: Problem, banned: Collection[str] = (), mark: Marker = unmarked) -> Job:
        """Set a problem up.

        Args:
            problem: the problem.
            banned: candidates that are not to be launched, as ``mark`` got them.
            mark: told of each candidate before its first launch, and ``""`` after it.

        Raises:
            SkippedProblemError: it is none for this bench; the message says why.
        """

    def wait(self, seconds: float) -> None:
        """Wait for compiles, at most that long."""


def spread(samples: Sequence[float]) -> float:
    """Return a robust standard deviation: 1.4826 times the median absolute deviation."""
    if len(samples) < 2:
        return math.inf
    middle = statistics.median(samples)
    return 1.4826 * statistics.median([abs(sample - middle) for sample in samples])


def text_of(config: Config) -> str:
    """Return a candidate as a text that another process makes of it too."""
    return json.dumps(dict(config.plain), sort_keys=True)
