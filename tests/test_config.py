"""Settings: names, defaults, environment, and patching."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from inductor_tables import config

DEFAULTS: dict[str, Any] = {
    "active": True,
    "check_src_hash": True,
    "recording_active": False,
    "recorder_emit": True,
    "recorder_record_dir": None,
    "recorder_topk": None,
    "record_template_hash": True,
    "record_with_device_key": True,
    "record_misses": False,
    "table_paths": (),
    "table_version": None,
    "trusted_paths": (),
}


def settings() -> dict[str, Any]:
    """Return all settings as they are now."""
    return {name: getattr(config, name) for name in DEFAULTS}


def in_a_process(**environment: str) -> subprocess.CompletedProcess[str]:
    """Import the settings under other environment variables and print them."""
    code = (
        "from inductor_tables import config; "
        f"print({{name: getattr(config, name) for name in {list(DEFAULTS)!r}}})"
    )
    kept = {k: v for k, v in os.environ.items() if not k.startswith("INDUCTOR_TABLES_")}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_names_and_defaults() -> None:
    """The settings have the names and defaults of the design."""
    done = in_a_process()
    assert done.stdout.strip() == repr(DEFAULTS)
    assert config._SETTINGS.keys() == DEFAULTS.keys()
    assert {name: setting.default for name, setting in config._SETTINGS.items()} == DEFAULTS


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("ACTIVE", "0", "active", False),
        ("ACTIVE", "False", "active", False),
        ("ACTIVE", "", "active", True),
        ("CHECK_SRC_HASH", "off", "check_src_hash", False),
        ("RECORDING_ACTIVE", "1", "recording_active", True),
        ("RECORDING_ACTIVE", " Yes ", "recording_active", True),
        ("RECORDER_EMIT", "no", "recorder_emit", False),
        ("RECORDER_RECORD_DIR", "/a folder/b:c", "recorder_record_dir", "/a folder/b:c"),
        ("RECORDER_RECORD_DIR", "1", "recorder_record_dir", "1"),
        ("RECORDER_TOPK", "3", "recorder_topk", 3),
        ("RECORDER_TOPK", "-1", "recorder_topk", -1),
        ("RECORDER_TOPK", "0", "recorder_topk", 0),
        ("RECORD_TEMPLATE_HASH", "false", "record_template_hash", False),
        ("RECORD_MISSES", "1", "record_misses", True),
        ("TABLE_PATHS", "/a b.json\n/c", "table_paths", ("/a b.json", "/c")),
        ("TABLE_VERSION", "~=2026.11", "table_version", "~=2026.11"),
        ("RECORD_WITH_DEVICE_KEY", "0", "record_with_device_key", False),
        ("TRUSTED_PATHS", "/a:b\n\n /c d\n", "trusted_paths", ("/a:b", " /c d")),
        ("TRUSTED_PATHS", "\n", "trusted_paths", ()),
    ],
)
def test_environment(variable: str, text: str, name: str, value: Any) -> None:
    """Each setting is read from its variable; all others keep their defaults."""
    done = in_a_process(**{f"INDUCTOR_TABLES_{variable}": text})
    assert done.stdout.strip() == repr({**DEFAULTS, name: value})


@pytest.mark.parametrize(
    ("variable", "text", "problem"),
    [
        ("INDUCTOR_TABLES_ACTIVE", "maybe", "expected 1 or 0"),
        ("INDUCTOR_TABLES_ACTIVE", "2", "expected 1 or 0"),
        ("INDUCTOR_TABLES_RECORDER_TOPK", "all", "expected an int"),
        ("INDUCTOR_TABLES_RECORDER_TOPK", "1.5", "expected an int"),
    ],
)
def test_environment_that_is_refused(variable: str, text: str, problem: str) -> None:
    """A text that is no value is an error that names the variable, not a guess."""
    done = in_a_process(**{variable: text})
    assert done.returncode == 1
    assert done.stderr.strip().endswith(f"ValueError: {variable}={text!r}: {problem}")


def test_patch_for_a_block() -> None:
    """Changes hold inside the block and are undone after it."""
    before = settings()
    with config.patch(recorder_topk=3, active=False):
        assert settings() == {**before, "recorder_topk": 3, "active": False}
    assert settings() == before


@pytest.mark.parametrize(
    ("args", "kwargs", "changes"),
    [
        (("active", False), {}, {"active": False}),
        (("recorder_record_dir", None), {}, {"recorder_record_dir": None}),
        (({"active": False, "recorder_topk": 0},), {}, {"active": False, "recorder_topk": 0}),
        (({"active": False},), {"recorder_topk": 1}, {"active": False, "recorder_topk": 1}),
        (("active", False), {"recorder_topk": 1}, {"active": False, "recorder_topk": 1}),
        ((), {}, {}),
    ],
)
def test_forms_of_patch(
    args: tuple[Any, ...], kwargs: dict[str, Any], changes: dict[str, Any]
) -> None:
    """A name and its value, a mapping, keywords, or a mixture, as torch users know them."""
    before = settings()
    with config.patch(*args, **kwargs):
        assert settings() == {**before, **changes}
    assert settings() == before


def test_patch_of_a_function() -> None:
    """As a decorator it holds for every call, and for the call only."""
    before = settings()

    @config.patch("active", False)
    @config.patch(recorder_topk=7)
    def inside(number: int) -> tuple[int, dict[str, Any]]:
        """Say something."""
        return number, settings()

    assert inside.__doc__ == "Say something."
    for number in (1, 2):
        assert inside(number) == (number, {**before, "active": False, "recorder_topk": 7})
        assert settings() == before


def test_patches_nest_and_survive_errors() -> None:
    """An inner patch gives back the outer one's value, also when the block raises."""

    def fail() -> None:
        raise RuntimeError(f"topk is {config.recorder_topk}")

    with config.patch(recorder_topk=1):
        with pytest.raises(RuntimeError, match="topk is 2"), config.patch(recorder_topk=2):
            fail()
        assert config.recorder_topk == 1
    assert config.recorder_topk is None


