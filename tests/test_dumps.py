"""The dump file form: what is read, what is refused, and what is written."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import random
import re
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proof_strategies import counts, proofs

from inductor_tables import dumps
from inductor_tables.dumps import (
    Row,
    make_row,
    parse_dump,
    read_dump,
    render_dump,
    write_atomically,
)
from inductor_tables.errors import InvalidDumpError
from inductor_tables.provenance import provenance
from inductor_tables.schema import Config, Proof

KEY = "NVIDIA H200+((torch.bfloat16, [16, 64], [64, 1]), (torch.bfloat16, [64, 32], [1, 64]))+mm"
OTHER_KEY = "((torch.float16, [8, 8], [8, 1]), (torch.float16, [8, 8], [8, 1]))+alpha=1&beta=0+mm"
PLACE = re.escape(f"[{json.dumps(KEY)}]")
HASH = hashlib.sha256(b"template").hexdigest()
ATEN = {"template_id": "aten::mm"}
TRITON = {
    "template_id": "triton::mm",
    "ACC_TYPE": "tl.float32",
    "BLOCK_M": 16,
    "EVEN_K": True,
    "hint_override": None,
    "template_hash": HASH,
}
PROVENANCE = {
    "torch": "2.13.0+cu130",
    "triton": "3.7.1",
    "cuda": "13.0",
    "hip": None,
    "driver": "580.1",
    "device": "NVIDIA H200",
    "arch": "NVIDIA H200",
    "sm_count": 132,
    "clocks": "sm 1980 MHz, memory 3201 MHz",
    "date": "2026-01-02T03:04:05+00:00",
}


PROOF: dict[str, Any] = {
    "spread_ns": 40,
    "aten_ns": 9900,
    "host_ns": 9800,
    "previous_ns": None,
    "rounds": 24,
}


def ours(**changes: Any) -> dict[str, Any]:
    """Return a dump of ours with two rows; ``changes`` replace reserved fields."""
    reserved = {
        "format_version": 1,
        "provenance": PROVENANCE,
        "ranks": {KEY: [0, 1]},
        "timings_ns": {KEY: [9760, None]},
        **changes,
    }
    return {"inductor-tables": reserved, KEY: [TRITON, ATEN]}


def parsed(content: Any) -> dumps.Dump:
    """Parse what JSON makes of ``content``."""
    return parse_dump(json.dumps(content).encode(), "dump.json")


def test_reads_rows_times_ranks_and_provenance() -> None:
    """Every field of a dump of ours reaches its record."""
    dump = parsed(ours())
    assert [(r.key, r.time_ns, r.rank) for r in dump.rows] == [(KEY, 9760, 0), (KEY, None, 1)]
    assert [dict(row.config.plain) for row in dump.rows] == [TRITON, ATEN]
    assert not dump.plain
    assert dump.arch == "NVIDIA H200"
    described = dataclasses.asdict(dump.source)
    assert described.pop("dump_digest") == dump.digest
    assert described.pop("carried") is None
    assert described == {name: value for name, value in PROVENANCE.items() if name != "arch"}


def test_reads_proofs() -> None:
    """Entry by entry; keys that are left out have none, as all have in a dump without."""
    dump = parsed({**ours(proofs={KEY: [PROOF, None]})})
    assert [row.proof for row in dump.rows] == [Proof(**PROOF), None]
    assert [row.proof for row in parsed(ours()).rows] == [None, None]
    assert [row.proof for row in parsed(ours(proofs={})).rows] == [None, None]


def test_reads_a_plain_dump() -> None:
    """Without the reserved name there are no times and the position is the rank."""
    dump = parsed({KEY: [ATEN, TRITON], OTHER_KEY: []})
    assert dump.plain
    assert dump.arch is None
    assert [(row.time_ns, row.rank) for row in dump.rows] == [(None, 0), (None, 1)]
    assert dump.plain_table() == {KEY: [ATEN, TRITON]}


def test_plain_form_is_readable_both_ways() -> None:
    """The host finds plain entries in a dump of ours, and what it holds reads back."""
    rendered = render_dump(parsed(ours()).rows, PROVENANCE)
    as_the_host_sees_it = json.loads(rendered)
    assert as_the_host_sees_it[KEY] == [TRITON, ATEN]
    del as_the_host_sees_it["inductor-tables"]
    again = parsed(as_the_host_sees_it)
    assert [row.config for row in again.rows] == [row.config for row in parsed(ours()).rows]


def test_recorded_data_of_the_host_reads(tmp_path: Path) -> None:
    """A file in the host's plain form reads, and its digest is that of its bytes."""
    file = tmp_path / "plain.json"
    file.write_text(json.dumps({KEY: [ATEN]}, indent=2))
    dump = read_dump(file)
    assert dump.resource == str(file)
    assert dump.digest == hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest()


