"""Files of problems: what is written is read, whatever the order; what is hostile is refused."""

from __future__ import annotations

import copy
import itertools
import json
import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import inductor_tables
from inductor_tables import problems
from inductor_tables.errors import InvalidKeyError, InvalidProblemsError
from inductor_tables.keys import TensorKey
from inductor_tables.problems import Problem, merge, problem_from_key

H200 = "NVIDIA H200"
X = "(torch.bfloat16, [16, 64], [64, 1])"
W = "(torch.bfloat16, [64, 32], [1, 64])"
MM = f"{H200}+({X}, {W})+mm"
GIVEN = f"{H200}+((torch.bfloat16, [32], [1]), {X}, {W})+alpha=1&beta=1+addmm"
EXPANDED = GIVEN.replace("[32], [1]", "[16, 32], [0, 1]")


def mm(m: int, *, count: int = 1, origins: tuple[str, ...] = ()) -> Problem:
    """Return the problem of a product with M rows."""
    key = MM.replace("[16, 64]", f"[{m}, 64]")
    return problem_from_key(key, count=count, origins=origins)


# --- from keys and back -----------------------------------------------------------------


def test_from_a_key_and_back() -> None:
    """The device is left out and put in again, whichever it is."""
    found = problem_from_key(MM, count=3, origins=["b:x", "a", "b:x"])
    assert found == Problem(
        op_name="mm",
        inputs=(
            TensorKey(dtype="bfloat16", size=(16, 64), stride=(64, 1)),
            TensorKey(dtype="bfloat16", size=(64, 32), stride=(1, 64)),
        ),
        scalars=(),
        count=3,
        origins=("a", "b:x"),
    )
    assert found.key(H200) == MM
    assert found.key("gfx942:sramecc+:xnack-") == MM.replace(H200, "gfx942:sramecc+:xnack-")
    assert found.key(None) == MM.partition("+")[2]
    assert found.models == {"a", "b"}


@pytest.mark.parametrize("key", [GIVEN, EXPANDED, GIVEN.partition("+")[2]])
def test_both_keys_of_an_addmm_are_one_problem(key: str) -> None:
    """The bias as given and expanded: the expanded one stands for both."""
    found = problem_from_key(key)
    assert found.key(H200) == EXPANDED
    assert found.scalars == (("alpha", "1"), ("beta", "1"))


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("", "not a lookup key"),
        ("no key", "not a lookup key"),
        (
            MM.replace("[16,", "[-16,"),
            r"problem\.inputs\[0\]\.size\[0\]: -16 is not a whole number",
        ),
        (MM.replace("16, 64", "16, 10000000000000000"), r"size\[1\]: 1\d* is not a whole number"),
        (GIVEN.replace("[32], [1]", "[32], []"), r"inputs\[0\]\.stride: 0 strides for 1 sizes"),
        (f"{H200}+({', '.join([X] * 17)})+mm", "17 items; at most 16 are allowed"),
    ],
)
def test_no_problem(key: str, problem: str) -> None:
    """What is no key, or of no tensor, is refused with its place."""
    with pytest.raises(InvalidKeyError, match=problem):
        problem_from_key(key)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"count": -1}, r"problem\.count: -1 is not a whole number"),
        ({"count": True}, r"problem\.count: True is not a whole number"),
        ({"origins": ["a\n"]}, r"problem\.origins\[0\]: 'a\\n' is not a text"),
        ({"origins": ["a" * 257]}, r"problem\.origins\[0\]: 'aaa"),
    ],
)
def test_no_count_and_no_origins(fields: dict[str, Any], problem: str) -> None:
    """A count or an origin that no file may hold is refused before it gets there."""
    with pytest.raises(InvalidKeyError, match=problem):
        problem_from_key(MM, **fields)


# --- merging ----------------------------------------------------------------------------


def test_merging_adds_counts_and_unites_origins() -> None:
    """One problem each, also where the keys differ in the form of the bias."""
    found = merge(
        [
            problem_from_key(GIVEN, count=2, origins=["a:1"]),
            problem_from_key(EXPANDED, count=3, origins=["b", "a:1"]),
            mm(16, count=5),
        ]
    )
    assert [(p.op_name, p.count, p.origins) for p in found] == [
        ("addmm", 5, ("a:1", "b")),
        ("mm", 5, ()),
    ]


