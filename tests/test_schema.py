"""What may be in a table: the whitelist of names and values, and the frozen records."""

from __future__ import annotations

import ast
import json
import keyword
import pickle
import re
from collections import OrderedDict
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from table_samples import (
    CARRIED,
    EVIL_NAMES,
    EVIL_TEXTS,
    EVIL_VALUES,
    HASH,
    PROOF,
    RECORDED,
    UNKNOWN,
    config,
    entry,
    refuse,
)

from inductor_tables.schema import (
    MAX_PARAMS,
    Config,
    Entry,
    Header,
    Proof,
    check_count,
    check_hash,
    check_list,
    check_param,
    check_params,
    check_proof,
    check_template_id,
    check_text,
    plain_config,
    proof_order,
)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        False,
        0,
        1,
        -1,
        2**31 - 1,
        -(2**31) + 1,
        "tl.float32",
        "tl.bfloat16",
        "tl.float8e4nv",
        "tl.float8e4b8",
        "tl.int1",
        "tl.uint8",
        "torch.bool",
        "torch.float8_e4m3fn",
        "torch.float4_e2m1fn_x2",
        "torch.complex64",
    ],
)
def test_values_that_pass(value: Any) -> None:
    """None, bools, ints of 31 bits and names of dtypes are what templates take."""
    check_param("ACC_TYPE", value, "entries[0]", refuse)


@pytest.mark.parametrize("value", EVIL_TEXTS)
def test_evil_texts_are_refused(value: str) -> None:
    """No text but a dtype's name gets near generated source."""
    with pytest.raises(ValueError, match=r"^entries\[0\]\.num_warps: .* is not allowed; expected"):
        check_param("num_warps", value, "entries[0]", refuse)


@pytest.mark.parametrize("value", EVIL_VALUES, ids=lambda value: type(value).__name__)
def test_values_that_are_refused(value: Any) -> None:
    """Other types, and numbers that no kernel parameter has, are refused."""
    with pytest.raises(ValueError, match=r"^entries\[0\]\.num_warps: .*(not allowed|out of range)"):
        check_param("num_warps", value, "entries[0]", refuse)


@pytest.mark.parametrize("name", EVIL_NAMES, ids=lambda name: repr(name)[:20])
def test_names_that_are_refused(name: Any) -> None:
    """A name becomes a keyword argument and a constant of a kernel: an identifier or nothing."""
    with pytest.raises(ValueError, match=r"^entries\[0\]: .*(not a plain ASCII|cannot be a param)"):
        check_param(name, 4, "entries[0]", refuse)


@given(st.text(max_size=80) | st.from_regex(r"(tl|torch)\..{0,40}", fullmatch=True))
def test_a_text_that_passes_is_an_attribute_and_no_more(text: str) -> None:
    """Whatever text the whitelist lets through is one dotted name as Python source."""
    try:
        check_param("ACC_TYPE", text, "entries[0]", refuse)
    except ValueError:
        return
    tree = ast.parse(text, mode="eval").body
    assert isinstance(tree, ast.Attribute) and isinstance(tree.value, ast.Name)
    assert tree.value.id in ("tl", "torch")
    assert re.fullmatch("[a-z0-9_]+", tree.attr)


@given(st.text(max_size=80))
def test_a_name_that_passes_is_an_identifier(name: str) -> None:
    """Whatever name the whitelist lets through is an ASCII identifier."""
    try:
        check_param(name, 4, "entries[0]", refuse)
    except ValueError:
        return
    assert name.isidentifier() and name.isascii() and not keyword.iskeyword(name)


def test_messages_stay_short() -> None:
    """A huge value is not quoted in full."""
    nested: Any = []
    for _ in range(10_000):
        nested = [nested]
    for value in ("x" * 10**6, 10**6000, ["x"] * 10**5, [10**6000], nested):
        with pytest.raises(ValueError, match="entries") as caught:
            check_param("a", value, "entries[0]", refuse)
        assert len(str(caught.value)) < 400


def test_params_come_out_sorted_and_few() -> None:
    """Parameters are sorted by name; more than 64 are refused."""
    assert check_params({"b": 1, "a": None}, "e", refuse) == (("a", None), ("b", 1))
    many = {f"p{number}": number for number in range(MAX_PARAMS)}
    assert len(check_params(many, "e", refuse)) == MAX_PARAMS
    with pytest.raises(ValueError, match=r"^e: 65 parameters; at most 64 are allowed"):
        check_params({**many, "one_more": 1}, "e", refuse)


TEMPLATE_HASHES = Path(__file__).parents[1] / "build_tools" / "data" / "template_hashes.json"
KNOWN_IDS = sorted(
    {
        template_id
        for series in json.loads(TEMPLATE_HASHES.read_text()).values()
        for template_id in series["templates"]
    }
)


@pytest.mark.parametrize("value", KNOWN_IDS)
def test_template_ids(value: str) -> None:
    """Every template of torch 2.10 to 2.15 has an id that passes."""
    assert check_template_id(value, "e", refuse) == value


