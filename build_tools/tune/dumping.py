"""Makes dumps of results, in the recorder's form: ``build`` makes tables of them as they are."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from build_tools.tune.results import TUNED, Done, Line
from inductor_tables.dumps import PROVENANCE_FIELDS, Row, make_row, render_dump, write_atomically
from inductor_tables.schema import Proof

_MOMENTS: Final = ("date", "clocks")
"""What differs between the workers of one run, and makes no dump of its own."""


def write_dumps(done: Done, directory: Path) -> list[Path]:
    """Write a dump for each torch and device that results are of, and return the files.

    A dump holds one entry a problem, with its proof. Where that needs a setting which users may
    not have on, the fastest that needs none stands behind it.

    Raises:
        InvalidDumpError: a result cannot go into a dump.
        OSError: a file cannot be written.
    """
    groups: dict[tuple[str, ...], list[Line]] = {}
    for line in (done.lines[key] for key in sorted(done.lines)):
        if line["status"] == TUNED:
            worker = line["worker"]
            fixed = (name for name in PROVENANCE_FIELDS if name not in _MOMENTS)
            groups.setdefault(tuple(str(worker.get(n)) for n in fixed), []).append(line)
    names: dict[str, int] = {}
    written = []
    for identity in sorted(groups):
        provenance = _provenance(line["worker"] for line in groups[identity])
        name = _name(provenance)
        names[name] = names.get(name, 0) + 1
        number = f"_{names[name]}" if names[name] > 1 else ""
        path = directory / f"{name}{number}.json"
        write_atomically(path, render_dump(rows(groups[identity]), provenance))
        written.append(path)
    return written


def rows(lines: Iterable[Line]) -> list[Row]:
    """Return the rows that results make, with their proofs, each key's fastest first."""
    return [
        make_row(
            entry["key"],
            entry["plain"],
            time_ns=entry["time_ns"],
            rank=rank,
            proof=_proof(entry, line),
        )
        for line in lines
        for rank, entry in enumerate(line["entries"])
    ]


def _proof(entry: Mapping[str, Any], line: Line) -> Proof:
    """Return what an entry was measured against: the incumbents of its line."""
    times = {name: timed["time_ns"] for name, timed in line["incumbents"].items()}
    return Proof(
        spread_ns=entry["spread_ns"],
        aten_ns=times.get("aten"),
        host_ns=times.get("host"),
        previous_ns=times.get("previous"),
        rounds=line["rounds"],
    )


def _provenance(workers: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what all workers say alike, with the latest date and the clocks told then."""
    latest = max(workers, key=lambda worker: str(worker.get("date")))
    return {name: latest.get(name) for name in PROVENANCE_FIELDS}


def _name(provenance: Mapping[str, Any]) -> str:
    parts = (provenance.get("arch") or "device", f"torch{provenance.get('torch') or ''}")
    return "_".join(["tuned", *(re.sub(r"[^A-Za-z0-9.]+", "-", part) for part in parts)])
