"""The switch: enable, disable, status, and which threads and handlers it reaches."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch._inductor.choices import InductorChoices
from torch._inductor.lookup_table import LookupTableChoices
from torch._inductor.virtualized import V

import inductor_tables
from inductor_tables import activation, host, resources
from inductor_tables.errors import (
    ForeignHandlerError,
    InvalidTableError,
    NoTableError,
    UnsupportedTorchError,
)
from inductor_tables.handler import TableChoices, keep_table_choices
from inductor_tables.schema import Config, Entry, Source
from inductor_tables.table import write_table

KEY = "NVIDIA H200+((torch.bfloat16, [16, 16], [16, 1]), (torch.bfloat16, [16, 16], [16, 1]))+mm"
ATEN = {KEY: [{"template_id": "aten::mm"}]}


def _table(version: str = "2026.11", arch: str | None = "NVIDIA H200", **header: Any) -> bytes:
    config = Config(template_id="aten::mm", template_hash=None, params=())
    entry = Entry(config=config, time_ns=5000, source=Source(dump_digest="00"))
    return write_table(
        {KEY: [entry]},
        table_version=version,
        series=header.pop("series", host.installed_series()),
        arch=arch,
        **header,
    )


def test_enable_and_disable() -> None:
    """The switch says what it is."""
    assert not inductor_tables.is_enabled()
    inductor_tables.enable(ATEN)
    assert inductor_tables.is_enabled()
    assert isinstance(V.choices, TableChoices)
    inductor_tables.disable()
    assert not inductor_tables.is_enabled()
    assert type(V.choices) is InductorChoices
    inductor_tables.disable()


def test_disable_takes_the_filter_of_choices_away() -> None:
    """What look-ups put into the host's selector is gone afterwards."""
    from torch._inductor.select_algorithm import get_algorithm_selector_cache

    filters = get_algorithm_selector_cache().preprocessing_fns
    before = list(filters)
    inductor_tables.enable(ATEN)
    host.ensure_preprocessing_fn(keep_table_choices)
    assert filters == [*before, keep_table_choices]
    inductor_tables.disable()
    assert filters == before


def test_enable_is_idempotent() -> None:
    """The same call again keeps the counts."""
    inductor_tables.enable(ATEN, version=">=1")
    before = activation.active_activation()
    inductor_tables.enable(ATEN, version=">=1")
    assert activation.active_activation() is before
    inductor_tables.enable(ATEN, version=">=2")
    assert activation.active_activation() is not before


def test_as_a_context_manager_it_puts_back_what_was_there() -> None:
    """Nested uses end where they began."""
    with inductor_tables.enable(ATEN):
        outer = activation.active_activation()
        with inductor_tables.enable():
            assert activation.active_activation() is not outer
        assert activation.active_activation() is outer
    assert not inductor_tables.is_enabled()


@pytest.mark.parametrize("tables", [3, [ATEN, 3], [None]])
def test_tables_of_another_type_are_refused(tables: Any) -> None:
    """enable() says which of its tables is none."""
    with pytest.raises(TypeError, match=r"tables\[\d\] must be a path or a dict"):
        inductor_tables.enable(tables)
    assert not inductor_tables.is_enabled()


@pytest.mark.parametrize(
    "broken",
    [{KEY: [{"template_id": "aten::mm", "x": "__import__('os')"}]}, {KEY: "aten"}, {"": []}],
)
def test_a_broken_dict_is_reported_and_not_used(broken: Any) -> None:
    """The user's own damaged table: a problem with its place, stock behaviour."""
    inductor_tables.enable(broken)
    found = activation.active_activation()
    assert found is not None
    assert not [c for c in found.candidates("NVIDIA H200") if c.level == "overlay"]
    assert "tables[0]" in inductor_tables.status().problems[0]
    inductor_tables.enable(broken, strict=True)
    strict = activation.active_activation()
    assert strict is not None
    with pytest.raises(InvalidTableError, match=r"tables\[0\]"):
        strict.candidates("NVIDIA H200")


def test_files_and_directories_as_tables(tmp_path: Path) -> None:
    """A table file, a build's output directory and a directory of files all serve."""
    data = _table()
    file = tmp_path / "mine.msgpack"
    file.write_bytes(data)
    built = tmp_path / "built" / host.installed_series() / "nvidia-h200"
    built.mkdir(parents=True)
    (built / "gemm.msgpack").write_bytes(data)
    for given in (file, str(file), tmp_path / "built", tmp_path):
        inductor_tables.enable(given)
        found = activation.active_activation()
        assert found is not None
        assert found.candidates("NVIDIA H200")[0].table.lookup(KEY), given


