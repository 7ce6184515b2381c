"""The build command: what it writes where, and every reason to refuse."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from samples import (
    AGNOSTIC_MM,
    ATEN,
    COMMITTED,
    INPUTS,
    MM,
    RECORDINGS,
    built,
    dump_bytes,
    h200_table,
    run_build,
    triton,
    write_dump,
    write_plain,
)

from build_tools.build import build
from build_tools.files import dump_files
from inductor_tables.dumps import parse_dump, read_dump
from inductor_tables.errors import BuildError
from inductor_tables.schema import MAX_ENTRIES_PER_KEY
from inductor_tables.table import Table

AMD = f"gfx942:sramecc+:xnack-+{INPUTS}+mm"
NO_HASH = {name: value for name, value in triton().items() if name != "template_hash"}


@pytest.mark.parametrize("name", ["h200_torch2.11.0.json", "h200_torch2.13.0.json"])
def test_recording_round_trip(tmp_path: Path, name: str) -> None:
    """A real recording comes back from its table row by row, fastest first."""
    dump = read_dump(RECORDINGS / name)
    report = built(tmp_path / "out", RECORDINGS / name)
    table = h200_table(tmp_path / "out", report["tables"][0]["torch_series"])
    table.verify()
    expected: dict[str, list[tuple[int, tuple[str, ...]]]] = {}
    for row in dump.rows:
        assert row.time_ns is not None
        expected.setdefault(row.key, []).append((row.time_ns, row.config.order))
    stored = {key: [e.order for e in entries] for key, entries in table.items()}
    assert stored == {key: sorted(rows) for key, rows in expected.items()}
    assert table.header.sources == (dump.source,)


@pytest.mark.parametrize(
    ("name", "rows", "keys", "timed"),
    [
        ("h200_torch2.11.0.json", 739, 27, True),
        ("h200_torch2.13.0.json", 450, 16, True),
        ("llama_h200_torch2.11.0.json", 116, 6, False),
    ],
)
def test_recordings_are_whole(name: str, rows: int, keys: int, timed: bool) -> None:
    """The committed recordings hold what the README beside them says, ranked by time."""
    dump = read_dump(RECORDINGS / name)
    assert (len(dump.rows), len({row.key for row in dump.rows})) == (rows, keys)
    assert all((row.time_ns is not None) is timed for row in dump.rows)
    assert list(dump.plain_table()) == sorted(dump.plain_table())
    assert (dump.arch, dump.source.sm_count, dump.source.date) == ("NVIDIA H200", 132, None)


def test_one_table_per_series_and_arch(tmp_path: Path) -> None:
    """Series comes from the provenance, the arch from the key, no device means ``any``."""
    new = write_dump(tmp_path / "a.json", {MM: [(ATEN, 1)], AGNOSTIC_MM: [(ATEN, 2)]})
    old = write_dump(tmp_path / "b.json", {AMD: [(ATEN, 3)]}, torch="2.11.0+rocm7.0")
    report = built(tmp_path / "out", new, old)
    assert [(t["path"], t["arch"]) for t in report["tables"]] == [
        ("2.11/gfx942-sramecc-on-xnack-off/gemm.msgpack", "gfx942:sramecc+:xnack-"),
        ("2.13/any/gemm.msgpack", None),
        ("2.13/nvidia-h200/gemm.msgpack", "NVIDIA H200"),
    ]
    for table in report["tables"]:
        assert Table.open(tmp_path / "out" / table["path"]).digest == table["digest"]


def test_same_input_same_bytes(tmp_path: Path) -> None:
    """Two builds of the same dumps write the same files, in whatever order they are named."""
    dumps = [RECORDINGS / "h200_torch2.11.0.json", RECORDINGS / "llama_h200_torch2.11.0.json"]
    built(tmp_path / "a", *dumps)
    built(tmp_path / "b", *reversed(dumps))
    place = Path("2.11", "nvidia-h200", "gemm.msgpack")
    assert (tmp_path / "a" / place).read_bytes() == (tmp_path / "b" / place).read_bytes()


def test_arch_option_names_the_device_of_bare_keys(tmp_path: Path) -> None:
    """--arch gives keys without a device one, and leaves the others alone."""
    dump = write_dump(tmp_path / "a.json", {AGNOSTIC_MM: [(ATEN, 1)], AMD: [(ATEN, 2)]})
    report = built(tmp_path / "out", dump, "--arch", "NVIDIA H200")
    assert [t["arch"] for t in report["tables"]] == ["NVIDIA H200", "gfx942:sramecc+:xnack-"]
    assert len(h200_table(tmp_path / "out").lookup(MM)) == 1


def test_serves_base_arch_joins_feature_flags(tmp_path: Path) -> None:
    """--serves-base-arch puts rows of all flags under the base name, as the runtime asks."""
    other = AMD.replace("xnack-", "xnack+")
    dump = write_dump(tmp_path / "a.json", {AMD: [(ATEN, 2)], other: [(ATEN, 1)]})
    report = built(tmp_path / "out", dump, "--serves-base-arch", "gfx942")
    table = Table.open(tmp_path / "out" / "2.13" / "gfx942" / "gemm.msgpack")
    assert (table.header.arch, table.header.serves_base_arch) == ("gfx942", True)
    assert table.lookup(f"gfx942+{INPUTS}+mm")[0].time_ns == 1
    assert (report["dumps"][0]["kept"], report["dumps"][0]["merged"]) == (1, 1)


def test_serves_base_arch_without_such_keys(tmp_path: Path) -> None:
    """A base arch that no key has is refused, as nothing would serve it."""
    dump = write_dump(tmp_path / "a.json", {MM: [(ATEN, 1)]})
    result = run_build(tmp_path / "out", dump, "--serves-base-arch", "gfx942")
    assert result.exit_code == 1
    assert "expected keys of the arch 'gfx942'" in result.output


def test_rows_of_another_device_do_not_claim_it(tmp_path: Path) -> None:
    """Provenance that describes one device says nothing of rows of another."""
    dump = write_dump(tmp_path / "a.json", {AMD: [(ATEN, 1)]}, sm_count=132)
    report = built(tmp_path / "out", dump)
    header = Table.open(tmp_path / "out" / report["tables"][0]["path"]).header
    assert header.sm_counts == ()
    assert header.recorded_with["device"] == ()


def test_people_see_the_counts(tmp_path: Path) -> None:
    """The tables printed for people hold the dumps, their counts and what was written."""
    dump = write_dump(tmp_path / "rec.json", {MM: [(ATEN, 1), (triton(), 2)]})
    result = run_build(tmp_path / "out", dump, "--topk", "1")
    assert result.exit_code == 0
    for text in ("rec.json", "dropped: beyond the 1 fastest", "2.13/nvidia-h200/gemm.msgpack"):
        assert text in result.output


def test_directory_of_dumps(tmp_path: Path) -> None:
    """A directory stands for the dumps in it, each once."""
    write_dump(tmp_path / "b.json", {MM: [(ATEN, 1)]})
    first = write_dump(tmp_path / "a.json", {MM: [(ATEN, 2)]})
    assert dump_files([tmp_path, first]) == [first, tmp_path / "b.json"]


def test_directory_without_dumps(tmp_path: Path) -> None:
    """A directory without dumps is a mistake, not an empty build."""
    with pytest.raises(BuildError, match=r"expected dumps \(\*\.json\) in the directory"):
        dump_files([tmp_path])


def test_other_tables_are_left_and_named(tmp_path: Path) -> None:
    """Tables that a build does not make stay as they are, and the user is told."""
    out = tmp_path / "out"
    built(out, write_dump(tmp_path / "a.json", {MM: [(ATEN, 1)]}))
    dump = write_dump(tmp_path / "b.json", {MM: [(ATEN, 1)]}, torch="2.11.0")
    result = run_build(out, dump)
    assert result.exit_code == 0
    assert "not part of this build, left as it was" in result.output
    assert h200_table(out).header.torch_series == "2.13"


def test_table_version_is_canonical(tmp_path: Path) -> None:
    """The version is stored in the canonical spelling of PEP 440."""
    dump = parse_dump(dump_bytes({MM: [(ATEN, 1)]}), "a.json")
    (one,) = build([dump], table_version="1.0-rc1", committed=COMMITTED).tables
    assert one.table.header.table_version == "1.0rc1"


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--table-version", "new", "'new' is not a PEP 440 version"),
        ("--torch", "new", "not a torch version: 'new'"),
        ("--topk", "0", "0 is not in the range"),
    ],
)
def test_bad_options(tmp_path: Path, option: str, value: str, message: str) -> None:
    """Options are checked before any dump is read."""
    dump = write_dump(tmp_path / "a.json", {MM: [(ATEN, 1)]})
    result = run_build(tmp_path / "out", dump, option, value)
    assert result.exit_code == 2
    assert message in result.output


REFUSED: dict[str, tuple[Mapping[str, list[Mapping[str, Any]]], list[str]]] = {
    "no hash": ({MM: [NO_HASH]}, ["triton::mm without a template hash; expected d99842e46680"]),
    "unknown template": (
        {MM: [{"template_id": "triton::mn", "template_hash": "0" * 64}]},
        ["unknown template 'triton::mn'; expected one of torch 2.13.0"],
    ),
    "unknown ATen choice": (
        {MM: [{"template_id": "aten::mn"}]},
        ["unknown template 'aten::mn'"],
    ),
    "stale hash": (
        {MM: [{**triton(), "template_hash": "0" * 64}]},
        ["stale triton::mm; expected the hash d99842e46680", "of torch 2.13.0, found 00000000"],
    ),
    "hash of an ATen choice": (
        {MM: [{**ATEN, "template_hash": "0" * 64}]},
        ["aten::mm has no text to hash; expected no hash, found 00000000"],
    ),
    "code as a value": (
        {MM: [triton(num_warps="(print('x') or 4)")]},
        ["num_warps", "print('x')", "is not allowed"],
    ),
    "too large a value": ({MM: [triton(num_warps=2**40)]}, ["num_warps", "out of range"]),
    "a name that is none": ({MM: [{**triton(), "a b": 1}]}, ["a b", "plain ASCII identifier"]),
    "archs that share a folder": (
        {MM: [ATEN], MM.replace("NVIDIA H200", "NVIDIA-H200"): [ATEN]},
        ["'NVIDIA-H200' shares the folder 2.13/nvidia-h200 with 'NVIDIA H200'"],
    ),
    "an arch without a folder": (
        {MM.replace("NVIDIA H200", "any"): [ATEN]},
        ["no folder can be named after the arch 'any'"],
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_rows_are_named(tmp_path: Path, case: str) -> None:
    """A row that may not go into a table stops the build; file and key are named."""
    plain, expected = REFUSED[case]
    good = write_dump(tmp_path / "good.json", {MM: [(ATEN, 1)]})
    dump = write_plain(tmp_path / "bad.json", plain)
    result = run_build(tmp_path / "out", good, dump, "--torch", "2.13")
    assert result.exit_code == 1
    key = next(iter(plain))
    for text in ("bad.json", key, *expected):
        assert text in result.output
    assert not (tmp_path / "out").exists()


def test_refused_whatever_topk_keeps(tmp_path: Path) -> None:
    """A stale row stops the build even where top-k would have dropped it."""
    rows = {MM: [(ATEN, 1), ({**triton(), "template_hash": "0" * 64}, 2)]}
    result = run_build(tmp_path / "out", write_dump(tmp_path / "a.json", rows), "--topk", "1")
    assert result.exit_code == 1
    assert "stale triton::mm" in result.output


def test_refused_rows_are_counted(tmp_path: Path) -> None:
    """One line a dump, template and hash, however many rows have it."""
    stale = [{**triton(num_warps=n), "template_hash": "0" * 64} for n in (1, 2, 4)]
    dump = write_plain(tmp_path / "bad.json", {MM: stale})
    result = run_build(tmp_path / "out", dump, "--torch", "2.13")
    assert result.output.count("stale triton::mm") == 1
    assert "(rows: 3)" in result.output


def test_rocm_text_serves_amd_only(tmp_path: Path) -> None:
    """The text that old ROCm tritons get is good for AMD keys and stale for others."""
    rocm = {**triton(), "template_hash": COMMITTED[next(reversed(COMMITTED))].rocm["triton::mm"]}
    assert run_build(
        tmp_path / "amd", write_dump(tmp_path / "a.json", {AMD: [(rocm, 1)]})
    ).exit_code == 0  # fmt: skip
    result = run_build(tmp_path / "nv", write_dump(tmp_path / "b.json", {MM: [(rocm, 1)]}))
    assert result.exit_code == 1
    assert "stale triton::mm" in result.output


def test_series_cannot_be_told(tmp_path: Path) -> None:
    """A plain dump needs --torch."""
    result = run_build(tmp_path / "out", write_plain(tmp_path / "plain.json", {MM: [ATEN]}))
    assert result.exit_code == 1
    assert "plain.json: the dump does not say which torch" in result.output


def test_torch_option_is_for_plain_dumps_only(tmp_path: Path) -> None:
    """--torch fills in what a dump lacks and overrides nothing."""
    dump = write_dump(tmp_path / "a.json", {MM: [(ATEN, 1)]})
    plain = write_plain(tmp_path / "b.json", {MM: [ATEN]})
    report = built(tmp_path / "out", dump, plain, "--torch", "2.14")
    assert [t["torch_series"] for t in report["tables"]] == ["2.13", "2.14"]


def test_unknown_series(tmp_path: Path) -> None:
    """Without committed hashes of a series nothing can be checked, so nothing is built."""
    dump = write_dump(tmp_path / "a.json", {MM: [(ATEN, 1)]}, torch="2.99.0")
    result = run_build(tmp_path / "out", dump)
    assert result.exit_code == 1
    assert "expected template hashes of torch 2.99 in the committed data" in result.output


def test_existing_table_of_another_arch(tmp_path: Path) -> None:
    """A table whose place an other arch's table holds is not written over it."""
    built(tmp_path / "out", write_dump(tmp_path / "a.json", {MM: [(ATEN, 1)]}))
    before = h200_table(tmp_path / "out").digest
    other = MM.replace("NVIDIA H200", "NVIDIA-H200")
    result = run_build(tmp_path / "out", write_dump(tmp_path / "b.json", {other: [(ATEN, 1)]}))
    assert result.exit_code == 1
    assert "holds the table of 'NVIDIA H200'" in result.output
    assert h200_table(tmp_path / "out").digest == before


