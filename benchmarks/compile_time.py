"""Compile time and step time of a decoder: default, autotuning, a table, Mega-Cache.

Every measurement is a process of its own with cold caches; the four ways alternate for
several rounds. The table is recorded and built here first, unless one is given.

    python benchmarks/compile_time.py --rounds 5 --json results.json

Bars: with a table that covers the model, compile time <= 1.10 x default and <= 0.5 x
autotuning; step time <= 1.00 x autotuning within noise.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from fresh_process import sample
from rich.console import Console
from rich.progress import track
from rich.table import Table

WAYS = ("default", "autotuning", "table", "mega-cache")


def measure(way: str, tokens: int, layers: int, extra: str | None) -> dict[str, Any]:
    """Compile and time the decoder in this process; ``extra`` is the table or the cache file."""
    import torch
    from blocks import Decoder, DecoderSizes

    import inductor_tables

    torch.manual_seed(0)
    with torch.device("cuda"):
        model = Decoder(DecoderSizes(layers=layers), tokens).to(torch.bfloat16).eval()
        ids = torch.randint(0, 32000, (1, tokens))
    with torch.no_grad():
        expected = model(ids)  # also wakes CUDA and cuBLAS, which no compile is to pay for
        torch.cuda.synchronize()
        begin = time.perf_counter()
        if way == "table":
            inductor_tables.enable(extra, strict=True)
        if way == "mega-cache" and extra is not None:
            torch.compiler.load_cache_artifacts(Path(extra).read_bytes())
        options = None if way == "default" else {"max_autotune_gemm": True}
        compiled = torch.compile(model, options=options)
        result = compiled(ids)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
        if way == "mega-cache" and extra is None:
            artifacts = torch.compiler.save_cache_artifacts()
            assert artifacts is not None
            Path(os.environ["MEGA_CACHE_OUT"]).write_bytes(artifacts[0])
        steps = step_times(lambda: compiled(ids))
    counters = torch._dynamo.utils.counters["inductor"]
    status = inductor_tables.status()
    return {
        "way": way,
        "compile_s": seconds,
        "step_us": statistics.median(steps),
        "step_us_min": min(steps),
        "step_us_max": max(steps),
        "autotuned": counters["select_algorithm_autotune"],
        "hits": status.hits,
        "misses": status.misses,
        "relative_error": ((result - expected).float().norm() / expected.float().norm()).item(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
    }


def step_times(step: Callable[[], Any], rounds: int = 20, repeats: int = 20) -> list[float]:
    """Return the GPU time of a step in µs, by CUDA graph replay, once per round."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(200):  # clocks rise only under load
        graph.replay()
    times = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(repeats):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1000 / repeats)
    return times


def record_dump(directory: str, tokens: int, layers: int) -> dict[str, Any]:
    """Autotune the decoder in this process and record what was measured."""
    import torch
    from blocks import Decoder, DecoderSizes

    import inductor_tables

    with torch.device("cuda"):
        model = Decoder(DecoderSizes(layers=layers), tokens).to(torch.bfloat16).eval()
        ids = torch.randint(0, 32000, (1, tokens))
    with inductor_tables.record(directory) as recording, torch.no_grad():
        torch.compile(model, options={"max_autotune_gemm": True})(ids)
    return {"rows": recording.rows, "path": str(recording.path)}


def in_fresh_process(*arguments: str, **environment: str) -> dict[str, Any]:
    """Run this file in a process with cold caches and return what it measured."""
    with tempfile.TemporaryDirectory() as caches:
        cold = {
            "TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor",
            "TRITON_CACHE_DIR": f"{caches}/triton",
        }
        return sample(__file__, *arguments, **cold, **environment)


def make_table(folder: Path, tokens: int, layers: int) -> Path:
    """Record the decoder and build a table of its best choices."""
    recorded = in_fresh_process("record", str(folder / "dumps"), str(tokens), str(layers))
    out = folder / "tables"
    command = [sys.executable, "-m", "build_tools", "build", recorded["path"]]
    subprocess.run(
        [*command, "--out", str(out.absolute()), "--table-version", "0", "--topk", "1"],
        cwd=Path(__file__).parents[1],
        check=True,
        stdout=sys.stderr,
    )
    return out


