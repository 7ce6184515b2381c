"""Which problems an upgrade of torch invalidated: what has to be tuned again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from build_tools.carry.rules import Plan
from build_tools.hashes import TemplateHashes, hashes_of
from build_tools.place import recorded_series
from inductor_tables import problems
from inductor_tables.dumps import Dump
from inductor_tables.keys import ParsedKey, parse_key, problem_of
from inductor_tables.problems import Problem, problem_from_key
from inductor_tables.schema import Config
from inductor_tables.versions import TorchSeries, series_order


@dataclass(frozen=True, kw_only=True)
class TopUp:
    """What is to be done for a series.

    Attributes:
        own: problems that have entries of the series itself.
        carried: problems whose fastest entry serves it, recorded on another torch.
        left: all others.
    """

    own: int
    carried: int
    left: tuple[Problem, ...]


def top_up(
    held: Sequence[Dump],
    target: TorchSeries,
    committed: Mapping[TorchSeries, TemplateHashes],
    *,
    arch: str | None = None,
    torch: str | None = None,
) -> TopUp:
    """Find the problems whose fastest entry does not serve a series.

    Args:
        held: recordings, and dumps that were carried over to the series; others are not looked at.
        target: the series.
        committed: template hashes by series.
        arch: gcnArchName whose keys count, besides those without a device; None: all.
        torch: that of dumps that do not say.

    Raises:
        BuildError: nothing is known of the series, or a dump's series cannot be told.
    """
    templates = hashes_of(target, committed)
    found: set[tuple[str, Config]] = set()
    own: set[ParsedKey] = set()
    others: dict[TorchSeries, list[Dump]] = defaultdict(list)
    for dump in held:
        if dump.carried is not None:
            found |= {(row.key, row.config) for row in dump.rows if dump.carried.series == target}
        elif recorded_series(dump, torch) == target:
            own |= {problem_of(parse_key(row.key)) for row in dump.rows}
        else:
            others[recorded_series(dump, torch)].append(dump)
    served: dict[ParsedKey, bool] = {}
    for source in sorted(others, key=series_order):
        plan = Plan(others[source], source, templates)
        compared = {pair: None for pair in plan.pairs if (pair.key, pair.config) in found}
        for problem, serves in plan.fastest_serves(compared).items():
            served[problem] = serves or served.get(problem, False)
    counted = {p: serves for p, serves in served.items() if p not in own and _on(p, arch)}
    invalid = [problem_from_key(str(problem)) for problem, serves in counted.items() if not serves]
    return TopUp(
        own=sum(_on(problem, arch) for problem in own),
        carried=sum(counted.values()),
        left=problems.merge(invalid),
    )


def _on(problem: ParsedKey, arch: str | None) -> bool:
    return arch is None or problem.device in (None, arch)
