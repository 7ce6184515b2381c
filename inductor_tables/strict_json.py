"""Reading JSON that others wrote: every flaw has a place and a name, whatever it is.

The functions take a ``fail(place, problem)`` that raises the error of their caller's file.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import Any, NoReturn

from inductor_tables.schema import Fail


class _Repeated(dict[str, Any]):
    """A JSON object with a name that stands in it twice; found where it is looked into."""

    name = ""


def read_limited(path: str | os.PathLike[str], most: int, fail: Fail) -> bytes:
    """Return the bytes of a file of ``most`` bytes at most.

    Raises:
        OSError: the file cannot be read.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            fail("file", f"{size} bytes; at most {most} are read, split it")
        return file.read()


def parse_json(data: bytes, fail: Fail) -> Any:
    """Return what JSON in UTF-8 says; NaN and the infinities are no JSON."""
    try:
        text = data.decode("utf-8")
        return json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    except RecursionError:
        fail("JSON", "lists or objects are nested too deeply")
    except ValueError as error:  # also not UTF-8, and ints of too many digits
        fail("JSON", f"not valid JSON in UTF-8: {error}")


def check_object(value: Any, where: str, fail: Fail) -> dict[str, Any]:
    """Return an object whose names stand in it once."""
    if isinstance(value, _Repeated):
        fail(where, f"the name {value.name[:200]!r} stands twice in one object")
    if not isinstance(value, dict):
        fail(where, f"expected an object, found {type(value).__name__}")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    repeated, counts = _Repeated(found), Counter(name for name, _ in pairs)
    repeated.name = next(name for name, count in counts.items() if count > 1)
    return repeated


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