def test_merging_expands_a_bias_that_was_made_by_hand() -> None:
    """Problems that did not come from ``problem_from_key`` are the same problem too."""
    expanded = problem_from_key(GIVEN)
    bias = TensorKey(dtype="bfloat16", size=(32,), stride=(1,))
    by_hand = Problem(
        op_name="addmm",
        inputs=(bias, *expanded.inputs[1:]),
        scalars=expanded.scalars,
        count=1,
        origins=("z", "a", "z"),
    )
    (found,) = merge([by_hand, expanded])
    assert (found.key(H200), found.count, found.origins) == (EXPANDED, 2, ("a", "z"))


def test_order() -> None:
    """First what most models share, then what occurs most often, then by content."""
    expected = [
        mm(9, count=1, origins=("a:x", "b:x", "c:x")),
        mm(8, count=5, origins=("a:x", "a:y", "a:z", "b:x")),
        mm(7, count=2, origins=("a:x", "b:x")),
        mm(6, count=9, origins=("a:x",)),
        mm(2, count=9),
        mm(10, count=9),
        mm(11, count=1),
    ]
    for order in itertools.islice(itertools.permutations(expected), 0, None, 61):
        assert list(merge(order)) == expected


def test_counts_do_not_grow_past_what_a_file_may_hold(tmp_path: Path) -> None:
    """The sum of counts stops at 2**53."""
    (found,) = merge([mm(1, count=2**53), mm(1, count=7)])
    assert found.count == problems.MAX_COUNT
    problems.write(tmp_path / "p.json", [found, found])
    assert problems.read(tmp_path / "p.json") == (found,)


_counts = st.integers(0, 2**53)
_origins = st.lists(
    st.text(st.characters(codec="utf-8"), max_size=12).filter(str.isprintable), max_size=4
)
_tensors = st.builds(
    lambda dtype, pairs: TensorKey(
        dtype=dtype, size=tuple(size for size, _ in pairs), stride=tuple(step for _, step in pairs)
    ),
    st.sampled_from(["bfloat16", "float32"]),
    st.lists(st.tuples(st.sampled_from([1, 16, 2**53]), st.sampled_from([0, 1, 16])), max_size=3),
)
_problems = st.builds(
    Problem,
    op_name=st.sampled_from(["mm", "addmm", "some-op"]),
    inputs=st.lists(_tensors, min_size=1, max_size=3).map(tuple),
    scalars=st.lists(
        st.tuples(st.sampled_from(["alpha", "beta"]), st.sampled_from(["1", "1e-05", "", "a+b"])),
        max_size=2,
    ).map(tuple),
    count=_counts,
    origins=_origins.map(tuple),
)


@given(st.lists(_problems, max_size=12), st.randoms(use_true_random=False), st.integers(0, 12))
def test_the_same_bytes_whatever_the_order(
    given_problems: list[Problem], chance: random.Random, at: int
) -> None:
    """Shuffled, merged in two parts, or read and written again: nothing changes."""
    data = problems.render(given_problems, "p.json")
    shuffled = list(given_problems)
    chance.shuffle(shuffled)
    assert problems.render(shuffled, "p.json") == data
    parts = [*merge(shuffled[at:]), *merge(shuffled[:at])]
    assert problems.render(parts, "p.json") == data
    found = problems.parse(data, "p.json")
    assert found == merge(given_problems)
    assert problems.render(found, "p.json") == data
    assert merge(found) == found


# --- files ------------------------------------------------------------------------------


