"""The table format: what is written is read back, and what is broken is refused."""

from __future__ import annotations

import gc
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proof_strategies import counts, proofs
from table_samples import (
    ADDMM,
    ATEN,
    BMM,
    CARRIED,
    EVIL_NAMES,
    EVIL_TEXTS,
    H200,
    HASH,
    HASHED,
    MI300,
    MM,
    NEAR_MM,
    PROOF,
    PROVED,
    RECORDED,
    SMALL,
    UNKNOWN,
    Entries,
    Parts,
    config,
    contents,
    entry,
    pack,
    pack_pairs,
    put_together,
    take_apart,
    write,
)

from inductor_tables.errors import InvalidTableError
from inductor_tables.keys import MAX_KEY_LENGTH
from inductor_tables.schema import Config, Entry, Proof, Source
from inductor_tables.table import FORMAT_VERSION, KEYS_PER_BUCKET, Table

GOLDEN = Path(__file__).parent / "data" / "table"
BYTES = write(SMALL)
PROVED_BYTES = write(PROVED)
BOTH = pytest.mark.parametrize("whole", [BYTES, PROVED_BYTES], ids=["format1", "format2"])

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
shapes = st.lists(st.integers(0, 2**66), min_size=1, max_size=4).map(str)
keys = (
    st.sampled_from([*SMALL, NEAR_MM])
    | st.builds(
        "{}+((torch.bfloat16, {}, {}),)+mm".format, st.sampled_from([H200, MI300]), shapes, shapes
    )
    | st.builds("(x, {})+a={!r}+mm".format, shapes, st.floats())
    | texts
)  # fmt: skip
params = st.dictionaries(
    st.from_regex(r"[A-Z][A-Z_]{0,8}", fullmatch=True),
    st.none()
    | st.booleans()
    | st.integers(-(2**31) + 1, 2**31 - 1)
    | st.sampled_from(["tl.float32", "tl.bfloat16"]),
    max_size=4,
)
configs = st.builds(
    lambda template_id, template_hash, params: Config(
        template_id=template_id, template_hash=template_hash, params=tuple(sorted(params.items()))
    ),
    st.sampled_from(["triton::mm", "triton::bmm", "aten::_scaled_mm", "decompose_k"]),
    st.sampled_from([None, HASH]),
    params,
)
entries = st.builds(
    Entry,
    config=configs,
    time_ns=st.none() | counts,
    source=st.sampled_from([RECORDED, CARRIED, UNKNOWN]),
    proof=st.none() | proofs,
)
tables = st.dictionaries(keys, st.lists(entries, min_size=1, max_size=4), max_size=30)


def ordered(listed: list[Entry]) -> tuple[Entry, ...]:
    """Return entries as a table holds them."""
    return tuple(sorted(listed, key=lambda e: (e.order, e.source != RECORDED, repr(e.source))))


def same(one: tuple[Entry, ...], other: tuple[Entry, ...]) -> bool:
    """Whether two lists hold the same entries, ties of config and time in any order."""
    return [e.order for e in one] == [e.order for e in other] and set(one) == set(other)


@given(tables)
def test_what_is_written_is_read_back(held: dict[str, list[Entry]]) -> None:
    """Any mapping of keys to entries comes back, by look-up and in full, and verifies."""
    table = Table(write(held), "sample")
    assert len(table) == table.header.key_count == len(held)
    assert table.header.entry_count == sum(map(len, held.values()))
    proved = sum(e.proof is not None for listed in held.values() for e in listed)
    assert table.header.proof_count == proved
    assert table.format_version == (2 if proved else 1)
    assert list(table.keys()) == sorted(held)
    for key, read in table.items():
        assert same(read, ordered(held[key]))
        assert table.lookup(key) == read
    table.verify()


@given(tables, st.randoms(use_true_random=False))
def test_order_of_input_does_not_matter(held: dict[str, list[Entry]], rnd: random.Random) -> None:
    """The same content in any order gives the same bytes."""
    shuffled = [(key, rnd.sample(listed, len(listed))) for key, listed in held.items()]
    rnd.shuffle(shuffled)
    assert write(held) == write(dict(shuffled))


@given(tables)
def test_reading_and_writing_again_gives_the_same_bytes(held: dict[str, list[Entry]]) -> None:
    """A table is the only spelling of its content."""
    data = write(held)
    assert write(contents(data)) == data


@given(tables, keys | st.text())
def test_an_absent_key_has_no_entries(held: dict[str, list[Entry]], key: str) -> None:
    """No text gets another key's entries, whatever the text."""
    found = Table(write(held), "sample").lookup(key)
    assert same(found, ordered(held.get(key, [])))


@given(st.data())
def test_a_near_key_has_no_entries(data: st.DataObject) -> None:
    """One number, one sign or one letter away from a key that is there is a miss."""
    key = data.draw(st.sampled_from([MM, ADDMM, BMM, HASHED]))
    at = data.draw(st.integers(0, len(key) - 1))
    sign = data.draw(st.sampled_from("0123456789-+ ,.[]()#ae\u0661\x00"))
    near = data.draw(
        st.sampled_from([key[:at] + sign + key[at:], key[:at] + sign + key[at + 1 :],
                         key[:at] + key[at + 1 :]])
    )  # fmt: skip
    if near != key:
        assert Table(BYTES, "sample").lookup(near) == ()


@pytest.mark.parametrize(
    "key",
    [
        "", "#", "##", "\ud800", "\ud800#", "\ud800 5", "5" * 5000, "a" * 10**6, NEAR_MM,
        MM.replace("16", "#"), MM.replace("16", "016"), MM.replace(H200, H200.lower()),
        MM.removeprefix(f"{H200}+"), f"{MM}\n", f" {MM}", MM.replace("4096", str(4096 + 2**64)),
    ],
    ids=lambda key: ascii(key)[:30],
)  # fmt: skip
def test_odd_keys_are_misses(key: str) -> None:
    """A look-up of any text is a miss at worst, never an error."""
    assert Table(BYTES, "sample").lookup(key) == ()


@pytest.mark.parametrize(
    "key",
    [
        "#", "0", "18446744073709551615", "18446744073709551616", "1" * MAX_KEY_LENGTH,
        "\x00", "\n", "\u202e", "\U0010ffff", "\u0661\u0662", "ключ 5", "-5 +5 1.5 .5 5. 1e5",
        MM.replace("4096", "9223372036854775808"), MM.replace("4096", "9" * 40),
    ],
    ids=lambda key: ascii(key)[:30],
)  # fmt: skip
def test_odd_keys_can_be_held(key: str) -> None:
    """Any text of a key's length can be a key, and is found by its exact text alone."""
    table = Table(write({key: (entry(ATEN),), MM: SMALL[MM]}), "sample")
    assert table.lookup(key) == (entry(ATEN),)
    assert table.lookup(MM) == SMALL[MM]
    table.verify()


def test_an_empty_table() -> None:
    """A table without keys is one, and has nothing."""
    table = Table(write({}), "sample")
    assert (len(table), table.lookup(MM), list(table.items())) == (0, (), [])
    assert (table.header.templates, table.header.sources) == ((), ())
    table.verify()


