"""The template hashes: of the installed torch, and the committed ones."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from pathlib import Path

import pytest
from samples import COMMITTED, run

import inductor_tables
from build_tools import cli, hashes
from build_tools.hashes import (
    TemplateHashes,
    installed_hashes,
    installed_series,
    read_committed,
    write_committed,
)
from inductor_tables.errors import BuildError
from inductor_tables.versions import NEWEST_KNOWN_SERIES, OLDEST_SERIES, TorchSeries

# First digits, read off the template texts of each release by other means.
PREFIXES = {
    "triton::mm": "d4b90a54b960 d4b90a54b960 " + "d99842e46680 " * 4,
    "triton::mm_persistent_tma": "ab5633302517 546c26ab7610 " + "0ddad0df156c " * 4,
    "triton::scaled_mm_device_tma_epilogue_scaling": "2574d3865e8d " * 2 + "21aeac63b1bd " * 4,
    "triton::scaled_mm_device_tma_main_loop_scaling": (
        "d14011e1f591 97811b065388 80ae3780e56b 80ae3780e56b 80ae3780e56b 8b7a32fbe63b"
    ),
}
BMM = ["1635ad519a27", "b66e027a389f", "4acd70184f4e", "4acd70184f4e", "3027d8e7e1fd"]
ROCM_MM = ["35253c7996c2"] * 2 + ["8d909532fcff"] * 4
SERIES = ["2.10", "2.11", "2.12", "2.13", "2.14", "2.15"]


def test_committed_series() -> None:
    """The committed data cover every supported series, oldest first."""
    assert list(COMMITTED) == SERIES
    assert (SERIES[0], SERIES[-1]) == (OLDEST_SERIES, NEWEST_KNOWN_SERIES)


@pytest.mark.parametrize("template_id", PREFIXES)
def test_committed_prefixes(template_id: str) -> None:
    """The committed hashes are those of the released template texts."""
    found = [str(known.templates[template_id])[:12] for known in COMMITTED.values()]
    assert found == PREFIXES[template_id].split()


def test_committed_bmm_and_rocm_prefixes() -> None:
    """The text of bmm is in its own file from 2.11 on; the old ROCm text of mm is kept."""
    assert [str(k.templates["triton::bmm"])[:12] for k in COMMITTED.values()][1:] == BMM
    assert [known.rocm["triton::mm"][:12] for known in COMMITTED.values()] == ROCM_MM


def test_committed_shape() -> None:
    """Triton templates have a hash of 64 digits, all others none."""
    for known in COMMITTED.values():
        assert known.templates["aten::mm"] is None
        for template_id, digest in known.templates.items():
            assert (digest is not None) is template_id.startswith("triton::")
            assert digest is None or re.fullmatch("[0-9a-f]{64}", digest)


def test_committed_is_canonical(tmp_path: Path) -> None:
    """The committed file is what the tool writes."""
    copy = tmp_path / "hashes.json"
    for known in reversed(COMMITTED.values()):
        write_committed(known, copy)
    assert copy.read_bytes() == hashes.COMMITTED.read_bytes()


def test_installed_equals_committed() -> None:
    """The installed torch has the templates and hashes that are committed for it."""
    found = installed_hashes()
    committed = COMMITTED.get(found.series)
    if committed is None or committed.version != found.version:
        pytest.skip(f"torch {found.version} is not one of the committed versions")
    assert found == committed


def test_installed_hash_is_that_of_the_text() -> None:
    """A template's hash is the SHA-256 of its text (the rule that the rocm map relies on)."""
    from torch._inductor.kernel import mm

    folder = Path(mm.__file__).parent / "templates"
    text = (folder / "triton_mm.py.jinja").read_bytes()
    assert mm.mm_template.src_hash == sha256(text).hexdigest()


def test_installed_series_without_import() -> None:
    """The installed series is that of the torch that would be imported."""
    import torch

    assert installed_series() == ".".join(torch.__version__.split(".")[:2])


def test_command_prints_data() -> None:
    """``hashes --json`` prints series, version and templates."""
    data = json.loads(run("hashes", "--json").stdout)
    assert set(data) == {"series", "version", "templates", "rocm"}
    assert data["series"] == installed_series()
    assert data["templates"]["aten::mm"] is None


def test_command_for_people() -> None:
    """``hashes`` prints a table with whole hashes."""
    output = run("hashes").output
    digest = installed_hashes().templates["triton::mm"]
    assert re.search(rf"triton::mm +│ {digest} ", output)


def test_command_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``hashes --write`` replaces one series and says what changed."""
    path = tmp_path / "hashes.json"
    monkeypatch.setattr(cli, "write_committed", lambda found: write_committed(found, path))
    monkeypatch.setattr(cli, "read_committed", lambda: read_committed(path))
    series = installed_series()
    assert series is not None
    other = TorchSeries("2.9")
    write_committed(TemplateHashes(version="2.9.1", templates={}, rocm={}), path)
    write_committed(
        TemplateHashes(version=f"{series}.0", templates={"triton::mm": "0" * 64}, rocm={}), path
    )
    result = run("hashes", "--write", "--json")
    assert "0 removed, 1 changed" in result.output
    assert list(read_committed(path)) == [other, series]
    assert read_committed(path)[series] == installed_hashes()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "expected series -> version, templates and rocm"),
        ("[]", "expected series -> version, templates and rocm"),
        ('{"2.13": {"version": "2.13.0"}}', "expected series -> version, templates and rocm"),
        (
            '{"2.12": {"version": "2.13.0", "templates": {}, "rocm": {}}}',
            r"2\.12\.version: expected one of 2\.12, found '2\.13\.0'",
        ),
    ],
)
def test_damaged_data(tmp_path: Path, text: str, message: str) -> None:
    """Damaged data are an error that names the file and what to do."""
    path = tmp_path / "hashes.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BuildError, match=message):
        read_committed(path)


def test_runtime_never_imports_the_build_tools() -> None:
    """Imports go one way: from the build tools to the runtime."""
    sources = sorted(Path(inductor_tables.__file__).parent.rglob("*.py"))
    assert sources
    imports = re.compile(r"^\s*(?:from|import) build_tools\b", re.MULTILINE)
    assert [p for p in sources if imports.search(p.read_text(encoding="utf-8"))] == []