def test_rows_of_another_device_get_no_device() -> None:
    """On a box with two GPU models the described device vouches for its own rows only."""
    foreign = KEY.replace("H200", "L4")
    rows = [make_row(key, ATEN, time_ns=1, rank=0) for key in (KEY, OTHER_KEY, foreign)]
    dump = parse_dump(render_dump(rows, PROVENANCE), "dump.json")
    sources = {row.key: dump.source_of(row) for row in dump.rows}
    assert sources[KEY] == sources[OTHER_KEY] == dump.source
    assert sources[foreign].torch == "2.13.0+cu130"
    assert (sources[foreign].device, sources[foreign].sm_count, sources[foreign].clocks) == (
        None,
        None,
        None,
    )


TEXT_ERRORS = {
    "empty": (b"", "JSON: not valid JSON in UTF-8: Expecting value: line 1 column 1"),
    "cut short": (b'{"a": [', "JSON: not valid JSON"),
    "two files glued together": (b"{}\n{}", "JSON: not valid JSON in UTF-8: Extra data: line 2"),
    "NaN": (b'{"a": NaN}', "JSON: .*NaN is no JSON"),
    "Infinity": (b'{"a": [-Infinity]}', "JSON: .*-Infinity is no JSON"),
    "not UTF-8": (b'{"\xff": 1}', "JSON: not valid JSON in UTF-8: 'utf-8' codec"),
    "byte order mark": (b"\xef\xbb\xbf{}", "JSON: .*BOM"),
    "UTF-16": ("{}".encode("utf-16"), "JSON: not valid JSON in UTF-8"),
    "nested lists": (b"[" * 200_000, "JSON: lists or objects are nested too deeply"),
    "nested objects": (b'{"a":' * 200_000, "JSON: lists or objects are nested too deeply"),
    "huge int": (b'{"a": ' + b"9" * 5000 + b"}", "JSON: .*Exceeds the limit"),
    "a list": (b"[]", "top level: expected an object, found list"),
    "null": (b"null", "top level: expected an object, found NoneType"),
    "repeated key": (
        b'{"b": [], "a": [], "b": []}',
        "top level: the name 'b' stands twice in one object",
    ),
    "repeated parameter": (
        f'{{{json.dumps(KEY)}: [{{"template_id": "aten::mm", "A": 1, "A": 2}}]}}'.encode(),
        rf"{PLACE}\[0\]: the name 'A' stands twice in one object",
    ),
}


@pytest.mark.parametrize("case", TEXT_ERRORS)
def test_refuses_broken_text(case: str) -> None:
    """What is no strict JSON object is refused, with the file and the place."""
    data, message = TEXT_ERRORS[case]
    with pytest.raises(InvalidDumpError, match=rf"^dump\.json: {message}"):
        parse_dump(data, "dump.json")


def entry(**changes: Any) -> dict[str, Any]:
    """Return a plain dump whose only entry has these fields beside its template id."""
    return {KEY: [{**ATEN, **changes}]}