def test_a_table_of_many_keys() -> None:
    """Every key of many is found with its own entry, and all are reached by reading in full."""
    held = {
        MM.replace("[16, 4096]", f"[{rows}, 4096]"): (entry(config(BLOCK_M=rows % 50), rows),)
        for rows in range(3000)
    }
    table = Table(write(held), "sample")
    assert {key: table.lookup(key) for key in held} == held
    assert dict(table.items()) == held
    assert not any(table.lookup(key.replace("16", "17")) for key in held if "16" in key[:50])
    assert len(take_apart(write(held)).buckets) == 3000 / KEYS_PER_BUCKET


def test_equal_configurations_are_stored_once() -> None:
    """A thousand keys with three configurations hold three records of them."""
    held = {f"key {n}": (entry(config(BLOCK_M=2 ** (n % 3)), n),) for n in range(1000)}
    parts = take_apart(write(held))
    assert parts.header["config_count"] == 3
    table = Table(write(held), "sample")
    first, second = table.lookup("key 0"), table.lookup("key 3")
    assert first[0].config is second[0].config


def test_true_and_one_are_kept_apart() -> None:
    """A bool does not come back as an int because an equal one was stored first."""
    held = {"a": (entry(config(x=True)),), "b": (entry(config(x=1)),), "c": (entry(config(x=0)),)}
    read = contents(write(held))
    assert [type(read[key][0].config.params[0][1]) for key in "abc"] == [bool, int, int]


def test_ties_go_by_content() -> None:
    """Entries that tie are ordered by configuration, then by source, not by the input."""
    tied = (
        entry(config(BLOCK_M=16), 5),
        entry(config(BLOCK_M=32), 5),
        entry(config(BLOCK_M=32), 5, CARRIED),
        entry(config(BLOCK_M=32), 5, CARRIED, Proof(spread_ns=0, rounds=1)),
        entry(config(BLOCK_M=32), 5, CARRIED, Proof(spread_ns=0, aten_ns=0, rounds=1)),
        entry(config(BLOCK_M=16), None),
    )
    assert write({"a": tied}) == write({"a": tied[::-1]})
    assert [e.time_ns for e in contents(write({"a": tied}))["a"]] == [*[5] * 5, None]


def test_an_unknown_value_is_not_the_text_none() -> None:
    """A source without a torch and one whose torch is called None are two, in one order."""
    one, other = replace(UNKNOWN, torch=None), replace(UNKNOWN, torch="None")
    held = (entry(ATEN, 5, one), entry(ATEN, 5, other))
    assert write({"a": held}) == write({"a": held[::-1]})
    assert set(contents(write({"a": held}))["a"]) == set(held)


def test_the_header_says_what_the_table_is() -> None:
    """Version, series, arch, sources, templates and counts come back as they were given."""
    header = Table(write(SMALL, arch=MI300, serves_base_arch=True), "sample").header
    assert (header.table_version, header.torch_series, header.arch) == ("2026.1", "2.13", MI300)
    assert header.serves_base_arch
    assert (header.key_count, header.entry_count) == (4, 6)
    assert set(header.sources) == {RECORDED, CARRIED, UNKNOWN}
    assert header.templates == (
        ("aten::mm", None),
        ("triton::mm", HASH),
        ("triton::mm_persistent_tma", "cd" * 32),
    )
    assert Table(write(SMALL, arch=None), "sample").header.arch is None


def test_an_entry_says_where_it_is_from() -> None:
    """Measured or carried over, and by what; a time may be unknown."""
    fast, carried, untimed = contents(BYTES)[MM]
    assert (fast.measured, fast.source, fast.time_us) == (True, RECORDED, 9.7)
    assert (carried.measured, carried.source.carried) == (False, "hash")
    assert (untimed.time_ns, untimed.source) == (None, UNKNOWN)


def test_proofs_are_read_back() -> None:
    """All, some or none of a key's entries have one; the header counts them."""
    table = Table(PROVED_BYTES, "sample")
    assert dict(table.items()) == PROVED
    assert [e.proof for e in table.lookup(HASHED)] == [None]
    assert (table.format_version, table.header.proof_count) == (2, 3)
    table.verify()


def test_a_proof_costs_its_own_key_only() -> None:
    """One proved entry among many makes none of the others larger."""
    held = {f"key {n}": (entry(ATEN, n),) for n in range(1000)}
    one = {**held, "key 7": (entry(ATEN, 7, proof=PROOF),)}
    assert 0 < len(write(one)) - len(write(held)) < 50


def test_a_table_version_is_written_in_its_normal_form() -> None:
    """A version that PEP 440 spells otherwise does not make a table that fails its check."""
    table = Table(write(SMALL, table_version="2026.05.01-rc.1"), "sample")
    assert table.header.table_version == "2026.5.1rc1"
    table.verify()


def test_bytes_do_not_depend_on_the_process() -> None:
    """Another hash seed, another locale: the same bytes."""
    code = "import sys, table_samples as s; sys.stdout.buffer.write(s.write(s.SMALL))"
    written = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=Path(__file__).parent,
            env={**os.environ, "PYTHONHASHSEED": seed, "LC_ALL": "C"},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "2")
    }
    assert written == {BYTES}


# Golden files: what a release has written, every later one reads and writes.


def as_json(table: Table) -> dict[str, Any]:
    """Return all that a table says as JSON values."""
    return {
        "digest": table.digest,
        "header": {n: v for n, v in asdict(table.header).items() if n != "proof_count" or v},
        "entries": {
            key: [
                {"config": dict(e.config.plain), "time_ns": e.time_ns, "source": asdict(e.source)}
                | ({} if e.proof is None else {"proof": e.proof._asdict()})
                for e in listed
            ]
            for key, listed in table.items()
        },
    }


VERSIONS = pytest.mark.parametrize("version", range(1, FORMAT_VERSION + 1))


@VERSIONS
def test_every_format_version_is_read(version: int) -> None:
    """A table of any format version says what it always said."""
    table = Table.open(GOLDEN / f"format{version}.msgpack")
    assert json.loads(json.dumps(as_json(table))) == json.loads(
        (GOLDEN / f"format{version}.json").read_text(encoding="utf-8")
    )
    assert table.format_version == version
    table.verify()


def test_format_version_1_has_no_proofs() -> None:
    """Its entries were never compared with an incumbent."""
    table = Table.open(GOLDEN / "format1.msgpack")
    assert {e.proof for _, listed in table.items() for e in listed} == {None}
    assert table.header.proof_count == 0


@VERSIONS
def test_every_format_version_is_written(version: int) -> None:
    """Today's writer makes the bytes that the first one of the version made."""
    golden = json.loads((GOLDEN / f"format{version}.json").read_text(encoding="utf-8"))
    held: Entries = {}
    for key, listed in golden["entries"].items():
        rows = []
        for row in listed:
            plain = dict(row["config"])
            template_id, template_hash = plain.pop("template_id"), plain.pop("template_hash", None)
            made = Config(
                template_id=template_id,
                template_hash=template_hash,
                params=tuple(sorted(plain.items())),
            )
            source = Source(**row["source"])
            proof = Proof(**row["proof"]) if "proof" in row else None
            rows.append(entry(made, row["time_ns"], source, proof))
        held[key] = tuple(rows)
    header = golden["header"]
    data = write(
        held,
        table_version=header["table_version"],
        series=header["torch_series"],
        arch=header["arch"],
        serves_base_arch=header["serves_base_arch"],
    )
    assert data == (GOLDEN / f"format{version}.msgpack").read_bytes()


