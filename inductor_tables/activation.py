"""What is enabled: which tables, from which version, and the switch itself."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from types import TracebackType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from inductor_tables import __version__, config, host, recovery
from inductor_tables.decisions import Decision, decisions_to, tell
from inductor_tables.errors import (
    ForeignHandlerError,
    InductorTablesError,
    InvalidTableError,
    NoTableError,
)
from inductor_tables.report import Statistics, Status, TableStatus, described
from inductor_tables.versions import NEWEST_KNOWN_SERIES, TorchSeries, series_order

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

    from inductor_tables.resources import Candidate, UserTables

log = logging.getLogger("inductor_tables")


class Activation:
    """One ``enable`` call: its tables, opened per device at the first look-up."""

    def __init__(
        self,
        tables: Sequence[UserTables],
        version: SpecifierSet | None,
        strict: bool,
    ) -> None:
        self.tables = tuple(tables)
        self.version = version
        self.strict = strict
        self.statistics = Statistics()
        self._lock = threading.RLock()
        self._by_arch: dict[str, tuple[Candidate, ...]] = {}
        self._overlays: tuple[Candidate, ...] | None = None
        self._token: tuple[object, str] | None = None
        _activations.add(self)

    def after_fork(self) -> None:
        """In a forked child: the same tables, counts of its own, locks that nobody holds."""
        self._lock = threading.RLock()
        self.statistics.begin()

    def candidates(self, arch: str) -> tuple[Candidate, ...]:
        """Return the tables that serve a gcnArchName, those to be asked first first.

        Raises:
            NoTableError: strict, and there is none.
        """
        found = self._by_arch.get(arch)
        if found is None:
            with self._lock:
                found = self._by_arch.get(arch)
                if found is None:
                    found = self._by_arch[arch] = self._find(arch)
                    self._announce(arch, found)
        if not found and self.strict:
            raise NoTableError(_no_table(arch, host.installed_series(), self.version))
        return found

    def token(self) -> str | None:
        """Return what identifies the code that this activation leads to.

        It goes into the key of every cached graph. None: no table serves any visible
        device, the code is stock torch's.
        """
        archs = _visible_archs()
        state = (archs, config.check_src_hash, recovery.digest())
        if self._token is None or self._token[0] != state:
            self._token = (state, self._digest(archs))
        return self._token[1] or None

    def decisive(self, *, names: bool) -> list[str]:
        """Return, line by line, what decides on the choices of this process.

        The tables that serve its devices, in order, or the user's where no device is
        visible; the settings and versions that matter; torch's own table, if the user set
        one. ``names`` adds what the tables are called here, which decides nothing.

        Raises:
            InvalidTableError, NoTableError, OSError: strict, and a table is damaged or
                missing.
        """
        archs = _visible_archs()
        served = self._served(archs)
        without = {*archs} - {arch for arch, _ in served}
        if not archs:
            served = [("any device", found) for found in self._user_candidates()]
        return [
            f"torch {host.installed_torch()}",
            f"inductor-tables {__version__}",
            f"active={config.active}",
            f"check_src_hash={config.check_src_hash}",
            *(
                f"{arch}: {c.level} {c.table.digest}" + (f" ({c.table.resource})" if names else "")
                for arch, c in served
            ),
            *(f"{arch}: no table" for arch in sorted(without)),
            *_configured_table(),
            *_recovered(),
        ]

    def digest(self) -> str:
        """Return the digest of :meth:`decisive`: processes with the same choose alike."""
        return _hashed(self.decisive(names=False))

    def forget(self, candidate: Candidate, error: InvalidTableError) -> None:
        """Stop using a damaged table: one warning, and stock behaviour in its place."""
        with self._lock:
            for arch, found in self._by_arch.items():
                self._by_arch[arch] = tuple(c for c in found if c.table is not candidate.table)
            self._token = None
        self.report(f"{error}; the table is no longer used")

    def decided(self, decision: Decision) -> None:
        """Count, log and pass on what was decided for one op."""
        new = self.statistics.decided(decision)
        host.count(f"inductor_tables_{decision.outcome}")
        tell(decision)
        if config.record_misses and decision.outcome != "hit":
            from inductor_tables import misses

            misses.note(decision)
        if new:
            self._log(decision)

    def _log(self, decision: Decision) -> None:
        """Log a key's first decision; what comes near is looked for only at debug level."""
        level = logging.DEBUG if decision.outcome == "hit" else logging.INFO
        if log.isEnabledFor(level):
            told = self.explained(decision, 1, near=log.isEnabledFor(logging.DEBUG))
            log.log(level, "%s", "\n".join(described(told)))

    def explained(self, decision: Decision, count: int, *, near: bool = True) -> dict[str, Any]:
        """Return a decision as a dict with its count and, unless it hit, what to do about it.

        ``near`` False: without looking for what comes near, and so without advice.
        """
        found = {**decision.as_dict(), "count": count}
        if near and decision.outcome != "hit":
            from inductor_tables.analysis.nearest import help_for

            arch = decision.key.partition("+")[0]
            tables = [c.table for c in self._by_arch.get(arch, ())]
            neighbours, found["advice"] = help_for(decision, tables)
            found["nearest"] = [f"{n.key}: {'; '.join(n.differences)}" for n in neighbours]
        return found

    def report(self, problem: str) -> None:
        """Keep a problem for ``status()`` and warn about it once."""
        if self.statistics.problem(problem):
            log.warning("%s", problem)

    def swallow(self, error: Exception, what: str) -> None:
        """Report an error that must not end the user's compile; the trace goes to debug."""
        self.report(f"{what} ({type(error).__name__}: {error}); the compilation goes on")
        log.debug("%s", what, exc_info=error)

    def gemms(self) -> list[dict[str, Any]]:
        """Return :meth:`explained` of every key looked up."""
        return [self.explained(*found) for found in self.statistics.decisions()]

    def devices(self) -> dict[str, list[TableStatus]]:
        """Return, for every arch looked up so far, the tables that serve it."""
        return {
            arch: [
                TableStatus(
                    resource=c.table.resource,
                    digest=c.table.digest,
                    table_version=c.table.header.table_version,
                    torch_series=c.table.header.torch_series,
                    level=c.level,
                    keys=len(c.table),
                )
                for c in found
            ]
            for arch, found in self._by_arch.items()
        }

    def _find(self, arch: str) -> tuple[Candidate, ...]:
        from inductor_tables.resources import packaged_candidates

        found = list(self._user_candidates())
        try:
            for candidate in packaged_candidates(host.installed_series(), arch):
                if self._is_wanted(candidate.table.header.table_version):
                    found.append(candidate)
        except InvalidTableError as error:
            self.report(f"{error}; the table is not used, reinstall inductor-tables")
        return tuple(found)

    def _is_wanted(self, table_version: str) -> bool:
        return self.version is None or self.version.contains(table_version, prereleases=True)

    def _user_candidates(self) -> tuple[Candidate, ...]:
        if self._overlays is None:
            self._overlays = tuple(
                candidate
                for number, given in enumerate(self.tables)
                for candidate in self._user_table(given, f"tables[{number}]")
            )
        return self._overlays

    def _user_table(self, given: UserTables, place: str) -> list[Candidate]:
        from inductor_tables.resources import Candidate, user_tables

        series = host.installed_series()
        try:
            tables = user_tables(given, series, place)
        except (InvalidTableError, OSError) as error:
            if self.strict:
                raise
            self.report(f"{error}; {place} is not used")
            return []
        for table in tables:
            if table.header.torch_series != series:
                self.report(
                    f"{table.resource} is for torch {table.header.torch_series}, this is "
                    f"torch {series}; it is not used"
                )
        return [Candidate(t, "overlay") for t in tables if t.header.torch_series == series]

    def _announce(self, arch: str, found: tuple[Candidate, ...]) -> None:
        if not found:
            log.info("%s", _no_table(arch, host.installed_series(), self.version))
        for candidate in found:
            table = candidate.table
            log.info(
                "%s: using %s (%s, version %s, %d keys, digest %s)",
                arch, table.resource, candidate.level, table.header.table_version,
                len(table), table.digest[:12],
            )  # fmt: skip

    def _served(self, archs: Sequence[str]) -> list[tuple[str, Candidate]]:
        return [(arch, found) for arch in sorted(set(archs)) for found in self.candidates(arch)]

    def _digest(self, archs: tuple[str, ...]) -> str:
        served = [f"{arch} {c.level} {c.table.digest}" for arch, c in self._served(archs)]
        state = [f"check_src_hash={config.check_src_hash}", *_recovered()]
        return _hashed([*state, *served]) if served else ""


