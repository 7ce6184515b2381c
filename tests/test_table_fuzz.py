"""Broken and forged tables by the thousand: an InvalidTableError or the truth, nothing else.

Three laws, whatever the bytes are:

1. Reading raises ``InvalidTableError`` or nothing.
2. Nothing is compiled, executed, imported, opened or connected to.
3. A table that opens under a known digest gives only what the table of that digest gives; under
   any other digest (a forgery) it gives only what passes the whitelist.

The quick run is part of the suite. The long one, of more than 300,000 tables::

    python -m pytest -m slow tests/test_table_fuzz.py -s
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import msgpack
import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from table_samples import (
    ATEN,
    EVIL_TEXTS,
    MM,
    NEAR_MM,
    PROVED,
    SMALL,
    Entries,
    Parts,
    config,
    contents,
    entry,
    pack,
    put_together,
    refuse,
    take_apart,
    write,
)

from inductor_tables.errors import InvalidTableError
from inductor_tables.schema import (
    Entry,
    check_count,
    check_hash,
    check_params,
    check_proof,
    check_template_id,
    check_text,
)
from inductor_tables.table import Table

MANY: Final[Entries] = {
    MM.replace("[16, 4096]", f"[{rows}, 4096]"): (
        entry(config(BLOCK_M=16 * (rows % 3 + 1), num_warps=4), rows),
        entry(ATEN, rows * 2),
    )
    for rows in range(1, 40)
}
ORIGINALS: Final = tuple(write(held) for held in (SMALL, MANY, PROVED, {}))
TRUTH: Final = {Table(data, "original").digest: contents(data) for data in ORIGINALS}
ASKED: Final = (*SMALL, *list(MANY)[:4], NEAR_MM, "", "#")

QUICK: Final = 3_000
LONG: Final = 200_000
FORGED_QUICK: Final = 800
FORGED_LONG: Final = 20_000

# Law 2: an audit hook cannot be removed, so there is one, and it is armed when it matters.

_armed = False
_noticed: list[str] = []
_FORBIDDEN = ("exec", "compile", "import", "open", "os.", "socket.", "subprocess.", "ctypes.")


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if _armed and event.startswith(_FORBIDDEN):
        _noticed.append(f"{event} {args!r:.200}")


sys.addaudithook(_audit)


@contextmanager
def nothing_runs() -> Iterator[None]:
    """Fail if anything inside compiles, executes, imports, opens or connects."""
    global _armed  # noqa: PLW0603 - the hook is the process's
    _noticed.clear()
    _armed = True
    try:
        yield
    finally:
        _armed = False
    assert not _noticed


def read_every_way(data: bytes, forgery: bool) -> str:
    """Read a table by look-up, in full and with its check; return what became of it.

    Only a forgery may open under a digest that is no original's. Raises what is not an
    ``InvalidTableError``: that is what the tests are after.
    """
    try:
        table = Table(data, "fuzzed")
    except InvalidTableError:
        return "refused at once"
    truth, outcome = TRUTH.get(table.digest), "read"
    assert forgery or truth is not None
    for key in ASKED:
        try:
            found = table.lookup(key)
        except InvalidTableError:
            outcome = "refused later"
        else:
            hold_to(found, None if truth is None else truth.get(key, ()))
    try:
        for key, found in table.items():
            hold_to(found, None if truth is None else truth[key])
        table.verify()
    except InvalidTableError:
        outcome = "refused later"
    return outcome


def hold_to(found: tuple[Entry, ...], expected: tuple[Entry, ...] | None) -> None:
    """Hold entries to the truth where it is known, else to the whitelist."""
    if expected is not None:
        assert found == expected
        return
    for made in found:
        params = dict(made.config.params)
        assert check_params(params, "fuzzed", refuse) == made.config.params
        check_template_id(made.config.template_id, "fuzzed", refuse)
        check_hash(made.config.template_hash, "fuzzed", refuse)
        check_count(made.time_ns, "fuzzed", refuse, optional=True)
        if made.proof is not None:
            assert check_proof(made.proof, "fuzzed", refuse) == made.proof
        check_text(made.source.device, "fuzzed", refuse)
        assert made.source.carried in (None, "hash", "code")


# Damage: random bytes, wrong digests.


def flip_bits(data: bytearray, rnd: random.Random) -> None:
    """Flip one to eight bits."""
    for _ in range(rnd.choice((1, 1, 1, 2, 3, 8))):
        data[rnd.randrange(len(data))] ^= 1 << rnd.randrange(8)


def set_bytes(data: bytearray, rnd: random.Random) -> None:
    """Put bytes that mean something to msgpack in other places."""
    for _ in range(rnd.randrange(1, 4)):
        data[rnd.randrange(len(data))] = rnd.choice(
            b"\x00\x7f\x80\x90\xa0\xc0\xc1\xc4\xc6\xdd\xdf\xff"
        )


def cut(data: bytearray, rnd: random.Random) -> None:
    """Leave a piece out, at the end or in the middle."""
    start = rnd.randrange(len(data))
    del data[start : rnd.choice((len(data), start + rnd.randrange(1, 40)))]


def repeat(data: bytearray, rnd: random.Random) -> None:
    """Write a piece twice."""
    start = rnd.randrange(len(data))
    piece = data[start : start + rnd.randrange(1, 60)]
    at = rnd.randrange(len(data) + 1)
    data[at:at] = piece


def splice(data: bytearray, rnd: random.Random) -> None:
    """Put a piece of another table in place of one of this."""
    other = rnd.choice(ORIGINALS)
    start, take = rnd.randrange(len(other)), rnd.randrange(1, 200)
    at = rnd.choice((start, rnd.randrange(len(data))))
    data[at : at + rnd.choice((take, 0))] = other[start : start + take]


def glue(data: bytearray, rnd: random.Random) -> None:
    """Begin as one table and go on as another."""
    other = rnd.choice(ORIGINALS)
    at = rnd.randrange(min(len(data), len(other)))
    data[at:] = other[at:]


DAMAGE: Final[tuple[Callable[[bytearray, random.Random], None], ...]] = (
    flip_bits,
    set_bytes,
    cut,
    repeat,
    splice,
    glue,
)


def damaged(rnd: random.Random) -> bytes:
    """Return a table with one to three kinds of damage."""
    data = bytearray(rnd.choice(ORIGINALS))
    for _ in range(rnd.choice((1, 1, 2, 3))):
        if data:
            rnd.choice(DAMAGE)(data, rnd)
    return bytes(data)


def forged(rnd: random.Random) -> bytes:
    """Return a table with damage inside a part, and right digests over it."""
    parts = take_apart(rnd.choice(ORIGINALS))
    for _ in range(rnd.choice((1, 1, 2))):
        where = rnd.randrange(-1, len(parts.records))
        piece = bytearray(pack(parts.header) if where < 0 else parts.records[where])
        if piece:
            rnd.choice(DAMAGE[:5])(piece, rnd)
        if where < 0:
            parts.raw_header = bytes(piece)
        else:
            parts.records[where] = bytes(piece)
    return put_together(parts)


def report(name: str, outcomes: Counter[str]) -> None:
    """Say what became of how many tables (pytest -s shows it)."""
    total = sum(outcomes.values())
    print(f"\n{name}: {total} tables, {dict(sorted(outcomes.items()))}")  # noqa: T201


def run(cases: int, make: Callable[[random.Random], bytes], name: str) -> Counter[str]:
    """Read many tables; the number of each is its seed, so that one can be made again."""
    outcomes: Counter[str] = Counter()
    for number in range(cases):
        data = make(random.Random(f"{name} {number}"))
        try:
            with nothing_runs():
                outcomes[read_every_way(data, make is forged)] += 1
        except Exception as error:
            raise AssertionError(f"{name} {number}: {error!r} from {data.hex()}") from error
    report(name, outcomes)
    return outcomes


@pytest.mark.parametrize(
    "cases", [QUICK, pytest.param(LONG, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
def test_damaged_tables(cases: int) -> None:
    """Flipped, cut, repeated, spliced: refused, or exactly what it was."""
    outcomes = run(cases, damaged, "damaged")
    assert outcomes["refused at once"] > cases / 3
    assert outcomes["refused later"] > cases / 50


@pytest.mark.parametrize(
    "cases",
    [QUICK, pytest.param(LONG // 2, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])],
)
def test_forged_tables(cases: int) -> None:
    """The same under right digests, where every check of the content has its turn."""
    outcomes = run(cases, forged, "forged")
    assert outcomes["refused at once"] > cases / 20
    assert outcomes["refused later"] > cases / 10


# Forgery that knows the schema: values of every type in every place.

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.integers(-2, 20)
    | st.floats()
    | st.binary(max_size=20)
    | st.text(max_size=20)
    | st.sampled_from(EVIL_TEXTS).filter(lambda text: "\ud800" not in text)
    | st.sampled_from(["triton::mm", "2.13", "1.0", "hash", "ab" * 32, MM, "a # b"])
    | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=8))
    | st.integers(0, 2**33).map(msgpack.Timestamp),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=6) | st.binary(max_size=6), inner, max_size=4)
    ),
    max_leaves=8,
)


def mutate(draw: Callable[[Any], Any], value: Any) -> Any:
    """Change one thing somewhere in a decoded value, or in a list that a bin of it holds."""
    if isinstance(value, bytes) and draw(st.integers(0, 3)):
        with suppress(ValueError):
            held = msgpack.unpackb(value, raw=False)
            return pack(mutate(draw, held)) if isinstance(held, list) else draw(values)
    inside = isinstance(value, (dict, list)) and len(value) > 0
    if not inside or draw(st.integers(0, 3)) == 0:
        return draw(values)
    if isinstance(value, list):
        at = draw(st.integers(0, len(value) - 1))
        copies = draw(st.sampled_from([0, 1, 1, 1, 2]))
        return [*value[:at], *[mutate(draw, value[at])] * copies, *value[at + 1 :]]
    name = draw(st.sampled_from(sorted(value, key=repr)))
    kind = draw(st.sampled_from(["change", "change", "drop", "rename", "add"]))
    if kind == "change":
        return {**value, name: mutate(draw, value[name])}
    if kind == "add":
        return {**value, draw(st.text(max_size=6) | st.binary(max_size=12)): draw(values)}
    rest = {other: kept for other, kept in value.items() if other != name}
    return rest if kind == "drop" else {**rest, draw(st.text(max_size=6)): value[name]}


@st.composite
def schema_forgeries(draw: Callable[[Any], Any]) -> bytes:
    """Draw a table with one to three changes that a decoder of msgpack does not mind."""
    parts: Parts = take_apart(draw(st.sampled_from(ORIGINALS[:3])))
    for _ in range(draw(st.integers(1, 3))):
        where = draw(st.integers(-1, len(parts.records) - 1))
        if where < 0:
            changed = mutate(draw, parts.header)
            parts.raw_header = pack(changed)
        else:
            record = msgpack.unpackb(parts.records[where], raw=False)
            parts.records[where] = pack(mutate(draw, record))
    return put_together(parts)


OUTCOMES: Counter[str] = Counter()


def check_forgery(data: bytes) -> None:
    """Hold one drawn table to the laws."""
    with nothing_runs():
        OUTCOMES[read_every_way(data, forgery=True)] += 1


@settings(max_examples=FORGED_QUICK, suppress_health_check=list(HealthCheck))
@given(schema_forgeries())
def test_schema_aware_forgeries(data: bytes) -> None:
    """Values of every type in every place of header, bucket and configuration."""
    check_forgery(data)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_schema_aware_forgeries() -> None:
    """The same, at length."""
    OUTCOMES.clear()
    settings(
        max_examples=FORGED_LONG,
        database=None,
        suppress_health_check=list(HealthCheck),
    )(seed(20260501)(given(schema_forgeries())(check_forgery)))()
    report("schema-aware", OUTCOMES)
    assert sum(OUTCOMES.values()) >= FORGED_LONG