@BOTH
def test_the_second_writer_makes_the_same_bytes(whole: bytes) -> None:
    """The format as documented, written without the writer, is the format."""
    assert put_together(take_apart(whole)) == whole


# What the writer refuses.


@pytest.mark.parametrize(
    ("held", "problem"),
    [
        ({"": (entry(ATEN),)}, "cannot store 1 entries under the key ''"),
        ({"a": ()}, "cannot store 0 entries under the key 'a'"),
        ({"a": (entry(ATEN),) * 4097}, "cannot store 4097 entries under the key 'a'"),
        ({"a" * 4097: (entry(ATEN),)}, "cannot store 1 entries under the key 'aaa"),
        ({"\ud800": (entry(ATEN),)}, "surrogates not allowed"),
        ({"#\ud800": (entry(ATEN),)}, "surrogates not allowed"),
        ({"a": (entry(ATEN, -1),)}, "under the key 'a': time_ns: -1 is not a whole number"),
        ({"a": (entry(ATEN, 2**53 + 1),)}, "under the key 'a': time_ns: .* is not a whole number"),
        ({"a": (entry(ATEN, 1.5),)}, r"under the key 'a': time_ns: 1\.5 is not a whole number"),  # type: ignore[arg-type]
        (
            {"a": (entry(ATEN, 1, proof=Proof(spread_ns=-1, rounds=1)),)},
            r"under the key 'a': proof\.spread_ns: -1 is not a whole number",
        ),
        (
            {"a": (entry(ATEN, 1, proof=PROOF._replace(host_ns=0.5)),)},  # type: ignore[arg-type]
            r"under the key 'a': proof\.host_ns: 0\.5 is not a whole number",
        ),
        (
            {"a": (entry(ATEN, 1, proof=PROOF._replace(rounds=None)),)},  # type: ignore[arg-type]
            r"under the key 'a': proof\.rounds: None is not a whole number",
        ),
        ({"a": (entry(config(x="print()")),)}, r"configs\[0\]\.x: 'print\(\)' is not allowed"),
        ({"a": (entry(config(x=1.5)),)}, r"configs\[0\]\.x: 1\.5 is not allowed"),
        ({"a": (entry(config(template_id="mm:")),)}, "'mm:' is not a template id"),
        ({"a": (entry(config(template_hash="0")),)}, "'0' is not a template hash"),
        ({"a": (entry(ATEN, 1, replace(RECORDED, carried="guess")),)}, "a source needs"),
        ({"a": (entry(ATEN, 1, replace(RECORDED, device="a\nb")),)}, "printable signs"),
    ],
)
def test_what_cannot_be_read_is_not_written(held: Entries, problem: str) -> None:
    """The writer refuses with a ValueError what the reader would refuse."""
    with pytest.raises(ValueError, match=problem):
        write(held)


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        ({"table_version": "new"}, "table_version: 'new' is not a PEP 440 version"),
        ({"table_version": ""}, "table_version: '' is not a PEP 440 version"),
        ({"table_version": "9" * 5000}, "table_version: '999.* is not a text of at most 256"),
        ({"series": "2.13.0"}, "'2.13.0' is not a torch series"),
        ({"series": "two"}, "'two' is not a torch series"),
        ({"arch": "a\x00"}, "header.arch: .* printable"),
        ({"serves_base_arch": 1}, "expected a bool, found 1"),
    ],
)
def test_headers_that_are_not_written(header: dict[str, Any], problem: str) -> None:
    """The writer checks what the header says."""
    with pytest.raises(ValueError, match=problem):
        write(SMALL, **header)


# Damage: the digests find it. Nothing else may happen than an InvalidTableError.


def read_in_full(data: bytes) -> Entries:
    """Use every way of reading a table; they must agree."""
    table = Table(data, "broken.msgpack")
    found = dict(table.items())
    for key in {*found, *SMALL, *PROVED, NEAR_MM}:
        assert table.lookup(key) == found.get(key, ())
    return found


@BOTH
def test_truncation_at_every_byte(whole: bytes) -> None:
    """A table that is cut short anywhere does not open."""
    for length in range(len(whole)):
        with pytest.raises(InvalidTableError, match=r"^broken\.msgpack: "):
            Table(whole[:length], "broken.msgpack")


def test_truncated_files(tmp_path: Path) -> None:
    """The same holds for a file."""
    path = tmp_path / "cut.msgpack"
    for length in range(0, len(BYTES), 7):
        path.write_bytes(BYTES[:length])
        with pytest.raises(InvalidTableError, match=r"cut\.msgpack: "):
            Table.open(path)


@pytest.mark.parametrize("extra", [b"\x00", b"\xc0", b"\n", BYTES])
def test_trailing_bytes(extra: bytes) -> None:
    """Bytes after the end, or a second table, are refused."""
    with pytest.raises(InvalidTableError, match=r"frame: .* trailing bytes after the table's end"):
        Table(BYTES + extra, "broken.msgpack")


@BOTH
def test_a_flip_of_every_bit(whole: bytes) -> None:
    """Whichever bit changes, reading in full is an error: every byte is vouched for."""
    for at in range(len(whole)):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[at] ^= 1 << bit
            with pytest.raises(InvalidTableError, match=r"^broken\.msgpack: "):
                read_in_full(bytes(flipped))


def test_damage_costs_only_the_keys_it_hits() -> None:
    """A damaged record is an error for its own keys; the others are still served."""
    held = {f"key {n}": (entry(ATEN, n),) for n in range(100)}
    data = bytearray(write(held))
    data[-1] ^= 1
    table = Table(bytes(data), "broken.msgpack")
    served, places = 0, set()
    for key, listed in held.items():
        try:
            served += table.lookup(key) == listed
        except InvalidTableError as error:
            places.add(error.where)
    assert 50 < served < 100
    assert len(places) == 1
    assert next(iter(places)).startswith("buckets[")
    with pytest.raises(InvalidTableError, match=r"buckets\[\d+\]: the digest does not match"):
        table.verify()


