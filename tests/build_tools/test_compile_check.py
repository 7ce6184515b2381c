"""The compile check: which entries, what becomes of them, and what a kill costs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import fake_workers
import pytest
from samples import ATEN, COMMITTED, TILE, needs_simulation, run

pytest.importorskip("triton")
import torch

from build_tools import render as render_module
from build_tools.compile_check import CompileReport, compile_directory
from build_tools.compile_state import Result, State, default_state
from build_tools.compile_worker import telling_line
from build_tools.distinct import Case, code_class, distinct
from build_tools.files import replace_file, table_path
from build_tools.render import Rendered, compile_source, render
from inductor_tables import limits
from inductor_tables.errors import BuildError, SimulationError
from inductor_tables.keys import parse_key
from inductor_tables.schema import Config, Entry, Source
from inductor_tables.simulation import Simulation, simulate
from inductor_tables.table import Table, write_table
from inductor_tables.versions import torch_series

ROOT = Path(__file__).parents[2]
H200 = "NVIDIA H200"
SERIES = torch_series(torch.__version__)
RETRIES = tuple(map(int, SERIES.split("."))) >= (2, 13)
"""Whether torch compiles what does not fit once more with one stage."""

GOOD = TILE
SPILLS = {**TILE, "BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 32, "num_stages": 1}
"""256 accumulators in each of 128 threads."""
TOO_BIG = {**TILE, "BLOCK_M": 64, "BLOCK_N": 256, "BLOCK_K": 128, "num_stages": 5, "num_warps": 8}
"""409,600 B of shared memory; the H200 has 232,448."""
FAILS = {**TILE, "BLOCK_M": 2048, "BLOCK_N": 1024, "BLOCK_K": 16, "num_stages": 1, "num_warps": 8}
"""More elements in a tile than triton allows, which the handler does not know."""

Plain = Mapping[str, Any]


def key(
    m: int = 512, n: int = 1024, k: int = 4096, dtype: str = "bfloat16", rows: bool = True
) -> str:
    """The agnostic key of an mm, its second operand by rows or by columns."""
    stride = [n, 1] if rows else [1, k]
    return f"((torch.{dtype}, [{m}, {k}], [{k}, 1]), (torch.{dtype}, [{k}, {n}], {stride}))+mm"


def config(plain: Plain, template_id: str = "triton::mm", digest: str | None = None) -> Config:
    """A configuration with the hash that its template has here."""
    if "template_id" in plain:
        return Config(template_id=plain["template_id"], template_hash=None, params=())
    digest = digest or COMMITTED[SERIES].templates[template_id]
    params = tuple(sorted(plain.items()))
    return Config(template_id=template_id, template_hash=digest, params=params)


def put(
    out: Path,
    entries: Mapping[str, Sequence[Config]],
    arch: str | None = H200,
    series: str = SERIES,
    shared: bool = False,
) -> Path:
    """Write a table of agnostic keys for an arch below a directory, and return that."""
    device = "" if arch is None else f"{arch}+"
    source = Source(dump_digest="0")
    held = {
        device + text: [Entry(config=c, time_ns=None, source=source) for c in configs]
        for text, configs in entries.items()
    }
    data = write_table(held, table_version="1", series=series, arch=arch, serves_base_arch=shared)
    replace_file(out / table_path(series, arch), data)
    return out


def warps(*numbers: int) -> dict[str, list[Config]]:
    """A key with an entry for each number of warps, which the fake workers go by."""
    return {key(): [config({**TILE, "num_warps": number}) for number in numbers]}


def warps_of(case: Case) -> int:
    """The number of warps of a case's entry."""
    return int(str(dict(case.config.params)["num_warps"]))


def outcomes(report: CompileReport) -> dict[int, Result]:
    """The result of each number of warps."""
    return {warps_of(o.case): o.result for table in report.tables for o in table.compiled}


