"""Misses of a running process: what is noted, when it is written, and that no file is lost."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inductor_tables import config, misses, problems
from inductor_tables.decisions import Decision, Dropped, Origin, Outcome
from inductor_tables.dumps import read_dump
from inductor_tables.errors import InvalidDumpError
from inductor_tables.misses import Misses
from inductor_tables.problems import Problem, problem_from_key

MM = "NVIDIA H200+((torch.bfloat16, [16, 64], [64, 1]), (torch.bfloat16, [64, 32], [1, 64]))+mm"


def key_of(rows: int) -> str:
    """Return a key with another M."""
    return MM.replace("[16, 64]", f"[{rows}, 64]")


def decision(
    key: str = MM,
    *,
    outcome: Outcome = "miss",
    module: str | None = "layers.0.up",
    line: str | None = "/home/alice/model.py:12",
) -> Decision:
    """Return a decision as the handler makes it."""
    dropped = (Dropped(template_id="triton::mm", reason="changed"),) if outcome == "dropped" else ()
    return Decision(
        outcome=outcome,
        key=key,
        table=None,
        table_key=None,
        entries=(),
        dropped=dropped,
        origin=Origin(module=module, line=line),
    )


def files(directory: Path) -> list[Path]:
    """Return the files that processes wrote; there are no others."""
    found = sorted(directory.glob("*"))
    assert all(path.name.startswith("inductor_problems_") for path in found)
    return found


def only_file(directory: Path) -> tuple[Problem, ...]:
    """Return what the one file says."""
    (path,) = files(directory)
    return problems.read(path)


def rows_of(path: Path) -> dict[int, int]:
    """Return M of every problem of a file, with its count."""
    return {p.inputs[0].size[0]: p.count for p in problems.read(path)}


@pytest.fixture(autouse=True)
def _program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/opt/bin/serve.py"])


@pytest.fixture
def noting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Misses]:
    """A Misses that writes into ``tmp_path`` when it is told to, and in an hour."""
    monkeypatch.setattr(misses, "PAUSE_S", 3600.0)
    found = Misses()
    with config.patch(record_misses=True, recorder_record_dir=str(tmp_path)):
        yield found
        if found._timer is not None:
            found._timer.cancel()


# --- what is noted ----------------------------------------------------------------------


def test_counts_and_origins(noting: Misses, tmp_path: Path) -> None:
    """A key is one problem with a count, and the places it comes from."""
    for module in ("layers.0.up", "layers.1.up", "layers.0.up"):
        noting.add(decision(module=module))
    noting.add(decision(key_of(8), outcome="dropped", module=None))
    assert files(tmp_path) == []
    noting.save()
    assert only_file(tmp_path) == (
        problem_from_key(MM, count=3, origins=["serve.py:layers.0.up", "serve.py:layers.1.up"]),
        problem_from_key(key_of(8), count=1, origins=["serve.py:model.py:12"]),
    )
    assert noting.path == files(tmp_path)[0]


@pytest.mark.parametrize(
    ("argv", "origin", "text"),
    [
        (["/x/serve.py"], ("up", "/home/alice/m.py:3"), "serve.py:up"),
        (["/x/serve.py"], (None, "/home/alice/m.py:3"), "serve.py:m.py:3"),
        (["/x/serve.py"], (None, None), "serve.py"),
        (["/lib/python/vllm/__main__.py"], ("up", None), "vllm:up"),
        (["vllm"], ("up", None), "vllm:up"),
        (["-c"], ("up", None), "python:up"),
        ([""], ("up", None), "python:up"),
        ([], ("up", None), "python:up"),
        (["a:b.py"], ("up", None), "a_b.py:up"),
        (["s"], ("a\nb\u202e\ud800", None), "s:a?b??"),
        (["s"], ("m" * 999, None), "s:" + "m" * 254),
    ],
)
def test_origins(
    argv: list[str],
    origin: tuple[str | None, str | None],
    text: str,
    noting: Misses,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The program and the module, or file and line without directories, fit for a file."""
    monkeypatch.setattr(sys, "argv", argv)
    noting.add(decision(module=origin[0], line=origin[1]))
    noting.save()
    assert noting.path is not None
    assert problems.read(noting.path)[0].origins == (text,)


