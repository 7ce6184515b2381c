"""What comparisons of kernels say: ratios by class of M, their spread, and the bars."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table as Grid

from build_tools.tune.results import TUNED, Line, read_results
from build_tools.tune.shapes import Shape, shape_of
from inductor_tables.errors import BuildError
from inductor_tables.problems import problem_from_key

AGAINST: Final = {"host": "host's pick", "host_best": "host's best", "aten": "ATen"}
"""What the table's kernel is compared with; the host's best is the fastest of its choices."""

CLASSES: Final[Mapping[str, Callable[[int], bool]]] = {
    "M <= 64": lambda m: m <= 64,
    "M > 64": lambda m: m > 64,
    "all": lambda m: m > 0,
}

LIMITS: Final = {"host": 1.01, "host_best": 1.01, "aten": 1.0}
"""The ratios that no problem is to exceed by more than its noise."""

Row = dict[str, Any]


def read_comparisons(
    directory: Path, *, torch: str | None = None, arch: str | None = None
) -> list[Line]:
    """Return the lines of a directory's comparisons, of one torch and device or of any.

    Raises:
        BuildError: a line is none, or not whole; names the directory and the problem.
        OSError: a file cannot be read.
    """
    lines = list(read_results(directory, torch=torch, arch=arch).lines.values())
    for line in lines:
        fault = _fault(line)
        if fault:
            raise BuildError(f"{directory}: the result of {line['problem']} {fault}")
    return lines


def _fault(line: Line) -> str:
    """Return why a line cannot be reported, and what to do; "" if it can."""
    if not line["worker"].keys() >= {"torch", "arch"}:
        return (
            "has no line before it that names torch and device: its file is damaged, remove "
            "it and measure again"
        )
    if line.get("status") != TUNED:
        return ""
    if "kernels" not in line or not line.get("ratios", {}).keys() >= {"host", "aten"}:
        return (
            "is none of kernels.py, which compares with the host's pick and ATen: the tuner's own "
            "need another directory"
        )
    for name, found in line["ratios"].items():
        if not 0 < found["ratio"] < math.inf:
            return (
                f"has the ratio {found['ratio']!r} to {name}, expected more than 0: remove the "
                "line and measure again"
            )
    return ""


def report_of(lines: Iterable[Line]) -> list[Row]:
    """Return a report for each torch and device that lines are of, as ``read_comparisons`` gives.

    A line of a status that this release does not know counts as not compared.
    """
    groups: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        worker = line["worker"]
        groups.setdefault((worker["torch"], worker["arch"]), []).append(line)
    return [
        {"torch": torch, "device": arch, **_report(held)}
        for (torch, arch), held in sorted(groups.items())
    ]


def _report(lines: Sequence[Line]) -> Row:
    rows = [_row(line) for line in lines if line.get("status") == TUNED]
    failed = Counter(_reason(line) for line in lines if line.get("status") != TUNED)
    summaries = [
        {"class": name, "against": against, **_summary(compared, against)}
        for name, holds in CLASSES.items()
        for against in AGAINST
        if (compared := [row for row in rows if holds(row["m"]) and against in row])
    ]
    broken = sum(count for reason, count in failed.items() if reason.startswith("table:"))
    return {
        "problems": sorted(rows, key=lambda row: -row["host"]["ratio"]),
        "failed": dict(failed),
        "summaries": summaries,
        "bars": _bars(rows, summaries, broken),
    }


def _reason(line: Line) -> str:
    return str(line.get("reason", f"of unknown status {line.get('status')!r}"))


def _row(line: Line) -> Row:
    problem = problem_from_key(line["problem"])
    shape = shape_of(problem)
    times = {name: found["time_us"] for name, found in line["kernels"].items()}
    return {
        "name": name_of(shape), "key": line["problem"], "op": shape.op_name, "dtype": shape.dtype,
        "m": shape.m, "times_us": times, **line["ratios"],
    }  # fmt: skip


def name_of(shape: Shape) -> str:
    """Return a short name of a product, such as ``mm 16 x 4096 x 1024 bfloat16`` (M, N, K)."""
    batch = f"{shape.batch} x " if shape.batch > 1 else ""
    return f"{shape.op_name} {batch}{shape.m} x {shape.n} x {shape.k} {shape.dtype}"


def _summary(rows: Sequence[Row], against: str) -> Row:
    ratios = [row[against]["ratio"] for row in rows]
    worst = max(rows, key=lambda row: float(row[against]["ratio"]))
    low, _, high = statistics.quantiles(ratios, method="inclusive") if len(rows) > 1 else ratios * 3
    return {
        "problems": len(rows),
        "geometric_mean": math.exp(statistics.fmean(map(math.log, ratios))),
        "quartiles": [low, high],
        "worst": {"name": worst["name"], **worst[against]},
        "limit": LIMITS[against],
        "slower": sum(ratio > LIMITS[against] for ratio in ratios),
        "slower_beyond_noise": sum(_beyond(row[against], LIMITS[against]) for row in rows),
        "same_kernel": sum(row[against]["same"] for row in rows),
    }


def _beyond(found: Mapping[str, Any], limit: float) -> bool:
    return bool(found["ratio"] - found["noise"] > limit)


def _bars(rows: Sequence[Row], summaries: Sequence[Row], broken: int) -> list[Row]:
    means = {(s["class"], s["against"]): s["geometric_mean"] for s in summaries}
    above, slower = (
        broken + sum(_beyond(row[against], LIMITS[against]) for row in rows)
        for against in ("host", "aten")
    )
    few, every = means.get(("M <= 64", "host")), means.get(("all", "host"))
    counted = f"of {len(rows) + broken} exceed it beyond noise"
    return [
        _bar("<= 1.01 x host's pick on every problem", above == 0, f"{above} {counted}",
             measured=bool(rows)),
        _bar("geometric mean <= 0.85 x host's pick, M <= 64", (few or 0) <= 0.85, _text(few),
             measured=few is not None),
        _bar("geometric mean <= 0.95 x host's pick, all", (every or 0) <= 0.95, _text(every),
             measured=every is not None),
        _bar("<= 1.00 x ATen within noise", slower == 0, f"{slower} {counted}",
             measured=bool(rows)),
    ]  # fmt: skip


def _bar(bar: str, met: bool, found: str, *, measured: bool) -> Row:
    verdict = "met" if met else "missed"
    return {"bar": bar, "found": found, "verdict": verdict if measured else "not measured"}


def _text(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.3f}"


def show(report: Sequence[Row], console: Console | None = None) -> None:
    """Print the summaries, the bars and what could not be compared."""
    console = console or Console(width=150)
    for group in report:
        title = f"torch {group['torch']}, {group['device']}"
        shown = Grid(
            "class", "table /", "problems", "geometric mean", "quartiles", "above",
            "beyond noise", "same kernel", "worst", title=title,
        )  # fmt: skip
        for row in group["summaries"]:
            low, high = row["quartiles"]
            worst = row["worst"]
            shown.add_row(
                row["class"], AGAINST[row["against"]], str(row["problems"]),
                f"{row['geometric_mean']:.3f}", f"{low:.3f} - {high:.3f}",
                f"{row['slower']} > {row['limit']}",
                str(row["slower_beyond_noise"]), str(row["same_kernel"]),
                f"{worst['ratio']:.3f} +- {worst['noise']:.3f} {worst['name']}",
            )  # fmt: skip
        console.print(shown)
        for bar in group["bars"]:
            console.print(f"{bar['verdict']:<12} {bar['bar']}: {bar['found']}", highlight=False)
        for reason, count in sorted(group["failed"].items()):
            console.print(f"not compared {count}: {reason}", highlight=False, markup=False)
    if not report:
        console.print("no results")
