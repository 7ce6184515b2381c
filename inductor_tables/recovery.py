"""When an entry does not compile after all: the graph once more, without it.

A graph that took choices from a table and failed is compiled again as it was: first
without the entries that the failure points at, then without look-ups. What failed is
not looked up again in this process, and one warning says what to do about it. If stock
torch fails too, its error is the user's and no entry is blamed.

This module imports nothing of torch.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, Protocol

from inductor_tables.errors import NoTableError

if TYPE_CHECKING:
    from inductor_tables.schema import Config

_TELLING: Final = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_stages", "num_warps")
"""Parameters that tell one kernel from another, and that its generated source names."""


class Graph(Protocol):
    """A graph that can be compiled more than once (``host.GraphCompile``)."""

    def compile(self) -> Any:
        """Compile it; may raise anything."""

    def restore(self) -> None:
        """Make it what it was before :meth:`compile` changed it."""

    def deliberate(self, error: Exception) -> bool:
        """Whether an error is how the host tells itself something, not a failure."""

    def failed_source(self, error: Exception) -> str | None:
        """Return the source of the kernel that an error is about, if it is about one."""


@dataclass(frozen=True, kw_only=True)
class Use:
    """One entry that a graph was offered: which, under which key, of which table."""

    resource: str
    key: str
    config: Config

    @property
    def identity(self) -> tuple[str, tuple[str, ...]]:
        """Key and content, whichever table it came from."""
        return self.key, self.config.order

    def __str__(self) -> str:
        params = dict(self.config.params)
        shown = ", ".join(f"{name}={params[name]}" for name in _TELLING if name in params)
        return f"{self.config.template_id} ({shown}) for {self.key}"


@dataclass
class _Attempt:
    """One compilation of one graph, and the entries that it was offered."""

    look: bool
    noted: list[Use] = field(default_factory=list)

    @property
    def uses(self) -> list[Use]:
        """The entries, each once."""
        return list({use.identity: use for use in self.noted}.values())


class _State(threading.local):
    attempt: _Attempt | None = None


_STATE = _State()
_failed: dict[tuple[str, tuple[str, ...]], str] = {}
_lock = threading.Lock()


def _renew_lock() -> None:
    global _lock  # noqa: PLW0603 - another thread may have held it at the fork
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def looking() -> bool:
    """Whether this thread may look up; not while it compiles a graph as stock torch does."""
    return _STATE.attempt is None or _STATE.attempt.look


def note(resource: str, key: str, config: Config) -> None:
    """Remember that the graph which this thread compiles is offered an entry."""
    if _STATE.attempt is not None:
        _STATE.attempt.noted.append(Use(resource=resource, key=key, config=config))


def failure_of(key: str, config: Config) -> str | None:
    """Return why an entry is not used again in this process, None if it is not known to fail."""
    return _failed.get((key, config.order)) if _failed else None


def digest() -> str:
    """Return what identifies the entries that are not used again; empty if there are none.

    It belongs into the keys of cached graphs: a graph without an entry is not the graph
    that its table stands for.
    """
    if not _failed:
        return ""
    with _lock:
        return blake2b(repr(sorted(_failed)).encode(), digest_size=16).hexdigest()


def forget() -> None:
    """Give every entry another chance."""
    with _lock:
        _failed.clear()


def compile_or_recover(graph: Graph, report: Callable[[str], None]) -> Any:
    """Compile a graph; where its entries fail, without them.

    Args:
        graph: what to compile.
        report: takes the warning's text.

    Raises:
        Exception: what the host raised for the graph without entries, or what has
            nothing to do with them.
    """
    blamed: list[Use] = []
    failure = ""
    look = True
    while True:
        attempt = _Attempt(look)
        try:
            with _attempting(attempt):
                compiled = graph.compile()
            break
        except Exception as error:
            uses = attempt.uses
            if not uses or _meant(error) or graph.deliberate(error):
                _absolve(blamed)
                raise
            guilty = _guilty(graph.failed_source(error), uses)
            # One more try with the other entries, if it is clear which ones these are.
            look = bool(guilty) and not blamed
            failure = failure or _text(error)
            blamed += _blame(guilty or uses, _text(error))
        graph.restore()
    if blamed:
        report(_warning(blamed, failure))
    return compiled


@contextlib.contextmanager
def _attempting(attempt: _Attempt) -> Iterator[None]:
    before, _STATE.attempt = _STATE.attempt, attempt
    try:
        yield
    finally:
        _STATE.attempt = before


def _meant(error: BaseException) -> bool:
    """Whether we raised it ourselves for the user to see."""
    return isinstance(getattr(error, "inner_exception", error), NoTableError)


def _guilty(source: str | None, uses: Sequence[Use]) -> list[Use]:
    """Return the entries that the source of a failed kernel was made with."""
    return [] if source is None else [use for use in uses if _made_with(source, use)]


def _made_with(source: str, use: Use) -> bool:
    values = [(name, value) for name, value in use.config.params if name in _TELLING]
    return bool(values) and all(
        re.search(rf"\b{name}(?: *: *tl\.constexpr)? *= *{value}\b", source)
        for name, value in values
    )


def _blame(uses: Iterable[Use], why: str) -> list[Use]:
    with _lock:
        new = [use for use in uses if use.identity not in _failed]
        _failed.update({use.identity: why for use in new})
        return new


def _absolve(uses: Iterable[Use]) -> None:
    with _lock:
        for use in uses:
            _failed.pop(use.identity, None)


def _text(error: BaseException) -> str:
    """Return one line: the first of a message, the last of a worker's traceback."""
    error = getattr(error, "inner_exception", error)
    lines = str(error).strip().splitlines() or [""]
    line = lines[-1] if any(line.startswith("Traceback") for line in lines) else lines[0]
    return f"{type(error).__name__}: {line.strip()[:300]}"


def _warning(blamed: Sequence[Use], failure: str) -> str:
    first, *others = blamed
    if others:
        which = f"at least one of {len(blamed)} entries does not run, among them {first}"
    else:
        which = f"an entry does not run: {first}"
    return (
        f"{first.resource}: {which}. The graph was compiled without, and what failed is not used "
        f"again in this process ({failure}). Remove it from the table or record it again on this "
        "device; status() lists it under its reason once it is looked up again"
    )