@pytest.mark.parametrize(
    "value",
    ["", "triton:mm", "triton::", "::mm", "Triton::mm", "triton::mm\n", "triton::m m", "_mm",
     "triton::../x", "../x", "triton::mm::mm", "triton::" + "m" * 97, "trit\u043en::mm",
     "aten::__class__", "m m", None, 4, b"a::b"],
)  # fmt: skip
def test_template_ids_that_are_refused(value: Any) -> None:
    """Anything else is no template id."""
    with pytest.raises(ValueError, match=r"^e: .* is not a template id such as 'triton::mm'"):
        check_template_id(value, "e", refuse)


@pytest.mark.parametrize("value", [None, HASH, "0" * 64])
def test_hashes(value: str | None) -> None:
    """64 hex digits, or none at all."""
    assert check_hash(value, "e", refuse) == value


@pytest.mark.parametrize(
    "value", ["", HASH[1:], HASH + "0", HASH.upper(), HASH[1:] + "\n", "٣" * 64, 0, b"ab" * 32, []]
)
def test_hashes_that_are_refused(value: Any) -> None:
    """Anything else is no hash."""
    with pytest.raises(ValueError, match=r"^e: .* is not a template hash of 64 hex digits"):
        check_hash(value, "e", refuse)


@pytest.mark.parametrize("value", [None, "", "NVIDIA H200", "Müller", "x" * 256])
def test_texts(value: str | None) -> None:
    """Printable signs of any script."""
    assert check_text(value, "e", refuse) == value


@pytest.mark.parametrize(
    "value",
    ["\n", "a\x00", "\x1b[31m", "\x7f", "\x85", "\u202e", "\u2028", "\ud800", "x" * 257, 1, b"x"],
)
def test_texts_that_are_refused(value: Any) -> None:
    """Control characters, direction overrides, surrogates and other types are refused."""
    with pytest.raises(ValueError, match=r"^e: .* is not a text of at most 256 printable signs"):
        check_text(value, "e", refuse)


@pytest.mark.parametrize("value", [0, 1, 2**53])
def test_counts(value: int) -> None:
    """Whole numbers that a double holds exactly."""
    assert check_count(value, "e", refuse) == value
    assert check_count(None, "e", refuse, optional=True) is None


@pytest.mark.parametrize("value", [-1, 2**53 + 1, 1.0, True, False, "1", None, float("nan"), [1]])
def test_counts_that_are_refused(value: Any) -> None:
    """Negative, too large, or no int."""
    with pytest.raises(ValueError, match=r"^e: .* is not a whole number from 0 to 2\*\*53"):
        check_count(value, "e", refuse)


def test_lists() -> None:
    """A list within its limit; tuples and maps are none."""
    assert check_list([1, 2], "e", refuse, 2) == [1, 2]
    with pytest.raises(ValueError, match=r"^e: 3 items; at most 2 are allowed"):
        check_list([1, 2, 3], "e", refuse, 2)
    for value in [(1,), dict[str, int](), "ab", None]:
        with pytest.raises(ValueError, match=r"^e: expected a list, found "):
            check_list(value, "e", refuse)


@pytest.mark.parametrize("kind", [dict, OrderedDict])
def test_the_hosts_plain_form(kind: type[dict[str, Any]]) -> None:
    """An entry of the host's lookup table becomes a configuration and comes back as it was."""
    plain = {"template_id": "triton::mm", "BLOCK_M": 64, "EVEN_K": True, "template_hash": HASH}
    made = plain_config(kind(plain), "e", refuse)
    assert made == config(BLOCK_M=64, EVEN_K=True)
    assert dict(made.plain) == plain
    assert dict(plain_config({"template_id": "aten::mm"}, "e", refuse).plain) == {
        "template_id": "aten::mm"
    }


@pytest.mark.parametrize(
    ("plain", "problem"),
    [
        (None, "e: expected an entry as a map, found NoneType"),
        ([], "e: expected an entry as a map, found list"),
        ("triton::mm", "e: expected an entry as a map, found str"),
        ({}, "e: the entry has no template_id"),
        ({"template_id": None}, r"e\.template_id: None is not a template id"),
        (
            {"template_id": "a::b", "template_hash": 4},
            r"e\.template_hash: 4 is not a template hash",
        ),
        ({"template_id": "a::b", "x": 0.5}, r"e\.x: 0\.5 is not allowed"),
        ({"template_id": "a::b", 4: 4}, "e: parameter name 4 is not a plain ASCII identifier"),
    ],
)
def test_plain_entries_that_are_refused(plain: Any, problem: str) -> None:
    """The error names the place in the entry."""
    with pytest.raises(ValueError, match=f"^{problem}"):
        plain_config(plain, "e", refuse)


def test_configurations_are_equal_by_content_and_type() -> None:
    """True and 1 are two values: one may not come back as the other."""
    assert config(BLOCK_M=64) == config(BLOCK_M=64)
    assert hash(config(BLOCK_M=64)) == hash(config(BLOCK_M=64))
    assert config(x=True) != config(x=1)
    assert config(x=False) != config(x=0)
    assert config(x=None) != config(x=False)
    assert config() != config(template_hash=None)
    assert config() != config("triton::bmm")
    assert config() != "triton::mm"
    assert len({config(x=True), config(x=1), config(x=1)}) == 2


