"""The table format, reader and writer together.

A table is one msgpack array::

    [magic, format version, root digest, header, index, records]

``header`` is a msgpack map. ``records`` is a blob of records that are decoded one by
one: first the distinct configurations, then the buckets. A bucket maps the keys whose
CRC-32 falls into it to their entries: ``[config, time_ns, source, ...]``, three numbers
an entry. Where any of a key's entries has a proof, one bin follows that holds the proofs of
all, so that a look-up decodes none but those of its key. ``index`` holds, for every record,
where it ends (uint32, little endian) and its BLAKE2b-128 digest. The root digest is
BLAKE2b-256 over header and index, so that it vouches for every byte while opening a table
reads no record at all.

A key is stored exactly, never as a hash of itself: its skeleton (a text shared by
thousands of keys, kept in the header) and its numbers, so that no key can return
another key's entry.

Format version 1 knows no proofs. A table without any is still written in it.
"""

from __future__ import annotations

import os
import struct
import weakref
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from hashlib import blake2b
from itertools import accumulate
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import msgpack
from packaging.version import InvalidVersion, Version

from inductor_tables.errors import InvalidTableError
from inductor_tables.keys import MAX_KEY_LENGTH, join_key, split_key
from inductor_tables.schema import (
    CARRIED,
    MAX_COUNT,
    MAX_ENTRIES_PER_KEY,
    Config,
    Entry,
    Fail,
    Header,
    Proof,
    Source,
    check_count,
    check_hash,
    check_list,
    check_params,
    check_proof,
    check_template_id,
    check_text,
    proof_order,
    shown,
)
from inductor_tables.versions import torch_series

MAGIC: Final = "inductor-tables"
FORMAT_VERSION: Final = 2
"""The newest format version; all from 1 on are read and written."""

KEYS_PER_BUCKET: Final = 24
"""Few enough that a bucket decodes in a few µs, many enough that the index stays small."""

_END = struct.Struct("<I")
_ARRAY = struct.Struct(">BI")
_DIGEST_SIZE = 16
_INDEX_ITEM = _END.size + _DIGEST_SIZE
_MAX_ITEMS = 2**20
_MAX_HEADER = 2**26
_HEADER_FIELDS = (
    "arch",
    "config_count",
    "entry_count",
    "key_count",
    "serves_base_arch",
    "skeletons",
    "sources",
    "table_version",
    "templates",
    "torch_series",
)
_FIELDS_OF_VERSION: Final = {1: _HEADER_FIELDS, 2: (*_HEADER_FIELDS, "proof_count")}
_SOURCE_FIELDS = tuple(field.name for field in fields(Source))
_CARRIED = (None, *CARRIED)

_T = TypeVar("_T")


