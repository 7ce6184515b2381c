"""Whether all ranks choose alike: four processes over gloo on the CPU, and threads on a store."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from process_support import KEY, TABLE, environment

import inductor_tables
from inductor_tables import activation, agreement, config, host
from inductor_tables.agreement import _Answer, _Meeting
from inductor_tables.decisions import Decision, Origin
from inductor_tables.errors import DisagreementError, InvalidTableError

distributed = pytest.importorskip("torch.distributed")
pytestmark = pytest.mark.skipif(
    not distributed.is_available(), reason="this torch is built without torch.distributed"
)

RANKS = 4
ARCHS = ("NVIDIA H200",)

SCRIPT = """
import json, os, sys, time
from datetime import timedelta
import torch.distributed as dist
import inductor_tables
from inductor_tables import config, host

rank, first, second, other = int(os.environ["RANK"]), *sys.argv[1:]
host.visible_archs = lambda: ("NVIDIA H200",)
dist.init_process_group("gloo", timeout=timedelta(seconds=60))
said = {}

def check(name, **how):
    began = time.monotonic()
    try:
        inductor_tables.check_agreement(**how)
        problem = None
    except inductor_tables.DisagreementError as error:
        problem = str(error)
    said[name] = [problem, time.monotonic() - began, inductor_tables.status().digest]
    dist.barrier()

def enable(*tables, **how):
    inductor_tables.disable()
    inductor_tables.enable(list(tables), **how)

check("all off")
inductor_tables.enable()
check("packaged")
enable(first if rank % 2 else second)
check("same table")
enable(other if rank == 2 else first)
check("another table")
enable(first)
if rank == 1:
    inductor_tables.disable()
check("one is disabled")
enable(first)
with config.patch(active=rank != 3):
    check("one is inactive")
with config.patch(check_src_hash=rank == 0):
    check("another setting")
enable(*(["/no/such/table"] if rank == 0 else [first]), strict=rank == 0)
check("one cannot read its table")
enable(first)
even = dist.new_group([0, 2])
if rank % 2:
    inductor_tables.disable()
check("a group of those that agree", group=even)
enable(first)
try:
    if rank == 3:
        raise ValueError("this rank has other trouble")
    check("one never calls", timeout_s=0.5)
except ValueError:
    time.sleep(2)
    check("one never calls")
check("all call again")
print(json.dumps(said))
dist.destroy_process_group()
"""


def _free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        port: int = opened.getsockname()[1]
        return port


def _tables_of_dumps_in_two_orders(directory: Path) -> list[Path]:
    """Build one table from two dumps in either order; their choices tie for the fastest."""
    from build_tools.build import build
    from build_tools.hashes import read_committed
    from inductor_tables.dumps import make_row, parse_dump, render_dump

    series = host.installed_series()
    triton = {
        "template_id": "triton::mm",
        "template_hash": read_committed()[series].templates["triton::mm"],
    }
    tied = ({"template_id": "aten::mm"}, {**triton, "num_warps": 4}, {**triton, "num_warps": 8})
    recorded = [
        render_dump(
            [make_row(KEY, entry, time_ns=5000, rank=0)],
            {"torch": host.installed_torch(), "arch": "NVIDIA H200", "clocks": f"run {n}"},
        )
        for n, entry in enumerate(tied)
    ]
    paths = []
    for number, ordered in enumerate((recorded, recorded[::-1])):
        dumps = [parse_dump(data, f"{n}.json") for n, data in enumerate(ordered)]
        (made,) = build(dumps, table_version="1", topk=1).tables
        paths.append(directory / f"order{number}.msgpack")
        paths[-1].write_bytes(made.data)
        paths[-1].chmod(0o644)
    return paths


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[Mapping[str, Any]]:
    """What each of four ranks was told, by what they had: problem, seconds, own digest."""
    directory = tmp_path_factory.mktemp("tables")
    other = directory / "other.json"
    other.write_text(json.dumps(TABLE), encoding="ascii")
    other.chmod(0o644)
    tables = [*_tables_of_dumps_in_two_orders(directory), other]
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _free_port(), "WORLD_SIZE": RANKS}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, *map(str, tables)],
            env=environment(**where, RANK=rank, OMP_NUM_THREADS=1),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        ended = [process.communicate(timeout=240) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * RANKS, ended
    return [json.loads(out.splitlines()[-1]) for out, _ in ended]


@pytest.mark.parametrize(
    "name",
    ["all off", "packaged", "same table", "a group of those that agree", "all call again"],
)
def test_ranks_that_agree(said: Sequence[Mapping[str, Any]], name: str) -> None:
    """No error on any rank, and none waits."""
    assert [found[name][0] for found in said] == [None] * RANKS


@pytest.mark.parametrize(
    ("name", "alike", "other"),
    [
        ("another table", "ranks 0-1, 3: torch", "rank 2: torch"),
        ("one is disabled", "ranks 0, 2-3: torch", "rank 1: tables are off"),
        ("one is inactive", "active=True", "active=False"),
        ("another setting", "rank 0: torch", "ranks 1-3: torch"),
        ("one cannot read its table", "rank 0: tables cannot be used", "ranks 1-3: torch"),
        ("one never calls", "ranks 0-2: torch", "rank 3: did not call"),
    ],
)
def test_ranks_that_disagree(
    said: Sequence[Mapping[str, Any]], name: str, alike: str, other: str
) -> None:
    """Every rank gets the same error, which says which ranks have what."""
    (problem,) = {found[name][0] for found in said}
    assert alike in problem
    assert other in problem
    assert "give every rank the same tables" in problem


def test_names_of_tables_are_told(said: Sequence[Mapping[str, Any]]) -> None:
    """The files that differ are in the text."""
    problem = said[0]["another table"][0]
    assert "order0.msgpack" in problem
    assert "other.json" in problem


def test_nobody_waits_longer_than_asked_for(said: Sequence[Mapping[str, Any]]) -> None:
    """A rank that does not call costs the others the timeout, and itself nothing."""
    *others, late = [found["one never calls"][1] for found in said]
    assert all(0.4 < seconds < 10 for seconds in others)
    assert late < 10


def test_dumps_in_another_order_are_the_same_table(said: Sequence[Mapping[str, Any]]) -> None:
    """Near ties are broken by content: one digest, whichever order the table was built in."""
    assert len({found["same table"][2] for found in said} - {None}) <= 1


def test_tables_built_in_another_order_have_one_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest of status() is that of the content."""
    monkeypatch.setattr(activation, "_devices_are_known", lambda: True)
    monkeypatch.setattr(host, "visible_archs", lambda: ARCHS)
    digests = []
    for path in _tables_of_dumps_in_two_orders(tmp_path):
        with inductor_tables.enable(path):
            digests.append(inductor_tables.status().digest)
            table = inductor_tables.status().devices[ARCHS[0]][0]
            assert (table.resource, table.keys) == (str(path), 1)
    assert digests[0] is not None
    assert digests[0] == digests[1]


