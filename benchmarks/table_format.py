"""Cost of the table format: opening, look-ups, bytes on disk, writing.

    python benchmarks/table_format.py --keys 1000000 --json
    python benchmarks/table_format.py --keys 1000000 --json --proofs

Writes a table of realistic keys (several ops, dtypes, layouts and thereby skeletons; one or
three entries a key) and one of 1,000 keys. Every round is a fresh process that opens the table
from a warm page cache, then looks up 20,000 of its keys, each once, in random order, and as many
keys that it lacks. The figures are medians over the rounds, with the least and the greatest.
Added memory is the growth of the process's resident set (and of its private part) by opening.
"""

from __future__ import annotations

import gc
import itertools
import json
import math
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import click
from fresh_process import sample
from rich.console import Console
from rich.table import Table as Grid

BARS: Final = {
    "open_ms": 20.0,
    "open_mib": 40.0,
    "lookup_us_p50": 25.0,
    "bytes_per_key": 64.0,
    "open_1000_ms": 2.0,
}
"""What each figure may be at most, for 1,000,000 keys."""

DEVICE: Final = "NVIDIA H200"
SMALL: Final = 1_000
LOOKUPS: Final = 20_000

DIMS: Final = (
    *(64, 80, 96, 128, 192, 256, 384, 512, 576, 640, 768, 896, 1024, 1152, 1280, 1536, 1792, 2048),
    *(2304, 2560, 2816, 3072, 3584, 4096, 4608, 5120, 6144, 6912, 7168, 8192, 10240, 11008, 12288),
    *(13824, 14336, 16384, 18432, 22016, 24576, 28672, 32000, 50304, 128256, 151936),
)
DTYPES: Final = ("bfloat16", "bfloat16", "bfloat16", "float16", "float32")
FLOAT8: Final = ("float8_e4m3fn", "float8_e4m3fn", "float8_e5m2")


def tensor(dtype: str, *size: int, transposed: bool = False) -> str:
    """Spell a tensor as a key does, contiguous or with its last two dimensions exchanged."""
    strides = [math.prod(size[at + 1 :]) for at in range(len(size))]
    if transposed:
        strides[-2:] = [1, size[-2]]
    return f"(torch.{dtype}, {list(size)}, {strides})"


def problem(rnd: random.Random) -> str:
    """Return the key of a random GEMM of the kinds that models have."""
    op = rnd.choices(
        ("mm", "addmm", "bmm", "baddbmm", "scaled_mm", "mm_plus_mm"), (45, 25, 12, 3, 10, 5)
    )[0]
    m, n, k = rnd.randint(1, 16384), rnd.choice(DIMS), rnd.choice(DIMS)
    dtype = rnd.choice(FLOAT8 if op == "scaled_mm" else DTYPES)
    batch = (rnd.choice((2, 4, 8, 12, 16, 32, 40, 64, 96, 128)),) if "b" in op else ()
    a_transposed, b_transposed = rnd.random() < 0.2, op == "scaled_mm" or rnd.random() < 0.6
    inputs = [
        tensor(dtype, *batch, m, k, transposed=a_transposed),
        tensor(dtype, *batch, k, n, transposed=b_transposed),
    ]
    scalars = ""
    if op == "addmm":
        bias = f"(torch.{dtype}, [{m}, {n}], [0, 1])"
        inputs.insert(0, bias if rnd.random() < 0.7 else tensor(dtype, n))
        scalars = "alpha=1&beta=1+"
    elif op == "baddbmm":
        inputs.insert(0, tensor(dtype, *batch, m, n))
        scalars = f"alpha={rnd.choice(('1', '0.125'))}&beta={rnd.choice('01')}+"
    elif op == "scaled_mm":
        rows = rnd.random() < 0.5
        inputs += (
            [tensor("float32", m, 1), tensor("float32", 1, n)]
            if rows
            else ["(torch.float32, [], [])"] * 2
        )
    elif op == "mm_plus_mm":
        inputs *= 2
    return f"{DEVICE}+({', '.join(inputs)})+{scalars}{op}"


def problems(count: int) -> list[str]:
    """Return that many distinct keys, the same ones each time."""
    rnd, found = random.Random(count), dict[str, None]()
    while len(found) < count:
        found[problem(rnd)] = None
    return list(found)


