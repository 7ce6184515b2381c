"""The recorder: what is kept, who is told, and what a failure costs."""

from __future__ import annotations

import json
import logging
import math
import os
import socket
import stat
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from inductor_tables import config, host, recorder
from inductor_tables import provenance as provenance_module
from inductor_tables.dumps import Dump, read_dump
from inductor_tables.process_files import file_name
from inductor_tables.recorder import (
    DirectoryRecordBackend,
    EmitBackend,
    LogEmitBackend,
    LookupTableEntry,
    LookupTableRecorder,
    RecordBackend,
    get_lookup_table_recorder,
    record,
    record_topk_choices,
)

KEY = "NVIDIA H200+((torch.bfloat16, [16, 64], [64, 1]), (torch.bfloat16, [64, 32], [1, 64]))+mm"
LOGGER = "inductor_tables.recorder"


def key_of(size: int) -> str:
    """Return the lookup key of a ``size`` x ``size`` matrix product."""
    matrix = f"(torch.float16, [{size}, {size}], [{size}, 1])"
    return f"NVIDIA H200+({matrix}, {matrix})+mm"


@dataclass(eq=False)
class FakeChoice:
    """Stands for a ChoiceCaller; ``template_id`` None: it has no template."""

    template_id: str | None = "triton::mm"
    params: dict[str, Any] = field(default_factory=dict)
    key: str | None = KEY
    template_hash: str | None = "0" * 64


def fake_recorded_choice(
    choice: FakeChoice, op_name: str, *, with_device: bool
) -> host.RecordedChoice | None:
    """Stand in for ``host.recorded_choice``."""
    if choice.template_id is None:
        return None
    return host.RecordedChoice(
        key=choice.key if with_device or choice.key is None else choice.key.partition("+")[2],
        template_id=choice.template_id,
        template_hash=choice.template_hash,
        params=choice.params,
    )


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give each test a process recorder and settings of its own, and fake choices."""
    monkeypatch.setattr(host, "recorded_choice", fake_recorded_choice)
    monkeypatch.setattr(recorder, "_process_recorder", recorder._ProcessRecorder())
    monkeypatch.delenv("RANK", raising=False)
    recorder._warned.clear()
    with config.patch(recording_active=True, recorder_record_dir=None, recorder_topk=None):
        yield


def choices_of(blocks: Sequence[int], key: str = KEY) -> list[FakeChoice]:
    """Return one choice per block size."""
    return [FakeChoice(params={"BLOCK_M": block}, key=key) for block in blocks]


def autotuned(choices: Sequence[FakeChoice], milliseconds: Sequence[Any]) -> None:
    """Call the feedback saver as torch 2.11 and later do."""
    timings = dict(zip(choices, milliseconds, strict=True))
    record_topk_choices(timings, "mm", [], choices, dict, {})


def blocks(data: dict[str, list[LookupTableEntry]], key: str = KEY) -> list[int]:
    """Return the block sizes recorded for a key, in their order."""
    return [entry.value["BLOCK_M"] for entry in data.get(key, [])]


def entry_of(block: int, milliseconds: float, key: str = KEY, **value: Any) -> LookupTableEntry:
    """Return an entry for one block size."""
    return LookupTableEntry(
        key=key,
        value={"template_id": "triton::mm", "BLOCK_M": block, **value},
        metadata={"timing": milliseconds, "rank": 0},
        runtime=milliseconds,
    )


def files(directory: Path) -> list[Path]:
    """Return the dump files of a directory."""
    return sorted(directory.glob("inductor_lut_*.json"))


def only_dump(directory: Path) -> Dump:
    """Read the one dump file of a directory."""
    (file,) = files(directory)
    return read_dump(file)


class ListBackend(EmitBackend, RecordBackend):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.emitted: list[int] = []
        self.dumps: list[dict[str, list[int]]] = []
        self.clears = 0

    def emit(self, entry: LookupTableEntry) -> None:
        """Keep an entry's block size."""
        self.emitted.append(entry.value["BLOCK_M"])

    def dump(self, data: dict[str, list[LookupTableEntry]]) -> None:
        """Keep the block sizes by key."""
        self.dumps.append({key: blocks(data, key) for key in data})

    def clear(self) -> None:
        """Count the call."""
        self.clears += 1


