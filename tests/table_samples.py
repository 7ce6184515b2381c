"""Tables that the tests share, and a second writer that can make broken ones.

``take_apart`` and ``put_together`` know the format from docs/format.md, not from
``inductor_tables.table``: a forged table has the right digests over the wrong content.
"""

from __future__ import annotations

import keyword
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Final, NoReturn

import msgpack

from inductor_tables.schema import Config, Entry, Proof, Source
from inductor_tables.table import Table, write_table

Entries = dict[str, tuple[Entry, ...]]

H200 = "NVIDIA H200"
MI300 = "gfx942:sramecc+:xnack-"

MM = f"{H200}+((torch.bfloat16, [16, 4096], [4096, 1]), (torch.bfloat16, [4096, 64], [1, 4096]))+mm"
NEAR_MM = MM.replace("[16, 4096]", "[17, 4096]")
ADDMM = (
    f"{MI300}+((torch.float16, [64], [1]), (torch.float16, [8, 32], [32, 1]), "
    "(torch.float16, [32, 64], [64, 1]))+alpha=1e-05&beta=1+addmm"
)
BMM = "((torch.float32, [2, 3, 5], [15, 5, 1]), (torch.float32, [2, 5, 7], [35, 7, 1]))+bmm"
HASHED = "a key with # and 7 numbers 8"

HASH = "ab" * 32
OTHER_HASH = "cd" * 32

RECORDED = Source(
    dump_digest="11" * 32,
    torch="2.13.0+cu130",
    triton="3.7.1",
    cuda="13.0",
    driver="580.65.06",
    device=H200,
    sm_count=132,
    clocks="locked 1980 MHz",
    date="2026-05-04T03:02:01Z",
)
CARRIED = replace(RECORDED, dump_digest="22" * 32, torch="2.12.1", carried="hash")
UNKNOWN = Source(dump_digest="33" * 32)


def config(
    template_id: str = "triton::mm", template_hash: str | None = HASH, **params: Any
) -> Config:
    """Return a configuration with some realistic parameters and the given ones."""
    if not params:
        params = {"BLOCK_M": 64, "ACC_TYPE": "tl.float32", "EVEN_K": True, "hint_override": None}
    return Config(
        template_id=template_id, template_hash=template_hash, params=tuple(sorted(params.items()))
    )


ATEN = Config(template_id="aten::mm", template_hash=None, params=())


def entry(
    configured: Config,
    time_ns: int | None = 1000,
    source: Source = RECORDED,
    proof: Proof | None = None,
) -> Entry:
    """Return an entry."""
    return Entry(config=configured, time_ns=time_ns, source=source, proof=proof)


SMALL: Entries = {
    MM: (
        entry(config(), 9_700),
        entry(config(BLOCK_M=128, num_warps=8, USE_FAST_ACCUM=False), 12_100, CARRIED),
        entry(ATEN, None, UNKNOWN),
    ),
    ADDMM: (entry(config("triton::mm_persistent_tma", OTHER_HASH, BLOCK_K=-1), 5_000),),
    BMM: (entry(config(), 2**53, CARRIED),),
    HASHED: (entry(ATEN, 0),),
}
"""Every kind of key, value and source in a table of less than 2 kB."""

PROOF = Proof(spread_ns=60, aten_ns=11_400, host_ns=10_200, previous_ns=None, rounds=24)

PROVED: Entries = {
    MM: (
        entry(config(), 9_700, proof=PROOF),
        entry(config(BLOCK_M=128, num_warps=8), 12_100, CARRIED),
        entry(ATEN, 12_200, proof=PROOF._replace(spread_ns=0, host_ns=None, previous_ns=9_800)),
    ),
    BMM: (entry(config(), 2**53, CARRIED, Proof(spread_ns=2**53, rounds=0)),),
    HASHED: (entry(ATEN, 0),),
}
"""Keys of which all, some and none of the entries have a proof."""


def write(
    entries: Mapping[str, Sequence[Entry]],
    *,
    table_version: str = "2026.1",
    series: str = "2.13",
    arch: str | None = H200,
    serves_base_arch: bool = False,
) -> bytes:
    """Write a table with a plain header."""
    return write_table(
        entries,
        table_version=table_version,
        series=series,
        arch=arch,
        serves_base_arch=serves_base_arch,
    )


def contents(data: bytes) -> Entries:
    """Read a table in full."""
    return dict(Table(data, "sample").items())


