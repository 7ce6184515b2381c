"""How results look: rich tables for people, Markdown for the changelog."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table as Grid
from rich.text import Text

from build_tools.build import Built
from build_tools.check import CheckReport, TableCheck
from build_tools.diff import KeyChange, TableDiff
from build_tools.hashes import TemplateHashes
from build_tools.held import ModelShare
from inductor_tables.schema import Entry

if TYPE_CHECKING:
    from build_tools.compile_check import Compiled, CompileReport


def dumps_grid(built: Built) -> Grid:
    """Return what became of the rows of every dump."""
    reasons = sorted({reason for report in built.reports for reason in report.dropped})
    numbers = ["rows", "kept", "merged", *(f"dropped: {reason}" for reason in reasons)]
    grid = _grid("dump", numbers=numbers)
    for report in built.reports:
        dropped = [report.dropped[reason] for reason in reasons]
        grid.add_row(
            Text(report.resource), *map(str, (report.rows, report.kept, report.merged, *dropped))
        )
    return grid


def tables_grid(built: Built) -> Grid:
    """Return what every built table holds."""
    grid = _grid("table", "arch", "version", "digest", numbers=["keys", "entries", "bytes"])
    for one in built.tables:
        header = one.table.header
        counts = (header.key_count, header.entry_count, len(one.data))
        texts = (str(one.path), _arch(header.arch), header.table_version, one.table.digest[:12])
        grid.add_row(*map(Text, texts), *map(str, counts))
    return grid


def build_notes(built: Built, left: Sequence[Path]) -> Iterator[str]:
    """Yield what the one who builds should know besides."""
    for report in built.reports:
        if report.unordered:
            yield (
                f"note: {report.resource}: {report.unordered} kept rows have no time, so the table "
                "orders those of a key by content, not by speed (--topk goes by their rank)"
            )
    for path in left:
        yield f"note: {path}: not part of this build, left as it was"


def held_grid(models: Sequence[ModelShare]) -> Grid:
    """Return one line for every model."""
    grid = _grid("model", numbers=["held", "problems", "share"])
    for one in models:
        grid.add_row(Text(one.model or "-"), str(one.held), str(one.asked), f"{one.share:.0%}")
    return grid


def check_grid(report: CheckReport) -> Grid:
    """Return one line for every table that was checked."""
    grid = _grid("table", "arch", "version", "compared with", "result", numbers=["keys", "entries"])
    for table in report.tables:
        texts = (
            table.path,
            "?" if table.series is None else _arch(table.arch),
            table.table_version or "?",
            " and ".join(table.compared_with) or "nothing",
            _verdict(table),
        )
        counts = ("?" if n is None else str(n) for n in (table.keys, table.entries))
        grid.add_row(*map(Text, texts), *counts)
    return grid


def check_problems(report: CheckReport) -> Iterator[str]:
    """Yield a line for everything that is wrong."""
    for table in report.tables:
        for problem in table.problems:
            yield f"{table.path}: {problem.kind}: {problem.text}"
    for problem in report.problems:
        yield f"{problem.kind}: {problem.text}"


def compile_grid(report: CompileReport) -> Grid:
    """Return one line for every table that was compiled; outcomes that none had are left out."""
    numbers = ["distinct", "from before", "no source", "seconds"]
    grid = _grid("table", "compiled for", "result", numbers=numbers)
    for table in report.tables:
        data = table.as_data()
        outcomes = ("compiled", "unpipelined", "failed", "exceeds", "dropped")
        told = [f"{data[name]} {name}" for name in outcomes if data[name]]
        told += [f"{data['spilling']} of them spill"] if data["spilling"] else []
        result = ", ".join(told)
        texts = (table.path, table.device, result.upper() if table.failures else result)
        counts = (data[name] for name in ("distinct", "earlier", "without_source"))
        grid.add_row(*map(Text, texts), *map(str, counts), f"{table.seconds:.1f}")
    return grid


def compile_findings(report: CompileReport) -> Iterator[str]:
    """Yield a line for every entry that does not compile or run as it should."""
    for table in report.tables:
        for one in (*table.failures, *table.warnings):
            yield f"{table.path}: {_finding(one)}"
    for path, reason in report.skipped:
        yield f"{path}: not compiled: {reason}"
    if not report.tables:
        yield "no table was compiled"


def _finding(one: Compiled) -> str:
    result = one.result
    warned = result.outcome in {"compiled", "unpipelined"}
    reasons = [result.reason] if result.reason else []
    if warned and result.spills:
        reasons.append(f"a thread spills {result.spills} registers")
    outcome = "spilling" if result.outcome == "compiled" else result.outcome
    kind = f"warning: {outcome}" if warned else outcome
    return f"{kind}: {one.case}: {'; '.join(reasons)}"


def hashes_grid(hashes: TemplateHashes) -> Grid:
    """Return the templates of one torch."""
    grid = _grid(f"template of torch {hashes.version}", "hash", numbers=[])
    for template_id, template_hash in hashes.templates.items():
        grid.add_row(Text(template_id), template_hash or "-")
    for template_id, template_hash in hashes.rocm.items():
        grid.add_row(Text(f"{template_id} (ROCm, triton < 3.3)"), template_hash)
    return grid


def diff_text(diffs: Sequence[TableDiff], limit: int) -> Iterator[str]:
    """Yield what changed as lines for people, at most ``limit`` items of each kind."""
    for diff in diffs:
        yield f"{diff.table}: {summary(diff)}"
        for title, items in _sections(diff).items():
            yield f"  {title} ({len(items)})"
            yield from (f"    {name}{detail}" for name, detail in items[:limit])
            yield from [f"    ... and {len(items) - limit} more"] * (len(items) > limit)


def diff_markdown(diffs: Sequence[TableDiff], limit: int) -> Iterator[str]:
    """Yield what changed as Markdown for the changelog, at most ``limit`` items of each kind."""
    for diff in diffs:
        yield f"- `{diff.table}`: {summary(diff)}"
        for title, items in _sections(diff).items():
            yield f"  - {title} ({len(items)})"
            yield from (f"    - `{name}`{detail}" for name, detail in items[:limit])
            yield from [f"    - ... and {len(items) - limit} more"] * (len(items) > limit)


def summary(diff: TableDiff) -> str:
    """Return what happened to a table in one line."""
    if diff.status in {"added", "same"}:
        return f"{diff.status}, {diff.new_keys} keys"
    if diff.status == "removed":
        return f"removed, it had {diff.old_keys} keys"
    fastest = sum(change.fastest_changed for change in diff.choices)
    proofs = f", {len(diff.proofs)} with other proofs only" if diff.proofs else ""
    return (
        f"{diff.old_keys} -> {diff.new_keys} keys: {len(diff.added)} added, "
        f"{len(diff.removed)} removed, {len(diff.choices)} with other choices "
        f"({fastest} with another fastest one), {len(diff.times)} with other times only{proofs}"
    )


_Items = list[tuple[str, str]]


def _sections(diff: TableDiff) -> dict[str, _Items]:
    """Return kind of change → (name, detail) of each; kinds without any are left out."""
    sections: dict[str, _Items] = {
        "header": [(c.name, f": {_shown(c.old)} -> {_shown(c.new)}") for c in diff.header],
        "keys added": [(key, "") for key in diff.added],
        "keys removed": [(key, "") for key in diff.removed],
        "choices changed": [(c.key, f": {_choice_change(c)}") for c in diff.choices],
        "times only": [(c.key, f": {_us(c.old_us)} -> {_us(c.new_us)}") for c in diff.times],
        "proofs only": [
            (c.key, f": {_margin(c.old_margin)} -> {_margin(c.new_margin)}") for c in diff.proofs
        ],
    }
    return {title: items for title, items in sections.items() if items}


def _choice_change(change: KeyChange) -> str:
    if change.fastest_changed:
        return f"{_choice(change.old[0])} -> {_choice(change.new[0])}"
    before, after = ({row.config for row in rows} for rows in (change.old, change.new))
    if before == after:
        return f"the same {len(after)} choices in another order, the fastest stays"
    return f"the fastest stays, {len(after - before)} choices added, {len(before - after)} removed"


def _choice(entry: Entry) -> str:
    params = [f"{name}={value}" for name, value in entry.config.params]
    digest = entry.config.template_hash
    hashed = [f"hash {digest[:12]}"] if digest else []
    return " ".join([entry.config.template_id, *params, *hashed, f"({_us(entry.time_us)})"])


def _us(time_us: float | None) -> str:
    return "not timed" if time_us is None else f"{time_us:g} µs"


def _margin(margin: float | None) -> str:
    return "no margin" if margin is None else f"margin {margin:.1%}"


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def _arch(arch: str | None) -> str:
    return "any (keys without a device)" if arch is None else arch


def _verdict(table: TableCheck) -> str:
    kinds = sorted({problem.kind for problem in table.problems})
    return ", ".join(kinds).upper() or "ok"


def _grid(*texts: str, numbers: Sequence[str]) -> Grid:
    grid = Grid()
    for text in texts:
        grid.add_column(text, overflow="fold")
    for number in numbers:
        grid.add_column(number, justify="right", overflow="fold")
    return grid
