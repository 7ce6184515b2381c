"""GEMM problems: what is to be tuned, as it comes out of models and running processes.

They are kept in JSON files that are the same bytes for the same problems, whatever their order::

    {"format": "inductor-tables problems", "version": 1, "problems": [
    {"count": 64, "inputs": [{"dtype": "bfloat16", "size": [16, 4096], "stride": [4096, 1]}, ...],
     "op_name": "mm", "origins": ["llama:layers.0.mlp.up"], "scalars": [["alpha", "1"]]}
    ]}

First come the problems that most models share, then those that occur most often.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from inductor_tables.dumps import write_atomically
from inductor_tables.errors import InvalidKeyError, InvalidProblemsError
from inductor_tables.keys import ParsedKey, TensorKey, parse_key, problem_of
from inductor_tables.schema import Fail, check_count, check_list, check_text, shown
from inductor_tables.strict_json import check_object, parse_json, read_limited

FORMAT: Final = "inductor-tables problems"
FORMAT_VERSION: Final = 1
MISSES_PREFIX: Final = "inductor_problems"
"""How the names of the files begin that running processes write."""

MAX_FILE_BYTES: Final = 2**28
"""Largest file in bytes that :func:`read` opens."""

MAX_COUNT: Final = 2**53
"""Largest count; what would add up to more is counted as this."""

_MAX_PROBLEMS = 2**20
_MAX_ORIGINS = 2**20
_MAX_INPUTS = 16
_MAX_RANK = 16
_FIELDS = ("count", "inputs", "op_name", "origins", "scalars")
_INPUT_FIELDS = ("dtype", "size", "stride")

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One matrix product to find a kernel for, on whichever device.

    Attributes:
        op_name: as in the lookup key, such as ``addmm``.
        inputs: dtype, sizes and strides of every input, as in the key.
        scalars: names and texts of the key's scalars, such as ``("alpha", "1")``.
        count: how often the models have it.
        origins: where it comes from, sorted: the name of a model, then, after a colon, a module
            path or a line, such as ``llama:layers.0.mlp.up``.
    """

    op_name: str
    inputs: tuple[TensorKey, ...]
    scalars: tuple[tuple[str, str], ...]
    count: int
    origins: tuple[str, ...]

    @property
    def models(self) -> frozenset[str]:
        """The models that have it: what stands before the colon of each origin."""
        return frozenset(origin.partition(":")[0] for origin in self.origins)

    def key(self, device: str | None) -> str:
        """Return the lookup key on a device (its gcnArchName); None: the device-agnostic one."""
        return str(
            ParsedKey(device=device, inputs=self.inputs, scalars=self.scalars, op_name=self.op_name)
        )


def problem_from_key(key: str, *, count: int = 1, origins: Iterable[str] = ()) -> Problem:
    """Return the problem that a lookup key asks about; the device is left out.

    Both keys of an addmm (:func:`~inductor_tables.keys.problem_of`) give the same problem.

    Raises:
        InvalidKeyError: it is no lookup key of tensors, or the key, the count or an origin is
            one that no file may hold.
    """
    parsed = parse_key(key)

    def fail(where: str, problem: str) -> NoReturn:
        raise InvalidKeyError(f"no problem to tune: {key[:200]!r}: {where}: {problem}")

    found = Problem(
        op_name=parsed.op_name,
        inputs=parsed.inputs,
        scalars=parsed.scalars,
        count=count,
        origins=tuple(origins),
    )
    (problem,) = merge([_problem(_plain(found), "problem", fail)])
    return problem


