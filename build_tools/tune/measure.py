"""Measures candidates on a GPU: rendered, compiled, checked against a reference, then timed."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED
from concurrent.futures import wait as wait_for
from pathlib import Path
from typing import Any, Final

import torch

import inductor_tables
from build_tools.tune import kernels
from build_tools.tune import reference as exact
from build_tools.tune.kernels import FAILURES, Kernel, Launch, kernel_of
from build_tools.tune.lowering import Lowered, Options, scalars_of
from build_tools.tune.records import (
    Answer,
    Answers,
    Ask,
    EntryText,
    Failure,
    HostPick,
    Marker,
    Stage,
    Timing,
    text_of,
    unmarked,
)
from build_tools.tune.space import Space
from build_tools.tune.timing import Captured, Stopwatch, alive
from inductor_tables.errors import DeadDeviceError
from inductor_tables.problems import Problem
from inductor_tables.schema import Config

log = logging.getLogger(__name__)

ERROR_FACTOR: Final = 2.0
"""How many times ATen's own error a candidate's may be."""

COMPILE_LIMIT_S: Final = 60.0
"""A candidate that compiles longer is given up."""

_HOPELESS: Final = 2.5
_HOPELESS_US: Final = 40.0
"""A first launch this many times slower than the best, and this many µs more (the CPU has its
share in them), is the last."""

_SLOW: Final = 0.3
_KEEP: Final = 0.15
"""Shares behind the best: of candidates dropped after two rounds, and of those kept loaded."""


class GpuBench:
    """Measures on one GPU of this process, and compiles on all of the host's cores.

    Attributes:
        spent: seconds by what they were spent on.
    """

    def __init__(
        self,
        device: torch.device,
        options: Options,
        stopwatch: Stopwatch,
        *,
        inline: bool = False,
        seed: int = 0,
        lower: Callable[..., Any] = Lowered,
        make_kernel: Callable[..., Kernel] = kernel_of,
    ) -> None:
        """Set a bench up; :func:`gpu_bench` sets the GPU and the workers up too.

        Args:
            device: the GPU.
            options: what problems do not say.
            stopwatch: what times.
            inline: have the host's own benchmarker say what the host would pick, which takes
                about 0.1 s for each of its choices; else the fastest of its choices stands
                for it, which is never slower.
            seed: of the order in rounds.
            lower: makes a lowered problem of (problem, device, options).
            make_kernel: begins to compile a (choice, lowered problem).
        """
        self.device, self.options, self.stopwatch, self.inline = device, options, stopwatch, inline
        self.lower, self.make_kernel = lower, make_kernel
        self.draw = random.Random(seed)  # noqa: S311 - the order of rounds is no secret
        self.open_jobs: list[GpuJob] = []
        self.spent: dict[str, float] = defaultdict(float)
        self.folder = Path(tempfile.mkdtemp(prefix="inductor_tables_tune_"))
        self._environment = {name: os.environ.get(name) for name in (*_CACHES, _NO_LINES)}
        for name in _CACHES:
            os.environ[name] = str(self.folder / name.lower())
        os.environ[_NO_LINES] = "1"

    @contextlib.contextmanager
    def clocked(self, what: str) -> Iterator[None]:
        """Count the time of a block."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.spent[what] += time.perf_counter() - begun

    def open(
        self, problem: Problem, banned: Collection[str] = (), mark: Marker = unmarked
    ) -> GpuJob:
        """Lower a problem."""
        job = GpuJob(self, problem, banned, mark)
        self.open_jobs.append(job)
        return job

    def wait(self, seconds: float) -> None:
        """Wait until a compile is done."""
        waiting = [
            future for job in self.open_jobs for future in job.pending() if not future.done()
        ]
        with self.clocked("waiting for compiles"):
            if waiting:
                wait_for(waiting, timeout=seconds, return_when=FIRST_COMPLETED)
            else:
                time.sleep(min(seconds, 0.001))

    def close(self) -> None:
        """End the workers and remove the files."""
        for job in list(self.open_jobs):
            job.close()
        kernels.stop_pool()
        for name, value in self._environment.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        shutil.rmtree(self.folder, ignore_errors=True)


_CACHES: Final = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")

_NO_LINES: Final = "TRITON_DISABLE_LINE_INFO"
"""Kernels without line numbers: a fifth less to compile, and the same instructions (of 67 that
were compared, two addmm tiles of one stage had two registers exchanged)."""


