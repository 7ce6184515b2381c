"""How long ``python -m build_tools check --compile`` takes for a table of 1,000 distinct entries.

    python benchmarks/compile_check.py --json

Makes a table for the installed torch and the H200: ops, types and layouts that models have, with
configurations that the device can run, no two of which are one case to the compile check. Runs
the command over it with an empty state, then once more with the state that the first run left.

Bar: 15 minutes for 1,000 entries on 2 cores. On a machine that does other work meanwhile, look at
``cpu_minutes``, the processor time of all processes of the first run, over the number of workers.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table as Grid

ROOT: Final = Path(__file__).parents[1]
DEVICE: Final = "NVIDIA H200"
BAR_MINUTES: Final = 15.0

ROWS: Final = (16, 64, 100, 256, 512, 2048, 8192)
COLUMNS: Final = (1024, 3072, 4096, 6144, 14336, 32000)
DEPTHS: Final = (1024, 2048, 4096, 8192, 14336)
TEMPLATES: Final = {
    "mm": ("triton::mm", "triton::mm", "triton::mm_persistent_tma"),
    "addmm": ("triton::mm", "triton::mm", "triton::mm_persistent_tma"),
    "bmm": ("triton::bmm",),
    "baddbmm": ("triton::bmm",),
    "int_mm": ("triton::mm",),
    "mm_plus_mm": ("triton::mm_plus_mm",),
    "scaled_mm": ("triton::mm", "triton::scaled_mm_device_tma_epilogue_scaling"),
}
SHARES: Final = {
    "mm": 45, "addmm": 20, "bmm": 10, "baddbmm": 5, "int_mm": 5, "mm_plus_mm": 5, "scaled_mm": 10,
}  # fmt: skip


def key_of(op_name: str, rnd: random.Random) -> Any:
    """Return a random key of an op."""
    from inductor_tables.keys import ParsedKey, TensorKey

    def tensor(dtype: str, *size: int, transposed: bool = False) -> TensorKey:
        stride = [math.prod(size[at + 1 :]) for at in range(len(size))]
        if transposed:
            stride[-2:] = [1, size[-2]]
        return TensorKey(dtype=dtype, size=size, stride=tuple(stride))

    m, n, k = rnd.choice(ROWS), rnd.choice(COLUMNS), rnd.choice(DEPTHS)
    dtype = rnd.choice(("bfloat16", "bfloat16", "bfloat16", "float16", "float32"))
    dtype = {"scaled_mm": "float8_e4m3fn", "int_mm": "int8"}.get(op_name, dtype)
    batch = (rnd.choice((4, 16, 32)),) if "bmm" in op_name else ()
    by_columns = op_name == "scaled_mm" or rnd.random() < 0.6
    inputs = [tensor(dtype, *batch, m, k), tensor(dtype, *batch, k, n, transposed=by_columns)]
    scalars: tuple[tuple[str, str], ...] = ()
    if op_name == "addmm":
        inputs.insert(0, TensorKey(dtype=dtype, size=(m, n), stride=(0, 1)))
    elif op_name == "baddbmm":
        inputs.insert(0, tensor(dtype, *batch, m, n))
    elif op_name == "scaled_mm":
        inputs += [tensor("float32", m, 1), tensor("float32", 1, n)]
    elif op_name == "mm_plus_mm":
        inputs *= 2
    if op_name in {"addmm", "baddbmm"}:
        scalars = (("alpha", "1"), ("beta", "1"))
    return ParsedKey(device=DEVICE, inputs=tuple(inputs), scalars=scalars, op_name=op_name)


def configurations() -> Iterator[dict[str, Any]]:
    """Yield tiles with at most 128 accumulators a thread."""
    tiles = itertools.product((16, 32, 64, 128), (32, 64, 128, 256), (32, 64, 128))
    for (m, n, k), warps, stages in itertools.product(tiles, (2, 4, 8), (2, 3, 4, 5)):
        if m * n <= 128 * 32 * warps:
            yield {
                "ACC_TYPE": "tl.float32", "BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": 8,
                "EVEN_K": True, "num_warps": warps, "num_stages": stages,
            }  # fmt: skip


def fits(template_id: str, params: dict[str, Any], key: Any) -> bool:
    """Whether the device has the shared memory, and the template takes the configuration."""
    from build_tools.distinct import itemsize, product_sizes
    from inductor_tables.simulation import CATALOGUE

    _, _, k = product_sizes(key)
    size = itemsize(key.inputs[-1 if key.op_name != "scaled_mm" else 0].dtype)
    tiles = (params["BLOCK_M"] + params["BLOCK_N"]) * params["BLOCK_K"] * params["num_stages"]
    least = max(tiles * size, params["BLOCK_M"] * params["BLOCK_N"] * 4) + 1024
    tma = "tma" in template_id
    return (
        least <= CATALOGUE[DEVICE].shared_memory_per_block_optin
        and not (tma and (params["num_warps"] == 2 or size == 4))
        and params["BLOCK_K"] < k
    )


def write(count: int, out: Path, series: str) -> Counter[str]:
    """Write a table of that many distinct entries; return how many each op has."""
    from build_tools.distinct import code_class
    from build_tools.files import replace_file, table_path
    from build_tools.hashes import read_committed
    from inductor_tables.schema import Config, Entry, Source
    from inductor_tables.table import write_table
    from inductor_tables.versions import TorchSeries

    rnd, hashes = random.Random(count), read_committed()[TorchSeries(series)].templates
    pool, source = list(configurations()), Source(dump_digest="0")
    seen, ops = set[Any](), Counter[str]()
    entries: dict[str, list[Entry]] = {}
    while len(seen) < count:
        (op_name,) = rnd.choices(list(SHARES), list(SHARES.values()))
        key, params = key_of(op_name, rnd), rnd.choice(pool)
        template_id = rnd.choice(TEMPLATES[op_name])
        config = Config(
            template_id=template_id,
            template_hash=hashes[template_id],
            params=tuple(sorted(params.items())),
        )
        kind = code_class(key, config)
        if kind in seen or not fits(template_id, params, key):
            continue
        seen.add(kind)
        ops[op_name] += 1
        entries.setdefault(str(key), []).append(Entry(config=config, time_ns=None, source=source))
    data = write_table(entries, table_version="1", series=series, arch=DEVICE)
    replace_file(out / table_path(series, DEVICE), data)
    return ops


def check(tables: Path, state: Path, jobs: int) -> tuple[float, dict[str, Any]]:
    """Run the command; return what it took in seconds and its report."""
    command = [sys.executable, "-m", "build_tools", "check", str(tables), "--compile", "--json"]
    begin = time.perf_counter()
    done = subprocess.run(
        [*command, "--jobs", str(jobs), "--state", str(state)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - begin
    if done.returncode not in (0, 1):
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}")
    report: dict[str, Any] = json.loads(done.stdout)["compile"]
    return seconds, report


@click.command()
@click.option("--entries", default=1000, show_default=True, help="Distinct entries.")
@click.option("--jobs", default=2, show_default=True, help="Worker processes.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def main(entries: int, jobs: int, as_json: bool) -> None:
    """Measure and print the figures with the ratio to the bar."""
    sys.path.insert(0, str(ROOT))
    from inductor_tables.host import installed_series

    with tempfile.TemporaryDirectory() as scratch:
        tables, state = Path(scratch, "tables"), Path(scratch, "state.jsonl")
        ops = write(entries, tables, installed_series())
        load = os.getloadavg()[0]
        first, report = check(tables, state, jobs)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        load = max(load, os.getloadavg()[0])
        again, _ = check(tables, state, jobs)
    (table,) = report["tables"]
    minutes = first / 60
    figures = {
        "minutes": round(minutes, 2),
        "share_of_bar": round(minutes / (BAR_MINUTES * entries / 1000), 3),
        "cpu_minutes": round((used.ru_utime + used.ru_stime) / 60, 2),
        "again_s": round(again, 1),
        "seconds_an_entry": round(table["seconds"] / entries, 3),
        "slowest_entry_s": round(max(entry["seconds"] for entry in table["entries"]), 1),
        **{name: table[name] for name in ("distinct", "compiled", "unpipelined", "spilling")},
        **{name: table[name] for name in ("failed", "exceeds", "dropped")},
        "load": round(load, 2),
    }
    machine = f"torch {report['torch']}, triton {report['triton']}, {jobs} workers, "
    machine += f"{os.cpu_count()} cores, {platform.machine()}"
    if as_json:
        print(json.dumps({"machine": machine, "ops": ops, **figures}, indent=1))
        return
    grid = Grid("figure", "value")
    for name, value in figures.items():
        grid.add_row(name, str(value))
    Console().print(machine, grid)


if __name__ == "__main__":
    main()
