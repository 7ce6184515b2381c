"""What a table adds to a warm cache hit: a 1,000,000-key table next to none.

Every sample is a process of its own that compiles a graph which the caches on disk hold.
A GPU is not needed: the graph is a CPU graph, and the process is told that the table's
device is visible, so that the table takes part in the cache key as it does on a GPU.

    python benchmarks/cache_hit.py --keys 1000000 --rounds 15 --json

Bar: ``extra_ms`` <= 5.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import click
from fresh_process import sample

DEVICE = "NVIDIA H200"


def write_big_table(path: Path, keys: int) -> None:
    """Write a table of ``keys`` keys for the installed torch."""
    from inductor_tables import host
    from inductor_tables.schema import Config, Entry, Source
    from inductor_tables.table import write_table

    config = Config(template_id="aten::mm", template_hash=None, params=())
    entry = Entry(config=config, time_ns=5000, source=Source(dump_digest="00"))
    entries = {
        f"{DEVICE}+((torch.half, [{n}, 64], [64, 1]), (torch.half, [64, 64], [64, 1]))+mm": [entry]
        for n in range(1, keys + 1)
    }
    series = host.installed_series()
    path.write_bytes(write_table(entries, table_version="0", series=series, arch=DEVICE))


def compile_once(table: str | None) -> dict[str, Any]:
    """Compile a cached graph in this process; times in ms."""
    import torch
    import torch._inductor.compile_fx  # imported before the clock starts, in both ways
    from torch._dynamo.utils import counters

    import inductor_tables
    from inductor_tables import activation, handler, host, resources  # noqa: F401 - likewise

    host.visible_archs = lambda: (DEVICE,)
    if table is not None:
        inductor_tables.enable(table, version=">9999")  # no packaged table beside it

    def fn(x: Any) -> Any:
        for n in range(20):
            x = (x * n + 1).relu()
        return x

    x = torch.ones(64)
    torch.compile(lambda x: x + 1)(x)  # what a process pays once, whatever it compiles
    counters.clear()
    begin = time.perf_counter()
    torch.compile(fn)(x)
    elapsed = (time.perf_counter() - begin) * 1e3
    hits = (
        counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
    )
    return {"ms": elapsed, "hits": hits, "torch": torch.__version__}


def token_ms(table: str) -> dict[str, Any]:
    """Time what a table adds to a key in a fresh process: opened (first) and open (later)."""
    import torch  # noqa: F401 - as in a compile

    import inductor_tables
    from inductor_tables import activation, host, resources  # noqa: F401 - likewise

    host.visible_archs = lambda: (DEVICE,)
    inductor_tables.enable(table, version=">9999")
    found = activation.active_activation()
    assert found is not None
    times = []
    for _ in range(100):
        begin = time.perf_counter()
        assert found.token()
        times.append((time.perf_counter() - begin) * 1e3)
    return {"first": times[0], "later": statistics.median(times[1:])}


def child(caches: str, *arguments: str) -> dict[str, Any]:
    """Run this file in a fresh process and return what it measured."""
    settings = {"TORCHINDUCTOR_CACHE_DIR": caches, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    return sample(__file__, *arguments, **settings)


def run(keys: int, rounds: int) -> dict[str, Any]:
    """Measure in turns and return the figures."""
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "big.msgpack"
        write_big_table(table, keys)
        caches = f"{folder}/caches"
        ways = ("", str(table))
        for way in ways:  # fill the caches
            child(caches, "compile", way)
        samples: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
        for number in range(rounds):
            for way in ways if number % 2 else reversed(ways):
                samples[way].append(child(caches, "compile", way))
        if not all(sample["hits"] for way in ways for sample in samples[way]):
            raise click.ClickException("a compile was not served from the cache")
        tokens = [child(caches, "token", str(table)) for _ in range(rounds)]
    none, big = ([sample["ms"] for sample in samples[way]] for way in ways)
    return {
        "keys": keys,
        "without_ms": statistics.median(none),
        "without_ms_spread": [min(none), max(none)],
        "with_ms": statistics.median(big),
        "with_ms_spread": [min(big), max(big)],
        "extra_ms": statistics.median(big) - statistics.median(none),
        "key_first_ms": statistics.median(t["first"] for t in tokens),
        "key_first_ms_spread": [min(t["first"] for t in tokens), max(t["first"] for t in tokens)],
        "key_later_ms": statistics.median(t["later"] for t in tokens),
        "rounds": rounds,
        "torch": samples[""][0]["torch"],
    }


@click.command()
@click.option("--keys", default=1_000_000, show_default=True)
@click.option("--rounds", default=15, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
@click.option("--child", "is_child", is_flag=True, hidden=True)
@click.argument("arguments", nargs=-1)
def main(keys: int, rounds: int, as_json: bool, is_child: bool, arguments: tuple[str, ...]) -> None:
    """Measure and print."""
    if is_child:
        kind, table = arguments
        print(json.dumps(token_ms(table) if kind == "token" else compile_once(table or None)))
        return
    figures = run(keys, rounds)
    if as_json:
        print(json.dumps(figures, indent=1))
        return
    for name, value in figures.items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()
