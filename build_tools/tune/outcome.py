"""What a search found, as a line of the results."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from build_tools.tune.records import Failure, Job, Timing, spread, text_of
from build_tools.tune.results import FAILED, TUNED, Line
from build_tools.tune.search import Found
from build_tools.tune.verdict import Verdict, compare, judge
from inductor_tables.schema import Config

_BEST: Final = 8
_SHOWN_FAILURES: Final = 20

TMA_SETTING: Final = "triton.enable_persistent_tma_matmul"


def tuned_line(job: Job, found: Found) -> Line:
    """Describe what was found: the entry, what it was proved against, and what was tried."""
    tried = _tried(found)
    verdict = found.verdict
    if verdict is None:
        return {"status": FAILED, "reason": "ATen could not be timed", **tried}
    extended = set(job.space.templates) - {config.template_id for config in job.space.host}
    winner = verdict.winner
    entries = [_timed(job, found, winner, extended)]
    if winner.template_id in extended:  # for users without the setting
        plain = _without(extended, found)
        entries += [] if plain is None else [_timed(job, found, plain.winner, extended)]
    incumbents: dict[str, Any] = {}
    if found.aten is not None:
        incumbents["aten"] = _timed(job, found, found.aten, extended)
    if found.host is not None:
        timed = _timed(job, found, found.host.config, extended)
        incumbents["host"] = {**timed, "how": found.host.how}
    if found.previous is not None:
        incumbents["previous"] = _timed(job, found, found.previous, extended)
    against = verdict.against[verdict.incumbent]
    return {
        "status": TUNED,
        "entries": entries,
        "challenged": verdict.challenged,
        "incumbents": incumbents,
        "margin": verdict.margin,
        "noise": 0.0 if winner == verdict.incumbent else against.noise,
        "rounds": found.rounds,
        "best": [dict(config.plain) for config, _ in _fastest(found)[:_BEST]],
        **tried,
    }


def _tried(found: Found) -> Line:
    failures = [(c, a) for c, a in found.answers.items() if isinstance(a, Failure)]
    return {
        "evaluated": len(found.answers),
        "failures": dict(Counter(failure.stage for _, failure in failures)),
        "failed_candidates": [
            {"config": text_of(config), "stage": failure.stage, "reason": failure.reason}
            for config, failure in failures[:_SHOWN_FAILURES]
        ],
        "times_us": [[text_of(config), round(us, 3)] for config, us in _fastest(found)],
    }


def _fastest(found: Found) -> list[tuple[Config, float]]:
    """Return all that ran, fastest first: by the final rounds where there were any."""
    times = {c: a.median_us for c, a in found.answers.items() if isinstance(a, Timing)}
    finals = {config: statistics.median(times) for config, times in found.samples.items()}
    rest = [(config, us) for config, us in times.items() if config not in finals]
    return [*_sorted(finals.items()), *_sorted(rest)]


def _sorted(pairs: Iterable[tuple[Config, float]]) -> list[tuple[Config, float]]:
    return sorted(pairs, key=lambda pair: (pair[1], pair[0].order))


def _without(extended: set[str], found: Found) -> Verdict | None:
    """Judge the final rounds once more, of what every user of autotuning is offered."""
    samples = {c: times for c, times in found.samples.items() if c.template_id not in extended}
    against = found.verdict.against if found.verdict else {}
    return judge(samples, [config for config in against if config in samples])


def _timed(job: Job, found: Found, config: Config, extended: set[str]) -> dict[str, Any]:
    entry, samples = job.entry(config), found.samples[config]
    winner = found.verdict.winner if found.verdict else config
    line = {
        "key": entry.key,
        "plain": dict(entry.plain),
        "time_ns": round(statistics.median(samples) * 1000),
        "spread_ns": round(spread(samples) * 1000),
        "ratio": compare(samples, found.samples[winner]).ratio,
    }
    return {**line, "needs": TMA_SETTING} if config.template_id in extended else line