def test_the_form_of_a_file(tmp_path: Path) -> None:
    """One problem a line, ASCII, fields in order of their names."""
    path = tmp_path / "problems.json"
    problems.write(path, [mm(16, count=2, origins=("modèle:x",)), problem_from_key(GIVEN)])
    assert path.read_text() == (
        '{"format": "inductor-tables problems", "version": 1, "problems": [\n'
        '{"count": 2, "inputs": ['
        '{"dtype": "bfloat16", "size": [16, 64], "stride": [64, 1]}, '
        '{"dtype": "bfloat16", "size": [64, 32], "stride": [1, 64]}], '
        '"op_name": "mm", "origins": ["mod\\u00e8le:x"], "scalars": []},\n'
        '{"count": 1, "inputs": ['
        '{"dtype": "bfloat16", "size": [16, 32], "stride": [0, 1]}, '
        '{"dtype": "bfloat16", "size": [16, 64], "stride": [64, 1]}, '
        '{"dtype": "bfloat16", "size": [64, 32], "stride": [1, 64]}], '
        '"op_name": "addmm", "origins": [], "scalars": [["alpha", "1"], ["beta", "1"]]}\n'
        "]}\n"
    )
    assert os.listdir(tmp_path) == ["problems.json"]


def test_no_problems(tmp_path: Path) -> None:
    """An empty file is one too."""
    problems.write(tmp_path / "p.json", [])
    assert problems.read(str(tmp_path / "p.json")) == ()


def test_a_file_made_by_hand_is_put_in_order() -> None:
    """Reading merges what stands twice, and sorts."""
    one = json.loads(problems.render([mm(1, count=1), mm(2, count=5)], "p"))
    one["problems"] = [*one["problems"][::-1], *one["problems"]]
    assert [p.count for p in problems.parse(json.dumps(one).encode(), "p")] == [10, 2]