# --- the digest of status() ---------------------------------------------------------------


@pytest.fixture
def known_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """See an H200, whatever torch says."""
    monkeypatch.setattr(activation, "_devices_are_known", lambda: True)
    monkeypatch.setattr(host, "visible_archs", lambda: ARCHS)


@pytest.mark.usefixtures("known_devices")
def test_digest_changes_with_what_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables and their order, settings, versions, torch's own table: each counts."""
    import torch._inductor.config as inductor

    shorter = {KEY: [{"template_id": "aten::other"}]}
    found = {}

    def note(name: str, *tables: Any) -> None:
        with inductor_tables.enable(list(tables) or None):
            found[name] = inductor_tables.status().digest

    note("packaged")
    note("own", TABLE)
    note("two", TABLE, shorter)
    note("other order", shorter, TABLE)
    with config.patch(check_src_hash=False):
        note("unchecked", TABLE)
    with config.patch(active=False):
        note("inactive", TABLE)
    with inductor.patch({"lookup_table.table": dict(TABLE)}):
        note("torch's", TABLE)
    with inductor.patch({"lookup_table.table": shorter}):
        note("torch's other", TABLE)
    monkeypatch.setattr(host, "visible_archs", lambda: ("NVIDIA L4",))
    note("other device", TABLE)
    monkeypatch.setattr(host, "visible_archs", lambda: ())
    note("no device", TABLE)
    monkeypatch.setattr(activation, "__version__", "99")
    note("other release", TABLE)
    monkeypatch.setattr(host, "installed_torch", lambda: "2.13.1")
    note("other torch", TABLE)
    assert None not in found.values()
    assert len(set(found.values())) == len(found)


@pytest.mark.usefixtures("known_devices")
def test_digest_does_not_depend_on_use() -> None:
    """Neither look-ups nor the order of a dict change it, and it is in all three forms."""
    two = {KEY: TABLE[KEY], KEY.replace("16,", "17,"): TABLE[KEY]}
    with inductor_tables.enable(two):
        before = inductor_tables.status()
        enabled = activation.current_activation()
        assert enabled is not None
        enabled.statistics.decided(
            Decision(
                outcome="hit",
                key=KEY,
                table=None,
                table_key=None,
                entries=(),
                dropped=(),
                origin=Origin(module=None, line=None),
            )
        )
        assert inductor_tables.status().digest == before.digest
    with inductor_tables.enable(dict(reversed(two.items()))):
        assert inductor_tables.status().digest == before.digest
    assert f"digest: {before.digest}" in str(before)
    assert json.loads(before.to_json())["digest"] == before.digest
    assert inductor_tables.status().digest is None


