"""Processes that a process with tables starts: forked, spawned, and torch's own workers."""

from __future__ import annotations

import json
import os
import shutil
import textwrap
from pathlib import Path

import pytest
from process_support import HIT, PRELUDE, needs_triton, run, shown, write_table

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")


@needs_fork
@needs_triton
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_looks_up_and_counts_for_itself(tmp_path: Path) -> None:
    """The child has its parent's tables and none of its counts; neither touches the other."""
    script = """
    import inductor_tables
    inductor_tables.enable(sys.argv[1])
    lower()
    sys.stdout.flush()
    child = os.fork()
    before = inductor_tables.status().hits
    if not child:
        lowered = lower()
        hits = inductor_tables.status().hits
        inductor_tables.disable()
        show(before=before, lowered=lowered, hits=hits, enabled=inductor_tables.is_enabled())
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    show(before=before, hits=inductor_tables.status().hits, enabled=inductor_tables.is_enabled())
    """
    lines = run(script, write_table(tmp_path / "table.json")).stdout.splitlines()
    child, parent = map(json.loads, lines[-2:])
    assert child == {"before": 0, "lowered": HIT, "hits": 1, "enabled": False}
    assert parent == {"before": 1, "hits": 1, "enabled": True}


@needs_fork
def test_a_fork_while_other_threads_hold_the_locks_does_not_hang(tmp_path: Path) -> None:
    """Nobody is left in the child to release them, so that it gets locks of its own."""
    script = """
    import signal
    import inductor_tables
    from inductor_tables import activation
    from inductor_tables.decisions import Decision, Origin

    inductor_tables.enable(sys.argv[1])
    current = activation.current_activation()
    held, forked = threading.Event(), threading.Event()

    def hold():
        with activation._lock, current._lock, current.statistics._lock:
            held.set()
            forked.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(60)
    child = os.fork()
    if not child:
        signal.alarm(30)  # a child that hangs is killed
        assert current.candidates("NVIDIA H200")
        current.decided(Decision(
            outcome="hit", key="key", table=None, table_key=None, entries=(), dropped=(),
            origin=Origin(module=None, line=None),
        ))
        hits = inductor_tables.status().hits
        inductor_tables.disable()
        inductor_tables.enable()
        os._exit(hits)
    forked.set()
    thread.join()
    show(child=os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert shown(script, write_table(tmp_path / "table.json")) == {"child": 1}


@needs_fork
def test_a_forked_child_keeps_what_is_wrong_with_its_tables() -> None:
    """A table that could not be read is not read again, so that its problem is kept."""
    script = """
    import inductor_tables
    from inductor_tables import activation
    inductor_tables.enable("/no/such/table")
    assert activation.current_activation().digest()
    child = os.fork()
    if not child:
        os._exit(len(inductor_tables.status().problems))
    show(problems=os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert shown(script) == {"problems": 1}


def test_a_spawned_child_is_stock_and_inherits_the_environment(tmp_path: Path) -> None:
    """What enable() and config.patch() did stays behind; environment variables count."""
    script = tmp_path / "spawning.py"
    body = """
    import multiprocessing
    import inductor_tables
    from inductor_tables import config

    def child(table):
        found = {"enabled": inductor_tables.is_enabled(), "topk": config.recorder_topk,
                 "checked": config.check_src_hash}
        inductor_tables.enable(table)
        return {**found, "then": inductor_tables.is_enabled()}

    if __name__ == "__main__":
        inductor_tables.enable(sys.argv[1])
        config.recorder_topk = 7
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            show(**pool.apply(child, (sys.argv[1],)))
    """
    script.write_text(PRELUDE + textwrap.dedent(body), encoding="utf-8")
    run_it = f"""
    import runpy
    sys.argv[0] = {str(script)!r}
    runpy.run_path({str(script)!r}, run_name="__main__")
    """
    table = write_table(tmp_path / "table.json")
    found = shown(run_it, table, INDUCTOR_TABLES_CHECK_SRC_HASH=0)
    assert found == {"enabled": False, "topk": None, "checked": False, "then": True}


@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler here")
def test_torchs_own_workers_start_while_tables_are_enabled(tmp_path: Path) -> None:
    """A compile with worker processes works, and the workers know nothing of tables."""
    script = """
    import inductor_tables
    inductor_tables.enable(sys.argv[1])
    import torch
    from torch._inductor import config
    from torch._inductor.async_compile import AsyncCompile, shutdown_compile_workers

    assert config.compile_threads == 2
    AsyncCompile.warm_pool()
    x = torch.arange(8.0)
    right = torch.equal(torch.compile(lambda x: (x * 2 + 1).relu())(x), x * 2 + 1)
    pool = AsyncCompile.process_pool()
    worker = pool.submit(os.getpid).result(timeout=120)
    looked = "'inductor_tables.activation' in __import__('sys').modules"
    ours = pool.submit(eval, looked).result(timeout=120)
    shutdown_compile_workers()
    show(right=right, own=worker == os.getpid(), ours=ours, enabled=inductor_tables.is_enabled())
    """
    caches = {"TORCHINDUCTOR_CACHE_DIR": tmp_path / "cache", "TORCHINDUCTOR_COMPILE_THREADS": 2}
    found = shown(script, write_table(tmp_path / "table.json"), **caches)
    assert found == {"right": True, "own": False, "ours": False, "enabled": True}
