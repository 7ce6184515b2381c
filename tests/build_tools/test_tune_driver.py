"""Runs of the tuner with a made-up GPU: results, resuming, failures, dumps."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import tune_samples as samples

from build_tools.build import build
from build_tools.hashes import TemplateHashes
from build_tools.tune.driver import Plan, nearest
from build_tools.tune.dumping import rows, write_dumps
from build_tools.tune.records import Ask, text_of
from build_tools.tune.results import Writer, problem_id, read_results, worker_name
from build_tools.tune.search import Effort
from build_tools.tune.session import Run, tune
from build_tools.tune.shapes import shape_of
from inductor_tables.dumps import read_dump
from inductor_tables.errors import BuildError, DeadDeviceError
from inductor_tables.problems import Problem
from inductor_tables.schema import Proof
from inductor_tables.versions import torch_series

EFFORT = Effort(candidates=24, batch=6, final_rounds=6, most_rounds=12)
PROBLEMS = [samples.problem(m, 1024, 2048) for m in (1, 16, 64)]
PLAN = Plan(effort=EFFORT, ahead=2)


def _tune(
    out: Path,
    bench: Any = None,
    problems: Sequence[Problem] = PROBLEMS,
    provenance: dict[str, Any] | None = None,
    **run: Any,
) -> Any:
    return tune(
        Run(problems=problems, out=out, **{"plan": PLAN, **run}),
        bench or samples.FakeBench(),
        dict(provenance or samples.PROVENANCE),
    )


def test_a_run_tunes_every_problem(tmp_path: Path) -> None:
    """Each result holds the entry, its proof, and what was tried; jobs are closed."""
    bench = samples.FakeBench()
    found = _tune(tmp_path, bench)
    assert (found.asked, found.tuned, found.left) == (3, 3, 0)
    assert found.text == "3 problems asked for: 3 tuned, 0 skipped, 0 failed, 0 left"
    lines = read_results(tmp_path).lines
    for problem in PROBLEMS:
        line = lines[problem_id(problem)]
        entry = line["entries"][0]
        assert entry["key"] == f"{samples.ARCH}+{problem_id(problem)}"
        assert entry["time_ns"] > 0 and entry["spread_ns"] >= 0
        assert set(line["incumbents"]) == {"aten", "host"}
        assert line["incumbents"]["host"]["how"] == "fastest of its own"
        assert line["evaluated"] == len(line["times_us"]) > 10
        assert line["origins"] == ["a made-up model"]
        if line["challenged"]:
            assert line["margin"] > line["noise"] > 0
    assert all(job.closed for job in bench.jobs)
    assert not list(tmp_path.glob("*.launching"))


def test_problems_overlap(tmp_path: Path) -> None:
    """While one problem is measured the next is prepared, at most as many as allowed."""
    bench = samples.FakeBench()
    opened: list[int] = []
    measure = samples.FakeJob.measure

    def watched(job: samples.FakeJob, ask: Ask) -> Any:
        opened.append(sum(not other.closed for other in bench.jobs))
        return measure(job, ask)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(samples.FakeJob, "measure", watched)
        _tune(tmp_path, bench)
    assert max(opened) == 2


def test_a_second_run_does_nothing_again(tmp_path: Path) -> None:
    """Results in the directory count, also of other problems' files."""
    _tune(tmp_path, problems=PROBLEMS[:2])
    bench = samples.FakeBench()
    found = _tune(tmp_path, bench)
    assert [job.problem for job in bench.jobs] == PROBLEMS[2:]
    assert (found.tuned, found.before) == (3, 2)
    assert "3 tuned (2 of them before)" in found.text


def test_results_of_another_torch_do_not_count(tmp_path: Path) -> None:
    """What 2.11 tuned, 2.13 tunes again."""
    _tune(tmp_path, provenance={**samples.PROVENANCE, "torch": "2.11.0"})
    bench = samples.FakeBench()
    assert _tune(tmp_path, bench).before == 0
    assert len(bench.jobs) == 3


@pytest.mark.parametrize("cut", [1, 40, 400])
def test_a_torn_last_line_is_a_problem_not_done(tmp_path: Path, cut: int) -> None:
    """A worker killed while it wrote loses that line only."""
    _tune(tmp_path)
    (file,) = tmp_path.glob("*.jsonl")
    os.truncate(file, file.stat().st_size - 1 - cut)
    done = read_results(tmp_path)
    assert (len(done.lines), done.torn) == (2, 1)
    bench = samples.FakeBench()
    assert _tune(tmp_path, bench).tuned == 3
    assert len(bench.jobs) == 1


