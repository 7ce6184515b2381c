"""The replay of searches over spaces that were measured whole."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest
import search
import tune_samples as samples
from click.testing import CliRunner
from samples import needs_simulation

from build_tools.tune.search import Effort
from inductor_tables.errors import BuildError

SPACE = samples.space(samples.problem(16, 4096, 4096))
TIMES = {
    search.kernel_of(config): 10.0 + 0.01 * number
    for number, config in enumerate(SPACE.everything({"GROUP_M": 8}))
}
ATEN = {search.kernel_of(samples.ATEN): 9.0}


def test_a_replay_says_how_far_the_search_is_behind() -> None:
    """It is told the times of what it asks for; what is not in the results counts for nothing."""
    found = search.replay(SPACE, {**TIMES, **ATEN}, Effort(), noise=0.0, seed=0)
    assert found.evaluated <= Effort().candidates
    assert found.behind >= 1.0
    asked = search.kernel_of(SPACE.host[1])
    found = search.replay(SPACE, {asked: 1.0, **ATEN}, Effort(), noise=0.0, seed=0)
    assert found.behind == 1.0
    one = Effort(candidates=1)
    assert search.replay(SPACE, {asked: 1.0, **ATEN}, one, noise=0.0, seed=0).behind == math.inf


def test_without_kernels_of_templates_nothing_is_said() -> None:
    """ATen alone is no space to search."""
    with pytest.raises(BuildError, match=r"mm 16 x 4096 x 4096.*no kernel of triton::mm"):
        search.replay(SPACE, ATEN, Effort(), noise=0.0, seed=0)


OPENING = {search.kernel_of(c): 10.0 + 0.1 * n for n, c in enumerate(SPACE.host[1:])}
"""Times of the host's own tiles, which every search asks for."""


def _behind(noise: float, **effort: int) -> list[float]:
    """Return how far searches of five seeds are behind that look at nothing else."""
    return [
        search.replay(
            SPACE, {**OPENING, **ATEN}, Effort(patience=0, **effort), noise=noise, seed=seed
        ).behind
        for seed in range(5)
    ]


def test_errors_of_evaluations_hide_the_best() -> None:
    """Told the true times the best is found; told wrong ones, it misses the finals."""
    assert _behind(0.0) == [1.0] * 5
    assert max(_behind(0.1)) > 1.0


def test_final_rounds_are_exact() -> None:
    """Where all are finalists the best is found whatever was told; one alone may be another."""
    assert _behind(0.1, finalists=len(OPENING)) == [1.0] * 5
    assert max(_behind(0.0, finalists=1)) == 1.0 < max(_behind(0.1, finalists=1))


def test_a_search_that_looks_at_little_is_behind() -> None:
    """The measure can fail: one batch of two does not find the best."""
    worst_first = dict(zip(TIMES, reversed(TIMES.values()), strict=True))
    effort = Effort(candidates=2, batch=2, patience=1)
    assert search.replay(SPACE, {**worst_first, **ATEN}, effort, noise=0.0, seed=0).behind > 1.03


def test_errors_of_evaluations_follow_the_seed() -> None:
    """The same seed gives the same search."""
    runs = [
        search.replay(SPACE, {**TIMES, **ATEN}, Effort(), noise=0.05, seed=seed) for seed in (1, 1)
    ]
    assert runs[0] == runs[1]


@needs_simulation
def test_the_measured_spaces_are_searched_well() -> None:
    """On the H200's measurements every search comes within 3 % with a fifth of the evaluations."""
    result = CliRunner().invoke(search.main, ["--seeds", "1", "--json"], catch_exceptions=False)
    rows = json.loads(result.stdout)
    assert len(rows) >= 6
    for row in rows:
        assert max(row["behind"]) <= search.NEAR
        assert max(row["evaluated"]) <= search.SHARE * row["space"]


def _row(**more: Any) -> dict[str, Any]:
    problem = samples.problem(16, 4096, 4096).key(None)
    found = {"problem": problem, "space": 500, "aten_us": 9.0, "best_us": 8.0}
    return {**found, "behind": [1.0, 1.0, 1.01], "evaluated": [74, 74, 100], **more}


def test_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    """The evaluations' median and most, and what is missing, as such."""
    search.show([_row(), _row(aten_us=None, behind=[math.inf] * 3)])
    first, second = (line for line in capsys.readouterr().out.splitlines() if "4096 x" in line)
    assert "9.00" in first and "74, at most 100" in first and "worst 1.010" in first
    assert " - " in second and "inf, worst inf" in second


def test_damaged_results_are_told(tmp_path: Path) -> None:
    """A packed file that was cut short or overwritten is named."""
    path = tmp_path / "a.jsonl.gz"
    packed = gzip.compress(b"some lines" * 100)
    for content in (packed[:-9], packed[:12] + b"\xff" * 12 + packed[24:], b"no gzip"):
        path.write_bytes(content)
        told = CliRunner().invoke(search.main, [str(path)])
        assert told.exit_code == 1 and f"Error: {path}: damaged" in told.output


def test_results_of_a_search_are_not_exhaustive(tmp_path: Path) -> None:
    """The tuner's own have no times of all kernels, and are left out."""
    line = {"kind": "problem", "problem": _row()["problem"], "status": "tuned", "best": []}
    worker = {"kind": "worker", "format": 1, "arch": samples.ARCH, "torch": "2.13"}
    (tmp_path / "a.jsonl").write_text(f"{json.dumps(worker)}\n{json.dumps(line)}\n")
    with pytest.raises(BuildError, match="no exhaustive result"):
        search.read_lines([tmp_path])


def test_packed_results_are_read(tmp_path: Path) -> None:
    """Lines of results, packed or not; without any the error says how to get them."""
    worker: dict[str, Any] = {"kind": "worker", "format": 1, "arch": samples.ARCH, "torch": "2.13"}
    line = {
        "kind": "problem",
        "problem": samples.problem(16, 4096, 4096).key(None),
        "status": "tuned",
        "times_us": [['{"template_id": "aten::mm"}', 9.0]],
    }
    text = f"{json.dumps(worker)}\n{json.dumps(line)}\n".encode()
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(text))
    found = search.read_lines([tmp_path])
    assert [search.measured(one) for one in found] == [{("aten::mm", ()): 9.0}]
    (tmp_path / "a.jsonl.gz").unlink()
    with pytest.raises(BuildError, match="--exhaustive"):
        search.read_lines([tmp_path])