def _hashed(lines: Sequence[str]) -> str:
    return blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()


def _visible_archs() -> tuple[str, ...]:
    """Return the archs of the visible GPUs, none where torch cannot use them.

    In a forked child of a process that initialised CUDA every question raises. The child
    may compile for the CPU all the same.
    """
    try:
        return host.visible_archs()
    except (AssertionError, RuntimeError) as error:
        log.debug("the GPUs of this process cannot be asked for", exc_info=error)
        return ()


def _devices_are_known() -> bool:
    """Whether asking for the devices initialises nothing that is not initialised."""
    torch = sys.modules.get("torch")
    if torch is None or (torch.version.cuda is None and torch.version.hip is None):
        return True
    return bool(torch.cuda.is_initialized())


def _recovered() -> list[str]:
    found = recovery.digest()
    return [f"entries that did not run {found}"] if found else []


def _configured_table() -> list[str]:
    if "torch._inductor.config" not in sys.modules:
        return []
    table = host.configured_table()
    digest = _hashed([repr(_in_order(table))])
    return [f"torch._inductor.config.lookup_table.table {digest}"] if table else []


def _in_order(value: Any) -> Any:
    """Return dicts as sorted lists: equal ones look alike whatever order they were made in."""
    if isinstance(value, Mapping):
        return sorted((repr(name), repr(_in_order(item))) for name, item in value.items())
    return [_in_order(item) for item in value] if isinstance(value, list | tuple) else repr(value)