class FailingBackend(EmitBackend, RecordBackend):
    """Fails whatever it is asked."""

    def emit(self, entry: LookupTableEntry) -> None:
        """Fail."""
        raise ZeroDivisionError("emit")

    def dump(self, data: dict[str, list[LookupTableEntry]]) -> None:
        """Fail."""
        raise OSError(28, "No space left on device")

    def clear(self) -> None:
        """Fail."""
        raise KeyError("clear")


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings of the recorder."""
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


# --- what is kept -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topk", "kept"),
    [
        (None, [1, 2, 3, 4]),
        (-1, [1, 2, 3, 4]),
        (-7, [1, 2, 3, 4]),
        (0, []),
        (1, [1]),
        (3, [1, 2, 3]),
        (4, [1, 2, 3, 4]),
        (99, [1, 2, 3, 4]),
    ],
)
@pytest.mark.parametrize("way", ["config", "recorder", "with"])
def test_topk(topk: int | None, kept: list[int], way: str, tmp_path: Path) -> None:
    """None and negative keep all, 0 nothing, k the k fastest, however it is set."""
    measured = (choices_of([3, 1, 4, 2]), [0.3, 0.1, 0.4, 0.2])
    if way == "config":
        with config.patch(recorder_topk=topk):
            autotuned(*measured)
        data = get_lookup_table_recorder().data
    elif way == "with":
        with record(tmp_path, topk=topk) as recording:
            autotuned(*measured)
        data = recording.data
    else:
        table = LookupTableRecorder(topk)
        for block, milliseconds in zip([3, 1, 4, 2], measured[1], strict=True):
            table.record(entry_of(block, milliseconds))
        data = table.data
    assert blocks(data) == kept


def test_topk_holds_across_runs() -> None:
    """The k fastest of all runs of one key are kept, not the last run's."""
    with config.patch(recorder_topk=2):
        autotuned(choices_of([1, 2]), [0.1, 0.4])
        autotuned(choices_of([3, 4]), [0.2, 0.3])
    assert blocks(get_lookup_table_recorder().data) == [1, 3]


def test_topk_counts_choices_of_the_run_not_of_a_key() -> None:
    """From torch 2.12 on one addmm asks under two keys: the fastest of both is one row."""
    aten, triton = FakeChoice("aten::addmm", key=key_of(8)), FakeChoice(key=key_of(16))
    with config.patch(recorder_topk=1):
        autotuned([aten, triton], [0.2, 0.1])
    assert list(get_lookup_table_recorder().data) == [key_of(16)]


def test_a_recorders_own_topk_goes_before_the_config() -> None:
    """A recorder made with a top-k keeps to it; one without follows the config."""
    with config.patch(recorder_topk=5):
        assert (LookupTableRecorder(2).topk, LookupTableRecorder().topk) == (2, 5)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan, None, -0.1, "fast", 1e300])
def test_leaves_out_what_has_no_finite_time(bad: Any, tmp_path: Path) -> None:
    """A choice that failed to run takes no place, not even among the k fastest."""
    with record(tmp_path, topk=2) as recording:
        autotuned(choices_of([1, 2, 3]), [0.3, bad, 0.2])
    assert blocks(recording.data) == [3, 1]
    assert [row.time_ns for row in only_dump(tmp_path).rows] == [200_000, 300_000]


def test_leaves_out_choices_without_time_template_or_key() -> None:
    """Subgraph choices, CPU ops and choices that were not timed are left out; ranks close up."""
    known, other = choices_of([1, 2])
    untimed = FakeChoice(params={"BLOCK_M": 9})
    skipped = [FakeChoice(template_id=None), FakeChoice(key=None)]
    timings = {skipped[0]: 0.1, other: 0.4, skipped[1]: 0.2, known: 0.3}
    record_topk_choices(timings, "mm", [], [untimed, *timings], dict)
    (entries,) = get_lookup_table_recorder().data.values()
    assert [entry.metadata for entry in entries] == [
        {"timing": 0.3, "rank": 0},
        {"timing": 0.4, "rank": 1},
    ]


@pytest.mark.parametrize("extra", [(), ({},)])
def test_saver_takes_the_arguments_of_every_torch(extra: tuple[Any, ...]) -> None:
    """Version 2.10 of torch gives 5 positional arguments, 2.11 and later 6."""
    (choice,) = choices_of([1])
    record_topk_choices({choice: 0.1}, "mm", [], [choice], dict, *extra)
    assert blocks(get_lookup_table_recorder().data) == [1]