@pytest.mark.parametrize(
    ("data", "where", "problem"),
    [
        (b"", "magic", "not an inductor-tables table"),
        (b"\x96", "magic", "not an inductor-tables table"),
        (b"{}", "magic", "not an inductor-tables table"),
        (b'{"a": 1}', "magic", "not an inductor-tables table"),
        (b"\x80\x04.", "magic", "not an inductor-tables table"),
        (b"\x00" * 1000, "magic", "not an inductor-tables table"),
        (b"\xc1" * 1000, "magic", "not an inductor-tables table"),
        (b"\x91" * 1000, "magic", "not an inductor-tables table"),
        (b"\x96" + b"\xdd\xff\xff\xff\xff" * 100, "magic", "not an inductor-tables table"),
        (pack([]), "magic", "not an inductor-tables table"),
        (pack(["tables", 1]), "magic", "expected 'inductor-tables', found 'tables'"),
        (pack([b"inductor-tables", 1]), "magic", "expected 'inductor-tables', found b'"),
        (pack([[[]], 1]), "magic", r"expected 'inductor-tables', found \[\[\]\]"),
        (pack(["inductor-tables", 3, 0]), "format_version", "3 is not known here .*reads 1 to 2"),
        (pack(["inductor-tables", 0, 0]), "format_version", "0 is not known here"),
        (pack(["inductor-tables", -1, 0]), "format_version", "-1 is not known here"),
        (pack(["inductor-tables", 2**64 - 1, 0]), "format_version", "is not known here"),
        (pack(["inductor-tables", True, 0]), "format_version", "True is not known here"),
        (pack(["inductor-tables", 1.0, 0]), "format_version", r"1\.0 is not known here"),
        (pack(["inductor-tables", "1", 0]), "format_version", "'1' is not known here"),
        (pack(["inductor-tables", None, 0]), "format_version", "None is not known here"),
        (pack(["inductor-tables", 1]), "frame", "expected 6 parts, found 2"),
        (pack(["inductor-tables", 1, b"", b"", b"", b"", b""]), "frame", "6 parts, found 7"),
        (pack(["inductor-tables", 1, "", b"", b"", b""]), "root digest", "expected a msgpack bin"),
        (pack(["inductor-tables", 1, b"", {}, b"", b""]), "header", "expected a msgpack bin"),
        (pack(["inductor-tables", 1, b"", b"", [], b""]), "index", "expected a msgpack bin"),
        (pack(["inductor-tables", 1, b"", b"", b"", 5]), "records", "expected a msgpack bin"),
        (pack(["inductor-tables", 1, b"", b"", b"x", b""]), "index", "1 bytes are no multiple"),
        (pack(["inductor-tables", 1, b"", b"", b"", b""]), "header", "digest does not match"),
        (pack(["inductor-tables", 2, b"", b"", b"", b""]), "header", "digest does not match"),
        (BYTES.replace(b"tables\x01", b"tables\x02", 1), "header", "a map of .*, proof_count"),
        (PROVED_BYTES.replace(b"tables\x02", b"tables\x01", 1), "header", "torch_series$"),
    ],
)
def test_what_is_no_table(data: bytes, where: str, problem: str) -> None:
    """Other files, other versions and other frames are told apart and named."""
    with pytest.raises(InvalidTableError, match=problem) as caught:
        Table(data, "some/where.msgpack")
    assert (caught.value.resource, caught.value.where) == ("some/where.msgpack", where)
    assert str(caught.value).startswith(f"some/where.msgpack: {where}: ")


def test_the_frame_has_one_spelling() -> None:
    """A longer spelling of the same frame is refused: one digest, one file."""
    magic = pack("inductor-tables")
    head = b"\x96" + magic + b"\x01"
    assert BYTES.startswith(head)
    rest = BYTES[len(head) :]
    assert rest[:2] == b"\xc4\x20"
    for spelled in (
        b"\xdc\x00\x06" + magic + b"\x01" + rest,
        b"\x96\xd9\x0f" + magic[1:] + b"\x01" + rest,
        b"\x96" + magic + b"\xcc\x01" + rest,
        head + b"\xc5\x00" + rest[1:],
        head + b"\xc6\x00\x00\x00" + rest[1:],
    ):
        with pytest.raises(InvalidTableError, match="shortest form"):
            Table(spelled, "broken.msgpack")


@pytest.mark.parametrize("promised", [0xFFFFFFFF, 0x7FFFFFFF, 2**26 + 1])
@pytest.mark.parametrize("part", range(4))
def test_lengths_that_lie(part: int, promised: int) -> None:
    """A part that promises gigabytes is refused before anything is reserved for it."""
    names = ("root digest", "header", "index", "records")
    data = b"\x96" + pack("inductor-tables") + b"\x01" + pack(b"") * part
    data += b"\xc6" + promised.to_bytes(4, "big")
    with pytest.raises(InvalidTableError, match=r"cut short: \d+ bytes promised|at most") as caught:
        Table(data, "broken.msgpack")
    assert caught.value.where == names[part]


def test_bytes_between_records_and_end() -> None:
    """Bytes that no record holds would be vouched for by no digest; they are refused."""
    root, header, index, records = msgpack.unpackb(BYTES)[2:]
    data = pack(["inductor-tables", 1, root, header, index, records + b"x"])
    with pytest.raises(InvalidTableError, match=r"records: .* but the last record ends at"):
        Table(data, "broken.msgpack")


# Forgery: right digests over wrong content.

NO_NUMBERS: list[Any] = [1, -1, 2**63, None, True, False, 0.0, "0", [], [0], {}]
"""What may not number the one source, configuration or template of a table."""

Change = Callable[[Parts], None]


def header_with(**changes: Any) -> Change:
    """Put other values into the header."""
    return lambda parts: parts.header.update(changes)


def source_with(**changes: Any) -> Change:
    """Put other values into the first source."""
    names = list(asdict(RECORDED))

    def change(parts: Parts) -> None:
        for name, value in changes.items():
            parts.header["sources"][0][names.index(name)] = value

    return change


BAD_TEXTS: list[Any] = [4, 4.0, True, b"x", [], {}, "a\nb", "\x1b[31m", "\u202e", "x" * 257]
NO_FLAGS: list[Any] = [None, 0, 1, "true", []]
BAD_COUNTS: list[Any] = [None, -1, 2**53 + 1, 1.0, True, "1", [], float("nan")]
BAD_HEADERS: list[tuple[Change, str, str]] = [
    *((header_with(arch=bad), "header.arch", "printable signs") for bad in BAD_TEXTS),
    *(
        (header_with(table_version=bad), "header.table_version", "printable signs|PEP 440")
        for bad in [None, "", "x", "1.x", "../1", "9" * 300, "9" * 5000, *BAD_TEXTS]
    ),
    *(
        (header_with(torch_series=bad), "header.torch_series", "printable|not a torch series")
        for bad in [None, "", "2", "2.13.0", "v2.13", "2.13 ", "1!2.13", "../2.13", *BAD_TEXTS]
    ),
    *(
        (header_with(serves_base_arch=bad), "header.serves_base_arch", "expected a bool")
        for bad in NO_FLAGS
    ),
    *(
        (header_with(**{name: bad}), f"header.{name}", "not a whole number")
        for name in ("config_count", "entry_count", "key_count")
        for bad in BAD_COUNTS
    ),
    (header_with(config_count=2**53), "header.config_count", "but the index is shorter"),
    (header_with(skeletons=None), "header.skeletons", "expected a list, found NoneType"),
    (header_with(skeletons={}), "header.skeletons", "expected a list, found dict"),
    (header_with(skeletons=["a", "a"]), "header.skeletons", "listed twice"),
    (header_with(skeletons=["a", b"a"]), r"header.skeletons[1]", "expected a text"),
    (header_with(skeletons=[4]), r"header.skeletons[0]", "expected a text"),
    (header_with(skeletons=[[]]), r"header.skeletons[0]", "expected a text"),
    (header_with(skeletons=["a" * 4097]), r"header.skeletons[0]", "of a key's length"),
    (header_with(templates="x"), "header.templates", "expected a list, found str"),
    (header_with(templates=["ab"]), "header.templates[0]", r"expected \[template id, hash\]"),
    (header_with(templates=[["a::b"]]), "header.templates[0]", r"expected \[template id, hash\]"),
    (header_with(templates=[[None, None]]), "header.templates[0]", "not a template id"),
    (header_with(templates=[["../x", None]]), "header.templates[0]", "not a template id"),
    (header_with(templates=[["a::b", "x"]]), "header.templates[0]", "not a template hash"),
    (header_with(sources=4), "header.sources", "expected a list, found int"),
    (header_with(sources=[4]), "header.sources[0]", "expected a list, found int"),
    (header_with(sources=[[]]), "header.sources[0]", "expected dump_digest, torch"),
    (header_with(sources=[["x"] * 12]), "header.sources[0]", "expected dump_digest, torch"),
    (source_with(dump_digest=None), "header.sources[0]", "needs a dump's digest"),
    (source_with(carried="guess"), "header.sources[0]", "carries by 'hash' or 'code'"),
    (source_with(sm_count=-1), "header.sources[0].sm_count", "not a whole number"),
    (source_with(sm_count="132"), "header.sources[0].sm_count", "not a whole number"),
    *(
        (source_with(**{name: bad}), f"header.sources[0].{name}", "printable signs")
        for name in asdict(RECORDED)
        if name != "sm_count"
        for bad in BAD_TEXTS
    ),
    (lambda parts: parts.header.pop("arch"), "header", "expected a map of arch, config_count"),
    (header_with(extra=1), "header", "expected a map of arch, config_count"),
    (header_with(arch=msgpack.ExtType(4, b"")), "header", "extension type 4 is not allowed"),
    (header_with(arch=msgpack.ExtType(4, b"abc")), "header", "not valid msgpack"),
    (header_with(arch=msgpack.Timestamp(0)), "header", "not valid msgpack"),
]


