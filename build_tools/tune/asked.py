"""Reads what is to be tuned."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from inductor_tables import problems
from inductor_tables.dumps import read_dump
from inductor_tables.errors import InvalidKeyError
from inductor_tables.problems import Problem, problem_from_key


def read_asked(paths: Sequence[Path]) -> list[Problem]:
    """Read problems from files of problems, from dumps, or from lookup keys (``.txt``, one a line).

    Returns:
        Each problem once, those that most models share first.

    Raises:
        InvalidDumpError: a dump is damaged.
        InvalidKeyError: a line is no lookup key; names file and line.
        InvalidProblemsError: a file of problems is damaged.
        OSError: a file cannot be read.
    """
    return list(problems.merge(problem for path in paths for problem in _read(path)))


def _read(path: Path) -> Iterable[Problem]:
    if path.suffix == ".txt":
        return _keys(path)
    with open(path, "rb") as file:
        begin = file.read(256)
    if problems.FORMAT.encode() in begin:
        return problems.read(path)
    keys = dict.fromkeys(row.key for row in read_dump(path).rows)
    return [problem_from_key(key) for key in keys]


def _keys(path: Path) -> Iterable[Problem]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            try:
                yield problem_from_key(line.strip())
            except InvalidKeyError as error:
                raise InvalidKeyError(f"{path}: line {number}: {error}") from error
