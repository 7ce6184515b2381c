"""Real compiles on a GPU that the tables know: ``python -m pytest -m gpu tests/gpu``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from torch._dynamo.utils import counters

import inductor_tables

pytestmark = pytest.mark.gpu

DEVICE = torch.cuda.get_device_properties(0).gcnArchName
OPTIONS = {"max_autotune_gemm": True}
SERIES = tuple(int(part) for part in torch.__version__.split(".")[:2])


@pytest.fixture(autouse=True)
def _cold_and_stock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from torch._inductor.utils import fresh_cache

    with fresh_cache():
        torch._dynamo.reset()
        counters.clear()
        yield
    inductor_tables.disable()
    torch._dynamo.reset()


def _autotuned() -> int:
    return int(counters["inductor"]["select_algorithm_autotune"])


def _compiled(fn: Callable[..., Any], *args: Any, **options: Any) -> Any:
    torch._dynamo.reset()
    counters.clear()
    with torch.no_grad():
        return torch.compile(fn, options={**OPTIONS, **options})(*args)


def _close(found: Any, expected: Any, tolerance: float = 1e-2) -> None:
    error = ((found.double() - expected.double()).norm() / expected.double().norm()).item()
    assert error < tolerance, error


def _random(*size: int, dtype: Any = torch.bfloat16) -> Any:
    return torch.randn(*size, device="cuda", dtype=dtype)


def _mm(x: Any, w: Any) -> Any:
    return x @ w


def mm_key(m: int, n: int, k: int) -> str:
    """The key of a bf16 product with a row-major weight."""
    inputs = f"((torch.bfloat16, [{m}, {k}], [{k}, 1]), (torch.bfloat16, [{k}, {n}], [{n}, 1]))"
    return f"{DEVICE}+{inputs}+mm"


def entry(**params: Any) -> dict[str, Any]:
    """A plain entry for the installed ``triton::mm``."""
    from torch._inductor.kernel.mm import mm_template

    return {
        "template_id": "triton::mm",
        "template_hash": mm_template.src_hash,
        "BLOCK_M": 64,
        "BLOCK_N": 64,
        "BLOCK_K": 64,
        "GROUP_M": 8,
        "num_stages": 3,
        "num_warps": 4,
        "EVEN_K": True,
        "ACC_TYPE": "tl.float32",
        **params,
    }


def test_hit_one_choice_without_autotuning() -> None:
    """A covered product: no autotuning, the table's kernel, the right result."""
    x, w = _random(96, 512), _random(512, 384)
    inductor_tables.enable({mm_key(96, 384, 512): [entry()]})
    found = _compiled(_mm, x, w)
    assert _autotuned() == 0
    assert inductor_tables.status().hits == 1
    _close(found, x.double() @ w.double())


def test_miss_autotunes_as_stock() -> None:
    """A product that the table lacks is autotuned."""
    inductor_tables.enable({mm_key(96, 384, 512): [entry()]})
    x, w = _random(97, 512), _random(512, 384)
    found = _compiled(_mm, x, w)
    assert _autotuned() == 1
    assert (inductor_tables.status().hits, inductor_tables.status().misses) == (0, 1)
    _close(found, x.double() @ w.double())


def test_recorder_round_trip(tmp_path: Path) -> None:
    """Record, build, enable: the recorded best of each op is taken without autotuning."""
    from click.testing import CliRunner

    from build_tools.cli import main as build_tools

    model = torch.nn.Sequential(
        torch.nn.Linear(512, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 512, bias=False)
    ).to("cuda", torch.bfloat16)
    x = _random(64, 512)
    with inductor_tables.record(tmp_path / "dumps") as recording:
        _compiled(model, x)
    assert _autotuned() == 2
    assert recording.path is not None
    out = tmp_path / "tables"
    arguments = ["build", str(recording.path), "--out", str(out), "--table-version", "1"]
    built = CliRunner().invoke(build_tools, [*arguments, "--topk", "1"])
    assert built.exit_code == 0, built.output
    inductor_tables.enable(out)
    found = _compiled(model, x)
    assert _autotuned() == 0
    assert (inductor_tables.status().hits, inductor_tables.status().misses) == (2, 0)
    _close(found, model.double()(x.double()))


def test_the_packaged_table_is_used() -> None:
    """What ships for this torch and GPU answers."""
    inductor_tables.enable(strict=True)
    x, w = _random(16, 4096), _random(4096, 4096)
    found = _compiled(lambda x, w: x @ w.t(), x, w)
    assert _autotuned() == 0
    assert inductor_tables.status().devices[DEVICE][0].level == "exact"
    _close(found, x.double() @ w.t().double())


