"""The measuring of candidates, with kernels that run on the CPU, right and wrong ones."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import tune_samples as samples

from build_tools.tune.kernels import Kernel
from build_tools.tune.lowering import Options
from build_tools.tune.measure import GpuBench, GpuJob
from build_tools.tune.records import Ask, Failure, Timing, text_of
from build_tools.tune.timing import Captured
from inductor_tables.errors import DeadDeviceError
from inductor_tables.schema import Config

PROBLEM = samples.problem(64, 48, 96, dtype="float32")
GOOD = samples.mm(64, 32, 32, 3, 4)
OTHER = samples.mm(32, 32, 32, 3, 4)
SLOW = samples.mm(16, 16, 16, 1, 1)


class FakeWatch:
    """Times by a table: µs by the text of what a launch is called."""

    def __init__(self, times: Mapping[Config, float]) -> None:
        self.times, self.rounds_made = times, 0

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Change nothing."""
        yield

    def copies(self, moved_bytes: int) -> int:
        """Two of everything."""
        assert moved_bytes > 0
        return 2

    def once_us(self, launch: Any) -> float:
        """Launch once more."""
        return self.graphed_us(launch) + (170.0 if launch.slow_on_the_cpu else 0.0)

    def graphed_us(self, launch: Any) -> float:
        """Launch once more, from a graph."""
        launch()
        return self.times[launch.config]

    def capture(self, launches: Sequence[Any], rough_us: float) -> Captured:
        """Remember what was launched."""
        assert rough_us == self.times[launches[0].config]
        return Captured(graph=launches[0].config, launches=len(launches))

    def warm(self, captured: Captured) -> None:
        """Do nothing."""

    def rounds(
        self,
        captured: Mapping[Config, Captured],
        rounds: int,
        draw: random.Random,
        *,
        keep_within: float | None = None,
    ) -> dict[Config, list[float]]:
        """Repeat the table's times; those far behind only twice."""
        best = min(self.times[config] for config in captured)
        self.rounds_made += rounds
        return {
            config: [self.times[config]]
            * (2 if keep_within and self.times[config] > best * (1 + keep_within) else rounds)
            for config in captured
        }


class Launch:
    """Calls a kernel's function on its tensors."""

    def __init__(self, config: Config, function: Callable[[], Any], *, returns: bool) -> None:
        self.config, self._function = config, function
        self.slow_on_the_cpu = returns

    def __call__(self) -> Any:
        """Launch."""
        return self._function()


class FakeKernel(Kernel):
    """A kernel that computes the product on the CPU, with a fault if it is to have one."""

    def __init__(self, config: Config, fault: str | None) -> None:
        self.config, self.fault, self.loaded = config, fault, 0
        self.output = SimpleNamespace(sizes=(64, 48), strides=(48, 1))
        self.returns = fault == "returns"
        self.choice = SimpleNamespace(benchmark=lambda *_args, out: 0.5)
        self.future: Any = None
        if fault == "compiles for ever":
            self.future = Future()
        if fault == "layout":
            self.output.strides = (1, 64)

    def load(self) -> None:
        """Count."""
        self.loaded += 1
        if self.fault == "load":
            raise RuntimeError("ptxas said no")

    def arguments(self, tensors: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """Return the inputs."""
        return list(tensors.values())

    def bind(self, tensors: Mapping[str, torch.Tensor], out: torch.Tensor) -> Launch:
        """Bind to tensors."""

        def run() -> torch.Tensor | None:
            first, second = tensors.values()
            result = first @ second
            if self.fault == "launch":
                raise RuntimeError("invalid argument")
            if self.fault == "one wrong element":
                result[17, 5] += 0.5
            if self.fault == "returns":
                return result
            rows = 63 if self.fault == "row not written" else 64
            out[:rows] = result[:rows]
            return None

        return Launch(self.config, run, returns=self.returns)

    def unload(self) -> None:
        """Do nothing."""


class FakeLowered:
    """A lowered problem whose choices are the candidates themselves."""

    def __init__(self, problem: Any, device: Any, options: Any) -> None:
        self.space = samples.space(problem)
        self.shape = self.space.shape
        self.tensors = {f"arg{n}_1": key for n, key in enumerate(problem.inputs)}

    def render(self, config: Config) -> Config:
        """Return the candidate, unless it has more than 6 stages."""
        if dict(config.params).get("num_stages") == 7:
            raise ValueError("the template cannot be rendered with it")
        return config

    def close(self) -> None:
        """Do nothing."""


Made = dict[Config, FakeKernel]


@pytest.fixture(name="make_job")
def _make_job(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., tuple[GpuJob, Made]]]:
    """Return a function that opens a job whose kernels have given faults and times."""
    benches: list[GpuBench] = []
    monkeypatch.setattr("build_tools.tune.kernels.stop_pool", lambda: None)

    def make(
        faults: Mapping[Config, str] | None = None,
        times: Mapping[Config, float] | None = None,
        *,
        inline: bool = False,
        **keywords: Any,
    ) -> tuple[GpuJob, Made]:
        made: Made = {}

        def make_kernel(config: Config, lowered: Any) -> FakeKernel:
            made[config] = FakeKernel(config, (faults or {}).get(config))
            return made[config]

        table = {GOOD: 10.0, OTHER: 11.0, samples.ATEN: 12.0, SLOW: 500.0, **(times or {})}
        watch: Any = FakeWatch(table)
        bench = GpuBench(
            torch.device("cpu"), Options(), watch, inline=inline, lower=FakeLowered,
            make_kernel=make_kernel,  # type: ignore[arg-type]
        )  # fmt: skip
        benches.append(bench)
        return bench.open(PROBLEM, **keywords), made

    monkeypatch.setattr("build_tools.tune.measure.alive", lambda _device: True)
    yield make
    for bench in benches:
        bench.close()


