"""The geometry of a roofline plot: where things are, in percent of its area; nothing is drawn."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from inductor_tables.analysis.records import Coverage, Gemm

_RADII = (3.0, 11.0)
_MARGIN = 1.5
"""How far the axes go beyond what they show, as a factor."""


@dataclass(frozen=True, kw_only=True)
class Tick:
    """A line of the grid: its place in percent and its text."""

    at: float
    text: str


@dataclass(frozen=True, kw_only=True)
class Roof:
    """What a device reaches with a dtype: by bandwidth from (x1, y1) to (x2, y2), then flat.

    Flat from the left edge on where the bandwidth is not known.
    """

    dtype: str
    tflops: float
    x1: float
    y1: float
    x2: float
    y2: float


@dataclass(frozen=True, kw_only=True)
class Point:
    """A GEMM: ``index`` in the coverage, place in percent, and radius in pixels.

    ``recorded`` points stand at the speed that was measured, the others on their roof.
    """

    index: int
    gemm: Gemm
    recorded: bool
    x: float
    y: float
    radius: float


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A roofline plot: x is FLOP per byte, y is TFLOP/s, both logarithmic, y from the top."""

    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    roofs: tuple[Roof, ...]
    points: tuple[Point, ...]


class _Axis:
    """A logarithmic axis over some positive numbers, in percent of its length."""

    def __init__(self, values: Sequence[float]) -> None:
        self.low, self.high = min(values) / _MARGIN, max(values) * _MARGIN

    def __call__(self, value: float) -> float:
        return 100 * math.log(value / self.low) / math.log(self.high / self.low)

    def ticks(self) -> Iterable[float]:
        """Yield round numbers: powers of ten, and where these are few, 2 and 5 times them."""
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)))
        for decade in decades:
            for factor in (1, 2, 5) if len(decades) < 5 else (1,):
                if self.low <= factor * 10.0**decade <= self.high:
                    yield factor * 10.0**decade


def intensity(gemm: Gemm) -> float:
    """Return FLOP per byte, 0 where nothing is moved."""
    return gemm.flops / gemm.bytes if gemm.bytes else 0.0


def tflops(gemm: Gemm) -> float:
    """Return the TFLOP/s of the recorded time, else of the roofline; 0 where it takes no time."""
    return gemm.flops / gemm.estimated_us / 1e6 if gemm.estimated_us else 0.0


def plot_of(coverage: Coverage) -> Plot | None:
    """Return the roofline plot of a coverage; None where no product computes anything."""
    shown = [
        (index, gemm)
        for index, gemm in enumerate(coverage.gemms)
        if intensity(gemm) > 0 and tflops(gemm) > 0
    ]
    if not shown:
        return None
    dtypes = {gemm.dtype for _, gemm in shown}
    peaks = {name: peak for name, peak in coverage.peak_tflops.items() if name in dtypes}
    gb_s = coverage.peak_gb_s
    ridges = [1000 * peak / gb_s for peak in peaks.values()] if gb_s else []
    x = _Axis([*(intensity(gemm) for _, gemm in shown), *ridges])
    y = _Axis([*(tflops(gemm) for _, gemm in shown), *peaks.values()])
    most = max(gemm.estimated_us * gemm.count for _, gemm in shown)
    points = [
        Point(
            index=index,
            gemm=gemm,
            recorded=gemm.time_us is not None,
            x=x(intensity(gemm)),
            y=100 - y(tflops(gemm)),
            radius=_radius(gemm.estimated_us * gemm.count / most),
        )
        for index, gemm in shown
    ]
    return Plot(
        x_ticks=tuple(Tick(at=x(value), text=f"{value:,g}") for value in x.ticks()),
        y_ticks=tuple(Tick(at=100 - y(value), text=f"{value:,g}") for value in y.ticks()),
        roofs=tuple(_roofs(peaks, gb_s, x, y)),
        points=tuple(sorted(points, key=lambda point: (-point.radius, point.index))),
    )


def _radius(share: float) -> float:
    """Return a radius for a share of the largest time: areas compare as the times do."""
    least, most = _RADII
    return max(least, most * math.sqrt(share))


def _roofs(peaks: Mapping[str, float], gb_s: float, x: _Axis, y: _Axis) -> Iterable[Roof]:
    foot = max(x.low, 1000 * y.low / gb_s) if gb_s else x.low  # where the slope enters the plot
    for dtype, peak in sorted(peaks.items(), key=lambda item: (item[1], item[0])):
        yield Roof(
            dtype=dtype,
            tflops=peak,
            x1=x(foot),
            y1=100 - y(foot * gb_s / 1000 if gb_s else peak),
            x2=x(1000 * peak / gb_s if gb_s else foot),
            y2=100 - y(peak),
        )
