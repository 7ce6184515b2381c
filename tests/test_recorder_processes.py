"""The recorder among processes: killed ones, forked ones, and many in one directory."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from inductor_tables.dumps import read_dump
from inductor_tables.keys import parse_key

HOST = """
import os, signal, socket, sys, threading, time
from datetime import datetime, timezone
from inductor_tables import config, host, recorder
from inductor_tables.dumps import read_dump
from inductor_tables.recorder import record, record_topk_choices
"""

FAKE_HOST = """
def recorded_choice(choice, op_name, *, with_device):
    size, block = choice
    matrix = f"(torch.float16, [{size}, {size}], [{size}, 1])"
    return host.RecordedChoice(
        key=f"NVIDIA H200+({matrix}, {matrix})+mm",
        template_id="triton::mm",
        template_hash=None,
        params={"BLOCK_M": block},
    )

host.recorded_choice = recorded_choice

def autotune(size, count=1):
    timings = {(size, block): 0.1 * block for block in range(1, count + 1)}
    record_topk_choices(timings, "mm", [], list(timings), dict, {})
"""

WRITER = """
directory, acknowledged, first = sys.argv[1], sys.argv[2], int(sys.argv[3])
log = os.open(acknowledged, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
with record(directory):
    for size in range(first, first + 100_000):
        autotune(size, count=20)
        os.write(log, f"{size}\\n".encode())
"""

READER = """
import glob
directory, stop = sys.argv[1], sys.argv[2]
reads = 0
while not os.path.exists(stop) or not reads:
    for path in glob.glob(os.path.join(directory, "inductor_lut_*.json")):
        assert read_dump(path).rows
        reads += 1
print(reads)
"""

_started: list[subprocess.Popen[str]] = []

ROWS_A_RUN = 20
SIZES_A_WRITER = 100_000


def start(script: str, *arguments: object, **environment: object) -> subprocess.Popen[str]:
    """Start a Python process that runs ``script``, with the recorder imported."""
    kept = {name: value for name, value in os.environ.items() if name != "RANK"}
    process = subprocess.Popen(
        [sys.executable, "-c", HOST + textwrap.dedent(script), *map(str, arguments)],
        env={**kept, **{name: str(value) for name, value in environment.items()}},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    _started.append(process)
    return process


def start_faked(script: str, *arguments: object, **environment: object) -> subprocess.Popen[str]:
    """Start a process whose choices are (size, block) pairs, without torch."""
    return start(FAKE_HOST + textwrap.dedent(script), *arguments, **environment)


@pytest.fixture(autouse=True)
def end_what_was_started() -> Iterator[None]:
    """Kill the processes that a failed test left running."""
    yield
    while _started:
        with _started.pop() as process:
            process.kill()


def finish(process: subprocess.Popen[str], code: int = 0) -> str:
    """Wait for a process, check how it ended, and return what it printed."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, err
    return out


def files(directory: Path) -> list[Path]:
    """Return the dump files of a directory."""
    return sorted(directory.glob("inductor_lut_*.json"))


def sizes(path: Path) -> list[int]:
    """Return the matrix sizes that a dump holds rows for."""
    return [parse_key(row.key).inputs[0].size[0] for row in read_dump(path).rows]


def wait_for(paths: Sequence[Path]) -> None:
    """Wait until every path exists."""
    deadline = time.monotonic() + 120
    while not all(path.exists() for path in paths):
        assert time.monotonic() < deadline, "the writers did not start"
        time.sleep(0.01)


def kill_at_random(
    writers: Sequence[subprocess.Popen[str]], longest_s: float, chance: random.Random
) -> None:
    """Kill each writer at a moment of its own."""
    began = time.monotonic()
    moments = sorted((chance.uniform(0.1, longest_s), n) for n in range(len(writers)))
    for moment, n in moments:
        time.sleep(max(0.0, began + moment - time.monotonic()))
        writers[n].send_signal(signal.SIGKILL)
        finish(writers[n], -signal.SIGKILL)


def check_writer(acknowledged: Path, found: Sequence[int], number: int) -> None:
    """Check that what a writer was told is recorded is there, and little more."""
    told = [int(line) for line in acknowledged.read_text().splitlines()]
    assert told
    first = number * SIZES_A_WRITER + 1
    rows = {size: found.count(size) for size in found}
    assert rows.keys() >= set(told), "a row that was recorded is lost"
    assert rows.keys() - set(told) <= {first + len(told)}, "more than the run in flight"
    assert set(rows.values()) == {ROWS_A_RUN}


@pytest.mark.parametrize(
    ("writer_count", "reader_count", "longest_s"),
    [(8, 2, 3.0), pytest.param(64, 8, 20.0, marks=pytest.mark.slow)],
)
def test_killed_ranks_lose_nothing_and_readers_see_whole_files(
    writer_count: int, reader_count: int, longest_s: float, tmp_path: Path
) -> None:
    """SIGKILL at any moment costs the run in flight; no rank touches another's rows."""
    directory, stop = tmp_path / "dumps", tmp_path / "stop"
    told = [tmp_path / f"told{n}" for n in range(writer_count)]
    writers = [
        start_faked(WRITER, directory, told[n], n * SIZES_A_WRITER + 1, RANK=n)
        for n in range(writer_count)
    ]
    readers = [start_faked(READER, directory, stop) for _ in range(reader_count)]
    wait_for(told)
    kill_at_random(writers, longest_s, random.Random(writer_count))
    stop.touch()
    assert all(int(finish(reader)) > 0 for reader in readers)
    by_rank = {int(path.stem.rpartition("_")[2]): path for path in files(directory)}
    assert len(files(directory)) == len(by_rank) == writer_count
    for n in range(writer_count):
        check_writer(told[n], sizes(by_rank[n]), n)


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_writer_killed_inside_a_dump_leaves_the_last_one(moment: str, tmp_path: Path) -> None:
    """The file stays whole, and what the dead writer leaves is no dump's name."""
    script = f"""
    with record(sys.argv[1]):
        autotune(1)
        os.{moment} = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
        autotune(2)
    """
    finish(start_faked(script, tmp_path), -signal.SIGKILL)
    (file,) = files(tmp_path)
    assert sizes(file) == [1]
    (left,) = set(os.listdir(tmp_path)) - {file.name}
    assert left.startswith(".") and left.endswith(".tmp")


def test_a_forked_child_writes_a_file_of_its_own(tmp_path: Path) -> None:
    """Child and parent go on in one block: two files, and no row in both."""
    script = """
    with record(sys.argv[1]) as recording:
        autotune(1)
        child = os.fork()
        autotune(3 if child else 2)
        assert recording.rows == (2 if child else 1)
    if child:
        assert os.waitpid(child, 0)[1] == 0
    print(os.getpid())
    """
    pids = [int(line) for line in finish(start_faked(script, tmp_path)).split()]
    by_pid = {int(path.stem.split("_")[-1]): sorted(sizes(path)) for path in files(tmp_path)}
    assert by_pid == dict(zip(pids, ([2], [1, 3]), strict=True))


def test_a_forked_child_has_none_of_its_parents_rows(tmp_path: Path) -> None:
    """A recorder of one's own starts empty in the child, as the process's does."""
    script = """
    entry = recorder.LookupTableEntry(key="a", value={}, metadata={}, runtime=1.0)
    own = recorder.LookupTableRecorder()
    own.record(entry)
    recorder.get_lookup_table_recorder().record(entry)
    child = os.fork()
    found = len(own.data), len(recorder.get_lookup_table_recorder().data)
    assert found == ((1, 1) if child else (0, 0)), found
    if child:
        assert os.waitpid(child, 0)[1] == 0
    """
    finish(start_faked(script))


def test_a_fork_while_another_thread_records_does_not_hang(tmp_path: Path) -> None:
    """The child gets locks of its own: nobody is left in it to release the old ones."""
    script = """
    inside, forked = threading.Event(), threading.Event()

    class Slow(recorder.EmitBackend):
        def emit(self, entry):
            inside.set()
            forked.wait(60)

    slow = Slow()
    recorder.add_backend(slow)
    with record(sys.argv[1]):
        thread = threading.Thread(target=autotune, args=(1,))
        thread.start()
        inside.wait(60)
        child = os.fork()
        forked.set()
        if not child:
            autotune(2)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        thread.join()
    """
    finish(start_faked(script, tmp_path))
    assert sorted(sizes(path) for path in files(tmp_path)) == [[1], [2]]


def test_processes_of_one_name_and_moment_get_a_file_each(tmp_path: Path) -> None:
    """Containers may share host name and pid: the names still never collide."""
    script = """
    class Clock(datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 1, 2, tzinfo=timezone.utc)

    recorder.datetime, os.getpid, socket.gethostname = Clock, lambda: 1, lambda: "box"
    directory, begin, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
    print("ready", flush=True)
    while not os.path.exists(begin):
        time.sleep(0.001)
    with record(directory):
        autotune(size)
        autotune(size + 100)
    """
    directory, begin = tmp_path / "dumps", tmp_path / "begin"
    processes = [start_faked(script, directory, begin, n + 1) for n in range(6)]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    begin.touch()
    for process in processes:
        finish(process)
    assert sorted(sorted(sizes(path)) for path in files(directory)) == [
        [n + 1, n + 101] for n in range(6)
    ]
    assert files(directory)[0].name == "inductor_lut_20260102_000000_000_box_1.json"
    assert len(os.listdir(directory)) == 6


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler here")
def test_the_hosts_own_autotuning_is_recorded(tmp_path: Path) -> None:
    """The saver is hooked before torch is imported, and reads real choices: ATen against C++."""
    script = """
    with record(sys.argv[1]) as recording:
        assert "torch" not in sys.modules
        import torch
        from torch._inductor import config as inductor_config
        from torch._inductor.lookup_table import LookupTableChoices

        LookupTableChoices._get_device_key = staticmethod(lambda device: "NVIDIA H200")
        inductor_config.max_autotune_gemm_backends = "ATEN,CPP"
        inductor_config.compile_threads = 1
        with torch.no_grad():
            compiled = torch.compile(torch.bmm, options={"max_autotune": True})
            compiled(torch.randn(4, 256, 512), torch.randn(4, 512, 256))
    print(torch.__version__)
    """
    process = start(script, tmp_path / "dumps", TORCHINDUCTOR_CACHE_DIR=tmp_path / "cache")
    version = finish(process).strip()
    (file,) = files(tmp_path / "dumps")
    dump = read_dump(file)
    (row,) = dump.rows
    assert row.key == (
        "NVIDIA H200+((torch.float32, [4, 256, 512], [131072, 512, 1]), "
        "(torch.float32, [4, 512, 256], [131072, 256, 1]))+bmm"
    )
    assert dict(row.config.plain) == {"template_id": "aten::bmm"}
    assert row.time_ns and row.rank == 0
    assert dump.source.torch == version