def _measure(job: GpuJob, *configs: Config, final: bool = False) -> Any:
    ask = Ask(candidates=configs, rounds=4, final=final)
    job.prepare(configs)
    return job.measure(ask)


def test_right_candidates_are_timed(make_job: Any) -> None:
    """Each right candidate gets a sample a round."""
    job, _ = make_job()
    answers = _measure(job, GOOD, samples.ATEN)
    assert answers == {
        GOOD: Timing(samples_us=(10.0,) * 4),
        samples.ATEN: Timing(samples_us=(12.0,) * 4),
    }


@pytest.mark.parametrize(
    ("fault", "stage", "reason"),
    [
        ("load", "compile", "RuntimeError: ptxas said no"),
        ("launch", "launch", "RuntimeError: invalid argument"),
        ("one wrong element", "wrong", "ATen's is"),
        ("row not written", "wrong", "error nan"),
        ("layout", "render", "another layout"),
    ],
)
def test_what_is_wrong_is_out(make_job: Any, fault: str, stage: str, reason: str) -> None:
    """A faulty candidate fails with its stage and reason, is never timed, and stays out."""
    job, made = make_job({GOOD: fault})
    answers = _measure(job, GOOD, OTHER)
    failure = answers[GOOD]
    assert isinstance(failure, Failure)
    assert failure.stage == stage and reason in failure.reason
    assert isinstance(answers[OTHER], Timing)
    loads = made[GOOD].loaded
    assert _measure(job, GOOD)[GOOD] == failure
    assert made[GOOD].loaded == loads


def test_a_result_that_is_returned_is_checked(make_job: Any) -> None:
    """A choice that returns its result is compared by that."""
    job, _ = make_job({GOOD: "returns"})
    assert isinstance(_measure(job, GOOD)[GOOD], Timing)


def test_a_candidate_that_cannot_be_rendered_fails_alone(make_job: Any) -> None:
    """Rendering errors are failures of the candidate."""
    job, _ = make_job()
    bad = samples.mm(32, 32, 32, 7, 4)
    found = _measure(job, bad)[bad]
    assert found == Failure(
        stage="render", reason="ValueError: the template cannot be rendered with it"
    )


def test_without_aten_nothing_is_right(make_job: Any) -> None:
    """There is no error bound without ATen's own error."""
    job, _ = make_job({samples.ATEN: "launch"})
    answer = _measure(job, GOOD)[GOOD]
    assert isinstance(answer, Failure)
    assert answer.stage == "wrong" and "no error to allow" in answer.reason


def test_hopeless_candidates_are_dropped_at_once(make_job: Any) -> None:
    """A first launch far slower than the best is the only one, except in final rounds."""
    job, _ = make_job()
    answers = _measure(job, GOOD, SLOW)
    assert answers[SLOW] == Timing(samples_us=(500.0,), dropped=True)
    job.prepare([SLOW])
    assert _measure(job, SLOW, GOOD, final=True)[SLOW] == Timing(samples_us=(500.0,) * 4)


def test_what_is_slow_on_the_cpu_alone_is_timed(make_job: Any) -> None:
    """A split product is called through Python, which says nothing of its kernels."""
    job, _ = make_job({OTHER: "returns"})
    assert _measure(job, GOOD, OTHER)[OTHER] == Timing(samples_us=(11.0,) * 4)


