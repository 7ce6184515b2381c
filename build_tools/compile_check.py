"""Compiles what a table's entries lead to, for the GPU they are for, without one.

Every distinct entry (``distinct``) is rendered by torch's own lowering with the entry as its only
table (``render``) and compiled by the installed triton, in worker processes (``compile_worker``):
what crashes or hangs costs its own entry. What is done is done for good (``compile_state``).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, get_args

from pebble import ProcessExpired, ProcessPool

from build_tools.compile_state import Outcome, Result, State, default_state
from build_tools.compile_worker import (
    Task,
    Work,
    compile_case,
    in_worker,
    log_of,
    telling_line,
)
from build_tools.distinct import Case, distinct
from build_tools.files import table_files
from inductor_tables import host
from inductor_tables.arch import base_arch
from inductor_tables.errors import BuildError, InvalidTableError, SimulationError
from inductor_tables.schema import Header
from inductor_tables.simulation import CATALOGUE, device_spec
from inductor_tables.table import Table

DEFAULT_TIMEOUT_S: Final = 300.0
_CASES_A_WORKER: Final = 500
"""After so many a worker is replaced: compilers do not give all memory back."""

_DECIDING: Final = ("handler", "host", "keys", "limits", "parameters", "resources", "schema")
"""The runtime's modules that an entry's code depends on."""

_FAILURES: Final = frozenset({"failed", "exceeds", "dropped"})

Advance = Callable[[str, int, int], None]
"""Told of progress: the device, how many of its cases are done, how many there are."""

_Name = tuple[str, str]
"""What the state knows a case by: the run and the entry."""


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """A case with what became of it; ``earlier``: in an earlier run."""

    case: Case
    result: Result
    earlier: bool


@dataclass(frozen=True, kw_only=True)
class TableCompile:
    """The result for one table on one device.

    Attributes:
        path: below the directory.
        device: gcnArchName it was compiled for.
        without_source: entries with nothing to compile (ATen, subgraphs).
        compiled: every distinct entry with its result, in the table's order.
    """

    path: str
    device: str
    without_source: int
    compiled: tuple[Compiled, ...]

    @property
    def seconds(self) -> float:
        """What lowering and compiling took, in this run or an earlier one, summed."""
        return sum(one.result.seconds for one in self.compiled)

    @property
    def failures(self) -> list[Compiled]:
        """What does not compile, does not fit, or is never used."""
        return [one for one in self.compiled if one.result.outcome in _FAILURES]

    @property
    def warnings(self) -> list[Compiled]:
        """What runs, but spills registers or has fewer stages than its parameters say."""
        runs = [one for one in self.compiled if one.result.outcome not in _FAILURES]
        return [one for one in runs if one.result.spills or one.result.outcome == "unpipelined"]

    def count(self, outcome: Outcome) -> int:
        """Return how many entries had an outcome."""
        return sum(one.result.outcome == outcome for one in self.compiled)

    def as_data(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "path": self.path,
            "device": self.device,
            "distinct": len(self.compiled),
            "without_source": self.without_source,
            "earlier": sum(one.earlier for one in self.compiled),
            **{outcome: self.count(outcome) for outcome in get_args(Outcome)},
            "spilling": sum(one.result.spills > 0 for one in self.compiled),
            "seconds": self.seconds,
            "entries": [
                {
                    "key": str(one.case.key),
                    "pairs": one.case.pairs,
                    "entry": dict(one.case.config.plain),
                    "earlier": one.earlier,
                    **asdict(one.result),
                }
                for one in self.compiled
            ],
        }


@dataclass(frozen=True, kw_only=True)
class CompileReport:
    """The result for a directory; ``skipped`` are tables with why they were not compiled."""

    torch: str
    triton: str
    state: Path
    strict: bool
    seconds: float
    tables: tuple[TableCompile, ...]
    skipped: tuple[tuple[str, str], ...]

    @property
    def ok(self) -> bool:
        """Some table was compiled and nothing failed; if strict, nothing was warned of either."""
        bad = any(t.failures or (self.strict and t.warnings) for t in self.tables)
        return bool(self.tables) and not bad

    def as_data(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "ok": self.ok,
            "torch": self.torch,
            "triton": self.triton,
            "state": str(self.state),
            "strict": self.strict,
            "seconds": self.seconds,
            "tables": [table.as_data() for table in self.tables],
            "skipped": [{"path": path, "reason": reason} for path, reason in self.skipped],
        }


def compile_directory(
    directory: Path,
    *,
    devices: Sequence[str] = (),
    jobs: int | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    state: Path | None = None,
    strict: bool = False,
    advance: Advance = lambda _device, _done, _total: None,
    work: Work = compile_case,
) -> CompileReport:
    """Compile the distinct entries of every table below a directory that this torch can render.

    Args:
        directory: of tables, as ``build`` writes it.
        devices: gcnArchNames to compile for; none: each table's own, of the catalogue.
        jobs: worker processes; None: one a core.
        timeout_s: seconds after which an entry is given up.
        state: the file of results; None: one in the user's cache directory.
        strict: whether warnings fail, too.
        advance: told of progress.
        work: what a worker does with a task.

    Raises:
        SimulationError: a device is not in the catalogue.
        BuildError: triton is missing, or a device cannot be simulated.
        UnsupportedTorchError: torch is missing or too old.
        OSError: the state cannot be read or written.
    """
    begin = time.perf_counter()
    versions = _Versions(torch=_installed_torch(), triton=_installed_triton())
    specs = list(dict.fromkeys(device_spec(device).gcn_arch_name for device in devices))
    plan, skipped = _planned(directory, specs, versions)
    known = State(state or default_state(versions.torch, versions.triton))
    with tempfile.TemporaryDirectory(prefix="compile_check_") as scratch:
        pool = _Pool(known, Path(scratch), jobs or os.cpu_count() or 1, timeout_s, work, advance)
        compiled = {device: pool.compile(device, plan[device]) for device in plan}
    return CompileReport(
        torch=versions.torch,
        triton=versions.triton,
        state=known.path,
        strict=strict,
        seconds=time.perf_counter() - begin,
        tables=tuple(table for device in plan for table in compiled[device]),
        skipped=tuple(skipped),
    )


# --- what is to be compiled -------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Versions:
    torch: str
    triton: str


@dataclass(frozen=True, kw_only=True)
class _Job:
    """A table to compile for one device. ``run`` sets its results apart from other tables'."""

    path: str
    run: str
    without_source: int
    cases: tuple[Case, ...]


