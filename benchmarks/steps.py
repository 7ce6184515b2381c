"""Times the steps of several forms of one model, in turns: by graph replay, and by the clock."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

Steps = Mapping[str, Callable[[], Any]]
Times = dict[str, list[float]]
"""µs a step by form, one a round; the same place is the same round."""

_CLOCKED_S: Final = 0.03
_WARM: Final = 3


def graphed(steps: Steps, device: torch.device, rounds: int) -> Times:
    """Return GPU times: each form's steps are captured in a CUDA graph of 1 ms or more.

    The graphs are replayed until the clocks are up, then once a round in shuffled order.

    Raises:
        RuntimeError: a step cannot be captured.
    """
    from build_tools.tune.timing import Stopwatch

    watch = Stopwatch(device)
    with watch.running():
        captured = {}
        for name, step in steps.items():
            for _ in range(_WARM):
                step()
            captured[name] = watch.capture([step], watch.once_us(step))
        watch.warm(next(iter(captured.values())))
        return watch.rounds(captured, rounds, random.Random(0))


def clocked(steps: Steps, rounds: int, wait: Callable[[], None]) -> Times:
    """Return wall times of steps called from Python, many behind each other, then ``wait``."""
    counts = {}
    for name, step in steps.items():
        for _ in range(_WARM):
            step()
        counts[name] = max(int(_CLOCKED_S / _seconds(step, 3, wait)), 3)
    times: Times = {name: [] for name in steps}
    order, draw = list(steps), random.Random(0)
    for _ in range(rounds):
        draw.shuffle(order)
        for name in order:
            times[name].append(1e6 * _seconds(steps[name], counts[name], wait))
    return times


def _seconds(step: Callable[[], Any], count: int, wait: Callable[[], None]) -> float:
    wait()
    begin = time.perf_counter()
    for _ in range(count):
        step()
    wait()
    return (time.perf_counter() - begin) / count


def described(times: Mapping[str, Sequence[float]], against: str) -> dict[str, Any]:
    """Return median and spread in µs of each form, and its ratio to one of them with the noise."""
    from build_tools.tune.records import spread
    from build_tools.tune.verdict import compare

    return {
        name: {
            "us": statistics.median(found),
            "spread_us": spread(found),
            "ratio": compare(found, times[against]).ratio,
            "noise": compare(found, times[against]).noise,
        }
        for name, found in times.items()
    }
