"""What the runtime did: counts of look-ups, and the report that ``status()`` gives."""

from __future__ import annotations

import json
import threading
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from inductor_tables.decisions import Decision

KEPT_KEYS: Final = 8
"""How many of the last keys of each kind are kept."""

KEPT_DECISIONS: Final = 4096
"""For how many distinct keys the last decision is kept; counts go on beyond it."""


@dataclass(frozen=True, kw_only=True)
class TableStatus:
    """One table that serves a device: level is overlay, exact, base or agnostic."""

    resource: str
    digest: str
    table_version: str
    torch_series: str
    level: str
    keys: int


@dataclass(frozen=True, kw_only=True)
class Status:
    """A snapshot for people (``str``), programs (``as_dict``) and logs (``to_json``).

    Counts are of ops, not of calls of the handler. ``dropped`` counts entries by reason.
    ``gemms`` is filled by ``status(verbose=True)``: for every key looked up the last
    decision as a dict (:meth:`Decision.as_dict`) with its ``count``, and unless it hit one
    line of ``advice`` and the ``nearest`` keys that the tables have, as texts.
    ``devices`` lists, for every arch looked up so far, the tables that serve it. Ranks
    with one ``digest`` choose alike; it is None where tables are off, and as long as the
    devices are not known, since asking for them would initialise CUDA.
    """

    enabled: bool
    active: bool
    torch: str | None
    version: str | None
    digest: str | None = None
    devices: dict[str, list[TableStatus]] = field(default_factory=dict)
    hits: int = 0
    misses: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    last_hits: list[str] = field(default_factory=list)
    last_misses: list[str] = field(default_factory=list)
    last_dropped: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    gemms: list[dict[str, Any]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists, texts and numbers."""
        return asdict(self)

    def to_json(self) -> str:
        """Return :meth:`as_dict` as JSON."""
        return json.dumps(self.as_dict(), indent=2, sort_keys=True)

    def __str__(self) -> str:
        on = "on" if self.active else "on, but config.active=False"
        state = on if self.enabled else "off"
        lines = [f"inductor-tables: {state} (torch {self.torch or 'not imported'})"]
        if self.version is not None:
            lines.append(f"  table version asked for: {self.version}")
        if self.digest is not None:
            lines.append(f"  digest: {self.digest}")
        for arch, tables in sorted(self.devices.items()):
            lines.append(f"  {arch}: " + ("" if tables else "no table"))
            lines += [
                f"    {t.level}: {t.resource} (version {t.table_version}, {t.keys} keys, "
                f"digest {t.digest[:12]})"
                for t in tables
            ]
        lines.append(f"  ops: {self.hits} hits, {self.misses} misses")
        lines += [f"  dropped {n}: {reason}" for reason, n in sorted(self.dropped.items())]
        for title, keys in (
            ("last hits", self.last_hits),
            ("last misses", self.last_misses),
            ("last dropped", self.last_dropped),
        ):
            lines += [f"  {title}:"] * bool(keys) + [f"    {key}" for key in keys]
        lines += [f"  problem: {problem}" for problem in self.problems]
        lines += [f"  {line}" for gemm in self.gemms for line in described(gemm)]
        return "\n".join(lines)


def described(gemm: Mapping[str, Any]) -> list[str]:
    """Return the lines that say what was decided for one key, and why."""
    where = gemm["module"] or gemm["line"] or "unknown"
    lines = [f"{gemm['outcome']} x{gemm['count']}: {gemm['key']} (in {where})"]
    for entry in gemm["entries"]:
        time = "" if entry["time_us"] is None else f", recorded at {entry['time_us']:.1f} us"
        margin = "" if entry["margin"] is None else f", margin {entry['margin']:.1%}"
        lines.append(f"  {entry['template_id']} of {gemm['table']}{time}{margin}")
    lines += [f"  dropped {reason}" for reason in gemm["dropped"]]
    lines += [f"  near: {text}" for text in gemm.get("nearest", ())]
    if gemm.get("advice"):
        lines.append(f"  {gemm['advice']}")
    return lines


class Statistics:
    """Counts of one activation; all threads add to it."""

    def __init__(self) -> None:
        self._problems: dict[str, None] = {}
        self.begin()

    def begin(self) -> None:
        """Count from zero, with a lock that nobody holds; problems are kept."""
        self._lock = threading.Lock()
        self._ops: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()
        self._last: dict[str, deque[str]] = {
            kind: deque(maxlen=KEPT_KEYS) for kind in ("hit", "miss", "dropped")
        }
        self._decisions: dict[str, Decision] = {}
        self._counts: Counter[str] = Counter()

    def decided(self, decision: Decision) -> bool:
        """Count one op, and the entries that it did not use; True the first time for its key."""
        kind = "hit" if decision.outcome == "hit" else "miss"
        with self._lock:
            self._ops[kind] += 1
            _remember(self._last[kind], decision.key)
            for dropped in decision.dropped:
                self._reasons[str(dropped)] += 1
                _remember(self._last["dropped"], decision.table_key or decision.key)
            new = decision.key not in self._decisions
            if not new or len(self._decisions) < KEPT_DECISIONS:
                self._decisions[decision.key] = decision
                self._counts[decision.key] += 1
            return new

    def decisions(self) -> list[tuple[Decision, int]]:
        """Return the last decision for every key and how often the key was asked for."""
        with self._lock:
            return [(found, self._counts[key]) for key, found in self._decisions.items()]

    def problem(self, text: str) -> bool:
        """Keep a problem; True the first time it is seen."""
        with self._lock:
            new = text not in self._problems
            self._problems[text] = None
            return new

    def snapshot(self) -> dict[str, Any]:
        """Return the fields of :class:`Status` that are counted here."""
        with self._lock:
            return {
                "hits": self._ops["hit"],
                "misses": self._ops["miss"],
                "dropped": dict(self._reasons),
                "last_hits": list(self._last["hit"]),
                "last_misses": list(self._last["miss"]),
                "last_dropped": list(self._last["dropped"]),
                "problems": list(self._problems),
            }


def _remember(last: deque[str], key: str) -> None:
    if key not in last:
        last.append(key)
