"""The grammar of keys, and their exact compact form."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from inductor_tables.errors import InvalidKeyError
from inductor_tables.keys import (
    MAX_KEY_LENGTH,
    ParsedKey,
    TensorKey,
    join_key,
    other_spellings,
    parse_key,
    problem_of,
    split_key,
)

TESTS = Path(__file__).parent
RECORDED = sorted(
    {
        text.partition(" ")[2]
        for file in sorted(TESTS.glob("data/simulation/keys_*.json"))
        for case in json.loads(file.read_text()).values()
        for text in case["keys"]
    }
)
A = "(torch.bfloat16, [16, 4096], [4096, 1])"
B = "(torch.bfloat16, [4096, 64], [1, 4096])"

sizes = st.lists(st.integers(-1, 2**63), max_size=5).map(tuple)
tensors = st.builds(
    TensorKey,
    dtype=st.sampled_from(["bfloat16", "float32", "float8_e4m3fn", "float8_e4m3fnuz", "int8"]),
    size=sizes,
    stride=sizes,
)
devices = st.none() | st.sampled_from(
    [
        "NVIDIA H200",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "gfx90a:sramecc+:xnack-",
        "gfx942:sramecc+:xnack-",
        "gfx942:sramecc+:xnack+",
        "a+b",
        "Intel(R) Data Center GPU Max 1550",
    ]
)
scalar_values = (
    st.integers().map(str)
    | st.floats().map(repr)
    | st.booleans().map(str)
    | st.sampled_from(["1e+20", "-1e-05", "inf", "nan", "None", "torch.float32", ""])
)
parsed_keys = st.builds(
    ParsedKey,
    device=devices,
    inputs=st.lists(tensors, min_size=1, max_size=4).map(tuple),
    scalars=st.lists(
        st.tuples(st.sampled_from(["alpha", "beta", "use_fast_accum"]), scalar_values), max_size=3
    ).map(tuple),
    op_name=st.sampled_from(["mm", "addmm", "mm_plus_mm", "scaled_mm", "mm-ah", "_int_mm"]),
)


@given(parsed_keys)
@example(
    ParsedKey(
        device="gfx942:sramecc+:xnack+",
        inputs=(TensorKey(dtype="float32", size=(), stride=()),),
        scalars=(("alpha", "1e+20"), ("beta", "-1e-05")),
        op_name="addmm",
    )
)
def test_what_is_spelled_is_parsed_back(parsed: ParsedKey) -> None:
    """Parsing undoes spelling, whatever the device, the scalars and the number of inputs."""
    assert parse_key(str(parsed)) == parsed


@pytest.mark.parametrize("key", RECORDED)
def test_recorded_keys_parse(key: str) -> None:
    """Every key that the host made on a simulated H200 is spelled as it is parsed."""
    parsed = parse_key(key)
    assert str(parsed) == key
    assert parsed.device == "NVIDIA H200"


def test_there_are_recorded_keys() -> None:
    """The recordings hold enough keys, of more than one op."""
    assert len(RECORDED) > 20
    assert len({parse_key(key).op_name for key in RECORDED}) > 3


def test_parts_of_a_key() -> None:
    """An AMD device, floats with signs and dots, and one tensor come out as they are."""
    parsed = parse_key(
        "gfx942:sramecc+:xnack-+((torch.float16, [64], [1]),)+alpha=1e+20&beta=0.5+addmm"
    )
    assert parsed == ParsedKey(
        device="gfx942:sramecc+:xnack-",
        inputs=(TensorKey(dtype="float16", size=(64,), stride=(1,)),),
        scalars=(("alpha", "1e+20"), ("beta", "0.5")),
        op_name="addmm",
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "mm",
        "+mm",
        f"({A}, {B})",
        f"({A}, {B})+",
        f"({A}, {B})mm",
        f"({A}, {B})+mm ",
        f"({A}, {B})+mm\n",
        f"\n({A}, {B})+mm",
        f"({A}, {B})+m m",
        f"({A}, {B})+20",
        f"({A}, {B})+alpha=1e+20",
        f"({A}, {B})+alpha+mm",
        f"({A}, {B})+alpha=1&beta+mm",
        f"({A}, {B},)+mm",
        f"({A})+mm",
        f"({A},{B})+mm",
        f"({A}, {B}))+mm",
        f"+({A}, {B})+mm",
        f"NVIDIA\nH200+({A}, {B})+mm",
        f"NVIDIA\x1b[31m+({A}, {B})+mm",
        f"NVIDIA\u202eH200+({A}, {B})+mm",
        f"({A}, {B})+alpha=\x00+mm",
        "((torch.bfloat16, [016], [1]),)+mm",
        "((torch.bfloat16, [16,4], [1]),)+mm",
        "((torch.bfloat16, [16 ], [1]),)+mm",
        "((torch.bfloat16, [1, , 2], [1]),)+mm",
        "((torch.bfloat16, [--1], [1]),)+mm",
        "((torch.bfloat16, [-0], [1]),)+mm",
        "((torch.bfloat16, [١٦], [1]),)+mm",
        "((torch.bfloat16, [s0], [1]),)+mm",
        "((bfloat16, [16], [1]),)+mm",
        "()+mm",
        "(())+mm",
        f"{'x' * MAX_KEY_LENGTH}+({A}, {B})+mm",
        f"({A}, {B})+" + "m" * MAX_KEY_LENGTH,
    ],
)
def test_outside_the_grammar(text: str) -> None:
    """What the host would not write is refused, in one kind of error."""
    with pytest.raises(InvalidKeyError, match="not a lookup key"):
        parse_key(text)


@given(st.text(max_size=200) | st.text("()[]+=&,# torch.0123456789-am", max_size=200))
def test_any_text_is_parsed_exactly_or_refused(text: str) -> None:
    """A text either comes back as it was or is no key; nothing else is raised."""
    try:
        parsed = parse_key(text)
    except InvalidKeyError:
        return
    assert str(parsed) == text


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "part",
    ["a+", "+", "(", A, f"({A}, ", f"({A},)+", f"({A},)+a=", "a=1&", "+a=1+", "[1, ", "- "],
)
def test_long_texts_are_refused_in_time(part: str) -> None:
    """No text of a key's length keeps the grammar busy (quadratic is fine, worse is not)."""
    text = (f"({A}, {B})+a=" + part * MAX_KEY_LENGTH)[: MAX_KEY_LENGTH - 1] + "\n"
    for candidate in (text, (part * MAX_KEY_LENGTH)[: MAX_KEY_LENGTH - 1] + "!"):
        with pytest.raises(InvalidKeyError, match="not a lookup key"):
            parse_key(candidate)


