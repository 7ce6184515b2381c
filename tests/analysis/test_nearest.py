"""The nearest keys of a table, how they differ, and the advice."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from key_samples import H200, addmm, key, mm, parsed_products, tensor, transposed

from inductor_tables.analysis import key_index as index_module
from inductor_tables.analysis.differences import differences
from inductor_tables.analysis.key_index import KeyIndex, key_index
from inductor_tables.analysis.nearest import FAR, advice, nearest
from inductor_tables.analysis.products import OPS, product_of
from inductor_tables.analysis.records import Neighbour
from inductor_tables.arch import base_arch
from inductor_tables.errors import InvalidKeyError
from inductor_tables.keys import ParsedKey, parse_key
from inductor_tables.schema import Config, Entry, Source
from inductor_tables.table import Table, write_table

AMD = "gfx942:sramecc+:xnack-"
ENTRY = Entry(
    config=Config(template_id="aten::mm", template_hash=None, params=()),
    time_ns=None,
    source=Source(dump_digest="00"),
)


def written(*keys: str, serves_base_arch: bool = False) -> bytes:
    """Return the bytes of a table that holds some keys."""
    return write_table(
        dict.fromkeys(keys, (ENTRY,)),
        table_version="1",
        series="2.13",
        arch=None,
        serves_base_arch=serves_base_arch,
    )


def table(*keys: str, serves_base_arch: bool = False) -> Table:
    """Return a table that holds some keys."""
    return Table(written(*keys, serves_base_arch=serves_base_arch), "sample")


def only(asked: str, *held: str) -> tuple[str, ...]:
    """Return the differences of the nearest key."""
    return nearest(asked, [table(*held)])[0].differences


# --- differences ------------------------------------------------------------------------

X, W = tensor(16, 64), transposed(64, 32)
ROW, COLUMN = tensor(64, 32), transposed(64, 32)
BIAS = tensor(16, 32, stride=(0, 1))
SCALE = tensor(dtype="float32")
BATCH = tensor(4, 16, 64), tensor(4, 64, 32)


@pytest.mark.parametrize(
    ("asked", "held", "texts"),
    [
        (mm(16, 2688, 64), mm(16, 2624, 64), ["N 2688, table has 2624"]),
        (mm(16, 32, 64), mm(8, 32, 128), ["M 16, table has 8", "K 64, table has 128"]),
        (
            key("mm", X, ROW),
            key("mm", X, COLUMN),
            ["stride: weight is row-major, table has column-major"],
        ),
        (
            key("mm", tensor(16, 64, stride=(192, 1)), W),
            key("mm", X, W),
            ["stride: input is row-major with rows 192 apart, table has row-major"],
        ),
        (
            key("mm", tensor(16, 64, stride=(192, 1)), W),
            key("mm", tensor(16, 64, stride=(128, 1)), W),
            [
                "stride: input is row-major with rows 192 apart, "
                "table has row-major with rows 128 apart"
            ],
        ),
        (
            key("mm", tensor(1, 64, stride=(1, 1)), W),
            key("mm", tensor(1, 64), W),
            ["stride: input has [1, 1], table has [64, 1], which is the same memory"],
        ),
        (
            key("mm", tensor(16, 64, stride=(0, 1)), W),
            key("mm", X, W),
            ["stride: input is one row for all rows, table has row-major"],
        ),
        (
            key("mm", tensor(16, 64, stride=(128, 2)), W),
            key("mm", X, W),
            ["stride: input is strided with strides [128, 2], table has row-major"],
        ),
        (
            key("bmm", tensor(4, 16, 64, stride=(64, 256, 1)), BATCH[1]),
            key("bmm", *BATCH),
            [
                "stride: mat1 is row-major with rows 256 apart and matrices 64 apart, "
                "table has row-major"
            ],
        ),
        (
            key("bmm", BATCH[0], tensor(4, 64, 32, stride=(0, 32, 1))),
            key("bmm", *BATCH),
            [
                "stride: mat2 is row-major, one matrix for the whole batch, table has row-major"
            ],
        ),
        (
            key("bmm", *BATCH),
            key("bmm", tensor(8, 16, 64), tensor(8, 64, 32)),
            ["batch 4, table has 8"],
        ),
        (mm(16, 32, 64), mm(16, 32, 64, dtype="float16"),
         ["other dtype: bfloat16, table has float16"]),
        (
            key("mm", X, transposed(64, 32, dtype="int8")),
            key("mm", X, W),
            ["other dtype: bfloat16 and int8, table has bfloat16"],
        ),
        (
            addmm(16, 32, 64),
            mm(16, 32, 64),
            [
                "other op: addmm asked, table has the same product as mm: the bias differs"
            ],
        ),
        (
            mm(16, 32, 64),
            addmm(8, 32, 64),
            ["other op: mm asked, table has addmm: the bias differs", "M 16, table has 8"],
        ),
        (
            key("int_mm", tensor(16, 64, dtype="int8"), transposed(64, 32, dtype="int8")),
            mm(16, 32, 64, dtype="int8"),
            ["other op: int_mm asked, table has the same product as mm"],
        ),
        (
            key("addmm", BIAS, X, W),
            key("addmm", BIAS, X, W, scalars=(("alpha", "0.5"), ("beta", "1"))),
            ["other scalars: alpha=1 beta=1, table has alpha=0.5 beta=1"],
        ),
        (
            key("addmm", tensor(32), X, W),
            key("addmm", BIAS, X, W),
            ["bias: given as [32], table has it as [16, 32]"],
        ),
        (
            key("addmm", tensor(16, 32), X, W),
            key("addmm", BIAS, X, W),
            ["bias: a whole matrix, table has one row"],
        ),
        (
            key("addmm", tensor(1, 32), X, W),
            key("addmm", BIAS, X, W),
            [
                "input 0 is (torch.bfloat16, [1, 32], [32, 1]), "
                "table has (torch.bfloat16, [16, 32], [0, 1])"
            ],
        ),
        (
            key("addmm", tensor(16, 32, dtype="float32", stride=(0, 1)), X, W),
            key("addmm", BIAS, X, W),
            ["dtype of bias: float32, table has bfloat16"],
        ),
        (
            key("addmm", transposed(16, 32), X, W),
            key("addmm", tensor(16, 32), X, W),
            ["stride: bias has [1, 16], table has [32, 1]"],
        ),
        (
            key("baddbmm", tensor(4, 16, 32), *BATCH),
            key("baddbmm", tensor(4, 16, 32, stride=(0, 0, 1)), *BATCH),
            ["bias: a whole matrix for each of the batch, table has one row"],
        ),
        (
            key("scaled_mm", X, W, SCALE, SCALE),
            key("scaled_mm", X, W, tensor(16, 1, dtype="float32"), tensor(1, 32, dtype="float32")),
            [
                "scale of input: one number, table has one column",
                "scale of weight: one number, table has one row",
            ],
        ),
        (
            key("scaled_mm", X, W, SCALE, SCALE, tensor(32)),
            key("scaled_mm", X, W, SCALE, SCALE),
            ["bias: one row, table has none"],
        ),
        (
            mm(16, 32, 64),
            mm(16, 32, 64, device="NVIDIA A100-SXM4-80GB"),
            ["other device: NVIDIA H200, table has NVIDIA A100-SXM4-80GB"],
        ),
        (
            mm(16, 32, 64, device=None),
            mm(16, 32, 64),
            ["other device: none, table has NVIDIA H200"],
        ),
        (mm(16, 32, 64), mm(8, 32, 64, device=None), ["M 16, table has 8"]),
        (
            mm(16, 32, 64, device=AMD),
            mm(16, 32, 64, device="gfx942"),
            [f"other device: {AMD}, table has gfx942"],
        ),
        (
            key("new_mm", SCALE, X, W),
            key("new_mm", tensor(1, dtype="float32"), X, W),
            ["input 0 is (torch.float32, [], []), table has (torch.float32, [1], [1])"],
        ),
        (
            key("new_mm", SCALE, X, W),
            key("new_mm", X, W),
            [
                "3 inputs, table has 2",
                "input 0 is (torch.float32, [], []), "
                "table has (torch.bfloat16, [16, 64], [64, 1])",
                "input 1 is (torch.bfloat16, [16, 64], [64, 1]), "
                "table has (torch.bfloat16, [64, 32], [1, 64])",
            ],
        ),
    ],
)  # fmt: skip
def test_differences_in_words(asked: str, held: str, texts: list[str]) -> None:
    """Every field that differs is named, with what was asked and what the table has."""
    assert list(only(asked, held)) == texts


def test_an_amd_table_may_serve_all_flags() -> None:
    """The arch without flags is no difference where the table serves all of them."""
    held = table(mm(8, 32, 64, device="gfx942"), serves_base_arch=True)
    (found,) = nearest(mm(16, 32, 64, device=AMD), [held])
    assert found.differences == ("M 16, table has 8",)
    (found,) = nearest(mm(16, 32, 64, device="gfx90a:xnack-"), [held])
    assert found.differences[0] == "other device: gfx90a:xnack-, table has gfx942"


def _answers(known: ParsedKey, asked: ParsedKey) -> bool:
    return known == asked or (replace(known, device=asked.device) == asked and known.device is None)


@settings(max_examples=400)
@given(parsed_products(), parsed_products(), st.data())
def test_keys_differ_in_words_where_they_differ(
    asked: ParsedKey, other: ParsedKey, data: st.DataObject
) -> None:
    """No difference is named exactly where the table's key would answer."""
    mixed = replace(
        other,
        **{
            name: getattr(asked, name)
            for name in data.draw(st.sets(st.sampled_from(["device", "scalars"])))
        },
    )
    for known in (other, mixed, replace(asked, device=other.device), asked):
        found = differences(asked, known)
        assert (not found) == _answers(known, asked)
        assert all(d.weight >= 0 and d.text.isprintable() for d in found)
        assert len({d.text for d in found}) == len(found)


