"""What may be tried for a problem: the host's own choices, and what its templates allow.

A candidate is a :class:`Config` that holds tuning parameters alone, so that the host's
configurations and ours compare equal where they are the same kernel.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from build_tools.tune.shapes import Shape
from inductor_tables.parameters import TUNING
from inductor_tables.schema import Config, ParamValue

_POWERS: Final = (16, 32, 64, 128, 256)
_CUDA: Final[Mapping[str, tuple[int, ...]]] = {
    "BLOCK_M": _POWERS,
    "BLOCK_N": _POWERS,
    "BLOCK_K": (*_POWERS, 512),
    "num_stages": (1, 2, 3, 4, 5, 6, 7),
    "num_warps": (1, 2, 4, 8),
    "GROUP_M": (1, 2, 4, 8, 16),
    "EPILOGUE_SUBTILE": (1, 2, 4),
}
_HIP: Final[Mapping[str, tuple[int, ...]]] = {
    **_CUDA,
    "num_stages": (1, 2, 3),
    "num_warps": (1, 2, 4, 8, 16),
    "matrix_instr_nonkdim": (0, 16, 32),
    "waves_per_eu": (0, 1, 2, 4),
    "kpack": (1, 2),
}
_ACCUMULATORS: Final = 128
"""32-bit accumulators of a thread at most: with more the kernel spills, and compiles long."""

_ONE_GROUP: Final = 8
"""``GROUP_M`` of the host's configurations for CUDA."""

Problem = Callable[[Config], str | None]
"""Why the device cannot run a candidate, None if it can."""


def candidate(template_id: str, template_hash: str | None, params: Mapping[str, Any]) -> Config:
    """Return the candidate that a choice with these parameters is."""
    chosen = {name: value for name, value in params.items() if name in TUNING}
    return Config(
        template_id=template_id, template_hash=template_hash, params=tuple(sorted(chosen.items()))
    )


@dataclass(frozen=True, kw_only=True)
class Space:
    """The candidates of one problem.

    Attributes:
        shape: the problem.
        aten: the choices that are no templates.
        host: all choices of the host's default space, ``aten`` among them.
        extended: further choices of the host, behind settings that a user may not have on.
        templates: template id → a candidate whose other parameters may be varied.
        problem: why the device cannot run a candidate; no compile is spent on such.
        hip: whether the device is an AMD GPU.
        warp_size: threads of a warp.
    """

    shape: Shape
    aten: tuple[Config, ...]
    host: tuple[Config, ...]
    extended: tuple[Config, ...] = ()
    templates: Mapping[str, Config] = field(default_factory=dict)
    problem: Problem
    hip: bool = False
    warp_size: int = 32

    def domain(self, template_id: str) -> dict[str, tuple[int, ...]]:
        """Return the values that each parameter of a template may take."""
        values = _HIP if self.hip else _CUDA
        known = dict(self.templates[template_id].params)
        return {n: values[n] for n in values if type(known.get(n)) is int}

    def with_params(
        self, template_id: str, params: Mapping[str, ParamValue], *, worthwhile: bool = True
    ) -> Config | None:
        """Return a template's candidate with some parameters changed, None if it is not legal.

        ``worthwhile``: None for those that run and cannot win, too.
        """
        base = self.templates.get(template_id)
        if base is None:
            return None
        known = dict(base.params)
        changed: dict[str, Any] = dict(known)
        changed.update((name, value) for name, value in params.items() if name in known)
        if "BLOCK_M" not in changed:
            return None
        if "GROUP_M" in changed:
            changed["GROUP_M"] = _group(changed["GROUP_M"], self._rows(changed))
        if worthwhile and self._wasteful(changed):  # the cheaper question first
            return None
        made = candidate(template_id, base.template_hash, changed)
        return made if self.problem(made) is None else None

    def moves(self, config: Config) -> Iterator[Config]:
        """Yield the legal candidates one step away, then those two coupled steps away."""
        if config.template_id not in self.templates:
            return
        steps = {name: list(self._steps(config, name)) for name in self.domain(config.template_id)}
        seen = {config}
        single = [change for changes in steps.values() for change in changes]
        coupled = [
            {**one, **other}
            for first, second in itertools.combinations(steps, 2)
            for one in steps[first]
            for other in steps[second]
        ]
        for change in [*single, *coupled]:
            made = self.with_params(config.template_id, {**dict(config.params), **change})
            if made is not None and made not in seen:
                seen.add(made)
                yield made

    def everything(self, fixed: Mapping[str, int] | None = None) -> Iterator[Config]:
        """Yield every legal candidate of every template; ``fixed`` parameters do not vary."""
        seen: set[Config] = set()
        for template_id in sorted(self.templates):
            domain = self.domain(template_id)
            domain.update({n: (v,) for n, v in (fixed or {}).items() if n in domain})
            for values in itertools.product(*domain.values()):
                made = self.with_params(template_id, dict(zip(domain, values, strict=True)))
                if made is not None and made not in seen:
                    seen.add(made)
                    yield made

    def transfer(self, configs: Sequence[Config], *, worthwhile: bool = True) -> list[Config]:
        """Return another problem's candidates as this one can have them, no duplicates.

        ``worthwhile`` as in :meth:`with_params`.
        """
        found: dict[Config, None] = {}
        for config in configs:
            if config in self.host or config in self.extended:
                found[config] = None
            elif config.template_id in self.templates:
                made = self.with_params(
                    config.template_id, dict(config.params), worthwhile=worthwhile
                )
                if made is not None:
                    found[made] = None
        return list(found)

    def _steps(self, config: Config, name: str) -> Iterator[dict[str, int]]:
        values = self.domain(config.template_id)[name]
        params = dict(config.params)
        now = params[name]
        if name == "GROUP_M":
            values = tuple(sorted({_group(value, self._rows(params)) for value in values}))
        if now not in values:
            near = sorted(values, key=lambda value: abs(value - int(now or 0)))[:2]
            yield from ({name: value} for value in near)
            return
        place = values.index(int(now or 0))
        for other in (place - 1, place + 1):
            if 0 <= other < len(values):
                yield {name: values[other]}

    def _wasteful(self, params: Mapping[str, Any]) -> bool:
        """Whether a candidate cannot win: idle rows, spilled accumulators, warps without work.

        A tile of 64 rows is worth a try for any M: a warp group's matrix unit needs them.
        """
        shape = self.shape
        tile = params["BLOCK_M"] * params["BLOCK_N"]
        threads = params["num_warps"] * self.warp_size
        return bool(
            params["BLOCK_M"] > max(64, _next_power(shape.m))
            or params["BLOCK_N"] > max(64, _next_power(shape.n))
            or params["BLOCK_K"] > max(32, _next_power(shape.k))
            or tile > _ACCUMULATORS * threads
            or params["num_warps"] > max(tile // 256, 1)
            or params["num_stages"] > max(2, -(-shape.k // params["BLOCK_K"]) + 1)
        )

    def _rows(self, params: Mapping[str, Any]) -> int:
        """Return how many tiles are above each other."""
        return int(-(-self.shape.m // params["BLOCK_M"]))


def _group(group: int, rows: int) -> int:
    """Return the ``GROUP_M`` that stands for one: those that hold all rows order tiles alike."""
    return max(_ONE_GROUP, _next_power(rows)) if group >= rows else group


def _next_power(number: int) -> int:
    return 1 << max(number - 1, 0).bit_length()
