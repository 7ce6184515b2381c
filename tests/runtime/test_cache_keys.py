"""Cached graphs depend on the table: compiled for the CPU, with torch's real caches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import inductor_tables
from inductor_tables import config, host

KEY = "NVIDIA H200+((torch.bfloat16, [16, 16], [16, 1]), (torch.bfloat16, [16, 16], [16, 1]))+mm"
TABLE_A = {KEY: [{"template_id": "aten::mm"}]}
TABLE_B = {KEY: [{"template_id": "aten::mm"}, {"template_id": "aten::other"}]}


@pytest.fixture(autouse=True)
def _own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from torch._inductor import config as inductor

    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(host, "visible_archs", lambda: ("NVIDIA H200",))
    with inductor.patch(fx_graph_cache=True, fx_graph_remote_cache=False):
        yield
    torch._dynamo.reset()


def _hits(fn: Callable[[torch.Tensor], torch.Tensor]) -> tuple[int, int]:
    """Compile anew and return (FX graph cache hits, AOTAutograd cache hits) of it."""
    from torch._dynamo.utils import counters

    counters.clear()
    torch._dynamo.reset()
    with torch._functorch.config.patch(enable_autograd_cache=True):
        torch.compile(fn)(torch.ones(8))
    return counters["inductor"]["fxgraph_cache_hit"], counters["aot_autograd"]["autograd_cache_hit"]


def _fn(x: torch.Tensor) -> torch.Tensor:
    return (x * 3 + 1).relu()


def _cached(fn: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    return any(_hits(fn))


def test_each_state_has_its_own_cached_code() -> None:
    """Off, table A, table B and no hash check never share; the same state hits again."""
    assert not _cached(_fn)
    assert _cached(_fn)
    inductor_tables.enable(TABLE_A)
    assert not _cached(_fn)
    assert _cached(_fn)
    inductor_tables.enable(TABLE_B)
    assert not _cached(_fn)
    with config.patch(check_src_hash=False):
        assert not _cached(_fn)
    inductor_tables.enable(TABLE_A)
    assert _cached(_fn)
    inductor_tables.disable()
    assert _cached(_fn)


def test_inactive_and_empty_tables_share_stock_code() -> None:
    """What changes nothing does not cost a recompilation."""
    assert not _cached(_fn)
    inductor_tables.enable(TABLE_A)
    with config.patch(active=False):
        assert _cached(_fn)


def test_every_thread_makes_the_same_key() -> None:
    """A thread that was there before enable() is not served stock code either."""
    found: list[bool] = []

    def run() -> None:
        with torch._inductor.config.patch(fx_graph_cache=True):
            found.append(_cached(_fn))

    def in_thread() -> bool:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        return found.pop()

    assert not in_thread()
    inductor_tables.enable(TABLE_A)
    assert not in_thread()
    assert in_thread()