def gpu_bench(
    device: torch.device, options: Options, *, workers: int, inline: bool = False, seed: int = 0
) -> GpuBench:
    """Return a bench on a GPU, with worker processes that compile for it."""
    inductor_tables.disable()
    torch.cuda.set_device(device)
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # the cores are the workers'
    bench = GpuBench(device, options, Stopwatch(device), inline=inline, seed=seed)
    try:
        kernels.start_pool(workers)
    except BaseException:
        bench.close()
        raise
    return bench


class GpuJob:
    """One problem on a GPU."""

    def __init__(
        self, bench: GpuBench, problem: Problem, banned: Collection[str], mark: Marker
    ) -> None:
        self._bench, self._problem = bench, problem
        self._banned, self._mark = set(banned), mark
        with bench.clocked("lowering"):
            self._lowered = bench.lower(problem, bench.device, bench.options)
        self.space: Space = self._lowered.space
        self._folder = Path(tempfile.mkdtemp(dir=bench.folder, prefix="triton_"))
        self._kernels: dict[Config, Kernel | Failure] = {}
        self._begun: dict[Config, float] = {}
        self._rough_us: dict[Config, float] = {}
        self._inputs: _Inputs | None = None
        self._exact: torch.Tensor | None = None
        self._bound: exact.Error | None = None

    def prepare(self, candidates: Sequence[Config]) -> None:
        """Render candidates and send them to the workers."""
        with self._bench.clocked("rendering"):
            for config in candidates:
                if config not in self._kernels:
                    self._kernels[config] = self._begin(config)
                    self._begun[config] = time.monotonic()

    def ready(self) -> bool:
        """Whether every compile is done, or takes too long."""
        return not any(not future.done() for future in self.pending())

    def pending(self) -> list[Any]:
        """Return the compiles that are waited for."""
        late = time.monotonic() - COMPILE_LIMIT_S
        return [
            kernel.future
            for config, kernel in self._kernels.items()
            if isinstance(kernel, Kernel)
            and kernel.future is not None
            and self._begun[config] > late
        ]

    def measure(self, ask: Ask) -> Answers:
        """Check and time candidates.

        Raises:
            DeadDeviceError: a candidate broke the device's context, which no process survives.
        """
        try:
            answers = self._measured(ask)
        except RuntimeError as error:
            if not alive(self._bench.device):
                raise DeadDeviceError(f"the GPU's context is broken: {error}") from error
            raise
        self._exact = None
        self._unload_slow(answers)
        return answers

    def _measured(self, ask: Ask) -> Answers:
        with self._bench.stopwatch.running():
            with self._bench.clocked("inputs and references"):
                self._fresh_inputs()
            failed: dict[Config, Answer] = {}
            captured: dict[Config, Captured] = {}
            for config in ask.candidates:
                found = self._ready_to_time(config, ask)
                if isinstance(found, Captured):
                    captured[config] = found
                else:
                    failed[config] = found
            answers = {**failed, **self._time(captured, ask)}
            captured.clear()  # before what the graphs launch is unloaded
        return answers

    def host_pick(self, answers: Answers) -> HostPick | None:
        """Return the fastest of the host's choices, or what the host's benchmarker says.

        None where not all of them were tried: the best of some may be far from the host's pick.
        """
        timed = {
            config: answer.median_us
            for config in self.space.host
            if isinstance(answer := answers.get(config), Timing)
        }
        if not timed or not answers.keys() >= set(self.space.host):
            return None
        if self._bench.inline:
            with self._bench.stopwatch.running():
                return self._inline_pick(list(timed))
        best = min(timed, key=lambda config: (timed[config], config.order))
        return HostPick(config=best, how="the fastest of the host's choices by these timings")

    def profiled_us(self, config: Config) -> float:
        """Return a prepared candidate's kernel time by torch's profiler, gaps left out.

        Raises:
            RuntimeError: it cannot be launched.
        """
        kernel = self._kernels[config]
        if isinstance(kernel, Failure):
            raise RuntimeError(f"{kernel.stage}: {kernel.reason}")
        with self._bench.stopwatch.running():
            if self._inputs is None:
                self._inputs = _Inputs(self._lowered, self._bench)
            self._use_folder()
            kernel.load()
            launches = [kernel.bind(*pair) for pair in self._inputs.sets[:64]]
            for launch in launches:
                launch()
            torch.cuda.synchronize()
            activities = [torch.profiler.ProfilerActivity.CUDA]
            with torch.profiler.profile(activities=activities) as profile:
                for launch in launches:
                    launch()
                torch.cuda.synchronize()
        total = sum(event.self_device_time_total for event in profile.key_averages())
        return float(total) / len(launches)

    def entry(self, config: Config) -> EntryText:
        """Return a candidate as a dump has it."""
        found: EntryText = self._lowered.entry(config)
        return found

    def close(self) -> None:
        """Give tensors, kernels and files back."""
        for kernel in self._kernels.values():
            if isinstance(kernel, Kernel):
                kernel.unload()
        self._kernels.clear()
        self._inputs = self._exact = None
        self._lowered.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        if self in self._bench.open_jobs:
            self._bench.open_jobs.remove(self)

    def _begin(self, config: Config) -> Kernel | Failure:
        if text_of(config) in self._banned:
            return Failure(stage="launch", reason="it ended a process before")
        self._use_folder()
        try:
            return self._bench.make_kernel(self._lowered.render(config), self._lowered)
        except FAILURES as error:
            return _failure("render", error)

    def _use_folder(self) -> None:
        """Have kernels written to and loaded from a folder that goes with this job.

        The workers are sent the variable; it also says where their kernels are found.
        """
        os.environ["TRITON_CACHE_DIR"] = str(self._folder)

    def _fresh_inputs(self) -> None:
        """Draw new inputs for a check, and ATen's error on them."""
        if self._inputs is None:
            _make_room(self._bench.device)
            self._inputs = _Inputs(self._lowered, self._bench)
        tensors, out = self._inputs.sets[0]
        self._inputs.fill(tensors)
        op_name = self._problem.op_name
        dtype = exact.exact_dtype(self.space.shape.flops)
        self._exact = None  # before the next one is made
        self._exact = exact.reference(op_name, tensors, scalars_of(self._problem), dtype)
        self._bound = None
        if not out.dtype.is_floating_point:
            self._bound = exact.Error(total=0.0, largest=0.0)
        for config in self.space.aten:
            self.prepare([config])
            kernel = self._kernels[config]
            if self._bound is None and isinstance(kernel, Kernel):
                error = self._error(config, kernel)
                self._bound = error if isinstance(error, exact.Error) else None

    def _ready_to_time(self, config: Config, ask: Ask) -> Captured | Answer:
        """Load, check and capture one candidate."""
        kernel = self._kernels.get(config, Failure(stage="render", reason="not prepared"))
        if isinstance(kernel, Failure):
            return kernel
        if kernel.future is not None and not kernel.future.done():
            return self._out(config, "compile", f"took longer than {COMPILE_LIMIT_S:.0f} s")
        if self._bound is None:
            return Failure(stage="wrong", reason="ATen did not run: there is no error to allow")
        error = self._error(config, kernel)
        if isinstance(error, Failure):
            return error
        if not error.within(self._bound, ERROR_FACTOR):
            return self._out(config, "wrong", f"error {error}, ATen's is {self._bound}")
        with self._bench.clocked("capturing"):
            return self._capture(config, kernel, ask)

    def _error(self, config: Config, kernel: Kernel) -> exact.Error | Failure:
        """Launch once on the fresh inputs, into a poisoned output, and compare."""
        assert self._inputs is not None
        tensors, out = self._inputs.sets[0]
        try:
            with self._bench.clocked("loading"):
                self._use_folder()
                kernel.load()
        except FAILURES as error:
            return self._failed_launch(config, error, "compile")
        with self._bench.clocked("checking"):
            return self._launch_and_compare(config, kernel, tensors, out)

    def _launch_and_compare(
        self, config: Config, kernel: Kernel, tensors: exact.Tensors, out: torch.Tensor
    ) -> exact.Error | Failure:
        assert self._exact is not None
        try:
            if tuple(kernel.output.sizes) != tuple(out.shape) or (
                tuple(kernel.output.strides) != out.stride()
            ):
                return self._out(config, "render", "its result has another layout")
            exact.poison(out)
            self._mark(text_of(config))
            result = kernel.bind(tensors, out)()
            found = exact.error_of(out if not kernel.returns else _tensor(result), self._exact)
            self._mark("")
        except FAILURES as error:
            return self._failed_launch(config, error)
        return found

    def _capture(self, config: Config, kernel: Kernel, ask: Ask) -> Captured | Answer:
        assert self._inputs is not None
        watch = self._bench.stopwatch
        try:
            launches: list[Launch] = [kernel.bind(*pair) for pair in self._inputs.sets]
            if config not in self._rough_us:
                # One that returns its result is a Python function, of which the CPU's share is
                # many times the GPU's.
                rough_us = watch.graphed_us if kernel.returns else watch.once_us
                self._rough_us[config] = rough_us(launches[0])
            rough = self._rough_us[config]
            best = min(self._rough_us.values())
            if not ask.final and rough > max(_HOPELESS * best, best + _HOPELESS_US):
                return Timing(samples_us=(rough,), dropped=True)
            return watch.capture(launches, rough)
        except FAILURES as error:
            return self._failed_launch(config, error)

    def _time(self, captured: dict[Config, Captured], ask: Ask) -> dict[Config, Answer]:
        if not captured:
            return {}
        watch = self._bench.stopwatch
        keep = None if ask.final or len(captured) < 4 else _SLOW
        with self._bench.clocked("timing"):
            watch.warm(next(iter(captured.values())))
            samples = watch.rounds(captured, ask.rounds, self._bench.draw, keep_within=keep)
        return {
            config: Timing(samples_us=tuple(times), dropped=len(times) < ask.rounds)
            for config, times in samples.items()
        }

    def _inline_pick(self, choices: Sequence[Config]) -> HostPick | None:
        assert self._inputs is not None
        self._use_folder()
        tensors, out = self._inputs.sets[0]
        times: dict[Config, float] = {}
        for config in choices:
            kernel = self._kernels[config]
            if isinstance(kernel, Kernel):
                try:
                    times[config] = float(
                        kernel.choice.benchmark(*kernel.arguments(tensors), out=out)
                    )
                except FAILURES as error:
                    log.info("the host's benchmarker failed with %s: %s", config.plain, error)
        best = min(times, key=times.__getitem__, default=None)
        how = "the host's benchmarker on this GPU, its clocks warm"
        return None if best is None else HostPick(config=best, how=how)

    def _failed_launch(self, config: Config, error: Exception, stage: Stage = "launch") -> Failure:
        failure = _failure(stage, error)
        if not alive(self._bench.device):
            raise DeadDeviceError(
                f"the GPU's context is broken after {dict(config.plain)}: {failure.reason}"
            ) from error
        self._mark("")
        return self._out(config, failure.stage, failure.reason)

    def _out(self, config: Config, stage: Stage, reason: str) -> Failure:
        """Note that a candidate is never to be launched again."""
        failure = Failure(stage=stage, reason=reason)
        kernel = self._kernels.get(config)
        if isinstance(kernel, Kernel):
            kernel.unload()
        self._kernels[config] = failure
        return failure

    def _unload_slow(self, answers: Answers) -> None:
        """Unload what will not be asked for again, unless it is ATen's."""
        times = {c: a.median_us for c, a in answers.items() if isinstance(a, Timing)}
        limit = min(times.values(), default=0.0) * (1 + _KEEP)
        own = set(self.space.host) if self._bench.inline else set(self.space.aten)
        for config, us in times.items():
            kernel = self._kernels.get(config)
            if us > limit and config not in own and isinstance(kernel, Kernel):
                kernel.unload()
                del self._kernels[config]


