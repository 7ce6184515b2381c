"""Comparing code: processes of two torches that die, lie or differ, and what Triton makes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from samples import COMMITTED, MM, TILE, needs_simulation

pytest.importorskip("triton")
import torch

from build_tools.carry.code import Comparer
from build_tools.carry.kernel import Kernel, difference, kernel_of
from build_tools.carry.rules import Pair
from build_tools.distinct import Case
from build_tools.render import render
from inductor_tables.errors import BuildError
from inductor_tables.keys import parse_key
from inductor_tables.schema import Config
from inductor_tables.simulation import Simulation, simulate
from inductor_tables.versions import TorchSeries, torch_series

H200 = "NVIDIA H200"
SERIES = torch_series(torch.__version__)
OLD, NEW = TorchSeries("2.11"), TorchSeries("2.12")
PYTHONS = "INDUCTOR_TABLES_TEST_PYTHONS"
"""Environment variable: ``2.11=/path/to/python,2.12=/path/to/python``, to compare them for real."""

DIES = 1
"""``num_warps`` of entries that end a fake worker."""

FAKE = """#!{python}
import json, os, sys
asked = json.load(open(sys.argv[3]))
assert sys.argv[1:3] == ["-m", "build_tools.carry.worker"]
print(json.dumps({{"torch": "{torch}", "triton": "3"}}), flush=True)
for task in asked["tasks"]:
    warps = task["entry"]["num_warps"]
    if warps == {dies}:
        os.abort()
    if task["kernel"] is None and warps > 64:
        print(json.dumps({{"reason": "dropped"}}), flush=True)
    elif task["kernel"] is None:
        print(json.dumps({{"kernel": {{"warps": warps, "on": "{torch}"}}}}), flush=True)
    else:
        assert task["kernel"]["warps"] == warps, task
        own = task["entry"]["template_hash"][0]
        reason = f"odd: {{warps}}, {{own}}" if warps % 2 else None
        print(json.dumps({{"reason": reason}}), flush=True)
