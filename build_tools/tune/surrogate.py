"""Predicts candidates' times from those measured, as the model's error: a Gaussian process.

The logarithm of measured by modelled time is smooth in the logarithms of the parameters, a
kernel that is steep at 0 lets each candidate have a quirk of its own. Few hundred points:
everything is exact, on the CPU, and the same input gives the same output.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import torch

from inductor_tables.schema import Config

_NOISE: Final = 0.012
"""Relative error of a first evaluation."""

_LENGTHS: Final = (1.5, 3.0, 6.0, 12.0)
_OTHER_TEMPLATE: Final = 3.0
"""How far apart two candidates of different templates are, in doublings of a parameter."""

_WEIGHTS: Final = {"num_stages": 0.6, "GROUP_M": 0.35, "EPILOGUE_SUBTILE": 0.5}

Tensor = Any


class Surrogate:
    """What is known of a problem's candidates."""

    def __init__(
        self, known: Sequence[tuple[Config, float, float]], templates: Sequence[str]
    ) -> None:
        """Learn from (candidate, measured µs, modelled µs), at least one.

        ``templates`` are all that candidates may have.
        """
        configs = [config for config, _, _ in known]
        self._names = sorted({name for config in configs for name, _ in config.params})
        self._templates = sorted(templates)
        logs = torch.tensor([[m, e] for _, m, e in known], dtype=torch.float64).log()
        measured, modelled = logs[:, 0], logs[:, 1]
        self.best = float(measured.min())
        self._points = self._places(configs)
        self._center = float((measured - modelled).median())
        residual = measured - modelled - self._center
        # Far too slow ones need no exact prediction, and would set the scale.
        self._residual = residual.clamp(-1.5, 1.5)
        self._length, self._scale = self._fit()

    def improvement(
        self, configs: Sequence[Config], modelled: Sequence[float], count: int
    ) -> list[int]:
        """Return the places of the candidates to try next, best first.

        Each is the one of most expected improvement, given that those before it turn out as
        predicted.
        """
        places = self._places(configs)
        offsets = torch.tensor(modelled, dtype=torch.float64).log() + self._center
        factor = torch.linalg.cholesky(self._kernel(self._points, self._points, noise=True))
        across = self._kernel(self._points, places)
        weights = torch.cholesky_solve(self._residual[:, None], factor)[:, 0]
        # What turns out as predicted changes no prediction, only how sure the others are.
        predicted = offsets + across.T @ weights
        shrunk = torch.linalg.solve_triangular(factor, across, upper=False)
        variance = self._scale - (shrunk * shrunk).sum(0)
        chosen: list[int] = []
        best = self.best
        for _ in range(min(count, len(configs))):
            gain = _expected(best - predicted, variance.clamp_min(1e-8).sqrt())
            gain[chosen] = -1.0
            place = int(gain.argmax())
            chosen.append(place)
            best = min(best, float(predicted[place]))
            shared = self._kernel(places[place : place + 1], places)[0]
            shared = shared - shrunk[:, place] @ shrunk
            row = shared / (variance[place].clamp_min(0.0) + _NOISE**2).sqrt()
            shrunk = torch.cat([shrunk, row[None]])
            variance = variance - row * row
        return chosen

    def _fit(self) -> tuple[float, float]:
        """Choose the length and the variance under which what was measured is likeliest."""
        variance = max(float((self._residual**2).mean()), 1e-4)
        options = [(length, variance * f) for length in _LENGTHS for f in (0.5, 1.0, 2.0)]
        return max(options, key=lambda option: self._likelihood(*option))

    def _likelihood(self, length: float, scale: float) -> float:
        self._length, self._scale = length, scale
        factor = torch.linalg.cholesky(self._kernel(self._points, self._points, noise=True))
        weights = torch.cholesky_solve(self._residual[:, None], factor)[:, 0]
        return float(-0.5 * self._residual @ weights - factor.diagonal().log().sum())

    def _kernel(self, first: Tensor, second: Tensor, *, noise: bool = False) -> Tensor:
        distance = torch.cdist(first, second, p=1.0)
        kernel = self._scale * torch.exp(-distance / self._length)
        if noise:
            kernel = kernel + (_NOISE**2 + 1e-9) * torch.eye(len(first), dtype=torch.float64)
        return kernel

    def _places(self, configs: Sequence[Config]) -> Tensor:
        rows = []
        for config in configs:
            params = dict(config.params)
            row = [_place(name, params.get(name)) for name in self._names]
            # In the sum of differences two templates are twice this half apart.
            row += [_OTHER_TEMPLATE / 2 * (config.template_id == t) for t in self._templates]
            rows.append(row)
        return torch.tensor(rows, dtype=torch.float64)


def _place(name: str, value: Any) -> float:
    if type(value) is not int:
        return 0.0
    scaled = float(value) if name == "num_stages" else math.log2(max(value, 0.5))
    return _WEIGHTS.get(name, 1.0) * scaled


def _expected(gain: Tensor, deviation: Tensor) -> Tensor:
    """Return the expected improvement of normal variables of these means over 0."""
    z = gain / deviation
    density = torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    below = 0.5 * (1 + torch.erf(z / math.sqrt(2)))
    return gain * below + deviation * density
