"""No value of a corpus of injections is evaluated or reaches generated source.

Each comes in by every way that data comes in: a dict, a table file with right digests,
a dump, and the build tools.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import pytest

pytest.importorskip("triton")
from click.testing import CliRunner
from oracle import Graph, lower, stock
from products import H200, MM_16, inputs, mm, triton_entry

import inductor_tables
from build_tools.cli import main as build_tools
from inductor_tables.errors import InvalidKeyError, InvalidTableError
from inductor_tables.host import installed_series
from inductor_tables.keys import parse_key
from inductor_tables.parameters import TUNING, merge
from inductor_tables.resources import user_tables
from inductor_tables.schema import Config, Entry, Source
from inductor_tables.table import Table, write_table

MARK = "injected7f3a"
"""Stands in every text of the corpus that would do something; never in generated source."""

RUNS = f"(open('{MARK}', 'w') and 4)"
"""Leaves a file in the working directory wherever it is evaluated."""

TEXTS: tuple[str, ...] = (
    RUNS,
    f"4\n{RUNS}",
    f"4; {RUNS}",
    f"4)\n{RUNS}\n(",
    f"'''\n{RUNS}\n'''",
    f'"""\n{RUNS}\n"""',
    f"4 if {RUNS} else 4",
    f"lambda: {RUNS}",
    f"[{RUNS} for _ in '1']",
    f"__import__('os').system('touch {MARK}')",
    f"exec({RUNS!r})",
    f"{{{{ {RUNS} }}}}",  # templates are rendered by jinja2
    f"{{% set x = {RUNS} %}}",
    "{{ cycler.__init__.__globals__.os.system('touch " + MARK + "') }}",
    "{{7*7}}",
    f"{{0.__class__.{MARK}}}",  # str.format
    f"%({MARK})s",
    "%s%s%s%n",
    f"${{{MARK}}}",
    f"[/{MARK}]",  # markup of the tables that are printed
    f"[link=file:///{MARK}]x[/link]",
    f"$(touch {MARK})",
    f"`touch {MARK}`",
    f"; touch {MARK} #",
    f"| tee {MARK}",
    f"4  # {MARK}",
    f"4\\\n{MARK}",
    f"4\r{MARK}",
    f"4\u2028{MARK}",
    f"4\x00{MARK}",
    f"\x1b]0;{MARK}\x07",
    f"tl.float32\n{MARK}",
    "tl.float32\n",
    " tl.float32",
    "tl.float32 ",
    "tl.\uff46loat32",  # NFKC makes an f of it
    "tl.flo\u0430t32",  # Cyrillic
    "tl.float\u0663\u0662",  # digits of another script
    "\u200btl.float32",
    "tl.__class__",
    "tl.float32.__class__",
    "tl.float32()",
    "tl.math.exp2",
    "torch.load",
    "os.system",
    "float32",
    "True",
    "None",
    "4",
    "0x10",
    "1e9",
    "-1",
    "",
    "'",
    '"',
    "\\",
    f"/tmp/{MARK}",
    f"../../{MARK}",
    f"C:\\{MARK}",
    f"file:///{MARK}",
    "é" * 10_000,
    "A" * 1_000_000,
)

NAMES: tuple[str, ...] = (
    *(text for text in TEXTS if text != "float32"),  # an identifier like any other
    "class",
    "import",
    "lambda",
    "None",
    "__class__",
    "__builtins__",
    "_x",
    "BLOCK M",
    "BLOCK_M=4",
    "BLOCK_M,",
    "BLOCK_\uff2d",
    "BLOCK_\u041c",
    "1BLOCK",
    "*",
    "**kwargs",
    "self.x",
    "A" * 65,
)
"""What no parameter may be called: names end up left of an ``=`` in generated source."""

OTHERS: tuple[Any, ...] = (
    10**30,
    -(10**30),
    2**31,
    1.5,
    float("inf"),
    float("nan"),
    [4],
    [RUNS],
    {"a": 4},
    {RUNS: RUNS},
)
"""Values of other types. Longer ints than these are no JSON and no msgpack."""


@pytest.fixture(autouse=True)
def _nothing_is_evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    yield
    assert not Path(MARK).exists(), "a value was evaluated"


def bad_entries() -> list[dict[str, Any]]:
    """The corpus as entries: as values, as names and as template ids."""
    values = [triton_entry(num_warps=value) for value in (*TEXTS, *OTHERS)]
    accumulators = [triton_entry(ACC_TYPE=value) for value in (*TEXTS, *OTHERS)]
    names = [{**triton_entry(), name: 4} for name in NAMES]
    ids = [triton_entry(template_id=value) for value in (*TEXTS, *OTHERS, None, True)]
    hashes = [triton_entry(template_hash=value) for value in (*TEXTS, *OTHERS, True)]
    return [*values, *accumulators, *names, *ids, *hashes]


HARMLESS = (
    "tl.__class__",
    "tl.float32.__class__",
    "tl.math.exp2",
    "torch.load",
    "os.system",
    "float32",
    "True",
    "None",
)
"""What has the shape of a template id, though no template is called so."""


def is_harmless(entry: dict[str, Any]) -> bool:
    """Whether an entry is one that a table may hold."""
    return entry["template_id"] in HARMLESS


GRAPH = Graph(fn=mm, args=inputs)


def assert_stock_code_without(refused: int) -> None:
    """Compile with the tables that are enabled: all are refused, the code is stock's."""
    found = lower(GRAPH)
    status = inductor_tables.status()
    assert len(status.problems) == refused
    assert status.hits == 0
    assert found.code == stock(GRAPH).code
    assert found.offered == stock(GRAPH).offered
    assert MARK not in found.code