@pytest.mark.parametrize("op", ["mm", "addmm", "bmm", "baddbmm", "mm_plus_mm"])
@pytest.mark.parametrize("dynamic", ["m", "n", "k"])
def test_dynamic_sizes_are_right_off_the_hint(op: str, dynamic: str) -> None:
    """An entry recorded at 512 (EVEN_K true) serves a dynamic graph: right at every size."""
    fn, make, template = _OPS[op]
    hint = {"m": 512, "n": 512, "k": 512}
    args = make(**hint)
    key = _key_of(fn, args)
    inductor_tables.enable({key: [entry(template_id=template, template_hash=None)]})
    torch._dynamo.reset()
    for at, dim in _DYNAMIC[op][dynamic]:
        torch._dynamo.mark_dynamic(args[at], dim)
    with torch.no_grad():
        compiled = torch.compile(fn, options=OPTIONS)
        compiled(*args)
        if (op, dynamic) != ("mm_plus_mm", "k"):  # its heuristic wants to know K
            assert inductor_tables.status().hits == 1
        for size in (512, 520, 509, 500, 24, 7, 2, 1, 1024):
            args = make(**{**hint, dynamic: size})
            _close(compiled(*args), fn(*(a.double() for a in args)), 2e-2)


def _key_of(fn: Callable[..., Any], args: tuple[Any, ...]) -> str:
    """The key that Triton choices of an op are looked up under."""
    from inductor_tables.keys import parse_key, problem_of

    inductor_tables.enable({"none": [entry()]})
    _compiled(fn, *args, max_autotune_gemm_backends="ATEN")
    return str(problem_of(parse_key(inductor_tables.status().last_misses[-1])))


def _two(m: int, n: int, k: int) -> tuple[Any, ...]:
    return _random(m, k), _random(k, n)


_OPS: dict[str, tuple[Callable[..., Any], Callable[..., tuple[Any, ...]], str]] = {
    "mm": (_mm, _two, "triton::mm"),
    "addmm": (
        lambda x, w, b: torch.addmm(b, x, w),
        lambda m, n, k: (*_two(m, n, k), _random(n)),
        "triton::mm",
    ),
    "bmm": (torch.bmm, lambda m, n, k: (_random(4, m, k), _random(4, k, n)), "triton::bmm"),
    "baddbmm": (
        lambda x, w, b: torch.baddbmm(b, x, w),
        lambda m, n, k: (_random(4, m, k), _random(4, k, n), _random(4, m, n)),
        "triton::bmm",
    ),
    "mm_plus_mm": (
        lambda a, b, c, d: a @ b + c @ d,
        lambda m, n, k: (*_two(m, n, k), *_two(m, n, k)),
        "triton::mm_plus_mm",
    ),
}
_DYNAMIC = {
    "mm": {"m": [(0, 0)], "n": [(1, 1)], "k": [(0, 1), (1, 0)]},
    "addmm": {"m": [(0, 0)], "n": [(1, 1), (2, 0)], "k": [(0, 1), (1, 0)]},
    "bmm": {"m": [(0, 1)], "n": [(1, 2)], "k": [(0, 2), (1, 1)]},
    "baddbmm": {"m": [(0, 1), (2, 1)], "n": [(1, 2), (2, 2)], "k": [(0, 2), (1, 1)]},
    "mm_plus_mm": {
        "m": [(0, 0), (2, 0)],
        "n": [(1, 1), (3, 1)],
        "k": [(0, 1), (1, 0), (2, 1), (3, 0)],
    },
}


def test_training_looks_up_forward_and_backward() -> None:
    """The backward graph, which another thread may compile, looks up as well."""
    weight = _random(512, 384).requires_grad_()
    x = _random(96, 512)
    inductor_tables.enable({mm_key(96, 384, 512): [entry()]})
    compiled = torch.compile(_mm, options=OPTIONS)
    compiled(x, weight).float().sum().backward()
    status = inductor_tables.status()
    assert status.hits == 1
    assert status.misses >= 1
    assert weight.grad is not None
    _close(weight.grad, x.double().t() @ torch.ones(96, 384, device="cuda").double())


def test_worker_threads_look_up() -> None:
    """A thread that compiles gets the table too."""
    inductor_tables.enable({mm_key(96, 384, 512): [entry()]})
    thread = threading.Thread(target=lambda: _compiled(_mm, _random(96, 512), _random(512, 384)))
    thread.start()
    thread.join()
    assert inductor_tables.status().hits == 1


def test_fp8_scaled_mm_round_trip(tmp_path: Path) -> None:
    """A scaled mm is recorded under the key that its look-up uses."""
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("needs fp8")
    a = _random(64, 512).to(torch.float8_e4m3fn)
    b = _random(384, 512).to(torch.float8_e4m3fn).t()
    scale_a = torch.rand(64, 1, device="cuda") + 0.5
    scale_b = torch.rand(1, 384, device="cuda") + 0.5

    def scaled(a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
        return torch._scaled_mm(a, b, scale_a, scale_b, out_dtype=torch.bfloat16)

    with inductor_tables.record(tmp_path) as recording:
        _compiled(scaled, a, b, scale_a, scale_b)
    assert recording.path is not None
    inductor_tables.enable(recording.path)
    found = _compiled(scaled, a, b, scale_a, scale_b)
    assert inductor_tables.status().hits == 1
    expected = (a.double() * scale_a.double()) @ (b.double() * scale_b.double())
    _close(found, expected)


def test_cached_graphs_depend_on_the_table(tmp_path: Path) -> None:
    """The same program under two tables gets two kernels, and the same table hits."""
    x, w = _random(96, 512), _random(512, 384)
    key = mm_key(96, 384, 512)

    def hits() -> int:
        _compiled(_mm, x, w)
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