WRONG: list[tuple[str, Any, str]] = [
    ("active", 1, "must be a bool, found 1"),
    ("active", None, "must be a bool, found None"),
    ("active", "True", "must be a bool, found 'True'"),
    ("check_src_hash", 0, "must be a bool, found 0"),
    ("recorder_topk", True, "must be an int, or None, found True"),
    ("recorder_topk", 1.0, r"must be an int, or None, found 1\.0"),
    ("recorder_topk", "3", "must be an int, or None, found '3'"),
    ("recorder_record_dir", 3, "must be a path as str, or None, found 3"),
    ("recorder_record_dir", False, "must be a path as str, or None, found False"),
    ("recorder_record_dir", b"x", "must be a path as str, or None, found b'x'"),
    ("trusted_paths", "/a", "must be a tuple of paths as str, found '/a'"),
    ("trusted_paths", None, "must be a tuple of paths as str, found None"),
    ("trusted_paths", ["/a"], r"must be a tuple of paths as str, found \['/a'\]"),
    ("trusted_paths", ("/a", 1), r"must be a tuple of paths as str, found \('/a', 1\)"),
    ("trusted_paths", ("",), r"must be a tuple of paths as str, found \('',\)"),
    ("active", (), r"must be a bool, found \(\)"),
]


@pytest.mark.parametrize(("name", "value", "problem"), WRONG)
def test_wrong_types(name: str, value: Any, problem: str) -> None:
    """A value of another type is refused, by assignment and by patch, and changes nothing."""
    before = settings()
    with pytest.raises(TypeError, match=rf"^inductor_tables\.config\.{name} {problem}$"):
        setattr(config, name, value)
    with (
        pytest.raises(TypeError, match=problem),
        config.patch({"recorder_emit": False, name: value}),
    ):
        pytest.fail("the block was entered")
    assert settings() == before


@pytest.mark.parametrize("name", ["actve", "", "table", "patch", "_SETTINGS", "ENV_PREFIX"])
def test_unknown_names(name: str) -> None:
    """A name that is no setting is refused with the ones there are, and changes nothing."""
    before = settings()
    problem = rf"has no setting '{name}'; there are active, check_src_hash, .*record_with_device"
    with pytest.raises(AttributeError, match=problem):
        setattr(config, name, True)
    with (
        pytest.raises(AttributeError, match=problem),
        config.patch({"recorder_emit": False, name: True}),
    ):
        pytest.fail("the block was entered")
    assert settings() == before
    assert callable(config.patch)


def test_assignment() -> None:
    """A setting can also be assigned, as torch's can."""
    with config.patch(active=True):
        config.active = False
        assert settings()["active"] is False
    assert config.active is True


def test_unknown_variables_are_named_with_the_known() -> None:
    """A misspelt variable is a warning that lists what there is, and changes nothing."""
    done = in_a_process(INDUCTOR_TABLES_RECORDER_DIR="/a", INDUCTOR_TABLES_ACTIVE="0")
    assert done.stdout.strip() == repr({**DEFAULTS, "active": False})
    assert "unknown environment variables: INDUCTOR_TABLES_RECORDER_DIR; known" in done.stderr
    for name in ("INDUCTOR_TABLES", *config.NAMES):
        assert name.upper() in done.stderr
    assert "unknown" not in in_a_process(INDUCTOR_TABLES_ACTIVE="0").stderr