def _planned(
    directory: Path, devices: Sequence[str], versions: _Versions
) -> tuple[dict[str, list[_Job]], list[tuple[str, str]]]:
    """Return the jobs by device, and the tables that are left out with why."""
    plan: dict[str, list[_Job]] = {}
    skipped: list[tuple[str, str]] = []
    for path in table_files(directory):
        place = path.relative_to(directory).as_posix()
        try:
            table = Table.open(path)
            serving, found = _devices_of(table.header, devices), distinct(table)
        except (InvalidTableError, _SkippedError) as reason:
            skipped.append((place, str(reason)))
            continue
        for device in serving:
            run = _digest(table.digest, repr(CATALOGUE[device]), repr(versions), _code_digest())
            job = _Job(path=place, run=run, without_source=found.without_source, cases=found.cases)
            plan.setdefault(device, []).append(job)
    return plan, skipped


class _SkippedError(Exception):
    """A table is not for this run; the text says why and what to do."""


def _devices_of(header: Header, asked: Sequence[str]) -> list[str]:
    """Return the devices to compile a table for.

    Raises:
        _SkippedError: there is none.
    """
    series, installed = header.torch_series, host.installed_series()
    if series != installed:
        raise _SkippedError(
            f"it is for torch {series}, and templates are rendered from the installed torch "
            f"{installed}; run this where torch {series} is installed"
        )
    known = asked or list(CATALOGUE)
    arch = header.arch
    if arch is None:
        if not asked:
            raise _SkippedError("its keys have no device; name one with --device")
        return list(asked)
    exact = [device for device in known if device == arch]
    shared = [d for d in known if header.serves_base_arch and base_arch(d) == arch]
    found = exact or (shared if asked else shared[:1])
    if not found and asked:
        raise _SkippedError(f"it is for {arch!r}, not for {', '.join(map(repr, asked))}")
    if not found:
        raise _SkippedError(
            f"it is for {arch!r}, which is not among the devices that can be simulated "
            f"({', '.join(map(repr, CATALOGUE))})"
        )
    return found