def test_both_keys_of_an_addmm_are_one_problem(noting: Misses, tmp_path: Path) -> None:
    """The bias as given and expanded add up."""
    key = MM.replace("((", "((torch.bfloat16, [32], [1]), (").replace(
        "+mm", "+alpha=1&beta=1+addmm"
    )
    noting.add(decision(key))
    noting.add(decision(key.replace("[32], [1]", "[16, 32], [0, 1]")))
    noting.save()
    (found,) = only_file(tmp_path)
    assert (found.op_name, found.count) == ("addmm", 2)


def test_only_what_missed_and_only_if_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``note`` leaves hits out, and everything as long as the setting is off."""
    monkeypatch.setattr(misses, "_MISSES", Misses())
    with config.patch(recorder_record_dir=str(tmp_path)):
        misses.note(decision())
        with config.patch(record_misses=True):
            misses.note(decision(outcome="hit"))
            misses.save()
            assert files(tmp_path) == []
            misses.note(decision(outcome="dropped"))
            misses.note(decision(outcome="miss"))
            misses.save()
    assert [p.count for p in only_file(tmp_path)] == [2]


def test_keys_that_are_no_problem_cost_one_warning(
    noting: Misses, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A subclass may make keys of its own: they are left out, the others are written."""
    for key in ("my own key", "another", MM, MM.replace("[16,", "[-16,")):
        noting.add(decision(key))
    noting.save()
    noting.add(decision("my own key"))
    noting.save()
    assert only_file(tmp_path) == (problem_from_key(MM, count=1, origins=["serve.py:layers.0.up"]),)
    (record,) = caplog.records
    assert "a miss is left out: not a lookup key: 'my own key'" in record.getMessage()


def test_nothing_fit_to_write_makes_no_file(noting: Misses, tmp_path: Path) -> None:
    """No problems, no file."""
    noting.save()
    noting.add(decision("my own key"))
    noting.save()
    assert files(tmp_path) == []


