"""The comparison of a table's kernels with the host's, with a made-up GPU."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import kernels
import pytest
import ratios
import tune_samples as samples
from click.testing import CliRunner
from rich.console import Console

from build_tools.tune.driver import Plan
from build_tools.tune.records import Failure
from build_tools.tune.results import problem_id, read_results
from build_tools.tune.session import Run, tune
from build_tools.tune.space import candidate
from inductor_tables.errors import BuildError
from inductor_tables.schema import Config, Entry, Source
from inductor_tables.table import Table, write_table

PROBLEMS = [samples.problem(m, 1024, 2048) for m in (1, 16, 64, 512)]
OURS = samples.mm(32, 64, 128, 4, 4)


def _offered(*configs: Config) -> dict[str, Sequence[Config]]:
    return {problem_id(problem): configs or (OURS,) for problem in PROBLEMS}


def _compare(out: Path, offered: Any = None, bench: Any = None, **run: Any) -> list[Any]:
    plan = Plan(procedure=kernels.comparing(offered or _offered(), 12))
    tune(
        Run(problems=PROBLEMS, out=out, plan=plan, **run),
        bench or samples.FakeBench(),
        {**samples.PROVENANCE, "tma": False},
    )
    lines = read_results(out).lines
    return [lines[problem_id(p)] for p in PROBLEMS if problem_id(p) in lines]


def test_a_comparison_names_the_kernels_and_their_ratios(tmp_path: Path) -> None:
    """The ratios are those of the true times, within the noise that is told."""
    bench = samples.FakeBench()
    for line, job in zip(_compare(tmp_path, bench=bench), bench.jobs, strict=True):
        assert line["status"] == "tuned"
        assert set(line["kernels"]) == {"table", "host", "host_best", "aten"}
        assert line["choices"] == len(job.space.host)
        us = job.surface.true_us
        for name, found in line["ratios"].items():
            other = candidate(**_parts(line["kernels"][name]["plain"]))
            assert found["ratio"] == pytest.approx(us(OURS) / us(other), abs=2 * found["noise"])
        assert all(job.asks[-1].final for job in bench.jobs)
        assert line["rounds"] >= 12


def test_a_recorded_pick_is_what_is_compared(tmp_path: Path) -> None:
    """Of the host's other choices only ATen's are measured, and the fastest is not known."""
    bench = samples.FakeBench()
    picks = {problem_id(p): samples.space(p).host[-1] for p in PROBLEMS}
    plan = Plan(procedure=kernels.comparing(_offered(), 12, picks))
    run = Run(problems=PROBLEMS, out=tmp_path, plan=plan)
    tune(run, bench, {**samples.PROVENANCE, "tma": False})
    lines = list(read_results(tmp_path).lines.values())
    for line in lines:
        assert line["kernels"]["host"]["plain"] == dict(picks[line["problem"]].plain)
    assert {frozenset(line["kernels"]) for line in lines} == {frozenset({"table", "host", "aten"})}
    asked = {config for job in bench.jobs for ask in job.asks for config in ask.candidates}
    assert asked == {OURS, samples.ATEN, *picks.values()}
    (group,) = ratios.report_of(lines)
    assert {row["against"] for row in group["summaries"]} == {"host", "aten"}


def test_a_pick_that_the_host_does_not_offer_is_told(tmp_path: Path) -> None:
    """As with a recording of another torch."""
    picks = {problem_id(problem): OURS for problem in PROBLEMS}
    plan = Plan(procedure=kernels.comparing(_offered(samples.ATEN), 12, picks))
    run = Run(problems=PROBLEMS, out=tmp_path, plan=plan)
    tune(run, samples.FakeBench(), {**samples.PROVENANCE, "tma": False})
    reasons = {line["reason"] for line in read_results(tmp_path).lines.values()}
    assert reasons == {"the host has no pick, or ATen no kernel"}


def _parts(plain: dict[str, Any]) -> dict[str, Any]:
    return {
        "template_id": plain["template_id"],
        "template_hash": plain.get("template_hash"),
        "params": plain,
    }


def test_the_same_kernel_is_equal_to_itself(tmp_path: Path) -> None:
    """An entry that is ATen's kernel has the ratio 1 to it, without noise of its own."""
    for line in _compare(tmp_path, _offered(samples.ATEN)):
        assert line["ratios"]["aten"]["ratio"] == 1.0
        assert line["ratios"]["aten"]["same"]
        assert line["kernels"]["aten"] == line["kernels"]["table"]


