"""The command ``tune``: what it reads, and what it says without a GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import tune_samples as samples
from click.testing import CliRunner

from build_tools.cli import main
from build_tools.tune.asked import read_asked
from build_tools.tune.dumping import write_dumps
from build_tools.tune.previous import read_previous
from build_tools.tune.records import text_of
from build_tools.tune.results import Writer, problem_id, read_results
from build_tools.tune.space import candidate
from inductor_tables.dumps import make_row, read_dump, render_dump
from inductor_tables.errors import InvalidKeyError
from inductor_tables.problems import problem_from_key, write
from inductor_tables.schema import Proof

KEY = problem_id(samples.problem(16, 64, 64))
OTHER = problem_id(samples.problem(32, 64, 64))


def test_keys_are_read_from_text(tmp_path: Path) -> None:
    """One a line, comments and empty lines left out, the most frequent first."""
    (tmp_path / "a.txt").write_text(f"# models\n\n{KEY}\n{OTHER}\n")
    (tmp_path / "b.txt").write_text(f"{samples.ARCH}+{OTHER}\n")
    problems = read_asked([tmp_path / "a.txt", tmp_path / "b.txt"])
    assert [(problem_id(p), p.count) for p in problems] == [(OTHER, 2), (KEY, 1)]


def test_files_of_problems_are_read(tmp_path: Path) -> None:
    """They go together with keys, counts added up."""
    write(tmp_path / "p.json", [problem_from_key(KEY, count=7, origins=["llama:layers.0"])])
    (tmp_path / "a.txt").write_text(f"{OTHER}\n{KEY}\n")
    problems = read_asked([tmp_path / "a.txt", tmp_path / "p.json"])
    assert [(problem_id(p), p.count) for p in problems] == [(KEY, 8), (OTHER, 1)]
    assert problems[0].origins == ("llama:layers.0",)


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    """The error has file and line."""
    (tmp_path / "a.txt").write_text(f"{KEY}\nnonsense\n")
    with pytest.raises(InvalidKeyError, match=r"a\.txt: line 2: not a lookup key"):
        read_asked([tmp_path / "a.txt"])


def test_both_keys_of_an_addmm_are_one_problem() -> None:
    """The bias of ATen's key is expanded."""
    problem = samples.problem(16, 64, 64, "addmm")
    row = problem_id(problem).replace("[16, 64], [0, 1]", "[64], [1]")
    assert problem_id(problem_from_key(row)) == problem_id(problem)


def _dump(tmp_path: Path) -> Path:
    rows = [
        make_row(f"{samples.ARCH}+{KEY}", dict(plain), time_ns=time, rank=rank)
        for rank, (plain, time) in enumerate(
            [(samples.ATEN.plain, 900), (samples.mm(16, 32, 64, 3, 2).plain, 700)]
        )
    ]
    path = tmp_path / "dump.json"
    path.write_bytes(render_dump(rows, samples.PROVENANCE))
    return path


def test_the_keys_of_a_dump_are_problems(tmp_path: Path) -> None:
    """Each key once, however many entries it has."""
    assert [problem_id(p) for p in read_asked([_dump(tmp_path)])] == [KEY]


def test_previous_entries_are_the_fastest_of_this_device(tmp_path: Path) -> None:
    """They come by problem; another device's do not count."""
    path = _dump(tmp_path)
    found = read_previous([path], samples.PROVENANCE)
    assert found == {KEY: samples.mm(16, 32, 64, 3, 2)}
    assert read_previous([path], {**samples.PROVENANCE, "arch": "another"}) == {}


def _results(out: Path) -> None:
    timed = {"time_ns": 5000, "spread_ns": 40}
    entry = {"key": f"{samples.ARCH}+{KEY}", "plain": dict(samples.ATEN.plain), **timed}
    proved = {"entries": [entry], "incumbents": {"aten": timed, "host": timed}, "rounds": 12}
    out.mkdir()
    Writer(out, samples.PROVENANCE, "h-0-0").write(
        {"kind": "problem", "problem": KEY, "status": "tuned", **proved, "best": []}
    )


def test_no_minutes_write_the_dumps_only(tmp_path: Path) -> None:
    """Results of hosts that were brought together make a dump without a GPU."""
    _results(tmp_path / "out")
    (tmp_path / "a.txt").write_text(f"{KEY}\n")
    command = ["tune", str(tmp_path / "a.txt"), "--out", str(tmp_path / "out"), "--minutes", "0"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    (path,) = (tmp_path / "out").glob("tuned_*.json")
    assert str(path) in result.output
    (row,) = read_dump(path).rows
    assert (row.time_ns, row.proof) == (
        5000,
        Proof(spread_ns=40, aten_ns=5000, host_ns=5000, rounds=12),
    )
    before = path.read_bytes()
    write_dumps(read_results(tmp_path / "out"), tmp_path / "out")
    assert path.read_bytes() == before


def test_without_a_gpu_the_command_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, no traceback."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "a.txt").write_text(f"{KEY}\n")
    command = [
        sys.executable, "-m", "build_tools", "tune", str(tmp_path / "a.txt"), "--out",
        str(tmp_path / "out"),
    ]  # fmt: skip
    root = Path(__file__).resolve().parents[2]
    result = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
    assert result.returncode == 1
    assert "Error: this needs a GPU, and torch" in result.stderr
    assert "Traceback" not in result.stderr


def test_the_command_line_imports_no_torch() -> None:
    """Building tables does not wait for what tuning needs."""
    code = "import sys, build_tools.cli; print('torch' in sys.modules)"
    root = Path(__file__).resolve().parents[2]
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True
    )
    assert found.stdout.strip() == "False"


def test_candidates_have_one_text() -> None:
    """It does not depend on the order of parameters."""
    config = samples.mm(16, 32, 64, 3, 2)
    assert text_of(config) == text_of(candidate("triton::mm", samples.HASH,
                                                        dict(reversed(config.params))))  # fmt: skip
