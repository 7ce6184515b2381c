"""Topping up: which problems an upgrade invalidated, and what the tuner gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from samples import (
    ADDMM_ATEN,
    ADDMM_TRITON,
    ATEN,
    COMMITTED,
    INPUTS,
    MM,
    RECORDINGS,
    WIDE_MM,
    Timed,
    built,
    dump_bytes,
    run,
    triton,
    write_dump,
)

from build_tools.carry import topup_command
from build_tools.carry.carrying import carry, write
from build_tools.carry.topup import TopUp, top_up
from build_tools.held import read_held
from build_tools.tune.driver import nearest
from build_tools.tune.previous import read_seeds
from build_tools.tune.results import holds_results, problem_id
from inductor_tables import problems
from inductor_tables.dumps import Dump, parse_dump, read_dump
from inductor_tables.errors import BuildError
from inductor_tables.problems import problem_from_key
from inductor_tables.versions import TorchSeries

NEW = TorchSeries("2.12")
FORMER = triton("2.11")
"""An entry whose template has another text from torch 2.12 on."""

Rows = Mapping[str, Sequence[Timed]]


def recorded(rows: Rows, torch: str = "2.11.0", name: str = "old.json") -> Dump:
    """A recording."""
    return parse_dump(dump_bytes(rows, torch=torch), name)


def left(found: TopUp) -> set[str]:
    """The keys, without a device, of the problems that are to be tuned."""
    return {problem_id(problem) for problem in found.left}


def bare(*keys: str) -> set[str]:
    """Keys without a device."""
    return {problem_id(problem_from_key(key)) for key in keys}


def test_only_what_does_not_carry_is_left() -> None:
    """What serves by its text is not tuned again."""
    found = top_up([recorded({MM: [(FORMER, 1)], WIDE_MM: [(ATEN, 1)]})], NEW, COMMITTED)
    assert (left(found), found.carried, found.own) == (bare(MM), 1, 0)


@pytest.mark.parametrize(("first", "served"), [(ATEN, True), (FORMER, False)])
def test_the_fastest_decides(first: Mapping[str, Any], served: bool) -> None:
    """A slower choice that serves is no reason to be content."""
    second = FORMER if served else ATEN
    found = top_up([recorded({MM: [(first, 1), (second, 2)]})], NEW, COMMITTED)
    assert left(found) == (set() if served else bare(MM))


def test_what_the_series_has_itself_is_left_alone() -> None:
    """Also under the other key of an addmm."""
    own = recorded({MM: [(ATEN, 9)], ADDMM_ATEN: [({"template_id": "aten::addmm"}, 9)]}, "2.12.1")
    old = recorded({MM: [(FORMER, 1)], ADDMM_TRITON: [(FORMER, 1)]})
    found = top_up([own, old], NEW, COMMITTED)
    assert (left(found), found.carried, found.own) == (set(), 0, 2)


def test_any_torch_that_carries_will_do() -> None:
    """What does not carry from one torch may from another."""
    dumps = [recorded({MM: [(FORMER, 1)]}), recorded({MM: [(triton("2.13"), 5)]}, "2.13.0", "b")]
    assert left(top_up(dumps, NEW, COMMITTED)) == set()
    assert left(top_up(dumps, TorchSeries("2.11"), COMMITTED)) == set()
    assert left(top_up(dumps[:1], NEW, COMMITTED)) == bare(MM)


def test_what_was_carried_by_code_is_given_as_a_dump(tmp_path: Path) -> None:
    """It counts for its series only."""
    old = recorded({MM: [(FORMER, 1)], WIDE_MM: [(triton("2.11", BLOCK_M=64), 1)]})
    reasons = {MM: None, WIDE_MM: "the compiled code differs"}
    compare = lambda pairs: {pair: reasons[pair.key] for pair in pairs}  # noqa: E731
    paths = write(carry([old], [NEW], COMMITTED, compare=compare), tmp_path)
    held = [old, *map(read_dump, paths)]
    assert left(top_up(held, NEW, COMMITTED)) == bare(WIDE_MM)
    assert left(top_up(held, TorchSeries("2.13"), COMMITTED)) == bare(MM, WIDE_MM)


def test_keys_of_another_device() -> None:
    """They are nothing to tune here; those without a device are."""
    key = f"{INPUTS}+mm".replace("1024", "512")
    dump = recorded({MM: [(FORMER, 1)], key: [(FORMER, 1)]})
    assert left(top_up([dump], NEW, COMMITTED, arch="NVIDIA H200")) == bare(MM, key)
    assert left(top_up([dump], NEW, COMMITTED, arch="NVIDIA B200")) == bare(key)


def test_an_unknown_series() -> None:
    """Nothing is known of its templates."""
    with pytest.raises(BuildError, match=r"found 2\.99; run 'python -m build_tools hashes"):
        top_up([recorded({MM: [(ATEN, 1)]})], TorchSeries("2.99"), COMMITTED)


def test_tables_are_read_as_dumps(tmp_path: Path) -> None:
    """A directory of tables says the same as the dumps that it was built from."""
    names = [RECORDINGS / f"h200_torch{version}.json" for version in ("2.11.0", "2.13.0")]
    built(tmp_path, *names)
    for series in (NEW, TorchSeries("2.13"), TorchSeries("2.14")):
        by_tables, by_dumps = (
            top_up(read_held(paths), series, COMMITTED) for paths in ([tmp_path], names)
        )
        assert by_tables == by_dumps
        assert by_tables.left


def test_list_writes_the_problems(tmp_path: Path) -> None:
    """Without a GPU, as a file that ``tune`` takes; the summary adds up."""
    path = write_dump(tmp_path / "old.json", {MM: [(FORMER, 1)], WIDE_MM: [(ATEN, 1)]},
                      torch="2.11.0")  # fmt: skip
    result = run("topup", path, "--out", tmp_path / "out", "--list", "--to", "2.12")
    assert result.exit_code == 0, result.output
    assert "2 problems: 0 have entries of its own, 1 carry, 1 are to be tuned" in result.output
    found = problems.read(tmp_path / "out" / topup_command.PROBLEMS_FILE)
    assert set(map(problem_id, found)) == bare(MM)


@pytest.mark.parametrize("option", [("--to", "2.12"), ("--arch", "NVIDIA H200")])
def test_what_the_device_says_cannot_be_said_otherwise(
    tmp_path: Path, option: tuple[str, str]
) -> None:
    """The GPU at hand and the installed torch are what is tuned for."""
    path = write_dump(tmp_path / "old.json", {MM: [(ATEN, 1)]})
    result = run("topup", path, "--out", tmp_path / "out", *option)
    assert result.exit_code == 2
    assert "only with --list" in result.output


def test_the_tuner_gets_problems_and_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old entries are seeds and incumbents; options are passed on."""
    called: dict[str, Any] = {}
    monkeypatch.setattr(topup_command, "_own_arch", lambda: "NVIDIA H200")
    monkeypatch.setattr(topup_command, "installed_series", lambda: NEW)
    monkeypatch.setattr(
        topup_command, "run_tuning", lambda asked, **options: called.update(options, asked=asked)
    )
    path = write_dump(tmp_path / "old.json", {MM: [(FORMER, 1)], WIDE_MM: [(ATEN, 1)]},
                      torch="2.11.0")  # fmt: skip
    result = run("topup", path, "--out", tmp_path / "out", "--minutes", "3")
    assert result.exit_code == 0, result.output
    assert set(map(problem_id, called["asked"])) == bare(MM)
    assert (called["seeds"], called["previous"]) == ([path], [path])
    assert (called["minutes"], called["out"]) == (3, tmp_path / "out")


