"""Records what autotuning measured, as dumps that tables are built from.

For people::

    with inductor_tables.record("dumps/", topk=5) as recording:
        torch.compile(model, options={"max_autotune_gemm": True})(x)
    print(recording.path, recording.rows)

For a whole process: set ``config.recording_active`` and ``config.recorder_record_dir``.
Entries also go to backends of one's own, see :func:`add_backend`. Names and behaviour
follow the public design of a recorder for Inductor (pytorch pull request 158987).

Importing this module imports no torch; it has the host call :func:`record_topk_choices`
after each autotuning, which does nothing while ``config.recording_active`` is False.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import threading
from abc import ABC, abstractmethod
from bisect import insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from numbers import Real
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

from inductor_tables import config, host
from inductor_tables.activation import observing
from inductor_tables.dumps import KeyText, Row, join_keys, make_row, render_key, write_atomically
from inductor_tables.errors import InvalidDumpError, InvalidKeyError
from inductor_tables.keys import parse_key
from inductor_tables.process_files import create_file
from inductor_tables.provenance import provenance
from inductor_tables.schema import MAX_ENTRIES_PER_KEY

log = logging.getLogger(__name__)

DUMP_PREFIX: Final = "inductor_lut"
"""How names of dumps begin."""

_NS_PER_MS: Final = 1_000_000
_LONGEST_MS: Final = 2**53 // _NS_PER_MS


@dataclass
class LookupTableEntry:
    """One autotuned choice. Not to be changed once it is recorded.

    Attributes:
        key: the lookup key.
        value: the entry in the host's plain form: ``template_id``, the parameters and, if
            known, ``template_hash``.
        metadata: ``timing`` in ms, and ``rank``: the choice's place, from 0, among those
            recorded of its autotuning run, fastest first.
        runtime: the time in ms that entries are ordered by.
    """

    key: str
    value: dict[str, Any]
    metadata: dict[str, Any]
    runtime: float

    @cached_property
    def _identity(self) -> tuple[tuple[str, str, str], ...]:
        """What makes two entries of one key the same choice: True is not 1 here."""
        return tuple(sorted((n, type(v).__name__, repr(v)) for n, v in self.value.items()))


# --- failures ---------------------------------------------------------------------------

_warned: set[tuple[object, ...]] = set()


def _warn_once(cause: tuple[object, ...], message: str, *args: object) -> None:
    """Warn at the first time of a cause; later times are logged at debug level."""
    level = logging.DEBUG if cause in _warned else logging.WARNING
    _warned.add(cause)
    log.log(level, message, *args, exc_info=log.isEnabledFor(logging.DEBUG))


def _attempt(what: str, function: Callable[..., object], *args: object) -> bool:
    """Call ``function``; a failure is one warning per kind, and False.

    The one boundary between recording and the user's compile, which an exception in a
    feedback saver would end (``torch/_inductor/select_algorithm.py``, ``do_autotuning``).
    """
    try:
        function(*args)
    except Exception as error:  # noqa: BLE001 - a compile outlives whatever a backend raises
        cause = (what, type(error), getattr(error, "errno", None))
        _warn_once(
            cause, "%s failed with %r; compiling goes on, the recording may lack rows", what, error
        )
        return False
    return True


# --- backends ---------------------------------------------------------------------------


class Backend:
    """What entries go to; calls of one recorder never overlap."""

    def clear(self) -> None:
        """Forget what came so far: the next entries belong to another recording."""


class EmitBackend(Backend, ABC):
    """Is given every entry as it is recorded."""

    @abstractmethod
    def emit(self, entry: LookupTableEntry) -> None:
        """Take one entry."""


class RecordBackend(Backend, ABC):
    """Is given all that is recorded, again after each autotuning run."""

    @abstractmethod
    def dump(self, data: dict[str, list[LookupTableEntry]]) -> None:
        """Take the whole recording so far: lookup key to entries, fastest first."""


class LogEmitBackend(EmitBackend):
    """Logs each entry at debug level."""

    def emit(self, entry: LookupTableEntry) -> None:
        """Log one entry."""
        log.debug("recorded %s: %s, %.6f ms", entry.key, entry.value, entry.runtime)


class DirectoryRecordBackend(RecordBackend):
    """Keeps one dump file in a directory up to date, see ``docs/recording.md``.

    The file's name is chosen at the first dump and kept; each dump replaces the file
    atomically. Rows that may not go into a table are left out with a warning.

    Attributes:
        directory: absolute; made when it is missing.
        path: the file, None as long as nothing was dumped.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory).absolute()
        self.clear()

    def clear(self) -> None:
        """Leave the file as it is; the next dump begins another."""
        self.path: Path | None = None
        self._pid = os.getpid()
        self._provenance: dict[str, str | int | None] = {}
        self._rendered: dict[str, tuple[list[LookupTableEntry], KeyText]] = {}

    def dump(self, data: dict[str, list[LookupTableEntry]]) -> None:
        """Write the recording so far; nothing where it has no rows.

        Raises:
            OSError: the directory or the file cannot be written; an older file is whole.
        """
        if self._pid != os.getpid():  # a forked child never writes its parent's file
            self.clear()
        texts = {key: text for key in data if (text := self._text(key, data[key])) is not None}
        if not texts:
            return
        self._provenance = self._provenance or provenance(_device_of(next(iter(texts))))
        content = join_keys(texts, self._provenance)
        self.directory.mkdir(parents=True, exist_ok=True)
        if self.path is None:
            begun = datetime.now(timezone.utc)
            self.path = create_file(self.directory, DUMP_PREFIX, content, begun)
            log.info("recording to %s", self.path)
        else:
            write_atomically(self.path, content)

    def _text(self, key: str, entries: Sequence[LookupTableEntry]) -> KeyText | None:
        """Render a key, from memory if its entries are those of the last dump."""
        known, text = self._rendered.get(key, ((), None))
        if text is not None and list(map(id, known)) == list(map(id, entries)):
            return text
        rows = [row for n, entry in enumerate(entries) if (row := _row(key, entry, n)) is not None]
        if not rows:
            return None
        text = render_key(rows)
        self._rendered[key] = (list(entries), text)
        return text


