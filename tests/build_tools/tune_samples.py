"""Made-up problems, and made-up GPUs that time their candidates by a formula."""

from __future__ import annotations

import hashlib
import math
import random
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from build_tools.tune.records import (
    Answer,
    Ask,
    EntryText,
    Failure,
    HostPick,
    Marker,
    Timing,
    text_of,
    unmarked,
)
from build_tools.tune.shapes import Shape, shape_of
from build_tools.tune.space import Space, candidate
from inductor_tables import limits
from inductor_tables.errors import DeadDeviceError, SkippedProblemError
from inductor_tables.keys import ParsedKey, TensorKey
from inductor_tables.problems import Problem
from inductor_tables.schema import Config

ARCH = "NVIDIA H200"
HASH = "ab" * 32

SHAPES = (
    (1, 4096, 4096), (1, 28672, 8192), (4, 1024, 4096), (8, 28672, 4096), (16, 4096, 4096),
    (16, 1024, 4096), (16, 6144, 2048), (32, 2048, 5632), (64, 4096, 14336), (64, 14336, 4096),
    (64, 1024, 8192), (128, 3072, 768), (128, 768, 3072), (256, 4096, 4096), (256, 1024, 4096),
    (512, 2048, 2048), (512, 768, 768), (1024, 5120, 5120), (2048, 4096, 4096), (197, 1024, 4096),
)  # fmt: skip
"""Twenty of (M, N, K) as models have them."""

_HOST = (
    (32, 32, 16, 1, 2), (32, 32, 128, 2, 4), (32, 64, 32, 5, 8), (64, 32, 32, 5, 8),
    (64, 32, 128, 5, 4), (64, 64, 16, 2, 4), (64, 64, 32, 2, 4), (64, 64, 64, 3, 8),
    (64, 64, 128, 5, 4), (64, 128, 32, 3, 4), (64, 128, 32, 4, 8), (64, 128, 64, 3, 4),
    (64, 128, 128, 4, 4), (128, 64, 32, 3, 4), (128, 64, 32, 4, 8), (128, 128, 32, 2, 8),
    (128, 128, 32, 3, 4), (128, 128, 64, 3, 4), (128, 128, 64, 5, 8), (128, 128, 128, 4, 8),
)  # fmt: skip


def problem(m: int, n: int, k: int, op_name: str = "mm", dtype: str = "bfloat16") -> Problem:
    """Return a product with the second matrix transposed, as of a linear layer."""
    first = TensorKey(dtype=dtype, size=(m, k), stride=(k, 1))
    second = TensorKey(dtype=dtype, size=(k, n), stride=(1, k))
    inputs: tuple[TensorKey, ...] = (first, second)
    scalars: tuple[tuple[str, str], ...] = ()
    if op_name == "addmm":
        inputs = (TensorKey(dtype=dtype, size=(m, n), stride=(0, 1)), *inputs)
        scalars = (("alpha", "1"), ("beta", "1"))
    return Problem(
        op_name=op_name, inputs=inputs, scalars=scalars, count=1, origins=("a made-up model",)
    )


def mm(m: int, n: int, k: int, stages: int, warps: int, group: int = 8) -> Config:  # noqa: PLR0917
    """Return a candidate of the plain template."""
    return candidate(
        "triton::mm",
        HASH,
        {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "num_stages": stages, "num_warps": warps,
         "GROUP_M": group},
    )  # fmt: skip


ATEN = candidate("aten::mm", None, {})

_DEVICE = limits.Device(
    shared_memory=232_448,
    threads=1024,
    warp_size=32,
    capability=(9, 0),
    hip=False,
    tma_stores_in_loop=False,
    scratch_per_thread=128,
    retries_unpipelined=lambda: False,
)


def space(problem: Problem) -> Space:
    """Return a problem's space on a device like an H200, with the host's default choices."""
    shape = shape_of(problem)
    product = limits.Product(
        element_size=shape.element_bytes,
        output_size=shape.result_bytes,
        divides_k=lambda divisor: shape.k % divisor == 0,
        less_than_k=lambda bound: bound < shape.k,
        aligned=lambda: True,
        no_vector=lambda: True,
    )

    def unfit(config: Config) -> str | None:
        return limits.problem(config.template_id, dict(config.params), product, _DEVICE)

    return Space(
        shape=shape,
        aten=(ATEN,),
        host=(ATEN, *dict.fromkeys(_host_choice(shape, *row) for row in _HOST)),
        templates={"triton::mm": mm(64, 64, 64, 3, 4)},
        problem=unfit,
    )


