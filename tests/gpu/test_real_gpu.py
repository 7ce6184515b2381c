"""Real compiles on a GPU that the tables know: ``python -m pytest -m gpu tests/gpu``."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from real_device import (
    DEVICE,
    OPTIONS,
    autotuned,
    close,
    cold_and_stock,
    compiled,
    entry,
    mm,
    mm_key,
    random,
)
from torch._dynamo.utils import counters

import inductor_tables

pytestmark = pytest.mark.gpu


def test_hit_one_choice_without_autotuning() -> None:
    """A covered product: no autotuning, the table's kernel, the right result."""
    x, w = random(96, 512), random(512, 384)
    inductor_tables.enable({mm_key(96, 384, 512): [entry()]})
    found = compiled(mm, x, w)
    assert autotuned() == 0
    assert inductor_tables.status().hits == 1
    close(found, x.double() @ w.double())


def test_miss_autotunes_as_stock() -> None:
    """A product that the table lacks is autotuned."""
    inductor_tables.enable({mm_key(96, 384, 512): [entry()]})
    x, w = random(97, 512), random(512, 384)
    found = compiled(mm, x, w)
    assert autotuned() == 1
    assert (inductor_tables.status().hits, inductor_tables.status().misses) == (0, 1)
    close(found, x.double() @ w.double())


def test_recorder_round_trip(tmp_path: Path) -> None:
    """Record, build, enable: the recorded best of each op is taken without autotuning."""
    from click.testing import CliRunner

    from build_tools.cli import main as build_tools

    model = torch.nn.Sequential(
        torch.nn.Linear(512, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 512, bias=False)
    ).to("cuda", torch.bfloat16)
    x = random(64, 512)
    with inductor_tables.record(tmp_path / "dumps") as recording:
        compiled(model, x)
    assert autotuned() == 2
    assert recording.path is not None
    out = tmp_path / "tables"
    arguments = ["build", str(recording.path), "--out", str(out), "--table-version", "1"]
    built = CliRunner().invoke(build_tools, [*arguments, "--topk", "1"])
    assert built.exit_code == 0, built.output
    inductor_tables.enable(out)
    found = compiled(model, x)
    assert autotuned() == 0
    assert (inductor_tables.status().hits, inductor_tables.status().misses) == (2, 0)
    close(found, model.double()(x.double()))


def test_the_packaged_table_is_used() -> None:
    """What ships for this torch and GPU answers."""
    inductor_tables.enable(strict=True)
    x, w = random(16, 4096), random(4096, 4096)
    found = compiled(lambda x, w: x @ w.t(), x, w)
    assert autotuned() == 0
    assert inductor_tables.status().devices[DEVICE][0].level == "exact"
    close(found, x.double() @ w.t().double())


def test_one_row_that_the_graph_computes() -> None:
    """A decode step of one sequence is served by the packaged entry of one row."""
    inductor_tables.enable(strict=True)
    x, w = random(1, 1, 4096), random(14336, 4096)
    found = compiled(lambda x, w: torch.relu(x) @ w.t(), x, w)
    assert autotuned() == 0
    assert inductor_tables.status().hits == 1
    close(found, torch.relu(x.double()) @ w.t().double())


def test_training_looks_up_forward_and_backward() -> None:
    """The backward graph, which another thread may compile, looks up as well."""
    weight = random(512, 384).requires_grad_()
    x = random(96, 512)
    inductor_tables.enable({mm_key(96, 384, 512): [entry()]})
    torch.compile(mm, options=OPTIONS)(x, weight).float().sum().backward()
    status = inductor_tables.status()
    assert status.hits == 1
    assert status.misses >= 1
    assert weight.grad is not None
    close(weight.grad, x.double().t() @ torch.ones(96, 384, device="cuda").double())


def test_worker_threads_look_up() -> None:
    """A thread that compiles gets the table too."""
    inductor_tables.enable({mm_key(96, 384, 512): [entry()]})
    thread = threading.Thread(target=lambda: compiled(mm, random(96, 512), random(512, 384)))
    thread.start()
    thread.join()
    assert inductor_tables.status().hits == 1


def test_fp8_scaled_mm_round_trip(tmp_path: Path) -> None:
    """A scaled mm is recorded under the key that its look-up uses."""
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("needs fp8")
    a = random(64, 512).to(torch.float8_e4m3fn)
    b = random(384, 512).to(torch.float8_e4m3fn).t()
    scale_a = torch.rand(64, 1, device="cuda") + 0.5
    scale_b = torch.rand(1, 384, device="cuda") + 0.5

    def scaled(a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
        return torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=torch.bfloat16)

    with inductor_tables.record(tmp_path) as recording:
        compiled(scaled, a, b, scale_a, scale_b)
    assert recording.path is not None
    inductor_tables.enable(recording.path)
    found = compiled(scaled, a, b, scale_a, scale_b)
    assert inductor_tables.status().hits == 1
    expected = (a.double() * scale_a.double()) @ (b.double() * scale_b.double())
    close(found, expected)


def test_cached_graphs_depend_on_the_table(tmp_path: Path) -> None:
    """The same program under two tables gets two kernels, and the same table hits."""
    x, w = random(96, 512), random(512, 384)
    key = mm_key(96, 384, 512)

    def hits() -> int:
        compiled(mm, x, w)
        cached = counters["inductor"]["fxgraph_cache_hit"]
        return int(cached + counters["aot_autograd"]["autograd_cache_hit"])

    assert hits() == 0
    inductor_tables.enable({key: [entry()]})
    assert hits() == 0
    inductor_tables.enable({key: [entry(num_stages=2)]})
    assert hits() == 0
    inductor_tables.enable({key: [entry()]})
    assert hits() > 0
    inductor_tables.disable()
    assert hits() > 0