def _row(key: str, entry: LookupTableEntry, position: int) -> Row | None:
    """Make a row of an entry; None, with a warning, if it may not go into a table."""
    rank = entry.metadata.get("rank")
    try:
        return make_row(
            key,
            entry.value,
            time_ns=_time_ns(entry.runtime),
            rank=rank if type(rank) is int and rank >= 0 else position,
        )
    except InvalidDumpError as error:
        _warn_once(
            ("row", error.where),
            "a row is left out of the recording, it could not go into a table: %s: %s",
            error.where,
            error.problem,
        )
        return None


def _time_ns(milliseconds: object) -> int | None:
    """Return whole nanoseconds, None for what is no finite time."""
    time = float(milliseconds) if isinstance(milliseconds, Real) else math.nan
    return round(time * _NS_PER_MS) if 0 <= time < _LONGEST_MS else None  # NaN is in no range


def _device_of(key: str) -> str | None:
    try:
        return parse_key(key).device
    except InvalidKeyError:
        return None


# --- the recorder -----------------------------------------------------------------------

_forkable: WeakSet[LookupTableRecorder | Recording] = WeakSet()


def _after_fork_in_child() -> None:
    for item in list(_forkable):
        item._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class LookupTableRecorder:
    """Keeps entries by key, fastest first, and hands them to backends. Thread safe.

    A backend that fails is one warning per kind of failure; the others still run.

    Attributes:
        data: lookup key to entries; at most ``topk`` a key, and no choice twice.
        emit_backends: given each entry.
        record_backends: given ``data`` at each dump.
    """

    def __init__(self, topk: int | None = None) -> None:
        self.data: dict[str, list[LookupTableEntry]] = {}
        self.emit_backends: list[EmitBackend] = []
        self.record_backends: list[RecordBackend] = []
        self._topk = topk
        self._lock = threading.RLock()
        _forkable.add(self)

    @property
    def topk(self) -> int | None:
        """How many entries a key keeps: what the recorder was made with, else the config's.

        None or negative: all (up to 4096, the most that a table holds). 0: none.
        """
        return config.recorder_topk if self._topk is None else self._topk

    def add_backend(self, backend: Backend) -> None:
        """Have a backend given the entries from now on; once however often it is added.

        Raises:
            ValueError: it is neither an EmitBackend nor a RecordBackend.
        """
        if not isinstance(backend, EmitBackend | RecordBackend):
            raise ValueError(
                f"a backend must be an EmitBackend or a RecordBackend, found {backend!r}"
            )
        with self._lock:
            if isinstance(backend, EmitBackend) and backend not in self.emit_backends:
                self.emit_backends.append(backend)
            if isinstance(backend, RecordBackend) and backend not in self.record_backends:
                self.record_backends.append(backend)

    def emit(self, entry: LookupTableEntry) -> None:
        """Hand one entry to the emit backends, without keeping it."""
        with self._lock:
            for backend in list(self.emit_backends):
                _attempt(f"{type(backend).__name__}.emit", backend.emit, entry)

    def record(self, entry: LookupTableEntry) -> None:
        """Emit an entry and keep it, if it is among the ``topk`` fastest of its key.

        Of two measurements of one choice the faster is kept. An entry without a finite
        time is left out.
        """
        topk = self.topk
        if topk == 0 or _time_ns(entry.runtime) is None:
            return
        with self._lock:
            self.emit(entry)
            entries = self.data.setdefault(entry.key, [])
            _keep_faster(entries, entry)
            limit = MAX_ENTRIES_PER_KEY if topk is None or topk < 0 else topk
            del entries[limit:]

    def dump(self) -> None:
        """Hand all that is recorded to the record backends."""
        with self._lock:
            self._dump_all()

    def _dump_all(self) -> bool:
        """Dump to every backend; False if one failed."""
        done = [
            _attempt(f"{type(backend).__name__}.dump", backend.dump, self.data)
            for backend in list(self.record_backends)
        ]
        return all(done)

    def clear(self) -> None:
        """Forget what is recorded, and have the backends begin another recording."""
        with self._lock:
            self.data.clear()
            self._clear([*self.emit_backends, *self.record_backends])

    def _clear(self, backends: Sequence[Backend]) -> None:
        for backend in dict.fromkeys(backends):
            _attempt(f"{type(backend).__name__}.clear", backend.clear)

    def _after_fork(self) -> None:
        """In a forked child: start empty, since the rows so far are the parent's."""
        self._lock = threading.RLock()
        self.data.clear()


