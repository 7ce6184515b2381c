"""What a search found, as a line of the results."""

from __future__ import annotations

import dataclasses
import random

import pytest
import tune_samples as samples

from build_tools.tune.outcome import TMA_SETTING, tuned_line
from build_tools.tune.records import Timing
from build_tools.tune.search import Found
from build_tools.tune.space import candidate
from build_tools.tune.verdict import judge
from inductor_tables.schema import Config

TILE = samples.mm(64, 64, 64, 3, 4)
TMA = candidate("triton::mm_persistent_tma", samples.HASH, dict(TILE.params))


def _found(times_us: dict[Config, float]) -> Found:
    draw = random.Random(1)
    found = {
        config: [us * draw.gauss(1, 0.01) for _ in range(24)] for config, us in times_us.items()
    }
    return Found(
        answers={config: Timing(samples_us=tuple(times)) for config, times in found.items()},
        samples=found,
        verdict=judge(found, [samples.ATEN]),
        aten=samples.ATEN,
        host=None,
        previous=None,
        rounds=24,
    )


def _job() -> samples.FakeJob:
    job = samples.FakeJob(samples.problem(64, 4096, 4096))
    job.space = dataclasses.replace(
        job.space, templates={**job.space.templates, TMA.template_id: TMA}
    )
    return job


@pytest.mark.parametrize(
    ("tile_us", "second"),
    [(9.0, TILE), (9.99, samples.ATEN), (11.0, samples.ATEN)],
)
def test_users_without_the_setting_get_what_is_proved_too(tile_us: float, second: Config) -> None:
    """Behind a TMA kernel stands the tile if it beats ATen by more than the noise, else ATen."""
    line = tuned_line(_job(), _found({samples.ATEN: 10.0, TMA: 8.0, TILE: tile_us}))
    first, fallback = line["entries"]
    assert (first["plain"]["template_id"], first["needs"]) == (TMA.template_id, TMA_SETTING)
    assert fallback["plain"] == dict(second.plain) and "needs" not in fallback


def test_a_kernel_that_all_have_stands_alone() -> None:
    """There is one entry, with ATen's time beside it."""
    line = tuned_line(_job(), _found({samples.ATEN: 10.0, TMA: 9.5, TILE: 8.0}))
    (entry,) = line["entries"]
    assert entry["plain"] == dict(TILE.plain)
    assert line["incumbents"].keys() == {"aten"} and line["margin"] == pytest.approx(0.2, abs=0.02)
