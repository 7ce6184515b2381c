"""The guided search: which candidates to measure next. No GPU in here.

It starts from what the host would try and from the winners of like problems, then goes to
the neighbours of the best, in the order of a rough model corrected by what was measured.
The same answers give the same questions.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from build_tools.tune.model import Chip, estimate_us
from build_tools.tune.records import Answer, Answers, Ask, Failure, HostPick, Timing
from build_tools.tune.space import Space
from build_tools.tune.verdict import Verdict, compare, judge
from inductor_tables.schema import Config

HostPicker = Callable[[Answers], HostPick | None]


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much is spent on a problem.

    Attributes:
        candidates: evaluations at most, the incumbents' among them; ATen and the previous entry
            are always evaluated.
        batch: candidates that are compiled and measured together.
        rounds: of a candidate's first evaluation.
        parents: how many of the best have their neighbours looked at.
        patience: batches without progress after which the search stops.
        progress: share by which the best must improve to be called progress.
        finalists: challengers in the final rounds at most.
        within: share that a finalist may be behind the best.
        final_rounds: in one go; ``most_rounds``: in all.
    """

    candidates: int = 100
    batch: int = 10
    rounds: int = 5
    parents: int = 5
    patience: int = 5
    progress: float = 0.005
    finalists: int = 4
    within: float = 0.06
    final_rounds: int = 12
    most_rounds: int = 72


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a search found.

    Attributes:
        answers: every candidate's first evaluation.
        samples: µs of the final rounds, by candidate.
        verdict: None if no incumbent could be timed, or none of ATen's where it has some.
        aten: the fastest ATen choice of the final rounds, None if there is none.
        host: the host's own pick, None where not all of its choices were tried.
        previous: the entry of the table before, if it was given and ran.
        rounds: final rounds that were made.
    """

    answers: Answers
    samples: dict[Config, list[float]]
    verdict: Verdict | None
    aten: Config | None
    host: HostPick | None
    previous: Config | None
    rounds: int


_POOL: Final = 1500
"""Candidates that are looked at for a batch; the model holds the others to be far worse."""

Search = Generator[Ask, Answers, Found]


def search(
    space: Space,
    effort: Effort,
    host_pick: HostPicker,
    *,
    seeds: Sequence[Config] = (),
    previous: Config | None = None,
    chip: Chip | None = None,
) -> Search:
    """Look for the fastest candidate.

    Args:
        space: the candidates.
        effort: how much may be spent.
        host_pick: what the host would take, asked once its candidates are measured.
        seeds: candidates to measure first, such as winners of like problems.
        previous: the entry that the table has now, an incumbent.
        chip: the device, for the model.
    """
    state = _State(space, effort, chip or Chip())
    held = space.transfer([] if previous is None else [previous], worthwhile=False)
    previous = held[0] if held else None
    # In the order in which a small budget is worth spending; there is no proof without the first.
    needed = _distinct([*held, *space.aten])
    opening = _distinct([*needed, *space.transfer(seeds), *state.of_host(), *space.extended])
    yield from state.evaluate(opening[: max(effort.candidates, len(needed))])
    idle = 0
    while idle < effort.patience and state.left > 0:
        chosen = state.propose()
        if not chosen:
            break
        before = state.best_us
        yield from state.evaluate(chosen)
        idle = 0 if state.best_us < before * (1 - effort.progress) else idle + 1
    host = host_pick(state.answers)
    return (yield from _finals(state, host, previous))


def exhaust(
    space: Space, effort: Effort, host_pick: HostPicker, chip: Chip | None = None
) -> Search:
    """Measure every legal candidate with ``GROUP_M`` 8, to compare a search with."""
    state = _State(space, effort, chip or Chip())
    opening = _distinct([*space.host, *space.extended, *space.everything({"GROUP_M": 8})])
    size = 4 * effort.batch
    for begin in range(0, len(opening), size):
        yield from state.evaluate(opening[begin : begin + size])
    return (yield from _finals(state, host_pick(state.answers), None))


@dataclass
class _State:
    space: Space
    effort: Effort
    chip: Chip
    answers: dict[Config, Answer] = field(default_factory=dict)
    models: dict[Config, float] = field(default_factory=dict)
    all: list[Config] | None = None

    @property
    def left(self) -> int:
        return self.effort.candidates - len(self.answers)

    @property
    def best_us(self) -> float:
        return min((us for _, us in self.timed()), default=math.inf)

    def of_host(self) -> list[Config]:
        """Return the host's choices: what has no model, then the most promising first."""
        return sorted(self.space.host, key=lambda c: -1.0 if math.isnan(m := self.model(c)) else m)

    def timed(self) -> list[tuple[Config, float]]:
        """Return the candidates that ran, fastest first."""
        found = [(c, a.median_us) for c, a in self.answers.items() if isinstance(a, Timing)]
        return sorted(found, key=lambda pair: (pair[1], pair[0].order))

    def evaluate(self, candidates: Sequence[Config]) -> Generator[Ask, Answers, None]:
        new = tuple(c for c in candidates if c not in self.answers)
        if new:
            answers = yield Ask(candidates=new, rounds=self.effort.rounds)
            self.answers.update({c: answers[c] for c in new if c in answers})
            for config in new:  # a bench that forgets one must not be asked for ever
                self.answers.setdefault(config, Failure(stage="time", reason="not measured"))

    def propose(self) -> list[Config]:
        """Return the next batch: the most promising that nobody has timed."""
        from build_tools.tune.surrogate import Surrogate  # noqa: PLC0415 - imports torch

        pool = self._pool()
        known = self._known()
        count = min(self.effort.batch, self.left)
        if not known or not pool:
            return sorted(pool, key=self.model)[:count]
        modelled = [self.model(config) for config in pool]
        surrogate = Surrogate(known, list(self.space.templates))
        return [pool[n] for n in surrogate.improvement(pool, modelled, count)]

    def _pool(self) -> list[Config]:
        """Return all that the model can rank, and the neighbours of the best candidates."""
        tiled = [c for c, _ in self.timed() if c.template_id in self.space.templates]
        near = [
            move for parent in tiled[: self.effort.parents] for move in self.space.moves(parent)
        ]
        pool = [c for c in _distinct([*near, *self._everything()]) if c not in self.answers]
        return sorted(pool, key=self.model)[:_POOL]

    def _everything(self) -> list[Config]:
        if self.all is None:
            self.all = list(self.space.everything({"GROUP_M": 8}))
        return self.all

    def model(self, config: Config) -> float:
        if config not in self.models:
            self.models[config] = estimate_us(self.space.shape, config, self.chip)
        return self.models[config]

    def _known(self) -> list[tuple[Config, float, float]]:
        """Return (candidate, measured, modelled time) of the candidates that have both."""
        found = [(config, us, self.model(config)) for config, us in self.timed()]
        return [row for row in found if not math.isnan(row[2])]