# --- which entries ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (key(), key(m=256), True),
        (key(), key(m=501), True),  # nothing is loaded along M
        (key(), key(m=4096, n=8192, k=8192), True),
        (key(), key(n=1040), True),
        (key(), key(n=1028), False),  # loads and stores are less wide
        (key(rows=False), key(n=1028, rows=False), False),  # stores
        (key(), key(m=16), False),  # one tile, not several
        (key(), key(m=1), False),
        (key(), key(k=4104), False),  # the last tile is masked
        (key(), key(k=64), False),  # one step, nothing to pipeline
        (key(), key(rows=False), False),
        (key(), key(dtype="float16"), False),
        (key(), key(m=2**20, n=4096), False),  # an index of 64 bits
        (key(), f"{H200}+{key()}", False),
        (key(), key().replace("[4096, 1]), (torch", "[8192, 1]), (torch"), False),
        (key(), key().replace("+mm", "+int_mm"), False),
        (key(), key().replace("+mm", "+alpha=1&beta=1+addmm"), False),
    ],
)
def test_keys_of_one_class(left: str, right: str, same: bool) -> None:
    """Keys whose sizes decide nothing for the compiler are of one class, and no others."""
    one, other = (code_class(parse_key(text), config(TILE)) for text in (left, right))
    assert (one == other) is same


def test_only_what_a_table_may_set_tells_entries_apart() -> None:
    """A recorded fact of the graph is not the table's to set; a tuning choice and a hash are."""
    kinds = {
        code_class(parse_key(key()), config(params, digest=digest))
        for params, digest in [
            (TILE, None),
            ({**TILE, "EVEN_K": True, "ACC_TYPE": "tl.float32"}, None),
            ({**TILE, "num_stages": 4}, None),
            (TILE, "0" * 64),
        ]
    }
    assert len(kinds) == 3


def test_distinct_entries_of_a_table(tmp_path: Path) -> None:
    """The first key stands for its class; ATen has no source; a text that is no key is left out."""
    held = {
        key(): [config(GOOD), config(SPILLS), config(ATEN)],
        key(m=256): [config(GOOD), config({"template_id": "decompose_k"})],
        key(n=1001): [config(GOOD)],
        "mm of two": [config(GOOD)],
    }
    put(tmp_path, held)
    found = distinct(Table.open(tmp_path / table_path(SERIES, H200)))
    assert found.without_source == 2
    kept = [(c.key.inputs[0].size[0], c.key.inputs[1].size[1], c.pairs) for c in found.cases]
    assert kept == [(256, 1024, 2), (512, 1001, 1), (512, 1024, 1)]


# --- the file of results ------------------------------------------------------------------------

RESULT = Result(outcome="exceeds", reason="µ", shared_memory=7, spills=1, seconds=2.5, source="s")


def test_state_is_read_again(tmp_path: Path) -> None:
    """What was added is found by the entry of the same run, and by the source of any."""
    path = tmp_path / "folder" / "state.jsonl"
    State(path).add("run", "entry", RESULT)
    state = State(path)
    assert state.of_entry("run", "entry") == RESULT
    assert state.of_entry("other run", "entry") is None
    assert state.of_entry("run", "other entry") is None
    assert state.of_source("s") is not None
    assert state.of_source("t") is None


def test_what_may_end_otherwise_is_not_kept(tmp_path: Path) -> None:
    """A crash or a time-out is tried again."""
    path = tmp_path / "state.jsonl"
    State(path).add("run", "entry", Result(outcome="failed", lasting=False))
    assert not path.exists()


def test_every_cut_of_the_state(tmp_path: Path) -> None:
    """Cut anywhere, a file gives its whole lines, and takes new ones."""
    path = tmp_path / "state.jsonl"
    for entry in "ab":
        State(path).add("run", entry, RESULT)
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        state = State(path)
        lines = whole[:length].count(b"\n")
        torn = whole[:length].endswith(b"}")  # all but the end of the line
        kept = [entry for entry in "ab" if state.of_entry("run", entry)]
        assert kept == list("ab")[: lines + torn]
        state.add("run", "c", RESULT)
        assert State(path).of_entry("run", "c") == RESULT


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[]",
        "{}",
        "\xff",
        json.dumps({"run": "run", "entry": "entry"}),
        json.dumps({"run": "run", "entry": "entry", "outcome": "fine", "lasting": True}),
    ],
)
def test_lines_that_are_not_ours(tmp_path: Path, line: str) -> None:
    """Whatever else is in the file is passed over."""
    path = tmp_path / "state.jsonl"
    path.write_bytes(line.encode("latin-1") + b"\n")
    assert State(path).of_entry("run", "entry") is None


