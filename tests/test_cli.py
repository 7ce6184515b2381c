"""The command line: what each command prints for people and programs, and its errors."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from inductor_tables import __main__, __version__, cli, config, demo, host, resources
from inductor_tables.errors import InvalidTableError, UnsupportedTorchError
from inductor_tables.schema import Config, Entry, Proof, Source
from inductor_tables.table import write_table

H200 = "NVIDIA H200"
HASH = "d9" * 32
MM = "((torch.bfloat16, [16, 4096], [4096, 1]), (torch.bfloat16, [4096, 1024], [1, 4096]))+mm"
ADDMM = (
    "((torch.float16, [8], [1]), (torch.float16, [4, 16], [16, 1]), "
    "(torch.float16, [16, 8], [1, 16]))+alpha=1&beta=1+addmm"
)
BMM = "((torch.float32, [2, 4, 8], [32, 8, 1]), (torch.float32, [2, 8, 6], [48, 6, 1]))+bmm"

RECORDED = Source(
    dump_digest="ab" * 16,
    torch="2.13.0+cu130",
    triton="3.7.1",
    cuda="13.0",
    device=H200,
    sm_count=132,
    date="2026-11-20T10:20:30+00:00",
)
CARRIED = Source(dump_digest="cd" * 16, torch="2.12.1+cu130", carried="hash")


PROOF = Proof(spread_ns=150, aten_ns=20_000, host_ns=16_460, rounds=24)


def entry(
    template_id: str,
    time_ns: int | None,
    source: Source,
    proof: Proof | None = None,
    **params: int,
) -> Entry:
    """Return an entry; one of Triton has a hash."""
    template_hash = HASH if template_id.startswith("triton") else None
    config = Config(
        template_id=template_id, template_hash=template_hash, params=tuple(sorted(params.items()))
    )
    return Entry(config=config, time_ns=time_ns, source=source, proof=proof)


TRITON = entry(
    "triton::mm", 12_345, RECORDED, PROOF,
    BLOCK_M=16, BLOCK_N=64, BLOCK_K=128, num_warps=4, num_stages=5, GROUP_M=8, NUM_SMS=132,
)  # fmt: skip
ATEN = entry("aten::mm", 20_000, RECORDED)
UNTIMED = entry("aten::bmm", None, CARRIED)


def packed(keys: dict[str, list[Entry]], series: str, arch: str | None) -> bytes:
    """Return a table of these keys."""
    prefix = "" if arch is None else f"{arch}+"
    return write_table(
        {prefix + key: entries for key, entries in keys.items()},
        table_version="2026.11.1",
        series=series,
        arch=arch,
    )


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A package of three tables, importable under a name of its own."""
    root = tmp_path_factory.mktemp("packaged")
    tables = {
        "2.11/nvidia-h200": packed({MM: [ATEN]}, "2.11", H200),
        "2.13/nvidia-h200": packed(
            {MM: [TRITON, ATEN], BMM: [UNTIMED], ADDMM: [ATEN]}, "2.13", H200
        ),
        "2.13/any": packed({MM: [ATEN]}, "2.13", None),
    }
    for place, data in tables.items():
        file = root / "cli_test_tables" / place / resources.TABLE_FILE
        file.parent.mkdir(parents=True)
        file.write_bytes(data)
    (root / "cli_test_tables" / "__init__.py").touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(root)
        yield "cli_test_tables"