def test_inactive_asks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """While recording is off, the saver looks at none of its arguments."""
    with config.patch(recording_active=False):
        record_topk_choices(None, None, None, None, None)  # type: ignore[arg-type]
    assert get_lookup_table_recorder().data == {}


@pytest.mark.parametrize(("first", "second"), [(0.2, 0.1), (0.1, 0.2), (0.1, 0.1)])
def test_a_second_measurement_keeps_the_faster(first: float, second: float, tmp_path: Path) -> None:
    """One choice of one key is one row, with its fastest time, in memory and on disk."""
    with record(tmp_path) as recording:
        autotuned(choices_of([1, 2]), [first, 0.15])
        autotuned(choices_of([1]), [second])
    (entries,) = recording.data.values()
    assert [(e.runtime, e.value["BLOCK_M"]) for e in entries] == [(0.1, 1), (0.15, 2)]
    assert [row.time_ns for row in only_dump(tmp_path).rows] == [100_000, 150_000]


def test_true_and_1_are_two_choices() -> None:
    """Python takes True for 1; a kernel's parameters do not."""
    table = LookupTableRecorder()
    table.record(entry_of(1, 0.1, EVEN_K=True))
    table.record(entry_of(1, 0.2, EVEN_K=1))
    assert [entry.value["EVEN_K"] for entry in table.data[KEY]] == [True, 1]


def test_a_key_keeps_what_a_table_can_hold(tmp_path: Path) -> None:
    """More than 4096 choices of a key keep the fastest 4096, and the dump reads."""
    with record(tmp_path):
        autotuned(choices_of(range(4100, 0, -1)), [n / 1000 for n in range(4100, 0, -1)])
    rows = only_dump(tmp_path).rows
    assert (len(rows), rows[-1].time_ns) == (4096, 4_096_000)


@pytest.mark.parametrize("with_hash", [True, False])
@pytest.mark.parametrize("with_device", [True, False])
def test_config_says_what_an_entry_carries(with_hash: bool, with_device: bool) -> None:
    """Template hash and device part of the key are recorded as the config says."""
    with config.patch(record_template_hash=with_hash, record_with_device_key=with_device):
        autotuned(choices_of([1]), [0.1])
    ((key, (entry,)),) = get_lookup_table_recorder().data.items()
    assert entry.value.get("template_hash") == ("0" * 64 if with_hash else None)
    assert key.startswith("NVIDIA H200+") is with_device


def test_a_template_without_hash_gets_none() -> None:
    """ATen choices have no hash, and their entries no field for one."""
    autotuned([FakeChoice("aten::mm", template_hash=None)], [0.1])
    (entries,) = get_lookup_table_recorder().data.values()
    assert entries[0].value == {"template_id": "aten::mm"}


def test_refused_params_leave_out_their_row_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A value that could not go into a table costs its row and one warning."""
    bad = [FakeChoice(params={"BLOCK_M": n, "FUNCTION": object()}) for n in (7, 8)]
    with record(tmp_path, topk=2) as recording:
        for _ in range(2):
            autotuned([*bad, *choices_of([1, 2])], [0.01, 0.02, 0.1, 0.2])
    assert blocks(recording.data) == [1, 2]
    assert [row.rank for row in only_dump(tmp_path).rows] == [0, 1]
    (warning,) = warnings_of(caplog)
    assert "triton::mm.FUNCTION" in warning


def test_a_key_that_no_dump_may_hold_leaves_out_its_row(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One odd key must not make the whole file unreadable; many warn once."""
    with record(tmp_path):
        for odd in ("odd", "odder"):
            autotuned(choices_of([1], key=odd), [0.1])
        autotuned(choices_of([1]), [0.1])
    assert [row.key for row in only_dump(tmp_path).rows] == [KEY]
    assert len(warnings_of(caplog)) == 1


# --- backends ---------------------------------------------------------------------------