def test_where_the_state_is_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In the user's cache directory, one for each torch and triton."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_state("2.13.0", "3.7.1").is_relative_to(tmp_path)
    assert default_state("2.13.0", "3.7.1") != default_state("2.13.0", "3.7.0")


# --- processes that die ---------------------------------------------------------------------------


def test_a_crash_costs_one_entry(tmp_path: Path) -> None:
    """What dies, aborts, ends or hangs is reported with how; all else is compiled."""
    put(tmp_path / "tables", warps(1, 2, 4, 8, 16, 32))
    state = tmp_path / "state.jsonl"
    report = compile_directory(
        tmp_path / "tables", state=state, jobs=2, timeout_s=2.0, work=fake_workers.misbehave
    )
    found = outcomes(report)
    assert {n: r.outcome for n, r in found.items()} == {
        1: "failed", 2: "failed", 4: "compiled", 8: "compiled", 16: "failed", 32: "failed",
    }  # fmt: skip
    assert found[1].reason == "the compiler's process died of SIGSEGV"
    assert found[2].reason == "the compiler's process died of SIGABRT: ERROR: Cannot select: t1"
    assert found[16].reason == "the compiler ended the process with exit status 3"
    assert found[32].reason == "no result after 2 s"
    assert not report.ok
    again = compile_directory(tmp_path / "tables", state=state, jobs=2, work=fake_workers.succeed)
    assert again.ok
    (table,) = again.tables
    assert {warps_of(one.case): one.earlier for one in table.compiled} == {
        1: False, 2: False, 4: True, 8: True, 16: False, 32: False,
    }  # fmt: skip


def test_a_run_that_is_killed_goes_on(tmp_path: Path) -> None:
    """Killed at any time, the run after it does what is left, and the one after that nothing."""
    tables, state = put(tmp_path / "tables", warps(*range(1, 13))), tmp_path / "state.jsonl"
    command = [sys.executable, fake_workers.__file__, str(tables), str(state)]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}) as process:
        deadline = time.monotonic() + 60
        while len(lines_of(state)) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        process.kill()
    assert process.returncode == -signal.SIGKILL
    done = len(lines_of(state))
    assert 3 <= done < 12
    report = compile_directory(tables, state=state, jobs=2, work=fake_workers.succeed)
    (table,) = report.tables
    assert report.ok
    assert len(table.compiled) == 12
    assert sum(one.earlier for one in table.compiled) == done
    assert len(lines_of(state)) == 12
    report = compile_directory(tables, state=state, work=fake_workers.refuse)
    assert report.ok


def lines_of(path: Path) -> list[bytes]:
    """The whole lines of a file that may not be there yet."""
    return path.read_bytes().split(b"\n")[:-1] if path.exists() else []


def test_another_table_starts_anew(tmp_path: Path) -> None:
    """A table with one more key is another table: nothing of the old one counts as done."""
    state = tmp_path / "state.jsonl"
    for entries, earlier in [(warps(1), 0), (warps(1), 1), (warps(1, 2), 0)]:
        tables = put(tmp_path / "tables", entries)
        report = compile_directory(tables, state=state, work=fake_workers.succeed)
        (table,) = report.tables
        assert sum(one.earlier for one in table.compiled) == earlier


def test_a_device_that_cannot_be_simulated(tmp_path: Path) -> None:
    """It is no fault of an entry: the run ends and says why."""
    tables = put(tmp_path / "tables", warps(1, 2))
    with pytest.raises(BuildError, match=r"^NVIDIA H200 cannot be simulated: this triton has no"):
        compile_directory(tables, state=tmp_path / "state", work=fake_workers.refuse)


def test_progress_is_told(tmp_path: Path) -> None:
    """After every entry: the device, how many are done, how many there are."""
    tables, told = put(tmp_path / "tables", warps(1, 2)), list[tuple[str, int, int]]()
    compile_directory(
        tables,
        state=tmp_path / "state",
        work=fake_workers.succeed,
        advance=lambda *progress: told.append(progress),
    )
    assert told == [(H200, 0, 2), (H200, 1, 2), (H200, 2, 2)]


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("", ""),
        ("chatter\n", ""),
        ("x\n[1] ValueError: numel (2) exceeds\nLater: x", "ValueError: numel (2) exceeds"),
        ("/a.py:3:4: error: operand #0 must be\n", "error: operand #0 must be"),
        ("a.cpp:1: f(): Assertion `x' failed.\n", "Assertion `x' failed."),
        ("RuntimeError: " + "x" * 999, ("RuntimeError: " + "x" * 999)[:300]),
    ],
)
def test_the_telling_line_of_a_log(tmp_path: Path, log: str, line: str) -> None:
    """The first line that names an error, without what is before it."""
    (tmp_path / "log").write_text(log)
    assert telling_line(tmp_path / "log") == line
    assert telling_line(tmp_path / "none") == ""