@pytest.fixture
def packaged(package: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The three tables in the place of the packaged ones, on torch 2.13 without a GPU."""
    monkeypatch.setattr(resources, "PACKAGE", package)
    monkeypatch.setattr(host, "installed_torch", lambda: "2.13.0+cu130")
    monkeypatch.setattr(host, "visible_archs", tuple)
    resources._packaged.cache_clear()
    yield
    resources._packaged.cache_clear()


def run(*args: str) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(cli.commands, args, prog_name="inductor-tables")


def run_json(*args: str) -> Any:
    """Run a command with --json and return what it printed."""
    result = run(*args, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_help_names_every_command() -> None:
    """The help text lists the four commands."""
    result = run("--help")
    assert result.exit_code == 0
    assert all(f"  {name} " in result.output for name in ("demo", "list", "show", "status"))


def test_version() -> None:
    """--version prints the package's version."""
    assert run("--version").output == f"inductor-tables, version {__version__}\n"


@pytest.mark.parametrize("module", ["click", "rich"])
def test_without_the_extra(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without click or rich there is one line that says what to install, and exit status 2."""
    for name in [n for n in sys.modules if n.split(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)  # type: ignore[arg-type]
    monkeypatch.delitem(sys.modules, "inductor_tables.cli")
    with pytest.raises(SystemExit, match="2"):
        __main__.main()
    assert capsys.readouterr().err == (
        f"inductor-tables: the command line needs {module}; "
        "run: pip install 'inductor-tables[cli]'\n"
    )


# --- list -------------------------------------------------------------------------------


@pytest.mark.usefixtures("packaged")
def test_list_json() -> None:
    """List gives one object for each table, by series and folder."""
    found = run_json("list")
    assert [(t["torch_series"], t["folder"]) for t in found] == [
        ("2.11", "nvidia-h200"),
        ("2.13", "any"),
        ("2.13", "nvidia-h200"),
    ]
    table = found[2]
    digest, size, resource = table.pop("digest"), table.pop("bytes"), table.pop("resource")
    assert len(digest) == 64
    assert size == Path(resource).stat().st_size
    assert table == {
        "folder": "nvidia-h200",
        "torch_series": "2.13",
        "arch": H200,
        "serves_base_arch": False,
        "table_version": "2026.11.1",
        "keys": 3,
        "entries": 4,
        "recorded_with": {
            "torch": ["2.12.1+cu130", "2.13.0+cu130"],
            "triton": ["3.7.1"],
            "cuda": ["13.0"],
            "hip": [],
            "device": [H200],
            "date": ["2026-11-20T10:20:30+00:00"],
        },
        "sm_counts": [132],
    }


@pytest.mark.usefixtures("packaged")
def test_list_for_people() -> None:
    """List prints a line a table."""
    output = run("list").output
    assert "NVIDIA H200 (nvidia-h200)" in output
    assert "any device (any)" in output
    assert "torch 2.13.0+cu130, 2026-11-20 " in output


def test_list_without_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """List says so where nothing is packaged."""
    monkeypatch.setattr(resources, "packaged_tables", lambda: iter(()))
    assert run("list").output == "no tables are packaged\n"
    assert run_json("list") == []


def test_damaged_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged table is an error that names it, not a traceback."""

    def damaged() -> Iterator[Any]:
        raise InvalidTableError("2.13/x/gemm.msgpack", "header", "cut short")
        yield

    monkeypatch.setattr(resources, "packaged_tables", damaged)
    result = run("list")
    assert result.exit_code == 1
    assert result.output == "Error: 2.13/x/gemm.msgpack: header: cut short\n"


# --- show -------------------------------------------------------------------------------


@pytest.mark.usefixtures("packaged")
@pytest.mark.parametrize("arch", [H200, "nvidia-h200"])
def test_show_json(arch: str) -> None:
    """Show takes a gcnArchName or a folder and gives all entries, by op and sizes."""
    found = run_json("show", arch)
    assert found["torch_series"] == "2.13"
    assert found["keys_found"] == 3
    assert [row["op"] for row in found["rows"]] == ["addmm", "bmm", "mm", "mm"]
    assert found["rows"][2] == {
        "key": f"{H200}+{MM}",
        "op": "mm",
        "batch": None,
        "m": 16,
        "n": 1024,
        "k": 4096,
        "dtypes": ["bfloat16"],
        "layout": ["row", "col"],
        "template_id": "triton::mm",
        "template_hash": HASH,
        "params": dict(TRITON.config.params),
        "time_us": 12.345,
        "proof": {
            "spread_us": 0.15,
            "incumbents_us": {"aten": 20.0, "host": 16.46},
            "rounds": 24,
        },
        "margin": 0.25,
        "measured": True,
        "carried": None,
        "recorded_with_torch": "2.13.0+cu130",
    }


@pytest.mark.usefixtures("packaged")
def test_show_for_people() -> None:
    """Show prints the kernel with its tuning choices, its time and its origin."""
    output = run("show", H200).output
    assert "triton::mm 16x64x128, 4 warps, 5 stages, GROUP_M=8 " in output
    assert "12.3" in output
    assert "bmm (2 x)" in output
    assert "carried from torch 2.12.1+cu130" in output
    assert "NUM_SMS" not in output  # the running process sets it, not the table


@pytest.mark.usefixtures("packaged")
def test_show_proofs_for_people() -> None:
    """Spread, incumbents and margin stand beside the time, where any entry was proved."""
    output = run("show", H200).output
    (proved,) = [line for line in output.splitlines() if "triton::mm" in line]
    cells = [cell.strip() for cell in proved.split("│")]
    assert cells[8:11] == ["12.3 ±0.1", "ATen 20.0, host 16.5", "25.0%"]
    assert [row["proof"] for row in run_json("show", H200)["rows"]].count(None) == 3
    assert "margin" not in run("show", H200, "--torch", "2.11").output


@pytest.mark.usefixtures("packaged")
def test_show_picks_op_and_series() -> None:
    """--op and --torch narrow what is shown; a series may be a whole version."""
    assert [row["op"] for row in run_json("show", H200, "--op", "bmm")["rows"]] == ["bmm"]
    assert run_json("show", H200, "--torch", "2.11.0")["torch_series"] == "2.11"
    assert run("show", H200, "--op", "int_mm").output.endswith("no keys of the op 'int_mm'\n")


@pytest.mark.usefixtures("packaged")
def test_show_limit() -> None:
    """--limit counts keys, and says how many there are."""
    assert [row["op"] for row in run_json("show", H200, "--limit", "2")["rows"]] == ["addmm", "bmm"]
    assert run("show", H200, "--limit", "2").output.endswith("2 of 3 keys; --limit 3 shows all\n")


@pytest.mark.usefixtures("packaged")
@pytest.mark.parametrize(
    ("installed", "shown"), [("2.11.0", "2.11"), ("2.12.1", "2.13"), (None, "2.13")]
)
def test_show_series_by_default(
    installed: str | None, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The installed torch's table is shown, the newest where there is none of it."""

    def installed_torch() -> str:
        if installed is None:
            raise UnsupportedTorchError("torch is not installed")
        return installed

    monkeypatch.setattr(host, "installed_torch", installed_torch)
    assert run_json("show", H200)["torch_series"] == shown


@pytest.mark.usefixtures("packaged")
@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ("NVIDIA H2OO",),
            "Invalid value for ARCH: no table is packaged for 'NVIDIA H2OO'; packaged: "
            "'NVIDIA H200' (nvidia-h200), 'any device' (any)",
        ),
        (
            (H200, "--torch", "2.9"),
            "Invalid value for --torch: no table of 'NVIDIA H200' is packaged for torch '2.9'; "
            "packaged: 2.11, 2.13",
        ),
        ((H200, "--torch", "new"), "is packaged for torch 'new'; packaged: 2.11, 2.13"),
        ((H200, "--limit", "0"), "0 is not in the range x>=1"),
    ],
)
def test_show_errors(args: tuple[str, ...], message: str) -> None:
    """An unknown arch or series is an error that lists the known ones."""
    result = run("show", *args)
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (MM, cli.Gemm(op="mm", m=16, n=1024, k=4096, dtypes=("bfloat16",), layout=("row", "col"))),
        (
            f"gfx942:sramecc+:xnack-+{ADDMM}",
            cli.Gemm(op="addmm", m=4, n=8, k=16, dtypes=("float16",), layout=("row", "col")),
        ),
        (
            BMM,
            cli.Gemm(op="bmm", batch=2, m=4, n=6, k=8, dtypes=("float32",), layout=("row", "row")),
        ),
        (
            "((torch.int8, [4, 8], [16, 2]), (torch.bfloat16, [8, 4], [4, 1]))+mm",
            cli.Gemm(
                op="mm", m=4, n=4, k=8, dtypes=("int8", "bfloat16"), layout=("strided", "row")
            ),
        ),
        ("((torch.int8, [4], [1]),)+sum", cli.Gemm(op="sum", dtypes=("int8",))),
        ("no key", cli.Gemm()),
    ],
)
def test_gemm_of(key: str, expected: cli.Gemm) -> None:
    """A key is taken apart into M, N, K, dtypes and layout; one that is no GEMM is not."""
    assert cli.gemm_of(key) == expected


