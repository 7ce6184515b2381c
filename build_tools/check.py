"""Checks tables: that they decode, lie where they belong, and fit their torch's templates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from build_tools.files import table_files, table_path
from build_tools.hashes import (
    TemplateHashes,
    installed_hashes,
    installed_series,
    read_committed,
)
from inductor_tables.errors import InvalidKeyError, InvalidTableError
from inductor_tables.keys import parse_key
from inductor_tables.schema import Header
from inductor_tables.table import Table, write_table
from inductor_tables.versions import TorchSeries


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What is wrong: ``kind`` is damaged, misplaced, key, stale, unknown or missing."""

    kind: str
    text: str


@dataclass(frozen=True, kw_only=True)
class TableCheck:
    """The result for one file; what the header says is None where it could not be read."""

    path: str
    series: str | None = None
    arch: str | None = None
    table_version: str | None = None
    keys: int | None = None
    entries: int | None = None
    digest: str | None = None
    compared_with: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CheckReport:
    """The result for a directory. ``installed`` is the series of the installed torch."""

    directory: str
    installed: str | None
    tables: tuple[TableCheck, ...]
    problems: tuple[Problem, ...] = field(default=())

    @property
    def ok(self) -> bool:
        """Nothing is wrong."""
        return not self.problems and not any(table.problems for table in self.tables)

    def as_data(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"ok": self.ok, **asdict(self)}


def check_directory(directory: Path) -> CheckReport:
    """Check every table below a directory; one without tables is a problem, too.

    Raises:
        BuildError: the committed hashes are damaged.
    """
    references = References()
    tables = tuple(check_table(path, directory, references) for path in table_files(directory))
    missing = Problem(
        kind="missing",
        text=f"{directory}: expected tables (<series>/<arch>/gemm.msgpack), found none; build some",
    )
    return CheckReport(
        directory=str(directory),
        installed=references.installed,
        tables=tables,
        problems=() if tables else (missing,),
    )


class References:
    """What templates are compared with: the committed data and the installed torch.

    torch is imported when a table of its series comes up, not before.
    """

    def __init__(self) -> None:
        self.installed = installed_series()
        self._committed = read_committed()
        self._installed: TemplateHashes | None = None

    def of(self, series: str) -> Mapping[str, TemplateHashes]:
        """Return name → hashes of all that is known of a series."""
        known = {}
        if TorchSeries(series) in self._committed:
            known["committed"] = self._committed[TorchSeries(series)]
        if series == self.installed:
            self._installed = self._installed or installed_hashes()
            known["installed"] = self._installed
        return known


def check_table(path: Path, directory: Path, references: References) -> TableCheck:
    """Check one file below a directory of tables."""
    place = path.relative_to(directory).as_posix()
    try:
        table = Table.open(path)
    except InvalidTableError as error:
        return TableCheck(path=place, problems=(Problem(kind="damaged", text=str(error)),))
    header = table.header
    known = references.of(header.torch_series)
    return TableCheck(
        path=place,
        series=header.torch_series,
        arch=header.arch,
        table_version=header.table_version,
        keys=header.key_count,
        entries=header.entry_count,
        digest=table.digest,
        compared_with=tuple(known),
        problems=(
            *_place_problems(header, place),
            *_content_problems(table, path),
            *_template_problems(header, known),
        ),
    )


def _place_problems(header: Header, place: str) -> Iterator[Problem]:
    try:
        expected = table_path(header.torch_series, header.arch).as_posix()
    except ValueError as error:
        yield Problem(kind="misplaced", text=f"header.arch: {error}; build the table again")
        return
    if place != expected:
        yield Problem(
            kind="misplaced",
            text=f"a table of torch {header.torch_series} for {header.arch!r}: expected at "
            f"{expected}, found at {place}; move it or build it again",
        )


def _content_problems(table: Table, path: Path) -> Iterator[Problem]:
    header = table.header
    try:
        table.verify()
        held = dict(table.items())
    except ValueError as error:  # InvalidTableError, or what the writer refuses
        yield Problem(kind="damaged", text=str(error))
        return
    again = write_table(
        held,
        table_version=header.table_version,
        series=header.torch_series,
        arch=header.arch,
        serves_base_arch=header.serves_base_arch,
    )
    if again != path.read_bytes():
        text = f"{path}: the table does not re-encode to the same bytes; build it again"
        yield Problem(kind="damaged", text=text)
    for key in held:
        yield from _key_problems(key, header.arch)


def _key_problems(key: str, arch: str | None) -> Iterator[Problem]:
    try:
        device = parse_key(key).device
    except InvalidKeyError as error:
        yield Problem(kind="key", text=f"{error}; remove it from the dumps and build again")
        return
    if device != arch:
        yield Problem(
            kind="key",
            text=f"{key}: expected a key of the header's arch {arch!r}, found {device!r}; "
            "build the table again",
        )


def _template_problems(header: Header, known: Mapping[str, TemplateHashes]) -> Iterator[Problem]:
    rocm = (header.arch or "").startswith("gfx") or any(s.hip for s in header.sources)
    if not known:
        yield Problem(
            kind="unknown",
            text=f"no hashes of torch {header.torch_series} are known here; run "
            f"'python -m build_tools hashes --write' on torch {header.torch_series}",
        )
    for name, hashes in known.items():
        for template_id, template_hash in header.templates:
            problem = hashes.problem(template_id, template_hash, rocm=rocm)
            if problem is not None:
                yield Problem(kind="stale", text=f"{name} hashes: {problem}; record it again")