def test_limits(
    noting: Misses,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A process that never stops meeting new keys does not grow without end."""
    monkeypatch.setattr(misses, "MAX_KEYS", 3)
    monkeypatch.setattr(misses, "MAX_ORIGINS", 2)
    for rows in range(1, 9):
        for module in ("a", "b", "c"):
            noting.add(decision(key_of(rows), module=module))
    noting.save()
    found = only_file(tmp_path)
    assert {p.inputs[0].size[0]: p.count for p in found} == {1: 3, 2: 3, 3: 3}
    assert all(p.origins == ("serve.py:a", "serve.py:b") for p in found)
    assert [r.getMessage() for r in caplog.records] == ["3 keys are noted; further ones are not"]


def test_all_threads_are_counted(noting: Misses, tmp_path: Path) -> None:
    """Threads that note while others write lose nothing."""

    def work() -> None:
        for at in range(300):
            noting.add(decision(key_of(at % 7 + 1)))
            if at % 50 == 0:
                noting.save()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    noting.save()
    assert sum(p.count for p in only_file(tmp_path)) == 1200


# --- where and when it is written -------------------------------------------------------


def test_one_file_that_grows(noting: Misses, tmp_path: Path) -> None:
    """Each time the whole is written, into the same file, and only if there is something new."""
    noting.add(decision())
    noting.save()
    (path,) = files(tmp_path)
    before = path.stat().st_ino
    noting.save()
    assert path.stat().st_ino == before
    noting.add(decision(key_of(8)))
    noting.save()
    assert rows_of(path) == {16: 1, 8: 1}
    assert files(tmp_path) == [path]


def test_written_after_the_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread writes a while after a miss, again and again, and ends when nothing is new."""
    monkeypatch.setattr(misses, "PAUSE_S", 0.02)
    noting = Misses()
    with config.patch(recorder_record_dir=str(tmp_path)):
        for count in (1, 2):
            noting.add(decision())
            timer = noting._timer
            assert timer is not None
            timer.join(30)
            assert [p.count for p in only_file(tmp_path)] == [count]
            noting._pause = 0.02
        assert noting._timer is None


def test_slow_writing_is_done_less_often(
    noting: Misses, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writing takes a hundredth of the time at most."""
    monkeypatch.setattr(misses, "PAUSE_S", 0.001)
    noting.add(decision())
    monkeypatch.setattr(os, "fsync", lambda descriptor: time.sleep(0.05))
    noting.save()
    assert noting._pause >= 5.0


def test_no_directory(noting: Misses, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Misses that come while none is configured go to the first that is; a warning says so."""
    with config.patch(recorder_record_dir=None):
        fresh = Misses()
        fresh.add(decision())
        fresh.save()
    (record,) = caplog.records
    assert "misses are kept in memory until it is set" in record.getMessage()
    assert files(tmp_path) == []
    fresh.add(decision(key_of(8)))
    fresh.save()
    (path,) = files(tmp_path)
    assert rows_of(path) == {16: 1, 8: 1}


def test_another_directory_is_another_file(noting: Misses, tmp_path: Path) -> None:
    """What was noted for one is not written to another."""
    one, two = tmp_path / "one", tmp_path / "deep" / "two"
    with config.patch(recorder_record_dir=str(one)):
        noting.add(decision())
    with config.patch(recorder_record_dir=str(two)):
        noting.add(decision(key_of(8)))
        noting.save()
    assert rows_of(*files(one)) == {16: 1}
    assert rows_of(*files(two)) == {8: 1}


def test_a_directory_that_cannot_be_written(
    noting: Misses, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning; as soon as it can be written, everything is."""
    place = tmp_path / "place"
    place.write_text("a file is in the way")
    with config.patch(recorder_record_dir=str(place)):
        noting.add(decision())
        noting.save()
        noting.save()
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert f"misses cannot be written to {place}" in record.getMessage()
        place.unlink()
        noting.save()
    assert rows_of(*files(place)) == {16: 1}


def test_a_taken_name(noting: Misses, tmp_path: Path) -> None:
    """Two of one process and moment get a file each."""
    others = [Misses(), Misses()]
    for each in others:
        each.add(decision())
        each.save()
    assert len(files(tmp_path)) == 2
    for each in others:
        assert each._timer is not None
        each._timer.cancel()


def test_no_thread_can_be_started(
    noting: Misses,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The compile goes on, and what was noted is written at exit."""

    def refuse(timer: threading.Timer) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Timer, "start", refuse)
    noting.add(decision())
    noting.add(decision())
    assert [r.getMessage() for r in caplog.records] == [
        "misses are written at exit only: can't start new thread"
    ]
    noting.save()
    assert [p.count for p in only_file(tmp_path)] == [2]


def test_the_file_is_no_dump(noting: Misses, tmp_path: Path) -> None:
    """It may lie beside dumps, and is refused as one."""
    noting.add(decision())
    noting.save()
    with pytest.raises(InvalidDumpError, match="not a lookup key"):
        read_dump(files(tmp_path)[0])


# --- processes --------------------------------------------------------------------------

PRELUDE = """
import multiprocessing, os, signal, sys, threading, time
sys.path.insert(0, {here!r})
from test_misses import decision, key_of
from inductor_tables import misses
"""


def run(script: str, directory: Path, *, code: int = 0, **variables: str) -> str:
    """Run a fresh Python that notes misses into a directory; return what it prints."""
    environment = {n: v for n, v in os.environ.items() if not n.startswith("INDUCTOR_TABLES_")}
    environment["INDUCTOR_TABLES_RECORD_MISSES"] = "1"
    environment["INDUCTOR_TABLES_RECORDER_RECORD_DIR"] = str(directory)
    program = PRELUDE.format(here=str(Path(__file__).parent)) + textwrap.dedent(script)
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == code, done.stderr
    return done.stdout


def test_written_at_exit(tmp_path: Path) -> None:
    """A process that ends before the pause is over has written all; no torch was imported."""
    script = """
    misses.note(decision())
    misses.note(decision(key_of(8)))
    print("torch" in sys.modules, os.path.exists(sys.argv[-1]))
    """
    assert run(script, tmp_path / "deep") == "False False\n"
    (path,) = files(tmp_path / "deep")
    assert rows_of(path) == {16: 1, 8: 1}
    assert problems.read(path)[0].origins == ("python:layers.0.up",)


def test_written_at_exit_also_after_an_exception(tmp_path: Path) -> None:
    """The same for a process that ends with an error."""
    run("misses.note(decision())\nraise SystemExit(3)", tmp_path, code=3)
    assert rows_of(*files(tmp_path)) == {16: 1}


def test_a_killed_process_loses_what_is_younger_than_the_pause(tmp_path: Path) -> None:
    """The file is whole, whenever the process is killed."""
    script = """
    misses.PAUSE_S = misses._MISSES._pause = 0.05
    misses.note(decision())
    while misses._MISSES.path is None:
        time.sleep(0.01)
    misses.PAUSE_S = misses._MISSES._pause = 3600
    misses.note(decision(key_of(8)))
    os.kill(os.getpid(), signal.SIGKILL)
    """
    run(script, tmp_path, code=-signal.SIGKILL)
    assert rows_of(*files(tmp_path)) == {16: 1}


FORK = """
misses.note(decision())
{between}
if not (child := os.fork()):
    misses.note(decision(key_of(8)))
    {end}
assert os.waitpid(child, 0)[1] == 0
misses.note(decision())
"""


@pytest.mark.parametrize("end", ["sys.exit(0)", "misses.save(); os._exit(0)"])
@pytest.mark.parametrize("between", ["", "misses.save()"])
def test_a_forked_child_has_a_file_of_its_own(tmp_path: Path, between: str, end: str) -> None:
    """What the parent noted is the parent's, once."""
    run(FORK.format(between=between, end=end), tmp_path)
    found = sorted(map(rows_of, files(tmp_path)), key=str)
    assert found == [{16: 2}, {8: 1}]


def test_a_fork_while_other_threads_hold_the_locks(tmp_path: Path) -> None:
    """A child of a process that is writing does not hang, nor does it lose its misses."""
    script = """
    inside, forked = threading.Event(), threading.Event()
    def hold():
        with misses._MISSES._saving, misses._MISSES._lock:
            inside.set()
            forked.wait(60)
    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait(60)
    child = os.fork()
    forked.set()
    if not child:
        signal.alarm(30)
        misses.note(decision())
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0
    thread.join()
    """
    run(script, tmp_path)
    assert rows_of(*files(tmp_path)) == {16: 1}


def _note_in_worker(rows: int) -> None:
    misses.note(decision(key_of(rows)))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_multiprocessing(tmp_path: Path, method: str) -> None:
    """Its children end without ``atexit``: their misses are written all the same."""
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip("not on this system")
    script = f"""
    import test_misses
    if __name__ == "__main__":
        context = multiprocessing.get_context({method!r})
        workers = [
            context.Process(target=test_misses._note_in_worker, args=(rows,)) for rows in (1, 2, 3)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
            assert worker.exitcode == 0
    """
    run(script, tmp_path)
    assert sorted(next(iter(rows_of(path))) for path in files(tmp_path)) == [1, 2, 3]


def test_what_a_fleet_lacks_is_merged(tmp_path: Path) -> None:
    """The files of all processes add up."""
    for rank in ("0", "1", "2"):
        run("misses.note(decision()); misses.note(decision(key_of(8)))", tmp_path, RANK=rank)
    merged = problems.merge(p for path in files(tmp_path) for p in problems.read(path))
    assert [p.count for p in merged] == [3, 3]
    assert all(p.models == {"python"} for p in merged)
    assert [path.stem.rpartition("_")[2] for path in files(tmp_path)] == ["0", "1", "2"]


def test_the_config_reaches_the_process_through_its_environment() -> None:
    """The setting is off unless it is switched on."""
    found: Any = config.record_misses
    assert found is False