# --- the nearest ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "nearer_first",
    [
        # sizes by their ratio
        (mm(16, 2624, 64), mm(16, 2560, 64), mm(16, 1024, 64), mm(32, 1024, 64)),
        (mm(17, 2688, 64), mm(32, 2688, 64), mm(256, 2688, 64)),
        # size, layout, dtype, op, device
        (
            mm(32, 2688, 64),
            key("mm", tensor(16, 64), tensor(64, 2688)),
            mm(16, 2688, 64, dtype="float16"),
            addmm(16, 2688, 64),
            mm(16, 2688, 64, device="NVIDIA B200"),
        ),
        # a much nearer size counts for as much
        (key("mm", tensor(16, 64), tensor(64, 2688)), mm(1, 32, 64)),
        # a layout that is only further apart is nearer than another layout
        (
            key("mm", tensor(16, 64), transposed(64, 2688)),
            key("mm", tensor(16, 64, stride=(128, 1)), transposed(64, 2688)),
            key("mm", transposed(16, 64), transposed(64, 2688)),
        ),
    ],
)
def test_order(nearer_first: Sequence[str]) -> None:
    """The nearest comes first, whatever order the tables hold them in."""
    asked = mm(16, 2688, 64)
    held = [k for k in nearer_first if k != asked]
    for order in (held, held[::-1]):
        found = nearest(asked, [table(*order)], limit=9)
        assert [n.key for n in found] == held
        found = nearest(asked, [table(k) for k in order], limit=9)
        assert [n.key for n in found] == held