# --- which tables -------------------------------------------------------------------------------


def test_what_is_compiled_for_what(tmp_path: Path) -> None:
    """A table is compiled for its own device, of this torch; the others are named with why."""
    put(tmp_path, warps(1))
    put(tmp_path, warps(1), arch="gfx942", shared=True)
    put(tmp_path, warps(1), arch="gfx90a", shared=True)
    put(tmp_path, warps(1), arch=None)
    put(tmp_path, warps(1), series="2.99")
    state = tmp_path / "state"
    report = compile_directory(tmp_path, state=state, work=fake_workers.succeed)
    assert [(table.path, table.device) for table in report.tables] == [
        (f"{SERIES}/gfx942/gemm.msgpack", "gfx942:sramecc+:xnack-"),
        (f"{SERIES}/nvidia-h200/gemm.msgpack", H200),
    ]
    assert {path: reason.split(";")[0] for path, reason in report.skipped} == {
        f"{SERIES}/any/gemm.msgpack": "its keys have no device",
        f"{SERIES}/gfx90a/gemm.msgpack": "it is for 'gfx90a', which is not among the devices that "
        "can be simulated ('NVIDIA H200', 'NVIDIA H100 80GB HBM3', 'NVIDIA A100-SXM4-80GB', "
        "'NVIDIA B200', 'gfx942:sramecc+:xnack-')",
        "2.99/nvidia-h200/gemm.msgpack": "it is for torch 2.99, and templates are rendered from "
        f"the installed torch {SERIES}",
    }
    report = compile_directory(tmp_path, devices=[H200], state=state, work=fake_workers.succeed)
    assert [(table.path, table.device) for table in report.tables] == [
        (f"{SERIES}/any/gemm.msgpack", H200),
        (f"{SERIES}/nvidia-h200/gemm.msgpack", H200),
    ]
    with pytest.raises(SimulationError, match=r"no device 'H200' in the simulation's catalogue"):
        compile_directory(tmp_path, devices=["H200"], state=state)


def test_a_damaged_table_is_left_out(tmp_path: Path) -> None:
    """It is named, and a run in which nothing was compiled has not passed."""
    replace_file(tmp_path / table_path(SERIES, H200), b"damaged")
    report = compile_directory(tmp_path, state=tmp_path / "state")
    ((path, reason),) = report.skipped
    assert path == table_path(SERIES, H200).as_posix()
    assert "gemm.msgpack" in reason
    assert not report.ok


@pytest.mark.parametrize(
    ("option", "named"),
    [
        (("--device", H200), "--device"),
        (("--jobs", "2"), "--jobs"),
        (("--timeout", "2"), "--timeout"),
        (("--state", "x"), "--state"),
        (("--strict",), "--strict"),
    ],
)
def test_options_of_the_compile_check(tmp_path: Path, option: Sequence[str], named: str) -> None:
    """They mean nothing without it, and are refused."""
    result = run("check", put(tmp_path, warps(1)), *option)
    assert result.exit_code == 2
    assert f"{named}: only with --compile" in result.output


