"""The measuring of whole models: the models, the order of runs, resuming, the ratios."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import model_cases
import model_results
import models
import pytest
import steps
import torch
from blocks import Decoder, Tokens, _rotate, _split
from click.testing import CliRunner
from rich.console import Console

GPU = {"torch": "2.13.0", "gpu": "NVIDIA H200", "table": "", "device": "cuda"}
OPTIONS = {"device": "cuda", "table": "", "limit_s": 5.0, "retry": False}


@pytest.mark.parametrize("name", list(model_cases.CASES))
def test_models_are_too_large_for_the_cache(name: str) -> None:
    """The weights exceed the 60 MB that an H200 keeps from step to step."""
    with torch.device("meta"):
        model = model_cases.CASES[name].build()
    assert sum(p.numel() for p in model.parameters()) * 2 > 90e6


def test_a_cached_token_has_the_logits_of_the_whole_text() -> None:
    """Decoding behind a cache of 15 tokens computes what a prefill of all 16 does."""
    torch.manual_seed(0)
    ids = torch.randint(0, 100, (2, 16))
    whole = Decoder(model_cases.TINY, Tokens(batch=2, new=16)).eval()
    last = Decoder(model_cases.TINY, Tokens(batch=2, new=1, cached=15)).eval()
    last.load_state_dict(dict(whole.named_parameters()), strict=False)
    layer, cache = whole.layers[0], last.layers[0].cache
    with torch.no_grad():
        normed = layer.before_attention(whole.embedding(ids))
        key = _rotate(_split(layer.key(normed), 2), whole.cos, whole.sin)
        cache.keys[:, :, :15] = key[:, :, :15]
        cache.values[:, :, :15] = _split(layer.value(normed), 2)[:, :, :15]
        expected, found = whole(ids), last(ids[:, 15:])
    torch.testing.assert_close(found, expected)


def test_models_are_the_same_each_time() -> None:
    """Every process measures the same weights and inputs, in bfloat16."""
    case = model_cases.SMOKE["tiny"]
    first, second = model_cases.made(case, "cpu"), model_cases.made(case, "cpu")
    assert torch.equal(first[1], second[1])
    for one, other in zip(first[0].parameters(), second[0].parameters(), strict=True):
        assert one.dtype == torch.bfloat16 and torch.equal(one, other)


def test_ways_take_turns() -> None:
    """Each round begins with another way; a case's ways stand together."""
    found = models.plan(["a", "b"], ["x", "y"], 2)
    assert [(one["case"], one["way"], one["round"]) for one in found] == [
        ("a", "x", 0), ("a", "y", 0), ("b", "x", 0), ("b", "y", 0),
        ("a", "y", 1), ("a", "x", 1), ("b", "y", 1), ("b", "x", 1),
    ]  # fmt: skip


def test_which_models() -> None:
    """A beginning picks all of its phases; the one for trying out only by name."""
    assert models.cases_of(["qwen3"]) == ["qwen3-8b decode", "qwen3-8b prefill"]
    assert models.cases_of([]) == list(model_cases.CASES)
    assert models.cases_of(["tiny"]) == ["tiny"]
    with pytest.raises(click.UsageError, match="no model 'gemma'"):
        models.cases_of(["gemma"])


Calls = list[tuple[str, ...]]