def test_a_table_of_another_series_is_not_used(tmp_path: Path) -> None:
    """The user's table for another torch: said, not used."""
    file = tmp_path / "old.msgpack"
    file.write_bytes(_table(series="2.3"))
    inductor_tables.enable(file)
    found = activation.active_activation()
    assert found is not None
    assert "overlay" not in [c.level for c in found.candidates("NVIDIA H200")]
    assert "is for torch 2.3" in inductor_tables.status().problems[0]


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, bytes], None]:
    """Have the package hold other tables for a test: add(folder, bytes)."""
    monkeypatch.setattr(resources, "files", lambda _: tmp_path)
    resources._packaged.cache_clear()
    monkeypatch.setattr(resources._packaged, "cache_clear", resources._packaged.cache_clear)

    def add(folder: str, data: bytes) -> None:
        target = tmp_path / host.installed_series() / folder
        target.mkdir(parents=True)
        (target / "gemm.msgpack").write_bytes(data)

    return add


@pytest.mark.parametrize(
    ("arch", "levels"),
    [
        ("NVIDIA H200", ["exact", "agnostic"]),
        ("NVIDIA H100", ["agnostic"]),
        ("nvidia h200", ["agnostic"]),
        ("gfx942:sramecc+:xnack-", ["exact", "base", "agnostic"]),
        ("gfx942:sramecc+:xnack+", ["base", "agnostic"]),
        ("gfx90a:sramecc+", ["agnostic"]),
    ],
)
def test_choosing_by_arch(
    packaged: Callable[[str, bytes], None], arch: str, levels: list[str]
) -> None:
    """Exact name, then the AMD base name where its table says so, then agnostic."""
    packaged("nvidia-h200", _table())
    packaged("gfx942-sramecc-on-xnack-off", _table(arch="gfx942:sramecc+:xnack-"))
    packaged("gfx942", _table(arch="gfx942", serves_base_arch=True))
    packaged("gfx90a", _table(arch="gfx90a", serves_base_arch=False))
    packaged("any", _table(arch=None))
    found = resources.packaged_candidates(host.installed_series(), arch)
    assert [candidate.level for candidate in found] == levels
    resources._packaged.cache_clear()


@pytest.mark.parametrize(
    ("version", "served"),
    [(None, True), ("~=2026.11", True), (">=2027", False), ("==2026.11", True)],
)
def test_pinning_a_version(
    packaged: Callable[[str, bytes], None], version: str | None, served: bool
) -> None:
    """A packaged table whose version does not meet the specifier is not used."""
    packaged("nvidia-h200", _table("2026.11"))
    inductor_tables.enable(version=version)
    found = activation.active_activation()
    assert found is not None
    assert bool(found.candidates("NVIDIA H200")) is served
    resources._packaged.cache_clear()


def test_strict_raises_where_nothing_fits(packaged: Callable[[str, bytes], None]) -> None:
    """At once if no table is for this torch, else when the device is known."""
    with pytest.raises(NoTableError, match="packaged torch series: none"):
        inductor_tables.enable(strict=True)
    packaged("nvidia-h200", _table())
    inductor_tables.enable(strict=True)
    found = activation.active_activation()
    assert found is not None
    with pytest.raises(NoTableError, match="no table for 'NVIDIA L4'"):
        found.candidates("NVIDIA L4")
    resources._packaged.cache_clear()


def test_nothing_fitting_is_one_info_line(
    packaged: Callable[[str, bytes], None], caplog: pytest.LogCaptureFixture
) -> None:
    """A missing table is normal: one line that says what was looked for."""
    inductor_tables.enable()
    found = activation.active_activation()
    assert found is not None
    with caplog.at_level(logging.INFO, "inductor_tables"):
        assert found.candidates("NVIDIA L4") == ()
        assert found.candidates("NVIDIA L4") == ()
    (line,) = caplog.records
    assert "no table for 'NVIDIA L4'" in line.getMessage()
    resources._packaged.cache_clear()