# --- real compilers -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two tables, compiled for the H200, below one directory; the state of that beside it.

    ``fine`` holds the one without failures, too: its results are in the state.
    """
    root = tmp_path_factory.mktemp("compiled")
    good = {key(): [config(GOOD), config(SPILLS), config(ATEN)], key(m=256): [config(GOOD)]}
    bad = {key(): [config(FAILS), config(GOOD, digest="0" * 64), config(TOO_BIG)]}
    put(root / "fine", good)
    put(put(root / "both", good), bad, arch=None)
    return root, root / "state.jsonl"


def check(directory: Path, state: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """Run the command for the H200; return its exit code and the compile report."""
    result = run(
        "check", directory, "--compile", "--device", H200, "--state", state, "--json", *options
    )
    assert result.stderr == ""
    report: dict[str, Any] = json.loads(result.stdout)["compile"]
    return result.exit_code, report


@needs_simulation
def test_what_becomes_of_entries(checked: tuple[Path, Path]) -> None:
    """What compiles, spills, does not fit, does not compile and is not used is told apart."""
    root, state = checked
    code, report = check(root / "both", state, "--jobs", "2")
    assert code == 1
    assert not report["ok"]
    bad, good = report["tables"]
    assert [good[name] for name in ("distinct", "without_source", "compiled")] == [2, 1, 2]
    by_size = {entry["entry"]["BLOCK_N"]: entry for entry in good["entries"]}
    assert by_size[32]["pairs"] == 2
    assert by_size[32]["spills"] < 16 < by_size[256]["spills"]  # ptxas may keep a small stack
    assert 0 < by_size[32]["registers"] < by_size[256]["registers"] == 255
    assert 0 < by_size[32]["shared_memory"] <= 232_448
    assert good["spilling"] == sum(entry["spills"] > 0 for entry in good["entries"])
    found = {(e["entry"]["BLOCK_M"], e["outcome"]): e["reason"] for e in bad["entries"]}
    too_big = (64, "unpipelined" if RETRIES else "dropped")
    assert found.keys() == {(2048, "failed"), (16, "dropped"), too_big}
    assert "numel (2097152) exceeds triton maximum tensor numel" in found[2048, "failed"]
    assert found[16, "dropped"].startswith("the template has changed: recorded 000000000000")
    assert found[too_big].startswith("needs 409600 B of shared memory, the device has 232448")


@needs_simulation
def test_a_second_run_compiles_nothing(checked: tuple[Path, Path]) -> None:
    """All is taken from the state; a spill is a warning, and fails if one is strict."""
    root, state = checked
    check(root / "fine", state)
    begin = state.stat().st_size
    code, report = check(root / "fine", state)
    (table,) = report["tables"]
    assert (code, table["earlier"], table["distinct"]) == (0, 2, 2)
    assert state.stat().st_size == begin
    assert check(root / "fine", state, "--strict")[0] == 1


@needs_simulation
def test_people_see_what_was_found(checked: tuple[Path, Path]) -> None:
    """One line a table, one a finding, and no progress bar where nobody looks at it."""
    root, state = checked
    result = run("check", root / "both", "--compile", "--device", H200, "--state", state)
    assert result.exit_code == 1
    assert "compiled for" in result.stdout
    place = table_path(SERIES, H200)
    assert f"{place}: warning: spilling: triton::mm (BLOCK_K=32, BLOCK_M=128," in result.stdout
    assert "a thread spills" in result.stdout
    assert f"{table_path(SERIES, None)}: failed: triton::mm (BLOCK_K=16," in result.stdout
    assert result.stderr == ""


@needs_simulation
@pytest.mark.slow
def test_an_amd_device(tmp_path: Path) -> None:
    """A table of a base arch is compiled for a device that it serves, in processes of its own."""
    tile = {**TILE, "matrix_instr_nonkdim": 16, "waves_per_eu": 0, "kpack": 2}
    put(tmp_path / "tables", {key(): [config(tile)]}, arch="gfx942", shared=True)
    state = tmp_path / "state.jsonl"
    result = run("check", tmp_path / "tables", "--compile", "--state", state, "--json")
    (table,) = json.loads(result.stdout)["compile"]["tables"]
    (entry,) = table["entries"]
    assert (entry["outcome"], table["device"]) == ("compiled", "gfx942:sramecc+:xnack-")
    assert entry["registers"] > 0


# --- rendering, in this process -----------------------------------------------------------------


@pytest.fixture
def sim() -> Iterator[Simulation]:
    """Yield a simulated H200."""
    with simulate(H200) as simulation:
        yield simulation


def rendered(sim: Simulation, text: str, plain: Plain, template_id: str = "triton::mm") -> Rendered:
    """Render an entry for an agnostic key."""
    case = Case(key=parse_key(text), config=config(plain, template_id), pairs=1)
    return render(sim, case)


A, B = "(torch.bfloat16, [512, 4096], [4096, 1])", "(torch.bfloat16, [4096, 1024], [1, 4096])"
FP8 = f"{A}, {B}".replace("bfloat16", "float8_e4m3fn")
SCALES = "(torch.float32, [512, 1], [1, 1]), (torch.float32, [1, 1024], [1024, 1])"
BIAS = "(torch.bfloat16, [512, 1024], [0, 1])"
FULL_BIAS = "(torch.bfloat16, [512, 1024], [1024, 1])"
PAIR = (
    "(torch.bfloat16, [8, 256, 64], [16384, 64, 1]), "
    "(torch.bfloat16, [8, 64, 256], [16384, 256, 1])"
)
OPS = {
    "mm": (f"({A}, {B})+mm", "triton::mm"),
    "tma": (f"({A}, {B})+mm", "triton::mm_persistent_tma"),
    "addmm": (f"({BIAS}, {A}, {B})+alpha=1&beta=1+addmm", "triton::mm"),
    "addmm of a matrix": (f"({FULL_BIAS}, {A}, {B})+alpha=0.5&beta=2+addmm", "triton::mm"),
    "bmm": (f"({PAIR})+bmm", "triton::bmm"),
    "baddbmm": (
        f"((torch.bfloat16, [8, 256, 256], [65536, 256, 1]), {PAIR})+alpha=1&beta=1+baddbmm",
        "triton::bmm",
    ),
    "int_mm": (f"({A}, {B})+int_mm".replace("bfloat16", "int8"), "triton::mm"),
    "mm_plus_mm": (f"({A}, {B}, {A}, {B})+mm_plus_mm", "triton::mm_plus_mm"),
    "scaled_mm": (f"({FP8}, {SCALES})+scaled_mm", "triton::mm"),
    "scaled tma": (
        f"({FP8}, {SCALES})+scaled_mm",
        "triton::scaled_mm_device_tma_epilogue_scaling",
    ),
}


@needs_simulation
@pytest.mark.parametrize("name", OPS)
def test_every_op_asks_under_its_key(sim: Simulation, name: str) -> None:
    """The graph made for a key leads to the handler's look-up of that key, and to the entry."""
    text, template_id = OPS[name]
    if name.startswith("addmm") and SERIES == "2.10":
        pytest.skip("torch 2.10 makes an mm and an addition of it")
    found = rendered(sim, text, {**TILE, "BLOCK_M": 64, "BLOCK_N": 64}, template_id)
    assert found.source is not None, found.dropped
    assert "BLOCK_N : tl.constexpr = 64" in found.source