@pytest.fixture(name="calls")
def _calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Stand in for processes; note what each is asked, and fill the Mega-Cache as asked."""
    calls: Calls = []

    def sample(limit_s: float, _script: str, *arguments: str, **_rest: str) -> dict[str, Any]:
        assert limit_s == OPTIONS["limit_s"]
        calls.append(arguments)
        if arguments[1] == "default" and "broken" in arguments[0]:
            raise RuntimeError("models.py failed:\nout of memory")
        if arguments[1] == "max_autotune_gemm" and arguments[4]:
            Path(arguments[4]).write_bytes(b"cache")
        return _line("", "", 10.0, 0.9)

    known = {"torch": GPU["torch"], "gpu": GPU["gpu"]}
    monkeypatch.setattr(models, "sample_within", sample)
    monkeypatch.setattr(models, "sample", lambda *_arguments: known)
    return calls


def _line(case: str, way: str, compile_s: float, ratio: float, **more: Any) -> dict[str, Any]:
    def timed(us: float, to_eager: float) -> dict[str, float]:
        return {"us": us, "spread_us": 1.0, "ratio": to_eager, "noise": 0.01}

    found = {
        **GPU, "case": case, "way": way, "round": 0, "compile_s": compile_s, "layers": 2,
        "graphed": {"eager": timed(100.0, 1.0), "compiled": timed(100 * ratio, ratio)},
        "clocked": {"eager": timed(200.0, 1.0), "compiled": timed(180.0, 0.9)},
        "error": {"right": True}, "autotuned": 0, "hits": 0, "misses": 0, "dropped": 0,
        "cache_hits": 0, "cache_bytes": 10, **more,
    }  # fmt: skip
    return found if case else {k: v for k, v in found.items() if k not in ("case", "way", "round")}


def _run(path: Path, ways: tuple[str, ...], cases: tuple[str, ...] = ("a",), **more: Any) -> Any:
    series = models.Series(path)
    minutes = more.pop("minutes", None)
    models.run(series, models.plan(cases, ways, 1), minutes, **{**OPTIONS, **more})
    return series


def test_a_second_run_goes_on(tmp_path: Path, calls: Calls) -> None:
    """What the file holds is not measured again, but for a line that was cut short."""
    path = tmp_path / "out.jsonl"
    _run(path, ("default", "table"))
    path.write_bytes(path.read_bytes()[:-30])
    assert [one[:2] for one in calls] == [("a", "default"), ("a", "table")]
    calls.clear()
    _run(path, ("default", "table"))
    assert [one[:2] for one in calls] == [("a", "table")]
    calls.clear()
    assert len(_run(path, ("default", "table")).lines) == 2
    assert calls == []


def test_another_table_is_measured_apart(tmp_path: Path, calls: Calls) -> None:
    """Results with one table do not stand for those with another."""
    _run(tmp_path / "out.jsonl", ("table",))
    _run(tmp_path / "out.jsonl", ("table",), table="mine")
    assert [one[3] for one in calls] == ["", "mine"]


def test_the_mega_cache_is_filled_first(tmp_path: Path, calls: Calls) -> None:
    """By the run that autotunes, or where that was measured before by one of its own."""
    _run(tmp_path / "out.jsonl", ("max_autotune_gemm", "mega-cache"))
    assert [one[1] for one in calls] == ["max_autotune_gemm", "mega-cache"]
    assert calls[0][4] == calls[1][4] != ""
    calls.clear()
    series = _run(tmp_path / "out.jsonl", ("max_autotune_gemm", "mega-cache"), ("a", "b"))
    assert [one[:2] for one in calls] == [("b", "max_autotune_gemm"), ("b", "mega-cache")]
    calls.clear()
    series.path.unlink()
    series = _run(series.path, ("mega-cache",))
    assert [one[1] for one in calls] == ["max_autotune_gemm", "mega-cache"]
    assert [line["way"] for line in series.lines] == ["mega-cache"]


def test_what_fails_is_told_and_not_repeated(tmp_path: Path, calls: Calls) -> None:
    """A failure is a result, measured again on request; other ways go on."""
    path = tmp_path / "out.jsonl"
    series = _run(path, ("default", "table"), ("broken",))
    assert [line.get("failed") for line in series.lines] == [
        "models.py failed:\nout of memory", None,
    ]  # fmt: skip
    calls.clear()
    _run(path, ("default", "table"), ("broken",))
    assert calls == []
    _run(path, ("default", "table"), ("broken",), retry=True)
    assert [one[1] for one in calls] == ["default"]
    (group,) = model_results.report_of(series.lines)
    assert group["failed"][0]["way"] == "default"


def test_the_time_is_kept(tmp_path: Path, calls: Calls) -> None:
    """Nothing is begun once the minutes are over."""
    assert _run(tmp_path / "out.jsonl", ("default",), minutes=1e-9).lines == []


def _report(*lines: dict[str, Any]) -> Any:
    (group,) = model_results.report_of(lines)
    return group


def test_medians_are_over_the_rounds() -> None:
    """The ratios between ways are of these medians; where eager is the same, of own noise alone."""
    group = _report(
        _line("a", "default", 10.0, 1.0),
        _line("a", "max_autotune_gemm", 30.0, 0.9),
        _line("a", "table", 12.0, 0.7),
        _line("a", "table", 14.0, 0.9, round=1),
    )
    table = next(row for row in group["rows"] if row["way"] == "table")
    assert table["compile_s"] == {"median": 13.0, "least": 12.0, "most": 14.0}
    to = table["to"]["max_autotune_gemm"]
    assert to["compile"] == pytest.approx(13 / 30)
    assert to["graphed"]["ratio"] == pytest.approx(0.8 / 0.9)
    assert to["graphed"]["noise"] == pytest.approx(0.0148, abs=1e-4)
    assert table["to"]["table"]["graphed"] == {"ratio": 1.0, "noise": 0.0}
    mean = next(row for row in group["means"] if row["way"] == "table")
    assert mean["compile / default"] == pytest.approx(1.3)
    assert mean["graphed / eager"] == pytest.approx(0.8)


def _beside(way: str, us: float, eager_us: float) -> dict[str, Any]:
    """Return a line of a process in which a step and eager's took so long."""
    line = _line("a", way, 10.0, us / eager_us)
    line["graphed"]["eager"]["us"], line["graphed"]["compiled"]["us"] = eager_us, us
    return line