def test_equal_distances_are_in_the_order_of_their_text() -> None:
    """Twice and half the size are as far; the texts decide."""
    held = [mm(16, 64, 128), mm(16, 64, 32), mm(32, 64, 64), mm(8, 64, 64)]
    found = nearest(mm(16, 64, 64), [table(*held)], limit=4)
    assert [n.key for n in found] == sorted(held)
    assert found[:2] == nearest(mm(16, 64, 64), [table(k) for k in held], limit=2)


@pytest.mark.parametrize("limit", [-1, 0, 1, 2, 3, 9])
def test_limit(limit: int) -> None:
    """No more than the limit, and no key twice that two tables have."""
    held = [mm(m, 64, 64) for m in (1, 2, 4, 8)]
    found = nearest(mm(3, 64, 64), [table(*held), table(*held[:2])], limit=limit)
    assert len(found) == min(max(limit, 0), 4)
    assert len({n.key for n in found}) == len(found)


def test_what_is_far_is_no_neighbour() -> None:
    """A key that has next to nothing in common is left out, and advice says that there is none."""
    asked = mm(16, 32, 64)
    bmm = key("bmm", tensor(32, 2048, 64, dtype="float16"), tensor(32, 64, 2048, dtype="float16"))
    assert nearest(asked, [table(bmm)]) == ()
    assert advice(asked, ()) == "collect and tune it: no table has a product like it"
    assert len(nearest(asked, [table(bmm, mm(16, 32, 64, device="NVIDIA B200"))])) == 1