@pytest.mark.parametrize(("change", "where", "problem"), BAD_HEADERS)
def test_headers_that_are_refused(change: Change, where: str, problem: str) -> None:
    """Every field of a header is checked when the table is opened, and named."""
    parts = take_apart(BYTES)
    change(parts)
    with pytest.raises(InvalidTableError, match=problem) as caught:
        Table(put_together(parts), "forged.msgpack")
    assert caught.value.where == where


FIELDS = list(take_apart(BYTES).header.items())


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        (b"", "not valid msgpack"),
        (pack(None), "expected a map of"),
        (pack([1, 2]), "expected a map of"),
        (pack({}), "expected a map of"),
        (pack(dict(FIELDS)) + b"\x00", "not valid msgpack"),
        (pack(dict(FIELDS))[:-1], "not valid msgpack"),
        (pack_pairs([*FIELDS, ("arch", None)]), "a map has a key twice"),
        (pack_pairs([(name.encode(), value) for name, value in FIELDS]), "expected a map of"),
        (pack_pairs([("x", 1), (b"arch", None), *FIELDS[1:]]), "expected a map of"),
        (pack_pairs([(None, None), *FIELDS[1:]]), "not valid msgpack: .*map"),
        (pack_pairs([*FIELDS[1:], (4, 4)]), "not valid msgpack: .*map"),
        (pack_pairs([("arch", "\x00")]).replace(b"\x00", b"\xff"), "not valid msgpack"),
        (b"\xc1", "not valid msgpack"),
        (b"\xdf\xff\xff\xff\xff", "not valid msgpack"),
        (b"\xdd\xff\xff\xff\xff", "not valid msgpack"),
        (b"\xdb\xff\xff\xff\xff", "not valid msgpack"),
        (b"\xc9\xff\xff\xff\xff\x05", "not valid msgpack"),
        (b"\x91" * 5000 + b"\xc0", "not valid msgpack"),
        (b"\x81\xa1a" * 5000 + b"\xc0", "not valid msgpack"),
        (b"\xdd\x00\x00\x10\x00" * 5000, "not valid msgpack"),
    ],
)
def test_headers_that_are_no_map(header: bytes, problem: str) -> None:
    """Nesting, lying counts, duplicate fields and text that is no UTF-8 are refused."""
    parts = take_apart(BYTES)
    parts.raw_header = header
    with pytest.raises(InvalidTableError, match=problem) as caught:
        Table(put_together(parts), "forged.msgpack")
    assert caught.value.where == "header"


@pytest.mark.parametrize("depth", [100, 450, 600, 900, 1000, 1020])
@pytest.mark.parametrize(
    "place", ["header", "skeleton", "entries", "proofs", "config", "template", "key"]
)
def test_deep_nesting(place: str, depth: int) -> None:
    """Lists in lists in lists, as deep as the decoder lets them be, are an error like any other.

    Showing such a value in a message can exhaust Python's stack.
    """
    nested = b"\x91" * depth + b"\xc0"
    parts = take_apart(BYTES)
    one = take_apart(write({"a": (entry(config(x=1)),)}))
    if place == "header":
        parts.raw_header = nested
    elif place == "skeleton":
        others = [(name, value) for name, value in FIELDS if name != "skeletons"]
        parts.raw_header = pack_pairs([*others, ("skeletons", 0)])[:-1] + nested
    elif place == "entries":
        one.change_bucket(0, b"\x81" + pack(pack([0])) + b"\x93" + nested + b"\x00\x00")
        parts = one
    elif place == "proofs":
        parts = take_apart(ONE_PROVED)
        for held in (nested, b"\x91" + nested, b"\x91\x95" + nested + b"\xc0" * 4):
            parts.change_bucket(0, pack({KEY: [0, 7, 0, held]}))
            with pytest.raises(InvalidTableError, match=r"^broken\.msgpack: ") as caught:
                read_in_full(put_together(parts))
            assert len(str(caught.value)) < 1000
    elif place == "config":
        one.records[0] = b"\x92\x00\x81\xa1x" + nested
        parts = one
    elif place == "template":
        one.records[0] = b"\x92" + nested + b"\x80"
        parts = one
    else:
        one.change_bucket(0, b"\x81" + pack(b"\x92\x00" + nested) + b"\x93\x00\x00\x00")
        parts = one
    with pytest.raises(InvalidTableError, match=r"^broken\.msgpack: ") as caught:
        read_in_full(put_together(parts))
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("where", ["header", "bucket"])
def test_counts_that_lie_cost_no_memory(where: str) -> None:
    """Nested lists that each promise a million items take no memory for them."""
    code = f"""if True:
        import resource, table_samples
        from inductor_tables.errors import InvalidTableError
        from inductor_tables.table import Table
        parts = table_samples.take_apart(table_samples.write({{"a": (table_samples.entry(
            table_samples.ATEN),)}}))
        bomb = b"\\xdd\\x00\\x0f\\x00\\x00" * 900 + b"\\xc0" * 990_000
        if {where!r} == "header":
            parts.raw_header = bomb
        else:
            parts.change_bucket(0, bomb)
        data = table_samples.put_together(parts)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            Table(data, "bomb").verify()
        except InvalidTableError as error:
            after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            print(error.where, (after - before) // 1024)
    """
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=True,
    )
    place, grown = done.stdout.split()
    assert place == {"header": "header", "bucket": "buckets[0]"}[where]
    assert int(grown) < 256, "MiB"


ONE = write({"a 5": (entry(config(x=1), 7),)})
ONE_PROVED = write({"a 5": (entry(config(x=1), 7, proof=PROOF),)})
KEY = pack([0, 5])