def _no_table(arch: str, series: TorchSeries, version: SpecifierSet | None) -> str:
    from inductor_tables.resources import packaged_series

    asked = "" if version is None else f" of version {version}"
    return (
        f"no table{asked} for {arch!r} on torch {series} (packaged torch series: "
        f"{', '.join(packaged_series()) or 'none'}); torch.compile works as without inductor-tables"
    )


class Handle:
    """What ``enable`` returns; as a context manager it puts back what was there before."""

    def __init__(self, before: Activation | None) -> None:
        self._before = before

    def __enter__(self) -> Handle:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _switch(self._before)


_lock = threading.RLock()
_current: Activation | None = None
_observers = 0
_hooks: list[Any] | None = None
_lacks: str | None = None
_activations: WeakSet[Activation] = WeakSet()


def _after_fork_in_child() -> None:
    global _lock  # noqa: PLW0603 - whoever held it does not exist in the child
    _lock = threading.RLock()
    for activation in list(_activations):
        activation.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def enable(
    tables: UserTables | Sequence[UserTables] | None = None,
    *,
    version: str | None = None,
    strict: bool = False,
) -> Handle:
    """Have every later ``torch.compile`` of this process take its GEMM kernels from tables.

    Nothing is imported, read or initialised here: a table is chosen per device at the
    first look-up. Code that is compiled already stays as it is. Calling it again with
    the same arguments changes nothing; with others, the last call counts.

    Args:
        tables: your own tables, asked before the packaged ones: a table or dump file, a
            directory of them, a dict in the host's plain form (lookup key to a list of
            entries), or a list of these, earlier first. A file that others may write to is
            not used unless ``config.trusted_paths`` names it. None: ``config.table_paths``.
        version: a PEP 440 specifier such as ``"~=2026.11"`` that the version of a
            packaged table must meet. None: ``config.table_version``.
        strict: raise where nothing fits, instead of one info line and stock behaviour.

    Returns:
        A handle; ``with enable(): ...`` puts back what was there before.

    Raises:
        UnsupportedTorchError: torch is missing or older than 2.10.
        NoTableError: strict, and no table is packaged for this torch and none was given.
            Where the device decides, the first look-up raises it.
        ForeignHandlerError: this thread has a choices handler that look-ups cannot be
            put in front of.
        packaging.specifiers.InvalidSpecifier: ``version`` is no specifier.
        TypeError: ``tables`` is of another type.
    """
    listed = as_list(config.table_paths if tables is None else tables)
    series = host.installed_series()
    if series_order(series) > series_order(NEWEST_KNOWN_SERIES):
        log.info("torch %s is newer than any this release was tested with", series)
    specifier = _specifier(config.table_version if version is None else version)
    if strict and not listed:
        from inductor_tables.resources import packaged_series

        if series not in packaged_series():
            raise NoTableError(_no_table("any device", series, specifier))
    with _lock:
        before = _current
        same = before is not None and (before.tables, before.version, before.strict) == (
            tuple(listed),
            specifier,
            strict,
        )
        if not same:
            _refuse_foreign_handler()
            _switch(Activation(listed, specifier, strict))
        return Handle(before)


