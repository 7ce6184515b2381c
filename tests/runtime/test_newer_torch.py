"""A torch that lacks private names that we know: its documented registry, or no tables."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from products import MM_16, SERIES, lower, mm, triton_entry

import inductor_tables
from inductor_tables import activation

torch = pytest.importorskip("torch")
from torch._inductor import choices, codecache, virtualized

TABLE = {MM_16: [triton_entry(BLOCK_N=32)]}


@pytest.fixture(params=["handler", "cache keys"])
def lacking(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Take one of the private names away that the hooks go by."""
    if request.param == "cache keys":
        shown = ModuleType("codecache")
        name = "torch._inductor.codecache.FxGraphHashDetails"
    else:
        shown = ModuleType("virtualized")
        name = "torch._inductor.virtualized._choices._get_handler"
    monkeypatch.setitem(_IMPORTED, name.rpartition(".")[0].removesuffix("._choices"), shown)
    return name


_IMPORTED: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def _hooks_see_other_modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The hooks are shown modules without those names; the host itself keeps its own."""
    from inductor_tables import host
    from inductor_tables._imports import when_imported as real

    def when_imported(name: str, callback: Any) -> None:
        real(name, lambda module: callback(_IMPORTED.get(name, module)))

    monkeypatch.setattr(host, "when_imported", when_imported)
    monkeypatch.setattr(activation, "_lacks", None)
    yield
    inductor_tables.disable()


@pytest.mark.skipif(SERIES < (2, 15), reason="torch has a registry of choices from 2.15 on")
def test_the_registry_serves_where_a_private_name_is_gone(
    lacking: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Look-ups work, one info line says how, and disable() takes the registration back."""
    caplog.set_level(logging.INFO, "inductor_tables")
    inductor_tables.enable(TABLE)
    (op,) = lower(mm)
    assert op.chosen.params.get("BLOCK_N") == 32
    assert not op.benchmarked
    assert f"has no {lacking}; tables go by its registry" in caplog.text
    assert [name for name, _ in choices.registered_inductor_choices()] == ["inductor_tables"]
    inductor_tables.disable()
    assert choices.registered_inductor_choices() == ()
    (op,) = lower(mm)
    assert op.benchmarked


@pytest.mark.skipif(SERIES >= (2, 15), reason="torch has a registry of choices from 2.15 on")
def test_without_a_registry_no_table_is_used(
    lacking: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Stock choices and one warning that says what is missing and what to do."""
    inductor_tables.enable(TABLE)
    (op,) = lower(mm)
    assert op.benchmarked
    (problem,) = inductor_tables.status().problems
    assert "has no torch._inductor.choices.register_inductor_choices" in problem
    assert "upgrade inductor-tables" in problem
    assert lacking


def test_all_private_names_are_there() -> None:
    """What the tests above take away is what the host has."""
    assert hasattr(codecache, "FxGraphHashDetails")
    assert hasattr(virtualized._choices, "_get_handler")
