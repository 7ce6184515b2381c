"""Compile time and step time of whole models: eager, default, autotuning, a table, Mega-Cache.

    python benchmarks/models.py --out models.jsonl --minutes 9
    python benchmarks/models.py --out models.jsonl --minutes 0 --plot models.png

Every (model, way) is a process of its own with cold caches; imports, building the model and waking
CUDA are not counted. In it the compiled step is timed in turns with the eager one: on the GPU by
replaying CUDA graphs, and by the clock without graphs, where the CPU may be what limits. Ways are
compared by their own steps' medians; how far eager's differ between the processes of a model says
how far such a comparison can be trusted (``model_results.py``). Results are appended line by line;
started again it goes on where it ended; ``--minutes 0`` only reports, and needs no GPU.

Bars: compile time with a table that covers the model <= 1.10 x default and <= 0.5 x autotuning;
step time <= 1.00 x autotuning within noise; the error against float32 <= 2 x eager's.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click

sys.path.insert(0, str(Path(__file__).parents[1]))

from fresh_process import sample, sample_within
from model_results import WAYS, report_of, show

_AUTOTUNING: Final[dict[str, Any]] = {"options": {"max_autotune_gemm": True}}
_COMPILED: Final[dict[str, dict[str, Any]]] = {
    "default": {},
    "max_autotune_gemm": _AUTOTUNING,
    "table": _AUTOTUNING,
    "max-autotune": {"mode": "max-autotune-no-cudagraphs"},
    "mega-cache": _AUTOTUNING,
}
"""What each way gives to ``torch.compile``. CUDA graphs are the benchmark's own, for all ways."""

_MAKER: Final = "max_autotune_gemm"
"""The way whose run fills the Mega-Cache."""


def measure(name: str, way: str, device: str, table: str, cache: str) -> dict[str, Any]:
    """Compile a model in this process and time its steps beside eager ones.

    Args:
        name: of the case.
        way: how to compile.
        device: ``cuda``, or ``cpu`` to try the benchmark out: no graphs then.
        table: a table instead of the packaged one, ``""``: that.
        cache: file of the Mega-Cache: read in that way, written in the way that makes it.
    """
    import torch
    from model_cases import CASES, SMOKE, made
    from steps import clocked, described, graphed

    import inductor_tables
    from build_tools.tune.reference import error_of

    torch.backends.cudnn.allow_tf32 = False  # the reference is to be of float32
    gpu = device == "cuda"
    wait = torch.cuda.synchronize if gpu else lambda: None
    case = {**CASES, **SMOKE}[name]
    model, inputs = made(case, device)
    with torch.no_grad():
        wide = inputs.float() if inputs.is_floating_point() else inputs
        exact = copy.deepcopy(model).float()(wide)
        eager = error_of(model(inputs), exact)  # also wakes CUDA and cuBLAS
        wait()
        begin = time.perf_counter()
        if way == "table":
            inductor_tables.enable(table or None)
        if way == "mega-cache":
            torch.compiler.load_cache_artifacts(Path(cache).read_bytes())
        compiled = torch.compile(model, **_COMPILED[way])
        result = compiled(inputs)
        wait()
        seconds = time.perf_counter() - begin
        if way == _MAKER and cache:
            artifacts = torch.compiler.save_cache_artifacts()
            assert artifacts is not None
            Path(cache).write_bytes(artifacts[0])
        error = error_of(result, exact)
        del exact, result
        steps = {"eager": lambda: model(inputs), "compiled": lambda: compiled(inputs)}
        on_gpu = graphed(steps, torch.device(device, 0), rounds=24) if gpu else None
        by_clock = clocked(steps, rounds=12, wait=wait)
    status = inductor_tables.status()
    counted = torch._dynamo.utils.counters
    return {
        "compile_s": seconds,
        "graphed": on_gpu and described(on_gpu, "eager"),
        "clocked": described(by_clock, "eager"),
        "error": {"eager": vars(eager), "compiled": vars(error), "right": error.within(eager, 2.0)},
        "autotuned": counted["inductor"]["select_algorithm_autotune"],
        "cache_hits": counted["inductor"]["fxgraph_cache_hit"],
        "hits": status.hits,
        "misses": status.misses,
        "dropped": sum(status.dropped.values()),
        "layers": case.layers,
        "weights_bytes": sum(p.numel() * p.element_size() for p in model.parameters()),
        "cache_bytes": Path(cache).stat().st_size if way == "mega-cache" else None,
    }


def in_fresh_process(*arguments: str, limit_s: float) -> dict[str, Any]:
    """Run :func:`measure` in a process with cold caches.

    Raises:
        RuntimeError: it failed or took too long.
    """
    with tempfile.TemporaryDirectory() as caches:
        cold = {
            "TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor",
            "TRITON_CACHE_DIR": f"{caches}/triton",
            "INDUCTOR_TABLES": "",  # tables are on in their own way alone
        }
        return sample_within(limit_s, __file__, *arguments, **cold)