@pytest.mark.parametrize(
    ("bucket", "problem"),
    [
        ([], "expected a map, found list"),
        (["ab"], "expected a map, found list"),
        ([[KEY, [0, 7, 0]]], "expected a map, found list"),
        ([1, 2], "expected a map, found list"),
        (None, "expected a map, found NoneType"),
        (5, "expected a map, found int"),
        (b"", "not valid msgpack"),
        (b"\x81", "not valid msgpack"),
        (pack({KEY: [0, 7, 0]}) + b"\x00", "not valid msgpack"),
        (pack_pairs([(KEY, [0, 7, 0]), (KEY, [0, 7, 0])]), "a map has a key twice"),
        (pack_pairs([(5, [0, 7, 0])]), "not valid msgpack: .*map"),
        (pack_pairs([((), [0, 7, 0])]), "not valid msgpack"),
        (pack({KEY: None}), "expected three numbers an entry"),
        (pack({KEY: {}}), "expected three numbers an entry"),
        (pack({KEY: []}), "expected three numbers an entry"),
        (pack({KEY: [0, 7]}), "expected three numbers an entry"),
        (pack({KEY: [0, 7, 0, 0]}), "expected three numbers an entry"),
        (pack({KEY: b"\x00\x07\x00"}), "expected three numbers an entry"),
        (pack({KEY: [0, 7, 0] * 4097}), "expected three numbers an entry"),
        *((pack({KEY: [bad, 7, 0]}), "configuration .* does not exist") for bad in NO_NUMBERS),
        *((pack({KEY: [0, 7, bad]}), "source .* does not exist") for bad in NO_NUMBERS),
        *((pack({KEY: [0, bad, 0]}), "not a whole number") for bad in BAD_COUNTS[1:]),
        (pack({KEY: [0, msgpack.ExtType(5, b""), 0]}), "extension type 5 is not allowed"),
        (pack({KEY: [0, msgpack.Timestamp(5), 0]}), "not valid msgpack"),
    ],
)
def test_entries_that_are_refused(bucket: Any, problem: str) -> None:
    """Whatever stands in place of a key's entries, a look-up of the key is an error."""
    parts = take_apart(ONE)
    parts.change_bucket(0, bucket)
    table = Table(put_together(parts), "forged.msgpack")
    with pytest.raises(InvalidTableError, match=problem) as caught:
        table.lookup("a 5")
    assert caught.value.where.startswith("buckets[0]")
    with pytest.raises(InvalidTableError, match=problem):
        list(table.items())
    with pytest.raises(InvalidTableError, match=problem):
        table.verify()


@pytest.mark.parametrize(
    "key",
    [
        b"", b"\xc0", b"\xc1", b"\x80", pack({"a": 1}), pack(b"\x00\x05"), pack([]), pack([0]),
        pack([0, 5, 5]), pack([1, 5]), pack([-1, 5]), pack([True, 5]), pack([False, 5]),
        pack([0, True]), pack([0, 5.0]), pack([0, "5"]), pack([0, None]), pack([0, [5]]),
        pack([0.0, 5]), pack(["0", 5]), pack([None, 5]), pack([[], 5]), pack(["a", "b"]),
        b"\x92\x00\xcc\x05", b"\xdc\x00\x02\x00\x05", b"\x92\x00\xd0\xfb", pack([0, 2**63, 1]),
        pack([0, -5]), pack([0, 10**19]), pack("a 5"), pack(""), pack("#" * 4097), pack("no such"),
        b"\xa3a 5\x00", b"\xa1\xff", b"\xa3\xed\xa0\x80", pack(msgpack.ExtType(1, b"")),
        pack(5), pack(5.0), pack(None), "text", "",
    ],
    ids=ascii,
)  # fmt: skip
def test_keys_that_are_refused(key: bytes | str) -> None:
    """A key that no look-up could find, or with a second spelling, is an error in full reading."""
    parts = take_apart(ONE)
    parts.change_bucket(0, pack_pairs([(key, [0, 7, 0])]))
    table = Table(put_together(parts), "forged.msgpack")
    assert table.lookup("a 5") == ()
    for read in (lambda: list(table.items()), lambda: list(table.keys()), table.verify):
        with pytest.raises(InvalidTableError, match=r"buckets\[0\]: ") as caught:
            read()
        assert len(str(caught.value)) < 1000


def test_a_key_in_the_wrong_bucket() -> None:
    """A key that was moved where no look-up goes is found when the table is read in full."""
    held = {f"key {n}": (entry(ATEN, n),) for n in range(30)}
    parts = take_apart(write(held))
    first, second = parts.buckets[:2]
    parts.change_bucket(0, second)
    parts.change_bucket(1, first)
    table = Table(put_together(parts), "forged.msgpack")
    assert {table.lookup(key) for key in held} <= {(), *((entry(ATEN, n),) for n in range(30))}
    assert all(table.lookup(key) in ((), listed) for key, listed in held.items())
    with pytest.raises(InvalidTableError, match=r"buckets\[0\]: the key .* cannot be found where"):
        list(table.items())


def test_keys_that_join_too_long() -> None:
    """Skeleton and numbers within their limits may not join to a key beyond its own."""
    parts = take_apart(write({"5 " * 300: (entry(ATEN),)}))
    parts.change_bucket(0, pack({pack([0, *[10**18] * 300]): [0, 7, 0]}))
    with pytest.raises(InvalidTableError, match="a key of 6000 signs; at most 4096 are allowed"):
        list(Table(put_together(parts), "forged.msgpack").items())


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (pack(None), r"expected \[template, parameters\]"),
        (pack([]), r"expected \[template, parameters\]"),
        (pack([0]), r"expected \[template, parameters\]"),
        (pack([0, {}, 0]), r"expected \[template, parameters\]"),
        (pack([0, []]), r"expected \[template, parameters\]"),
        (pack([0, [["x", 1]]]), r"expected \[template, parameters\]"),
        (pack([0, None]), r"expected \[template, parameters\]"),
        (pack({"a": 1, "b": 2}), r"expected \[template, parameters\]"),
        (pack("ab"), r"expected \[template, parameters\]"),
        *((pack([bad, {}]), "template .* does not exist") for bad in NO_NUMBERS),
        (pack([0, {f"p{n}": 0 for n in range(65)}]), "65 parameters; at most 64 are allowed"),
        (b"\x92\x00" + pack_pairs([("x", 1), ("x", 2)]), "a map has a key twice"),
        (b"\x92\x00" + pack_pairs([(4, 4)]), "not valid msgpack: .*map"),
        (pack([0, {"x": msgpack.ExtType(5, b"")}]), "extension type 5 is not allowed"),
        (pack([0, {"x": msgpack.Timestamp(5)}]), "not valid msgpack"),
        (b"\x92\x00\x81\xa1x\xa1\xff", "not valid msgpack"),
        (b"", "not valid msgpack"),
    ],
)
def test_configurations_that_are_refused(record: bytes, problem: str) -> None:
    """A configuration is checked when the first entry that has it is looked up."""
    parts = take_apart(ONE)
    parts.records[0] = record
    table = Table(put_together(parts), "forged.msgpack")
    assert table.lookup("a 6") == ()
    for _ in range(2):
        with pytest.raises(InvalidTableError, match=problem) as caught:
            table.lookup("a 5")
        assert caught.value.where == "configs[0]"


