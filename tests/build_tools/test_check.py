"""The check command on good, stale, misplaced and damaged tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from samples import ATEN, COMMITTED, MM, built, run, triton, write_dump

from build_tools import check
from build_tools.hashes import TemplateHashes
from inductor_tables.schema import Config, Entry, Source
from inductor_tables.table import write_table
from inductor_tables.versions import TorchSeries

SERIES = TorchSeries("2.13")


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the torch of the committed 2.13 installed, whatever really is."""
    monkeypatch.setattr(check, "installed_series", lambda: SERIES)
    monkeypatch.setattr(check, "installed_hashes", lambda: COMMITTED[SERIES])


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Return a directory with one good table of the H200 on torch 2.13."""
    rows = {MM: [(triton(num_warps=n), 1000 + n) for n in (1, 2, 4)] + [(ATEN, 900)]}
    built(tmp_path / "out", write_dump(tmp_path / "a.json", rows))
    return tmp_path / "out"


def checked(out: Path) -> tuple[int, dict[str, Any]]:
    """Run ``check --json``; return the exit code and the report."""
    result = run("check", out, "--json")
    return result.exit_code, json.loads(result.stdout)


def put(out: Path, data: bytes, place: str = "2.13/nvidia-h200/gemm.msgpack") -> None:
    """Put a table's bytes in a place below a directory."""
    (out / place).parent.mkdir(parents=True, exist_ok=True)
    (out / place).write_bytes(data)


def table_of(
    key: str = MM, *, series: str = "2.13", arch: str | None = "NVIDIA H200", digest: str | None
) -> bytes:
    """Return a table with one triton::mm entry of a given template hash."""
    config = Config(template_id="triton::mm", template_hash=digest, params=(("num_warps", 4),))
    entry = Entry(config=config, time_ns=1, source=Source(dump_digest="0"))
    return write_table({key: [entry]}, table_version="1", series=series, arch=arch)


def only_problem(out: Path) -> tuple[str, str]:
    """Return kind and text of the one problem that ``check`` must fail with."""
    code, report = checked(out)
    problems = [*report["problems"], *(p for t in report["tables"] for p in t["problems"])]
    assert (code, report["ok"], len(problems)) == (1, False, 1), problems
    return problems[0]["kind"], problems[0]["text"]


HASH = COMMITTED[SERIES].templates["triton::mm"]


def test_good_table(out: Path) -> None:
    """A table as built passes, and says what it was compared with."""
    code, report = checked(out)
    assert code == 0
    assert report["ok"]
    (table,) = report["tables"]
    assert (table["path"], table["keys"], table["entries"], table["problems"]) == (
        "2.13/nvidia-h200/gemm.msgpack", 1, 4, [],
    )  # fmt: skip
    assert table["compared_with"] == ["committed", "installed"]


def test_people_see_the_result(out: Path) -> None:
    """The printed table names the resource and its result; problems follow as lines."""
    assert " ok " in run("check", out).output
    put(out, table_of(digest="0" * 64))
    result = run("check", out)
    assert result.exit_code == 1
    assert " STALE " in result.output
    assert "gemm.msgpack: stale: committed hashes: stale triton::mm" in result.output


def test_no_tables(tmp_path: Path) -> None:
    """An empty directory fails: a check of nothing proves nothing."""
    kind, text = only_problem(tmp_path)
    assert kind == "missing"
    assert "found none" in text


def test_stale_against_committed(out: Path) -> None:
    """A hash that the committed data of another series does not have fails."""
    put(out, table_of(series="2.11", digest=HASH), "2.11/nvidia-h200/gemm.msgpack")
    kind, text = only_problem(out)
    assert kind == "stale"
    assert "committed hashes: stale triton::mm; expected the hash d4b90a54b960" in text


