"""Which of several timed candidates is the entry."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import tune_samples as samples

from build_tools.tune.verdict import compare, fastest, judge

OURS = samples.mm(64, 64, 64, 3, 4)
HOST = samples.mm(64, 64, 32, 3, 4)


def _times(middle: float, noise: float, seed: int = 0, rounds: int = 24) -> list[float]:
    draw = random.Random(seed)
    return [middle * (1 + draw.gauss(0, noise)) for _ in range(rounds)]


@pytest.mark.parametrize(
    ("ours", "noise", "wins"),
    [
        (9.0, 0.01, True),
        (9.9, 0.001, True),
        (9.98, 0.001, False),  # below the floor
        (9.8, 0.1, False),  # within the noise
        (10.0, 0.01, False),
        (11.0, 0.01, False),
    ],
)
def test_a_challenger_has_to_beat_the_noise(ours: float, noise: float, wins: bool) -> None:
    """A difference below the noise or half a percent leaves the incumbent in its place."""
    verdict = judge({OURS: _times(ours, noise, 1), HOST: _times(10.0, noise, 2)}, [HOST])
    assert verdict is not None
    assert verdict.challenged is wins
    assert verdict.winner == (OURS if wins else HOST)
    assert (verdict.margin > 0) is wins


def test_every_incumbent_has_to_be_beaten() -> None:
    """Faster than ATEN is not enough where the host's pick is faster still."""
    times = {OURS: _times(9, 0.01), HOST: _times(8.9, 0.01, 1), samples.ATEN: _times(12, 0.01, 2)}
    verdict = judge(times, [samples.ATEN, HOST])
    assert verdict is not None
    assert verdict.winner == HOST == verdict.incumbent
    assert set(verdict.against) == {HOST, samples.ATEN}


def test_drift_that_all_share_does_not_count() -> None:
    """Rounds are compared one by one, so that clocks may wander."""
    drift = [1 + 0.3 * (n % 5) for n in range(20)]
    found = compare([9.8 * d for d in drift], [10 * d for d in drift])
    assert found.faster and found.ratio == pytest.approx(0.98)


@pytest.mark.parametrize(
    ("first", "second", "decided"),
    [
        ([1.0] * 8, [1.0] * 8, True),
        ([1.0, 1.1] * 4, [1.1, 1.0] * 4, False),
        ([1.0] * 8, [2.0] * 8, True),
        ([1.0], [1.0], False),
        ([], [], False),
    ],
)
def test_when_more_rounds_tell_no_more(
    first: Sequence[float], second: Sequence[float], decided: bool
) -> None:
    """Clearly different or clearly equal is decided; one round or noise is not."""
    assert compare(first, second).decided is decided


def test_nothing_is_proved_without_an_incumbent() -> None:
    """Where no incumbent ran there is no verdict."""
    assert judge({OURS: [1.0, 1.0]}, [HOST]) is None
    assert fastest({OURS: []}, [OURS]) is None


def test_outliers_do_not_decide() -> None:
    """A few interrupted rounds change nothing."""
    ours = [9.0] * 20 + [90.0] * 3
    assert compare(ours, [10.0] * 23).faster
