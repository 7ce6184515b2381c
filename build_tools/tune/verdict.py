"""Which of several timed candidates is faster, and whether the noise allows to say so."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from build_tools.tune.records import spread
from inductor_tables.schema import Config

Samples = Mapping[Config, Sequence[float]]
"""Times in µs by candidate, one a round; the same place is the same round."""

SIGMAS: Final = 3.0
"""A difference counts from this many standard errors on."""

FLOOR: Final = 0.005
"""Differences below this share are never taken for real: clocks and placement drift by it."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Time of one candidate by that of another, round by round.

    Attributes:
        ratio: median over the rounds; below 1: the first is faster.
        error: standard error of it.
    """

    ratio: float
    error: float

    @property
    def noise(self) -> float:
        """How far from 1 the ratio must be to be believed."""
        return max(SIGMAS * self.error, FLOOR)

    @property
    def faster(self) -> bool:
        """Whether the first is faster by more than the noise."""
        return self.ratio < 1 - self.noise

    @property
    def slower(self) -> bool:
        """Whether the first is slower by more than the noise."""
        return self.ratio > 1 + self.noise

    @property
    def decided(self) -> bool:
        """Whether more rounds would not tell more: it is faster, slower or as good as equal."""
        return self.faster or self.slower or SIGMAS * self.error <= FLOOR


def compare(first: Sequence[float], second: Sequence[float]) -> Comparison:
    """Compare two candidates timed in the same rounds; rounds that only one has do not count."""
    ratios = [a / b for a, b in zip(first, second)]  # noqa: B905 - one may have been dropped
    if not ratios:
        return Comparison(ratio=math.nan, error=math.inf)
    # The standard error of a median is 1.2533 times that of a mean.
    error = 1.2533 * spread(ratios) / math.sqrt(len(ratios))
    return Comparison(ratio=statistics.median(ratios), error=error)


def fastest(samples: Samples, among: Iterable[Config]) -> Config | None:
    """Return the candidate with the least median, None if none of them was timed."""
    timed = [config for config in among if samples.get(config)]
    return min(timed, key=lambda c: (statistics.median(samples[c]), c.order), default=None)


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the final rounds say.

    Attributes:
        winner: the entry to be.
        incumbent: the fastest of the incumbents.
        against: the winner compared with each incumbent that was timed.
        challenged: whether the winner is none of the incumbents.
    """

    winner: Config
    incumbent: Config
    against: Mapping[Config, Comparison]
    challenged: bool

    @property
    def margin(self) -> float:
        """How much less time the winner needs than the best incumbent, as a share of that's."""
        return 1 - self.against[self.incumbent].ratio


def judge(samples: Samples, incumbents: Sequence[Config]) -> Verdict | None:
    """Choose the entry: a challenger that beats every incumbent, else the best incumbent.

    Returns:
        None if no incumbent was timed: then nothing is proved of any candidate.
    """
    incumbent = fastest(samples, incumbents)
    if incumbent is None:
        return None
    standing = [config for config in incumbents if samples.get(config)]
    challenger = fastest(samples, [config for config in samples if config not in standing])
    winner = incumbent
    if challenger is not None and all(
        compare(samples[challenger], samples[config]).faster for config in standing
    ):
        winner = challenger
    against = {config: compare(samples[winner], samples[config]) for config in standing}
    return Verdict(
        winner=winner, incumbent=incumbent, against=against, challenged=winner is not incumbent
    )