def test_nothing_is_written_that_cannot_be_read(tmp_path: Path) -> None:
    """A problem that may not be in a file leaves the file as it was."""
    path = tmp_path / "p.json"
    problems.write(path, [mm(1)])
    before = path.read_bytes()
    bad = Problem(op_name="mm", inputs=(), scalars=(), count=1, origins=())
    with pytest.raises(InvalidProblemsError, match="makes no lookup key") as caught:
        problems.write(path, [mm(1), bad])
    assert caught.value.resource == str(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["p.json"]


def test_a_failed_write_leaves_the_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is replaced whole or not at all."""
    path = tmp_path / "p.json"
    problems.write(path, [mm(1)])

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        problems.write(path, [mm(2)])
    monkeypatch.undo()
    assert problems.read(path) == (mm(1),)
    assert os.listdir(tmp_path) == ["p.json"]


def test_no_file(tmp_path: Path) -> None:
    """A file that is not there is an OSError."""
    with pytest.raises(FileNotFoundError, match=r"p\.json"):
        problems.read(tmp_path / "p.json")


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    """A huge file is refused before it is read."""
    path = tmp_path / "p.json"
    with path.open("wb") as file:
        file.truncate(problems.MAX_FILE_BYTES + 1)
    with pytest.raises(InvalidProblemsError, match=r"p\.json: file: \d+ bytes; at most"):
        problems.read(path)


# --- what is refused --------------------------------------------------------------------

GOOD: dict[str, Any] = json.loads(
    problems.render([mm(16, count=2, origins=("llama:up",)), problem_from_key(GIVEN)], "good")
)


def changed(change: Callable[[Any], object]) -> bytes:
    """Return the good file with a change."""
    content = copy.deepcopy(GOOD)
    change(content)
    return json.dumps(content).encode()


def field(*path: Any, value: Any) -> bytes:
    """Return the good file with another value at a place."""

    def change(content: Any) -> None:
        *holders, name = path
        for holder in holders:
            content = content[holder]
        content[name] = value

    return changed(change)


@pytest.mark.parametrize(
    ("data", "where", "problem"),
    [
        (b"", "JSON", "not valid JSON"),
        (b"{", "JSON", "not valid JSON"),
        (b"\xff\xfe{}", "JSON", "UTF-8"),
        (b"[" * 100_000, "JSON", "nested too deeply"),
        (b"[" * 100_000 + b"]" * 100_000, "JSON", "nested too deeply"),
        (b"NaN", "JSON", "NaN is no JSON"),
        (b'{"format": 1' + b"0" * 5000 + b"}", "JSON", "digits"),
        (b"[]", "top level", "expected an object, found list"),
        (b'{"format": 1, "format": 2}', "top level", "'format' stands twice in one object"),
        (b"{}", "format", "expected 'inductor-tables problems', found None"),
        (field("format", value="dump"), "format", "found 'dump'"),
        (field("version", value=2), "version", r"2 is not known here \(this release reads 1\)"),
        (field("version", value=True), "version", "True is not known here"),
        (field("version", value=1.0), "version", r"1\.0 is not known here"),
        (changed(lambda c: c.pop("problems")), "top level", "'problems' is missing"),
        (field("more", value=1), "top level", "'more' is unknown; expected format, problems, ver"),
        (field("problems", value={}), "problems", "expected a list, found dict"),
        (field("problems", 1, value=[]), "problems[1]", "expected an object, found list"),
        (
            changed(lambda c: c["problems"][0].pop("count")),
            "problems[0]",
            "'count' is missing; expected count, inputs, op_name, origins, scalars",
        ),
        (field("problems", 0, "x" * 999, value=1), "problems[0]", r"'x+\.\.\. is unknown"),
        (field("problems", 0, "count", value=-1), "problems[0].count", "-1 is not a whole number"),
        (field("problems", 0, "count", value=1.0), "problems[0].count", r"1\.0 is not a whole"),
        (field("problems", 0, "count", value=True), "problems[0].count", "True is not a whole"),
        (field("problems", 0, "count", value=2**54), "problems[0].count", "is not a whole number"),
        (field("problems", 0, "op_name", value=None), "problems[0].op_name", "expected a text"),
        (field("problems", 0, "op_name", value=3), "problems[0].op_name", "3 is not a text"),
        (field("problems", 0, "op_name", value="m m"), "problems[0]", "makes no lookup key"),
        (field("problems", 0, "op_name", value="x+mm"), "problems[0]", "makes no lookup key"),
        (field("problems", 0, "op_name", value="a=1+mm"), "problems[0]", "makes another lookup"),
        (field("problems", 0, "inputs", value=[]), "problems[0]", "makes no lookup key"),
        (field("problems", 0, "inputs", value=None), "problems[0].inputs", "expected a list"),
        (
            field("problems", 0, "inputs", 1, value=None),
            "problems[0].inputs[1]",
            "expected an object, found NoneType",
        ),
        (
            field("problems", 0, "inputs", 1, "device", value="x"),
            "problems[0].inputs[1]",
            "'device' is unknown; expected dtype, size, stride",
        ),
        (
            field("problems", 1, "inputs", 0, "size", value="ab"),
            "problems[1].inputs[0].size",
            "expected a list, found str",
        ),
        (
            field("problems", 1, "inputs", 0, "size", 1, value="64"),
            "problems[1].inputs[0].size[1]",
            "'64' is not a whole number",
        ),
        (
            field("problems", 1, "inputs", 0, "size", value=[1] * 17),
            "problems[1].inputs[0].size",
            "17 items; at most 16",
        ),
        (
            field("problems", 1, "inputs", 0, "stride", value=[1]),
            "problems[1].inputs[0].stride",
            "1 strides for 2 sizes",
        ),
        (
            field("problems", 1, "inputs", 0, "dtype", value="float32, [1], [1]), (torch.int8"),
            "problems[1]",
            "makes another lookup key|makes no lookup key",
        ),
        (
            field("problems", 0, "inputs", 0, "dtype", value="\ud800"),
            "problems[0].inputs[0].dtype",
            "is not a text",
        ),
        (
            field("problems", 1, "scalars", value={"alpha": "1"}),
            "problems[1].scalars",
            "expected a list, found dict",
        ),
        (
            field("problems", 1, "scalars", 0, value=["alpha"]),
            "problems[1].scalars[0]",
            r"expected \[name, text\], found \['alpha'\]",
        ),
        (
            field("problems", 1, "scalars", 0, 1, value=1),
            "problems[1].scalars[0][1]",
            "1 is not a text",
        ),
        (field("problems", 1, "scalars", 0, 1, value="1&x=2"), "problems[1]", "makes another"),
        (field("problems", 0, "origins", value="llama"), "problems[0].origins", "expected a list"),
        (
            field("problems", 0, "origins", 0, value=None),
            "problems[0].origins[0]",
            "expected a text, found null",
        ),
        (
            field("problems", 0, "origins", 0, value="a\u202eb"),
            "problems[0].origins[0]",
            "is not a text of at most 256 printable signs",
        ),
    ],
)
def test_refused_with_a_place(data: bytes, where: str, problem: str) -> None:
    """The message names file, place, what was expected and what was found."""
    with pytest.raises(InvalidProblemsError, match=problem) as caught:
        problems.parse(data, "fleet.json")
    assert caught.value.where == where
    assert str(caught.value).startswith(f"fleet.json: {where}: ")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 700


def test_the_error_is_the_packages_and_survives_pickling() -> None:
    """It is exported, and goes through process pools."""
    error = InvalidProblemsError("p.json", "problems", "none")
    assert inductor_tables.InvalidProblemsError is InvalidProblemsError
    assert isinstance(error, inductor_tables.InductorTablesError)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (InvalidProblemsError, str(error))


# --- mutations --------------------------------------------------------------------------

_hostile = st.recursive(
    st.sampled_from(
        [
            None,
            True,
            False,
            -1,
            0,
            1,
            2**31,
            2**53,
            2**54,
            2**64,
            10**400,
            0.5,
            -0.0,
            1e308,
            "",
            "mm",
            "\0",
            "é",
            "\ud800",
            "a" * 300,
            "../..",
            "a&b=1",
            "a+mm",
            "__import__('os')",
        ]
    )
    | st.floats()
    | st.integers()
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["dtype", "size", "stride", "count", "inputs", "op_name", "x"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)


@st.composite
def _mutated(draw: st.DrawFn) -> bytes:
    """Draw the good file with some values, names or lengths changed where they stand."""
    content = copy.deepcopy(GOOD)
    for _ in range(draw(st.integers(1, 3))):
        holder: Any = content
        while True:
            places = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
            if not places:
                break
            place = draw(st.sampled_from(places))
            if isinstance(holder[place], dict | list) and holder[place] and draw(st.booleans()):
                holder = holder[place]
                continue
            change = draw(st.sampled_from(["value", "value", "delete", "rename", "repeat"]))
            if change == "delete":
                del holder[place]
            elif change == "rename" and isinstance(holder, dict):
                holder[draw(st.text(max_size=6))] = holder.pop(place)
            elif change == "repeat" and isinstance(holder, list):
                holder.extend([holder[place]] * draw(st.sampled_from([1, 16, 40])))
            else:
                holder[place] = draw(_hostile)
            break
    return json.dumps(content, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")


def _read(data: bytes) -> tuple[Problem, ...] | None:
    """Read a mutated file; None where it is refused with a place."""
    try:
        found = problems.parse(data, "mutated.json")
    except InvalidProblemsError as error:
        assert error.resource == "mutated.json"  # noqa: PT017 - either outcome is fine
        assert error.where  # noqa: PT017
        assert str(error).isprintable()  # noqa: PT017
        return None
    assert problems.parse(problems.render(found, "again.json"), "again.json") == found
    for problem in found:
        assert (
            problem_from_key(problem.key(H200), count=problem.count, origins=problem.origins)
            == problem
        )
    return found


@settings(max_examples=1500)
@given(_mutated())
def test_mutated_files(data: bytes) -> None:
    """Values, names and lengths that are changed: refused with a place, or what they say."""
    _read(data)


@settings(max_examples=500)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4))
def test_flipped_bytes(flips: list[tuple[int, int]]) -> None:
    """Bytes that are changed: the same."""
    data = bytearray(json.dumps(GOOD).encode())
    for at, value in flips:
        data[at % len(data)] = value
    _read(bytes(data))


def test_cut_short_at_every_byte() -> None:
    """A file that is cut short is refused, wherever it is cut."""
    data = problems.render([mm(16), problem_from_key(GIVEN)], "p").rstrip()
    assert _read(data) is not None
    assert not [at for at in range(len(data)) if _read(data[:at]) is not None]