RESERVED = re.escape('["inductor-tables"]')
ROW_ERRORS: dict[str, tuple[Any, str]] = {
    "no lookup key": ({"mm": []}, r'\["mm"\]: not a lookup key: \'mm\''),
    "key with a control sign": ({KEY + "\n": []}, r"\[.*\\n\"\]: not a lookup key"),
    "key too long": ({"x" * 5000: []}, r'\["x{200}"\]: not a lookup key'),
    "entries no list": ({KEY: {}}, f"{PLACE}: expected a list, found dict"),
    "too many entries": ({KEY: [ATEN] * 4097}, f"{PLACE}: 4097 items; at most 4096"),
    "entry no object": ({KEY: [ATEN, 3]}, rf"{PLACE}\[1\]: expected an object, found int"),
    "no template": ({KEY: [{}]}, rf"{PLACE}\[0\]: the entry has no template_id"),
    "template id": (entry(template_id="m m"), rf"{PLACE}\[0\]\.template_id: 'm m' is not"),
    "template hash": (entry(template_hash="1"), rf"{PLACE}\[0\]\.template_hash: '1' is not"),
    "name": (entry(**{"a b": 1}), rf"{PLACE}\[0\]: parameter name 'a b'"),
    "float": (entry(num_warps=4.0), rf"{PLACE}\[0\]\.num_warps: 4\.0 is not allowed"),
    "overflowing float": (entry(A=1e308 * 10), r"JSON: .*Infinity"),
    "code": (entry(num_warps="(print('x') or 4)"), rf"{PLACE}\[0\]\.num_warps: .* not allowed"),
    "list": (entry(num_warps=[4]), rf"{PLACE}\[0\]\.num_warps: \[4\] is not allowed"),
    "big int": (entry(num_warps=2**31), rf"{PLACE}\[0\]\.num_warps: 2147483648 is out of range"),
    "bigger int": (
        entry(num_warps=10**999),
        rf"{PLACE}\[0\]\.num_warps: 1000*\.\.\. is out of range",
    ),
}
FIELD_ERRORS: dict[str, tuple[dict[str, Any], str]] = {
    "version": ({"format_version": 2}, r"\.format_version: 2 is not known here"),
    "version true": ({"format_version": True}, r"\.format_version: True is not known here"),
    "unknown field": ({"more": 1}, ": expected the fields format_version, provenance"),
    "proofs no object": ({"proofs": []}, r"\.proofs: expected an object, found list"),
    "proofs null": ({"proofs": None}, r"\.proofs: expected an object, found NoneType"),
    "proofs of a key more": ({"proofs": {"x": []}}, r'\.proofs\["x"\]: not a key of the dump'),
    "proofs no list": ({"proofs": {KEY: PROOF}}, rf"\.proofs{PLACE}: expected a list, found dict"),
    "proofs too few": ({"proofs": {KEY: [PROOF]}}, rf"\.proofs{PLACE}: 1 proofs for 2 entries"),
    "proof a list": (
        {"proofs": {KEY: [None, [40, 1, 1, 1, 24]]}},
        rf"\.proofs{PLACE}\[1\]: expected an object, found list",
    ),
    "proof without a field": (
        {"proofs": {KEY: [{**PROOF, "rounds": 1, "noise": 2}, None]}},
        rf"\.proofs{PLACE}\[0\]: expected null or the fields spread_ns, rounds, aten_ns, host_ns",
    ),
    "proof lacks a field": (
        {"proofs": {KEY: [None, {"spread_ns": 1, "rounds": 1}]}},
        rf"\.proofs{PLACE}\[1\]: expected null or the fields spread_ns",
    ),
    "spread null": (
        {"proofs": {KEY: [{**PROOF, "spread_ns": None}, None]}},
        rf"\.proofs{PLACE}\[0\]\.spread_ns: None is not a whole number",
    ),
    "rounds a float": (
        {"proofs": {KEY: [None, {**PROOF, "rounds": 12.0}]}},
        rf"\.proofs{PLACE}\[1\]\.rounds: 12\.0 is not a whole number",
    ),
    "incumbent negative": (
        {"proofs": {KEY: [None, {**PROOF, "host_ns": -1}]}},
        rf"\.proofs{PLACE}\[1\]\.host_ns: -1 is not a whole number",
    ),
    "provenance": ({"provenance": []}, r"\.provenance: expected an object, found list"),
    "unknown provenance": ({"provenance": {"gpu": "x"}}, r"\.provenance: unknown field 'gpu'"),
    "torch type": ({"provenance": {"torch": 2}}, r"\.provenance\.torch: 2 is not a text"),
    "torch": ({"provenance": {"torch": "new"}}, r"\.provenance\.torch: not a torch version"),
    "text": ({"provenance": {"date": "\n"}}, r"\.provenance\.date: '\\n'"),
    "surrogate": ({"provenance": {"date": "\ud800"}}, r"\.provenance\.date: .*ud800"),
    "SM count": ({"provenance": {"sm_count": -1}}, r"\.provenance\.sm_count: -1 is not a whole"),
    "times no object": ({"timings_ns": [1, 2]}, r"\.timings_ns: expected an object, found list"),
    "times of no key": ({"timings_ns": {}}, rf"\.timings_ns: {re.escape(repr(KEY))} is not both"),
    "times of a key more": (
        {"timings_ns": {KEY: [1, 2], "x": []}},
        r"\.timings_ns: 'x' is not both here and a key of the dump",
    ),
    "times too few": ({"timings_ns": {KEY: [1]}}, rf"\.timings_ns{PLACE}: 1 numbers for 2 entries"),
    "times no list": ({"timings_ns": {KEY: 1}}, rf"\.timings_ns{PLACE}: expected a list"),
    "time a float": ({"timings_ns": {KEY: [1, 2.5]}}, rf"\.timings_ns{PLACE}\[1\]: 2\.5 is not"),
    "time negative": ({"timings_ns": {KEY: [-1, 2]}}, rf"\.timings_ns{PLACE}\[0\]: -1 is not"),
    "time a bool": ({"timings_ns": {KEY: [True, 2]}}, rf"\.timings_ns{PLACE}\[0\]: True is not"),
    "time huge": ({"timings_ns": {KEY: [2**54, 2]}}, rf"\.timings_ns{PLACE}\[0\]: \d+ is not"),
    "rank null": ({"ranks": {KEY: [0, None]}}, rf"\.ranks{PLACE}\[1\]: None is not a whole"),
    "ranks too many": ({"ranks": {KEY: [0, 1, 2]}}, rf"\.ranks{PLACE}: 3 numbers for 2 entries"),
}