def test_a_second_run_goes_on(tmp_path: Path) -> None:
    """What is compared is not compared again."""
    _compare(tmp_path)
    bench = samples.FakeBench()
    assert len(_compare(tmp_path, bench=bench)) == len(PROBLEMS)
    assert bench.jobs == []


def test_a_wrong_entry_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry that computes nonsense is a failure with its reason, and misses the bar."""
    monkeypatch.setattr(samples.FakeJob, "__post_init__", _breaking(samples.FakeJob.__post_init__))
    lines = _compare(tmp_path)
    assert {line["reason"] for line in lines} == {"table: wrong: nan"}
    (group,) = ratios.report_of(lines)
    assert group["failed"] == {"table: wrong: nan": 4}


def _breaking(made: Callable[[Any], None]) -> Callable[[Any], None]:
    def make(job: Any) -> None:
        made(job)
        job.broken = {OURS: Failure(stage="wrong", reason="nan")}

    return make


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([OURS], OURS),
        ([samples.ATEN, OURS], samples.ATEN),
        ([candidate("triton::mm_persistent_tma", None, {"BLOCK_M": 64}), OURS], OURS),
        ([candidate("triton::mm", "cd" * 32, dict(OURS.params)), samples.ATEN], samples.ATEN),
        ([candidate("triton::mm", None, dict(OURS.params))], None),
        ([samples.mm(256, 256, 256, 7, 8)], None),
    ],
)
def test_which_entry_is_served(entries: list[Config], expected: Config | None) -> None:
    """It is the first whose template is offered, has not changed, and can run here."""
    if len(entries) == 1 and entries[0].template_hash is None:
        expected = entries[0]  # nobody knows which template it was recorded with
    assert kernels.served(samples.space(PROBLEMS[1]), entries) == expected


def test_another_table_needs_another_directory(tmp_path: Path) -> None:
    """Comparisons of one entry are not taken for another's; more problems may come."""
    _compare(tmp_path)
    done = ratios.read_comparisons(tmp_path)
    more = {**_offered(), problem_id(samples.problem(2, 2, 2)): [OURS]}
    kernels.check_same(done, more, tma=False)
    with pytest.raises(BuildError, match="another entry: use another --out"):
        kernels.check_same(done, _offered(samples.ATEN), tma=False)
    with pytest.raises(BuildError, match="another --tma: use"):
        kernels.check_same(done, more, tma=True)
    with pytest.raises(BuildError, match="another --tma, another --picks: use"):
        kernels.check_same(done, more, {}, tma=True)


def test_other_picks_need_another_directory(tmp_path: Path) -> None:
    """Comparisons with one pick are not taken for those with another; fewer may be given."""
    picks = {problem_id(p): samples.space(p).host[-1] for p in PROBLEMS}
    plan = Plan(procedure=kernels.comparing(_offered(), 12, picks))
    run = Run(problems=PROBLEMS, out=tmp_path, plan=plan)
    tune(run, samples.FakeBench(), {**samples.PROVENANCE, "picks": True})
    done, last = ratios.read_comparisons(tmp_path), problem_id(PROBLEMS[-1])
    kernels.check_same(done, _offered(), picks, tma=False)
    kernels.check_same(done, _offered(), {last: picks[last]}, tma=False)
    with pytest.raises(BuildError, match=r"512, 2048.* with another pick of the host's: use"):
        kernels.check_same(done, _offered(), {**picks, last: samples.ATEN}, tma=False)


def test_every_beginning_of_a_sample_is_fair() -> None:
    """Small and large M have their share in it; another seed draws others."""
    problems = [samples.problem(m, 16 * n, 64) for m in (1, 16, 512) for n in range(1, 41)]
    problems += [samples.problem(64, 16 * n, 64) for n in range(1, 21)]
    found = kernels.sample(problems, 35, seed=0)
    sizes = [problem.inputs[0].size[0] for problem in found]
    assert [sizes.count(m) for m in (1, 16, 64, 512)] == [10, 10, 5, 10]
    assert found == kernels.sample(problems[::-1], 35, seed=0)
    assert found[:20] == kernels.sample(problems, 20, seed=0)
    assert found != kernels.sample(problems, 35, seed=1)


