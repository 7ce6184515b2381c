"""The models as targets of ``inductor-tables collect``.

Each goes by its name with underscores: ``build_tools.problems.targets:llama_3_1_70b_tp8``.
"""

from __future__ import annotations

from build_tools.problems.architectures import Model
from build_tools.problems.families import targets


def __getattr__(name: str) -> Model:
    try:
        return targets()[name]
    except KeyError:
        raise AttributeError(f"there is no model {name!r}") from None


def __dir__() -> list[str]:
    return sorted(targets())