def test_custom_backends_get_entries_and_progressive_dumps() -> None:
    """An emit backend gets each entry once, a record backend all so far after each run."""
    backend = ListBackend()
    recorder.add_backend(backend)
    recorder.add_backend(backend)
    autotuned(choices_of([1, 2]), [0.2, 0.1])
    autotuned(choices_of([3], key=key_of(8)), [0.3])
    assert backend.emitted == [2, 1, 3]
    assert backend.dumps == [{KEY: [2, 1]}, {KEY: [2, 1], key_of(8): [3]}]


def test_refuses_what_is_no_backend() -> None:
    """Anything but an EmitBackend or a RecordBackend is refused."""
    with pytest.raises(ValueError, match="must be an EmitBackend or a RecordBackend, found 3"):
        recorder.add_backend(3)  # type: ignore[arg-type]


def test_abstract_backends_cannot_be_made() -> None:
    """A backend has to say what it does with entries."""
    with pytest.raises(TypeError, match="abstract"):
        EmitBackend()  # type: ignore[abstract]
    with pytest.raises(TypeError, match="abstract"):
        RecordBackend()  # type: ignore[abstract]


@pytest.mark.parametrize("order", ["failing first", "failing last"])
def test_a_failing_backend_stops_no_other(order: str, caplog: pytest.LogCaptureFixture) -> None:
    """Failures are one warning per backend and call; the others get everything."""
    good, bad = ListBackend(), FailingBackend()
    for backend in (bad, good) if order == "failing first" else (good, bad):
        recorder.add_backend(backend)
    for block in (1, 2, 3):
        autotuned(choices_of([block]), [block / 10])
    recorder.clear()
    assert good.emitted == [1, 2, 3]
    assert good.dumps[-1] == {KEY: [1, 2, 3]}
    assert good.clears == 1
    warned = warnings_of(caplog)
    assert len(warned) == 3
    assert {text.partition(" ")[0] for text in warned} == {
        "FailingBackend.emit",
        "FailingBackend.dump",
        "FailingBackend.clear",
    }


