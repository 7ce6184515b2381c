"""What measurements of whole models say: medians, ratios between the ways, and the bars.

The ratio of a step to eager's is of one process, round by round. The ratio between two ways is that
of their own medians in µs, which are of different processes. So the noise of each of the two is its
own together with eager's drift: half the range of eager's medians in all processes of that case, by
the median of them.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table as Grid

WAYS: Final = ("default", "max_autotune_gemm", "table", "max-autotune", "mega-cache")
"""How a model is compiled, in the order of measuring."""

_KINDS: Final = ("graphed", "clocked")
_COLUMNS: Final = (
    "model", "way", "compile s", "/ default", "/ autotune", "graphed µs", "/ eager", "/ autotune",
    "no graphs µs", "/ eager", "right", "autotuned", "hits/misses/dropped",
)  # fmt: skip
_COUNTS: Final = ("autotuned", "hits", "misses", "dropped", "cache_hits", "cache_bytes")
Row = dict[str, Any]


def report_of(lines: Iterable[Row]) -> list[Row]:
    """Return a report for each torch, device and table that lines are of."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for line in lines:
        groups.setdefault((line["torch"], line["gpu"], line["table"]), []).append(line)
    return [
        {"torch": torch, "device": gpu, "table": table or "packaged", **_report(held)}
        for (torch, gpu, table), held in sorted(groups.items())
    ]


def _report(lines: Sequence[Row]) -> Row:
    good = [line for line in lines if "failed" not in line]
    rows: list[Row] = []
    for case in dict.fromkeys(line["case"] for line in good):
        held = [line for line in good if line["case"] == case]
        found = [
            _row(way, mine) for way in WAYS if (mine := [ln for ln in held if ln["way"] == way])
        ]
        eager = _eager(case, held)
        _compare(found, eager)
        rows += [eager, *found]
    return {
        "rows": rows,
        "means": [_means(rows, way) for way in WAYS if any(row["way"] == way for row in rows)],
        "bars": _bars(rows),
        "failed": [
            {name: line[name] for name in ("case", "way", "failed")}
            for line in lines
            if "failed" in line
        ],
    }


def _eager(case: str, lines: Sequence[Row]) -> Row:
    """Return eager's own times: the median of all processes, and how far they differ."""
    times = {
        kind: _drifting([line[kind]["eager"]["us"] for line in lines if line[kind]])
        for kind in _KINDS
        if any(line[kind] for line in lines)
    }
    return {"case": case, "way": "eager", "runs": len(lines), "layers": lines[0]["layers"], **times}


def _drifting(medians: Sequence[float]) -> Row:
    us, least, most = statistics.median(medians), min(medians), max(medians)
    return {"us": us, "least_us": least, "most_us": most, "drift": (most - least) / (2 * us)}


def _row(way: str, lines: Sequence[Row]) -> Row:
    seconds = [line["compile_s"] for line in lines]
    last = lines[-1]
    return {
        "case": last["case"],
        "way": way,
        "runs": len(lines),
        "compile_s": {
            "median": statistics.median(seconds), "least": min(seconds), "most": max(seconds)
        },
        **{kind: _timed(lines, kind) for kind in _KINDS if all(line[kind] for line in lines)},
        "right": all(line["error"]["right"] for line in lines),
        **{name: last[name] for name in _COUNTS},
    }  # fmt: skip


def _timed(lines: Sequence[Row], kind: str) -> Row:
    """Return a way's times: ``ratio`` is that to eager in the same process."""
    found = [line[kind]["compiled"] for line in lines]
    return {
        "us": statistics.median(one["us"] for one in found),
        "spread_us": statistics.median(one["spread_us"] for one in found),
        "ratio": statistics.median(one["ratio"] for one in found),
        "noise": max(one["noise"] for one in found),
    }


def _compare(rows: Sequence[Row], eager: Row) -> None:
    """Add what each way needs by what another does."""
    by_way = {row["way"]: row for row in rows}
    for row in rows:
        row["to"] = {
            other: {
                "compile": row["compile_s"]["median"] / theirs["compile_s"]["median"],
                **{
                    kind: _ratio(row[kind], theirs[kind], eager[kind]["drift"])
                    for kind in _KINDS
                    if kind in row and kind in theirs
                },
            }
            for other, theirs in by_way.items()
        }


def _ratio(ours: Mapping[str, float], theirs: Mapping[str, float], drift: float) -> Row:
    if ours is theirs:
        return {"ratio": 1.0, "noise": 0.0}
    ratio = ours["us"] / theirs["us"]
    own = [timed["noise"] / timed["ratio"] for timed in (ours, theirs)]
    return {"ratio": ratio, "noise": ratio * math.hypot(*own, drift, drift)}


def _means(rows: Sequence[Row], way: str) -> Row:
    held = [row for row in rows if row["way"] == way]
    found: Row = {"way": way, "cases": len(held)}
    for other in ("default", "max_autotune_gemm"):
        pairs = [row["to"][other] for row in held if other in row["to"]]
        found[f"compile / {other}"] = _mean(pair["compile"] for pair in pairs)
        for kind in _KINDS:
            found[f"{kind} / {other}"] = _mean(p[kind]["ratio"] for p in pairs if kind in p)
    for kind in _KINDS:
        found[f"{kind} / eager"] = _mean(row[kind]["ratio"] for row in held if kind in row)
    return found


