"""Mutated dumps: refused with a place or read as what they say, never another exception."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from inductor_tables.dumps import Dump, parse_dump, render_dump
from inductor_tables.errors import InvalidDumpError
from inductor_tables.schema import check_param, check_proof

HASH = "d99842e466803e2d1dcd19b8faa992acd26dc9cb671b8eba7468c187f3b9007f"
KEY = "NVIDIA H200+((torch.bfloat16, [16, 64], [64, 1]), (torch.bfloat16, [64, 32], [32, 1]))+mm"
PLAIN: dict[str, Any] = {
    KEY: [
        {"template_id": "triton::mm", "template_hash": HASH, "BLOCK_M": 16, "EVEN_K": True},
        {"template_id": "aten::mm"},
    ],
    KEY.replace("16, 64", "17, 64"): [
        {"template_id": "triton::mm", "template_hash": HASH, "ACC_TYPE": "tl.float32"}
    ],
}
OURS: dict[str, Any] = {
    **PLAIN,
    "inductor-tables": {
        "format_version": 1,
        "provenance": {"torch": "2.13.0+cu130", "device": "NVIDIA H200", "sm_count": 132},
        "timings_ns": {key: list(range(5000, 5000 + len(rows))) for key, rows in PLAIN.items()},
        "ranks": {key: list(range(len(rows))) for key, rows in PLAIN.items()},
    },
}
PROVED: dict[str, Any] = {
    **OURS,
    "inductor-tables": {
        **OURS["inductor-tables"],
        "proofs": {
            KEY: [
                {"spread_ns": 9, "aten_ns": 5001, "host_ns": 5, "previous_ns": None, "rounds": 24},
                None,
            ]
        },
    },
}
SEEDS = [json.dumps(dump).encode() for dump in (PLAIN, OURS, PROVED)]
HOSTILE: list[Any] = [
    None, True, -1, 2**31, 2**63, 10**400, 0.5, float("inf"), float("nan"), "", "\0", "é", "..",
    "/etc/passwd", "__import__('os')", "tl.float32\n", "(print('x') or 4)", "a" * 5000, [], {},
    [[[[]]]], {"template_id": "triton::mm"}, "triton::mm; import os", "\ud800", 1e308, [None] * 99,
]  # fmt: skip


def _read(data: bytes) -> Dump | None:
    """Read a mutated dump; None where it is refused with a place."""
    try:
        found = parse_dump(data, "mutated.json")
    except InvalidDumpError as error:
        assert error.resource == "mutated.json"  # noqa: PT017 - either outcome is fine
        assert error.where  # noqa: PT017
        assert str(error).isprintable()  # noqa: PT017
        return None
    for row in found.rows:
        if row.proof is not None:
            assert check_proof(row.proof, "", _never) == row.proof
        for name, value in row.config.params:
            check_param(name, value, "", _never)
    return found


def _never(where: str, problem: str) -> Any:
    raise AssertionError(f"a refused value came through: {where}: {problem}")


def _flip(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _splice(data: bytes, chance: random.Random) -> bytes:
    other = chance.choice(SEEDS)
    return data[: chance.randrange(len(data))] + other[chance.randrange(len(other)) :]


def _replace(data: bytes, chance: random.Random) -> bytes:
    """Put a hostile value in a random place of the structure."""
    dump = json.loads(data)
    holder: Any = dump
    while True:
        places = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        if not places:
            break
        place = chance.choice(places)
        inner = holder[place]
        if not isinstance(inner, dict | list) or chance.random() < 0.3:
            holder[place] = chance.choice(HOSTILE)
            if isinstance(holder, dict) and chance.random() < 0.3:
                holder[str(chance.choice(HOSTILE))] = holder.pop(place)
            break
        holder = inner
    return json.dumps(dump).encode()


MUTATIONS: list[Callable[[bytes, random.Random], bytes]] = [_flip, _splice, _replace]


@pytest.mark.parametrize("seed", SEEDS, ids=["plain", "ours", "proved"])
def test_truncated_at_every_byte(seed: bytes) -> None:
    """A dump that is cut short is refused, wherever it is cut."""
    assert _read(seed) is not None
    assert not [at for at in range(len(seed)) if _read(seed[:at]) is not None]


@pytest.mark.parametrize("seed", SEEDS, ids=["plain", "ours", "proved"])
def test_what_is_read_is_written_the_same(seed: bytes) -> None:
    """Reading and rendering again changes no row."""
    found = _read(seed)
    assert found is not None
    again = parse_dump(render_dump(found.rows, {}), "again.json")
    assert sorted(again.rows, key=repr) == sorted(found.rows, key=repr)


def _fuzz(cases: int, seed: int) -> int:
    chance = random.Random(seed)
    read = 0
    for _ in range(cases):
        data = chance.choice(SEEDS)
        for _ in range(chance.randint(1, 2)):
            try:
                data = chance.choice(MUTATIONS)(data, chance)
            except (ValueError, RecursionError, KeyError, IndexError):
                break  # no longer JSON: what there is is mutated enough
        read += _read(data or b"{") is not None
    return read


def test_a_few_thousand_mutations() -> None:
    """Flips, splices and hostile values: zero exceptions of another type."""
    assert _fuzz(4000, seed=1) < 4000


@pytest.mark.slow
def test_sixty_thousand_mutations() -> None:
    """The same at length; with the tables' slow fuzz more than 100,000 cases."""
    assert _fuzz(60_000, seed=2) < 60_000