def test_a_damaged_packaged_table_is_reported_and_not_used(
    packaged: Callable[[str, bytes], None],
) -> None:
    """A damaged table is a problem with a name; compiles go on as stock."""
    packaged("nvidia-h200", _table()[:-3])
    inductor_tables.enable()
    found = activation.active_activation()
    assert found is not None
    assert found.candidates("NVIDIA H200") == ()
    assert "gemm.msgpack: records: cut short" in inductor_tables.status().problems[0]
    resources._packaged.cache_clear()


def test_all_threads_look_up_and_none_afterwards() -> None:
    """Threads from before enable(), from after it, and after disable()."""
    go, done = threading.Event(), threading.Event()
    seen: list[type] = []

    def old_thread() -> None:
        seen.append(type(V.choices))  # this thread has its own handler now
        done.set()
        for _ in range(2):
            go.wait()
            go.clear()
            seen.append(type(V.choices))
            done.set()

    def ask() -> None:
        done.clear()
        go.set()
        done.wait()

    old = threading.Thread(target=old_thread)
    old.start()
    done.wait()
    inductor_tables.enable(ATEN)
    ask()
    new = threading.Thread(target=lambda: seen.append(type(V.choices)))
    new.start()
    new.join()
    inductor_tables.disable()
    ask()
    old.join()
    assert seen == [InductorChoices, TableChoices, TableChoices, InductorChoices]


class Foreign(InductorChoices):
    """Somebody's handler with state and two hooks of its own."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def customize_fused_kernel_name(self, fused_name: str, src_code: str) -> str:
        """Rename kernels."""
        self.asked.append(fused_name)
        return f"mine_{fused_name}"


class ForeignTable(LookupTableChoices):
    """Somebody's handler with a table of its own."""

    def _get_lookup_table(self) -> dict[str, list[dict[str, Any]]]:
        return {"theirs": []}


def test_a_foreign_handler_stays_in_charge_of_all_else() -> None:
    """Its hooks and its state are used; look-ups come before it; it is put back."""
    theirs = Foreign()
    with V.set_choices_handler(theirs):
        inductor_tables.enable(ATEN)
        assert isinstance(V.choices, TableChoices)
        assert isinstance(V.choices, Foreign)
        assert V.choices.customize_fused_kernel_name("a", "") == "mine_a"
        assert theirs.asked == ["a"]
        inductor_tables.disable()
        assert V.choices is theirs


def test_a_foreign_lookup_table_is_asked_first() -> None:
    """A handler with a table of its own keeps it."""
    with V.set_choices_handler(ForeignTable()):
        inductor_tables.enable(ATEN)
        assert V.choices._get_lookup_table() == {"theirs": []}
        inductor_tables.disable()


class Sealed(InductorChoices):
    """A handler whose class refuses subclasses."""

    def __init_subclass__(cls) -> None:
        raise TypeError("this class is final")


def test_a_handler_that_cannot_be_extended_is_refused() -> None:
    """Refused with its name and a remedy, never replaced silently."""
    theirs = Sealed()
    with V.set_choices_handler(theirs):
        with pytest.raises(ForeignHandlerError, match=r"Sealed .*this class is final.*Unset it"):
            inductor_tables.enable(ATEN)
        assert V.choices is theirs
    inductor_tables.enable(ATEN)
    with V.set_choices_handler(theirs):
        assert V.choices is theirs
    assert "Sealed" in inductor_tables.status().problems[0]


@pytest.mark.parametrize("version", ["2.9.1", "1.13.0"])
def test_an_old_torch_is_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch without the hooks: a clear error."""
    monkeypatch.setattr(host, "loaded_torch", lambda: version)
    with pytest.raises(UnsupportedTorchError, match=f"torch {version} has no lookup table hooks"):
        inductor_tables.enable()


def test_a_newer_torch_gets_one_info_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A torch newer than any known works by the same hooks."""
    monkeypatch.setattr(host, "loaded_torch", lambda: "3.1.0")
    with caplog.at_level(logging.INFO, "inductor_tables"):
        inductor_tables.enable(ATEN)
    assert "newer than any" in caplog.text


def test_enabled_before_torch_is_imported() -> None:
    """enable() first, import torch later: look-ups happen all the same."""
    code = (
        "import sys, inductor_tables as it; it.enable(); assert 'torch' not in sys.modules\n"
        "import torch; assert 'torch._inductor' not in sys.modules\n"
        "from torch._inductor.virtualized import V\n"
        "print(type(V.choices).__name__); it.disable(); print(type(V.choices).__name__)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["TableChoices", "InductorChoices"]