class Parts(NamedTuple):
    """What of a table file of one entry is changed: see docs/format.md."""

    header: dict[str, Any]
    records: list[bytes]


def pack(value: Any) -> bytes:
    """Return a value as msgpack."""
    packed: bytes = msgpack.packb(value)
    return packed


def forged_table(change: Callable[[Parts], None]) -> bytes:
    """A table file with right digests, after ``change`` of its parts."""
    good = Entry(
        config=Config(
            template_id="triton::mm",
            template_hash=triton_entry()["template_hash"],
            params=tuple(sorted(PARAMS.items())),
        ),
        time_ns=1000,
        source=Source(dump_digest="0" * 32),
    )
    data = write_table({MM_16: [good]}, table_version="1", series=installed_series(), arch=H200)
    magic, version, _, header, index, records = msgpack.unpackb(data, raw=False)
    (end, _) = struct.iter_unpack("<I16x", index)
    parts = Parts(msgpack.unpackb(header, raw=False), [records[: end[0]], records[end[0] :]])
    change(parts)
    header, index, at = pack(parts.header), b"", 0
    for record in parts.records:
        at += len(record)
        index += struct.pack("<I", at) + blake2b(record, digest_size=16).digest()
    root = blake2b(header + index, digest_size=32).digest()
    return pack([magic, version, root, header, index, b"".join(parts.records)])


PARAMS = {
    name: value
    for name, value in triton_entry().items()
    if name not in ("template_id", "template_hash")
}


def forge(entry: dict[str, Any]) -> bytes:
    """A table file that holds one entry as it is."""

    def change(parts: Parts) -> None:
        params = {
            name: value
            for name, value in entry.items()
            if name not in ("template_id", "template_hash")
        }
        parts.header["templates"] = [[entry["template_id"], entry["template_hash"]]]
        parts.records[0] = pack([0, params])

    return forged_table(change)


def fits_msgpack(value: Any) -> bool:
    """Whether a value can stand in a table file at all."""
    try:
        pack(value)
    except (OverflowError, UnicodeEncodeError):
        return False
    return True


@pytest.mark.parametrize(
    "entry",
    [pytest.param(e, id=str(n)) for n, e in enumerate(bad_entries()) if not is_harmless(e)],
)
def test_no_way_in_takes_it(entry: dict[str, Any], tmp_path: Path) -> None:
    """As a dict, a table file and a dump: our error, with the place, and nothing else."""
    series = installed_series()
    with pytest.raises(InvalidTableError, match=re.escape("tables[0]: [")):
        user_tables({MM_16: [entry]}, series, "tables[0]")
    dump = tmp_path / "inductor_lut_x.json"
    dump.write_text(json.dumps({MM_16: [entry]}))
    with pytest.raises(InvalidTableError, match=re.escape(str(dump))):
        user_tables(dump, series, "tables[0]")
    if fits_msgpack(entry):
        table = tmp_path / "table.msgpack"
        table.write_bytes(forge(entry))
        with pytest.raises(InvalidTableError, match=re.escape(str(table))):
            Table.open(table).lookup(MM_16)


def test_refused_dicts_leave_stock_code() -> None:
    """The whole corpus as dicts, in a compile."""
    entries = [entry for entry in bad_entries() if not is_harmless(entry)]
    inductor_tables.enable([{MM_16: [entry]} for entry in entries])
    assert_stock_code_without(len(entries))