"""


def fake(path: Path, version: str) -> Path:
    """A program that answers as a Python with a torch does."""
    path.write_text(FAKE.format(python=sys.executable, torch=version, dies=DIES), encoding="utf-8")
    path.chmod(0o755)
    return path


def config(digest: str, **params: Any) -> Config:
    """An entry of ``triton::mm``."""
    return Config(
        template_id="triton::mm",
        template_hash=digest,
        params=tuple(sorted({**TILE, **params}.items())),
    )


def pair(warps: int, device: str | None = H200, **more: Any) -> Pair:
    """A pair that the fakes know by its warps."""
    old, new = config("a" * 64, num_warps=warps), config("b" * 64, num_warps=warps)
    fields = {"key": MM, "device": device, "recorded": old, "config": new, **more}
    return Pair(source=OLD, target=NEW, **fields)


def compared(tmp_path: Path, *pairs: Pair, jobs: int = 2, new: str = "2.12.1") -> dict[int, Any]:
    """Compare by fakes; reasons by warps."""
    pythons = {OLD: fake(tmp_path / "old", "2.11.0+cu130"), NEW: fake(tmp_path / "new", new)}
    found = Comparer(pythons=pythons, jobs=jobs).compare(pairs)
    return {int(str(dict(one.config.params)["num_warps"])): why for one, why in found.items()}


@pytest.mark.parametrize("jobs", [1, 3])
def test_answers_belong_to_their_pairs(tmp_path: Path, jobs: int) -> None:
    """However many processes there are, and though some of one torch have no second half."""
    found = compared(tmp_path, *map(pair, (2, 3, 100, 4, 5, 6)), jobs=jobs)
    odd = {warps: f"torch 2.12: odd: {warps}, b" for warps in (3, 5)}
    assert found == {2: None, 4: None, 6: None, **odd, 100: "torch 2.11: dropped"}


def test_a_crash_costs_its_pair(tmp_path: Path) -> None:
    """The next process goes on behind it."""
    found = compared(tmp_path, *map(pair, (2, DIES, 4)), jobs=1)
    assert found == {
        2: None,
        DIES: "torch 2.11: the compiler ended its process (SIGABRT)",
        4: None,
    }


def test_devices_that_cannot_be_simulated(tmp_path: Path) -> None:
    """These do not carry by code, and cost no process."""
    found = compared(tmp_path, pair(2, device=None), pair(4, device="NVIDIA Z1"), pair(6))
    assert found == {
        2: "neither key nor dump names a device to compile for",
        4: "NVIDIA Z1 cannot be simulated",
        6: None,
    }


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    """All pairs are told as done, also those that a process died of."""
    told: list[tuple[int, int]] = []
    pythons = {OLD: fake(tmp_path / "old", "2.11.0"), NEW: fake(tmp_path / "new", "2.12.1")}
    comparer = Comparer(pythons=pythons, jobs=1, advance=lambda *now: told.append(now))
    comparer.compare([pair(2), pair(DIES), pair(100), pair(4, device=None)])
    assert told[-1] == (4, 4)
    assert told == sorted(told)


def test_another_torch_than_promised(tmp_path: Path) -> None:
    """The Python is named."""
    with pytest.raises(BuildError, match=r"new: expected torch 2\.12, found 2\.13\.0"):
        compared(tmp_path, pair(2), new="2.13.0")


def test_a_python_without_torch(tmp_path: Path) -> None:
    """Its last words are in the error."""
    bare = tmp_path / "bare"
    bare.write_text("#!/bin/sh\necho 'ModuleNotFoundError: no torch' >&2\nexit 1\n")
    bare.chmod(0o755)
    comparer = Comparer(pythons={OLD: bare, NEW: bare}, jobs=1)
    with pytest.raises(BuildError, match=r"bare: cannot render .* no torch; expected a Python"):
        comparer.compare([pair(2)])


def test_an_interruption_ends_all_processes(tmp_path: Path) -> None:
    """Nothing goes on with the pairs that are left."""
    slow = tmp_path / "slow"
    slow.write_text('#!/bin/sh\necho \'{"torch": "2.11.0"}\'\nexec sleep 600\n')
    slow.chmod(0o755)
    short = fake(tmp_path / "short", "2.11.0")
    both = tmp_path / "both"
    both.write_text(f'#!/bin/sh\ngrep -q warps.:.64 "$3" && exec {slow} "$@"\nexec {short} "$@"\n')
    both.chmod(0o755)

    def interrupt(_done: int, _total: int) -> None:
        raise KeyboardInterrupt

    comparer = Comparer(pythons={OLD: both, NEW: both}, jobs=2, advance=interrupt)
    with pytest.raises(KeyboardInterrupt):
        comparer.compare([pair(2), pair(64), pair(4), pair(64, key=MM + "x")])


# --- what Triton makes, in this process ---------------------------------------------------------


@pytest.fixture
def sim() -> Iterator[Simulation]:
    """Yield a simulated H200."""
    with simulate(H200) as simulation:
        yield simulation


def kernel(sim: Simulation, template_id: str = "triton::mm", **params: Any) -> Kernel:
    """What this torch has compiled for an entry."""
    entry = replace(
        config(str(COMMITTED[SERIES].templates[template_id]), **params), template_id=template_id
    )
    source = render(sim, Case(key=parse_key(MM), config=entry, pairs=1)).source
    assert source is not None
    return kernel_of(sim, source)


@needs_simulation
def test_a_kernel_is_what_torch_compiles(sim: Simulation) -> None:
    """Its function, options, target and grid; the persistent one has its workspace."""
    found = kernel(sim)
    assert found.function.startswith("def kernel(")
    assert "BLOCK_N : tl.constexpr = 32" in found.function
    assert found.target == ["cuda", 90, 32]
    assert (found.options["num_warps"], found.options["num_stages"]) == (4, 3)
    assert "grid_type='FixedGrid'" in found.launch
    assert f"run(arg0_1, arg1_1, buf0, {1024 // 32}, 1, 1)" in found.launch
    tma = kernel(sim, "triton::mm_persistent_tma", BLOCK_M=64, BLOCK_N=64)
    assert any(line.startswith("workspace_") for line in tma.launch)


def changed(kernel: Kernel, old: str, new: str) -> Kernel:
    """A kernel with another function."""
    assert old in kernel.function
    return replace(kernel, function=kernel.function.replace(old, new))


@needs_simulation
def test_kernels_differ_in_what_runs(sim: Simulation) -> None:
    """Not in names and annotations, but in instructions, warps, memory, grid or arguments."""
    own = kernel(sim)

    def found(other: Kernel) -> str | None:
        return difference(other, own)

    renamed = changed(own, "pid_m", "row_of_tiles")
    bare = replace(renamed, function=renamed.function.replace(".to(INDEX_DTYPE)", ""))
    assert found(bare) is None
    halved = changed(own, "K = 4096", "K = 2 * 2048")
    assert found(halved) is None
    ahead = replace(own, options={**own.options, "debug": not own.options["debug"]})
    assert str(found(ahead)).startswith("debug is ")
    assert found(changed(own, "acc += tl.dot(", "acc -= tl.dot(")) == "the compiled code differs"
    warps = replace(own, options={**own.options, "num_warps": 8})
    assert found(warps) == "num_warps is 4, not 8"
    assert str(found(replace(own, options={**own.options, "num_stages": 2}))).startswith(
        "num_stages"
    )
    assert found(replace(own, launch=own.launch[:-1])) == "the launch differs"
    types: Mapping[str, str] = {**own.signature, "out_ptr0": "*fp16"}
    assert found(replace(own, signature=types)) == "the parameters differ"


@needs_simulation
def test_helpers_of_torch_are_not_taken_for_the_same(sim: Simulation) -> None:
    """A kernel that calls what another torch may have changed does not compile here."""
    own = kernel(sim)
    helped = changed(own, "    A = arg_A", "    A = triton_helpers.promote_to_tensor(arg_A)")
    with pytest.raises(Exception, match="triton_helpers is not defined"):
        difference(helped, own)


@pytest.mark.skipif(PYTHONS not in os.environ, reason=f"no Pythons of two torches ({PYTHONS})")
def test_two_torches_for_real() -> None:
    """The annotation that 2.12 added changes no code; another tile does."""
    named = (text.partition("=") for text in os.environ[PYTHONS].split(","))
    pythons = {torch_series(series): Path(path) for series, _, path in named}
    (old, new), known = sorted(pythons), COMMITTED
    theirs, ours = (str(known[one].templates["triton::mm"]) for one in (old, new))
    pairs = [
        Pair(key=MM, device=H200, recorded=config(theirs), config=entry, source=old, target=new)
        for entry in (config(ours), config(ours, BLOCK_M=32), config(theirs))
    ]
    found = Comparer(pythons=pythons, jobs=2).compare(pairs)
    same, other, stale = (found[one] for one in pairs)
    assert same is None
    assert other == f"torch {new}: shared is 16384, not 12288"
    assert "the template has changed" in str(stale)
