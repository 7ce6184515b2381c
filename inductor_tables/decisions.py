"""What a table's answer to one lowered op was, and where in the model the op comes from."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from inductor_tables.schema import Entry

Outcome = Literal["hit", "miss", "dropped"]
"""A table's kernel is used; no table has the key; one has it, but no entry of it can be used."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where an op comes from.

    ``module`` is the path of the innermost module, such as ``layers.0.mlp.up``; ``line`` is
    ``file:line`` of the user's code. None: the graph does not say.
    """

    module: str | None
    line: str | None

    def __str__(self) -> str:
        return self.module or self.line or "unknown"


@dataclass(frozen=True, kw_only=True)
class Dropped:
    """An entry of the op's key that was not used, and why."""

    template_id: str
    reason: str

    def __str__(self) -> str:
        return f"{self.template_id}: {self.reason}"


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What was decided for one op.

    Attributes:
        outcome: whether a table's kernel is used, and if not, why not.
        key: the device-specific lookup key that decided: the one that hit, else the last
            that the op asked under.
        table: name of the resource that holds the key, None where none does.
        table_key: the key as the table has it (it may lack the device).
        entries: the entries that are used, in the table's order; several are autotuned among.
            Empty for a hit in the table that the user set in torch's own config.
        dropped: the entries that are not used.
        origin: where the op comes from.
    """

    outcome: Outcome
    key: str
    table: str | None
    table_key: str | None
    entries: tuple[Entry, ...]
    dropped: tuple[Dropped, ...]
    origin: Origin

    def as_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists, texts and numbers."""
        return {
            "outcome": self.outcome,
            "key": self.key,
            "table": self.table,
            "table_key": self.table_key,
            "entries": [
                {**e.config.plain, "time_us": e.time_us, "margin": e.margin} for e in self.entries
            ],
            "dropped": [str(dropped) for dropped in self.dropped],
            "module": self.origin.module,
            "line": self.origin.line,
        }


class _Listeners(threading.local):
    """Who is told of the decisions that this thread makes."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[Decision], None]] = []


_LISTENERS = _Listeners()


@contextlib.contextmanager
def decisions_to(callback: Callable[[Decision], None]) -> Iterator[None]:
    """Give every decision that this thread makes meanwhile to ``callback``, as it is made."""
    _LISTENERS.callbacks.append(callback)
    try:
        yield
    finally:
        _LISTENERS.callbacks.remove(callback)


def tell(decision: Decision) -> None:
    """Give a decision to all who asked for those of this thread."""
    for callback in tuple(_LISTENERS.callbacks):
        callback(decision)
