"""What coverage says, as frozen records; this module imports nothing of torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, get_args

from inductor_tables.decisions import Outcome
from inductor_tables.simulation.records import Phase


@dataclass(frozen=True, kw_only=True)
class Neighbour:
    """A key that the table has, near one that it lacks.

    ``differences`` are for people, one a field that differs, such as
    ``"N 2688, table has 2624"``.
    """

    key: str
    differences: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Gemm:
    """One matrix product of a model, however often it occurs in it.

    Attributes:
        op_name: as in the key.
        key: the device-specific lookup key.
        phase: the graph that has it.
        count: how often it occurs in the model.
        targets: names of the targets (and token counts) that have it.
        origins: module paths, or file:line where a graph has no modules, in order of occurrence.
        batch, m, n, k: sizes of the product; ``batch`` is 1 for all but bmm and baddbmm.
        dtype: of the operands, such as ``bfloat16``.
        outcome: ``hit``, ``miss`` or ``dropped``.
        dropped: the entries that cannot be used, each with its reason; what was expected and
            what was found.
        template_id: of the chosen kernel where a table chose, else None.
        params: that kernel's parameters, as the host got them.
        table: name of the resource that holds the key, None where none does.
        time_us: recorded time of the chosen entry, None where unknown.
        margin: recorded time of the next best entry by that of the chosen, minus 1; None where
            there is none.
        alternatives: further entries of the key, as template id, parameters and time in µs.
        flops: floating point operations of one occurrence.
        bytes: bytes of its operands and its result, each moved once.
        roofline_us: the least time in µs that the device could need.
        nearest: for a miss, the nearest keys that the tables have.
        advice: one line, for a miss or a drop.
    """

    op_name: str
    key: str
    phase: Phase
    count: int
    targets: tuple[str, ...]
    origins: tuple[str, ...]
    batch: int
    m: int
    n: int
    k: int
    dtype: str
    outcome: Outcome
    dropped: tuple[str, ...] = ()
    template_id: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    table: str | None = None
    time_us: float | None = None
    margin: float | None = None
    alternatives: tuple[Mapping[str, Any], ...] = ()
    flops: int
    bytes: int
    roofline_us: float
    nearest: tuple[Neighbour, ...] = ()
    advice: str | None = None

    @property
    def estimated_us(self) -> float:
        """Time of one occurrence in µs: recorded where known, else by the roofline."""
        return self.roofline_us if self.time_us is None else self.time_us


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """What the tables know of some models on a device.

    Attributes:
        device: gcnArchName of the simulated device.
        torch, triton: the versions that lowered the models.
        tables: names of the tables that serve the device, in the order they are asked.
        targets: names of what was lowered.
        gemms: sorted by the share of time, largest first; ties by key.
        peak_tflops: by dtype, what the roofline takes the device to reach.
        peak_gb_s: memory bandwidth in GB/s that the roofline takes the device to reach.
        notes: what else there is to know, such as tables that could not be read.
    """

    device: str
    torch: str
    triton: str
    tables: tuple[str, ...]
    targets: tuple[str, ...]
    gemms: tuple[Gemm, ...]
    peak_tflops: Mapping[str, float]
    peak_gb_s: float
    notes: tuple[str, ...] = ()

    @property
    def total_us(self) -> float:
        """Estimated time in µs of all GEMMs, as often as they occur."""
        return sum(g.estimated_us * g.count for g in self.gemms)

    @property
    def covered(self) -> float:
        """Share of :attr:`total_us` that hits, from 0 to 1; 1 where there is no GEMM."""
        total = self.total_us
        hits = sum(g.estimated_us * g.count for g in self.gemms if g.outcome == "hit")
        return hits / total if total else 1.0

    def share(self, gemm: Gemm) -> float:
        """Return which part of :attr:`total_us` all occurrences of a GEMM take, from 0 to 1."""
        total = self.total_us
        return gemm.estimated_us * gemm.count / total if total else 0.0

    def count(self, outcome: Outcome) -> int:
        """Return how many GEMMs, each counted once, have an outcome."""
        return sum(g.outcome == outcome for g in self.gemms)

    def as_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists, texts and numbers."""
        found = asdict(self)
        for plain, gemm in zip(found["gemms"], self.gemms, strict=True):
            plain["estimated_us"] = gemm.estimated_us
        return {
            **found,
            "total_us": self.total_us,
            "covered": self.covered,
            **{f"{name}_count": self.count(name) for name in ("hit", "miss", "dropped")},
        }

    def to_json(self) -> str:
        """Return :meth:`as_dict` as JSON."""
        return json.dumps(self.as_dict(), indent=2, sort_keys=True)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Coverage:
        """Return what :meth:`as_dict` was made of."""
        kept = {f.name: plain[f.name] for f in fields(cls)}
        return cls(**{**_tuples(kept), "gemms": tuple(map(_gemm, plain["gemms"]))})

    def summary(self) -> str:
        """Return one line: how many GEMMs there are, and which share of their time hits."""
        occurrences = sum(g.count for g in self.gemms)
        outcomes = ", ".join(f"{self.count(name)} {name}" for name in get_args(Outcome))
        return (
            f"{len(self.gemms)} GEMM{'s' * (len(self.gemms) != 1)}, {occurrences} in all, on "
            f"{self.device}, torch {self.torch}: {outcomes}; {100 * self.covered:.1f} % of the "
            "estimated GEMM time is covered"
        )

    def __str__(self) -> str:
        lines = [self.summary(), f"  tables: {', '.join(self.tables) or 'none for this device'}"]
        for g in self.gemms:
            lines.append(
                f"  {g.outcome} x{g.count}, {100 * self.share(g):.1f} %, {g.estimated_us:.1f} us: "
                f"{g.key} ({g.phase}, in {', '.join(g.origins)})"
            )
            lines += [f"    {g.template_id} of {g.table}"] * (g.outcome == "hit")
            lines += [f"    dropped {reason}" for reason in g.dropped]
            lines += [f"    near: {n.key}: {'; '.join(n.differences)}" for n in g.nearest]
            lines += [f"    {g.advice}"] * (g.advice is not None)
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


def _gemm(plain: Mapping[str, Any]) -> Gemm:
    kept = {f.name: plain[f.name] for f in fields(Gemm)}
    near = tuple(Neighbour(**_tuples(found)) for found in plain["nearest"])
    return Gemm(**{**_tuples(kept), "nearest": near})


def _tuples(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a record: what JSON made lists of are tuples."""
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()
    }
