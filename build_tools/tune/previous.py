"""Reads the entries that a table has now: incumbents of a tuning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from build_tools.files import dump_files
from build_tools.tune.results import problem_id
from build_tools.tune.space import candidate
from inductor_tables.dumps import read_dump
from inductor_tables.keys import parse_key
from inductor_tables.problems import problem_from_key
from inductor_tables.schema import Config
from inductor_tables.table import Table

_TABLE = ".msgpack"


def read_previous(paths: Sequence[Path], provenance: Mapping[str, Any]) -> dict[str, Config]:
    """Return problem id → the fastest entry, of dumps and tables of this device.

    Raises:
        InvalidTableError: a file is damaged.
        OSError: a file cannot be read.
    """
    found: dict[str, tuple[float, Config]] = {}
    for key, config, time_ns in _entries(paths):
        if parse_key(key).device not in (None, provenance.get("arch")):
            continue
        place = problem_id(problem_from_key(key))
        rank = float("inf") if time_ns is None else float(time_ns)
        if place not in found or rank < found[place][0]:
            found[place] = (
                rank,
                candidate(config.template_id, config.template_hash, dict(config.params)),
            )
    return {place: config for place, (_, config) in found.items()}


def _entries(paths: Sequence[Path]) -> Iterable[tuple[str, Config, int | None]]:
    for path in paths:
        tables = [path] if path.suffix == _TABLE else sorted(path.glob(f"**/*{_TABLE}"))
        for file in tables:
            table = Table(file.read_bytes(), str(file))
            for key, entries in table.items():
                yield from ((key, entry.config, entry.time_ns) for entry in entries)
        if not tables:
            for dump in dump_files([path]):
                yield from ((row.key, row.config, row.time_ns) for row in read_dump(dump).rows)
