"""The form of a dump file, reader and writer together.

A dump is one JSON object. Its names are lookup keys and its values lists of plain
entries, so that ``torch._inductor.config.lookup_table.table = json.load(open(dump))``
works as it is. One reserved name that no lookup key can equal holds what the host's
plain form has no place for::

    {
    "inductor-tables": {
     "format_version": 1,
     "provenance": {"torch": "2.13.0+cu130", "device": "NVIDIA H200", ...},
     "ranks": {<key>: [0, 1]},
     "timings_ns": {<key>: [9760, null]},
     "proofs": {<key>: [{"spread_ns": 40, "aten_ns": 9760, ...}, null]}},
    <key>: [{"template_id": "aten::mm"}, {"template_id": "triton::mm", ...}]
    }

``ranks``, ``timings_ns`` and ``proofs`` are parallel to the entries. Only what was tuned has
``proofs``; keys without any are left out of it, and it is left out of a dump without any. A
dump that was carried over to another torch has ``"carried": {"by": "hash", "dump": <digest>,
"to": "2.14"}`` besides, see :class:`Carried`. An object without the reserved name is a plain
dump: no times, no provenance, and an entry's position is its rank.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from inductor_tables.errors import InvalidDumpError, InvalidKeyError
from inductor_tables.keys import parse_key
from inductor_tables.schema import (
    CARRIED,
    MAX_ENTRIES_PER_KEY,
    Config,
    ParamValue,
    Proof,
    Source,
    check_count,
    check_list,
    check_proof,
    check_text,
    plain_config,
    proof_order,
    shown,
)
from inductor_tables.strict_json import check_object, parse_json, read_limited
from inductor_tables.versions import TorchSeries, torch_series

RESERVED_NAME: Final = "inductor-tables"
FORMAT_VERSION: Final = 1
MAX_DUMP_BYTES: Final = 2**30
"""Largest file in bytes that :func:`read_dump` opens."""

PROVENANCE_FIELDS: Final = (
    "torch",
    "triton",
    "cuda",
    "hip",
    "driver",
    "device",
    "arch",
    "sm_count",
    "clocks",
    "date",
)
"""What a dump may say of where it was recorded; each may be null or missing."""

_RESERVED_FIELDS = ("format_version", "provenance", "ranks", "timings_ns")
_OPTIONAL_FIELDS = ("carried", "proofs")
_CARRIED_FIELDS = {"by", "dump", "to"}
_DIGEST = re.compile("[0-9a-f]{32}", re.ASCII)
_RESERVED_PLACE = f'["{RESERVED_NAME}"]'


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One measured choice for one key.

    ``time_ns`` is the time in whole nanoseconds, None where the dump has none. ``rank``
    is the choice's place, from 0, among those of its autotuning run, fastest first.
    ``proof`` is None for what was recorded but not tuned.
    """

    key: str
    config: Config
    time_ns: int | None
    rank: int
    proof: Proof | None = None

    @property
    def order(self) -> tuple[float, int, tuple[str, ...], tuple[int, ...]]:
        """Sort key within one lookup key: fastest first, unknown times last."""
        time_ns = math.inf if self.time_ns is None else self.time_ns
        return (time_ns, self.rank, self.config.order, proof_order(self.proof))


@dataclass(frozen=True, kw_only=True)
class Carried:
    """What a dump says that was carried over from the torch that it was recorded with.

    Attributes:
        series: the torch that its rows are for, with the template hashes that they have there.
        by: how they were found to serve it: ``hash`` or ``code``, as in
            :class:`~inductor_tables.schema.Source`.
        dump_digest: digest of the dump that was recorded.
    """

    series: TorchSeries
    by: str
    dump_digest: str


@dataclass(frozen=True, kw_only=True)
class Dump:
    """One dump file, checked throughout.

    Attributes:
        resource: the file, for messages.
        digest: BLAKE2b-128 of the file's bytes in hex.
        rows: all rows, in the order of the file.
        source: what the dump says of its measurements.
        arch: gcnArchName of the device that ``source`` describes, None if not said.
        plain: the file is in the host's plain form, without times and provenance.
        carried: None for what was recorded on the torch that it is for.
    """

    resource: str
    digest: str
    rows: tuple[Row, ...]
    source: Source
    arch: str | None
    plain: bool
    carried: Carried | None = None

    def source_of(self, row: Row) -> Source:
        """Return where a row was measured.

        On a box with two GPU models a dump holds keys of both but describes one device:
        rows of the other get no device, SM count and clocks.
        """
        device = parse_key(row.key).device
        if self.arch is None or device in (None, self.arch):
            return self.source
        return replace(self.source, device=None, sm_count=None, clocks=None)

    def plain_table(self) -> dict[str, list[dict[str, ParamValue]]]:
        """Return the host's plain form: lookup key to plain entries, in the file's order."""
        table: dict[str, list[dict[str, ParamValue]]] = {}
        for row in self.rows:
            table.setdefault(row.key, []).append(dict(row.config.plain))
        return table


