"""Entries that a real GPU refuses: ``python -m pytest -m gpu tests/gpu``."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from real_device import DEVICE, OPTIONS, SERIES, close, cold_and_stock, entry, mm, random

import inductor_tables
from inductor_tables import limits, recovery

pytestmark = pytest.mark.gpu

SHARED = torch.cuda.get_device_properties(0).shared_memory_per_block_optin
KEY = (
    f"{DEVICE}+((torch.bfloat16, [512, 4096], [4096, 1]), "
    "(torch.bfloat16, [4096, 1024], [1024, 1]))+mm"
)
PIPELINED = {"BLOCK_M": 256, "BLOCK_N": 256, "BLOCK_K": 128, "num_stages": 5, "num_warps": 8}
"""655,360 B: too much, but not with one stage."""

WIDE = {**PIPELINED, "BLOCK_K": 256}
"""262,144 B with one stage: too much for an H200 however it is compiled."""


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The texts of our warnings so far."""
    caplog.set_level(logging.WARNING, "inductor_tables")
    return lambda: [r.getMessage() for r in caplog.records if r.name == "inductor_tables"]


def _operands() -> tuple[Any, Any]:
    return random(512, 4096), random(4096, 1024)


def _check(fn: Callable[..., Any], *args: Any, expected: Any, **options: Any) -> None:
    torch._dynamo.reset()
    close(torch.compile(fn, options={**OPTIONS, **options})(*args), expected)


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("params", [PIPELINED, WIDE], ids=["pipelined", "wide"])
def test_an_entry_that_needs_too_much_shared_memory(
    params: dict[str, int],
    threads: int,
    monkeypatch: pytest.MonkeyPatch,
    warnings: Callable[[], list[str]],
) -> None:
    """The driver refuses what the limits let pass: right result, one warning."""
    monkeypatch.setattr(limits, "problem", lambda *_: None)
    inductor_tables.enable({KEY: [entry(**params)]})
    x, w = _operands()
    _check(mm, x, w, expected=x.double() @ w.double(), compile_threads=threads)
    if params is PIPELINED and SERIES >= (2, 13):  # torch itself retries with one stage
        assert not warnings()
        return
    (warning,) = warnings()
    assert "an entry does not run: triton::mm" in warning
    assert KEY in warning
    _check(mm, x, w, expected=x.double() @ w.double(), compile_threads=threads)
    assert len(warnings()) == 1
    (reason,) = inductor_tables.status().dropped
    assert "failed in this process" in reason


def test_the_limits_drop_it_before(warnings: Callable[[], list[str]]) -> None:
    """With the limits on, nothing is tried, and status() has the numbers."""
    inductor_tables.enable({KEY: [entry(**WIDE)]})
    x, w = _operands()
    _check(mm, x, w, expected=x.double() @ w.double())
    assert not warnings()
    (reason,) = inductor_tables.status().dropped
    assert f"the device has {SHARED}" in reason


def test_a_kernel_that_cannot_be_put_on_the_device(
    monkeypatch: pytest.MonkeyPatch, warnings: Callable[[], list[str]]
) -> None:
    """The launcher of one kernel cannot be made: the other entry of the graph stays."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    make = CachingAutotuner._make_launchers

    def refuse(self: Any) -> Any:
        if any(result.config.num_stages == 7 for result in self.compile_results):
            raise RuntimeError("Triton Error [CUDA]: too many resources requested for launch")
        return make(self)

    monkeypatch.setattr(CachingAutotuner, "_make_launchers", refuse)
    other = KEY.replace("[512, 4096]", "[256, 4096]")
    good = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 64, "num_stages": 3, "num_warps": 4}
    bad = {**good, "num_stages": 7}  # no stock choice has as many
    inductor_tables.enable({KEY: [entry(**bad)], other: [entry(**good)]})
    x, w = _operands()
    y = x[:256].clone()
    expected = torch.cat([x, y]).double() @ w.double()

    def both(x: Any, y: Any, w: Any) -> Any:
        return torch.cat([x @ w, y @ w])

    _check(both, x, y, w, expected=expected)
    (warning,) = warnings()
    assert "an entry does not run: " in warning
    assert KEY in warning
    assert "too many resources requested for launch" in warning
    assert inductor_tables.status().last_hits[-1] == other


def test_training_recovers_in_both_graphs(
    monkeypatch: pytest.MonkeyPatch, warnings: Callable[[], list[str]]
) -> None:
    """The backward graph, compiled by another thread and later, recovers as well."""
    monkeypatch.setattr(limits, "problem", lambda *_: None)
    x, w = _operands()
    x.requires_grad_()
    w.requires_grad_()
    inductor_tables.enable({"none": [entry(**WIDE)]})

    def step() -> None:
        torch._dynamo.reset()
        torch.compile(mm, options=OPTIONS)(x, w).sum().backward()

    step()
    keys = inductor_tables.status().last_misses
    inductor_tables.enable({key: [entry(**WIDE)] for key in keys})
    x.grad = w.grad = None
    step()
    assert 1 <= len(warnings()) <= 2
    ones = torch.ones(512, 1024, device="cuda").double()
    for grad, expected in ((x.grad, ones @ w.double().t()), (w.grad, x.double().t() @ ones)):
        close(grad, expected)


def test_what_recovered_is_cached_under_its_own_key(
    monkeypatch: pytest.MonkeyPatch, warnings: Callable[[], list[str]]
) -> None:
    """A process that does not know yet finds the recovered graph at its second try."""
    from torch._dynamo.utils import counters

    monkeypatch.setattr(limits, "problem", lambda *_: None)
    inductor_tables.enable({KEY: [entry(**WIDE)]})
    x, w = _operands()
    expected = x.double() @ w.double()
    with torch._functorch.config.patch(enable_autograd_cache=False):
        _check(mm, x, w, expected=expected)
        recovery.forget()  # as in a new process
        counters.clear()
        _check(mm, x, w, expected=expected)
    assert counters["inductor"]["fxgraph_cache_hit"] == 1
    assert len(warnings()) == 1  # the same text is said once