@dataclass
class Parts:
    """A table taken apart: the header as Python values, the records as bytes."""

    header: dict[str, Any]
    records: list[bytes]
    version: Any = 1
    magic: Any = "inductor-tables"
    raw_header: bytes | None = field(default=None)
    """Goes in place of ``header``, for what no dict can hold."""

    @property
    def buckets(self) -> list[bytes]:
        """The records after the configurations."""
        return self.records[self.header["config_count"] :]

    def change_bucket(self, number: int, content: Any) -> None:
        """Put a value, or bytes as they are, in place of a bucket."""
        packed = content if isinstance(content, bytes) else pack(content)
        self.records[self.header["config_count"] + number] = packed


def pack(value: Any) -> bytes:
    """Return a value as msgpack."""
    packed: bytes = msgpack.packb(value, use_bin_type=True)
    return packed


def pack_pairs(pairs: Sequence[tuple[Any, Any]]) -> bytes:
    """Return a msgpack map that may hold a key twice."""
    assert len(pairs) < 16
    return bytes([0x80 | len(pairs)]) + b"".join(pack(k) + pack(v) for k, v in pairs)


def take_apart(data: bytes) -> Parts:
    """Read a table without the reader."""
    magic, version, _, header, index, records = msgpack.unpackb(data, raw=False)
    ends = [struct.unpack_from("<I", index, at)[0] for at in range(0, len(index), 20)]
    starts = [0, *ends][: len(ends)]
    return Parts(
        header=msgpack.unpackb(header, raw=False),
        records=[records[start:end] for start, end in zip(starts, ends, strict=True)],
        version=version,
        magic=magic,
    )


def put_together(parts: Parts) -> bytes:
    """Write a table without the writer, with the digests that its content has."""
    header = pack(parts.header) if parts.raw_header is None else parts.raw_header
    index, end = b"", 0
    for record in parts.records:
        end += len(record)
        index += struct.pack("<I", end) + blake2b(record, digest_size=16).digest()
    root = blake2b(header + index, digest_size=32).digest()
    return pack([parts.magic, parts.version, root, header, index, b"".join(parts.records)])


def refuse(where: str, problem: str) -> NoReturn:
    """Fail as the checks of ``inductor_tables.schema`` expect."""
    raise ValueError(f"{where}: {problem}")


EVIL_TEXTS: Final = [
    "(print('x') or 4)",
    "__import__('os').system('true')",
    "__import__('os')",
    "tl.float32; import os",
    "tl.float32\nimport os",
    "tl.float32\n",
    "\ntl.float32",
    " tl.float32",
    "tl.float32 ",
    "tl.float32#",
    "tl.float32\\",
    "tl.float32)",
    "tl.float32.__class__",
    "tl.float32()",
    "tl.__class__",
    "tl.static_print",
    "tl.device_assert",
    "tl.load",
    "tl.inline_asm_elementwise",
    "torch.load",
    "torch.hub",
    "torch.ops",
    "torch._dynamo",
    "torch.float32.fget",
    "os.float32",
    "builtins.exec",
    "exec",
    "float32",
    "tl",
    "tl.",
    "tl..float32",
    "TL.float32",
    "tl.Float32",
    "tl.float",
    "tl.float\uff13\uff12",
    "tl.fl\u043eat32",
    "tl\u2024float32",
    "\uff54l.float32",
    "tl.float32\u200b",
    "tl.float32\x00",
    "tl.float" + "3" * 100,
    "4",
    "True",
    "None",
    "",
    "{{4}}",
    "{%raw%}",
    "'",
    '"""',
    "lambda: 4",
    "../../etc/passwd",
    "/etc/passwd",
]
"""Texts that no parameter may have: each would do harm, or look harmless, in source."""

EVIL_VALUES: Final[list[Any]] = [
    1.0,
    4.5,
    float("nan"),
    float("inf"),
    -float("inf"),
    [],
    [4],
    (4,),
    {},
    {"a": 1},
    b"tl.float32",
    bytearray(b"x"),
    2**31,
    -(2**31),
    2**63,
    2**64,
    10**5000,
    1j,
    {1},
    object(),
    int,
    Ellipsis,
]
"""Values of other types, or out of range, that no parameter may have."""

EVIL_NAMES: Final[list[Any]] = [
    "",
    " ",
    "BLOCK M",
    "BLOCK-M",
    "BLOCK.M",
    "1BLOCK",
    "_BLOCK",
    "__class__",
    "BLOCK_M\n",
    "BLOCK_M=4, x",
    "x;import os",
    "x)",
    "BLOCK_\u041c",
    "\uff22LOCK_M",
    "BLOCK_M\u0661",
    "../../etc/passwd",
    "/etc/passwd",
    "C:\\x",
    "x" * 65,
    "template_id",
    "template_hash",
    *keyword.kwlist,
    None,
    4,
    4.0,
    True,
    b"BLOCK_M",
    ("BLOCK_M",),
]
"""Names that no parameter may have."""