def configurations() -> Iterator[Any]:
    """Yield configurations as the host's search space has them."""
    from inductor_tables.schema import Config, ParamValue

    choices = itertools.product(range(4), range(4), range(3), range(3), range(2, 6))
    for m, n, k, warps, stages in choices:
        params: dict[str, ParamValue] = {
            "ACC_TYPE": "tl.float32", "BLOCK_M": 16 << m, "BLOCK_N": 32 << n, "BLOCK_K": 32 << k,
            "EVEN_K": True, "GROUP_M": 8, "USE_FAST_ACCUM": False, "hint_override": None,
            "num_warps": 2 << warps, "num_stages": stages,
        }  # fmt: skip
        yield Config(
            template_id="triton::mm", template_hash="ab" * 32, params=tuple(sorted(params.items()))
        )
    for template_id in ("aten::mm", "aten::bias_addmm", "aten::bmm"):
        yield Config(template_id=template_id, template_hash=None, params=())


def proof(rnd: random.Random, time_ns: int | None) -> Any:
    """Return a proof as the tuner makes them: two incumbents, a spread of about 1 %."""
    from inductor_tables.schema import Proof

    time_ns = time_ns or 0
    return Proof(
        spread_ns=int(time_ns * rnd.uniform(0.002, 0.02)),
        aten_ns=int(time_ns * rnd.uniform(1, 1.5)),
        host_ns=int(time_ns * rnd.uniform(1, 1.2)),
        rounds=rnd.choice((12, 24, 36, 72)),
    )


def write(keys: int, path: Path, proved: bool) -> dict[str, Any]:
    """Write a table, and keys to ask it for beside it; return what that cost."""
    from inductor_tables.schema import Entry, Source
    from inductor_tables.table import write_table

    rnd = random.Random(0)
    configs = list(configurations())
    sources = [
        Source(
            dump_digest=f"{number:064x}", torch="2.13.0+cu130", triton="3.7.1", cuda="13.0",
            device=DEVICE, sm_count=132, date=f"2026-05-{number + 1:02}T00:00:00Z",
            carried="hash" if number == 0 else None,
        )
        for number in range(8)
    ]  # fmt: skip
    listed = problems(keys + LOOKUPS)
    held, absent = listed[:keys], listed[keys:]
    entries = {
        key: [
            Entry(
                config=rnd.choice(configs),
                time_ns=int(rnd.lognormvariate(10.5, 1.2)),
                source=rnd.choice(sources),
            )
            for _ in range(3 if rnd.random() < 0.2 else 1)
        ]
        for key in held
    }
    if proved:
        entries = {
            key: [replace(one, proof=proof(rnd, one.time_ns)) for one in made]
            for key, made in entries.items()
        }
    begin = time.perf_counter()
    data = write_table(entries, table_version="1", series="2.13", arch=DEVICE)
    seconds = time.perf_counter() - begin
    path.write_bytes(data)
    present = rnd.sample(held, min(LOOKUPS, keys))
    path.with_suffix(".json").write_text(json.dumps([present, absent]))
    return {
        "write_s": seconds,
        "bytes": len(data),
        "bytes_per_key": len(data) / keys,
        "entries": sum(map(len, entries.values())),
    }


def memory() -> dict[str, int]:
    """Return this process's resident and private memory in bytes."""
    found: dict[str, int] = {"Rss": 0, "Private_Clean": 0, "Private_Dirty": 0}
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in found:
            found[name] = int(value.split()[0]) * 1024
    return {"rss": found["Rss"], "uss": found["Private_Clean"] + found["Private_Dirty"]}


def read(path: Path) -> dict[str, Any]:
    """Open a table and look keys up; return what that cost."""
    from inductor_tables.table import Table

    present, absent = json.loads(path.with_suffix(".json").read_text())
    gc.collect()
    before = memory()
    begin = time.perf_counter()
    table = Table.open(path)
    seconds = time.perf_counter() - begin
    opened = memory()
    hits, misses = look_up(table, present), look_up(table, absent)
    used = memory()
    assert all(table.lookup(key) for key in present[:100])
    assert not any(table.lookup(key) for key in absent[:100])
    return {
        "open_ms": seconds * 1e3,
        "open_mib": (opened["rss"] - before["rss"]) / 2**20,
        "open_uss_mib": (opened["uss"] - before["uss"]) / 2**20,
        "used_mib": (used["rss"] - before["rss"]) / 2**20,
        "lookup_us_p50": statistics.median(hits),
        "lookup_us_p99": statistics.quantiles(hits, n=100)[98],
        "miss_us_p50": statistics.median(misses),
    }