def test_refused_table_files_leave_stock_code(tmp_path: Path) -> None:
    """The whole corpus as table files with right digests, in a compile."""
    entries = [e for e in bad_entries() if not is_harmless(e) and fits_msgpack(e)]
    assert len(entries) > 200
    inductor_tables.enable(written(tmp_path, "table{}.msgpack", map(forge, entries)))
    assert_stock_code_without(len(entries))


def test_refused_dumps_leave_stock_code(tmp_path: Path) -> None:
    """The whole corpus as dumps, in a compile."""
    entries = [entry for entry in bad_entries() if not is_harmless(entry)]
    dumps = (json.dumps({MM_16: [entry]}).encode() for entry in entries)
    inductor_tables.enable(written(tmp_path, "inductor_lut_{}.json", dumps))
    assert_stock_code_without(len(entries))


def test_names_that_no_template_has_leave_stock_code() -> None:
    """What has the shape of a template id is looked for among the templates, and that is all."""
    entries = [entry for entry in bad_entries() if is_harmless(entry)]
    assert entries
    inductor_tables.enable({MM_16: entries})
    assert_stock_code_without(refused=0)
    assert sum(inductor_tables.status().dropped.values()) == len(entries)


def test_the_build_tools_refuse_it(tmp_path: Path) -> None:
    """The whole corpus as dumps for a build: an error with file and key, nothing written."""
    entries = bad_entries()
    for number, entry in enumerate(entries):
        out, dump = tmp_path / "out", tmp_path / f"dump{number}.json"
        dump.write_text(json.dumps({MM_16: [entry]}))
        arguments = ["build", str(dump), "--out", str(out), "--table-version", "1"]
        result = CliRunner().invoke(build_tools, [*arguments, "--torch", installed_series()])
        assert result.exit_code == 1, (entry, result.output[:500])
        assert isinstance(result.exception, SystemExit), entry
        assert dump.name in result.output.replace("\n", "")
        assert not out.exists(), entry


def test_provenance_of_a_dump_is_only_stored(tmp_path: Path) -> None:
    """A build refuses such a text, or the table holds it as it is."""
    for number, text in enumerate(text for text in TEXTS if text):
        reserved = {
            "format_version": 1,
            "provenance": {"torch": f"{installed_series()}.0", "device": text, "clocks": text},
            "ranks": {MM_16: [0]},
            "timings_ns": {MM_16: [1000]},
        }
        dump, out = tmp_path / f"dump{number}.json", tmp_path / f"out{number}"
        dump.write_text(
            json.dumps({"inductor-tables": reserved, MM_16: [{"template_id": "aten::mm"}]})
        )
        arguments = ["build", str(dump), "--out", str(out), "--table-version", "1"]
        result = CliRunner().invoke(build_tools, arguments)
        assert isinstance(result.exception, SystemExit | None), (text, result.exception)
        for file in out.rglob("*.msgpack"):
            (source,) = Table.open(file).header.sources
            assert source.device == source.clocks == text


@pytest.mark.parametrize("name", sorted(TUNING))
def test_the_second_line_holds_too(name: str) -> None:
    """A value that got past the first check is no value that a tuning choice can have."""
    base = {**PARAMS, name: 4}
    for value in (*TEXTS, *OTHERS, True, False, 3.0, -1, 2**31 - 1):
        params = {**PARAMS, name: value}
        config = Config(template_id="triton::mm", template_hash=None, params=tuple(params.items()))
        assert isinstance(merge(config, base, lambda _: True), str), value


def test_what_is_no_tuning_choice_is_not_even_read() -> None:
    """Past the first check, a name that is not a table's to decide changes nothing."""
    for name in NAMES:
        for value in TEXTS[:10]:
            params = {**PARAMS, name: value, "ACC_TYPE": value, "EVEN_K": value}
            config = Config(
                template_id="triton::mm", template_hash=None, params=tuple(params.items())
            )
            assert merge(config, PARAMS, lambda _: True) == PARAMS


class Text(str):
    """A text that says something else of itself."""

    __slots__ = ()

    def __repr__(self) -> str:
        return RUNS

    __str__ = __repr__


class Number(int):
    """A number that says something else of itself."""

    def __repr__(self) -> str:
        return RUNS

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return RUNS


