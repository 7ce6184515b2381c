"""The simulation's keys against those that a real GPU was asked for (``record_real_keys.py``).

``-s`` prints recall and precision of every case.
"""

from __future__ import annotations

import collections
import functools
import json
import os
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from key_comparison import Comparison, Keys, compare, graph_ops_of, keys_of
from key_records import record_case
from real_cases import CASES
from simulation_support import DATA, ROOT, needs_simulation

from inductor_tables import simulation
from inductor_tables.simulation import CATALOGUE, DeviceSpec

SERIES = ".".join(torch.__version__.split(".")[:2])
FILES = sorted(DATA.glob(f"real_keys_*_torch{SERIES}.json"))


@dataclass(frozen=True, kw_only=True)
class Expected:
    """A difference that is known, and why; the test fails when it goes away.

    Attributes:
        reason: what a real device does that the simulation does not.
        missing: phase and key, without the device, of what only the real device is asked for.
        extra: the same of what only the simulated one is asked for.
        padded: the difference is what the pad_mm pass decided with a stopwatch, and nothing else.
    """

    reason: str
    missing: tuple[tuple[str, str], ...] = ()
    extra: tuple[tuple[str, str], ...] = ()
    padded: bool = False


_PADDED = {
    "bert": "its classifier has N=2",
    "bert_autocast_training": "its classifier has N=2",
    "gpt2": "its vocabulary is N=50257",
    "gpt2_training": "its vocabulary is N=50257",
    "odd_sizes": "M=2047, N=2501",
    "qwen_prefill": "M=300",
}
"""Cases where the H200 timed a padded product as faster, and which size is not aligned."""

EXPECTED: dict[tuple[str, str], Expected] = {
    (series, name): Expected(reason=f"pad_mm timed a padded product: {why}", padded=True)
    for series in ("2.11", "2.13")
    for name, why in _PADDED.items()
}
"""By torch series and case."""

NOT_RECORDED: dict[tuple[str, str], str] = {}
"""Cases that the real device could not record, by torch series and case, and why."""

SLOW = frozenset(
    {
        "bert_autocast_training",
        "bert_fp16",
        "bert_graph_break",
        "bert_tf32",
        "gpt2_training",
        "llama_checkpointed",
        "vit_training",
    }
)
"""Cases that are left to the slow tests: each is near another one."""

with_recording = pytest.mark.skipif(
    not FILES, reason=f"no real keys were recorded with torch {SERIES}"
)


def _recorded() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(FILES[0].read_text())
    return content


def _cases() -> list[str]:
    """Return the cases that were recorded to the end."""
    recorded = _recorded()["cases"] if FILES else {}
    return [name for name in CASES if "error" not in recorded.get(name, {"error": ""})]


def _parameters() -> list[Any]:
    """Return the recorded cases as parameters."""
    marks = {name: [pytest.mark.slow] for name in SLOW}
    return [pytest.param(name, marks=marks.get(name, ())) for name in _cases()]


def _is_padded(name: str) -> bool:
    """Say whether a product of a recorded case was padded."""
    return any(padded for _what, padded in _recorded()["cases"][name]["padding"])


class Simulated:
    """Simulates each case once, on the device that was recorded."""

    def __init__(self, sim: simulation.Simulation) -> None:
        self._sim = sim
        self._kept: dict[tuple[str, bool], dict[str, Any]] = {}

    def case(self, name: str, replayed: bool = False) -> dict[str, Any]:
        """Return the record of a case; ``replayed``: padded where the real device padded."""
        if (name, replayed) not in self._kept:
            padding = _recorded()["cases"][name]["padding"] if replayed else []
            with _replayed(padding):
                self._kept[name, replayed] = record_case(self._sim, CASES[name])
        return self._kept[name, replayed]

    def compared(self, name: str, replayed: bool = False) -> Comparison:
        """Compare a case's keys with the recorded ones."""
        real = _recorded()["cases"][name]
        return compare(keys_of(real), keys_of(self.case(name, replayed)))


@contextmanager
def _replayed(padding: list[tuple[str, bool]]) -> Iterator[None]:
    """Answer the pad_mm pass as the real device's stopwatch did."""
    answers: dict[str, list[bool]] = collections.defaultdict(list)
    for what, padded in padding:
        answers[what].append(padded)
    passes = torch._inductor.fx_passes.pad_mm
    name = "_should_pad" if hasattr(passes, "_should_pad") else "_should_pad_bench"
    original = getattr(passes, name)

    def should_pad(match: Any, left: Any, right: Any, op: Any, *rest: Any, **kwargs: Any) -> bool:
        what = f"{op} of {list(left.shape)} and {list(right.shape)}"
        if answers[what]:
            return answers[what].pop(0)
        return bool(original(match, left, right, op, *rest, **kwargs))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passes, name, should_pad)
        yield