def disable() -> None:
    """Put back the stock behaviour, in all threads. Code that is compiled stays."""
    _switch(None)


def is_enabled() -> bool:
    """Whether tables are enabled in this process."""
    return _current is not None


def status(*, verbose: bool = False) -> Status:
    """Return what is enabled, which tables serve which device, and what they were asked.

    Args:
        verbose: also say for every key what was decided, where in the model it comes from,
            and for a miss which keys come near (``Status.gemms``). Reads the tables' keys.
    """
    activation = _current
    torch = host.loaded_torch()
    if activation is None:
        return Status(enabled=False, active=config.active, torch=torch, version=None)
    return Status(
        enabled=True,
        active=config.active,
        torch=torch,
        version=None if activation.version is None else str(activation.version),
        digest=_known_digest(activation),
        devices=activation.devices(),
        gemms=activation.gemms() if verbose else [],
        **activation.statistics.snapshot(),
    )


def _known_digest(activation: Activation) -> str | None:
    try:
        return activation.digest() if _devices_are_known() else None
    except (InductorTablesError, OSError) as error:  # strict; status() tells, it does not raise
        activation.report(str(error))
        return None


def current_activation() -> Activation | None:
    """Return what ``enable`` made, None where tables are off."""
    return _current


def active_activation() -> Activation | None:
    """Return what look-ups are made in, None where none are to be made."""
    return _current if config.active and _lacks is None else None


@contextlib.contextmanager
def observing() -> Iterator[None]:
    """Keep the handler installed, with or without tables, so that ops are seen by their keys."""
    _observe(+1)
    try:
        yield
    finally:
        _observe(-1)


def _observe(change: int) -> None:
    global _observers  # noqa: PLW0603 - the switch is the process's
    with _lock:
        _observers += change
        _sync_hooks()


def _switch(activation: Activation | None) -> None:
    global _current  # noqa: PLW0603 - the switch is the process's
    with _lock:
        _current = activation
        _sync_hooks()