def read_dump(path: str | os.PathLike[str]) -> Dump:
    """Read a dump file, ours or plain, and check every field of it.

    Raises:
        InvalidDumpError: the file is no dump, is damaged, is larger than 1 GiB, or holds
            a row that may not go into a table; the message names file and place.
        OSError: the file cannot be read.
    """
    resource = os.fspath(path)
    data = read_limited(path, MAX_DUMP_BYTES, _Reader(resource).fail)
    return parse_dump(data, resource)


def parse_dump(data: bytes, resource: str) -> Dump:
    """Check the bytes of a dump; ``resource`` names them in messages.

    Raises:
        InvalidDumpError: as for :func:`read_dump`.
    """
    return _Reader(resource).dump(data)


def make_row(
    key: str, entry: Any, *, time_ns: int | None, rank: int, proof: Proof | None = None
) -> Row:
    """Make a row of one entry in the host's plain form.

    Raises:
        InvalidDumpError: key, entry, time, rank or proof may not go into a dump.
    """
    reader = _Reader("recording")
    reader.check_key(key, "key")
    return Row(
        key=key,
        config=plain_config(entry, str(_template_id(entry)), reader.fail),
        time_ns=check_count(time_ns, "time_ns", reader.fail, optional=True),
        rank=check_count(rank, "rank", reader.fail),
        proof=None if proof is None else check_proof(proof, "proof", reader.fail),
    )


def _template_id(entry: Any) -> Any:
    return entry.get("template_id", "entry") if isinstance(entry, Mapping) else "entry"


