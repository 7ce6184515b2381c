"""The diff command: for people, as Markdown and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from samples import (
    ADDMM_TRITON,
    AGNOSTIC_MM,
    ATEN,
    MM,
    WIDE_MM,
    Timed,
    built,
    run,
    triton,
    write_dump,
)

from build_tools.diff import diff_paths
from inductor_tables.errors import BuildError
from inductor_tables.schema import Proof

PLACE = Path("2.13", "nvidia-h200", "gemm.msgpack")
TALL_MM = MM.replace("[16,", "[32,")
OLD: dict[str, list[Timed]] = {
    MM: [(ATEN, 9000), (triton(), 9500)],
    WIDE_MM: [(ATEN, 100), (triton(), 200)],
    TALL_MM: [(ATEN, 100), (triton(), 200)],
}
NEW: dict[str, list[Timed]] = {
    MM: [(triton(), 8000), (ATEN, 9000)],
    WIDE_MM: [(ATEN, 120), (triton(), 200)],
    ADDMM_TRITON: [(triton(), 100)],
}


@pytest.fixture
def directories(tmp_path: Path) -> tuple[Path, Path]:
    """Return an old and a new directory of tables."""
    for name, rows in (("old", OLD), ("new", NEW)):
        built(tmp_path / name, write_dump(tmp_path / f"{name}.json", rows, date=name))
    return tmp_path / "old", tmp_path / "new"


def as_json(*paths: Path) -> list[dict[str, Any]]:
    """Run ``diff --json`` and return what it prints."""
    result = run("diff", *paths, "--json")
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def test_what_changed(directories: tuple[Path, Path]) -> None:
    """Keys added and removed, other choices, other times and the header are told apart."""
    (diff,) = as_json(*directories)
    assert (diff["table"], diff["status"]) == (PLACE.as_posix(), "changed")
    assert (diff["added"], diff["removed"]) == ([ADDMM_TRITON], [TALL_MM])
    assert diff["times"] == [{"key": WIDE_MM, "old_us": 0.1, "new_us": 0.12}]
    (choice,) = diff["choices"]
    assert choice["key"] == MM
    assert [(e["template_id"], e["time_us"]) for e in choice["old"]] == [
        ("aten::mm", 9.0), ("triton::mm", 9.5),
    ]  # fmt: skip
    assert choice["new"][0] == {**triton(), "time_us": 8.0}
    changed = {change["name"]: (change["old"], change["new"]) for change in diff["header"]}
    assert set(changed) == {"entry_count", "recorded with date", "dumps"}
    assert changed["entry_count"] == (6, 5)


def test_for_people(directories: tuple[Path, Path]) -> None:
    """The text names the old and the new choice with their times."""
    output = run("diff", *directories).output
    assert "3 -> 3 keys: 1 added, 1 removed, 1 with other choices (1 with another" in output
    assert f"{MM}: aten::mm (9 µs) -> triton::mm BLOCK_M=16 num_warps=4 hash d99842e46680" in output
    assert f"{WIDE_MM}: 0.1 µs -> 0.12 µs" in output


def test_markdown(directories: tuple[Path, Path]) -> None:
    """Markdown is a nested list with keys as code."""
    lines = run("diff", *directories, "--markdown").output.splitlines()
    assert lines[0].startswith(f"- `{PLACE.as_posix()}`: 3 -> 3 keys")
    assert "  - keys added (1)" in lines
    assert f"    - `{ADDMM_TRITON}`" in lines
    assert all(line.lstrip().startswith("- ") for line in lines)


def test_limit(directories: tuple[Path, Path]) -> None:
    """--limit shortens each list and says by how much."""
    output = run("diff", *directories, "--limit", "1").output
    assert "header (3)" in output
    assert "... and 2 more" in output


def test_same(directories: tuple[Path, Path]) -> None:
    """Equal tables are said to be the same."""
    old, _ = directories
    assert run("diff", old, old).output == f"{PLACE.as_posix()}: same, 3 keys\n"


def test_files(directories: tuple[Path, Path]) -> None:
    """Two files are compared wherever they lie."""
    old, new = directories
    (diff,) = as_json(old / PLACE, new / PLACE)
    assert diff["table"] == f"{old / PLACE} -> {new / PLACE}"
    assert diff["added"] == [ADDMM_TRITON]


def test_tables_come_and_go(directories: tuple[Path, Path], tmp_path: Path) -> None:
    """A table that only one side has is added or removed as a whole."""
    old, _ = directories
    built(tmp_path / "any", write_dump(tmp_path / "any.json", {AGNOSTIC_MM: [(ATEN, 1)]}))
    found = [(d["table"], d["status"], d["old_keys"], d["new_keys"])
             for d in as_json(old, tmp_path / "any")]  # fmt: skip
    assert found == [
        ("2.13/any/gemm.msgpack", "added", 0, 1),
        (PLACE.as_posix(), "removed", 3, 0),
    ]
    output = run("diff", old, tmp_path / "any").output
    assert "added, 1 keys" in output
    assert "removed, it had 3 keys" in output


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([(ATEN, 1), (triton(num_warps=2), 2)], "the fastest stays, 1 choices added, 2 removed"),
        ([(ATEN, 1), (triton(num_warps=8), 2), (triton(), 3)], "the same 3 choices in another"),
    ],
)
def test_fastest_stays(tmp_path: Path, rows: list[Timed], expected: str) -> None:
    """Changes behind the fastest choice are told without repeating it."""
    before = [(ATEN, 1), (triton(), 2), (triton(num_warps=8), 3)]
    built(tmp_path / "old", write_dump(tmp_path / "a.json", {MM: before}))
    built(tmp_path / "new", write_dump(tmp_path / "b.json", {MM: rows}))
    assert f"{MM}: {expected}" in run("diff", tmp_path / "old", tmp_path / "new").output


def test_untimed(tmp_path: Path) -> None:
    """A choice without a time is said to be not timed."""
    built(tmp_path / "old", write_dump(tmp_path / "a.json", {MM: [(ATEN, None)]}))
    built(tmp_path / "new", write_dump(tmp_path / "b.json", {MM: [(ATEN, 1500)]}))
    assert "not timed -> 1.5 µs" in run("diff", tmp_path / "old", tmp_path / "new").output


def test_proofs_only(tmp_path: Path) -> None:
    """A key that has gained a proof is told, with its margins, and is no other kind of change."""
    proof = Proof(spread_ns=10, aten_ns=1200, host_ns=1000, rounds=24)
    rows: list[Timed] = [(triton(), 750)]
    proved: list[Timed] = [(triton(), 750, proof)]
    for name, listed in (("old", rows), ("new", proved)):
        built(tmp_path / name, write_dump(tmp_path / f"{name}.json", {MM: listed}))
    old, new = tmp_path / "old", tmp_path / "new"
    (diff,) = as_json(old, new)
    assert diff["proofs"] == [{"key": MM, "old_margin": None, "new_margin": 0.25}]
    assert (diff["choices"], diff["times"]) == ([], [])
    output = run("diff", old, new).output
    assert "0 with other times only, 1 with other proofs only" in output
    assert f"{MM}: no margin -> margin 25.0%" in output
    assert "proof_count: 0 -> 1" in output
    assert "proofs" not in run("diff", old, old).output


def test_file_against_directory(directories: tuple[Path, Path]) -> None:
    """A file and a directory cannot be compared."""
    old, new = directories
    with pytest.raises(BuildError, match="expected two files or two directories"):
        diff_paths(old, new / PLACE)


def test_nothing_to_compare(tmp_path: Path) -> None:
    """Two directories without tables are a mistake."""
    with pytest.raises(BuildError, match=r"expected tables \(\*\.msgpack\), found none"):
        diff_paths(tmp_path, tmp_path)


def test_damaged_table(directories: tuple[Path, Path]) -> None:
    """A damaged table is an error that names it, not a difference."""
    old, new = directories
    (new / PLACE).write_bytes(b"")
    result = run("diff", old, new)
    assert result.exit_code == 1
    assert "gemm.msgpack: magic: not an inductor-tables table" in result.output