numbered = st.lists(
    st.integers(0, 2**70).map(str)
    | st.sampled_from([*" ,.+-:#[]x=0", "00", "1e5", "\uff10", "\u00b2"])
).map("".join)


@given(st.text() | numbered | parsed_keys.map(str))
@example("0")
@example("")
@example("18446744073709551615")
@example("18446744073709551616")
@example("9999999999999999999")
@example("10000000000000000000")
@example("1 01 1.5 .5 1e5 x1 1x -1 +1 1-1 1+1 1:1")
@example("\ud800 5")
def test_join_undoes_split(text: str) -> None:
    """Every text without '#' comes back as it was, and its numbers fit 64 bits."""
    parts = split_key(text)
    if parts is None:
        assert "#" in text
        return
    skeleton, numbers = parts
    assert "#" not in text
    assert join_key(skeleton, numbers) == text
    assert skeleton.count("#") == len(numbers)
    assert all(0 <= number < 2**64 for number in numbers)


@given(st.lists(parsed_keys | st.text() | numbered, min_size=2, max_size=2))
def test_two_keys_never_split_alike(pair: list[ParsedKey | str]) -> None:
    """A skeleton with its numbers is one key's alone."""
    one, other = map(str, pair)
    if one != other and split_key(one) is not None:
        assert split_key(one) != split_key(other)


def test_shapes_share_a_skeleton() -> None:
    """Two shapes of one op differ in their numbers alone."""
    one, other = split_key(f"({A}, {B})+mm"), split_key(f"({B}, {A})+mm")
    assert one is not None and other is not None
    assert one[0] == other[0]
    assert one[1] == [16, 4096, 4096, 1, 4096, 64, 1, 4096]


@pytest.mark.parametrize(("skeleton", "numbers"), [("#", []), ("", [1]), ("# #", [1, 2, 3])])
def test_join_needs_as_many_numbers_as_places(skeleton: str, numbers: list[int]) -> None:
    """A wrong count is an error, not a shorter key."""
    with pytest.raises(ValueError, match=r"\d places for \d numbers"):
        join_key(skeleton, numbers)


