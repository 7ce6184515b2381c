"""The commands coverage and collect: options, texts, exit statuses, and a real fresh process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import coverage_samples as samples
import pytest
from click.testing import CliRunner, Result
from coverage_models import ATEN, HIDDEN, OUT, WIDTH, mm_key, needs_simulation, table_file

from inductor_tables import cli, host, problems
from inductor_tables.analysis import commands
from inductor_tables.analysis.records import Coverage
from inductor_tables.analysis.worker import Request, in_fresh_process
from inductor_tables.errors import TargetError, UnsupportedTorchError
from inductor_tables.keys import parse_key

MODELS = f"""
import torch
import torch._inductor.config
from torch import nn

def stack(tokens=16):
    print("printing disturbs nothing")
    sizes = ({WIDTH}, {HIDDEN}), ({HIDDEN}, {WIDTH}), ({WIDTH}, {OUT})
    layers = [nn.Linear(k, n, bias=False) for k, n in sizes]
    return nn.Sequential(*layers), torch.empty(tokens, {WIDTH})

def fails():
    raise ValueError("no weights today")

def dies():
    import os
    os._exit(41)
"""


def run(*args: str) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(cli.commands, args, prog_name="inductor-tables")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """No fresh process: what would be asked of it. It answers with a sample for each."""
    requests: list[Request] = []

    def answer(request: Request) -> list[Coverage]:
        requests.append(request)
        hit = samples.gemm(m=16, n=1024, k=4096, count=2, origins=("a.0.up", "a.1.up"))
        miss = samples.gemm(m=16, n=640, k=4096, outcome="miss", origins=("head",))
        drop = samples.gemm(m=16, n=768, k=4096, outcome="dropped", phase="backward")
        found = replace(samples.coverage(hit, miss, drop), notes=("something else",))
        return [found for _ in request.targets] if request.apart else [found]

    monkeypatch.setattr(commands, "in_fresh_process", answer)
    return requests


# --- options ----------------------------------------------------------------------------


def test_request(asked: list[Request]) -> None:
    """Every option reaches the fresh process."""
    options = ["--device", "NVIDIA B200", "--tables", "a", "--tables", "b", "--tokens", "1,16,1"]
    options += ["--dtype", "float16", "--backward", "--dynamic", "--torch", host.installed_series()]
    assert run("coverage", "m:f", "c.json", *options).exit_code == 0
    assert run("coverage", "m:f").exit_code == 0
    everything, nothing = asked
    assert everything == Request(
        targets=("m:f", "c.json"), device="NVIDIA B200", tables=("a", "b"), backward=True,
        dynamic=True, tokens=[1, 16], dtype="float16",
    )  # fmt: skip
    assert nothing == Request(targets=("m:f",), device="NVIDIA H200", tables=None, tokens=[])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "Missing argument 'TARGET...'"),
        (["m:f", "--tokens", "1,x"], "'1,x': expected whole numbers from 1 on"),
        (["m:f", "--tokens", "0"], "'0': expected whole numbers from 1 on"),
        (["m:f", "--device", "H200"], "'H200' is not one of 'NVIDIA H200'"),
        (["m:f", "--torch", "2.9"], "run this in an environment that has it: pip install 'torch=="),
        (["m:f", "--torch", "new"], "not a torch version: 'new'"),
        (["m:f", "--json", "--html", "page.html"], "--json and --html exclude each other"),
        (["m:f", "--fail-under", "101"], "101"),
        (["m:f", "--limit", "0"], "0 is not in the range"),
    ],
)
def test_bad_options(asked: list[Request], args: Sequence[str], message: str) -> None:
    """What is wrong is said before anything is lowered."""
    result = run("coverage", *args)
    assert result.exit_code == 2 and message in result.output
    assert not asked


# --- what is printed --------------------------------------------------------------------


def test_for_people(asked: list[Request]) -> None:
    """A summary, a row for each GEMM, an explanation for all but hits, and what else there is."""
    output = run("coverage", "m:f").output
    assert output.startswith("3 GEMMs, 4 in all, on NVIDIA H200")
    assert "1 hit, 1 miss, 1 dropped" in output
    assert "a.0-1.up" in output and "mm, backward" in output and "autotuned" in output
    assert output.count("miss: NVIDIA H200+") == 1 and output.count("dropped: NVIDIA H200+") == 1
    assert "near: NVIDIA H200+" in output and "M 16, table has 512" in output
    assert "expected d99842e46680, found 5b1c07aa93ef" in output
    assert "note: something else" in output


def test_few_rows(asked: list[Request]) -> None:
    """More GEMMs than are shown are counted."""
    output = run("coverage", "m:f", "--limit", "1").output
    assert "1 of 3 GEMMs; --limit 3 shows all" in output
    assert output.count("NVIDIA H200+") <= 2


def test_json(asked: list[Request]) -> None:
    """JSON is the whole coverage and nothing else."""
    found = Coverage.from_dict(json.loads(run("coverage", "m:f", "--json").stdout))
    assert sorted(g.outcome for g in found.gemms) == ["dropped", "hit", "miss"]
    assert found.notes == ("something else",)


def test_html(asked: list[Request], tmp_path: Path) -> None:
    """The page goes into a file, the summary to the terminal."""
    pytest.importorskip("jinja2")
    page = tmp_path / "page.html"
    result = run("coverage", "m:f", "--html", str(page))
    assert result.exit_code == 0
    assert result.output.startswith("3 GEMMs") and result.output.endswith(f"{page}\n")
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_html_without_jinja(
    asked: list[Request], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without jinja2 the error says what to install."""
    monkeypatch.setitem(sys.modules, "jinja2", None)
    result = run("coverage", "m:f", "--html", str(tmp_path / "page.html"))
    assert result.exit_code == 1
    assert "--html needs jinja2; run: pip install 'inductor-tables[cli]'" in result.output