class Series:
    """A file of results, appended line by line.

    Attributes:
        lines: what it holds.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.lines = path, []
        if path.exists():
            for text in path.read_text(encoding="utf-8").splitlines():
                try:
                    self.lines.append(json.loads(text))
                except ValueError:  # cut short by the end of a process: measured again
                    continue

    def append(self, line: dict[str, Any]) -> None:
        """Add a result, and have it on the disk when this returns."""
        self.lines.append(line)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a+b") as file:
            if file.tell() and not _ends_line(self.path):
                file.write(b"\n")
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def has(self, wanted: dict[str, Any], *, failed: bool) -> bool:
        """Whether a result of these fields is there; ``failed``: a failed one counts."""
        return any(
            wanted.items() <= line.items() and (failed or "failed" not in line)
            for line in self.lines
        )


def _ends_line(path: Path) -> bool:
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def plan(cases: Sequence[str], ways: Sequence[str], rounds: int) -> list[dict[str, Any]]:
    """Return what to measure in order: a case's ways behind each other, begun in turns."""
    return [
        {"case": case, "way": ways[(at + turn) % len(ways)], "round": turn}
        for turn in range(rounds)
        for case in cases
        for at in range(len(ways))
    ]


def run(
    series: Series, wanted: Sequence[dict[str, Any]], minutes: float | None, **options: Any
) -> None:
    """Measure what a file does not hold yet, until the time is up."""
    ends = time.monotonic() + 60 * (minutes if minutes is not None else float("inf"))
    told = {name: options[name] for name in ("device", "table")}
    told |= _machine(options["device"])
    with tempfile.TemporaryDirectory() as folder:
        for number, one in enumerate(wanted):
            if time.monotonic() >= ends:
                click.echo(f"the time is up, {len(wanted) - number} left", err=True)
                return
            line = {**told, **one}
            if series.has(line, failed=not options["retry"]):
                continue
            cache = Path(folder, one["case"].replace("/", "-").replace(" ", "-"))
            limit_s, begin = options["limit_s"], time.monotonic()
            arguments = (one["case"], one["way"], told["device"], told["table"])
            try:
                if one["way"] == "mega-cache" and not cache.exists():
                    in_fresh_process(*_made_by(arguments), str(cache), limit_s=limit_s)
                filled = str(cache) if one["way"] in (_MAKER, "mega-cache") else ""
                found = in_fresh_process(*arguments, filled, limit_s=limit_s)
            except RuntimeError as error:
                found = {"failed": str(error)[-2000:]}
            series.append({**line, **found, "seconds": time.monotonic() - begin})
            click.echo(f"{one['case']}, {one['way']}: {_short(series.lines[-1])}", err=True)


def _made_by(arguments: tuple[str, str, str, str]) -> tuple[str, str, str, str]:
    case, _way, device, table = arguments
    return case, _MAKER, device, table


def _short(line: dict[str, Any]) -> str:
    if "failed" in line:
        return f"failed: {line['failed'].strip().splitlines()[-1]}"
    timed = line["graphed"] or line["clocked"]
    return (
        f"compile {line['compile_s']:.1f} s, step {timed['compiled']['us']:.1f} µs "
        f"({timed['compiled']['ratio']:.3f} of eager), {line['seconds']:.0f} s in all"
    )


def _machine(device: str) -> dict[str, str]:
    """Return torch's version and the device's name, asked in a process that ends."""
    return sample(__file__, "machine", device, "", "", "")


def machine(device: str) -> dict[str, str]:
    """Return torch's version and the device's name."""
    import torch

    name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    return {"torch": torch.__version__, "gpu": name}


_PATH: Final = click.Path(path_type=Path)


@click.command()
@click.option("--out", type=_PATH, help="File of results, JSON lines, resumed.")
@click.option("--minutes", type=float, help="Begin nothing after that; 0: only report.")
@click.option("--models", multiple=True, help="Beginnings of names of cases; default: all.")
@click.option("--ways", multiple=True, type=click.Choice(WAYS), help="Default: all.")
@click.option("--rounds", default=1, show_default=True, help="Measurements of each.")
@click.option("--table", default="", help="Table or directory; default: the packaged one.")
@click.option("--limit", "limit_s", default=240.0, show_default=True, help="Seconds for one.")
@click.option("--device", default="cuda", show_default=True, type=click.Choice(["cuda", "cpu"]))
@click.option("--retry", is_flag=True, help="Measure again what failed.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--plot", type=_PATH, help="Draw compile and step times into a PNG.")
@click.option("--child", is_flag=True, hidden=True)
@click.argument("arguments", nargs=-1)
def main(
    out: Path | None, minutes: float | None, models: Sequence[str], ways: Sequence[str],
    rounds: int, as_json: bool, plot: Path | None, child: bool, arguments: Sequence[str],
    **options: Any,
) -> None:  # fmt: skip
    """Measure and print the ratios."""
    if child:
        first, second, *rest = arguments
        found = machine(second) if first == "machine" else measure(first, second, *rest)
        print(json.dumps(found))
        return
    if out is None:
        raise click.UsageError("--out is missing")
    series = Series(out)
    if minutes != 0:
        wanted = plan(cases_of(models), ways or WAYS, rounds)
        run(series, wanted, minutes, **options)
    report = report_of(series.lines)
    if as_json:
        click.echo(json.dumps(report, indent=1))
    else:
        show(report)
    if plot is not None:
        from plots import plot_models

        plot_models(report, plot)


def cases_of(beginnings: Sequence[str]) -> list[str]:
    """Return the cases whose names begin so, all for none.

    Raises:
        click.UsageError: a beginning is none of any case.
    """
    from model_cases import CASES, SMOKE

    known = [*CASES, *SMOKE]
    found = [name for name in known if name.startswith(tuple(beginnings))]
    for beginning in beginnings:
        if not any(name.startswith(beginning) for name in known):
            raise click.UsageError(f"no model {beginning!r}; there are {', '.join(known)}")
    return found if beginnings else list(CASES)


if __name__ == "__main__":
    main()