def test_skipped_and_failed_problems_are_told_with_reasons(tmp_path: Path) -> None:
    """Others go on; failed ones are done again on request."""
    product = samples.problem(16, 64, 64, "addmm")
    batch = Problem(op_name="bmm", inputs=PROBLEMS[0].inputs, scalars=(), count=1, origins=())
    bench = samples.FakeBench(
        skipped={"bmm": "the host offers no choice for it"},
        crashing={"addmm": RuntimeError("out of memory\nmore")},
    )
    problems = [product, batch, *PROBLEMS]
    found = _tune(tmp_path, bench, problems)
    assert found.skipped == {"the host offers no choice for it": 1}
    assert found.failed == {"RuntimeError: out of memory": 1}
    assert (found.tuned, found.left) == (3, 0)
    assert "  failed, 1: RuntimeError: out of memory" in found.text.splitlines()
    again = samples.FakeBench()
    assert _tune(tmp_path, again, problems).failed == found.failed
    assert again.jobs == []
    assert _tune(tmp_path, again, problems, retry=True).tuned == 4


def test_a_kernel_that_breaks_the_gpu_is_not_launched_again(tmp_path: Path) -> None:
    """The next process knows which candidate it was, and goes on without it."""
    deadly = samples.space(PROBLEMS[0]).host[3]
    with pytest.raises(DeadDeviceError, match="broken"):
        _tune(tmp_path, samples.FakeBench(deadly=deadly), PROBLEMS[:1])
    assert read_results(tmp_path).broken == {problem_id(PROBLEMS[0]): {text_of(deadly)}}
    bench = samples.FakeBench(deadly=deadly)
    assert _tune(tmp_path, bench, PROBLEMS[:1]).tuned == 1
    assert bench.banned == [{text_of(deadly)}]


def test_a_problem_that_breaks_the_gpu_unseen_is_not_begun_again(tmp_path: Path) -> None:
    """Where no candidate can be blamed the problem has failed."""
    error = DeadDeviceError("the GPU's context is broken")
    with pytest.raises(DeadDeviceError, match="broken"):
        _tune(tmp_path, samples.FakeBench(crashing={"mm": error}), PROBLEMS[:1])
    (line,) = read_results(tmp_path).lines.values()
    assert (line["status"], line["reason"]) == ("failed", "it broke the GPU's context")


def test_what_a_dead_process_was_launching_is_banned(tmp_path: Path) -> None:
    """A mark that its process left behind counts, one of a living process does not."""
    name = worker_name(0)
    gone = name.rsplit("-", 1)[0] + "-99999999"
    (tmp_path / f"{gone}.launching").write_text(json.dumps({"problem": "p", "config": "c"}))
    alive = name.rsplit("-", 1)[0] + f"-{os.getppid()}"
    (tmp_path / f"{alive}.launching").write_text(json.dumps({"problem": "q", "config": "d"}))
    (tmp_path / f"{gone}8.launching").write_text("")
    Writer(tmp_path, samples.PROVENANCE, name).adopt_marks()
    assert read_results(tmp_path).broken == {"p": {"c"}}
    assert [path.stem for path in tmp_path.glob("*.launching")] == [alive]


def test_a_problem_that_ends_workers_is_given_up(tmp_path: Path) -> None:
    """After three workers it counts as failed."""
    from build_tools.tune.driver import Driver
    from build_tools.tune.handout import LocalTickets, Ticket
    from build_tools.tune.results import Done

    class Lost(LocalTickets):
        def next(self) -> Ticket | None:
            ticket = super().next()
            return ticket and Ticket(number=ticket.number, lost=3)

    writer = Writer(tmp_path, samples.PROVENANCE, "w-0-1")
    Driver(
        samples.FakeBench(), PROBLEMS[:1], tickets=Lost(1), writer=writer, plan=PLAN, done=Done()
    ).run()
    (line,) = read_results(tmp_path).lines.values()
    assert (line["status"], line["reason"]) == ("failed", "it ended 3 workers")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_a_run_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    """What is in flight is left for the next run; results so far are whole."""

    class Interrupted(samples.FakeBench):
        def open(self, *args: Any, **keywords: Any) -> Any:
            if len(self.jobs) == 5:
                os.kill(os.getpid(), number)
            return super().open(*args, **keywords)

    before = signal.getsignal(number)
    bench = Interrupted()
    problems = [samples.problem(8 + n, 256, 256) for n in range(20)]
    found = _tune(tmp_path, bench, problems)
    assert 0 < found.tuned <= 5 and found.left == 20 - found.tuned
    assert read_results(tmp_path).torn == 0
    assert all(job.closed for job in bench.jobs)
    assert signal.getsignal(number) == before