def look_up(table: Any, keys: list[str]) -> list[float]:
    """Return the time in µs that each look-up took."""
    times, clock = [], time.perf_counter
    for key in keys:
        begin = clock()
        table.lookup(key)
        times.append((clock() - begin) * 1e6)
    return times


def in_a_process(what: str, *arguments: object) -> dict[str, Any]:
    """Run ``write`` or ``read`` in a process of its own."""
    return sample(__file__, what, *map(str, arguments))


def measure(keys: int, rounds: int, proved: bool) -> dict[str, Any]:
    """Measure a table of that many keys, and one of 1,000."""
    import msgpack

    with tempfile.TemporaryDirectory() as folder:
        path, small = Path(folder, "table.msgpack"), Path(folder, "small.msgpack")
        result = in_a_process("write", keys, path, int(proved))
        in_a_process("write", SMALL, small, int(proved))
        read_rounds = []
        for _ in range(rounds):
            figures = in_a_process("read", path)
            figures["open_1000_ms"] = in_a_process("read", small)["open_ms"]
            read_rounds.append(figures)
    spread = {}
    for name in read_rounds[0]:
        values = [figures[name] for figures in read_rounds]
        result[name] = statistics.median(values)
        spread[name] = [min(values), max(values)]
    return {
        "keys": keys,
        "proofs": proved,
        **result,
        "spread": spread,
        "rounds": rounds,
        "bars": BARS,
        "within_bars": all(result[name] <= bar for name, bar in BARS.items()),
        "machine": f"{platform.platform()}, {processor()}",
        "python": platform.python_version(),
        "msgpack": ".".join(map(str, msgpack.version)),
    }


def processor() -> str:
    """Return the name of the CPU."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def show(result: dict[str, Any]) -> None:
    """Print the figures for people."""
    grid = Grid(title=f"Table of {result['keys']:,} keys, {result['rounds']} rounds")
    for column in ("figure", "median", "least", "greatest", "bar"):
        grid.add_column(column, justify="left" if column == "figure" else "right")
    single = ("bytes_per_key", "write_s")
    for name in (*result["spread"], *single):
        least, greatest = result["spread"].get(name, ("", ""))
        bar = BARS.get(name)
        grid.add_row(
            name,
            f"{result[name]:.2f}",
            *(f"{value:.2f}" if value != "" else "" for value in (least, greatest)),
            "" if bar is None else f"<= {bar:g}",
            style="red" if bar is not None and result[name] > bar else None,
        )
    console = Console()
    console.print(grid)
    console.print(
        f"{result['bytes']:,} bytes, {result['entries']:,} entries; {result['machine']}, "
        f"Python {result['python']}, msgpack {result['msgpack']}"
    )


@click.command()
@click.option("--keys", default=1_000_000, show_default=True, help="Keys in the table.")
@click.option("--rounds", default=7, show_default=True, help="Processes that read it.")
@click.option("--proofs", "proved", is_flag=True, help="Every entry has a proof.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@click.option("--child", type=click.Choice(["write", "read"]), hidden=True)
@click.argument("arguments", nargs=-1)
def main(
    keys: int,
    rounds: int,
    proved: bool,
    as_json: bool,
    child: str | None,
    arguments: tuple[str, ...],
) -> None:
    """Measure what opening, reading and keeping a table costs."""
    if child == "write":
        result = write(int(arguments[0]), Path(arguments[1]), arguments[2] == "1")
    elif child == "read":
        result = read(Path(arguments[0]))
    else:
        result = measure(keys, rounds, proved)
    if as_json or child:
        print(json.dumps(result, indent=None if child else 2))
    else:
        show(result)


if __name__ == "__main__":
    main()