@pytest.mark.parametrize("case", ROW_ERRORS)
def test_refuses_a_bad_row(case: str) -> None:
    """A key or entry that may not go into a table is refused, with its place."""
    content, message = ROW_ERRORS[case]
    with pytest.raises(InvalidDumpError, match=rf"^dump\.json: {message}"):
        parsed(content)


@pytest.mark.parametrize("case", FIELD_ERRORS)
def test_refuses_a_bad_reserved_field(case: str) -> None:
    """Provenance, times and ranks are held to their types and to the entries."""
    changes, message = FIELD_ERRORS[case]
    with pytest.raises(InvalidDumpError, match=rf"^dump\.json: {RESERVED}{message}"):
        parsed(ours(**changes))


@pytest.mark.parametrize("reserved", [None, [], "x", 1])
def test_refuses_a_reserved_value_of_another_type(reserved: Any) -> None:
    """The reserved name holds an object, also when it is null."""
    with pytest.raises(InvalidDumpError, match=rf"{RESERVED}: expected an object"):
        parsed({"inductor-tables": reserved})


def test_refuses_a_file_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size is checked before anything is read."""
    file = tmp_path / "large.json"
    file.write_bytes(b"{}" + b" " * 100)
    monkeypatch.setattr(dumps, "MAX_DUMP_BYTES", 101)
    with pytest.raises(InvalidDumpError, match=r"large\.json: file: 102 bytes; at most 101"):
        read_dump(file)


def test_a_damaged_dump_is_refused_or_still_checked() -> None:
    """No change of single bytes gets anything past the checks but InvalidDumpError."""
    good = bytearray(json.dumps(ours()).encode())
    chance = random.Random(7)
    for _ in range(2000):
        data = bytearray(good)
        data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            dump = parse_dump(bytes(data), "dump.json")
        except InvalidDumpError:
            continue
        render_dump(dump.rows, {})


keys = st.builds(
    "{}((torch.{}, [{}, 8], [8, 1]), (torch.bfloat16, [8, {}], [1, 8]))+{}".format,
    st.sampled_from(["", "NVIDIA H200+", "gfx942:sramecc+:xnack-+"]),
    st.sampled_from(["bfloat16", "float8_e4m3fn"]),
    st.integers(1, 9),
    st.integers(1, 9),
    st.sampled_from(["mm", "alpha=1&beta=0.5+addmm"]),
)
param_names = st.from_regex(r"[A-Z][A-Za-z0-9_]{0,6}", fullmatch=True).filter(
    lambda name: name not in ("False", "None", "True")
)
param_values = (
    st.none()
    | st.booleans()
    | st.integers(-(2**31) + 1, 2**31 - 1)
    | st.sampled_from(["tl.float32", "torch.bfloat16"])
)
configs = st.builds(
    lambda template_id, template_hash, params: Config(
        template_id=template_id,
        template_hash=template_hash,
        params=tuple(sorted(params.items())),
    ),
    st.sampled_from(["aten::mm", "triton::mm", "triton::persistent_tma_mm"]),
    st.none() | st.just(HASH),
    st.dictionaries(param_names, param_values, max_size=4),
)
rows_of_dumps = st.lists(
    st.builds(
        Row,
        key=keys,
        config=configs,
        time_ns=st.none() | counts,
        rank=st.integers(0, 30),
        proof=st.none() | proofs,
    ),
    max_size=12,
)
texts = st.none() | st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=256)
provenances = st.fixed_dictionaries(
    {"torch": st.none() | st.sampled_from(["2.13.0+cu130", "2.14.0a0+git12"])},
    optional={
        "arch": texts,
        "clocks": texts,
        "date": texts,
        "device": texts,
        "sm_count": st.none() | st.integers(0, 999),
    },
)


def content(row: Row) -> tuple[Any, ...]:
    """Return what a row holds, with True and 1 apart."""
    return (row.key, row.time_ns, row.rank, row.config.order, row.proof)


@settings(max_examples=150)
@given(rows=rows_of_dumps, described=provenances, chance=st.randoms())
def test_round_trip(rows: list[Row], described: dict[str, Any], chance: random.Random) -> None:
    """What is rendered reads back whole, and the order of the rows does not matter."""
    data = render_dump(rows, described)
    dump = parse_dump(data, "dump.json")
    assert sorted(map(content, dump.rows), key=repr) == sorted(map(content, rows), key=repr)
    assert dump.arch == described.get("arch")
    for name, value in described.items():
        assert name == "arch" or getattr(dump.source, name) == value
    chance.shuffle(rows)
    assert render_dump(rows, dict(reversed(described.items()))) == data
    assert render_dump(dump.rows, described) == data


@settings(max_examples=100)
@given(rows=rows_of_dumps)
def test_rows_are_sorted_by_key_and_time(rows: list[Row]) -> None:
    """A dump lists its keys by their text, and entries fastest first, unknown times last."""
    found = parse_dump(render_dump(rows, {}), "dump.json").rows
    order = [(row.key, row.time_ns is None, row.time_ns or 0) for row in found]
    assert order == sorted(order)


def test_golden_bytes_of_format_version_1() -> None:
    """The bytes of a small dump, written out."""
    rows = [make_row("((torch.half, [1], [1]),)+mm", ATEN, time_ns=5, rank=0)]
    assert render_dump(rows, {"torch": "2.13.0", "sm_count": None}).decode() == (
        '{\n"inductor-tables": {\n "format_version": 1,\n'
        ' "provenance": {"sm_count": null, "torch": "2.13.0"},\n'
        ' "ranks": {"((torch.half, [1], [1]),)+mm": [0]},\n'
        ' "timings_ns": {"((torch.half, [1], [1]),)+mm": [5]}},\n'
        '"((torch.half, [1], [1]),)+mm": [{"template_id": "aten::mm"}]\n}\n'
    )


def test_golden_bytes_of_proofs() -> None:
    """They come last; keys and dumps without any are as they were."""
    one, other = "((torch.half, [1], [1]),)+mm", "((torch.half, [2], [1]),)+mm"
    proof = Proof(spread_ns=1, aten_ns=5, host_ns=6, rounds=12)
    rows = [
        make_row(one, ATEN, time_ns=5, rank=1, proof=proof),
        make_row(one, TRITON, time_ns=4, rank=0),
        make_row(other, ATEN, time_ns=5, rank=0),
    ]
    assert render_dump(rows, {}).decode().partition(' "timings_ns"')[2].partition("\n(")[0] == (
        f': {{"{one}": [4, 5], "{other}": [5]}},\n'
        f' "proofs": {{"{one}": [null, {{"spread_ns": 1, "rounds": 12, "aten_ns": 5, '
        '"host_ns": 6, "previous_ns": null}]}},\n'
        f'"{one}": [{json.dumps(TRITON)}, {{"template_id": "aten::mm"}}],\n'
        f'"{other}": [{{"template_id": "aten::mm"}}]\n}}\n'
    )


@pytest.mark.parametrize(
    ("described", "message"),
    [
        ({"host": "a"}, "provenance: unknown field 'host'; known: torch, triton"),
        ({"torch": "new"}, "provenance.torch: not a torch version"),
        ({"date": 5}, "provenance.date: 5 is not a text"),
    ],
)
def test_refuses_to_write_what_it_would_not_read(described: dict[str, Any], message: str) -> None:
    """The writer holds provenance to the reader's rules."""
    with pytest.raises(InvalidDumpError, match=message):
        render_dump([], described)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"key": "mm"}, "recording: key: not a lookup key"),
        ({"entry": {**TRITON, "A": object}}, r"recording: triton::mm\.A: .* is not allowed"),
        ({"entry": [1]}, "recording: entry: expected an entry as a map"),
        ({"time_ns": -1}, "recording: time_ns: -1 is not a whole number"),
        ({"rank": None}, "recording: rank: None is not a whole number"),
        (
            {"proof": Proof(spread_ns=-1, rounds=1)},
            r"recording: proof\.spread_ns: -1 is not a whole number",
        ),
    ],
)
def test_make_row_refuses(changes: dict[str, Any], message: str) -> None:
    """A row is checked as it is made, by the reader's rules."""
    with pytest.raises(InvalidDumpError, match=message):
        make_row(**{"key": KEY, "entry": TRITON, "time_ns": 1, "rank": 0, **changes})