@pytest.fixture(scope="module")
def simulated() -> Iterator[Simulated]:
    """Yield the cases on the simulated device."""
    device = _recorded()["made"]["device"]["gcn_arch_name"]
    with simulation.simulate(device, codegen=False) as sim:
        yield Simulated(sim)


def _agnostic(keys: Keys) -> Keys:
    """Return keys without the device."""
    counts: Keys = collections.Counter()
    for (phase, key), count in keys.items():
        counts[phase, key.partition("+")[2]] += count
    return counts


@with_recording
@needs_simulation
@pytest.mark.parametrize("name", _parameters())
def test_keys_equal_the_real_ones(simulated: Simulated, name: str) -> None:
    """Recall and precision of a case are 100 %, but for a difference that is explained."""
    found = simulated.compared(name)
    expected = EXPECTED.get((SERIES, name), Expected(reason=""))
    if expected.padded:
        assert found.missing, f"{name} no longer differs: take it out of EXPECTED"
        found = simulated.compared(name, replayed=True)
    message = f"{name}: {found}\nexpected because {expected.reason or '(nothing is expected)'}"
    assert _agnostic(found.missing) == collections.Counter(expected.missing), message
    assert _agnostic(found.extra) == collections.Counter(expected.extra), message


@with_recording
@needs_simulation
@pytest.mark.parametrize("name", _parameters())
def test_offers_and_graphs_equal_the_real_ones(simulated: Simulated, name: str) -> None:
    """Where the keys are equal, so are the choices of each and the operations of the graphs."""
    real, found = _recorded()["cases"][name], simulated.case(name, _is_padded(name))
    if keys_of(real) != keys_of(found):
        pytest.skip("the keys differ")
    assert found["calls"] == real["calls"]
    assert graph_ops_of(found) == graph_ops_of(real)


@with_recording
@needs_simulation
@pytest.mark.parametrize(
    "left_out", [pytest.param(SLOW, id="most"), pytest.param((), marks=pytest.mark.slow, id="all")]
)
def test_recall_and_precision(simulated: Simulated, left_out: Collection[str]) -> None:
    """Over the cases both are 100 % but for the differences that are explained."""
    compared = {name: simulated.compared(name) for name in _cases() if name not in left_out}
    total = functools.reduce(Comparison.__add__, compared.values())
    lines = [f"{name:24} {str(found).splitlines()[0]}" for name, found in compared.items()]
    sys.stdout.write("\n".join(["", *lines, f"{'all':24} {str(total).splitlines()[0]}", ""]))
    unexplained = [
        name
        for name, found in compared.items()
        if (found.missing or found.extra) and (SERIES, name) not in EXPECTED
    ]
    assert unexplained == []


@with_recording
def test_every_case_was_recorded() -> None:
    """The recording has every case, and errors only where one is known."""
    missing = [name for name in CASES if name not in _cases()]
    assert missing == [name for series, name in NOT_RECORDED if series == SERIES]
    stale = [case for series, case in EXPECTED if series == SERIES and case not in _cases()]
    assert stale == []


@with_recording
@pytest.mark.parametrize("path", sorted(DATA.glob("real_keys_*.json")), ids=lambda p: p.stem)
def test_the_catalogue_has_the_device_as_it_is(path: Path) -> None:
    """What the recorded device said of itself is what the catalogue says."""
    said = json.loads(path.read_text())["made"]["device"]
    spec = DeviceSpec(**said | {"capability": tuple(said["capability"])})
    assert CATALOGUE[spec.gcn_arch_name] == spec


def test_a_difference_lowers_recall_and_precision() -> None:
    """A key that is missing, one that is extra, and one too few are told."""
    key, other, more = ("inference", "d+a+mm"), ("inference", "d+b+mm"), ("forward", "d+a+mm")
    real = collections.Counter({key: 3, other: 1})
    found = compare(real, collections.Counter({key: 2, more: 1}))
    assert found.missing == {key: 1, other: 1}
    assert found.extra == {more: 1}
    assert (found.recall, found.precision) == (0.5, 2 / 3)
    assert "missing 1 x inference d+b+mm" in str(found)
    same = compare(real, real)
    assert (same.recall, same.precision) == (1.0, 1.0)


@pytest.mark.slow
def test_the_script_records_without_a_gpu(tmp_path: Path) -> None:
    """The recording script runs cases in workers, keeps them, and completes its file."""
    out = tmp_path / "keys.json"
    for cases in (["mlp_dynamic"], ["mlp_dynamic", "mlp_dynamic_training"]):
        script = ROOT / "tests" / "simulation" / "record_real_keys.py"
        options = ["--device", "cpu", "--jobs", "1", "--only", *cases]
        subprocess.run(
            [sys.executable, script, out, *options],
            check=True,
            env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        )
        content = json.loads(out.read_text())
        assert sorted(content["cases"]) == cases
        assert not any("error" in case for case in content["cases"].values())
    phases = [row[0] for row in content["cases"]["mlp_dynamic_training"]["calls"]]
    assert phases == ["backward", "forward"]