def _mean(ratios: Iterable[float]) -> float | None:
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(statistics.fmean(logs)) if logs else None


def _bars(rows: Sequence[Row]) -> list[Row]:
    tables = [row for row in rows if row["way"] == "table"]
    covered = [row for row in tables if row["hits"] and not row["misses"] + row["dropped"]]
    steps = [
        to["graphed"]
        for row in tables
        if "graphed" in (to := row["to"].get("max_autotune_gemm", {}))
    ]
    slower = sum(step["ratio"] - step["noise"] > 1.0 for step in steps)
    compiled = [row for row in rows if row["way"] != "eager"]
    wrong = [f"{row['case']} {row['way']}" for row in compiled if not row["right"]]
    return [
        _compile_bar(covered, "default", 1.10),
        _compile_bar(covered, "max_autotune_gemm", 0.5),
        {"bar": "graphed step <= 1.00 x max_autotune_gemm within noise",
         "found": f"{slower} of {len(steps)} models exceed it beyond noise",
         "verdict": _verdict(steps, met=slower == 0)},
        {"bar": "error against float32 <= 2 x eager's",
         "found": f"exceeded by {', '.join(wrong) or 'none'}",
         "verdict": _verdict(compiled, met=not wrong)},
    ]  # fmt: skip


def _compile_bar(covered: Sequence[Row], other: str, limit: float) -> Row:
    ratios = [row["to"][other]["compile"] for row in covered if other in row["to"]]
    mean = _mean(ratios)
    text = "-" if mean is None else f"{mean:.2f} ({min(ratios):.2f} - {max(ratios):.2f})"
    return {
        "bar": f"compile with a table that covers the model <= {limit:.2f} x {other}",
        "found": f"geometric mean of {len(ratios)} models {text}",
        "verdict": _verdict(ratios, met=mean is not None and mean <= limit),
    }


def _verdict(found: Sequence[Any], *, met: bool) -> str:
    return ("met" if met else "missed") if found else "not measured"


def show(report: Sequence[Row], console: Console | None = None) -> None:
    """Print a row a model and way, the geometric means, the bars, and what failed."""
    console = console or Console(width=220)
    for group in report:
        title = f"torch {group['torch']}, {group['device']}, {group['table']} table"
        grid = Grid(box=SIMPLE, title=title)
        for name in _COLUMNS:
            grid.add_column(name, no_wrap=True)
        for row in group["rows"]:
            grid.add_row(*_cells(row), end_section=row["way"] == "mega-cache")
        console.print(grid)
        for mean in group["means"]:
            parts = [f"{k} {v:.3f}" for k, v in mean.items() if isinstance(v, float)]
            console.print(
                f"{mean['way']}, {mean['cases']} models: {', '.join(parts)}", highlight=False
            )
        for bar in group["bars"]:
            console.print(f"{bar['verdict']:<12} {bar['bar']}: {bar['found']}", highlight=False)
        for line in group["failed"]:
            reason = line["failed"].strip().splitlines()[-1]
            console.print(
                f"failed: {line['case']}, {line['way']}: {reason}", highlight=False, markup=False
            )
    if not report:
        console.print("no results")


def _cells(row: Row) -> list[str]:
    if row["way"] == "eager":
        model = f"{row['case']}, {row['layers']} layers"
        times = [
            f"{row[kind]['us']:.1f} ±{row[kind]['drift']:.1%}" if kind in row else "-"
            for kind in _KINDS
        ]
        return [model, "eager", "-", "-", "-", times[0], "1", "-", times[1], "1",
                "", "", ""]  # fmt: skip
    seconds, to = row["compile_s"], row["to"]
    shown = f"{seconds['median']:.1f}"
    if row["runs"] > 1:
        shown += f" ({seconds['least']:.1f} - {seconds['most']:.1f})"
    graphed, clocked = row.get("graphed"), row["clocked"]
    tuned = to.get("max_autotune_gemm", {})
    return [
        "", row["way"], shown,
        f"{to['default']['compile']:.2f}" if "default" in to else "-",
        f"{tuned['compile']:.2f}" if tuned else "-",
        f"{graphed['us']:.1f}" if graphed else "-",
        _with_noise(graphed), _with_noise(tuned.get("graphed")),
        f"{clocked['us']:.1f}", _with_noise(clocked),
        "yes" if row["right"] else "NO", str(row["autotuned"]),
        _counted(row),
    ]  # fmt: skip


def _counted(row: Row) -> str:
    if row["way"] == "table":
        return f"{row['hits']}/{row['misses']}/{row['dropped']}"
    if row["way"] == "mega-cache":
        return f"{row['cache_hits']} of {row['cache_bytes'] / 1e6:.1f} MB"
    return ""


def _with_noise(found: Mapping[str, float] | None) -> str:
    return "-" if found is None else f"{found['ratio']:.3f} ±{found['noise']:.3f}"