class _Inputs:
    """Sets of inputs and outputs, as many as make every launch find a cold cache."""

    def __init__(self, lowered: Lowered, bench: GpuBench) -> None:
        shape = lowered.shape
        self._positive = ("arg2_1", "arg3_1") if shape.op_name == "scaled_mm" else ()
        self.sets: list[tuple[dict[str, torch.Tensor], torch.Tensor]] = []
        for _ in range(bench.stopwatch.copies(shape.bytes)):
            tensors = {n: exact.empty(k, bench.device) for n, k in lowered.tensors.items()}
            self.fill(tensors)
            dtype = exact.result_dtype(shape.op_name, tensors, bench.options.result)
            self.sets.append((tensors, torch.empty(_result_size(shape, tensors), dtype=dtype,
                                                   device=bench.device)))  # fmt: skip

    def fill(self, tensors: dict[str, torch.Tensor]) -> None:
        """Draw new numbers."""
        for name, tensor in tensors.items():
            exact.fill(tensor, positive=name in self._positive)


def _make_room(device: torch.device) -> None:
    """Give memory that torch holds on to back, once that is half of the device's."""
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        if torch.cuda.memory_reserved(device) > total / 2:
            torch.cuda.empty_cache()


def _result_size(shape: Any, tensors: dict[str, torch.Tensor]) -> tuple[int, ...]:
    batched = max(tensor.dim() for tensor in tensors.values()) > 2
    return (shape.batch, shape.m, shape.n) if batched else (shape.m, shape.n)


def _tensor(result: torch.Tensor | None) -> torch.Tensor:
    if result is None:
        raise RuntimeError("the launch returned no result")
    return result


def _failure(stage: Stage, error: Exception) -> Failure:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    telling = next((line for line in reversed(lines) if "Error" in line or ":" in line), None)
    text = telling or (lines[0] if lines else "")
    return Failure(stage=stage, reason=f"{type(error).__name__}: {text}"[:300])