class _Reader:
    """Checks one dump; every method names the place of what it refuses."""

    def __init__(self, resource: str) -> None:
        self._resource = resource

    def fail(self, where: str, problem: str) -> NoReturn:
        raise InvalidDumpError(self._resource, where, problem)

    def dump(self, data: bytes) -> Dump:
        content = self._map(parse_json(data, self.fail), "top level")
        plain = RESERVED_NAME not in content
        reserved = content.pop(RESERVED_NAME, None)
        configs = {key: self._configs(key, entries) for key, entries in content.items()}
        if plain:
            times: Mapping[str, Sequence[int | None]]
            times = {key: [None] * len(found) for key, found in configs.items()}
            ranks: Mapping[str, Sequence[int]]
            ranks = {key: range(len(found)) for key, found in configs.items()}
            provenance: Mapping[str, Any] = {}
            proofs: Mapping[str, Sequence[Proof | None]] = {}
            carried = None
        else:
            fields = self._reserved(reserved)
            times = self._parallel(fields, "timings_ns", configs, optional=True)
            ranks = self._parallel(fields, "ranks", configs, optional=False)
            provenance = self.provenance(fields["provenance"], f"{_RESERVED_PLACE}.provenance")
            proofs = self._proofs(fields.get("proofs", {}), configs)
            carried = self._carried(fields.get("carried"), provenance.get("torch"))
        digest = blake2b(data, digest_size=16).hexdigest()
        named = {name: value for name, value in provenance.items() if name != "arch"}
        return Dump(
            resource=self._resource,
            digest=digest,
            rows=tuple(
                Row(key=key, config=config, time_ns=time_ns, rank=rank, proof=proof)
                for key, found in configs.items()
                for config, time_ns, rank, proof in zip(
                    found, times[key], ranks[key], proofs.get(key, [None] * len(found)), strict=True
                )
            ),
            source=Source(
                dump_digest=carried.dump_digest if carried else digest,
                carried=carried.by if carried else None,
                **named,
            ),
            arch=provenance.get("arch"),
            plain=plain,
            carried=carried,
        )

    def check_key(self, key: str, where: str) -> None:
        try:
            parse_key(key)
        except InvalidKeyError as error:
            self.fail(where, str(error))

    def provenance(self, raw: Any, where: str) -> dict[str, Any]:
        fields = self._map(raw, where)
        unknown = sorted(set(fields) - set(PROVENANCE_FIELDS))
        if unknown:
            self.fail(
                where, f"unknown field {unknown[0][:200]!r}; known: {', '.join(PROVENANCE_FIELDS)}"
            )
        for name, value in fields.items():
            if name == "sm_count":
                check_count(value, f"{where}.sm_count", self.fail, optional=True)
            else:
                check_text(value, f"{where}.{name}", self.fail)
        self._check_torch(fields.get("torch"), f"{where}.torch")
        return fields

    def _check_torch(self, version: str | None, where: str) -> None:
        try:
            if version is not None:
                torch_series(version)
        except ValueError as error:
            self.fail(where, str(error))

    def _map(self, value: Any, where: str) -> dict[str, Any]:
        return check_object(value, where, self.fail)

    def _configs(self, key: str, entries: Any) -> list[Config]:
        self.check_key(key, _place(key[:200]))
        place = _place(key)
        listed = check_list(entries, place, self.fail, MAX_ENTRIES_PER_KEY)
        return [
            plain_config(self._map(entry, f"{place}[{n}]"), f"{place}[{n}]", self.fail)
            for n, entry in enumerate(listed)
        ]

    def _reserved(self, raw: Any) -> dict[str, Any]:
        fields = self._map(raw, _RESERVED_PLACE)
        version = fields.get("format_version")
        if type(version) is not int or version != FORMAT_VERSION:
            self.fail(
                f"{_RESERVED_PLACE}.format_version",
                f"{shown(version)} is not known here (this release reads {FORMAT_VERSION}); "
                "update inductor-tables or record again",
            )
        if tuple(sorted(set(fields) - set(_OPTIONAL_FIELDS))) != _RESERVED_FIELDS:
            self.fail(
                _RESERVED_PLACE,
                f"expected the fields {', '.join(_RESERVED_FIELDS)} and perhaps "
                f"{', '.join(_OPTIONAL_FIELDS)}, found {', '.join(sorted(fields))[:200]!r}",
            )
        return fields

    def _carried(self, raw: Any, torch: str | None) -> Carried | None:
        if raw is None:
            return None
        place = f"{_RESERVED_PLACE}.carried"
        fields = self._map(raw, place)
        if fields.keys() != _CARRIED_FIELDS:
            self.fail(place, f"expected the fields {', '.join(sorted(_CARRIED_FIELDS))}")
        by, dump, to = (fields[name] for name in ("by", "dump", "to"))
        if torch is None:
            self.fail(f"{_RESERVED_PLACE}.provenance.torch", "a carried dump has to say it")
        if by not in CARRIED:
            self.fail(f"{place}.by", f"expected one of {', '.join(CARRIED)}, found {shown(by)}")
        if not isinstance(dump, str) or not _DIGEST.fullmatch(dump):
            self.fail(f"{place}.dump", f"{shown(dump)} is not a digest of 32 hex digits")
        if not isinstance(to, str) or not _is_series(to):
            self.fail(f"{place}.to", f"{shown(to)} is not the series of a torch such as '2.13'")
        return Carried(series=TorchSeries(to), by=by, dump_digest=dump)

    def _parallel(
        self,
        fields: Mapping[str, Any],
        name: str,
        configs: Mapping[str, Sequence[Config]],
        *,
        optional: bool,
    ) -> dict[str, Sequence[Any]]:
        """Return the numbers that stand beside the entries, key by key."""
        place = f"{_RESERVED_PLACE}.{name}"
        numbers = self._map(fields[name], place)
        differing = sorted(set(numbers) ^ set(configs))
        if differing:
            self.fail(place, f"{differing[0][:200]!r} is not both here and a key of the dump")
        for key, listed in numbers.items():
            where = f"{place}{_place(key)}"
            check_list(listed, where, self.fail)
            if len(listed) != len(configs[key]):
                self.fail(where, f"{len(listed)} numbers for {len(configs[key])} entries")
            for n, number in enumerate(listed):
                check_count(number, f"{where}[{n}]", self.fail, optional=optional)
        return numbers

    def _proofs(
        self, raw: Any, configs: Mapping[str, Sequence[Config]]
    ) -> dict[str, Sequence[Proof | None]]:
        """Return the proofs that stand beside the entries of the keys that have any."""
        place = f"{_RESERVED_PLACE}.proofs"
        proofs = self._map(raw, place)
        for key, listed in proofs.items():
            where = f"{place}{_place(key[:200])}"
            if key not in configs:
                self.fail(where, "not a key of the dump")
            check_list(listed, where, self.fail)
            if len(listed) != len(configs[key]):
                self.fail(where, f"{len(listed)} proofs for {len(configs[key])} entries")
            proofs[key] = [self._proof(proof, f"{where}[{n}]") for n, proof in enumerate(listed)]
        return proofs

    def _proof(self, raw: Any, where: str) -> Proof | None:
        if raw is None:
            return None
        fields = self._map(raw, where)
        if fields.keys() != set(Proof._fields):
            self.fail(where, f"expected null or the fields {', '.join(Proof._fields)}")
        return check_proof([fields[name] for name in Proof._fields], where, self.fail)


