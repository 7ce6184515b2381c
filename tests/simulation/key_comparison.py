"""How the keys that a simulation asks for compare with those that a real device was asked for."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Key = tuple[str, str]
"""Phase and lookup key."""

Keys = collections.Counter[Key]
"""How often each key is asked for."""

_FUSED = re.compile(r"aten\._scaled_dot_product_\w*?attention(_backward)?\.default")


@dataclass(frozen=True)
class Comparison:
    """What two recordings have in common, and what only one of them has; counts occurrences."""

    common: Keys
    missing: Keys
    extra: Keys

    @property
    def recall(self) -> float:
        """Share of the real keys that the simulation has; 1 where there are none."""
        return _share(self.common, self.missing)

    @property
    def precision(self) -> float:
        """Share of the simulation's keys that are real; 1 where there are none."""
        return _share(self.common, self.extra)

    def __add__(self, other: Comparison) -> Comparison:
        pairs = zip(self._parts(), other._parts(), strict=True)
        return Comparison(*(left + right for left, right in pairs))

    def _parts(self) -> tuple[Keys, Keys, Keys]:
        return self.common, self.missing, self.extra

    def __str__(self) -> str:
        counts = f"{self.common.total()} of {(self.common + self.missing).total()} real keys"
        text = f"recall {self.recall:.1%}, precision {self.precision:.1%} ({counts})"
        lines = [*_lines("missing", self.missing), *_lines("extra", self.extra)]
        return "\n".join([text, *lines])


def _share(common: Keys, others: Keys) -> float:
    total = common.total() + others.total()
    return common.total() / total if total else 1.0


def _lines(what: str, keys: Keys) -> list[str]:
    return [f"  {what} {count} x {phase} {key}" for (phase, key), count in sorted(keys.items())]


def compare(real: Keys, simulated: Keys) -> Comparison:
    """Compare what a real device was asked for with what a simulated one was."""
    return Comparison(real & simulated, real - simulated, simulated - real)


def keys_of(case: dict[str, Any]) -> Keys:
    """Return the keys of a recorded case."""
    return _counted(((phase, key), count) for phase, key, _offer, count in case["calls"])


def _counted(pairs: Iterable[tuple[Key, int]]) -> Keys:
    counts: Keys = collections.Counter()
    for key, count in pairs:
        counts[key] += count
    return counts


def graph_ops_of(case: dict[str, Any]) -> dict[str, int]:
    """Return the operations of a recorded case's graphs, one name for every fused attention."""
    counts: collections.Counter[str] = collections.Counter()
    for name, count in case["graph_ops"].items():
        counts[_FUSED.sub(r"fused_attention\1", name)] += count
    return dict(counts)