class _File:
    """The bytes of a file, read when they are asked for.

    A mapping costs as little, but kills the process (SIGBUS) once the file is cut short.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor).atexit = False
        self._size = os.fstat(self._descriptor).st_size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _ = part.indices(self._size)
        return os.pread(self._descriptor, max(0, stop - start), start)


Buffer = bytes | _File


class Table:
    """A table that is open for look-ups; nothing but its header is decoded yet.

    Attributes:
        resource: where it came from, for messages.
        header: what it says of itself.
        digest: hex of the root digest; two tables with one digest are the same bytes.
        size: bytes of the whole table.
        format_version: of the file.
    """

    def __init__(self, data: Buffer, resource: str) -> None:
        """Read the header.

        Raises:
            InvalidTableError: ``data`` is no table of this format, is cut short or
                changed; the message names ``resource`` and the place.
        """
        self.resource = resource
        self.size = len(data)
        frame = _frame(data, self._fail)
        self.format_version, root, header, index, self._records_at = frame
        if blake2b(header + index, digest_size=32).digest() != root:
            self._fail("header", "the root digest does not match: the file was changed or damaged")
        size = self.size - self._records_at
        end = _END.unpack_from(index, len(index) - _INDEX_ITEM)[0] if index else 0
        if end != size:
            self._fail("records", f"{size} bytes, but the last record ends at {end}")
        self._data = data
        self._rest = 0 if self.format_version == 1 else 1  # the proofs, behind three an entry
        self.digest = root.hex()
        self._index = index
        self._read_header(_decode(header, "header", self._fail))
        self._configs: dict[int, Config] = {}

    @classmethod
    def open(cls, path: Path) -> Table:
        """Open a file; it stays open, and a record is read when it is asked for.

        Raises:
            InvalidTableError: as for the constructor.
            OSError: the file cannot be read.
        """
        return cls(_File(path), str(path))

    def __len__(self) -> int:
        return self.header.key_count

    def lookup(self, key: str) -> tuple[Entry, ...]:
        """Return the entries of a key, fastest first; empty where the table lacks it.

        Raises:
            InvalidTableError: the part of the table that would hold the key is damaged.
        """
        encoded = self._encode(key)
        if encoded is None or not self._bucket_count:
            return ()
        bucket = self._bucket_of(encoded)
        held = self._bucket(bucket)
        return self._entries(held[encoded], f"buckets[{bucket}]") if encoded in held else ()

    def items(self) -> Iterator[tuple[str, tuple[Entry, ...]]]:
        """Yield every key with its entries, in the order of the keys' text.

        Raises:
            InvalidTableError: any part of the table is damaged.
        """
        stored = [
            (self._decode_key(encoded, f"buckets[{bucket}]"), found, bucket)
            for bucket in range(self._bucket_count)
            for encoded, found in self._bucket(bucket).items()
        ]
        for key, found, bucket in sorted(stored, key=lambda item: item[0]):
            yield key, self._entries(found, f"buckets[{bucket}]")

    def keys(self) -> Iterator[str]:
        """Yield every key, in the order of their text."""
        return (key for key, _ in self.items())

    def split_keys(self) -> Iterator[tuple[str, list[int]]]:
        """Yield the keys as :func:`~inductor_tables.keys.split_key` gives them, but fast.

        They come in the order of their hash, so that the first ones are a sample of all. A key
        that cannot be split is left out; that a look-up finds each is not checked.

        Raises:
            InvalidTableError: a part of the table is damaged; what was yielded is whole.
        """
        for bucket in range(self._bucket_count):
            where = f"buckets[{bucket}]"
            held = list(self._bucket(bucket))
            if not all(isinstance(encoded, bytes) for encoded in held):
                self._fail(where, "expected keys as msgpack bins")
            # One array of all keys of the bucket is decoded much faster than one by one.
            listed = _decode(_ARRAY.pack(0xDD, len(held)) + b"".join(held), where, self._fail)
            for raw in listed:
                if isinstance(raw, list) and raw and type(raw[0]) is int:
                    if not 0 <= raw[0] < len(self._skeletons):
                        self._fail(where, f"skeleton {raw[0]} does not exist")
                    yield self._skeletons[raw[0]], raw[1:]
                elif not isinstance(raw, str):
                    self._fail(where, f"expected a key, found {shown(raw)}")

    def verify(self) -> None:
        """Decode everything and compare with what the writer would make of it.

        Raises:
            InvalidTableError: some part is damaged, unreachable or not canonical.
        """
        held = dict(self.items())
        if len(held) != self.header.key_count:
            self._fail("header.key_count", f"{self.header.key_count}, but {len(held)} keys exist")
        again = write_table(
            held,
            table_version=self.header.table_version,
            series=self.header.torch_series,
            arch=self.header.arch,
            serves_base_arch=self.header.serves_base_arch,
        )
        if Table(again, self.resource).digest != self.digest:
            self._fail("records", "the table does not re-encode to the same bytes")

    def _fail(self, where: str, problem: str) -> NoReturn:
        raise InvalidTableError(self.resource, where, problem)

    def _read_header(self, raw: Any) -> None:
        fail = self._fail
        known = _FIELDS_OF_VERSION[self.format_version]
        if not isinstance(raw, dict) or raw.keys() != set(known):
            fail("header", f"expected a map of {', '.join(known)}")
        count: int = check_count(raw["config_count"], "header.config_count", fail)
        skeletons = check_list(raw["skeletons"], "header.skeletons", fail, _MAX_ITEMS)
        for number, skeleton in enumerate(skeletons):
            if not isinstance(skeleton, str) or len(skeleton) > MAX_KEY_LENGTH:
                fail(f"header.skeletons[{number}]", "expected a text of a key's length at most")
        self._skeletons = list(skeletons)
        self._skeleton_ids = {skeleton: number for number, skeleton in enumerate(skeletons)}
        if len(self._skeleton_ids) != len(skeletons):
            fail("header.skeletons", "a skeleton is listed twice")
        self._templates = _read_templates(raw["templates"], fail)
        sources = check_list(raw["sources"], "header.sources", fail, _MAX_ITEMS)
        self._sources = tuple(_read_source(s, f"header.sources[{n}]", fail)
                              for n, s in enumerate(sources))  # fmt: skip
        self._config_count = count
        self._bucket_count = len(self._index) // _INDEX_ITEM - count
        if self._bucket_count < 0:
            fail("header.config_count", f"{count} configurations, but the index is shorter")
        self.header = Header(
            table_version=_version(raw["table_version"], "header.table_version", fail),
            torch_series=_series(raw["torch_series"], "header.torch_series", fail),
            arch=check_text(raw["arch"], "header.arch", fail),
            serves_base_arch=_flag(raw["serves_base_arch"], "header.serves_base_arch", fail),
            key_count=check_count(raw["key_count"], "header.key_count", fail),
            entry_count=check_count(raw["entry_count"], "header.entry_count", fail),
            proof_count=check_count(raw.get("proof_count", 0), "header.proof_count", fail),
            templates=self._templates,
            sources=self._sources,
        )

    def _record(self, number: int, where: str) -> bytes:
        at = number * _INDEX_ITEM
        start = _END.unpack_from(self._index, at - _INDEX_ITEM)[0] if number else 0
        (end,) = _END.unpack_from(self._index, at)
        try:
            record = self._data[self._records_at + start : self._records_at + end]
        except OSError as error:
            self._fail(where, f"cannot be read: {error}")
        digest = self._index[at + _END.size : at + _INDEX_ITEM]
        if blake2b(record, digest_size=_DIGEST_SIZE).digest() != digest:
            self._fail(where, "the digest does not match: the file was changed or damaged")
        return record

    def _bucket_of(self, encoded: bytes) -> int:
        return zlib.crc32(encoded) % self._bucket_count

    def _bucket(self, bucket: int) -> dict[Any, Any]:
        where = f"buckets[{bucket}]"
        record = self._record(self._config_count + bucket, where)
        found = _decode(record, where, self._fail, unique=False)
        if not isinstance(found, dict):
            self._fail(where, f"expected a map, found {type(found).__name__}")
        if len(found) != _map_length(record):
            self._fail(where, "not valid msgpack: a map has a key twice")
        return found

    def _entries(self, found: Any, where: str) -> tuple[Entry, ...]:
        count, rest = divmod(len(found) if type(found) is list else 0, 3)
        if rest > self._rest or not 0 < count <= MAX_ENTRIES_PER_KEY:
            self._fail(where, "expected three numbers an entry")
        proofs = self._proofs(found[-1], count, where) if rest else [None] * count
        return tuple(
            Entry(
                config=self._config(found[at], where),
                time_ns=self._time(found[at + 1], where),
                source=self._source(found[at + 2], where),
                proof=proofs[at // 3],
            )
            for at in range(0, 3 * count, 3)
        )

    def _proofs(self, encoded: Any, count: int, where: str) -> list[Proof | None]:
        where = f"{where}.proofs"
        raw = _decode(encoded, where, self._fail) if isinstance(encoded, bytes) else None
        if type(raw) is not list or len(raw) != count:
            self._fail(where, f"expected a bin of a list with a proof or nil for {count} entries")
        return [None if one is None else check_proof(one, where, self._fail) for one in raw]

    def _time(self, time_ns: Any, where: str) -> int | None:
        if type(time_ns) is int and 0 <= time_ns <= MAX_COUNT:
            return time_ns
        checked: int | None = check_count(time_ns, f"{where}.time_ns", self._fail, optional=True)
        return checked

    def _source(self, number: Any, where: str) -> Source:
        if type(number) is not int or not 0 <= number < len(self._sources):
            self._fail(where, f"source {shown(number)} does not exist")
        return self._sources[number]

    def _config(self, number: Any, where: str) -> Config:
        known = self._configs.get(number) if type(number) is int else None
        if known is not None:
            return known
        if type(number) is not int or not 0 <= number < self._config_count:
            self._fail(where, f"configuration {shown(number)} does not exist")
        where = f"configs[{number}]"
        raw = _decode(self._record(number, where), where, self._fail)
        if not isinstance(raw, list) or len(raw) != 2 or not isinstance(raw[1], dict):
            self._fail(where, "expected [template, parameters]")
        template, params = raw
        if type(template) is not int or not 0 <= template < len(self._templates):
            self._fail(where, f"template {shown(template)} does not exist")
        template_id, template_hash = self._templates[template]
        config = self._configs[number] = Config(
            template_id=template_id,
            template_hash=template_hash,
            params=check_params(params, where, self._fail),
        )
        return config

    def _encode(self, key: str) -> bytes | None:
        parts = split_key(key)
        if parts is None:
            try:
                return _pack(key)
            except UnicodeEncodeError:  # a lone surrogate: no table can hold the key
                return None
        skeleton = self._skeleton_ids.get(parts[0])
        return None if skeleton is None else _pack([skeleton, *parts[1]])

    def _decode_key(self, encoded: Any, where: str) -> str:
        raw = _decode(encoded, where, self._fail) if isinstance(encoded, bytes) else None
        if isinstance(raw, list) and raw and all(type(number) is int for number in raw):
            try:
                raw = join_key(self._skeletons[raw[0]], raw[1:])
            except (IndexError, ValueError) as error:
                self._fail(where, f"a key cannot be read: {error}")
        if not isinstance(raw, str):
            self._fail(where, f"expected a key, found {shown(encoded)}")
        key = raw
        if not 0 < len(key) <= MAX_KEY_LENGTH:
            self._fail(where, f"a key of {len(key)} signs; at most {MAX_KEY_LENGTH} are allowed")
        if self._encode(key) != encoded or self._bucket_of(encoded) != int(where[8:-1]):
            self._fail(where, f"the key {key[:200]!r} cannot be found where it is")
        return key


def write_table(
    entries: Mapping[str, Sequence[Entry]],
    *,
    table_version: str,
    series: str,
    arch: str | None,
    serves_base_arch: bool = False,
) -> bytes:
    """Return the bytes of a table; the same content gives the same bytes.

    Every key's entries are stored fastest first, ties by content. The format version is the
    first that can hold them.

    Raises:
        ValueError: a key is empty, longer than 4096 signs or has no entries, a value is
            one that no table may hold, or the table would grow past its limits.
    """
    for key, listed in entries.items():
        _check_row(key, listed)
    rows = [entry for listed in entries.values() for entry in listed]
    configs = sorted({e.config for e in rows}, key=lambda c: c.order)
    templates = sorted({(c.template_id, c.template_hash) for c in configs}, key=_none_first)
    sources = sorted({e.source for e in rows}, key=_source_order)
    skeletons = sorted({parts[0] for parts in map(split_key, entries) if parts is not None})
    records = [
        *_config_records(configs, _numbered(templates)),
        *_bucket_records(entries, _numbered(skeletons), _numbered(configs), _numbered(sources)),
    ]
    proofs = sum(entry.proof is not None for entry in rows)
    header = _pack(
        {
            "arch": arch,
            "config_count": len(configs),
            "entry_count": len(rows),
            "key_count": len(entries),
            **({"proof_count": proofs} if proofs else {}),
            "serves_base_arch": serves_base_arch,
            "skeletons": skeletons,
            "sources": [[getattr(source, name) for name in _SOURCE_FIELDS] for source in sources],
            "table_version": _version(table_version, "table_version", _refuse),
            "templates": templates,
            "torch_series": series,
        }
    )
    index = _index(records)
    root = blake2b(header + index, digest_size=32).digest()
    version = 2 if proofs else 1
    table = _pack([MAGIC, version, root, header, index, b"".join(records)])
    Table(table, "new table")  # what cannot be read is not written
    return table


def _check_row(key: str, listed: Sequence[Entry]) -> None:
    if not key or len(key) > MAX_KEY_LENGTH or not 0 < len(listed) <= MAX_ENTRIES_PER_KEY:
        raise ValueError(f"cannot store {len(listed)} entries under the key {key[:200]!r}")
    try:
        for entry in listed:
            check_count(entry.time_ns, "time_ns", _refuse, optional=True)
            if entry.proof is not None:
                check_proof(entry.proof, "proof", _refuse)
    except ValueError as error:
        raise ValueError(f"under the key {key[:200]!r}: {error}") from error


def _refuse(where: str, problem: str) -> NoReturn:
    raise ValueError(f"{where}: {problem}")


def _numbered(items: Sequence[_T]) -> dict[_T, int]:
    return {item: number for number, item in enumerate(items)}


def _config_records(
    configs: Sequence[Config], templates: Mapping[tuple[str, str | None], int]
) -> list[bytes]:
    return [
        _pack(
            [
                templates[config.template_id, config.template_hash],
                dict(check_params(dict(config.params), f"configs[{number}]", _refuse)),
            ]
        )
        for number, config in enumerate(configs)
    ]


def _bucket_records(
    entries: Mapping[str, Sequence[Entry]],
    skeletons: Mapping[str, int],
    configs: Mapping[Config, int],
    sources: Mapping[Source, int],
) -> list[bytes]:
    count = -(-len(entries) // KEYS_PER_BUCKET)
    buckets: list[dict[bytes, str]] = [{} for _ in range(count)]
    for key in entries:
        parts = split_key(key)
        encoded = _pack(key if parts is None else [skeletons[parts[0]], *parts[1]])
        buckets[zlib.crc32(encoded) % count][encoded] = key

    def row(listed: Sequence[Entry]) -> list[int | bytes | None]:
        ordered = sorted(  # configurations and sources are numbered by content
            (e.time_ns is None, e.time_ns or 0, configs[e.config], sources[e.source],
             proof_order(e.proof), e.proof)
            for e in listed
        )  # fmt: skip
        numbers: list[int | bytes | None] = [
            value
            for unknown, time_ns, config, source, *_ in ordered
            for value in (config, None if unknown else time_ns, source)
        ]
        proofs = [proof for *_, proof in ordered]
        return [*numbers, _pack(proofs)] if any(proofs) else numbers

    return [
        _pack({encoded: row(entries[key]) for encoded, key in sorted(bucket.items())})
        for bucket in buckets
    ]


def _index(records: Sequence[bytes]) -> bytes:
    ends = list(accumulate(map(len, records)))
    if ends and ends[-1] >= 2**32:
        raise ValueError("a table cannot grow past 4 GiB; split it")
    return b"".join(
        _END.pack(end) + blake2b(record, digest_size=_DIGEST_SIZE).digest()
        for end, record in zip(ends, records, strict=True)
    )


def _pack(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


_PREFIXES: Final = {n: b"\x96" + _pack(MAGIC) + _pack(n) for n in _FIELDS_OF_VERSION}


def _decode(data: bytes, where: str, fail: Fail, *, unique: bool = True) -> Any:
    """Decode msgpack; without ``unique`` it is the caller who sees to keys that stand twice."""
    most = min(len(data), _MAX_ITEMS)
    try:
        return msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            object_pairs_hook=_no_duplicates if unique else None,
            ext_hook=_no_extension,
            max_array_len=most,
            max_map_len=most,
            max_ext_len=0,
        )
    # Every msgpack error is a ValueError; old releases reserve what a nested length promises.
    except (ValueError, RecursionError, MemoryError) as error:
        fail(where, f"not valid msgpack: {str(error) or type(error).__name__}")


def _no_duplicates(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a map has a key twice")
    return found


def _map_length(data: bytes) -> int:
    """Return how many keys a msgpack map promises; a hook that counts them takes longer."""
    short = data[0] & 0x0F
    return short if data[0] < 0xDE else int.from_bytes(data[1 : 3 if short == 0x0E else 5], "big")


def _no_extension(code: int, _data: bytes) -> NoReturn:
    raise ValueError(f"extension type {code} is not allowed")


def _frame(data: Buffer, fail: Fail) -> tuple[int, bytes, bytes, bytes, int]:
    """Return version, root digest, header and index, undecoded, and where the records start."""
    unpacker = msgpack.Unpacker(raw=False, max_buffer_size=256)
    unpacker.feed(data[:256])
    try:
        count = unpacker.read_array_header()
        magic, version = unpacker.unpack(), unpacker.unpack()
    except (ValueError, RecursionError, msgpack.UnpackException) as error:
        problem = str(error) or type(error).__name__
        fail("magic", f"not an inductor-tables table ({problem})")
    if magic != MAGIC:
        fail("magic", f"expected {MAGIC!r}, found {shown(magic)}: not an inductor-tables table")
    if type(version) is not int or version not in _PREFIXES:
        fail(
            "format_version",
            f"{shown(version)} is not known here (this release reads 1 to {FORMAT_VERSION}); "
            "update inductor-tables or rebuild the table",
        )
    if count != 6:
        fail("frame", f"expected 6 parts, found {count}")
    at = unpacker.tell()
    if data[:at] != _PREFIXES[version]:
        fail("frame", "the first two parts are not in their shortest form")
    parts = []
    for name in ("root digest", "header", "index", "records"):
        start, at = _blob(data, at, name, fail)
        parts.append(slice(start, at))
    if at != len(data):
        fail("frame", f"{len(data) - at} trailing bytes after the table's end")
    root, header, index = (data[part] for part in parts[:3])
    if len(index) % _INDEX_ITEM:
        fail("index", f"{len(index)} bytes are no multiple of {_INDEX_ITEM}")
    return version, root, header, index, parts[3].start


_BLOB_HEADS: Final[Mapping[bytes, tuple[struct.Struct | None, int]]] = {
    b"\xc4": (struct.Struct(">xB"), 0),  # each with the shortest blob that needs it
    b"\xc5": (struct.Struct(">xH"), 2**8),
    b"\xc6": (struct.Struct(">xI"), 2**16),
}


def _blob(data: Buffer, at: int, name: str, fail: Fail) -> tuple[int, int]:
    """Return where the content of the msgpack bin at ``at`` starts and ends."""
    promise = data[at : at + 5]
    head, least = _BLOB_HEADS.get(promise[:1], (None, 0))
    if head is None or head.size > len(promise):
        fail(name, "expected a msgpack bin; the file is cut short or damaged")
    (length,) = head.unpack_from(promise)
    if length < least:
        fail(name, f"the length {length} is not in its shortest form")
    if name == "header" and length > _MAX_HEADER:
        fail(name, f"{length} bytes; at most {_MAX_HEADER} are allowed")
    start = at + head.size
    if start + length > len(data):
        fail(name, f"cut short: {length} bytes promised, {len(data) - start} left")
    return start, start + length


def _read_templates(raw: Any, fail: Fail) -> tuple[tuple[str, str | None], ...]:
    templates = []
    for number, pair in enumerate(check_list(raw, "header.templates", fail, _MAX_ITEMS)):
        where = f"header.templates[{number}]"
        if not isinstance(pair, list) or len(pair) != 2:
            fail(where, "expected [template id, hash]")
        templates.append(
            (check_template_id(pair[0], where, fail), check_hash(pair[1], where, fail))
        )
    return tuple(templates)


def _read_source(raw: Any, where: str, fail: Fail) -> Source:
    values = check_list(raw, where, fail)
    if len(values) != len(_SOURCE_FIELDS):
        fail(where, f"expected {', '.join(_SOURCE_FIELDS)}")
    named = dict(zip(_SOURCE_FIELDS, values, strict=True))
    sm_count = check_count(named.pop("sm_count"), f"{where}.sm_count", fail, optional=True)
    texts = {name: check_text(value, f"{where}.{name}", fail) for name, value in named.items()}
    if texts["dump_digest"] is None or texts["carried"] not in _CARRIED:
        fail(where, "a source needs a dump's digest, and carries by 'hash' or 'code' or not at all")
    return Source(sm_count=sm_count, **texts)  # type: ignore[arg-type]


def _version(raw: Any, where: str, fail: Fail) -> str:
    try:
        return str(Version(check_text(raw, where, fail) or ""))
    except InvalidVersion:
        fail(where, f"{raw!r} is not a PEP 440 version")


def _series(raw: Any, where: str, fail: Fail) -> str:
    text = check_text(raw, where, fail) or ""
    try:
        series = torch_series(text)
    except ValueError:
        series = None
    if series is None or series != text:
        fail(where, f"{raw!r} is not a torch series such as '2.13'")
    return series


def _flag(raw: Any, where: str, fail: Fail) -> bool:
    if type(raw) is not bool:
        fail(where, f"expected a bool, found {shown(raw)}")
    return raw


def _none_first(pair: tuple[str, str | None]) -> tuple[str, str]:
    return pair[0], pair[1] or ""


def _source_order(source: Source) -> tuple[str, ...]:
    return tuple(repr(getattr(source, name)) for name in _SOURCE_FIELDS)  # None is not 'None'
