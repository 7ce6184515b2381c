"""Entries that fail after all: the compile succeeds, with one warning."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from loading import loading, not_loading
from products import (
    H200,
    MM_16,
    MM_17,
    SERIES,
    inputs,
    lower,
    mm,
    triton_entry,
)

import inductor_tables
from inductor_tables import limits, recovery
from inductor_tables.errors import NoTableError
from inductor_tables.recovery import Use, compile_or_recover
from inductor_tables.schema import Config
from inductor_tables.simulation import Simulation, simulate

TOO_LARGE = {"BLOCK_M": 64, "BLOCK_N": 256, "BLOCK_K": 512, "num_stages": 5}


@pytest.fixture(autouse=True)
def _forgiving() -> Iterator[None]:
    recovery.forget()
    yield
    recovery.forget()


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """The texts of our warnings so far."""
    caplog.set_level(logging.WARNING, "inductor_tables")
    return lambda: [r.getMessage() for r in caplog.records if r.name == "inductor_tables"]


def refusing(*values: str, error: Callable[[str], Exception] = RuntimeError) -> Any:
    """A kernel loader that fails for a source that holds one of the values."""

    def load(name: str, source: str) -> None:
        if any(value in source for value in values):
            raise error(f"PTXASError: {name} cannot be assembled")

    return load


REFUSING_32 = refusing("BLOCK_N : tl.constexpr = 32")


# --- on the simulated device, through the host's real code ----------------------------------


def test_the_device_refuses_an_accepted_entry(
    monkeypatch: pytest.MonkeyPatch, warnings: Callable[[], list[str]]
) -> None:
    """Triton itself says that it does not fit: stock choices, and what to do about it."""
    monkeypatch.setattr(limits, "problem", lambda *_: None)
    (stock,) = lower(mm)
    inductor_tables.enable({MM_16: [triton_entry(**TOO_LARGE)]})
    with simulate(H200) as sim, loading(sim):
        sim.compile(mm, *inputs(sim))
        failed, recovered = sim.ops
    assert failed.chosen.template_id == "triton::mm"
    assert [c.params for c in recovered.offered] == [c.params for c in stock.offered]
    (warning,) = warnings()
    assert warning.startswith("tables[0]: an entry does not run: triton::mm (BLOCK_M=64, ")
    assert "out of resource: shared memory, Required:" in warning
    assert MM_16 in warning and "Remove it from the table" in warning
    assert warning in inductor_tables.status().problems


@pytest.mark.skipif(SERIES < (2, 13), reason="2.13 and later retry with one stage")
def test_the_hosts_own_retry_goes_first(warnings: Callable[[], list[str]]) -> None:
    """What runs with one stage is used with one stage, as the estimate assumes."""
    entry = triton_entry(BLOCK_M=128, BLOCK_N=128, BLOCK_K=128, num_stages=4, num_warps=8)
    inductor_tables.enable({MM_16: [entry]})
    with simulate(H200) as sim, loading(sim):
        sim.compile(mm, *inputs(sim))
        (op,) = sim.ops
    assert not op.benchmarked
    assert not warnings()


def test_what_failed_is_not_tried_again(warnings: Callable[[], list[str]]) -> None:
    """A later graph drops it with the reason, compiles once, and warns no more."""
    inductor_tables.enable({MM_16: [triton_entry(BLOCK_N=32)]})
    with simulate(H200) as sim, loading(sim, REFUSING_32):
        sim.compile(mm, *inputs(sim))
        sim.clear()
        sim.compile(mm, *inputs(sim))
        assert len(sim.ops) == 1
    assert len(warnings()) == 1
    (reason,) = inductor_tables.status().dropped
    assert reason == (
        "triton::mm: failed in this process: "
        "RuntimeError: PTXASError: triton_tem_fused_mm_0 cannot be assembled"
    )


def _two(x: Any, w: Any, y: Any) -> tuple[Any, Any]:
    return x @ w, y @ w


def _lower_two(sim: Simulation) -> list[str]:
    x, w = inputs(sim)
    y, _ = inputs(sim, 17)
    sim.compile(_two, x, w, y)
    return [repr(op.chosen.params.get("BLOCK_N")) for op in sim.ops[-2:]]


def _two_entries() -> dict[str, list[dict[str, Any]]]:
    return {MM_16: [triton_entry(BLOCK_N=32)], MM_17: [triton_entry(BLOCK_N=128)]}


def _in_async_compile(load: Callable[[str, str], None]) -> Callable[[str, str], None]:
    """Have a loader's frame look as the host's does, with the source in a variable."""
    scope = {"__name__": "torch._inductor.async_compile", "load": load}
    exec("def triton(name, source_code): return load(name, source_code)", scope)
    return scope["triton"]  # type: ignore[return-value]


def test_other_entries_stay_where_the_failure_names_its_kernel(
    warnings: Callable[[], list[str]],
) -> None:
    """Of two entries in a graph, only the one whose kernel failed is given up."""
    inductor_tables.enable(_two_entries())
    load = _in_async_compile(REFUSING_32)
    with simulate(H200) as sim, loading(sim, load):
        chosen = _lower_two(sim)
    assert chosen == ["None", "128"]
    (warning,) = warnings()
    assert "an entry does not run: " in warning and MM_16 in warning


def test_all_entries_of_the_graph_are_given_up_where_it_does_not(
    warnings: Callable[[], list[str]],
) -> None:
    """A failure that names no kernel: the whole graph is stock."""
    inductor_tables.enable(_two_entries())
    with simulate(H200) as sim, loading(sim, REFUSING_32):
        chosen = _lower_two(sim)
    assert chosen == ["None", "None"]
    (warning,) = warnings()
    assert "at least one of 2 entries does not run" in warning


def test_the_users_own_failure_stays_the_users(warnings: Callable[[], list[str]]) -> None:
    """Stock torch fails too: its error, no warning, and no entry is blamed."""
    inductor_tables.enable({MM_16: [triton_entry(BLOCK_N=32)]})
    tries: list[int] = []
    with (
        simulate(H200) as sim,
        not_loading(RuntimeError("the disk is full"), tries),
        pytest.raises(Exception, match="the disk is full"),
    ):
        sim.compile(mm, *inputs(sim))
    assert len(tries) == 2
    assert not warnings()
    assert not recovery.digest()


def test_a_graph_without_entries_is_compiled_once() -> None:
    """A failure that no entry had a part in is not our business."""
    inductor_tables.enable({MM_16: [triton_entry()]})
    tries: list[int] = []
    with (
        simulate(H200) as sim,
        not_loading(RuntimeError("the disk is full"), tries),
        pytest.raises(Exception, match="the disk is full"),
    ):
        sim.compile(mm, *inputs(sim, 17))
    assert len(tries) == 1


def test_the_second_try_lowers_the_graph_as_it_was() -> None:
    """Graph passes change the graph in place: the code is that of an untouched graph."""
    import torch

    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = torch.cat([x @ w, x @ w], 1).view(4, -1)  # views and duplicates: passes have work
        return torch.softmax(y.float(), 1).to(x.dtype) + torch.ones_like(y)

    def code(entries: list[dict[str, Any]]) -> str:
        inductor_tables.enable({MM_16: entries} if entries else {"none": [triton_entry()]})
        with simulate(H200) as sim, loading(sim, REFUSING_32):
            sim.compile(fn, *inputs(sim))
            # The first line counts the graphs of the process; each simulation has a folder.
            code = sim.codes[-1].partition("\n")[2]
            return re.sub(r"inductor_simulation_\w+", "", code)

    stock = code([])
    assert code([triton_entry(BLOCK_N=32)]) == stock
    assert recovery.digest()


def test_forward_and_backward_graphs_recover(warnings: Callable[[], list[str]]) -> None:
    """Each graph of a training step is taken care of by itself."""
    with simulate(H200) as sim:
        x, w = inputs(sim)
        w.requires_grad_()
        x.requires_grad_()
        sim.compile(mm, x, w, grad=True)
        keys = [call.device_key for op in sim.ops for call in op.calls]
        assert len(set(keys)) == 3
        inductor_tables.enable({str(key): [triton_entry(BLOCK_N=32)] for key in keys})
        sim.clear()
        with loading(sim, REFUSING_32):
            sim.compile(mm, x, w, grad=True)
        assert {op.phase for op in sim.ops[-2:]} == {"backward"}
        assert all(op.chosen.params.get("BLOCK_N") != 32 for op in sim.ops[-2:])
    assert len(warnings()) == 2


def test_recovery_in_strict_mode(warnings: Callable[[], list[str]]) -> None:
    """Strict asks for a table, not for a compile that fails."""
    inductor_tables.enable({MM_16: [triton_entry(BLOCK_N=32)]}, strict=True)
    with simulate(H200) as sim, loading(sim, REFUSING_32):
        sim.compile(mm, *inputs(sim))
    assert len(warnings()) == 1


def test_the_hooks_are_taken_back() -> None:
    """After disable() torch's own functions are in place."""
    from torch._inductor import compile_fx

    before = compile_fx._compile_fx_inner, compile_fx.fx_codegen_and_compile
    with inductor_tables.enable({MM_16: [triton_entry()]}):
        assert compile_fx._compile_fx_inner is not before[0]
        assert compile_fx.fx_codegen_and_compile is not before[1]
    assert (compile_fx._compile_fx_inner, compile_fx.fx_codegen_and_compile) == before


