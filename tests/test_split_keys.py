"""Reading all keys of a table at once, and comparing with keys that were forged."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st
from table_samples import (
    ATEN,
    HASHED,
    MM,
    NEAR_MM,
    SMALL,
    entry,
    pack_pairs,
    put_together,
    take_apart,
    write,
)

from inductor_tables.analysis.nearest import nearest
from inductor_tables.errors import InvalidTableError
from inductor_tables.keys import join_key, split_key
from inductor_tables.table import Table


def _keys(table: Table) -> list[str]:
    return sorted(join_key(*split) for split in table.split_keys())


def test_all_keys_but_those_that_cannot_be_split() -> None:
    """The keys that ``keys()`` yields, less the one with a #."""
    assert _keys(Table(write(SMALL), "sample")) == sorted(SMALL.keys() - {HASHED})
    assert _keys(Table(write({}), "sample")) == []


@given(st.sets(st.text(max_size=40).filter(bool), max_size=80))
def test_any_keys(keys: set[str]) -> None:
    """Every key that can be split comes out whole."""
    keys = {key for key in keys if key.isprintable()}
    table = Table(write({key: (entry(ATEN),) for key in keys}), "sample")
    assert _keys(table) == sorted(key for key in keys if split_key(key) is not None)


def test_the_order_is_that_of_a_hash() -> None:
    """The first keys are spread over all: no run of neighbours."""
    keys = {MM.replace("[16, ", f"[{m}, "): (entry(ATEN),) for m in range(1000, 3000)}
    first = [numbers[0] for _, numbers in Table(write(keys), "sample").split_keys()][:200]
    assert min(first) < 1100
    assert max(first) > 2900


def _forged(bucket: Any) -> Table:
    parts = take_apart(write({MM: (entry(ATEN),)}))
    parts.change_bucket(0, bucket)
    return Table(put_together(parts), "forged")


@pytest.mark.parametrize(
    ("bucket", "problem"),
    [
        ({"text": [0, None, 0]}, "expected keys as msgpack bins"),
        ({msgpack.packb(7): [0, None, 0]}, "expected a key, found 7"),
        ({msgpack.packb([]): [0, None, 0]}, r"expected a key, found \[\]"),
        ({msgpack.packb([True, 1]): [0, None, 0]}, r"expected a key, found \[True, 1\]"),
        ({msgpack.packb([1, 1]): [0, None, 0]}, "skeleton 1 does not exist"),
        ({msgpack.packb([-1, 1]): [0, None, 0]}, "skeleton -1 does not exist"),
        ({b"": [0, None, 0]}, "not valid msgpack"),
        ({b"\xc1": [0, None, 0]}, "not valid msgpack"),
        ({b"\x01\x02": [0, None, 0]}, "not valid msgpack"),
        ({b"\x91" * 3000 + b"\x01": [0, None, 0]}, "not valid msgpack"),
        (pack_pairs([(b"\x01", []), (b"\x01", [])]), "a map has a key twice"),
        ([], "expected a map"),
    ],
)
def test_damage_has_a_name(bucket: Any, problem: str) -> None:
    """A bucket that holds no keys is an error that says which, and no neighbour."""
    table = _forged(bucket)
    with pytest.raises(InvalidTableError, match=problem) as caught:
        list(table.split_keys())
    assert caught.value.where == "buckets[0]"
    assert nearest(NEAR_MM, [table]) == ()


@pytest.mark.parametrize(
    "key",
    [
        [0, 1, 2],
        [0, *[[[]]] * 8],
        [0, *["x"] * 8],
        [0, *[1.5] * 8],
        [0, *[-1] * 8],
        [0, *[None] * 8],
        [0, *[{}] * 8],
        [0, *[2**64 - 1] * 8],
        [0, *[True] * 8],
        "text",
    ],
)
def test_comparing_with_forged_keys(key: Any) -> None:
    """Whatever numbers a forged key has, looking for neighbours is no error."""
    found = nearest(NEAR_MM, [_forged({msgpack.packb(key): [0, None, 0]})])
    assert len(found) == (key == [0, *[True] * 8])
