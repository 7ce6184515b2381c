"""Reads what is to be tuned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from build_tools.tune.results import problem_id
from inductor_tables.dumps import read_dump
from inductor_tables.errors import InvalidKeyError
from inductor_tables.keys import parse_key, problem_of
from inductor_tables.problems import Problem


def problem_from_key(key: str, count: int = 1, origins: Iterable[str] = ()) -> Problem:
    """Return the problem that a lookup key stands for, on whichever device.

    Raises:
        InvalidKeyError: it is no lookup key.
    """
    parsed = problem_of(parse_key(key))
    return Problem(
        op_name=parsed.op_name,
        inputs=parsed.inputs,
        scalars=parsed.scalars,
        count=count,
        origins=tuple(sorted(origins)),
    )


def read_asked(paths: Sequence[Path]) -> list[Problem]:
    """Read files of problems: lookup keys, one a line (``.txt``), or dumps.

    Returns:
        Each problem once, the most frequent first, then by key.

    Raises:
        InvalidDumpError: a dump is damaged.
        InvalidKeyError: a line is no lookup key; names file and line.
        OSError: a file cannot be read.
    """
    found: dict[str, Problem] = {}
    for path in paths:
        for problem in _keys(path) if path.suffix == ".txt" else _dump(path):
            key = problem_id(problem)
            known = found.get(key)
            found[key] = problem if known is None else _both(known, problem)
    return sorted(found.values(), key=lambda problem: (-problem.count, problem_id(problem)))


def _keys(path: Path) -> Iterable[Problem]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            try:
                yield problem_from_key(line.strip())
            except InvalidKeyError as error:
                raise InvalidKeyError(f"{path}: line {number}: {error}") from error


def _dump(path: Path) -> Iterable[Problem]:
    keys = dict.fromkeys(row.key for row in read_dump(path).rows)
    return [problem_from_key(key) for key in keys]


def _both(one: Problem, other: Problem) -> Problem:
    return Problem(
        op_name=one.op_name,
        inputs=one.inputs,
        scalars=one.scalars,
        count=one.count + other.count,
        origins=tuple(sorted({*one.origins, *other.origins})),
    )