def test_eager_differs_between_processes() -> None:
    """Ways are compared by their own steps, with eager's drift in the noise; eager in its process.

    By way of eager the table would be at 0.874 of autotuning, 0.055 from what the steps say.
    """
    group = _report(_beside("max_autotune_gemm", 187.5, 301.8), _beside("table", 174.1, 321.0))
    eager, _, table = group["rows"]
    assert eager["graphed"]["drift"] == pytest.approx(0.0308, abs=1e-4)
    assert table["graphed"]["ratio"] == pytest.approx(0.542, abs=1e-3)
    assert table["graphed"]["noise"] == 0.01
    to = table["to"]["max_autotune_gemm"]["graphed"]
    assert to["ratio"] == pytest.approx(174.1 / 187.5)
    own = math.hypot(0.01 * 321.0 / 174.1, 0.01 * 301.8 / 187.5)
    assert to["noise"] == pytest.approx(to["ratio"] * math.hypot(own, 2**0.5 * 0.0308), abs=1e-4)


@pytest.mark.parametrize(("eager_us", "verdict"), [(321.0, "met"), (301.8, "missed")])
def test_the_bar_of_steps_allows_for_what_eager_does(eager_us: float, verdict: str) -> None:
    """4 % more than autotuning is noise where eager is 6 % apart, and is not where it is equal."""
    lines = _beside("max_autotune_gemm", 187.5, 301.8), _beside("table", 195.0, eager_us)
    assert _verdicts(*lines)[2] == verdict


def test_the_bars() -> None:
    """Compile bars are of models that the table covers, step and error bars of all."""
    base = [_line("a", "default", 10.0, 1.0), _line("a", "max_autotune_gemm", 30.0, 0.9)]
    assert _verdicts(*base) == ["not measured"] * 3 + ["met"]
    good = _line("a", "table", 10.9, 0.905, hits=5)
    assert _verdicts(*base, good) == ["met"] * 4
    assert _verdicts(*base, {**good, "misses": 1})[:2] == ["not measured"] * 2
    assert _verdicts(*base, {**good, "compile_s": 11.1})[:2] == ["missed", "met"]
    assert _verdicts(*base, {**good, "compile_s": 15.1})[:2] == ["missed", "missed"]
    assert _verdicts(*base, _line("a", "table", 10.9, 0.95))[2] == "missed"
    assert _verdicts(*base, {**good, "error": {"right": False}})[3] == "missed"


def _verdicts(*lines: dict[str, Any]) -> list[str]:
    return [bar["verdict"] for bar in _report(*lines)["bars"]]


def test_steps_take_turns() -> None:
    """Every form is timed once a round, many steps at a time, and compared in its round."""
    counts = {"eager": 0, "compiled": 0}
    waits: list[int] = []

    def step(name: str) -> Callable[[], None]:
        def one() -> None:
            counts[name] += 1
            sum(range(2000 if name == "eager" else 200))

        return one

    forms = {name: step(name) for name in counts}
    times = steps.clocked(forms, 4, lambda: waits.append(counts["eager"]))
    assert {name: len(found) for name, found in times.items()} == {"eager": 4, "compiled": 4}
    assert len(waits) == 2 * 2 * (1 + 4)
    found = steps.described({"eager": [10.0] * 4, "compiled": [9.0] * 4}, "eager")
    assert (found["compiled"]["ratio"], found["eager"]["ratio"]) == (0.9, 1.0)


def test_the_command_reports_without_a_gpu(tmp_path: Path) -> None:
    """``--minutes 0`` shows what the file holds, and draws it."""
    lines = [
        _line(case, way, 10.0 + at, 1 - 0.05 * at, hits=2)
        for case in ("a", "b")
        for at, way in enumerate(model_results.WAYS)
    ]
    path, plot = tmp_path / "out.jsonl", tmp_path / "plot.png"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    arguments = ["--out", str(path), "--minutes", "0"]
    shown = CliRunner().invoke(models.main, arguments)
    assert shown.exit_code == 0, shown.output
    assert "mega-cache" in shown.output and "geometric mean of 2 models" in shown.output
    told = CliRunner().invoke(models.main, [*arguments, "--json"])
    assert len(json.loads(told.stdout)[0]["rows"]) == 12
    pytest.importorskip("matplotlib")
    drawn = CliRunner().invoke(models.main, [*arguments, "--plot", str(plot)])
    assert drawn.exit_code == 0, drawn.output
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_what_failed_is_shown() -> None:
    """With its last line."""
    console = Console(width=190, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    lines = [
        _line("a", "default", 1.0, 1.0),
        {**GPU, "case": "b", "way": "table", "failed": "x\ny"},
    ]
    model_results.show(model_results.report_of(lines), console)
    assert "failed: b, table: y" in console.export_text()