def addmm(bias: str, scalars: str = "alpha=1&beta=1") -> str:
    """Return an addmm key with a bias."""
    return (
        f"NVIDIA H200+((torch.bfloat16, {bias}), (torch.bfloat16, [8, 32], [32, 1]), "
        f"(torch.bfloat16, [32, 64], [1, 32]))+{scalars}+addmm"
    )


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        (addmm("[64], [1]"), addmm("[8, 64], [0, 1]")),
        (addmm("[64], [2]"), addmm("[8, 64], [0, 2]")),
        (addmm("[1], [1]"), addmm("[8, 64], [0, 0]")),
        (addmm("[8, 64], [0, 1]"), addmm("[8, 64], [0, 1]")),
        (addmm("[8, 64], [64, 1]"), addmm("[8, 64], [64, 1]")),
        (addmm("[64], [1]", "alpha=2"), addmm("[8, 64], [0, 1]", "alpha=2")),
        (f"({A}, {B})+mm", f"({A}, {B})+mm"),
        (f"({A}, {B})+addmm", f"({A}, {B})+addmm"),
        (f"((torch.bfloat16, [64], [1]), {A}, {B})+baddbmm",) * 2,
    ],
)
def test_the_two_keys_of_an_addmm_are_one_problem(key: str, problem: str) -> None:
    """The bias as given and the expanded one stand for one op; no other key changes."""
    assert str(problem_of(parse_key(key))) == problem


@given(parsed_keys)
def test_a_problem_is_its_own_problem(parsed: ParsedKey) -> None:
    """Asking twice changes nothing."""
    once = problem_of(parsed)
    assert problem_of(once) == once


@given(st.floats())
def test_floats_keep_their_text(value: float) -> None:
    """A scalar is held as text: no float is read and written again."""
    key = f"({A}, {B})+alpha={value!r}+mm"
    parsed = parse_key(key)
    assert parsed.scalars == (("alpha", repr(value)),)
    assert math.isnan(value) or float(parsed.scalars[0][1]) == value


def test_the_problem_of_a_bias_without_a_stride_is_the_key_itself() -> None:
    """The grammar allows it; no host makes it."""
    key = (
        "((torch.bfloat16, [8], []), (torch.bfloat16, [4, 2], [2, 1]), "
        "(torch.bfloat16, [2, 8], [8, 1]))+addmm"
    )
    assert str(problem_of(parse_key(key))) == key


@pytest.mark.parametrize(
    ("key", "others"),
    [
        (f"({A}, {B})+mm", []),
        (
            f"NVIDIA H200+((torch.bfloat16, [1, 4096], [0, 1]), {B})+mm",
            [f"NVIDIA H200+((torch.bfloat16, [1, 4096], [4096, 1]), {B})+mm"],
        ),
        (
            f"((torch.bfloat16, [1, 4096], [81920, 1]), {B})+mm",
            [
                f"((torch.bfloat16, [1, 4096], [4096, 1]), {B})+mm",
                f"((torch.bfloat16, [1, 4096], [0, 1]), {B})+mm",
            ],
        ),
        (
            f"({A}, (torch.bfloat16, [4096, 1], [1, 4096]))+mm",
            [
                f"({A}, (torch.bfloat16, [4096, 1], [1, 1]))+mm",
                f"({A}, (torch.bfloat16, [4096, 1], [1, 0]))+mm",
            ],
        ),
        ("((torch.bfloat16, [1, 8], [8]),)+odd", []),
        ("my own key (torch.bfloat16, [1, 8], [8, 1])", []),
    ],
)
def test_other_spellings_of_one_memory(key: str, others: list[str]) -> None:
    """Strides of dimensions of size 1, and nothing else, are spelled otherwise."""
    assert list(other_spellings(key)) == others


single = st.lists(
    st.tuples(st.sampled_from([1, 1, 2, 64]), st.integers(0, 5000)), min_size=1, max_size=3
).map(
    lambda dims: TensorKey(
        dtype="bfloat16", size=tuple(n for n, _ in dims), stride=tuple(s for _, s in dims)
    )
)


@given(st.lists(single, min_size=1, max_size=4).map(tuple))
def test_spellings_are_few_and_keep_what_lies_in_memory(inputs: tuple[TensorKey, ...]) -> None:
    """Sizes and the strides of all larger dimensions stay; no key comes twice, nor itself."""
    parsed = ParsedKey(device=None, inputs=inputs, scalars=(), op_name="mm")
    others = list(other_spellings(str(parsed)))
    assert len(set(others)) == len(others) < 32 and str(parsed) not in others
    for found in map(parse_key, others):
        for one, other in zip(inputs, found.inputs, strict=True):
            assert one.size == other.size
            pairs = zip(one.size, one.stride, other.stride, strict=True)
            assert all(a == b for n, a, b in pairs if n != 1)
