"""Zero-code use: ``INDUCTOR_TABLES=1`` through the entry points of torch and vLLM."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from process_support import KEY, TABLE, environment, write_table

TORCH = "import torch, inductor_tables; print(inductor_tables.is_enabled())"


def run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process with these variables and no others of ours."""
    kept = {k: v for k, v in environment().items() if not k.startswith("INDUCTOR_TABLES")}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**kept, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("group", ["torch.backends", "vllm.general_plugins"])
def test_the_entry_points_are_installed(group: str) -> None:
    """What torch and vLLM look for is in the distribution's metadata."""
    found = {point.name: point for point in entry_points(group=group)}
    assert found["inductor_tables"].value == "inductor_tables.autoload:autoload"


@pytest.mark.parametrize(
    ("text", "enabled"), [("1", "True"), ("on", "True"), ("0", "False"), ("", "False")]
)
def test_import_torch_enables(text: str, enabled: str) -> None:
    """By the variable alone, without a line of the user's."""
    done = run(TORCH, INDUCTOR_TABLES=text)
    assert done.stdout.strip() == enabled
    assert "INDUCTOR_TABLES" not in done.stderr


def test_tables_and_version_come_from_the_environment(tmp_path: Path) -> None:
    """The user's tables and the version that is asked for."""
    path = write_table(tmp_path / "table.json")
    code = (
        "import torch; from inductor_tables import activation as a; c = a.current_activation();"
        "print(c.tables, c.version)"
    )
    variables = {"INDUCTOR_TABLES_TABLE_PATHS": str(path), "INDUCTOR_TABLES_TABLE_VERSION": ">=1"}
    done = run(code, INDUCTOR_TABLES="1", **variables)
    assert done.stdout.strip() == f"({str(path)!r},) >=1"
    assert KEY in TABLE


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"INDUCTOR_TABLES": "maybe"}, "expected 1 or 0"),
        ({"INDUCTOR_TABLES": "1", "INDUCTOR_TABLES_TABLE_VERSION": "new"}, "InvalidSpecifier"),
        ({"INDUCTOR_TABLES": "1", "INDUCTOR_TABLES_ACTIVE": "perhaps"}, "INDUCTOR_TABLES_ACTIVE"),
    ],
)
def test_a_wrong_value_never_ends_the_import_of_torch(variables: dict[str, str], told: str) -> None:
    """One warning that says what is wrong; torch works."""
    done = run("import torch; print(torch.ones(1).item())", **variables)
    assert done.stdout.strip() == "1.0"
    assert "has no effect" in done.stderr
    assert told in done.stderr


def test_what_the_program_enabled_stays() -> None:
    """A plugin call of vLLM comes after the program's own enable()."""
    code = (
        "import inductor_tables; inductor_tables.enable(version='>=3000')\n"
        "from inductor_tables import activation, autoload; autoload.autoload()\n"
        "print(activation.current_activation().version)"
    )
    assert run(code, INDUCTOR_TABLES="1").stdout.strip() == ">=3000"


def test_nothing_is_imported_where_the_variable_is_not_set() -> None:
    """Only the package itself and the module of the entry point."""
    code = (
        "import torch, sys; print(sorted(m for m in sys.modules if m.startswith('inductor_tables')"
        "))"
    )
    assert run(code).stdout.strip() == "['inductor_tables', 'inductor_tables.autoload']"


def test_torch_can_be_told_not_to_load() -> None:
    """Torch's own switch turns the entry point off."""
    done = run(TORCH, INDUCTOR_TABLES="1", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert done.stdout.strip() == "False"