VALUES = list(PROOF)
NO_PROOFS: list[Any] = [
    *(None, 5, True, "x", [], [VALUES], {}),
    *(pack(None), pack(5), pack({}), pack([]), pack([VALUES, VALUES]), pack([None, None])),
]
"""What may not stand behind the numbers of a key's one entry."""


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        *(
            ([0, 7, 0, bad], "expected a bin of a list with a proof or nil for 1 entries")
            for bad in NO_PROOFS
        ),
        *(
            ([0, 7, 0, pack([bad])], "expected spread_ns, rounds, aten_ns, host_ns, previous_ns")
            for bad in [[], VALUES[:4], [*VALUES, 0], 5, "abcde", b"\0" * 5, {}, False]
        ),
        *(
            ([0, 7, 0, pack([[*VALUES[:at], bad, *VALUES[at + 1 :]]])], f"{name}: .* whole number")
            for at, name in enumerate(Proof._fields)
            for bad in BAD_COUNTS[0 if name in ("spread_ns", "rounds") else 1 :]
        ),
        ([0, 7, 0, b""], "not valid msgpack"),
        ([0, 7, 0, pack([VALUES])[:-1]], "not valid msgpack"),
        ([0, 7, 0, pack([VALUES]) + b"\0"], "not valid msgpack"),
        ([0, 7, 0, b"\xdd\xff\xff\xff\xff"], "not valid msgpack"),
        ([0, 7, 0, pack([msgpack.ExtType(5, b"")])], "extension type 5 is not allowed"),
        ([0, 7, 0, pack([VALUES]), pack([VALUES])], "expected three numbers an entry"),
        ([pack([VALUES])], "expected three numbers an entry"),
    ],
)  # fmt: skip
def test_proofs_that_are_refused(found: list[Any], problem: str) -> None:
    """A proof is checked when its key is looked up, and costs no other key."""
    parts = take_apart(ONE_PROVED)
    parts.change_bucket(0, pack({KEY: found, pack([0, 6]): [0, 7, 0]}))
    table = Table(put_together(parts), "forged.msgpack")
    assert table.lookup("a 6") == (entry(config(x=1), 7),)
    with pytest.raises(InvalidTableError, match=problem) as caught:
        table.lookup("a 5")
    assert caught.value.where.startswith("buckets[0]")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("name", [n for n in EVIL_NAMES if isinstance(n, (str, bytes))], ids=ascii)
def test_evil_names_in_a_table(name: str | bytes) -> None:
    """No name that is not a plain identifier gets out of a table."""
    parts = take_apart(ONE)
    parts.records[0] = b"\x92\x00" + pack_pairs([(name, 4)])
    with pytest.raises(InvalidTableError, match=r"configs\[0\]: .*(identifier|be a parameter)"):
        Table(put_together(parts), "forged.msgpack").lookup("a 5")


@pytest.mark.parametrize(
    "value",
    [*EVIL_TEXTS, 0.5, float("nan"), float("inf"), [], [4], {}, {"a": 1}, b"x", 2**31, 2**64 - 1],
    ids=ascii,
)
def test_evil_values_in_a_table(value: Any) -> None:
    """No value that could be more than a number or a dtype gets out of a table."""
    parts = take_apart(ONE)
    parts.records[0] = pack([0, {"num_warps": value}])
    with pytest.raises(InvalidTableError, match=r"configs\[0\]\.num_warps: .*(allowed|range)"):
        Table(put_together(parts), "forged.msgpack").lookup("a 5")


def test_nothing_is_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a table of injections compiles and runs nothing."""
    for name in ("eval", "exec", "compile", "__import__"):
        monkeypatch.setattr(f"builtins.{name}", lambda *a, **k: pytest.fail("evaluated"))
    refused = 0
    for value in EVIL_TEXTS:
        parts = take_apart(ONE)
        parts.records[0] = pack([0, {"num_warps": value}])
        try:
            Table(put_together(parts), "forged.msgpack").lookup("a 5")
        except InvalidTableError:
            refused += 1
    monkeypatch.undo()
    assert refused == len(EVIL_TEXTS)


def swapped_index(parts: Parts) -> None:
    """Exchange two configurations without renumbering."""
    parts.records[0], parts.records[1] = parts.records[1], parts.records[0]


def unused_config(parts: Parts) -> None:
    """Add a configuration that no entry has."""
    parts.records.insert(parts.header["config_count"], pack([0, {"y": 1}]))
    parts.header["config_count"] += 1


def reversed_bucket(parts: Parts) -> None:
    """Write a bucket in another order."""
    held = msgpack.unpackb(parts.buckets[0], raw=False)
    parts.change_bucket(0, dict(reversed(held.items())))


def slower_first(parts: Parts) -> None:
    """Write a key's entries in another order."""
    held = msgpack.unpackb(parts.buckets[0], raw=False)
    parts.change_bucket(0, {key: [*rows[3:], *rows[:3]] for key, rows in held.items()})


def proofs_of_none(parts: Parts) -> None:
    """Spell out that no entry of a key has a proof."""
    for number, bucket in enumerate(parts.buckets):
        held = msgpack.unpackb(bucket, raw=False)
        rows = {
            key: found if len(found) % 3 else [*found, pack([None] * (len(found) // 3))]
            for key, found in held.items()
        }
        parts.change_bucket(number, rows)


def longer_numbers(parts: Parts) -> None:
    """Write a number of a proof in a longer form."""
    for number, bucket in enumerate(parts.buckets):
        held = msgpack.unpackb(bucket, raw=False)
        longer = pack(PROOF)[:1] + b"\xcd\x00\x3c"
        rows = {
            key: [
                n.replace(pack(PROOF)[:2], longer, 1) if isinstance(n, bytes) else n for n in found
            ]
            for key, found in held.items()
        }
        parts.change_bucket(number, rows)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (header_with(proof_count=0), "does not re-encode"),
        (header_with(proof_count=2), "does not re-encode"),
        (proofs_of_none, "does not re-encode"),
        (longer_numbers, "does not re-encode"),
    ],
)
def test_verify_finds_proofs_that_are_not_canonical(change: Change, problem: str) -> None:
    """Counts that are wrong and other spellings of the same proofs fail the check."""
    parts = take_apart(PROVED_BYTES)
    change(parts)
    table = Table(put_together(parts), "forged.msgpack")
    assert dict(table.items()) == PROVED
    with pytest.raises(InvalidTableError, match=problem):
        table.verify()


def test_format_version_2_without_proofs_is_not_canonical() -> None:
    """What has no proofs is written in version 1, and in no other."""
    parts = take_apart(BYTES)
    parts.version, parts.header["proof_count"] = 2, 0
    table = Table(put_together(parts), "forged.msgpack")
    assert dict(table.items()) == contents(BYTES)
    with pytest.raises(InvalidTableError, match="does not re-encode to the same bytes"):
        table.verify()


def test_proofs_in_format_version_1_are_refused() -> None:
    """Version 1 never had any: there it is no table that any release wrote."""
    parts = take_apart(ONE)
    parts.change_bucket(0, pack({KEY: [0, 7, 0, pack([VALUES])]}))
    with pytest.raises(InvalidTableError, match="expected three numbers an entry"):
        Table(put_together(parts), "forged.msgpack").lookup("a 5")


def emptied_bucket(parts: Parts) -> None:
    """Leave the keys of a bucket out."""
    parts.change_bucket(0, {})


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (header_with(key_count=5), "header.key_count: 5, but 4 keys exist"),
        (header_with(key_count=0), "header.key_count: 0, but 4 keys exist"),
        (header_with(entry_count=7), "does not re-encode to the same bytes"),
        (header_with(table_version="2026.01"), "does not re-encode to the same bytes"),
        (lambda p: p.header["templates"].append(["a::b", None]), "does not re-encode"),
        (lambda p: p.header["skeletons"].append("x"), "does not re-encode"),
        (lambda p: p.header["sources"].append(p.header["sources"][0]), "does not re-encode"),
        (lambda p: p.header.update(sorted(p.header.items(), reverse=True)), None),
        (swapped_index, "does not re-encode"),
        (unused_config, "does not re-encode"),
        (reversed_bucket, "does not re-encode"),
        (slower_first, "does not re-encode"),
        (emptied_bucket, "but 0 keys exist"),
    ],
)
def test_verify_finds_what_is_not_canonical(change: Change, problem: str | None) -> None:
    """A table whose digests are right but that the writer would not write fails its check."""
    parts = take_apart(BYTES)
    change(parts)
    table = Table(put_together(parts), "forged.msgpack")
    if problem is None:
        table.verify()
        return
    with pytest.raises(InvalidTableError, match=problem):
        table.verify()