def test_values_that_look_harmless_are_stored_as_what_they_are() -> None:
    """Subclasses of int and str in a dict: what is used is the plain value."""
    entry = triton_entry(BLOCK_N=Number(32), ACC_TYPE=Text("tl.float32"))
    inductor_tables.enable({Text(MM_16): [{Text(name): value for name, value in entry.items()}]})
    found = lower(GRAPH)
    assert found.op.chosen.params["BLOCK_N"] == 32
    assert MARK not in found.code
    assert "BLOCK_N : tl.constexpr = 32\n" in found.code


@pytest.mark.parametrize("device", [text for text in TEXTS if 0 < len(text) < 4096])
def test_device_names_are_only_compared(device: str, tmp_path: Path) -> None:
    """A key with such a device is refused, or its table lies in a folder of plain signs."""
    key = f"{device}+{MM_16.partition('+')[2]}"
    dump, out = tmp_path / "dump.json", tmp_path / "out"
    dump.write_text(json.dumps({key: [{"template_id": "aten::mm"}]}))
    arguments = ["build", str(dump), "--out", str(out), "--table-version", "1"]
    result = CliRunner().invoke(build_tools, [*arguments, "--torch", installed_series()])
    assert isinstance(result.exception, SystemExit | None), result.output
    for file in out.rglob("*"):
        place = file.relative_to(out).as_posix()
        assert re.fullmatch(r"[0-9.]+(/[a-z0-9-]+(/gemm\.msgpack)?)?", place), place
    if not device.isprintable():
        assert result.exit_code == 1
        with pytest.raises(InvalidKeyError, match="not a lookup key"):
            parse_key(key)


def test_key_texts_are_only_compared() -> None:
    """The corpus as keys of a dict, beside a good one: the code is that of the good one alone."""
    good = {MM_16: [triton_entry(BLOCK_N=32)]}
    inductor_tables.enable(good)
    expected = lower(GRAPH).code
    keys = [text for text in TEXTS if 0 < len(text) <= 4096]
    inductor_tables.enable({**{key: [triton_entry()] for key in keys}, **good})
    found = lower(GRAPH)
    assert found.code == expected
    assert inductor_tables.status().hits == 1


def test_header_texts_are_only_shown(tmp_path: Path) -> None:
    """In a header, a text of the corpus is refused, or the table serves as if it were not there."""
    inductor_tables.enable({MM_16: [triton_entry()]})
    expected = lower(GRAPH).code
    taken = []
    for number, change in enumerate(_header_changes()):
        path = tmp_path / f"table{number}.msgpack"
        path.write_bytes(forged_table(change))
        try:
            Table.open(path)
        except InvalidTableError as error:
            assert str(path) in str(error)  # noqa: PT017 - either is right
        else:
            taken.append(path)
    assert 0 < len(taken) < number
    inductor_tables.enable(taken)
    found = lower(GRAPH)
    assert found.code == expected
    assert inductor_tables.status().hits == 1


def _header_changes() -> list[Callable[[Parts], None]]:
    def field(name: str, text: str) -> Callable[[Parts], None]:
        return lambda parts: parts.header.update({name: text})

    def source(text: str) -> Callable[[Parts], None]:
        return lambda parts: parts.header["sources"][0].__setitem__(slice(0, 7), [text] * 7)

    def skeleton(text: str) -> Callable[[Parts], None]:
        return lambda parts: parts.header["skeletons"].append(text)

    texts = [text for text in TEXTS if len(text) < 4096]
    fields = ("arch", "table_version", "torch_series")
    return [
        *(field(name, text) for name in fields for text in texts),
        *map(source, texts),
        *map(skeleton, texts),
    ]


def test_file_names_are_only_opened(tmp_path: Path) -> None:
    """A table under such a name is used like any other, and its name is text in messages."""
    names = [t for t in TEXTS if "/" not in t and "\0" not in t and 1 < len(t) < 200]
    tables = []
    for name in names:
        tables.append(tmp_path / f"{name.replace(MARK, 'x')}.msgpack")
        tables[-1].write_bytes(forged_table(lambda parts: None))
        tables.append(tmp_path / f"{name.replace(MARK, 'x')} broken.msgpack")
        tables[-1].write_bytes(b"\x96")
    inductor_tables.enable(tables)
    lower(GRAPH)
    status = inductor_tables.status()
    assert status.hits == 1
    assert len(status.problems) == len(names)
    assert json.loads(status.to_json())["problems"] == list(status.problems)


def written(directory: Path, name: str, contents: Any) -> Sequence[Path]:
    """Write files of numbered names."""
    paths = []
    for number, content in enumerate(contents):
        paths.append(directory / name.format(number))
        paths[-1].write_bytes(content)
    return paths