def _is_series(text: str) -> bool:
    try:
        return torch_series(text) == text
    except ValueError:
        return False


def _place(key: str) -> str:
    return f"[{json.dumps(key)}]"


class KeyText(NamedTuple):
    """What a dump file says of one key, as JSON texts; ``proofs`` is None without any."""

    entries: str
    ranks: str
    timings_ns: str
    proofs: str | None = None


def render_key(rows: Iterable[Row]) -> KeyText:
    """Render the rows of one key, fastest first; the order they come in does not matter."""
    ordered = sorted(rows, key=lambda row: row.order)
    proofs = [row.proof and row.proof._asdict() for row in ordered]
    return KeyText(
        entries=json.dumps([dict(row.config.plain) for row in ordered]),
        ranks=json.dumps([row.rank for row in ordered]),
        timings_ns=json.dumps([row.time_ns for row in ordered]),
        proofs=json.dumps(proofs) if any(proofs) else None,
    )


def join_keys(
    texts: Mapping[str, KeyText], provenance: Mapping[str, Any], carried: Carried | None = None
) -> bytes:
    """Put rendered keys together into the bytes of a dump, sorted by key.

    Raises:
        InvalidDumpError: ``provenance`` has unknown fields or values that may not be in a
            dump.
    """
    _Reader("recording").provenance(dict(provenance), "provenance")
    names = {key: json.dumps(key) for key in sorted(texts)}
    ranks = ", ".join(f"{name}: {texts[key].ranks}" for key, name in names.items())
    timings = ", ".join(f"{name}: {texts[key].timings_ns}" for key, name in names.items())
    proved = {name: text for key, name in names.items() if (text := texts[key].proofs)}
    proofs = ", ".join(f"{name}: {text}" for name, text in proved.items())
    reserved = (
        f'"{RESERVED_NAME}": {{\n "format_version": {FORMAT_VERSION},\n{_carried_text(carried)}'
        f' "provenance": {json.dumps(dict(provenance), sort_keys=True)},\n'
        f' "ranks": {{{ranks}}},\n "timings_ns": {{{timings}}}'
        + (f',\n "proofs": {{{proofs}}}}}' if proved else "}")
    )
    lines = [reserved, *(f"{name}: {texts[key].entries}" for key, name in names.items())]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode("ascii")


def _carried_text(carried: Carried | None) -> str:
    if carried is None:
        return ""
    fields = {"by": carried.by, "dump": carried.dump_digest, "to": carried.series}
    return f' "carried": {json.dumps(fields)},\n'


def render_dump(
    rows: Iterable[Row], provenance: Mapping[str, Any], carried: Carried | None = None
) -> bytes:
    """Return the bytes of a dump; the same content gives the same bytes.

    Raises:
        InvalidDumpError: as for :func:`join_keys`.
    """
    by_key: dict[str, list[Row]] = {}
    for row in rows:
        by_key.setdefault(row.key, []).append(row)
    texts = {key: render_key(found) for key, found in by_key.items()}
    return join_keys(texts, provenance, carried)


def write_atomically(path: Path, data: bytes, *, exclusive: bool = False) -> None:
    """Put ``data`` at ``path`` so that a reader sees the file before or after, never half.

    The bytes go to a hidden ``.tmp`` file in the same directory, which no pattern for
    dumps matches even if the writer is killed, then to the disk, then to the name.

    With ``exclusive`` no file is ever replaced: the hidden file is named after ``path``
    alone and made exclusively, so that of several such writers only one gets the name.
    No hard link is used, since network and object storage may lack them.

    Raises:
        FileExistsError: ``exclusive``, and ``path`` exists or is being written.
        OSError: the file cannot be written; what was at ``path`` is untouched.
    """
    unique = "" if exclusive else f".{os.getpid()}.{secrets.token_hex(4)}"
    temporary = path.with_name(f".{path.name}{unique}.tmp")
    descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if exclusive and os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_directory(path.parent)


def _sync_directory(directory: Path) -> None:
    """Have a new name survive a power cut too, where the file system can do that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