def test_nothing_to_tune_needs_no_tuner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command ends well."""
    monkeypatch.setattr(topup_command, "_own_arch", lambda: "NVIDIA H200")
    monkeypatch.setattr(topup_command, "installed_series", lambda: NEW)
    monkeypatch.delattr(topup_command, "run_tuning")
    path = write_dump(tmp_path / "old.json", {MM: [(ATEN, 1)]}, torch="2.11.0")
    assert run("topup", path, "--out", tmp_path / "out").exit_code == 0


def test_searches_begin_from_the_entries_of_dumps(tmp_path: Path) -> None:
    """Fastest first, by shape; of this device only, and of ops that the tuner knows."""
    slow, fast = triton("2.11", BLOCK_M=64), triton("2.11", BLOCK_M=32)
    odd = MM.replace("+mm", "+unheard_of")
    path = write_dump(tmp_path / "old.json", {MM: [(slow, 9), (fast, 1)], odd: [(ATEN, 1)]})
    ((shape, configs),) = read_seeds([path], {"arch": "NVIDIA H200"})
    assert (shape.m, shape.n, shape.k) == (16, 1024, 4096)
    assert [dict(config.params)["BLOCK_M"] for config in configs] == [32, 64]
    assert nearest(shape, [(shape, configs)]) == configs
    assert read_seeds([path], {"arch": "another"}) == []


def test_results_and_dumps_are_told_apart(tmp_path: Path) -> None:
    """A directory of the tuner holds both; its results say more."""
    write_dump(tmp_path / "old.json", {MM: [(ATEN, 1)]})
    assert not holds_results(tmp_path)
    (tmp_path / "worker.jsonl").write_text("")
    assert holds_results(tmp_path)
    assert not holds_results(tmp_path / "old.json")