def test_entries_of_a_table() -> None:
    """Those of the device and those of any are offered, in order; other devices' are not."""
    keys = {arch: f"{arch}+{problem_id(p)}" for arch, p in zip("ABC", PROBLEMS, strict=False)}
    keys["C"] = problem_id(PROBLEMS[2])
    tables = [
        Table(_table(keys["A"], OURS, samples.ATEN), "one"),
        Table(_table(keys["B"], OURS), "two"),
        Table(_table(keys["C"], samples.ATEN), "three"),
        Table(_table(keys["A"], samples.ATEN), "four"),
    ]
    assert kernels.table_entries(tables, "A") == {
        problem_id(PROBLEMS[0]): [OURS, samples.ATEN],
        problem_id(PROBLEMS[2]): [samples.ATEN],
    }


def _table(key: str, *configs: Config) -> bytes:
    source = Source(dump_digest="00")
    entries = {
        key: [Entry(config=c, time_ns=at, source=source) for at, c in enumerate(configs, start=1)]
    }
    arch = key.partition("+")[0] if "+((" in key else None
    return write_table(entries, table_version="1", series="2.13", arch=arch)


def _result(m: int, host: float, aten: float, *, noise: float = 0.005) -> dict[str, Any]:
    found = {"host": host, "host_best": 1.0, "aten": aten}
    return {
        "status": "tuned",
        "problem": problem_id(samples.problem(m, 64, 64)),
        "kernels": {},
        "ratios": {n: {"ratio": r, "noise": noise, "same": False} for n, r in found.items()},
        "worker": {"torch": "2.13.0", "arch": samples.ARCH},
    }


_RESULT = _result(16, 1.0, 1.0)


def test_the_bars() -> None:
    """Each bar is met or missed by its own figure; noise is allowed for single problems."""
    good = [_result(16, 0.8, 0.9), _result(512, 1.0, 1.004)]
    assert _verdicts(good) == ["met"] * 4
    assert _verdicts([*good, _result(512, 1.03, 0.9)])[0] == "missed"
    assert _verdicts([*good, _result(512, 1.03, 0.9, noise=0.03)])[0] == "met"
    assert _verdicts([*good, _result(32, 0.95, 0.9)])[1] == "missed"
    assert _verdicts([good[0], _result(512, 1.15, 0.9)])[2] == "missed"
    assert _verdicts([*good, _result(512, 1.0, 1.02)])[3] == "missed"
    wrong = {**good[0], "status": "failed", "reason": "table: wrong: error nan"}
    assert _verdicts([*good, wrong]) == ["missed", "met", "met", "missed"]
    assert _verdicts([wrong])[1:3] == ["not measured"] * 2


def _verdicts(lines: list[dict[str, Any]]) -> list[str]:
    (group,) = ratios.report_of(lines)
    return [bar["verdict"] for bar in group["bars"]]


def test_the_summary() -> None:
    """Means are geometric, quartiles and the worst are of the ratios."""
    (group,) = ratios.report_of([_result(1, 0.5, 1), _result(2, 1.0, 1), _result(4, 2.0, 1)])
    found = next(s for s in group["summaries"] if (s["class"], s["against"]) == ("all", "host"))
    assert found["geometric_mean"] == pytest.approx(1.0)
    assert found["quartiles"] == [0.75, 1.5]
    assert found["worst"]["name"] == "mm 4 x 64 x 64 bfloat16"
    assert (found["slower"], found["slower_beyond_noise"]) == (1, 1)


def test_the_command_reports_without_a_gpu(tmp_path: Path) -> None:
    """``--minutes 0`` prints what the directory holds, as a table or as JSON."""
    _compare(tmp_path)
    arguments = ["--out", str(tmp_path), "--minutes", "0"]
    shown = CliRunner().invoke(kernels.main, arguments)
    assert shown.exit_code == 0, shown.output
    assert "NVIDIA H200" in shown.output and "host's pick on every problem" in shown.output
    told = CliRunner().invoke(kernels.main, [*arguments, "--json"])
    (group,) = json.loads(told.output)
    assert len(group["problems"]) == len(PROBLEMS)


WORKER = {"kind": "worker", "format": 1, "torch": "2.13.0", "arch": samples.ARCH}


