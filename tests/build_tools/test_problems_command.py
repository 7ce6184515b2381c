"""The problems command, and files of misses that lie beside dumps."""

from __future__ import annotations

from pathlib import Path

import pytest
from samples import ADDMM_ATEN, ADDMM_TRITON, ATEN, MM, dump_bytes, run, write_dump

from build_tools.files import dump_files, problem_files
from build_tools.held import by_model, split
from inductor_tables import problems
from inductor_tables.dumps import parse_dump
from inductor_tables.errors import BuildError
from inductor_tables.problems import problem_from_key

WIDE = MM.replace("[16,", "[32,")


def _fleet(directory: Path) -> list[Path]:
    """Write what two processes missed."""
    paths = [directory / f"inductor_problems_20260101_00000{n}_000_node_1.json" for n in (1, 2)]
    directory.mkdir(parents=True, exist_ok=True)
    problems.write(paths[0], [problem_from_key(MM, count=2, origins=["serve:up"])])
    problems.write(
        paths[1],
        [problem_from_key(MM, origins=["train:up"]), problem_from_key(WIDE, count=9)],
    )
    return paths


EXPECTED = (
    problem_from_key(MM, count=3, origins=["serve:up", "train:up"]),
    problem_from_key(WIDE, count=9),
)


@pytest.mark.parametrize("order", [1, -1])
def test_files_are_merged(tmp_path: Path, order: int) -> None:
    """Counts add up, origins are united, and the order of the files does not matter."""
    out = tmp_path / "problems.json"
    done = run("problems", *_fleet(tmp_path / "fleet")[::order], "--out", out)
    assert done.exit_code == 0
    assert done.output == f"{out}: 2 problems from 2 files\n"
    assert problems.read(out) == EXPECTED


def test_a_directory_and_a_file_in_it(tmp_path: Path) -> None:
    """A directory stands for the files of misses in it, each once, dumps left out."""
    paths = _fleet(tmp_path / "fleet")
    write_dump(tmp_path / "fleet" / "inductor_lut_1.json", {MM: [(ATEN, 1)]})
    out = tmp_path / "problems.json"
    done = run("problems", tmp_path / "fleet", paths[0], "--out", out)
    assert done.exit_code == 0, done.output
    assert problems.read(out) == EXPECTED


def test_a_merged_file_is_merged_again(tmp_path: Path) -> None:
    """What the command writes it reads; it may replace a file that it read."""
    out = tmp_path / "problems.json"
    for _ in range(2):
        problems.write(out, [problem_from_key(MM, count=2)])
        assert run("problems", out, "--out", out).exit_code == 0
        assert problems.read(out) == (problem_from_key(MM, count=2),)


def test_a_damaged_file(tmp_path: Path) -> None:
    """The message names file and place, and nothing is written."""
    (_, damaged) = _fleet(tmp_path / "fleet")
    damaged.write_text(damaged.read_text().replace('"count": 9', '"count": -9'))
    out = tmp_path / "problems.json"
    done = run("problems", tmp_path / "fleet", "--out", out)
    assert done.exit_code == 1
    assert f"{damaged}: problems[1].count: -9 is not a whole number" in done.output
    assert not out.exists()


def test_a_directory_without_any(tmp_path: Path) -> None:
    """An empty directory is an error that says what was looked for."""
    with pytest.raises(BuildError, match=r"expected inductor_problems_\*\.json in the directory"):
        problem_files([tmp_path])


def test_dumps_and_misses_may_share_a_directory(tmp_path: Path) -> None:
    """Building reads the dumps only."""
    _fleet(tmp_path)
    with pytest.raises(BuildError, match="expected dumps"):
        dump_files([tmp_path])
    dump = write_dump(tmp_path / "inductor_lut_1.json", {MM: [(ATEN, 1)]})
    assert dump_files([tmp_path]) == [dump]


def test_what_tables_hold_is_told_by_model_and_left_out(tmp_path: Path) -> None:
    """A dump holds one of two problems: the other one is written; a bias is one under both keys."""
    _fleet(tmp_path / "fleet")
    dump = write_dump(tmp_path / "known.json", {MM: [(ATEN, 1)]})
    out = tmp_path / "next.json"
    done = run("problems", tmp_path / "fleet", "--held", dump, "--out", out)
    assert done.exit_code == 0, done.output
    rows = [line.split() for line in done.output.splitlines()]
    assert [row[1::2] for row in rows if row[1:2] in (["serve"], ["train"])] == [
        ["serve", "1", "1", "100%"],
        ["train", "1", "1", "100%"],
    ]
    assert f"{out}: 1 problems that are not held, beside 1 that are, from 2 files" in done.output
    assert problems.read(out) == (EXPECTED[1],)


@pytest.mark.parametrize("key", [ADDMM_ATEN, ADDMM_TRITON])
def test_a_bias_is_held_under_either_key(key: str) -> None:
    """ATen's entry stands under the bias's own size, Triton's under the expanded one."""
    held = problem_from_key(key, origins=["bert:query"])
    dump = parse_dump(dump_bytes({ADDMM_ATEN: [(ATEN, 1)]}), "known")
    assert split([held], [dump]) == ((held,), ())
    (share,) = by_model([held], [])
    assert (share.held, share.asked, share.share) == (1, 1, 1.0)


def test_the_stride_of_a_single_row_does_not_count() -> None:
    """A row that a model computes is served by the entry of a row that it is given."""
    row = MM.replace("[16, 4096]", "[1, 4096]")
    asked = problem_from_key(row.replace("[4096, 1])", "[0, 1])", 1))
    dump = parse_dump(dump_bytes({row: [(ATEN, 1)]}), "known")
    assert split([asked, EXPECTED[1]], [dump]) == ((asked,), (EXPECTED[1],))


def test_the_best_held_models_come_first() -> None:
    """By share, then by how many problems they have."""
    asked = [
        problem_from_key(MM, origins=["a:up", "b:up"]),
        problem_from_key(WIDE, origins=["a:up"]),
    ]
    found = [(one.model, one.held, one.asked) for one in by_model(asked[:1], asked[1:])]
    assert found == [("b", 1, 1), ("a", 1, 2)]


def test_nothing_asked_for_is_refused(tmp_path: Path) -> None:
    """Without a file to write or tables to compare with there is nothing to do."""
    _fleet(tmp_path / "fleet")
    done = run("problems", tmp_path / "fleet")
    assert done.exit_code == 2
    assert "--out, --held, or both" in done.output