@pytest.mark.parametrize("percent", [0, 10, 90, 100])
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_fail_under(asked: list[Request], percent: int, form: list[str]) -> None:
    """Misses fail nothing, unless less is covered than is asked for."""
    covered = json.loads(run("coverage", "m:f", "--json").stdout)["covered"]
    assert 0.1 < covered < 0.9
    result = run("coverage", "m:f", "--fail-under", str(percent), *form)
    assert result.exit_code == (1 if percent > 100 * covered else 0)
    assert ("which is under --fail-under" in result.stderr) == bool(result.exit_code)


def test_nothing_is_never_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model without GEMMs passes, but not as covered."""
    monkeypatch.setattr(commands, "in_fresh_process", lambda _request: [samples.coverage()])
    assert run("coverage", "m:f").exit_code == 0
    result = run("coverage", "m:f", "--fail-under", "0")
    assert result.exit_code == 1 and "there is no GEMM" in result.stderr


def test_collecting(asked: list[Request], tmp_path: Path) -> None:
    """Problems of several models are written once, with counts added and origins named."""
    out = tmp_path / "problems.json"
    result = run("collect", "m:f", "m:g", "--out", str(out))
    assert result.exit_code == 0 and result.output.endswith(f"3 problems in {out}\n")
    assert asked[0].apart
    found = {p.inputs[1].size[1]: p for p in problems.read(out)}
    assert {n: p.count for n, p in found.items()} == {1024: 4, 640: 2, 768: 2}
    assert found[1024].origins == ("m.f:a.0.up", "m.f:a.1.up", "m.g:a.0.up", "m.g:a.1.up")
    assert found[1024].models == {"m.f", "m.g"}

    run("collect", "m:f", "--out", str(out), "--append", "--misses")
    counts = {p.inputs[1].size[1]: p.count for p in problems.read(out)}
    assert counts == {1024: 4, 640: 3, 768: 3}

    run("collect", "m:f", "--out", str(out))
    assert sum(p.count for p in problems.read(out)) == 4


def test_collecting_into_what_is_no_file_of_problems(asked: list[Request], tmp_path: Path) -> None:
    """A file that holds something else is not overwritten when it is added to."""
    out = tmp_path / "problems.json"
    out.write_text("[]")
    result = run("collect", "m:f", "--out", str(out), "--append")
    assert result.exit_code == 1 and "problems.json" in result.output
    assert out.read_text() == "[]" and not asked


# --- the fresh process ------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models in a module."""
    folder = tmp_path_factory.mktemp("commands")
    (folder / "command_test_models.py").write_text(MODELS)
    return folder