def test_without_a_table_for_the_device_nothing_is_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What cannot fail because of us costs nothing."""
    import torch

    from inductor_tables import host

    kept: list[Any] = []
    monkeypatch.setattr(host.GraphCompile, "keep", lambda *args: kept.append(args))
    inductor_tables.enable({MM_16: [triton_entry()]})
    torch._dynamo.reset()
    torch.compile(lambda x: x + 1)(torch.ones(8))  # no simulation: no device, no table
    assert not kept


# --- caches: compiled for the CPU, with torch's real caches ---------------------------------


def test_what_failed_has_cache_keys_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """A graph that recovered is stored under another key than its table's, and found there."""
    import torch
    from torch._dynamo.utils import counters
    from torch._inductor import compile_fx
    from torch._inductor import config as inductor

    from inductor_tables import host

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(host, "visible_archs", lambda: (H200,))
    config = Config(template_id="triton::mm", template_hash=None, params=(("BLOCK_M", 16),))
    codegen = compile_fx.fx_codegen_and_compile
    failing = True

    def fails_with_the_entry(*args: Any, **kwargs: Any) -> Any:
        if failing and recovery.looking() and recovery.failure_of(MM_16, config) is None:
            recovery.note("tables[0]", MM_16, config)
            raise RuntimeError("broken for the test")
        return codegen(*args, **kwargs)

    monkeypatch.setattr(compile_fx, "fx_codegen_and_compile", fails_with_the_entry)
    inductor_tables.enable({MM_16: [{"template_id": "aten::mm"}]})

    def hits() -> int:
        torch._dynamo.reset()
        counters.clear()
        found = torch.compile(lambda x: (x * 3 + 1).relu())(torch.ones(8))
        assert found.tolist() == [4.0] * 8
        return int(counters["inductor"]["fxgraph_cache_hit"])

    quiet = torch._functorch.config.patch(enable_autograd_cache=False)
    with inductor.patch(fx_graph_cache=True, fx_graph_remote_cache=False), quiet:
        assert hits() == 0  # failed once, recovered
        assert hits() == 1  # in this process it is known by now
        recovery.forget()
        assert hits() == 1  # as in a new process: fails again, and the second try hits
        recovery.forget()
        failing = False
        assert hits() == 0  # the entry's own graph was never stored
        assert hits() == 1
    inductor_tables.disable()