def _keep_faster(entries: list[LookupTableEntry], entry: LookupTableEntry) -> None:
    for n, known in enumerate(entries):
        if known._identity == entry._identity:
            if known.runtime <= entry.runtime:
                return
            del entries[n]
            break
    insort(entries, entry, key=attrgetter("runtime"))


class Recording:
    """What one ``with record(...)`` block recorded; stays readable after the block.

    Attributes:
        directory: where its file goes; None: nowhere.
        data: lookup key to entries, fastest first.
    """

    def __init__(self, directory: str | None) -> None:
        self.directory: str | None = None
        self.data: dict[str, list[LookupTableEntry]] = {}
        self._backend: DirectoryRecordBackend | None = None
        self._unsaved = False
        self._settle(directory)
        _forkable.add(self)

    @property
    def path(self) -> Path | None:
        """The dump file, None as long as nothing was recorded or it cannot be written."""
        return None if self._backend is None else self._backend.path

    @property
    def rows(self) -> int:
        """How many rows are recorded."""
        return sum(map(len, self.data.values()))

    def _settle(self, directory: str | None) -> None:
        if directory is not None:
            self.directory, self._backend = directory, DirectoryRecordBackend(directory)

    def _after_fork(self) -> None:
        self.data.clear()
        self._unsaved = False