@needs_simulation
def test_fresh_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command lowers a model of the current directory and looks it up in a table."""
    monkeypatch.chdir(folder)
    key = mm_key(16, OUT, WIDTH)
    table = table_file(folder / "gemm.msgpack", {key: [(ATEN, 9_000)]})
    options = ["--dtype", "bfloat16", "--tokens", "16,32", "--tables", str(table), "--json"]
    result = run("coverage", "command_test_models:stack", *options)
    assert result.exit_code == 0, result.output
    found = Coverage.from_dict(json.loads(result.stdout))
    target = "command_test_models:stack"
    assert found.targets == (f"{target} tokens=16", f"{target} tokens=32")
    assert {(g.m, g.n, g.k) for g in found.gemms} == {
        (m, n, k) for m in (16, 32) for n, k in ((HIDDEN, WIDTH), (WIDTH, HIDDEN), (OUT, WIDTH))
    }
    (hit,) = (g for g in found.gemms if g.outcome == "hit")
    assert (hit.key, hit.time_us, hit.origins) == (key, 9.0, ("2",))
    assert hit.targets == (f"{target} tokens=16",)


@needs_simulation
def test_device_of_the_other_vendor(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A target that imports torch._inductor by itself is lowered for AMD all the same."""
    monkeypatch.chdir(folder)
    amd = "gfx942:sramecc+:xnack-"
    request = Request(targets=("command_test_models:stack",), device=amd, tables=None)
    (found,) = in_fresh_process(request)
    assert [parse_key(g.key).device for g in found.gemms] == [amd] * 3


@needs_simulation
def test_errors_of_the_fresh_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of a target is one line for people; a process that dies is told with its end."""
    monkeypatch.chdir(folder)
    result = run("coverage", "command_test_models:fails")
    assert result.exit_code == 1
    assert "calling it with () raised ValueError: no weights today" in result.output
    assert "Traceback" not in result.output
    request = Request(targets=("command_test_models:dies",), device="NVIDIA H200", tables=None)
    with pytest.raises(TargetError, match=r"ended the process \(exit status 41\)"):
        in_fresh_process(request)


def test_other_commands_import_nothing_of_it() -> None:
    """``status`` and the others start without what only coverage needs."""
    code = (
        "import sys; from inductor_tables.cli import commands; "
        "commands(['list', '--json'], standalone_mode=False); "
        "print([m for m in sys.modules if m.startswith('inductor_tables.analysis')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")


def test_help() -> None:
    """Both commands are listed and explain themselves."""
    listed = run("--help").output
    assert "  coverage " in listed and "  collect " in listed
    for name, option in (("coverage", "--fail-under"), ("collect", "--append")):
        text: Any = run(name, "--help").output
        assert option in text and "TARGET..." in text and "NVIDIA B200" in text


@pytest.mark.parametrize("command", ["coverage", "collect"])
def test_without_torch_the_message_says_so(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is one line, before any process is started."""
    error = UnsupportedTorchError("torch is not installed; install torch 2.10 or newer")
    monkeypatch.setattr(host, "installed_series", mock.Mock(side_effect=error))
    monkeypatch.setattr(commands, "in_fresh_process", mock.Mock(side_effect=AssertionError))
    options = ["--out", "problems.json"] if command == "collect" else []
    result = run(command, "docs.examples.models:mlp", *options)
    assert result.exit_code == 1
    assert "Error: torch is not installed" in result.stderr
