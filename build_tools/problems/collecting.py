"""Collects a family's problems: what ``inductor-tables collect`` does, under the models' names."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import Final

from build_tools.problems.families import FAMILIES, Group
from inductor_tables.analysis import worker
from inductor_tables.analysis.records import Coverage
from inductor_tables.analysis.worker import Request
from inductor_tables.errors import TargetError
from inductor_tables.fresh import NO_GPU, run_fresh
from inductor_tables.problems import Problem, merge, problem_from_key

DEVICE: Final = "NVIDIA H200"
"""The models are lowered for it; a problem holds no device."""

_ENVIRONMENT: Final = {**NO_GPU, "TORCHINDUCTOR_MAX_AUTOTUNE_GEMM_BACKENDS": "ATEN"}
# Which kernels are offered does not change what is asked for, but doubles the time.


def collected(family: str, models: Iterable[str] | None = None) -> tuple[Problem, ...]:
    """Return the problems of a family, each once, those that most models share first.

    Args:
        family: one of :data:`~build_tools.problems.families.FAMILIES`.
        models: names of those that are wanted, None: all.

    Raises:
        TargetError: a model cannot be lowered.
    """
    wanted = None if models is None else set(models)
    return merge(p for group in FAMILIES[family] for p in _of_group(group, wanted))


def _of_group(group: Group, wanted: set[str] | None) -> Iterable[Problem]:
    asked = [model for model in group.models if wanted is None or model.name in wanted]
    if not asked:
        return
    request = Request(
        targets=[f"build_tools.problems.targets:{model.target}" for model in asked],
        device=DEVICE,
        tables=None,
        backward=group.backward,
        tokens=group.tokens,
        dtype=group.dtype,
        apart=True,
    )
    for model, found in zip(asked, _lowered(request), strict=True):
        for gemm in found.gemms:
            origins = map(model.origin, gemm.origins)
            yield problem_from_key(gemm.key, count=gemm.count, origins=origins)


def _lowered(request: Request) -> list[Coverage]:
    found = run_fresh(worker.__name__, json.dumps(asdict(request)), environment=_ENVIRONMENT)
    if "error" in found:
        raise TargetError(found["error"])
    return list(map(Coverage.from_dict, found["coverages"]))