# --- status -----------------------------------------------------------------------------


@pytest.mark.usefixtures("packaged")
def test_status_without_gpu() -> None:
    """Status says that no GPU is visible, and which settings are in force."""
    found = run_json("status")
    settings = found.pop("settings")
    assert found == {
        "version": __version__,
        "torch": "2.13.0+cu130",
        "torch_series": "2.13",
        "packaged_series": ["2.11", "2.13"],
        "devices": [],
    }
    assert set(settings) == set(config._SETTINGS)
    assert settings["active"] is True
    assert settings["recorder_topk"] is None
    output = run("status").output
    assert "no GPU is visible" in output
    assert "INDUCTOR_TABLES_RECORDER_TOPK" in output


@pytest.mark.usefixtures("packaged")
def test_status_with_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Status lists for every visible GPU the tables that serve it, the closest first."""
    monkeypatch.setattr(host, "visible_archs", lambda: (H200, "NVIDIA L4"))
    devices = run_json("status")["devices"]
    levels = [(d["index"], d["arch"], [t["level"] for t in d["tables"]]) for d in devices]
    assert levels == [(0, H200, ["exact", "agnostic"]), (1, "NVIDIA L4", ["agnostic"])]
    output = run("status").output
    assert "0: NVIDIA H200" in output
    assert "1: NVIDIA L4" in output


@pytest.mark.usefixtures("packaged")
def test_status_where_no_table_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU without a table is shown with stock behaviour."""
    monkeypatch.setattr(host, "visible_archs", lambda: (H200,))
    monkeypatch.setattr(host, "installed_torch", lambda: "2.12.1")
    assert run_json("status")["devices"] == [{"index": 0, "arch": H200, "tables": []}]
    assert "no table: stock behaviour" in run("status").output