@needs_simulation
@pytest.mark.parametrize(
    ("function", "asked"),
    [
        (lambda a, b: a.sum() + b.sum(), "it asks for no choices"),
        (lambda a, b: b.t() @ a.t(), f"its last key is {H200}+((torch.bfloat16, [1024, 4096], ["),
    ],
)
def test_a_key_that_no_op_asks_under(
    sim: Simulation, monkeypatch: pytest.MonkeyPatch, function: Any, asked: str
) -> None:
    """An entry that lowering does not come to is not used, and what was asked for is said."""
    monkeypatch.setattr(render_module, "_WITHOUT_SCALARS", {"mm": function})
    found = rendered(sim, f"({A}, {B})+mm", TILE)
    assert found.source is None
    assert found.dropped.startswith(f"the op does not ask under this key here: {asked}")


@needs_simulation
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"({A}, {B})+grouped_mm", r"no graph is known for the op 'grouped_mm' \(known: bmm, "),
        (f"({BIAS}, {A}, {B})+alpha=s0&beta=1+addmm", "expected a number as scalar of the key, "),
    ],
)
def test_keys_without_a_graph(sim: Simulation, text: str, problem: str) -> None:
    """A key that no function can be called for is refused."""
    with pytest.raises(BuildError, match=problem):
        rendered(sim, text, TILE)


@needs_simulation
def test_more_than_the_device_has(sim: Simulation, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the handler should have dropped is found by the compiler's own figure."""
    monkeypatch.setattr(limits, "problem", lambda *_: None)
    big = {**TOO_BIG, "num_stages": 8}
    source = rendered(sim, key(), big).source
    assert source is not None
    result = compile_source(sim, source.replace("_pipelining': True", "_pipelining': False"))
    assert (result.outcome, result.shared_memory) == ("exceeds", 655_360)
    assert result.reason == "needs 655360 B of shared memory, the device has 232448"