# --- the rules, with graphs made up ---------------------------------------------------------


def use(block_m: int, key: str = MM_16) -> Use:
    """An entry that differs by its tile."""
    params = (("BLOCK_M", block_m), ("num_warps", 4))
    config = Config(template_id="triton::mm", template_hash=None, params=params)
    return Use(resource="mine", key=key, config=config)


class MadeUp:
    """A graph that fails with certain entries."""

    def __init__(self, uses: list[Use], bad: dict[int, str | None]) -> None:
        self.uses, self.bad = uses, bad
        self.tries: list[int] = []
        self.restored = 0

    def compile(self) -> list[int]:
        """Look up, then fail if a bad entry was found."""
        usable = [u for u in self.uses if recovery.failure_of(u.key, u.config) is None]
        found = [u for u in usable if recovery.looking()]
        for u in found:
            recovery.note(u.resource, u.key, u.config)
        sizes = [dict(u.config.params)["BLOCK_M"] for u in found]
        self.tries.append(len(sizes))
        for size in sizes:
            if size in self.bad:
                raise RuntimeError(size)
        return sizes  # type: ignore[return-value]

    def restore(self) -> None:
        """Count."""
        self.restored += 1

    def deliberate(self, error: Exception) -> bool:
        """Nothing is."""
        return isinstance(error, KeyError)

    def failed_source(self, error: Exception) -> str | None:
        """The source of the kernel that failed, where it is known."""
        return self.bad[error.args[0]]