def test_slow_candidates_are_dropped_after_two_rounds(make_job: Any) -> None:
    """Where several are compared, those far behind get two rounds."""
    slow = [samples.mm(32, 32, 32, stages, 2) for stages in (2, 3, 4)]
    job, _ = make_job(times=dict.fromkeys(slow, 20.0))
    answers = _measure(job, GOOD, *slow)
    assert all(answers[config] == Timing(samples_us=(20.0,) * 2, dropped=True) for config in slow)


def test_a_compile_that_takes_too_long_is_given_up(
    make_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job is ready without it once its time is over."""
    job, _ = make_job({GOOD: "compiles for ever"})
    job.prepare([GOOD, OTHER])
    assert not job.ready()
    monkeypatch.setattr("build_tools.tune.measure.COMPILE_LIMIT_S", -1.0)
    assert job.ready()
    answer = _measure(job, GOOD)[GOOD]
    assert isinstance(answer, Failure)
    assert answer.stage == "compile" and "took longer" in answer.reason


def test_first_launches_are_marked(make_job: Any) -> None:
    """The marker knows what is launched, and that it went well; what is banned never is."""
    marks: list[str] = []
    job, made = make_job(banned={text_of(OTHER)}, mark=marks.append)
    answers = _measure(job, GOOD, OTHER)
    assert marks == [text_of(samples.ATEN), "", text_of(GOOD), ""]
    assert answers[OTHER] == Failure(stage="launch", reason="it ended a process before")
    assert OTHER not in made


def test_a_broken_context_ends_the_process(make_job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error after which the device is dead is not taken for a candidate's alone."""
    job, _ = make_job({GOOD: "launch"})
    monkeypatch.setattr("build_tools.tune.measure.alive", lambda _device: False)
    with pytest.raises(DeadDeviceError, match="context is broken after"):
        _measure(job, GOOD)


def test_a_context_that_breaks_while_timing_ends_the_process(
    make_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that shows later than its launch is not taken for the problem's alone."""
    job, _ = make_job()

    def broken(*_args: Any, **_keywords: Any) -> Any:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(FakeWatch, "rounds", broken)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        _measure(job, GOOD)
    monkeypatch.setattr("build_tools.tune.measure.alive", lambda _device: False)
    with pytest.raises(DeadDeviceError, match="illegal memory access"):
        _measure(job, GOOD)


def test_every_check_has_fresh_inputs(make_job: Any) -> None:
    """The inputs of one check are not those of the next."""
    job, made = make_job()
    _measure(job, GOOD)
    seen = job._inputs.sets[0][0]["arg0_1"].clone()
    _measure(job, GOOD, final=True)
    assert not torch.equal(seen, job._inputs.sets[0][0]["arg0_1"])
    assert made[GOOD].loaded == 2


@pytest.mark.parametrize("inline", [False, True])
def test_the_hosts_pick(make_job: Any, inline: bool) -> None:
    """It is the fastest of its choices by these timings, or by its own benchmarker."""
    own = samples.space(PROBLEM).host
    times = {config: 20.0 + n for n, config in enumerate(own)}
    job, _ = make_job(times=times, inline=inline)
    answers = _measure(job, *own, GOOD)
    pick = job.host_pick(answers)
    assert pick.config == own[0]
    assert ("benchmarker" in pick.how) is inline
    some = {config: answers[config] for config in own[1:]}
    assert job.host_pick(some) is None  # the best of some may be far from the host's pick


def test_a_bench_leaves_the_environment_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it lives kernels go to a folder of its own, and have no line numbers."""
    monkeypatch.setenv("TRITON_CACHE_DIR", "/mine")
    monkeypatch.delenv("TRITON_DISABLE_LINE_INFO", raising=False)
    watch: Any = FakeWatch({})
    bench = GpuBench(torch.device("cpu"), Options(), watch)
    assert os.environ["TRITON_DISABLE_LINE_INFO"] == "1"
    assert Path(os.environ["TRITON_CACHE_DIR"]).is_relative_to(bench.folder)
    bench.close()
    assert os.environ["TRITON_CACHE_DIR"] == "/mine"
    assert "TRITON_DISABLE_LINE_INFO" not in os.environ
    assert not bench.folder.exists()


def test_a_closed_job_leaves_nothing(make_job: Any) -> None:
    """Files and the bench's knowledge of it are gone."""
    job, _ = make_job()
    _measure(job, GOOD)
    folder, bench = job._folder, job._bench
    job.close()
    assert not folder.exists() and bench.open_jobs == []