def test_stale_against_installed(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed template of the installed torch fails though the committed data agree."""
    changed = TemplateHashes(
        version="2.13.9",
        templates={**COMMITTED[SERIES].templates, "triton::mm": "0" * 64},
        rocm={},
    )
    monkeypatch.setattr(check, "installed_hashes", lambda: changed)
    kind, text = only_problem(out)
    assert kind == "stale"
    assert "installed hashes: stale triton::mm; expected the hash 0000" in text


def test_table_without_hash(out: Path) -> None:
    """A Triton entry without a hash in a table fails on both comparisons."""
    put(out, table_of(digest=None))
    code, report = checked(out)
    assert code == 1
    texts = [problem["text"] for problem in report["tables"][0]["problems"]]
    assert [text.split(";")[0] for text in texts] == [
        "committed hashes: triton::mm without a template hash",
        "installed hashes: triton::mm without a template hash",
    ]


def test_unknown_series(out: Path) -> None:
    """A table of a series without any hashes cannot be vouched for."""
    put(out, table_of(series="2.99", digest=HASH), "2.99/nvidia-h200/gemm.msgpack")
    kind, text = only_problem(out)
    assert kind == "unknown"
    assert "no hashes of torch 2.99" in text


@pytest.mark.parametrize(
    "place",
    [
        "2.13/nvidia-h100/gemm.msgpack",
        "2.12/nvidia-h200/gemm.msgpack",
        "2.13/nvidia-h200/a.msgpack",
    ],
)
def test_misplaced(out: Path, place: str) -> None:
    """A table in another series' or arch's folder, or under another name, fails."""
    good = out / "2.13" / "nvidia-h200" / "gemm.msgpack"
    put(out, good.read_bytes(), place)
    kind, text = only_problem(out)
    assert kind == "misplaced"
    assert f"expected at 2.13/nvidia-h200/gemm.msgpack, found at {place}" in text


def test_arch_without_folder(out: Path) -> None:
    """A header whose arch can have no folder is misplaced wherever it is."""
    put(out, table_of(MM.replace("NVIDIA H200", "any"), arch="any", digest=HASH))
    kind, text = only_problem(out)
    assert kind == "misplaced"
    assert "no folder can be named after the arch 'any'" in text


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (MM.replace("NVIDIA H200", "NVIDIA H100"), "of the header's arch 'NVIDIA H200', found"),
        (MM.removeprefix("NVIDIA H200+"), "of the header's arch 'NVIDIA H200', found None"),
        ("mm of two", "not a lookup key: 'mm of two'"),
    ],
)
def test_foreign_keys(out: Path, key: str, expected: str) -> None:
    """A key of another device, or one that is none, fails."""
    put(out, table_of(key, digest=HASH))
    kind, text = only_problem(out)
    assert kind == "key"
    assert expected in text


def test_damaged(out: Path) -> None:
    """Every flipped byte and every shortened or lengthened file fails, named."""
    good = (out / "2.13" / "nvidia-h200" / "gemm.msgpack").read_bytes()
    flipped = [good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :] for at in range(0, len(good), 29)]
    for data in [b"", good[:40], good[:-1], good + b"\0", *flipped]:
        put(out, data)
        code, report = checked(out)
        kinds = {problem["kind"] for problem in report["tables"][0]["problems"]}
        assert (code, kinds) == (1, {"damaged"})


def test_other_spelling_of_the_same_content(out: Path) -> None:
    """A file with the same content in other bytes is not what the writer makes."""
    good = (out / "2.13" / "nvidia-h200" / "gemm.msgpack").read_bytes()
    put(out, good.replace(b"\xafinductor-tables", b"\xd9\x0finductor-tables", 1))
    assert only_problem(out)[0] == "damaged"


def test_writer_makes_other_bytes(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that today's writer would spell otherwise has to be built again."""
    monkeypatch.setattr(check, "write_table", lambda *_, **__: b"other")
    kind, text = only_problem(out)
    assert kind == "damaged"
    assert "does not re-encode to the same bytes; build it again" in text


def test_one_bad_table_of_two(out: Path) -> None:
    """A bad table does not hide the good one, nor the other way round."""
    put(out, b"", "2.14/nvidia-h200/gemm.msgpack")
    code, report = checked(out)
    assert code == 1
    assert [bool(table["problems"]) for table in report["tables"]] == [False, True]
