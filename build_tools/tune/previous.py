"""Reads the entries that a table has now: incumbents of a tuning, and where searches begin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from build_tools.files import dump_files
from build_tools.tune.results import problem_id
from build_tools.tune.shapes import Shape, shape_of
from build_tools.tune.space import candidate
from inductor_tables.dumps import read_dump
from inductor_tables.keys import parse_key
from inductor_tables.problems import Problem, problem_from_key
from inductor_tables.schema import Config
from inductor_tables.table import Table

_TABLE = ".msgpack"


def read_previous(paths: Sequence[Path], provenance: Mapping[str, Any]) -> dict[str, Config]:
    """Return problem id → the fastest entry, of dumps and tables of this device.

    Raises:
        InvalidTableError: a file is damaged.
        OSError: a file cannot be read.
    """
    held = _held(paths, provenance)
    return {place: configs[0] for place, (_, configs) in held.items()}


def read_seeds(
    paths: Sequence[Path], provenance: Mapping[str, Any]
) -> list[tuple[Shape, list[Config]]]:
    """Return the shapes of dumps and tables of this device, each with its entries, fastest first.

    Raises:
        InvalidTableError: a file is damaged.
        OSError: a file cannot be read.
    """
    seeds = []
    for _, (problem, configs) in sorted(_held(paths, provenance).items()):
        with suppress(ValueError):  # an op that is not tuned
            seeds.append((shape_of(problem), configs))
    return seeds


def _held(
    paths: Sequence[Path], provenance: Mapping[str, Any]
) -> dict[str, tuple[Problem, list[Config]]]:
    """Return problem id → the problem and its candidates, fastest first."""
    problems: dict[str, Problem] = {}
    timed: dict[str, list[tuple[float, Config]]] = {}
    for key, config, time_ns in _entries(paths):
        if parse_key(key).device not in (None, provenance.get("arch")):
            continue
        problem = problem_from_key(key)
        place = problem_id(problem)
        problems[place] = problem
        found = candidate(config.template_id, config.template_hash, dict(config.params))
        time = float("inf") if time_ns is None else float(time_ns)
        timed.setdefault(place, []).append((time, found))
    return {
        place: (problems[place], [config for _, config in sorted(found, key=lambda one: one[0])])
        for place, found in timed.items()
    }


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