def test_no_tables_no_keys_no_product() -> None:
    """Where there is nothing to compare, there are no neighbours."""
    assert nearest(mm(1, 2, 3), []) == ()
    assert nearest(mm(1, 2, 3), [table()]) == ()
    for asked in ("", "no key", "#", "\ud800", key("relu", SCALE), key("mm", SCALE, SCALE)):
        assert nearest(asked, [table(mm(1, 2, 3))]) == ()


def test_keys_that_are_of_no_product_are_left_out() -> None:
    """What does not parse, has # or odd numbers is skipped, never an error."""
    odd = [
        "anything [1, 2]+mm",
        "a key with # and 7 numbers 8",
        key("relu", SCALE),
        key("mm", SCALE, tensor(3)),
        key("mm", tensor(-1, 3), tensor(3, 4)),
        key("mm", tensor(10**25, 3), tensor(3, 4)),
        key("mm", replace(X, stride=(1,)), W),
    ]
    good = [mm(2**40, 32, 64), mm(2**63, 32, 64)]
    found = nearest(mm(2**50, 32, 64), [table(*odd, *good)], limit=99)
    assert [n.key for n in found] == good
    assert found[1].differences[0] == "M 1125899906842624, table has 9223372036854775808"


def _nearest_of_all(
    asked: ParsedKey, texts: Iterable[str], limit: int, *, serves: bool = False
) -> list[str]:
    """Return what comparing with every key finds."""

    def distance(text: str) -> tuple[float, str]:
        found = differences(asked, parse_key(text), serves_base_arch=serves)
        return sum(d.weight for d in found), text

    return [text for text in sorted(texts, key=distance) if distance(text)[0] <= FAR][:limit]


@settings(max_examples=60)
@given(
    st.lists(parsed_products(), min_size=1, max_size=40),
    parsed_products(),
    st.integers(1, 4),
    st.booleans(),
)
def test_the_same_as_comparing_with_every_key(
    held: list[ParsedKey], asked: ParsedKey, limit: int, serves: bool
) -> None:
    """The index finds what looking at all keys finds."""
    texts = sorted(set(map(str, held)))
    halves = [table(*texts[at::2], serves_base_arch=serves) for at in (0, 1)]
    found = nearest(str(asked), halves, limit=limit)
    assert [n.key for n in found] == _nearest_of_all(asked, texts, limit, serves=serves)


@pytest.mark.parametrize("op_name", ["mm", "addmm", "bmm", "baddbmm", "scaled_mm"])
@settings(max_examples=40)
@given(st.data())
def test_many_kinds_of_near_sizes(op_name: str, data: st.DataObject) -> None:
    """Keys of one op that share a cell but for their layouts, biases, scales or scalars."""
    products = parsed_products(
        op_names=[op_name],
        sizes=data.draw(st.sampled_from([(64, 66), (1, 64), (64,)])),
        dtypes=["bfloat16"],
        devices=[H200, "NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 5090"],
    )
    asked = data.draw(products)
    texts = {str(found) for found in data.draw(st.lists(products, min_size=20, max_size=40))}
    found = nearest(str(asked), [table(*texts)], limit=2)
    assert [n.key for n in found] == _nearest_of_all(asked, texts, 2)


