"""Draws what the benchmarks measured, into PNG files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

_MARKERS: Final = "osD^vPX"
_FEW: Final = (0.5, 2.0)
"""What the axis of ratios shows at least."""


def plot_kernels(report: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the ratios of every problem over M: one row a torch and device.

    Args:
        report: as ``ratios.report_of`` returns it.
        path: of the PNG.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 5.2 * max(len(report), 1)), layout="constrained")
    axes = figure.subplots(max(len(report), 1), 2, squeeze=False, sharey="row")
    for row, group in zip(axes, report, strict=False):
        for axis, (against, name) in zip(
            row, (("host", "host's max_autotune_gemm pick"), ("aten", "ATen")), strict=True
        ):
            _scatter(axis, sorted(group["problems"], key=lambda found: found["key"]), against)
            axis.set_title(f"torch {group['torch']}, {group['device']}: table / {name}")
            axis.set_ylabel("ratio of GPU times (below 1: the table is faster)")
    figure.savefig(path, dpi=130)


def plot_models(report: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw compile times, and graphed steps by eager's: two panels a torch and device.

    Args:
        report: as ``model_results.report_of`` returns it.
        path: of the PNG.
    """
    from matplotlib.figure import Figure

    count = max(len(report), 1)
    figure = Figure(figsize=(13, 8.4 * count), layout="constrained")
    axes = figure.subplots(2 * count, 1, squeeze=False)[:, 0]
    for at, group in enumerate(report):
        above, below = axes[2 * at], axes[2 * at + 1]
        rows = [row for row in group["rows"] if row["way"] != "eager"]
        _bars(above, rows, "compile_s", "median", None)
        above.set_ylabel("compile time in s, cold caches")
        above.set_title(f"torch {group['torch']}, {group['device']}: compile time")
        _bars(below, [row for row in rows if "graphed" in row], "graphed", "ratio", "noise")
        below.axhline(1.0, color="black", linewidth=1)
        below.set_ylabel("GPU time of a step / eager's (below 1: faster)")
        below.set_title("step time in CUDA graphs, beside eager's in the same process")
    figure.savefig(path, dpi=130)


def _bars(
    axis: Any, rows: Sequence[dict[str, Any]], field: str, name: str, noise: str | None
) -> None:
    """Draw a group of bars a model, one bar a way; the axis begins at 0."""
    cases = list(dict.fromkeys(row["case"] for row in rows))
    ways = list(dict.fromkeys(row["way"] for row in rows))
    width = 0.8 / max(len(ways), 1)
    for at, way in enumerate(ways):
        held = {row["case"]: row[field] for row in rows if row["way"] == way}
        axis.bar(
            [cases.index(case) + (at + 0.5) * width - 0.4 for case in held],
            [found[name] for found in held.values()],
            width,
            yerr=[found[noise] for found in held.values()] if noise else None,
            label=way,
            error_kw={"elinewidth": 0.8},
        )
    axis.set_xticks(range(len(cases)), cases, rotation=15, ha="right", fontsize=8)
    axis.set_ylim(0, 1.15 * axis.get_ylim()[1])  # room for the legend
    axis.set_axisbelow(True)
    axis.grid(visible=True, axis="y", linewidth=0.3)
    if ways:
        axis.legend(fontsize=8, ncols=len(ways), loc="upper center")


def _scatter(axis: Any, rows: Sequence[dict[str, Any]], against: str) -> None:
    kinds = sorted({(row["op"], row["dtype"]) for row in rows})
    places = _spread([row["m"] for row in rows])
    for at, kind in enumerate(kinds):
        held = [n for n, row in enumerate(rows) if (row["op"], row["dtype"]) == kind]
        found = [rows[n][against] for n in held]
        axis.errorbar(
            [places[n] for n in held],
            [one["ratio"] for one in found],
            yerr=[one["noise"] for one in found],
            fmt=_MARKERS[at % len(_MARKERS)],
            markersize=4,
            alpha=0.75,
            elinewidth=0.8,
            color=f"C{at}",
            label=f"{kind[0]} {kind[1]} ({len(held)})",
        )
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    # The axis is that of the panel beside it too.
    ratios = [row[name]["ratio"] for row in rows for name in ("host", "aten")]
    low, high = min([_FEW[0], *ratios]) * 0.93, max([_FEW[1], *ratios]) * 1.07
    axis.set_ylim(low, high)
    ticks = [t for t in (0.1, 0.2, 0.3, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2, 3, 5) if low <= t <= high]
    axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.set_yticks([], minor=True)
    sizes = sorted({1 << (row["m"].bit_length() - 1) for row in rows})
    axis.set_xticks(sizes, [str(size) for size in sizes])
    axis.axhline(1.0, color="black", linewidth=1)
    axis.grid(visible=True, linewidth=0.3)
    axis.set_xlabel("M (points of one M are spread sideways); bars: the noise, 3 standard errors")
    if kinds:
        axis.legend(fontsize=8, loc="upper left")


def _spread(sizes: Sequence[int]) -> list[float]:
    """Return places beside each M, in the order given, for points not to hide each other."""
    totals, seen = Counter(sizes), Counter[int]()
    places = []
    for m in sizes:
        places.append(m * 2.0 ** (0.6 * ((seen[m] + 0.5) / totals[m] - 0.5)))
        seen[m] += 1
    return places
