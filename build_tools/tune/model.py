"""A rough model of a tiled product's time, good for ranking candidates that nobody has timed.

It is no measurement: it only decides what is tried first. Waves of tiles over the SMs, the
matrix unit's rate, and the bytes that can be in flight at once (Little's law) make the time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from build_tools.tune.shapes import Shape
from inductor_tables.schema import Config

_WGMMA = {16: 0.35, 32: 0.5, 64: 0.7, 128: 0.85, 256: 0.9}
"""Share of the matrix unit's rate that a warp group reaches, by columns of the tile."""


@dataclass(frozen=True, kw_only=True)
class Chip:
    """What the model knows of a device; clocks are SM clocks.

    Attributes:
        sms: multiprocessors.
        flops: of the matrix units of one SM in a clock, for 16-bit operands.
        memory_bytes: of device memory in a clock, all SMs together.
        sm_bytes: that one SM can load in a clock at most.
        latency: clocks from a load to its data.
        shared_bytes: shared memory of one SM.
        warp_groups: whether tiles of 64 rows and more use a faster matrix unit.
        mhz: SM clock.
    """

    sms: int = 132
    flops: int = 4096
    memory_bytes: int = 2300
    sm_bytes: int = 60
    latency: int = 900
    shared_bytes: int = 232_448
    warp_groups: bool = True
    mhz: int = 1900


def estimate_us(shape: Shape, config: Config, chip: Chip) -> float:
    """Return a rough time of a tiled candidate in µs; NaN for one without tiles."""
    params = dict(config.params)
    if "BLOCK_M" not in params:
        return math.nan
    tile = _Tile(shape, params, chip)
    tiles = shape.batch * _ceil(shape.m, tile.m) * _ceil(shape.n, tile.n)
    per_sm = _ceil(tiles, chip.sms)
    resident = max(min(tile.occupancy, per_sm), 1)
    flight = resident * max(tile.stages - 1, 0.5) * tile.bytes
    rate = min(flight / chip.latency, chip.sm_bytes)
    loading = per_sm * tile.steps * tile.bytes / rate
    computing = per_sm * tile.steps * tile.clocks
    stalls = 0.3 * min(loading, computing) / resident
    clocks = max(loading, computing, shape.bytes / chip.memory_bytes) + stalls
    ends = 2500 + per_sm / resident * tile.m * tile.n * shape.result_bytes / chip.sm_bytes
    return float(clocks + ends) / chip.mhz


class _Tile:
    """One tile of a candidate: sizes, steps along K, bytes and clocks of a step."""

    def __init__(self, shape: Shape, params: Mapping[str, Any], chip: Chip) -> None:
        self.m, self.n, k = params["BLOCK_M"], params["BLOCK_N"], params["BLOCK_K"]
        self.stages, warps = params["num_stages"], params["num_warps"]
        self.steps = _ceil(shape.k, k)
        self.bytes = (self.m + self.n) * k * shape.element_bytes
        grouped = chip.warp_groups and self.m >= 64 and warps % 4 == 0
        share = _WGMMA.get(self.n, 0.9) if grouped else 0.5 * min(1.0, warps / 4)
        flops = chip.flops * 2 / max(shape.element_bytes, 1)
        self.clocks = 2 * self.m * self.n * k / (flops * share) + 30
        shared = max(self.stages - (not grouped), 1) * self.bytes
        registers = self.m * self.n // (32 * warps) + 64
        self.occupancy = max(
            1,
            min(
                chip.shared_bytes // max(shared, 1),
                65_536 // (registers * 32 * warps),
                64 // warps,
                16,
            ),
        )


def _ceil(number: int, divisor: int) -> int:
    return -(-number // divisor)
