"""Which problems tables hold, model by model: what is worth tuning next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from build_tools.files import dump_files, table_files
from inductor_tables.dumps import Dump, Row, read_dump
from inductor_tables.keys import other_spellings
from inductor_tables.problems import Problem, problem_from_key
from inductor_tables.schema import Source
from inductor_tables.table import Table

_TABLE: Final = ".msgpack"


@dataclass(frozen=True, kw_only=True)
class ModelShare:
    """How many of a model's problems tables hold.

    Attributes:
        model: what stands before the colon of an origin.
        held: problems of it that have an entry.
        asked: all problems of it.
    """

    model: str
    held: int
    asked: int

    @property
    def share(self) -> float:
        """From 0 to 1."""
        return self.held / self.asked


def split(
    asked: Iterable[Problem], tables: Sequence[Dump]
) -> tuple[tuple[Problem, ...], tuple[Problem, ...]]:
    """Return the problems that tables or dumps hold for any device, and those that they lack.

    As for a look-up, the stride of a dimension of size 1 does not count.
    """
    keys = {problem_from_key(row.key).key(None) for held in tables for row in held.rows}
    found: tuple[list[Problem], list[Problem]] = ([], [])
    for problem in asked:
        key = problem.key(None)
        is_held = key in keys or any(other in keys for other in other_spellings(key))
        found[not is_held].append(problem)
    return tuple(found[0]), tuple(found[1])


def by_model(held: Iterable[Problem], lacking: Iterable[Problem]) -> list[ModelShare]:
    """Count problems by the models that have them, the models that are held best first."""
    counts = [
        Counter(model for problem in problems for model in problem.models)
        for problems in (held, lacking)
    ]
    found = [
        ModelShare(model=model, held=counts[0][model], asked=counts[0][model] + counts[1][model])
        for model in counts[0] | counts[1]
    ]
    return sorted(found, key=lambda one: (-one.share, -one.asked, one.model))


def read_held(paths: Sequence[Path]) -> list[Dump]:
    """Read dumps, and tables as if they were dumps; a directory stands for what it holds.

    Raises:
        BuildError: a directory holds neither.
        InvalidTableError: a file is damaged.
        OSError: a file cannot be read.
    """
    found: list[Dump] = []
    for path in paths:
        tables = [path] if path.suffix == _TABLE else table_files(path) if path.is_dir() else []
        found += map(_dump_of, tables)
        if not tables:
            found += map(read_dump, dump_files([path]))
    return found


def _dump_of(path: Path) -> Dump:
    """Return a table as a dump of its series; what was carried to it counts as the series' own."""
    table = Table.open(path)
    rows = [
        Row(key=key, config=entry.config, time_ns=entry.time_ns, rank=rank, proof=entry.proof)
        for key, entries in table.items()
        for rank, entry in enumerate(entries)
    ]
    return Dump(
        resource=str(path),
        digest=table.digest,
        rows=tuple(rows),
        source=Source(dump_digest=table.digest, torch=table.header.torch_series),
        arch=table.header.arch,
        plain=False,
    )