def _bmm(m: int, first: tuple[int, ...], second: tuple[int, ...], device: str | None = H200) -> str:
    operands = tensor(4, m, 64, stride=first), tensor(4, 64, 32, stride=second)
    return key("bmm", *operands, device=device)


def _packed(m: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return (m * 64, 64, 1), (2048, 32, 1)


def _mm(m: int, first: tuple[int, ...], second: tuple[int, ...], device: str | None = H200) -> str:
    operands = tensor(m, 64, stride=first), tensor(64, 32, stride=second)
    return key("mm", *operands, device=device)


def _addmm(m: int, bias: tuple[int, ...], beta: int, device: str | None = H200) -> str:
    inputs = tensor(m, 32, stride=bias), tensor(m, 64), tensor(64, 32)
    return key("addmm", *inputs, scalars=(("alpha", "1"), ("beta", str(beta))), device=device)


@pytest.mark.parametrize(
    ("of_kind", "asked", "others"),
    [
        (_bmm, _packed, lambda m: ((m * 64 + 8, 64, 1), (2048, 32, 1))),
        (_bmm, _packed, lambda m: ((m * 64, 64, 1), (2064, 32, 1))),
        (_bmm, _packed, lambda m: ((m * 64, 1, m), (2048, 32, 1))),
        (_mm, lambda m: ((64, 1), (32, 1)), lambda m: ((72, 1), (32, 1))),
        (_mm, lambda m: ((64, 1), (32, 1)), lambda m: ((64, 1), (40, 1))),
        (_mm, lambda m: ((1, m), (1, 64)), lambda m: ((1, m + 8), (1, 64))),
        (_mm, lambda m: ((1, m), (1, 64)), lambda m: ((1, m), (1, 72))),
        (_mm, lambda m: ((72, 1), (32, 1)), lambda m: ((64, 1), (32, 1))),
        (_addmm, lambda m: ((0, 1), 1), lambda m: ((32, 1), 1)),
        (_addmm, lambda m: ((0, 1), 2), lambda m: ((0, 1), 3)),
    ],
)  # fmt: skip
def test_one_of_a_kind_among_many_others(
    of_kind: Callable[..., str],
    asked: Callable[[int], tuple[Any, ...]],
    others: Callable[[int], tuple[Any, ...]],
) -> None:
    """One key of the kind that is asked for is found among many of another and of near sizes."""
    wanted = of_kind(75, *asked(75))
    held = [of_kind(m, *others(m)) for m in range(66, 90) if m != 75]
    further = of_kind(48, *asked(48), None)
    (found,) = nearest(of_kind(64, *asked(64)), [table(*held, wanted, further)], limit=1)
    assert found.key == wanted


def test_many_keys_as_comparing_with_every_key() -> None:
    """The same with thousands of keys, so that most cells are left out."""
    chance = random.Random(5)
    texts: set[str] = set()
    while len(texts) < 3000:
        m, n, k = (2 ** chance.randrange(13) + chance.randrange(3) for _ in range(3))
        pad = chance.choice([0, 0, 0, 64])
        x, w = tensor(m, k, stride=(k + pad, 1)), chance.choice([tensor, transposed])(k, n)
        texts.add(chance.choice([key("mm", x, w), key("addmm", tensor(n), x, w)]))
    held = table(*texts)
    for asked in (mm(48, 2688, 999), key("mm", tensor(48, 64, stride=(200, 1)), tensor(64, 5000))):
        found = nearest(asked, [held], limit=5)
        assert [n.key for n in found] == _nearest_of_all(parse_key(asked), texts, 5)


# --- the index --------------------------------------------------------------------------


def test_a_table_is_read_once_and_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later calls read no key, and the index does not keep the table alive."""
    held = table(mm(8, 32, 64))
    first = nearest(mm(16, 32, 64), [held])
    monkeypatch.setattr(Table, "split_keys", lambda self: pytest.fail("read again"))
    assert nearest(mm(16, 32, 64), [held]) == first
    gone = weakref.ref(held)
    del held
    gc.collect()
    assert gone() is None


def test_a_sample_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more keys than are compared, a part is, and every neighbour says that."""
    held = table(*(mm(m, 32, 64) for m in range(1, 101)))
    monkeypatch.setitem(index_module._INDEXES, held, KeyIndex(held, most=30))
    found = nearest(mm(200, 32, 64), [held], limit=99)
    assert len(found) == 30
    note = "a sample: 30 of the table's 100 keys were compared"
    assert all(n.differences[-1] == note for n in found)
    assert KeyIndex(held).note is None


def test_a_damaged_table_is_compared_as_far_as_it_is_whole() -> None:
    """Damage is no error here; the look-up that meets it is what reports it."""
    data = bytearray(written(*(mm(m, 32, 64) for m in range(1, 101))))
    data[-1] ^= 1
    found = nearest(mm(200, 32, 64), [Table(bytes(data), "sample")], limit=99)
    assert 0 < len(found) < 100
    assert found[0].differences[-1].endswith("of the table's 100 keys were compared")


def test_big_numbers_and_small_ones_of_one_kind() -> None:
    """Numbers of 64 bits do not keep those of 32 bits from being found."""
    held = [mm(m, 32, 64) for m in (4, 2**31, 2**32 - 1, 2**32, 2**40)]
    found = nearest(mm(2**33, 32, 64), [table(*held)], limit=9)
    assert [parse_key(n.key).inputs[0].size[0] for n in found] == [
        2**32, 2**32 - 1, 2**31, 2**40, 4,
    ]  # fmt: skip


def test_a_device_with_a_number_in_its_name() -> None:
    """Devices whose names differ in a number that stands alone are told apart."""
    held = [mm(16, 32, 64, device=f"NVIDIA GeForce RTX {n}") for n in (4090, 5090)]
    found = nearest(mm(16, 32, 64, device="NVIDIA GeForce RTX 5090"), [table(*held)])
    assert [n.differences for n in found] == [
        (),
        ("other device: NVIDIA GeForce RTX 5090, table has NVIDIA GeForce RTX 4090",),
    ]
    assert len(key_index(table(*held)).groups) == 2


# --- advice -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "held", "text"),
    [
        (mm(16, 32, 64), None, "collect and tune it: no table has a product like it"),
        (
            mm(16, 32, 64),
            mm(8, 16, 64),
            "collect and tune it: the nearest differs in M and N",
        ),
        (
            mm(16, 32, 64),
            mm(8, 16, 128, dtype="float16"),
            "collect and tune it: the nearest differs in dtype, M, N and K",
        ),
        (
            mm(16, 32, 64),
            mm(16, 32, 64, dtype="float16"),
            "the table holds this product for float16: record it for bfloat16",
        ),
        (
            addmm(16, 32, 64),
            addmm(16, 32, 64, dtype="float16"),
            "the table holds this product for float16: record it for bfloat16",
        ),
        (
            key("addmm", tensor(16, 32, dtype="float32", stride=(0, 1)), X, W),
            addmm(16, 32, 64),
            "collect and tune it: the nearest differs in dtype",
        ),
        (
            mm(16, 32, 64),
            mm(16, 32, 64, device="NVIDIA B200"),
            "the table holds this product for NVIDIA B200: record it on NVIDIA H200",
        ),
        (
            addmm(16, 32, 64),
            mm(16, 32, 64),
            "the table holds this product as mm: record it as addmm",
        ),
        (
            key("mm", X, ROW),
            key("mm", X, COLUMN),
            "record this layout; or, if the weight is a parameter, keep it as nn.Linear does, "
            "[N, K], and multiply by its transpose, which the table has",
        ),
        (
            key("mm", X, COLUMN),
            key("mm", X, ROW),
            "record this layout; or, if the weight is a parameter, keep it as a contiguous "
            "[K, N], which the table has",
        ),
        (
            key("mm", X, ROW),
            key("mm", X, tensor(64, 32, stride=(1, 128))),
            "record this layout",
        ),
        (key("mm", transposed(16, 64), W), key("mm", X, W), "record this layout"),
        (key("mm", transposed(16, 64), ROW), key("mm", X, COLUMN), "record this layout"),
        (key("bmm", BATCH[0], transposed(4, 64, 32)), key("bmm", *BATCH), "record this layout"),
        (
            mm(20, 32, 64),
            mm(32, 32, 64),
            "record it for M 20; or fill M up to 32, which the table has, where the number of "
            "tokens is yours to choose",
        ),
        (mm(32, 32, 64), mm(20, 32, 64), "collect and tune it: the nearest differs in M"),
        (mm(2, 32, 64), mm(32, 32, 64), "collect and tune it: the nearest differs in M"),
        (
            mm(16, 2624, 64),
            mm(16, 2688, 64),
            "record it for N 2624; or pad N with zeros to 2688, which the table has, if the model "
            "is yours to change",
        ),
        (mm(16, 2688, 64), mm(16, 2624, 64), "collect and tune it: the nearest differs in N"),
        (mm(16, 32, 64), mm(16, 32, 128), "collect and tune it: the nearest differs in K"),
        (
            key("addmm", BIAS, X, W),
            key("addmm", BIAS, X, W, scalars=(("alpha", "1"), ("beta", "0"))),
            "collect and tune it: the nearest differs in scalars",
        ),
        (
            key("addmm", tensor(32), X, W),
            key("addmm", BIAS, X, W),
            "collect and tune it: the nearest differs in bias",
        ),
    ],
)
def test_advice(asked: str, held: str | None, text: str) -> None:
    """One line, and only what is sound."""
    found = nearest(asked, [] if held is None else [table(held)])
    assert advice(asked, found) == text