class _ProcessRecorder(LookupTableRecorder):
    """The recorder that the host feeds; its built-in backends follow the config.

    Rows belong to the directory that is configured when they come. Another directory is
    another recording with data and a file of its own, so that rows never mix; rows that
    came while none was configured go to the first that is.
    """

    def __init__(self) -> None:
        super().__init__()
        self._sessions = threading.RLock()
        self._log_backend = LogEmitBackend()
        self._shown: Recording | None = None
        self._recording = Recording(None)
        self.data = self._recording.data

    def follow_config(self) -> None:
        """Make the built-in backends those that the config names."""
        with self._lock:
            _have(self.emit_backends, self._log_backend, wanted=config.recorder_emit)
            directory = config.recorder_record_dir or None
            if directory is not None:
                self._follow_directory(directory)

    def _follow_directory(self, directory: str | None) -> None:
        current = self._recording
        if directory == current.directory:
            return
        if current.directory is None:
            current._settle(directory)
            self._switch(current)
        else:
            self._save()
            self._switch(Recording(directory))

    def _switch(self, recording: Recording) -> None:
        _have(self.record_backends, self._recording._backend, wanted=False)
        self._recording, self.data = recording, recording.data
        _have(self.record_backends, recording._backend, wanted=True)

    def record(self, entry: LookupTableEntry) -> None:
        """As for every recorder, into the recording of the configured directory."""
        with self._lock:
            self._follow_directory(config.recorder_record_dir or None)
            self._show()
            super().record(entry)
            self._recording._unsaved = True

    def _dump_all(self) -> bool:
        if not self.data:
            return True
        self._show()
        saved = super()._dump_all()
        self._recording._unsaved = not saved
        return saved

    def _save(self) -> None:
        if self._recording._unsaved:
            self._dump_all()

    def _show(self) -> None:
        """Tell the user's backends when they are about to be given another recording."""
        if self._shown is not self._recording:
            own = (self._log_backend, self._recording._backend)
            if self._shown is not None:
                backends = [*self.emit_backends, *self.record_backends]
                self._clear([backend for backend in backends if backend not in own])
            self._shown = self._recording

    def _after_fork(self) -> None:
        super()._after_fork()
        self._sessions = threading.RLock()

    @contextlib.contextmanager
    def one_thread(self) -> Iterator[None]:
        """Hold off other threads: settings are the process's, so sessions of two would mix."""
        sessions = self._sessions
        if not sessions.acquire(blocking=False):
            raise RuntimeError("another thread is recording; one block records all threads")
        try:
            yield
        finally:
            sessions.release()

    @contextlib.contextmanager
    def session(self, directory: str) -> Iterator[Recording]:
        """Record into a recording of its own, and go back to the one before at exit."""
        recording = Recording(directory)
        with self._lock:
            outer = self._recording
            self._save()
            self._switch(recording)
        try:
            yield recording
        finally:
            with self._lock:
                self._save()
                self._switch(outer)


def _have(backends: list[Any], backend: Backend | None, *, wanted: bool) -> None:
    if wanted and backend is not None and backend not in backends:
        backends.append(backend)
    elif not wanted and backend in backends:
        backends.remove(backend)


_process_recorder = _ProcessRecorder()


# --- for users and the host -------------------------------------------------------------


def get_lookup_table_recorder() -> LookupTableRecorder:
    """Return the process's recorder, with the built-in backends that the config names."""
    _process_recorder.follow_config()
    return _process_recorder


def add_backend(backend: Backend) -> None:
    """Add a backend to the process's recorder.

    Raises:
        ValueError: it is neither an EmitBackend nor a RecordBackend.
    """
    get_lookup_table_recorder().add_backend(backend)


def dump() -> None:
    """Have the process's recorder dump what it holds."""
    get_lookup_table_recorder().dump()


def clear() -> None:
    """Have the process's recorder forget what it holds and begin another file."""
    get_lookup_table_recorder().clear()


def record_topk_choices(  # noqa: PLR0917 - the host calls it with these, by position
    timings: Mapping[Any, float],
    op_name: str,
    input_nodes: Sequence[Any],  # noqa: ARG001
    choices: Sequence[Any],
    profiled_time_fn: Callable[..., Any],  # noqa: ARG001
    precompile_times: Mapping[Any, Any] | None = None,  # noqa: ARG001 - from torch 2.11 on
) -> None:
    """Record the fastest choices of one autotuning run; the host's feedback saver.

    ``timings`` are in ms. Never raises.
    """
    if config.recording_active:
        _attempt("recording", _record_run, timings, op_name, choices)