def _sync_hooks() -> None:
    global _hooks  # noqa: PLW0603 - the switch is the process's
    wanted = _current is not None or _observers > 0
    if wanted and _hooks is None:
        _hooks = [
            host.HandlerHook(_compose, _go_by_the_registry),
            host.CacheKeyHook(_cache_token, _go_by_the_registry),
            host.CompileHook(_compile),
        ]
        for hook in tuple(_hooks):
            hook.install()
    elif not wanted and _hooks is not None:
        for hook in _hooks:
            hook.uninstall()
        handler = sys.modules.get("inductor_tables.handler")
        if handler is not None:
            host.discard_preprocessing_fn(handler.keep_table_choices)
        _hooks = None


def _go_by_the_registry(name: str) -> None:
    """Where a newer torch lacks a private name, do with what its registry promises."""
    log.info("torch %s has no %s; tables go by its registry of choices", host.loaded_torch(), name)
    if _hooks is not None and not any(isinstance(h, host.RegistryHook) for h in _hooks):
        registry = host.RegistryHook(_table_choices, _give_up)
        _hooks.append(registry)
        registry.install()


def _give_up(name: str) -> None:
    global _lacks  # noqa: PLW0603 - of the torch of this process
    _lacks = name
    if _current is not None:
        _current.report(
            f"torch {host.loaded_torch()} has no {name}, which this release of inductor-tables "
            "needs; no table is used, torch.compile works as without: upgrade inductor-tables"
        )


def _table_choices() -> Any:
    from inductor_tables.handler import TableChoices

    return TableChoices()


def _cache_token() -> str | None:
    """Return what sets the keys of cached graphs apart; never ends a compile, unless strict."""
    activation = active_activation()
    try:
        return None if activation is None else activation.token()
    except (InductorTablesError, OSError):  # strict: the user asked for it
        raise
    except Exception as error:  # noqa: BLE001 - a table never ends the user's compile
        if activation is not None:
            activation.swallow(error, "the digest of the tables could not be made")
        return os.urandom(16).hex()  # shares no cached graph with anything


def _compile(graph: host.GraphCompile) -> Any:
    activation = active_activation()
    if activation is None:
        return graph.stock()
    decided: list[Decision] = []
    with decisions_to(decided.append):
        try:
            if _cache_token() is None:
                return graph.stock()
            return recovery.compile_or_recover(graph, activation.report)
        finally:
            if decided:
                _trace(activation, decided)


def _trace(activation: Activation, decided: Sequence[Decision]) -> None:
    try:
        host.trace("inductor_tables", lambda: [d.as_dict() for d in decided])
    except Exception as error:  # noqa: BLE001 - what is said of a graph never ends its compile
        activation.swallow(error, "the structured trace could not be written")


def _compose(handler: Any) -> Any:
    from inductor_tables.handler import compose

    try:
        return compose(handler)
    except ForeignHandlerError as error:
        if _current is not None:
            _current.report(str(error))
        return handler


def _refuse_foreign_handler() -> None:
    handler = host.current_handler()
    if handler is not None:
        from inductor_tables.handler import compose

        compose(handler)


def as_list(tables: UserTables | Sequence[UserTables] | None) -> list[UserTables]:
    """Return the tables that ``enable`` is given, one or several, as a list.

    Raises:
        TypeError: one is of another type.
    """
    given = [] if tables is None else [tables] if not isinstance(tables, list | tuple) else tables
    for number, table in enumerate(given):
        if not isinstance(table, str | os.PathLike | Mapping):
            raise TypeError(
                f"tables[{number}] must be a path or a dict in the host's plain form, "
                f"found {type(table).__name__}"
            )
    return list(given)  # type: ignore[arg-type]


def _specifier(version: str | None) -> SpecifierSet | None:
    if version is None:
        return None
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return SpecifierSet(version)
    except InvalidSpecifier as error:
        raise InvalidSpecifier(
            f"version {version!r} (enable(version=...) or config.table_version): expected a "
            "specifier as in PEP 440, such as '~=2026.12' or '==2026.12.3'"
        ) from error