def test_a_failing_host_costs_one_warning_and_one_choice(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A choice that the host cannot describe is left out, the others are recorded."""

    def recorded_choice(choice: FakeChoice, op_name: str, *, with_device: bool) -> Any:
        if choice.params["BLOCK_M"] == 2:
            raise AttributeError("moved")
        return fake_recorded_choice(choice, op_name, with_device=with_device)

    monkeypatch.setattr(host, "recorded_choice", recorded_choice)
    for _ in range(2):
        autotuned(choices_of([1, 2, 3]), [0.3, 0.2, 0.1])
    assert blocks(get_lookup_table_recorder().data) == [3, 1]
    assert len(warnings_of(caplog)) == 1


@pytest.mark.parametrize(
    "timings", [None, 3, {}, {FakeChoice(): 1.0}, types.SimpleNamespace(get=lambda choice: 1 / 0)]
)
def test_the_saver_never_raises(timings: Any) -> None:
    """Whatever the host hands over, a compile goes on."""
    record_topk_choices(timings, "mm", [], choices_of([1]), dict)
    record_topk_choices(timings, "mm", [], None, dict)  # type: ignore[arg-type]


def test_an_interrupt_is_not_swallowed() -> None:
    """Only exceptions are held back, Ctrl-C is not."""

    class Interrupting(EmitBackend):
        def emit(self, entry: LookupTableEntry) -> None:
            raise KeyboardInterrupt

    recorder.add_backend(Interrupting())
    with pytest.raises(KeyboardInterrupt):
        autotuned(choices_of([1]), [0.1])


def test_log_backend_logs_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    """Each entry is one debug line, and only when the config asks for it."""
    with caplog.at_level(logging.DEBUG, LOGGER):
        autotuned(choices_of([17]), [0.1])
        with config.patch(recorder_emit=False):
            autotuned(choices_of([18]), [0.1])
    lines = [r.getMessage() for r in caplog.records if r.getMessage().startswith("recorded NVIDIA")]
    assert len(lines) == 1
    assert KEY in lines[0] and "'BLOCK_M': 17" in lines[0]


def test_built_in_backends_follow_the_config_once(tmp_path: Path) -> None:
    """However often the recorder is asked for, each built-in backend is there once."""
    with config.patch(recorder_record_dir=str(tmp_path)):
        for _ in range(3):
            table = get_lookup_table_recorder()
        assert [type(b) for b in table.emit_backends] == [LogEmitBackend]
        assert [type(b) for b in table.record_backends] == [DirectoryRecordBackend]
        with config.patch(recorder_emit=False):
            assert get_lookup_table_recorder().emit_backends == []


# --- the directory backend --------------------------------------------------------------


def test_dumps_progressively_into_one_file(tmp_path: Path) -> None:
    """Every run is on disk as soon as it is recorded, always in the same file."""
    seen = []
    with record(tmp_path) as recording:
        for size in (8, 16, 24):
            autotuned(choices_of([1, 2], key=key_of(size)), [0.2, 0.1])
            seen.append((recording.path, len(read_dump(files(tmp_path)[0]).rows)))
    assert seen == [(recording.path, 2), (recording.path, 4), (recording.path, 6)]
    assert recording.rows == 6
    assert os.listdir(tmp_path) == [files(tmp_path)[0].name]


def test_file_holds_times_ranks_and_the_plain_form(tmp_path: Path) -> None:
    """Times are whole nanoseconds; the host can use the file as it is."""
    with record(tmp_path) as recording:
        autotuned(choices_of([1, 2]), [0.0123456, 0.01])
    dump = only_dump(tmp_path)
    assert [(row.time_ns, row.rank) for row in dump.rows] == [(10_000, 0), (12_346, 1)]
    assert dump.source.triton is not None
    assert recording.path is not None
    assert json.loads(recording.path.read_bytes())[KEY] == [e.value for e in recording.data[KEY]]


def test_file_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """UTC time, ms, host and pid, then the rank of a distributed run."""
    monkeypatch.setattr(socket, "gethostname", lambda: "../node_7 ä.cluster")
    moment = datetime(2026, 1, 2, 3, 4, 5, 67_999, tzinfo=timezone.utc)
    name = f"inductor_lut_20260102_030405_067_node-7-.cluster_{os.getpid()}"
    assert file_name(recorder.DUMP_PREFIX, moment) == f"{name}.json"
    monkeypatch.setenv("RANK", "63")
    assert file_name(recorder.DUMP_PREFIX, moment) == f"{name}_63.json"
    monkeypatch.setenv("RANK", "../x")
    assert file_name(recorder.DUMP_PREFIX, moment) == f"{name}.json"
    distributed = types.SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 5
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)
    assert file_name(recorder.DUMP_PREFIX, moment) == f"{name}_5.json"
    monkeypatch.setattr(socket, "gethostname", lambda: "_")
    assert "_067_host_" in file_name(recorder.DUMP_PREFIX, moment)


def test_backends_of_one_process_and_ms_get_files_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A taken name is never written: the ms count on."""

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Clock:
            return cls(2026, 1, 2, 23, 59, 59, 999_000, tzinfo=timezone.utc)

    monkeypatch.setattr(recorder, "datetime", Clock)
    backends = [DirectoryRecordBackend(tmp_path) for _ in range(5)]
    for block, backend in enumerate(backends):
        backend.dump({KEY: [entry_of(block, 0.1)]})
    assert len(files(tmp_path)) == 5
    for block, backend in enumerate(backends):
        assert backend.path is not None
        (row,) = read_dump(backend.path).rows
        assert dict(row.config.params) == {"BLOCK_M": block}
    assert files(tmp_path)[1].name.startswith("inductor_lut_20260103_000000_000_")


def test_clear_begins_another_file(tmp_path: Path) -> None:
    """What was written stays; the next dump goes elsewhere."""
    with config.patch(recorder_record_dir=str(tmp_path)):
        autotuned(choices_of([1]), [0.1])
        recorder.clear()
        assert get_lookup_table_recorder().data == {}
        autotuned(choices_of([2]), [0.2])
    assert [len(read_dump(file).rows) for file in files(tmp_path)] == [1, 1]


def test_nothing_recorded_writes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """An empty block leaves no file, and says what to do about it."""
    with record(tmp_path / "new") as recording:
        pass
    assert (recording.path, recording.rows) == (None, 0)
    assert os.listdir(tmp_path / "new") == []
    (warning,) = warnings_of(caplog)
    assert "force_disable_caches" in warning


def test_entries_of_others_are_dumped_where_they_can_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The backend used alone leaves out what a reader would refuse."""
    odd = LookupTableEntry(key=KEY, value={"template_id": "m m"}, metadata={}, runtime=0.3)
    unranked = entry_of(1, math.inf)
    unranked.metadata = {"rank": "first"}
    backend = DirectoryRecordBackend(str(tmp_path))
    backend.dump({"test_key": [entry_of(1, 0.1)], KEY: [odd, unranked]})
    (row,) = only_dump(tmp_path).rows
    assert (row.key, row.time_ns, row.rank) == (KEY, None, 1)
    assert len(warnings_of(caplog)) == 2


def test_a_full_disk_costs_a_warning_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows that could not be written are written by the next dump that can, at exit at last."""

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with record(tmp_path) as recording:
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", full)
            autotuned(choices_of([1]), [0.1])
            autotuned(choices_of([2]), [0.2])
        assert recording.path is None
    assert len(only_dump(tmp_path).rows) == 2
    assert len(warnings_of(caplog)) == 1


# --- record(), nested and repeated ------------------------------------------------------


def test_record_restores_the_settings(tmp_path: Path) -> None:
    """The block's settings end with it, also when it fails; what was recorded is on disk."""
    before = (config.recording_active, config.recorder_record_dir, config.recorder_topk)

    def fail_inside() -> None:
        with record(tmp_path, topk=3):
            assert config.recorder_topk == 3
            autotuned(choices_of([1]), [0.1])
            raise ZeroDivisionError("by the user")

    with pytest.raises(ZeroDivisionError, match="by the user"):
        fail_inside()
    assert (config.recording_active, config.recorder_record_dir, config.recorder_topk) == before
    assert len(only_dump(tmp_path).rows) == 1


def test_record_hooks_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A third party may have dropped all savers: a block puts ours in again."""
    added: list[Callable[..., None]] = []
    monkeypatch.setattr(host, "add_feedback_saver", added.append)
    with record(tmp_path):
        pass
    assert added == [record_topk_choices]


def test_nested_blocks_do_not_mix(tmp_path: Path) -> None:
    """The inner block's rows go to its file only; the outer one goes on in its own."""
    outer_directory, inner_directory = tmp_path / "outer", tmp_path / "inner"
    with record(outer_directory) as outer:
        autotuned(choices_of([1]), [0.1])
        with record(inner_directory, topk=1) as inner:
            autotuned(choices_of([2, 3]), [0.2, 0.3])
        autotuned(choices_of([4, 5]), [0.4, 0.5])
    assert (blocks(outer.data), blocks(inner.data)) == ([1, 4, 5], [2])
    assert len(only_dump(outer_directory).rows) == outer.rows == 3
    assert len(only_dump(inner_directory).rows) == inner.rows == 1


def test_blocks_in_one_directory_get_a_file_each(tmp_path: Path) -> None:
    """Repeated and nested use of one directory never overwrites or repeats rows."""
    for block in (1, 2):
        with record(tmp_path):
            autotuned(choices_of([block]), [0.1])
            with record(tmp_path):
                autotuned(choices_of([block * 10]), [0.1])
    found = [
        dict(row.config.params)["BLOCK_M"] for f in files(tmp_path) for row in read_dump(f).rows
    ]
    assert sorted(map(int, map(str, found))) == [1, 2, 10, 20]


def test_directories_of_the_config_do_not_mix(tmp_path: Path) -> None:
    """Rows go to the directory that is configured when they come, and to no other."""
    for name, block in [("a", 1), ("b", 2), ("a", 3)]:
        with config.patch(recorder_record_dir=str(tmp_path / name)):
            autotuned(choices_of([block]), [0.1])
    autotuned(choices_of([4]), [0.1])
    recorded = {
        name: [row.config.params[0][1] for f in files(tmp_path / name) for row in read_dump(f).rows]
        for name in "ab"
    }
    assert recorded == {"a": [1, 3], "b": [2]}


def test_rows_that_wait_for_a_directory_go_to_the_first(tmp_path: Path) -> None:
    """Rows recorded before a directory is set are not lost."""
    autotuned(choices_of([1]), [0.1])
    with config.patch(recorder_record_dir=str(tmp_path)):
        recorder.dump()
        autotuned(choices_of([2]), [0.2])
    assert len(only_dump(tmp_path).rows) == 2


def test_entries_not_yet_dumped_survive_a_change_of_directory(tmp_path: Path) -> None:
    """An entry recorded by hand is written before its directory is left."""
    with config.patch(recorder_record_dir=str(tmp_path / "a")):
        get_lookup_table_recorder().record(entry_of(1, 0.1))
    with config.patch(recorder_record_dir=str(tmp_path / "b")):
        get_lookup_table_recorder().record(entry_of(2, 0.1))
        recorder.dump()
    assert len(only_dump(tmp_path / "a").rows) == len(only_dump(tmp_path / "b").rows) == 1


def test_custom_backends_are_cleared_between_recordings(tmp_path: Path) -> None:
    """A backend is told when other rows begin, but not while its own may still be wanted."""
    backend = ListBackend()
    recorder.add_backend(backend)
    with record(tmp_path / "a"):
        autotuned(choices_of([1]), [0.1])
    assert (backend.clears, backend.dumps[-1]) == (0, {KEY: [1]})
    recorder.dump()
    assert backend.dumps[-1] == {KEY: [1]}
    with record(tmp_path / "b"):
        autotuned(choices_of([2]), [0.1])
    assert (backend.clears, backend.dumps[-1]) == (1, {KEY: [2]})


def test_a_relative_directory_stays_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changing the working directory in the block moves no file."""
    monkeypatch.chdir(tmp_path)
    with record("dumps") as recording:
        os.chdir("/")
        autotuned(choices_of([1]), [0.1])
    assert recording.path == files(tmp_path / "dumps")[0]


def test_refuses_a_directory_it_cannot_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """People learn before they compile that nothing could be written."""
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError, match="file"), record(tmp_path / "file"):
        pass
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(PermissionError, match="is not writable"), record(tmp_path):
        pass


def test_refuses_a_topk_that_is_no_int(tmp_path: Path) -> None:
    """A wrong top-k changes nothing."""
    with (
        pytest.raises(TypeError, match="recorder_topk must be an int"),
        record(
            tmp_path,
            topk="3",  # type: ignore[arg-type]
        ),
    ):
        pass


# --- threads ----------------------------------------------------------------------------


def run_threads(count: int, target: Callable[[int], None]) -> None:
    """Run ``target(number)`` in threads that start together."""
    barrier = threading.Barrier(count)

    def wait_and_run(number: int) -> None:
        barrier.wait()
        target(number)

    threads = [threading.Thread(target=wait_and_run, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Switch threads as often as Python can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_threads_lose_no_row(tmp_path: Path, eager_threads: None) -> None:
    """Compiles in several threads record into one file; every row arrives."""

    def compile_five(thread: int) -> None:
        for n in range(5):
            autotuned(choices_of([1, 2], key=key_of(thread * 100 + n + 1)), [0.2, 0.1])
            autotuned(choices_of([thread * 100 + n + 1]), [n + thread / 10])

    with record(tmp_path) as recording:
        run_threads(8, compile_five)
    assert recording.rows == len(only_dump(tmp_path).rows) == 80 + 40


def test_another_thread_cannot_begin_a_block(tmp_path: Path) -> None:
    """Settings are the process's: the second block is refused and the first unharmed."""
    refused: list[str] = []

    def begin(_: int) -> None:
        try:
            with record(tmp_path / "b"):
                pass
        except RuntimeError as error:
            refused.append(str(error))

    with record(tmp_path / "a"):
        run_threads(1, begin)
        autotuned(choices_of([1]), [0.1])
    assert refused == ["another thread is recording; one block records all threads"]
    assert len(only_dump(tmp_path / "a").rows) == 1
    with record(tmp_path / "b"):
        pass


# --- provenance -------------------------------------------------------------------------


def fake_tool(directory: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a fake nvidia-smi on the path."""
    tool = directory / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")


class FakeCuda:
    """Two GPU models; the second is the current one."""

    def __init__(self, initialized: bool = True) -> None:
        self._initialized = initialized

    def is_initialized(self) -> bool:
        """Tell whether CUDA is initialised."""
        return self._initialized

    def current_device(self) -> int:
        """Return the current device, which initialises CUDA."""
        assert self._initialized, "this would initialise CUDA"
        return 1

    def device_count(self) -> int:
        """Return how many GPUs there are."""
        return 2

    def get_device_properties(self, index: int) -> Any:
        """Describe a GPU."""
        name = ("NVIDIA L4", "NVIDIA H200")[index]
        return types.SimpleNamespace(
            name=name, gcnArchName=name, multi_processor_count=(58, 132)[index], uuid=f"abc{index}"
        )


def fake_torch(monkeypatch: pytest.MonkeyPatch, cuda: FakeCuda, hip: str | None = None) -> None:
    """Put a fake torch in the place of the imported one."""
    versions = types.SimpleNamespace(cuda=None if hip else "13.0", hip=hip)
    torch = types.SimpleNamespace(__version__="2.13.0+x", version=versions, cuda=cuda)
    monkeypatch.setitem(sys.modules, "torch", torch)


LISTING = "printf 'GPU-abc0, 580.65, 300, 405\\nGPU-abc1, 580.65, 1980, 3201\\n'"


@pytest.mark.parametrize(
    ("arch", "device", "known"),
    [
        (None, "NVIDIA H200", (132, "sm 1980 MHz, memory 3201 MHz")),
        ("NVIDIA H200", "NVIDIA H200", (132, "sm 1980 MHz, memory 3201 MHz")),
        ("NVIDIA L4", "NVIDIA L4", (58, "sm 300 MHz, memory 405 MHz")),
        ("NVIDIA B200", None, (None, None)),
    ],
)
def test_provenance_of_a_gpu(
    arch: str | None,
    device: str | None,
    known: tuple[int | None, str | None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a mixed box the device of the keys is described, not device 0."""
    fake_tool(tmp_path, LISTING, monkeypatch)
    fake_torch(monkeypatch, FakeCuda())
    found = provenance_module.provenance(arch)
    assert (found["torch"], found["cuda"], found["driver"]) == ("2.13.0+x", "13.0", "580.65")
    assert (found["device"], found["arch"]) == (device, device)
    assert (found["sm_count"], found["clocks"]) == known


def test_provenance_never_initialises_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where CUDA is not initialised the device stays unknown, the driver does not."""
    fake_tool(tmp_path, LISTING, monkeypatch)
    fake_torch(monkeypatch, FakeCuda(initialized=False))
    found = provenance_module.provenance()
    assert (found["device"], found["clocks"], found["driver"]) == (None, None, "580.65")


@pytest.mark.parametrize(
    "script",
    ["exit 9", "echo 'NVIDIA-SMI has failed'", "printf '\\377\\n,,,\\n'", "exec sleep 60"],
)
def test_provenance_survives_the_drivers_tool(
    script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tool that fails, talks rubbish or hangs leaves driver and clocks unknown."""
    monkeypatch.setattr(provenance_module, "_QUERY_TIMEOUT_S", 0.2)
    fake_tool(tmp_path, script, monkeypatch)
    fake_torch(monkeypatch, FakeCuda())
    began = time.monotonic()
    found = provenance_module.provenance()
    assert time.monotonic() - began < 10
    assert (found["device"], found["driver"], found["clocks"]) == ("NVIDIA H200", None, None)


def test_provenance_of_rocm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On ROCm the kernel module tells the driver's version."""
    fake_torch(monkeypatch, FakeCuda(), hip="7.0.1")
    monkeypatch.setattr(provenance_module, "_AMD_DRIVER", tmp_path / "version")
    assert provenance_module.provenance()["driver"] is None
    (tmp_path / "version").write_text("6.12.12\n")
    found = provenance_module.provenance()
    assert (found["hip"], found["cuda"], found["driver"]) == ("7.0.1", None, "6.12.12")


def test_a_device_that_is_lost_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failing CUDA call is no failure of the recording."""

    def lost() -> int:
        raise RuntimeError("CUDA error: device lost")

    cuda = FakeCuda()
    monkeypatch.setattr(cuda, "current_device", lost)
    fake_torch(monkeypatch, cuda)
    assert provenance_module.provenance()["device"] is None


# --- import -----------------------------------------------------------------------------


def test_import_and_recording_import_no_torch(tmp_path: Path) -> None:
    """Neither the module nor a block imports torch or anything heavy."""
    script = (
        "import sys, inductor_tables.recorder as r\n"
        f"with r.record({str(tmp_path)!r}): pass\n"
        "heavy = {'torch', 'triton', 'numpy', 'msgpack', 'sympy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