def _host_choice(shape: Shape, *row: int) -> Config:
    """Scale a tile down to the problem, as the host does."""
    m, n, k, stages, warps = row
    m, n = (min(a, max(16, 1 << (b - 1).bit_length())) for a, b in ((m, shape.m), (n, shape.n)))
    return mm(m, n, k, stages, max(1, min(warps, m * n // 256)))


class Surface:
    """True times of a problem's candidates on a made-up device.

    Waves of tiles, a pipeline that hides latency by the stages, a matrix unit that wants
    64 rows, occupancy by shared memory and registers, second-level cache reuse by the order
    of tiles; each problem has constants of its own and each candidate a quirk of its own.
    """

    def __init__(self, shape: Shape, seed: int = 0, quirk: float = 0.02) -> None:
        draw = random.Random(f"{seed}/{shape}")
        self._shape, self._seed, self._quirk = shape, seed, quirk
        self._latency = draw.uniform(450, 900)
        self._sync = draw.uniform(20, 90)
        self._launch = draw.uniform(2500, 5000)
        self._small = draw.uniform(0.25, 0.55)
        self._grouped = draw.uniform(0.7, 0.95)
        self._reuse = draw.uniform(0.0, 0.25)
        self._bank = {k: draw.uniform(1.0, 1.12) for k in (16, 32, 64, 128, 256, 512)}
        self._aten = draw.uniform(0.97, 1.6)

    def true_us(self, config: Config, best: float | None = None) -> float:
        """Return the time in µs; ATen's is a multiple of a fair configuration's."""
        params = dict(config.params)
        if "BLOCK_M" not in params:
            fair = mm(min(128, max(16, self._shape.m)), 64, 64, 4, 4)
            return self._aten * self.true_us(fair)
        return self._clocks(params) / 1.8e3 * self._quirk_of(config)

    def _quirk_of(self, config: Config) -> float:
        """Return a factor that hangs on the tile most, less on the rest, little on all at once."""
        params: dict[str, Any] = dict(config.params)
        tile = [params[name] for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K")]
        rest = [params[name] for name in ("num_stages", "num_warps")]
        parts = ((tile, 1.0), (rest, 0.7), ([*tile, *rest, params["GROUP_M"]], 0.25))
        return math.exp(math.fsum(self._quirk * scale * self._draw(part) for part, scale in parts))

    def _draw(self, part: list[Any]) -> float:
        digest = hashlib.sha256(f"{self._seed}{self._shape}{part}".encode()).digest()
        return random.Random(digest).gauss(0, 1)

    def _clocks(self, params: Mapping[str, Any]) -> float:
        shape = self._shape
        m, n, k = params["BLOCK_M"], params["BLOCK_N"], params["BLOCK_K"]
        stages, warps = params["num_stages"], params["num_warps"]
        rows, columns, steps = -(-shape.m // m), -(-shape.n // n), -(-shape.k // k)
        step_bytes = (m + n) * k * shape.element_bytes
        grouped = m >= 64 and warps >= 4
        share = self._grouped * min(1.0, 0.45 + n / 256) if grouped else self._small
        share *= 1.0 if warps >= 4 or m * n <= 1024 * warps else 0.6
        step_clocks = 2.0 * m * n * k / (4096 * share) * self._bank[k] + self._sync
        registers = m * n / (32 * warps) + 48 + 8 * stages
        resident = max(1, min(
            int(227_000 / max(1, (stages - (not grouped)) * step_bytes)),
            int(65_536 / (32 * warps * registers)), 16, 64 // warps,
        ))  # fmt: skip
        waves = -(-rows * columns // (132 * resident))
        alive = min(resident, -(-rows * columns // 132))
        exposed = max(0.0, self._latency / max(stages - 1, 0.6) - step_clocks * alive)
        rate = 45 * (1 + 0.5 * (alive > 1))
        per_step = max(step_clocks * alive, step_bytes * alive / rate, (step_clocks + exposed))
        spill = 1.0 if registers < 250 else 3.0
        reuse = 1 + self._reuse * abs(math.log2(params["GROUP_M"] / 8)) * (rows > 8)
        floor = shape.bytes / 2300 * reuse
        ends = self._launch + waves * (self._latency + m * n * shape.result_bytes / 40)
        return float(max(waves * steps * per_step * spill, floor) + 0.25 * floor + ends)


@dataclass
class FakeJob:
    """Times the candidates of a problem by a surface, with noise and now and then an outlier."""

    problem: Problem
    seed: int = 0
    noise: float = 0.012
    broken: Mapping[Config, Failure] = field(default_factory=dict)
    asks: list[Ask] = field(default_factory=list)
    closed: bool = False
    prepared: set[Config] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.space = space(self.problem)
        self.surface = Surface(self.space.shape, self.seed)
        self._draw = random.Random(f"{self.seed} noise")

    def prepare(self, candidates: Sequence[Config]) -> None:
        """Note them."""
        self.prepared.update(candidates)

    def ready(self) -> bool:
        """All is compiled at once."""
        return True

    def measure(self, ask: Ask) -> dict[Config, Answer]:
        """Time the candidates in rounds."""
        assert self.prepared.issuperset(ask.candidates)
        self.asks.append(ask)
        return {config: self._answer(config, ask.rounds) for config in ask.candidates}

    def _answer(self, config: Config, rounds: int) -> Answer:
        if config in self.broken:
            return self.broken[config]
        true = self.surface.true_us(config)
        draw = self._draw
        samples = [
            true * math.exp(draw.gauss(0, self.noise)) * (1.6 if draw.random() < 0.02 else 1.0)
            for _ in range(rounds)
        ]
        return Timing(samples_us=tuple(samples))

    def host_pick(self, answers: Mapping[Config, Answer]) -> HostPick | None:
        """Take the fastest of the host's own, once all were tried."""
        if not answers.keys() >= set(self.space.host):
            return None
        timed = [
            (a.median_us, c.order, c)
            for c in self.space.host
            if isinstance(a := answers.get(c), Timing)
        ]
        return HostPick(config=min(timed)[2], how="fastest of its own") if timed else None

    def entry(self, config: Config) -> EntryText:
        """Return what a dump has."""
        parsed = ParsedKey(
            device=ARCH,
            inputs=self.problem.inputs,
            scalars=self.problem.scalars,
            op_name=self.problem.op_name,
        )
        return EntryText(key=str(parsed), plain=config.plain)

    def close(self) -> None:
        """Note it."""
        self.closed = True


@dataclass
class FakeBench:
    """Opens fake jobs; may be told of what to refuse, to break on, and how long to take."""

    skipped: Mapping[str, str] = field(default_factory=dict)
    crashing: Mapping[str, Exception] = field(default_factory=dict)
    deadly: Config | None = None
    seconds: float = 0.0
    jobs: list[FakeJob] = field(default_factory=list)
    banned: list[Collection[str]] = field(default_factory=list)

    def open(
        self, problem: Problem, banned: Collection[str] = (), mark: Marker = unmarked
    ) -> FakeJob:
        """Open a job; ops of some names are refused, or fail when they are measured."""
        if problem.op_name in self.skipped:
            raise SkippedProblemError(self.skipped[problem.op_name])
        self.banned.append(banned)
        job = _BenchJob(problem, bench=self, mark=mark, gone=frozenset(banned))
        self.jobs.append(job)
        return job

    def wait(self, seconds: float) -> None:
        """Do not wait long."""
        time.sleep(min(seconds, 0.001))


@dataclass
class _BenchJob(FakeJob):
    bench: FakeBench = field(default_factory=FakeBench)
    mark: Marker = unmarked
    gone: frozenset[str] = frozenset()

    def measure(self, ask: Ask) -> dict[Config, Answer]:
        """Measure, or do what the bench is told to."""
        time.sleep(self.bench.seconds)
        if self.problem.op_name in self.bench.crashing:
            raise self.bench.crashing[self.problem.op_name]
        for config in ask.candidates:
            if config == self.bench.deadly and text_of(config) not in self.gone:
                self.mark(text_of(config))
                raise DeadDeviceError("the GPU's context is broken")
        return super().measure(ask)


PROVENANCE = {
    "torch": "2.13.0", "triton": "3.7.1", "cuda": "13.0", "hip": None, "driver": "580.0",
    "device": "NVIDIA H200", "arch": ARCH, "sm_count": 132, "clocks": None,
    "date": "2026-12-01T00:00:00+00:00",
}  # fmt: skip