def test_provenance_of_this_process_fits_a_dump() -> None:
    """What this process says of itself can be written and read."""
    found = provenance("NVIDIA H200")
    dump = parse_dump(render_dump([], found), "dump.json")
    assert dump.source.triton == found["triton"]
    assert tuple(found) == dumps.PROVENANCE_FIELDS


def test_writes_atomically(tmp_path: Path) -> None:
    """A file is made and replaced, readable by others as the umask allows; nothing is left."""
    umask = os.umask(0o022)
    try:
        path = tmp_path / "inductor_lut_a.json"
        write_atomically(path, b"old")
        write_atomically(path, b"new")
    finally:
        os.umask(umask)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert os.listdir(tmp_path) == [path.name]


def test_exclusive_write_never_replaces(tmp_path: Path) -> None:
    """An exclusive write leaves an existing file, and one that is being written, alone."""
    path = tmp_path / "inductor_lut_a.json"
    write_atomically(path, b"first", exclusive=True)
    with pytest.raises(FileExistsError, match=r"inductor_lut_a\.json"):
        write_atomically(path, b"second", exclusive=True)
    assert path.read_bytes() == b"first"
    assert os.listdir(tmp_path) == [path.name]
    (tmp_path / ".inductor_lut_b.json.tmp").touch()
    with pytest.raises(FileExistsError, match=r"inductor_lut_b\.json\.tmp"):
        write_atomically(tmp_path / "inductor_lut_b.json", b"second", exclusive=True)
    assert sorted(file.name for file in tmp_path.glob("inductor_lut_*.json")) == [path.name]


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk costs neither the file that was there nor a stray one."""
    path = tmp_path / "inductor_lut_a.json"
    write_atomically(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == [path.name]


def test_provenance_asks_neither_torch_nor_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torch imported its version is that of the distribution, the device unknown."""
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    found = provenance()
    assert found["device"] is found["arch"] is found["sm_count"] is None
    assert "torch" not in sys.modules