def _installed_torch() -> str:
    """Return the version of the installed package: the same whether torch is imported or not."""
    loaded = host.installed_torch()
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return loaded


def _installed_triton() -> str:
    try:
        return str(importlib.import_module("triton").__version__)
    except ImportError as error:
        raise BuildError(
            "triton is not installed, which compiles the entries; install the release that belongs "
            "to this torch (CPU builds of torch leave it out)"
        ) from error


@functools.cache
def _code_digest() -> str:
    """Return what identifies the code that decides what is rendered."""
    package, tools = Path(host.__file__).parent, Path(__file__).parent
    files = [package / f"{name}.py" for name in _DECIDING]
    files += [*sorted(package.glob("simulation/*.py")), tools / "render.py"]
    return _digest(*(file.read_text(encoding="utf-8") for file in files))


def _digest(*parts: str) -> str:
    return blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()


# --- compiling it -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Pool:
    """Compiles jobs in worker processes and remembers every result as it comes in."""

    state: State
    scratch: Path
    jobs: int
    timeout_s: float
    work: Work
    advance: Advance

    def compile(self, device: str, jobs: Sequence[_Job]) -> list[TableCompile]:
        """Compile for one device what no earlier run of the same has.

        Raises:
            BuildError: the device cannot be simulated.
            OSError: the state cannot be written.
        """
        asked = {(job.run, _entry(case)): case for job in jobs for case in job.cases}
        results = {name: found for name in asked if (found := self.state.of_entry(*name))}
        earlier = frozenset(results)
        self.advance(device, len(results), len(asked))
        left = {name: case for name, case in asked.items() if name not in results}
        for (run, entry), result in self._results(device, left):
            results[run, entry] = result
            self.state.add(run, entry, result)
            self.advance(device, len(results), len(asked))
        return [
            TableCompile(
                path=job.path,
                device=device,
                without_source=job.without_source,
                compiled=tuple(
                    Compiled(
                        case=case,
                        result=results[job.run, _entry(case)],
                        earlier=(job.run, _entry(case)) in earlier,
                    )
                    for case in job.cases
                ),
            )
            for job in jobs
        ]

    def _results(self, device: str, left: Mapping[_Name, Case]) -> Iterator[tuple[_Name, Result]]:
        """Yield results in the order that they come in."""
        if not left:
            return
        pool = ProcessPool(
            max_workers=min(self.jobs, len(left)),
            max_tasks=_CASES_A_WORKER,
            context=multiprocessing.get_context("spawn"),
        )
        try:
            names: dict[Future[Result], _Name] = {
                pool.schedule(in_worker, args=[self.work, self._task(device, case)]): name
                for name, case in left.items()
            }
            for future in as_completed(names):
                yield names[future], self._result(device, future)
        finally:  # also when interrupted: it would otherwise wait for all of them
            pool.stop()  # type: ignore[no-untyped-call]
            pool.join()

    def _task(self, device: str, case: Case) -> Task:
        return Task(
            case=case,
            device=device,
            state=self.state.path,
            scratch=self.scratch,
            timeout_s=self.timeout_s,
        )

    def _result(self, device: str, future: Future[Result]) -> Result:
        try:
            return future.result()
        except SimulationError as error:
            raise BuildError(f"{device} cannot be simulated: {error}") from error
        except ProcessExpired as error:
            if error.pid:  # what it started may hang as it did
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(error.pid, signal.SIGKILL)
            return Result(outcome="failed", reason=self._death(error), lasting=False)

    def _death(self, error: ProcessExpired) -> str:
        """Say how a worker ended."""
        code = error.exitcode
        if code == -signal.SIGALRM:
            return f"no result after {self.timeout_s:g} s"
        how = f"the compiler ended the process with exit status {code}"
        if code < 0:
            how = f"the compiler's process died of {signal.Signals(-code).name}"
        if code == -signal.SIGKILL:
            how += " (out of memory?)"
        said = telling_line(log_of(self.scratch, error.pid))
        return f"{how}: {said}" if said else how


def _entry(case: Case) -> str:
    """Return what identifies a case in the state, whatever else its table holds."""
    return _digest(str(case.key), *case.config.order)