def _finals(
    state: _State, host: HostPick | None, previous: Config | None
) -> Generator[Ask, Answers, Found]:
    """Time the best candidates and the incumbents together until the noise allows a verdict."""
    timed = dict(state.timed())
    atens = [config for config in timed if config in state.space.aten]
    incumbents = _distinct(
        [*atens[:2], *([host.config] if host else []), *([previous] if previous else [])]
    )
    incumbents = [config for config in incumbents if config in timed]
    limit = state.best_us * (1 + state.effort.within)
    rivals = [c for c, us in timed.items() if c not in incumbents and us <= limit]
    running = [*incumbents, *rivals[: state.effort.finalists]]
    samples: dict[Config, list[float]] = {config: [] for config in running}
    done = 0
    while running and done < state.effort.most_rounds:
        answers = yield Ask(candidates=tuple(running), rounds=state.effort.final_rounds, final=True)
        for config in running:
            answer = answers.get(config)
            if isinstance(answer, Timing):
                samples[config].extend(answer.samples_us)
            else:
                samples[config].clear()
                state.answers[config] = answer or Failure(stage="time", reason="not measured")
        done += state.effort.final_rounds
        running = _still_running([c for c in running if samples[c]], incumbents, samples)
    atens = [config for config in atens if samples.get(config)]
    verdict = judge(samples, incumbents) if atens or not state.space.aten else None
    return Found(
        answers=state.answers,
        samples={config: times for config, times in samples.items() if times},
        verdict=verdict,
        aten=min(atens, key=timed.__getitem__, default=None),
        host=host if host is not None and samples.get(host.config) else None,
        previous=previous if previous is not None and samples.get(previous) else None,
        rounds=done,
    )


def _still_running(
    running: Sequence[Config], incumbents: Sequence[Config], samples: dict[Config, list[float]]
) -> list[Config]:
    """Return who needs more rounds; [] when all is decided."""
    if not running:
        return []
    best = min(running, key=lambda c: (statistics.median(samples[c]), c.order))
    standing = [
        c for c in running if c in incumbents or not compare(samples[c], samples[best]).slower
    ]
    others = [c for c in standing if c is not best]
    if all(compare(samples[c], samples[best]).decided for c in others):
        return []
    return standing


def _distinct(configs: Iterable[Config]) -> list[Config]:
    return list(dict.fromkeys(configs))