def test_a_used_configuration_can_be_pickled() -> None:
    """Nothing cached on a configuration ties it to its process."""
    made = config(BLOCK_M=64)
    hash(made)
    assert pickle.loads(pickle.dumps(made)) == made


def test_records_are_frozen() -> None:
    """What many keys share cannot be changed under them."""
    with pytest.raises(FrozenInstanceError, match="template_id"):
        config().template_id = "x"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError, match="time_ns"):
        entry(config()).time_ns = 1  # type: ignore[misc]
    with pytest.raises(TypeError, match="does not support item assignment"):
        config().plain["x"] = 1  # type: ignore[index]


def test_times_and_origin_of_an_entry() -> None:
    """Times are in µs for people, and an entry knows whether this torch measured it."""
    assert entry(config(), 1500).time_us == 1.5
    assert entry(config(), None).time_us is None
    assert entry(config()).measured
    assert not entry(config(), source=CARRIED).measured


@pytest.mark.parametrize(
    ("time_ns", "incumbents", "margin"),
    [
        (750, {"aten_ns": 1200, "host_ns": 1000, "previous_ns": 2000}, 0.25),
        (750, {"host_ns": 1500}, 0.5),
        (750, {"previous_ns": 1000}, 0.25),
        (1000, {"aten_ns": 1000, "host_ns": 1001}, 0.0),  # the entry is the incumbent
        (1500, {"aten_ns": 1000}, -0.5),
        (0, {"aten_ns": 1000}, 1.0),
        (750, {}, None),
        (750, {"aten_ns": 0}, None),
        (None, {"aten_ns": 1000}, None),
    ],
)
def test_the_margin_of_an_entry(
    time_ns: int | None, incumbents: dict[str, int], margin: float | None
) -> None:
    """The share of its time by which it beats the fastest incumbent, where there is one."""
    proof = Proof(spread_ns=5, rounds=12, **incumbents)
    assert entry(config(), time_ns, proof=proof).margin == margin
    assert proof.incumbents_ns == {name.removesuffix("_ns"): t for name, t in incumbents.items()}
    assert entry(config(), time_ns).margin is None


def test_a_proof_passes_its_check() -> None:
    """Its values come back as a proof, from a list too."""
    assert check_proof(list(PROOF), "proof", refuse) == PROOF
    with pytest.raises(ValueError, match=r"^here: expected spread_ns, rounds, .* found"):
        check_proof(PROOF[:4], "here", refuse)


@pytest.mark.parametrize("name", Proof._fields)
@pytest.mark.parametrize("bad", [-1, 2**53 + 1, 1.0, True, "1", [], None])
def test_a_proof_is_checked_field_by_field(name: str, bad: Any) -> None:
    """Each is a whole number; only an incumbent may be missing."""
    values = [bad if field == name else 7 for field in Proof._fields]
    if bad is None and name in ("aten_ns", "host_ns", "previous_ns"):
        assert getattr(check_proof(values, "here", refuse), name) is None
        return
    with pytest.raises(ValueError, match=rf"^here\.{name}: .* is not a whole number"):
        check_proof(values, "here", refuse)


def test_the_order_of_proofs() -> None:
    """None first, then by content; an incumbent that was not timed comes before one that was."""
    listed = [None, Proof(spread_ns=0, rounds=9), Proof(spread_ns=0, rounds=9, aten_ns=0), PROOF]
    assert sorted([PROOF, *listed[:3]], key=proof_order) == listed


def test_the_order_of_entries() -> None:
    """Fastest first, unknown times last, ties by content."""
    fast, slow, unknown = (entry(config(), time) for time in (1, 2, None))
    small, large = entry(config(BLOCK_M=16), 2), entry(config(BLOCK_M=32), 2)
    listed: list[Entry] = [unknown, slow, fast]
    assert sorted(listed, key=lambda e: e.order) == [fast, slow, unknown]
    assert sorted([large, small], key=lambda e: e.order) == [small, large]


def test_what_a_header_sums_up() -> None:
    """Versions and SM counts of all sources, each once, without the unknown ones."""
    header = Header(
        table_version="1",
        torch_series="2.13",
        arch=None,
        serves_base_arch=False,
        key_count=0,
        entry_count=0,
        templates=(),
        sources=(CARRIED, RECORDED, UNKNOWN),
    )
    assert header.recorded_with == {
        "torch": ("2.12.1", "2.13.0+cu130"),
        "triton": ("3.7.1",),
        "cuda": ("13.0",),
        "hip": (),
        "device": ("NVIDIA H200",),
        "date": ("2026-05-04T03:02:01Z",),
    }
    assert header.sm_counts == (132,)


def test_a_config_takes_keywords_only() -> None:
    """Fields cannot be mixed up by position."""
    with pytest.raises(TypeError, match="positional"):
        Config("triton::mm", None, ())  # type: ignore[call-arg, misc]