@pytest.mark.parametrize("command", ["status", "demo"])
def test_unsupported_torch(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch that is missing or too old is an error in words."""

    def missing() -> str:
        raise UnsupportedTorchError("torch is not installed; install torch 2.10 or newer")

    monkeypatch.setattr(host, "installed_torch", missing)
    result = run(command)
    assert result.exit_code == 1
    assert result.output == "Error: torch is not installed; install torch 2.10 or newer\n"


# --- demo -------------------------------------------------------------------------------


def test_demo_on_the_simulated_gpu() -> None:
    """Demo lowers the block in a process of its own and tells hits from misses."""
    command = [sys.executable, "-m", "inductor_tables", "demo", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    if not found["simulated"]:
        pytest.skip("a GPU that the tables know is visible")
    assert found["device"] == demo.SIMULATED
    gemms = {gemm["layers"]: gemm for gemm in found["gemms"]}
    assert set(gemms) == set(demo.LAYERS.values())
    assert gemms["adapter"]["hit"] is False
    assert gemms["adapter"]["autotuned"] is True
    assert gemms["adapter"]["choices"] > 1
    served = found["table"] is not None
    assert served == (host.installed_series() in resources.packaged_series())
    assert (found["hits"], found["misses"]) == ((7, 1) if served else (0, 8))
    for layers in set(gemms) - {"adapter"}:
        assert gemms[layers]["hit"] is served
        assert (gemms[layers]["choices"] == 1) is served


def gemm(layers: str, **known: Any) -> dict[str, Any]:
    """Return what the demo tells of one GEMM."""
    unknown: dict[str, Any] = {
        "template_id": None,
        "params": {},
        "choices": None,
        "autotuned": True,
        "hit": False,
    }
    return {"layers": layers, "key": f"{H200}+{MM}", **unknown, **known}


LOOKED_UP = {
    "table": {
        "resource": "tables/2.13/nvidia-h200/gemm.msgpack",
        "digest": "0123456789abcdef" * 4,
        "table_version": "2026.11.1",
        "torch_series": "2.13",
        "level": "exact",
        "keys": 3,
    },
    "hits": 7,
    "misses": 1,
    "gemms": [
        gemm("down", template_id="aten::mm", choices=1, autotuned=False, hit=True),
        gemm("adapter"),
    ],
}


def fake_step(step: str, *args: str, **environment: str) -> dict[str, Any]:
    """Stand in for a process that compiles on a real GPU."""
    assert args == ("1",)
    assert environment == {}
    times = {"default": (10.0, 130.0), "autotuning": (40.0, 125.0), "table": (10.5, 124.0)}
    compile_s, step_us = times[step]
    measured = {"compile_s": compile_s, "step_us": step_us, "error": 0.002}
    extra = {"miss_compile_s": 3.25, "looked_up": dict(LOOKED_UP)} if step == "table" else {}
    return {**measured, **extra}


@pytest.fixture
def real_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose second GPU is one that the tables know, faked."""
    monkeypatch.setattr(host, "visible_archs", lambda: ("NVIDIA L4", H200))
    monkeypatch.setattr(demo, "_in_fresh_process", fake_step)
    monkeypatch.setattr(
        demo, "packaged_candidates", lambda series, arch: iter([arch] if arch == H200 else [])
    )


@pytest.mark.usefixtures("real_gpu")
def test_demo_on_a_real_gpu() -> None:
    """Demo compiles on the GPU that a table serves: default, autotuning, and with the table."""
    found = run_json("demo")
    assert found["simulated"] is False
    assert found["device"] == H200
    assert {key: found[key] for key in LOOKED_UP} == LOOKED_UP
    assert list(found["compiles"]) == ["default", "autotuning", "table"]
    assert found["compiles"]["autotuning"] == {"compile_s": 40.0, "step_us": 125.0, "error": 0.002}
    assert found["compiles"]["table"]["miss_compile_s"] == 3.25
    assert "looked_up" not in found["compiles"]["table"]


@pytest.mark.usefixtures("real_gpu")
def test_demo_on_a_real_gpu_for_people() -> None:
    """Demo prints the GEMMs and both kinds of times."""
    output = run("demo").output
    assert "simulated" not in output
    assert "7 GEMMs from the table, 1 not in it" in output
    for line in (
        ("torch.compile, default options", "10.0", "130.0"),
        ("max_autotune_gemm", "40.0", "125.0"),
        ("max_autotune_gemm + table", "10.5", "124.0"),
        ("then the layer that misses, autotuned", "3.2"),
    ):
        assert any(all(part in found for part in line) for found in output.splitlines()), line


def test_demo_without_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no table serves the simulated GPU, demo says so."""
    monkeypatch.setattr(host, "visible_archs", tuple)
    step = {"table": None, "hits": 0, "misses": 8, "gemms": [gemm("down", choices=20)]}
    monkeypatch.setattr(demo, "_in_fresh_process", lambda *_args, **_environment: step)
    output = run("demo").output
    assert f"No table is packaged for NVIDIA H200 on torch {host.installed_series()}" in output
    assert "yes, 20 choices" in output
    assert "No GPU that the tables know is visible" in output


def test_demo_without_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without triton demo says what to install."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    result = run("demo")
    assert result.exit_code == 1
    assert "triton is not installed" in result.output
    assert "pip install 'inductor-tables[demo]'" in result.output


def test_failed_step() -> None:
    """A step whose process fails is an error with the end of what it said."""
    with pytest.raises(demo.DemoError, match=r"step 'table' failed \(exit status 1\):(.|\n)*Error"):
        demo._in_fresh_process("table", "not a number")