def test_digest_does_not_initialise_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a CUDA build status() waits for somebody else to initialise it."""
    import torch

    asked: list[int] = []
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: asked.append(1))
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    with inductor_tables.enable(TABLE):
        assert inductor_tables.status().digest is None
    assert not asked


@pytest.mark.usefixtures("known_devices")
def test_status_never_raises() -> None:
    """Not even where strict tables cannot be read: it says so."""
    with inductor_tables.enable("/no/such/table", strict=True):
        status = inductor_tables.status()
    assert status.digest is None
    assert "/no/such/table" in status.problems[0]


def test_a_forked_childs_lost_gpus_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where CUDA cannot be used any more, compiling for the CPU goes on."""

    def lost() -> tuple[str, ...]:
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess")

    monkeypatch.setattr(host, "visible_archs", lost)
    with inductor_tables.enable(TABLE):
        assert activation._cache_token() is None


def test_a_key_is_made_whatever_goes_wrong(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A bug of ours costs the cached graph, not the compile; strict raises what it promises."""

    def broken(self: object) -> str:
        raise KeyError("broken for the test")

    with inductor_tables.enable(TABLE):
        monkeypatch.setattr(activation.Activation, "token", broken)
        first, second = activation._cache_token(), activation._cache_token()
    assert first and second and first != second
    assert len([r for r in caplog.records if "broken for the test" in r.getMessage()]) == 1
    monkeypatch.undo()
    monkeypatch.setattr(host, "visible_archs", lambda: ARCHS)
    broken_table = {KEY: [{"template_id": "no such thing!"}]}
    with (
        inductor_tables.enable(broken_table, strict=True),
        pytest.raises(InvalidTableError, match="no such thing"),
    ):
        activation._cache_token()


# --- the meeting of ranks -----------------------------------------------------------------


def _meet(
    store: Any, answers: Sequence[str], late_s: Sequence[float], timeout_s: float = 5
) -> list[str]:
    """Have ranks meet, each in a thread of its own, and return their verdicts."""
    verdicts = [""] * len(answers)

    def run(rank: int) -> None:
        time.sleep(late_s[rank])
        meeting = _Meeting(store, rank, [10 * n for n in range(len(answers))])
        verdicts[rank] = meeting.verdict(_Answer(answers[rank], f"has {answers[rank]}"), timeout_s)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(answers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return verdicts


@pytest.mark.parametrize("kind", ["hash", "file", "prefix"])
def test_any_store_serves(kind: str, tmp_path: Path) -> None:
    """Whatever the group was made with; names are those of the whole job."""
    if kind == "file":
        store: Any = distributed.FileStore(str(tmp_path / "store"), 3)
    else:
        store = distributed.HashStore()
        store = distributed.PrefixStore("group", store) if kind == "prefix" else store
    assert _meet(store, "aaa", [0.05, 0, 0]) == [""] * 3
    (problem,) = set(_meet(store, "aba", [0, 0, 0.05]))
    assert "ranks 0, 20: has a\n  rank 10: has b" in problem
    (problem,) = set(_meet(store, "aaa", [0, 0.8, 0], timeout_s=0.3))
    assert "within 0.3 s" in problem and "rank 10: did not call" in problem
    assert _meet(store, "aaa", [0, 0, 0]) == [""] * 3


def test_one_rank_agrees_with_itself() -> None:
    """A job of one needs nobody, and an answer that failed is a problem all the same."""
    assert _meet(distributed.HashStore(), "a", [0]) == [""]
    (problem,) = _meet(distributed.HashStore(), ["rank 0 failed"], [0])
    assert "has rank 0 failed" in problem


def test_a_rank_that_dies_while_it_compares(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others wait for its verdict for a while, then say what is wrong."""
    monkeypatch.setattr(agreement, "GRACE_S", 0.2)
    store = distributed.HashStore()
    store.set("inductor_tables/agreement/1/settler", "7")
    assert "has died" in _meet(store, "a", [0])[0]


def test_many_kinds_of_answers_make_a_short_text() -> None:
    """A job where every rank differs is told in few lines, each of bounded length."""
    answers = {n: _Answer(str(n), "x") for n in range(500)}
    problem = agreement._problem(answers, range(500), 30)
    assert len(problem.splitlines()) < 25
    assert "484 other kinds" in problem


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([5], "rank 5"),
        ([0, 1, 2, 6], "ranks 0-2, 6"),
        ([3, 1], "ranks 1, 3"),
        ([4, 5], "ranks 4-5"),
    ],
)
def test_names_of_ranks(numbers: list[int], text: str) -> None:
    """Runs are told by their ends."""
    assert agreement._ranks(numbers) == text


def test_without_a_process_group() -> None:
    """A job that has none is told to make one."""
    with pytest.raises(RuntimeError, match=r"call torch\.distributed\.init_process_group\(\)"):
        inductor_tables.check_agreement()


def test_a_broken_store_is_an_error_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store whose process has died: what torch says, and what this rank has."""
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        inductor_tables.check_agreement()

        def broken(*_: object) -> None:
            raise distributed.DistNetworkError("connection was lost")

        monkeypatch.setattr(_Meeting, "verdict", broken)
        with pytest.raises(DisagreementError, match=r"connection was lost; this rank \(0\) has"):
            inductor_tables.check_agreement()
    finally:
        distributed.destroy_process_group()