# Files.


def test_a_file_is_read_like_bytes(tmp_path: Path) -> None:
    """A file with spaces and colons in its path gives what its bytes give, and its name."""
    path = tmp_path / "a folder: with signs" / "gemm.msgpack"
    path.parent.mkdir()
    path.write_bytes(BYTES)
    table = Table.open(path)
    assert dict(table.items()) == contents(BYTES)
    assert (table.resource, table.digest) == (str(path), Table(BYTES, "x").digest)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """No such file, a folder: the system's own error. An empty file is no table."""
    with pytest.raises(FileNotFoundError, match="no_such"):
        Table.open(tmp_path / "no_such")
    with pytest.raises(IsADirectoryError, match="directory"):
        Table.open(tmp_path)
    (tmp_path / "empty").touch()
    with pytest.raises(InvalidTableError, match="empty: magic: not an inductor-tables table"):
        Table.open(tmp_path / "empty")


def test_a_file_that_shrinks_under_an_open_table(tmp_path: Path) -> None:
    """A file cut short by another process is an error of ours, not the end of this process."""
    path = tmp_path / "gemm.msgpack"
    held = {f"key {n}": (entry(ATEN, n),) for n in range(5000)}
    path.write_bytes(write(held))
    code = """if True:
        import os, sys
        from pathlib import Path
        from inductor_tables.errors import InvalidTableError
        from inductor_tables.table import Table
        path = Path(sys.argv[1])
        table = Table.open(path)
        os.truncate(path, 4096)
        try:
            table.lookup("key 4321")
        except InvalidTableError as error:
            print(error.problem)
    """
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (
        0,
        "the digest does not match: the file was changed or damaged\n",
    )


def test_a_file_that_changes_under_an_open_table(tmp_path: Path) -> None:
    """Overwritten in place: an error. Replaced: the open table goes on with the old one."""
    path = tmp_path / "gemm.msgpack"
    path.write_bytes(BYTES)
    table = Table.open(path)
    new = tmp_path / "new"
    new.write_bytes(write({}))
    new.replace(path)
    assert table.lookup(MM) == SMALL[MM]
    path.write_bytes(BYTES)
    table = Table.open(path)
    with path.open("r+b") as file:
        file.seek(-100, os.SEEK_END)
        file.write(b"\x00" * 100)
    with pytest.raises(InvalidTableError, match="the digest does not match"):
        list(table.items())


def test_a_file_that_can_no_longer_be_read(tmp_path: Path) -> None:
    """A read error after opening is an error of the table, which callers know to survive."""
    path = tmp_path / "gemm.msgpack"
    path.write_bytes(BYTES)
    table = Table.open(path)
    directory = os.open(tmp_path, os.O_RDONLY)
    os.dup2(directory, table._data._descriptor)  # type: ignore[union-attr]
    os.close(directory)
    with pytest.raises(InvalidTableError, match=r"buckets\[\d+\]: cannot be read: "):
        table.lookup(MM)


def test_a_table_that_is_gone_closes_its_file(tmp_path: Path) -> None:
    """No descriptor is left behind, whether the table opened or not."""
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_bytes(BYTES)
    bad.write_bytes(BYTES[:-1])
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(20):
        Table.open(good).lookup(MM)
        with pytest.raises(InvalidTableError, match="cut short"):
            Table.open(bad)
    gc.collect()
    assert set(os.listdir("/proc/self/fd")) == before


def test_opening_reads_no_record(tmp_path: Path) -> None:
    """A table opens although every record in it is damaged."""
    parts = take_apart(BYTES)
    size = sum(map(len, parts.records))
    path = tmp_path / "gemm.msgpack"
    path.write_bytes(BYTES[:-size] + b"\xc1" * size)
    table = Table.open(path)
    assert len(table) == 4
    with pytest.raises(InvalidTableError, match="the digest does not match"):
        table.lookup(MM)


def test_threads_share_a_table(tmp_path: Path) -> None:
    """Look-ups from many threads at once give every one its own key's entries."""
    held = {f"key {n}": (entry(config(BLOCK_M=n), n),) for n in range(200)}
    path = tmp_path / "gemm.msgpack"
    path.write_bytes(write(held))
    table, wrong = Table.open(path), list[str]()

    def look_up() -> None:
        wrong.extend(key for key in held if table.lookup(key) != held[key])

    threads = [threading.Thread(target=look_up) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_forked_child_shares_a_table(tmp_path: Path) -> None:
    """Parent and child read the one open file without moving each other's place in it."""
    held = {f"key {n}": (entry(ATEN, n),) for n in range(500)}
    path = tmp_path / "gemm.msgpack"
    path.write_bytes(write(held))
    code = """if True:
        import os, sys
        from pathlib import Path
        from inductor_tables.table import Table
        table = Table.open(Path(sys.argv[1]))
        child = os.fork()
        for _ in range(20):
            assert all(table.lookup(f"key {n}")[0].time_ns == n for n in range(500))
        if child:
            assert os.waitpid(child, 0)[1] == 0
    """
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)


@settings(max_examples=20)
@given(st.integers(1, 400))
def test_every_count_of_keys(count: int) -> None:
    """No size of a table leaves a key out of reach."""
    held = {f"{n} of {count}": (entry(ATEN, n),) for n in range(count)}
    table = Table(write(held), "sample")
    assert all(table.lookup(key) == listed for key, listed in held.items())
    table.verify()


def test_the_format_version_is_the_golden_one() -> None:
    """Whoever raises the version adds a golden file and keeps reading the old ones."""
    assert FORMAT_VERSION == 2
    assert {path.name for path in GOLDEN.iterdir()} == {
        f"format{version}.{form}" for version in (1, 2) for form in ("msgpack", "json")
    }


@VERSIONS
def test_the_documented_reader_reads_tables(version: int) -> None:
    """The reader in docs/format.md gives what this one gives, for keys that are there and not."""
    text = (Path(__file__).parents[1] / "docs" / "format.md").read_text(encoding="utf-8")
    documented: dict[str, Any] = {}
    exec(text.partition("```python\n")[2].partition("```")[0], documented)
    data = (GOLDEN / f"format{version}.msgpack").read_bytes()
    table = Table(data, "golden")
    for key in (*table.keys(), NEAR_MM, "", "#", "18446744073709551616"):
        assert documented["look_up"](data, key) == [
            (
                [e.config.template_id, e.config.template_hash],
                dict(e.config.params),
                e.time_ns,
                list(asdict(e.source).values()),
                None if e.proof is None else list(e.proof),
            )
            for e in table.lookup(key)
        ]
    assert documented["look_up"](write({}), MM) == []
