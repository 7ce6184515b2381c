"""Times launches on the GPU: graphs of many launches, replayed in shuffled rounds.

A launch's time is a graph's by its launches, so that what the CPU does counts for nothing;
each launch has inputs of its own until the second-level cache must have forgotten the
first's. Everything runs on one stream.
"""

from __future__ import annotations

import contextlib
import gc
import random
import statistics
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import torch

_GRAPH_US: Final = 1000.0
"""A graph's time in µs is to be at least this, for the little that surrounds it not to count."""

_MOST_LAUNCHES: Final = 1024
_ROUGH_LAUNCHES: Final = 4
_L2_TIMES: Final = 2.0
"""By how much the inputs of one graph exceed the second-level cache."""

_MOST_COPY_BYTES: Final = 8 * 2**30
_STEADY: Final = 0.01
_WARM_US: Final = (10_000.0, 400_000.0)

_K = TypeVar("_K", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class Captured:
    """A graph of launches that can be replayed."""

    graph: Any
    launches: int


class Stopwatch:
    """Times launches on one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: Any = torch.cuda.Stream(device)
        self._events: list[tuple[Any, Any]] = []
        properties = torch.cuda.get_device_properties(device)
        self._cache_bytes = int(getattr(properties, "L2_cache_size", 0)) or 64 * 2**20

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Have all work go to this stopwatch's stream; bind launches in here too.

        No garbage is collected meanwhile: it takes time, and a kernel that is unloaded spoils
        a capture.
        """
        collecting = gc.isenabled()
        gc.disable()
        try:
            with torch.cuda.device(self.device), torch.cuda.stream(self._stream), torch.no_grad():
                yield
        finally:
            if collecting:
                gc.enable()

    def copies(self, moved_bytes: int) -> int:
        """Return how many sets of tensors make every launch find a cold cache."""
        wanted = -(-int(_L2_TIMES * self._cache_bytes) // max(moved_bytes, 1))
        room = max(_MOST_COPY_BYTES // max(moved_bytes, 1), 1)
        return min(max(wanted, 2), room, _MOST_LAUNCHES)

    def once_us(self, launch: Callable[[], object]) -> float:
        """Return a rough time of a launch that was launched before, the CPU's share in it.

        Raises:
            RuntimeError: the launch failed.
        """
        return self._elapsed_us(launch, 2) / 2

    def graphed_us(self, launch: Callable[[], object]) -> float:
        """Return a rough time of a launch without the CPU's share in it.

        Raises:
            RuntimeError: the launch failed or cannot be captured.
        """
        captured = self._captured([launch], _ROUGH_LAUNCHES)
        captured.graph.replay()
        return self._elapsed_us(captured.graph.replay, 1) / captured.launches

    def capture(self, launches: Sequence[Callable[[], object]], rough_us: float) -> Captured:
        """Capture launches, as many times over as make the graph long enough to be timed.

        Raises:
            RuntimeError: a launch cannot be captured.
        """
        wanted = int(_GRAPH_US / max(rough_us, 1.0)) + 1
        count = min(max(len(launches), wanted), _MOST_LAUNCHES)
        count = -(-count // len(launches)) * len(launches)  # whole turns: equal for all
        return self._captured(launches, count)

    def _captured(self, launches: Sequence[Callable[[], object]], count: int) -> Captured:
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for number in range(count):
                launches[number % len(launches)]()
        finally:
            graph.capture_end()
        return Captured(graph=graph, launches=count)

    def warm(self, captured: Captured) -> None:
        """Replay until the clocks are up: until the time no longer changes."""
        least, most = _WARM_US
        spent, before = 0.0, 0.0
        while spent < most:
            captured.graph.replay()
            now = self._elapsed_us(captured.graph.replay, 2)
            spent += 1.5 * now
            if spent >= least and abs(now - before) <= _STEADY * now:
                return
            before = now

    def _elapsed_us(self, work: Callable[[], object], times: int) -> float:
        start, end = self._event_pairs(1)[0]
        start.record()
        for _ in range(times):
            work()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1000.0

    def rounds(
        self,
        captured: Mapping[_K, Captured],
        rounds: int,
        draw: random.Random,
        *,
        keep_within: float | None = None,
    ) -> dict[_K, list[float]]:
        """Time all graphs once a round, in shuffled order.

        With ``keep_within`` those whose median after two rounds is more than that share
        behind the best are timed no more.

        Returns:
            µs a launch, by round.
        """
        samples: dict[_K, list[float]] = {key: [] for key in captured}
        running = list(captured)
        for number in range(rounds):
            draw.shuffle(running)
            for key, us in zip(running, self._round([captured[k] for k in running]), strict=True):
                samples[key].append(us)
            if keep_within is not None and number == 1:
                medians = {key: statistics.median(samples[key]) for key in running}
                limit = min(medians.values()) * (1 + keep_within)
                running = [key for key in running if medians[key] <= limit]
        return samples

    def _round(self, graphs: Sequence[Captured]) -> list[float]:
        pairs = self._event_pairs(len(graphs))
        graphs[-1].graph.replay()  # while it runs the CPU gets ahead, and stays ahead
        for captured, (start, end) in zip(graphs, pairs, strict=True):
            start.record()
            captured.graph.replay()
            end.record()
        pairs[-1][1].synchronize()
        return [
            float(start.elapsed_time(end)) * 1000.0 / captured.launches
            for captured, (start, end) in zip(graphs, pairs, strict=True)
        ]

    def _event_pairs(self, count: int) -> list[tuple[Any, Any]]:
        while len(self._events) < count:
            made = tuple(torch.cuda.Event(enable_timing=True) for _ in range(2))
            self._events.append((made[0], made[1]))
        return self._events[:count]


def alive(device: torch.device) -> bool:
    """Whether the device still works after an error."""
    try:
        torch.zeros(1, device=device).add_(1)
        torch.cuda.synchronize(device)
    except RuntimeError:
        return False
    return True