def merge(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return each problem once, in the order of :func:`write`.

    Counts are added up, origins united.
    """
    counts: dict[ParsedKey, int] = {}
    origins: dict[ParsedKey, set[str]] = {}
    for problem in problems:
        same = problem_of(_parsed(problem))
        counts[same] = min(counts.get(same, 0) + problem.count, MAX_COUNT)
        origins.setdefault(same, set()).update(problem.origins)
    found = [
        Problem(
            op_name=same.op_name,
            inputs=same.inputs,
            scalars=same.scalars,
            count=count,
            origins=tuple(sorted(origins[same])),
        )
        for same, count in counts.items()
    ]
    return tuple(sorted(found, key=_order))


def _parsed(problem: Problem) -> ParsedKey:
    return ParsedKey(
        device=None, inputs=problem.inputs, scalars=problem.scalars, op_name=problem.op_name
    )


def _order(problem: Problem) -> tuple[Any, ...]:
    """Sort key: what most models share, what occurs most often, then by content."""
    inputs = tuple((tensor.dtype, tensor.size, tensor.stride) for tensor in problem.inputs)
    content = (problem.op_name, inputs, problem.scalars)
    return (-len(problem.models), -problem.count, *content)


def write(path: str | os.PathLike[str], problems: Iterable[Problem]) -> None:
    """Write problems, each once; a reader sees the file before or after, never half.

    Raises:
        InvalidProblemsError: a problem is one that :func:`read` would refuse; nothing is written.
        OSError: the file cannot be written; what was there is unharmed.
    """
    write_atomically(Path(path), render(problems, os.fspath(path)))


def render(problems: Iterable[Problem], resource: str) -> bytes:
    """Return the bytes of a file of problems; ``resource`` names it in messages.

    Raises:
        InvalidProblemsError: as for :func:`write`.
    """
    head = f'{{"format": "{FORMAT}", "version": {FORMAT_VERSION}, "problems": [\n'
    lines = [json.dumps(_plain(problem), sort_keys=True) for problem in merge(problems)]
    data = (head + ",\n".join(lines) + "\n]}\n").encode("ascii")
    parse(data, resource)  # what cannot be read is not written
    return data


def _plain(problem: Problem) -> dict[str, Any]:
    return {
        "count": problem.count,
        "inputs": [
            {"dtype": t.dtype, "size": list(t.size), "stride": list(t.stride)}
            for t in problem.inputs
        ],
        "op_name": problem.op_name,
        "origins": list(problem.origins),
        "scalars": [list(scalar) for scalar in problem.scalars],
    }


def read(path: str | os.PathLike[str]) -> tuple[Problem, ...]:
    """Read a file of problems and check every field of it; each comes once, in order.

    Raises:
        InvalidProblemsError: it is no such file, or is damaged; the message names file and place.
        OSError: the file cannot be read.
    """
    resource = os.fspath(path)
    return parse(read_limited(path, MAX_FILE_BYTES, _fail_for(resource)), resource)


def parse(data: bytes, resource: str) -> tuple[Problem, ...]:
    """Read the bytes of a file of problems; ``resource`` names it in messages.

    Raises:
        InvalidProblemsError: as for :func:`read`.
    """
    fail = _fail_for(resource)
    content = check_object(parse_json(data, fail), "top level", fail)
    if content.get("format") != FORMAT:
        fail("format", f"expected {FORMAT!r}, found {shown(content.get('format'))}")
    version = content.get("version")
    if type(version) is not int or version != FORMAT_VERSION:
        fail(
            "version",
            f"{shown(version)} is not known here (this release reads {FORMAT_VERSION}); "
            "update inductor-tables or collect again",
        )
    _check_fields(content, ("format", "problems", "version"), "top level", fail)
    listed = check_list(content["problems"], "problems", fail, _MAX_PROBLEMS)
    return merge(_problem(raw, f"problems[{n}]", fail) for n, raw in enumerate(listed))


def _fail_for(resource: str) -> Fail:
    def fail(where: str, problem: str) -> NoReturn:
        raise InvalidProblemsError(resource, where, problem)

    return fail


def _check_fields(found: Mapping[str, Any], names: Sequence[str], where: str, fail: Fail) -> None:
    if found.keys() != set(names):
        differing = sorted(found.keys() ^ set(names))[0]
        state = "unknown" if differing in found else "missing"
        fail(where, f"field {shown(differing)} is {state}; expected {', '.join(names)}")


def _problem(raw: Any, where: str, fail: Fail) -> Problem:
    fields = check_object(raw, where, fail)
    _check_fields(fields, _FIELDS, where, fail)

    def items(name: str, most: int, check: Callable[[Any, str, Fail], _T]) -> tuple[_T, ...]:
        listed = check_list(fields[name], f"{where}.{name}", fail, most)
        return tuple(check(item, f"{where}.{name}[{n}]", fail) for n, item in enumerate(listed))

    found = Problem(
        op_name=_text(fields["op_name"], f"{where}.op_name", fail),
        inputs=items("inputs", _MAX_INPUTS, _tensor),
        scalars=items("scalars", _MAX_INPUTS, _scalar),
        count=check_count(fields["count"], f"{where}.count", fail),
        origins=items("origins", _MAX_ORIGINS, _text),
    )
    _check_key(found, where, fail)
    return found


def _check_key(problem: Problem, where: str, fail: Fail) -> None:
    """Hold names and texts to the grammar of keys, by making the key and reading it."""
    try:
        same = parse_key(problem.key(None)) == _parsed(problem)
    except InvalidKeyError as error:
        fail(where, f"makes no lookup key: {error}")
    if not same:
        fail(where, f"makes another lookup key: {shown(problem.key(None))}")


def _tensor(raw: Any, where: str, fail: Fail) -> TensorKey:
    fields = check_object(raw, where, fail)
    _check_fields(fields, _INPUT_FIELDS, where, fail)
    size, stride = (
        tuple(
            check_count(number, f"{where}.{name}[{n}]", fail)
            for n, number in enumerate(check_list(fields[name], f"{where}.{name}", fail, _MAX_RANK))
        )
        for name in ("size", "stride")
    )
    if len(size) != len(stride):
        fail(f"{where}.stride", f"{len(stride)} strides for {len(size)} sizes")
    return TensorKey(dtype=_text(fields["dtype"], f"{where}.dtype", fail), size=size, stride=stride)


def _scalar(raw: Any, where: str, fail: Fail) -> tuple[str, str]:
    if len(check_list(raw, where, fail)) != 2:
        fail(where, f"expected [name, text], found {shown(raw)}")
    return _text(raw[0], f"{where}[0]", fail), _text(raw[1], f"{where}[1]", fail)


def _text(raw: Any, where: str, fail: Fail) -> str:
    text = check_text(raw, where, fail)
    if text is None:
        fail(where, "expected a text, found null")
    return text