def test_advice_where_nothing_can_be_compared() -> None:
    """Texts that are no keys get a line too."""
    neighbour = Neighbour(key="no key", differences=())
    text = "tune it: it cannot be compared with what the tables have"
    assert advice(mm(1, 2, 3), [neighbour]) == text
    assert advice("no key", [Neighbour(key=mm(1, 2, 3), differences=())]) == text


@settings(max_examples=200)
@given(parsed_products(), parsed_products())
@example(parse_key(mm(16, 32, 64)), parse_key(mm(16, 32, 64)))
def test_advice_is_one_line(asked: ParsedKey, known: ParsedKey) -> None:
    """Whatever differs, the advice is one line that names something."""
    text = advice(str(asked), [Neighbour(key=str(known), differences=())])
    assert text.isprintable()
    assert 10 < len(text) < 300


# --- products ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (key("mm", X), "1 inputs"),
        (key("mm", X, W, W), "3 inputs"),
        (key("mm", SCALE, SCALE), "no two matrices"),
        (key("mm", tensor(4, 16, 64), W), "no two matrices"),
        (key("mm", tensor(-1, 64), W), "a size is negative"),
        (key("mm", replace(X, stride=(1,)), W), "not as many strides as sizes"),
        (key("addmm", X, W), "2 inputs"),
    ],
)
def test_no_product(text: str, problem: str) -> None:
    """A key that has no two matrices is refused, with what is wrong."""
    with pytest.raises(InvalidKeyError, match=problem):
        product_of(parse_key(text))


def test_every_op_names_its_inputs() -> None:
    """The operands are among the named inputs."""
    for op in OPS.values():
        assert 0 <= op.first < op.second < len(op.inputs)


def test_base_arch_is_what_the_samples_take_it_for() -> None:
    """The AMD names of these tests are the ones that the runtime knows."""
    assert base_arch(AMD) == "gfx942"
    assert base_arch(H200) is None
