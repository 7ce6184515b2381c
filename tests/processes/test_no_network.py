"""No network, ever: every use of a socket ends these processes' work, and nothing uses one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from process_support import HIT, KEY, needs_triton, run, shown, write_table

BLOCKER = """
import sys

def refuse(event, args):
    if event.startswith("socket.") and event != "socket.gethostname":
        raise ConnectionRefusedError(f"no network in this test: {event} {args}")

sys.addaudithook(refuse)
"""
"""An audit hook sees every socket that Python code makes, whichever name it goes by."""


@pytest.fixture
def blocked(tmp_path: Path) -> Path:
    """A directory that, on PYTHONPATH, blocks sockets in a process and in its children."""
    directory = tmp_path / "blocked"
    directory.mkdir()
    (directory / "sitecustomize.py").write_text(BLOCKER, encoding="utf-8")
    return directory


@pytest.mark.parametrize(
    "attempt",
    [
        "socket.socket()",
        "socket.create_connection(('127.0.0.1', 9))",
        "socket.getaddrinfo('localhost', 80)",
        "__import__('urllib.request').request.urlopen('http://localhost')",
        "__import__('_socket').socket()",
    ],
)
def test_the_blocker_blocks(blocked: Path, attempt: str) -> None:
    """What the other tests rely on: each way to the network is an error there."""
    script = f"""
    import socket, urllib.error
    try:
        {attempt}
    except (ConnectionRefusedError, urllib.error.URLError) as error:
        show(refused="no network in this test" in str(error))
    """
    assert shown(script, PYTHONPATH=blocked) == {"refused": True}


@needs_triton
def test_look_ups_and_recording_use_no_network(blocked: Path, tmp_path: Path) -> None:
    """Import, enable, a real lowering, a recording, status: all without a socket."""
    script = """
    import inductor_tables
    from inductor_tables import host, recorder
    from inductor_tables.dumps import read_dump

    inductor_tables.enable(sys.argv[1])
    lowered = lower()

    def recorded_choice(choice, op_name, *, with_device):
        return host.RecordedChoice(
            key=sys.argv[3], template_id="aten::mm", template_hash=None, params={}
        )

    host.recorded_choice = recorded_choice
    with inductor_tables.record(sys.argv[2]) as recording:
        lower(rows=17)
        recorder.record_topk_choices({"one": 0.1}, "mm", [], ["one"], dict, {})
    rows = len(read_dump(recording.path).rows)
    status = inductor_tables.status()
    json.loads(status.to_json()), str(status)
    inductor_tables.disable()
    show(lowered=lowered, rows=rows, hits=status.hits, problems=status.problems)
    """
    table = write_table(tmp_path / "table.json")
    found = shown(script, table, tmp_path / "dumps", KEY, PYTHONPATH=blocked)
    assert found == {"lowered": HIT, "rows": 1, "hits": 1, "problems": []}


@pytest.mark.parametrize("command", ["list", "status"])
def test_the_command_line_uses_no_network(blocked: Path, command: str) -> None:
    """Neither what is packaged nor what would be used is asked of anybody."""
    pytest.importorskip("click")
    pytest.importorskip("rich")
    script = """
    import runpy
    sys.argv[0] = "inductor-tables"
    runpy.run_module("inductor_tables", run_name="__main__")
    """
    found = json.loads(run(script, command, "--json", PYTHONPATH=blocked).stdout)
    assert found


def test_building_and_checking_use_no_network(blocked: Path, tmp_path: Path) -> None:
    """The build tools take all they need from the tree."""
    pytest.importorskip("click")
    pytest.importorskip("rich")
    root = Path(__file__).parents[2]
    recordings = sorted((root / "build_tools" / "recordings").glob("*torch2.13*.json"))
    script = """
    import runpy
    sys.argv[0] = "build_tools"
    runpy.run_module("build_tools", run_name="__main__")
    """
    arguments = ("build", *recordings, "--out", tmp_path / "out", "--table-version", "1", "--json")
    found = json.loads(run(script, *arguments, cwd=root, PYTHONPATH=blocked).stdout)
    assert found["tables"]