def _told(directory: Path, *lines: dict[str, Any]) -> Any:
    """Return what the command says of a file of lines."""
    text = "".join(json.dumps({"kind": "problem", **line}) + "\n" for line in lines)
    (directory / "a.jsonl").write_text(text)
    return CliRunner().invoke(kernels.main, ["--out", str(directory), "--minutes", "0"])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([_RESULT], "has no line before it that names torch and device"),
        ([WORKER, {**_RESULT, "kernels": {}, "ratios": {}}], "is none of kernels.py"),
        ([WORKER, {"problem": _RESULT["problem"], "status": "tuned"}], "is none of kernels.py"),
        ([WORKER, _result(16, 0.0, 1.0)], "has the ratio 0.0 to host, expected more than 0"),
        ([WORKER, _result(16, 1.0, float("nan"))], "has the ratio nan to aten"),
    ],
)
def test_what_is_no_comparison_is_an_error(
    tmp_path: Path, lines: list[dict[str, Any]], message: str
) -> None:
    """It names the directory, the problem and what is wrong with its result."""
    told = _told(tmp_path, *lines)
    assert told.exit_code == 1 and isinstance(told.exception, SystemExit)
    assert f"Error: {tmp_path}: the result of {_RESULT['problem']} {message}" in told.output


def test_an_unknown_status_is_counted(tmp_path: Path) -> None:
    """As not compared, beside what was."""
    line = {"problem": problem_id(samples.problem(1, 64, 64)), "status": "postponed"}
    told = _told(tmp_path, WORKER, line, _RESULT)
    assert told.exit_code == 0, told.output
    assert "not compared 1: of unknown status 'postponed'" in told.output
    assert "0 of 1 exceed it" in told.output


def test_the_command_says_what_is_missing(tmp_path: Path) -> None:
    """Without a GPU nothing is measured, and that is said."""
    found = CliRunner().invoke(kernels.main, ["--out", str(tmp_path)])
    assert found.exit_code == 1 and "needs a GPU" in found.output


def test_what_could_not_be_compared_is_shown() -> None:
    """Failures stand under the table with their count."""
    wrong = {**_result(1, 1, 1), "status": "failed", "reason": "table: wrong: error [nan]"}
    console = Console(width=150, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    ratios.show(ratios.report_of([wrong, _result(2, 1, 1)]), console)
    assert "not compared 1: table: wrong: error [nan]" in console.export_text()


def test_the_plot(tmp_path: Path) -> None:
    """A PNG is drawn of any results, also of none."""
    pytest.importorskip("matplotlib")
    from plots import plot_kernels

    report = ratios.report_of([_result(1, 0.5, 1), _result(2, 1.0, 1), _result(4, 2.0, 1)])
    for number, held in enumerate((report, [])):
        path = tmp_path / f"{number}.png"
        plot_kernels(held, path)
        assert path.read_bytes().startswith(b"\x89PNG")


class _Bench(samples.FakeBench):
    spent: dict[str, float] = {"timing": 1.0}  # noqa: RUF012 - as a real one has it
    closed = False

    def close(self) -> None:
        """Note it."""
        self.closed = True


def test_the_command_compares_what_the_table_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a table on disk to the report; the host's benchmarker is asked, two cores stay free."""
    bench = _Bench()
    asked: dict[str, Any] = {}

    def gpu_bench(_device: Any, options: Any, **keywords: Any) -> Any:
        asked.update(keywords, tma=options.tma)
        return bench

    monkeypatch.setattr("build_tools.tune.device.own_device", lambda: "cuda:0")
    monkeypatch.setattr("build_tools.tune.device.described", lambda _: dict(samples.PROVENANCE))
    monkeypatch.setattr("build_tools.tune.kernels.cores", lambda: 16)
    monkeypatch.setattr("build_tools.tune.measure.gpu_bench", gpu_bench)
    table = tmp_path / "table.msgpack"
    table.write_bytes(_table(f"{samples.ARCH}+{problem_id(PROBLEMS[1])}", OURS))
    arguments = ["--out", str(tmp_path / "out"), "--table", str(table), "--json", "--seed", "3"]
    found = CliRunner().invoke(kernels.main, arguments)
    assert found.exit_code == 0, found.output
    (group,) = json.loads(found.stdout)
    assert [row["key"] for row in group["problems"]] == [problem_id(PROBLEMS[1])]
    assert asked == {"workers": 14, "inline": True, "seed": 3, "tma": False}
    assert bench.closed and "1 of 1 problems done" in found.stderr