@pytest.mark.parametrize(
    ("bad", "expected", "tries"),
    [
        ({}, [16, 32, 64], [3]),
        ({16: "BLOCK_M : tl.constexpr = 16, num_warps=4"}, [32, 64], [3, 2]),
        ({16: "BLOCK_M=16 num_warps=4", 64: "BLOCK_M=64 num_warps=4"}, [], [3, 2, 0]),
        ({16: None}, [], [3, 0]),
        ({16: "BLOCK_M=160 num_warps=4"}, [], [3, 0]),
        ({16: "BLOCK_M=16 num_warps=8"}, [], [3, 0]),
    ],
)
def test_how_often_a_graph_is_tried(
    bad: dict[int, str | None], expected: list[int], tries: list[int]
) -> None:
    """At most three times: all entries, those not guilty, none."""
    graph = MadeUp([use(16), use(32), use(64)], bad)
    reports: list[str] = []
    assert compile_or_recover(graph, reports.append) == expected
    assert (graph.tries, graph.restored) == (tries, len(tries) - 1)
    assert len(reports) == bool(bad)


def test_a_worker_tells_its_reason_last() -> None:
    """Of a subprocess's traceback, the warning quotes the last line, which says why."""

    class Worker(MadeUp):
        def compile(self) -> list[int]:
            try:
                return super().compile()
            except RuntimeError as error:
                text = "Name=k\nTraceback (most recent call last):\n  ...\nPTXASError: no\n"
                failure = RuntimeError(text)
                failure.args = (text,)
                raise failure from error

        def failed_source(self, _error: Exception) -> str | None:
            return None

    reports: list[str] = []
    compile_or_recover(Worker([use(16)], {16: None}), reports.append)
    assert re.search(r"\(RuntimeError: PTXASError: no\)", reports[0])


@pytest.mark.parametrize("error", [NoTableError("strict"), KeyError("skip this frame")])
def test_what_is_meant_is_not_caught(error: Exception) -> None:
    """Strict's own error and the host's signals pass."""

    class Raising(MadeUp):
        def compile(self) -> list[int]:
            recovery.note("mine", MM_16, use(16).config)
            raise error

    graph = Raising([], {})
    with pytest.raises(type(error), match=r"strict|skip"):
        compile_or_recover(graph, lambda _: None)
    assert not recovery.digest()


def test_threads_do_not_mix_their_entries() -> None:
    """What one thread looks up is not blamed for another's failure."""
    inside, go = threading.Event(), threading.Event()

    class Slow(MadeUp):
        def compile(self) -> list[int]:
            sizes = super().compile()
            inside.set()
            go.wait(10)
            return sizes

    slow = Slow([use(32)], {})
    thread = threading.Thread(target=compile_or_recover, args=(slow, lambda _: None))
    thread.start()
    inside.wait(10)
    compile_or_recover(MadeUp([use(16)], {16: None}), lambda _: None)
    go.set()
    thread.join()
    assert slow.tries == [1]
    assert recovery.failure_of(MM_16, use(16).config)
    assert recovery.failure_of(MM_16, use(32).config) is None