@click.command()
@click.option("--rounds", default=5, show_default=True, help="Measurements of each way.")
@click.option("--tokens", default=512, show_default=True)
@click.option("--layers", default=2, show_default=True)
@click.option("--way", "ways", multiple=True, type=click.Choice(WAYS), help="Default: all four.")
@click.option("--table", type=click.Path(exists=True, path_type=Path), help="Default: record one.")
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), help="Also write all figures."
)
@click.option("--keep", type=click.Path(path_type=Path), help="Folder for dump and table.")
@click.option("--child", is_flag=True, hidden=True)
@click.argument("arguments", nargs=-1)
def main(
    rounds: int,
    tokens: int,
    layers: int,
    ways: tuple[str, ...],
    table: Path | None,
    json_file: Path | None,
    keep: Path | None,
    child: bool,
    arguments: tuple[str, ...],
) -> None:
    """Measure and print the ratios."""
    if child:
        kind, what, *sizes = arguments
        at_tokens, at_layers = int(sizes[0]), int(sizes[1])
        found = (
            record_dump(what, at_tokens, at_layers)
            if kind == "record"
            else measure(kind, at_tokens, at_layers, what if what != "-" else None)
        )
        print(json.dumps(found))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = keep or Path(scratch)
        table = table or make_table(folder, tokens, layers)
        cache = folder / "mega-cache.bin"
        sizes_given = (str(tokens), str(layers))
        ways = ways or WAYS
        if "mega-cache" in ways:
            in_fresh_process("mega-cache", "-", *sizes_given, MEGA_CACHE_OUT=str(cache))
        extra = {"table": str(table), "mega-cache": str(cache)}
        plan = [ways[(n + r) % len(ways)] for r in range(rounds) for n in range(len(ways))]
        runs = [
            in_fresh_process(way, extra.get(way, "-"), *sizes_given)
            for way in track(plan, "measuring", console=Console(stderr=True))
        ]
        report(runs, cache.stat().st_size if cache.exists() else None, json_file)


def report(runs: list[dict[str, Any]], cache_bytes: int | None, json_file: Path | None) -> None:
    """Print medians with spreads and the ratios to default and autotuning."""
    by_way = {way: [run for run in runs if run["way"] == way] for way in WAYS}
    by_way = {way: found for way, found in by_way.items() if found}
    compile_s = {w: statistics.median(r["compile_s"] for r in found) for w, found in by_way.items()}
    step_us = {w: statistics.median(r["step_us"] for r in found) for w, found in by_way.items()}
    columns = ("way", "compile s", "min - max", "/ default", "/ autotuning")
    shown = Table(*columns, "step µs", "min - max", "/ autotuning", "autotuned", "hits/misses")
    for way in by_way:
        seconds = [r["compile_s"] for r in by_way[way]]
        steps = [r["step_us"] for r in by_way[way]]
        last = by_way[way][-1]
        shown.add_row(
            way,
            f"{compile_s[way]:.2f}",
            f"{min(seconds):.2f} - {max(seconds):.2f}",
            ratio(compile_s, way, "default"),
            ratio(compile_s, way, "autotuning"),
            f"{step_us[way]:.1f}",
            f"{min(steps):.1f} - {max(steps):.1f}",
            ratio(step_us, way, "autotuning"),
            str(last["autotuned"]),
            f"{last['hits']}/{last['misses']}",
        )
    machine = f"torch {runs[0]['torch']}, {runs[0]['device']}"
    machine += f", mega-cache file {cache_bytes} bytes" if cache_bytes else ""
    Console(width=140).print(shown, machine)
    if json_file is not None:
        json_file.write_text(json.dumps({"machine": machine, "runs": runs}, indent=1))


def ratio(medians: dict[str, float], way: str, to: str) -> str:
    """Return a ratio of medians as text, a dash where one is not measured."""
    return f"{medians[way] / medians[to]:.3f}" if to in medians else "-"


if __name__ == "__main__":
    main()