def _record_run(timings: Mapping[Any, float], op_name: str, choices: Sequence[Any]) -> None:
    recorder = get_lookup_table_recorder()
    topk = recorder.topk
    if topk == 0:
        return
    limit = None if topk is None or topk < 0 else topk
    entries = list(itertools.islice(_entries(timings, op_name, choices), limit))
    for entry in entries:
        recorder.record(entry)
    log.debug("recorded %d of %d choices for %s", len(entries), len(choices), op_name)
    if entries:
        recorder.dump()


def _entries(
    timings: Mapping[Any, float], op_name: str, choices: Sequence[Any]
) -> Iterator[LookupTableEntry]:
    """Yield an entry per choice that has a time and may go into a table, fastest first."""
    timed = [(timings.get(choice), choice) for choice in choices]
    measured = [(ms, choice) for ms, choice in timed if _time_ns(ms) is not None]
    rank = 0
    for milliseconds, choice in sorted(measured, key=itemgetter(0)):
        made: list[LookupTableEntry] = []
        _attempt("recording a choice", _add_entry, made, choice, op_name, milliseconds, rank)
        yield from made
        rank += len(made)


def _add_entry(
    made: list[LookupTableEntry], choice: Any, op_name: str, milliseconds: float, rank: int
) -> None:
    """Append the entry of a choice, if it has a template and a key and is allowed."""
    found = host.recorded_choice(choice, op_name, with_device=config.record_with_device_key)
    if found is None or found.key is None:
        return
    value = {"template_id": found.template_id, **found.params}
    if config.record_template_hash and found.template_hash is not None:
        value["template_hash"] = found.template_hash
    entry = LookupTableEntry(
        key=found.key,
        value=value,
        metadata={"timing": milliseconds, "rank": rank},
        runtime=milliseconds,
    )
    if _row(entry.key, entry, rank) is not None:
        made.append(entry)


@contextlib.contextmanager
def record(directory: str | os.PathLike[str], *, topk: int | None = None) -> Iterator[Recording]:
    """Record all autotuning of a ``with`` block into one dump file in ``directory``.

    All threads are recorded. Blocks may be nested; the inner one's rows go to its file
    only. The directory is made if it is missing. ``topk``: see ``config.recorder_topk``.
    Yields the :class:`Recording`, which tells the file's path and how many rows it has.

    A graph that comes from a cache is not autotuned: compile in a fresh cache, e.g. with
    ``torch.compiler.config.force_disable_caches`` set.

    Raises:
        OSError: the directory cannot be made or written.
        RuntimeError: another thread is inside such a block.
        TypeError: ``topk`` is no int.
    """
    path = os.path.abspath(directory)
    _check_writable(path)
    with (
        _process_recorder.one_thread(),
        config.patch(recording_active=True, recorder_record_dir=path, recorder_topk=topk),
        _process_recorder.session(path) as recording,
        observing(),
    ):
        _warned.clear()
        host.add_feedback_saver(record_topk_choices)
        yield recording
    _report(recording)


def _check_writable(directory: str) -> None:
    os.makedirs(directory, exist_ok=True)
    if not os.access(directory, os.W_OK | os.X_OK):
        raise PermissionError(f"cannot record to {directory!r}: the directory is not writable")


def _report(recording: Recording) -> None:
    if recording.rows:
        log.info(
            "recorded %d rows for %d keys: %s",
            recording.rows,
            len(recording.data),
            recording.path or "no file was written",
        )
    else:
        log.warning(
            "nothing was recorded to %s: no op was autotuned on a GPU. Graphs may have come from "
            "a cache (set torch.compiler.config.force_disable_caches), GEMM autotuning may be off "
            "(max_autotune_gemm), or a table may have answered with one choice (call disable())",
            recording.directory,
        )


host.add_feedback_saver(record_topk_choices)