def test_the_time_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the minutes are over nothing new is begun, and what was begun is finished."""
    monkeypatch.delenv("INDUCTOR_TABLES_TUNE_ENDS", raising=False)
    bench = samples.FakeBench(seconds=0.02)
    problems = [samples.problem(8 + n, 256, 256) for n in range(200)]
    found = _tune(tmp_path, bench, problems, minutes=0.01)
    assert 0 < found.tuned < 200
    assert found.tuned == len(bench.jobs) == 200 - found.left


def test_winners_of_like_problems_are_tried_first(tmp_path: Path) -> None:
    """A search begins from what its neighbours found, of this run or another directory."""
    _tune(tmp_path / "one", problems=PROBLEMS[:1])
    bench = samples.FakeBench()
    _tune(tmp_path / "two", bench, [samples.problem(2, 1024, 2048)], seeds=[tmp_path / "one"])
    (line,) = read_results(tmp_path / "one").lines.values()
    first = {text_of(config) for config in bench.jobs[0].asks[0].candidates}
    best = [json.dumps(plain, sort_keys=True) for plain in line["best"][:2]]
    assert first.issuperset(best)


def test_the_nearest_problems_come_first() -> None:
    """The same problem gives more candidates than a neighbour; far dtypes give none."""
    history = [
        (shape_of(samples.problem(16, 64, 64)), [samples.mm(16, 16, 16, n, 1) for n in range(9)]),
        (shape_of(samples.problem(32, 64, 64)), [samples.mm(32, 16, 16, n, 1) for n in range(9)]),
        (shape_of(samples.problem(16, 64, 64, dtype="float32")), [samples.ATEN]),
    ]
    found = nearest(shape_of(samples.problem(16, 64, 64)), history)
    assert found == [*history[0][1][:8], *history[1][1][:2]]


HASHES = TemplateHashes(
    version="2.13.0", templates={"triton::mm": samples.HASH, "aten::mm": None}, rocm={}
)


def test_build_makes_a_table_of_the_dump(tmp_path: Path) -> None:
    """The dump has one row a problem, with its time, and builds unchanged."""
    _tune(tmp_path)
    (path,) = write_dumps(read_results(tmp_path), tmp_path)
    dump = read_dump(path)
    assert path.name == "tuned_NVIDIA-H200_torch2.13.0.json"
    assert (dump.source.torch, dump.source.sm_count, dump.arch) == ("2.13.0", 132, samples.ARCH)
    assert len(dump.rows) == 3 and all(row.time_ns for row in dump.rows)
    committed = {torch_series("2.13.0"): HASHES}
    (table,) = build([dump], table_version="1.0", committed=committed).tables
    key = f"{samples.ARCH}+{problem_id(PROBLEMS[1])}"
    (entry,) = table.table.lookup(key)
    line = read_results(tmp_path).lines[problem_id(PROBLEMS[1])]
    assert entry.time_ns == line["entries"][0]["time_ns"]
    assert dict(entry.config.plain) == line["entries"][0]["plain"]
    assert entry.proof == Proof(
        spread_ns=line["entries"][0]["spread_ns"],
        aten_ns=line["incumbents"]["aten"]["time_ns"],
        host_ns=line["incumbents"]["host"]["time_ns"],
        previous_ns=None,
        rounds=line["rounds"],
    )
    assert table.table.header.proof_count == 3


def test_the_previous_entry_is_in_the_proof(tmp_path: Path) -> None:
    """An incumbent that the line names; one that it does not was not timed."""
    line = _line("((0))")
    line["incumbents"] = {"previous": {"time_ns": 2000}}
    (row,) = rows([line])
    assert row.proof == Proof(spread_ns=20, previous_ns=2000, rounds=12)


def test_workers_of_one_run_make_one_dump(tmp_path: Path) -> None:
    """Files that differ in date and clocks only go together; another driver's do not."""
    later = {**samples.PROVENANCE, "date": "2026-12-02T00:00:00+00:00"}
    other = {**samples.PROVENANCE, "driver": "600.0"}
    for number, provenance in enumerate((later, samples.PROVENANCE, other)):
        line = _line(f"(({number}))")
        Writer(tmp_path, provenance, f"h-{number}-{number}").write(line)
    paths = write_dumps(read_results(tmp_path), tmp_path)
    dumps = [read_dump(path) for path in paths]
    assert sorted((len(d.rows), d.source.date) for d in dumps) == [
        (1, samples.PROVENANCE["date"]),
        (2, later["date"]),
    ]


def _line(key: str) -> dict[str, Any]:
    number = int(key.strip("()"))
    full = f"{samples.ARCH}+{problem_id(samples.problem(number + 1, 64, 64))}"
    plain = {"template_id": "aten::mm"}
    entry = {"key": full, "plain": plain, "time_ns": 1000, "spread_ns": 20}
    proved = {"entries": [entry], "incumbents": {"aten": {"time_ns": 1000}}, "rounds": 12}
    return {"kind": "problem", "problem": key, "status": "tuned", **proved}


def test_a_problem_done_twice_counts_once(tmp_path: Path) -> None:
    """A result beats a failure, and the first file beats the second."""
    failed = {"kind": "problem", "problem": "p", "status": "failed", "reason": "r"}
    tuned = {"kind": "problem", "problem": "p", "status": "tuned", "entries": [1]}
    for name, line in (("a", failed), ("b", tuned), ("c", {**tuned, "entries": [2]})):
        Writer(tmp_path, samples.PROVENANCE, name).write(line)
    assert read_results(tmp_path).lines["p"]["entries"] == [1]


def test_results_of_a_newer_release_are_refused(tmp_path: Path) -> None:
    """The message says what to do."""
    (tmp_path / "w.jsonl").write_text('{"kind": "worker", "format": 2}\n')
    with pytest.raises(BuildError, match="use the release that wrote them"):
        read_results(tmp_path)