def test_no_rows(tmp_path: Path) -> None:
    """Dumps without rows make no table."""
    result = run_build(tmp_path / "out", write_dump(tmp_path / "a.json", {}))
    assert result.exit_code == 1
    assert "expected rows to build from, found none in" in result.output


def test_too_many_entries_for_a_key() -> None:
    """More entries than a key may hold are refused with a way out."""
    dumps = [
        parse_dump(
            dump_bytes({MM: [(triton(GROUP_M=n), n) for n in range(start, start + 2100)]}),
            f"{start}.json",
        )
        for start in (0, 2100)
    ]
    with pytest.raises(BuildError, match=rf"4200 entries; at most {MAX_ENTRIES_PER_KEY}"):
        build(dumps, table_version="1", committed=COMMITTED)


def test_dump_named_twice() -> None:
    """Two dumps of one name could not be told apart in the report."""
    dump = parse_dump(dump_bytes({MM: [(ATEN, 1)]}), "a.json")
    with pytest.raises(BuildError, match=r"expected each dump once, found a\.json, a\.json"):
        build([dump, dump], table_version="1", committed=COMMITTED)


def test_key_that_is_none(tmp_path: Path) -> None:
    """A key outside the host's grammar is refused with its text."""
    dump = tmp_path / "a.json"
    dump.write_text(json.dumps({"mm of two": [ATEN]}), encoding="utf-8")
    result = run_build(tmp_path / "out", dump, "--torch", "2.13")
    assert result.exit_code == 1
    assert "not a lookup key: 'mm of two'" in result.output
