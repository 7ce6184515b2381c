"""The fresh process of ``inductor-tables coverage`` and ``collect``.

``python -m inductor_tables.analysis.worker RESULT REQUEST``: REQUEST is a :class:`Request` as JSON,
RESULT gets a JSON object that holds coverages, or an error for people.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from inductor_tables.analysis.records import Coverage
from inductor_tables.errors import InductorTablesError, TargetError
from inductor_tables.fresh import NO_GPU, FreshProcessError, run_fresh


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a person asks for, as texts and numbers (:mod:`inductor_tables.analysis.targets`).

    ``apart`` asks for a coverage of each target instead of one of all.
    """

    targets: Sequence[str]
    device: str
    tables: Sequence[str] | None
    backward: bool = False
    dynamic: bool | None = None
    tokens: Sequence[int] = ()
    dtype: str | None = None
    apart: bool = False


def in_fresh_process(request: Request) -> list[Coverage]:
    """Return what tables know of targets, found in a process that sees no GPU.

    That is one coverage of all of them, or one of each if they are to be kept apart.

    Raises:
        TargetError: a target cannot be loaded or lowered, or a table cannot be used.
        FreshProcessError: the process ended in another way.
    """
    try:
        found = run_fresh(__name__, json.dumps(asdict(request)), environment=NO_GPU)
    except FreshProcessError as error:
        raise TargetError(
            f"lowering {', '.join(request.targets)} ended the process (exit status "
            f"{error.status}):\n{error.ending}"
        ) from error
    if "error" in found:
        raise TargetError(found["error"])
    return list(map(Coverage.from_dict, found["coverages"]))


def _answer(request: Request) -> dict[str, Any]:
    from inductor_tables.analysis.survey import survey
    from inductor_tables.analysis.targets import Options, load
    from inductor_tables.simulation import simulate

    options = Options(tokens=tuple(request.tokens), dtype=request.dtype, backward=request.backward)
    with simulate(request.device, codegen=False):
        pass  # torch._inductor is now the device's vendor's, whatever the targets import
    loaded = [load(target, options) for target in request.targets]
    surveys = (
        survey(
            cases,
            device=request.device,
            tables=request.tables,
            backward=request.backward,
            dynamic=request.dynamic,
        )
        for cases in (loaded if request.apart else [[c for cases in loaded for c in cases]])
    )
    return {"coverages": [found.as_dict() for found in surveys]}


def _main(result: str, request: str) -> None:
    try:
        found = _answer(Request(**json.loads(request)))
    except (InductorTablesError, OSError) as error:
        found = {"error": str(error)}
    Path(result).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    _main(*sys.argv[1:])
