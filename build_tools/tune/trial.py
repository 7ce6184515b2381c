"""Tunes a few problems on this GPU and measures the winners once more, independently.

``python -m build_tools.tune.trial --out DIR`` prints two tables: what was found, and how far
a second measurement (new data, order and graphs, and torch's profiler beside it) is from it.
``--beside OTHER`` measures the entries of another tuning in the same rounds.
A part of the repository's checks on real GPUs, not of the build.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from build_tools.tune import kernels
from build_tools.tune.asked import read_asked
from build_tools.tune.device import chip_of, described, own_device
from build_tools.tune.driver import Plan
from build_tools.tune.dumping import write_dumps
from build_tools.tune.lowering import Options
from build_tools.tune.measure import GpuBench, gpu_bench
from build_tools.tune.records import Ask, Failure, Timing
from build_tools.tune.results import TUNED, Line, config_of, read_results
from build_tools.tune.search import Effort
from build_tools.tune.session import Run, tune
from build_tools.tune.space import candidate
from build_tools.tune.verdict import compare
from inductor_tables.errors import DeadDeviceError, InductorTablesError
from inductor_tables.problems import Problem, problem_from_key
from inductor_tables.schema import Config

_ALIKE: Final = 0.01
"""Share by which two tunings' kernels may differ in time to count as one choice."""

_MM = ((16, 1024, 4096), (16, 4096, 4096), (64, 4096, 14336), (1, 4096, 4096), (512, 2048, 2048))


def sample_problems() -> list[Problem]:
    """Return eight problems: decode and prefill, a bias, a batch, fp8."""
    b = "torch.bfloat16"
    keys = [f"(({b}, [{m}, {k}], [{k}, 1]), ({b}, [{k}, {n}], [1, {k}]))+mm" for m, n, k in _MM]
    keys += [
        f"(({b}, [128, 3072], [0, 1]), ({b}, [128, 768], [768, 1]), ({b}, [768, 3072], [1, 768]))"
        "+alpha=1&beta=1+addmm",
        f"(({b}, [64, 128, 64], [8192, 64, 1]), ({b}, [64, 64, 128], [8192, 1, 64]))+bmm",
        "((torch.float8_e4m3fn, [64, 4096], [4096, 1]), (torch.float8_e4m3fn, [4096, 4096], "
        "[1, 4096]), (torch.float32, [64, 1], [1, 1]), (torch.float32, [1, 4096], [1, 1]))"
        "+scaled_mm",
    ]
    return [problem_from_key(key) for key in keys]


def main() -> None:
    """Run the trial."""
    arguments = _arguments()
    device = own_device()
    provenance = described(device)
    _print(f"torch {torch.__version__}, {provenance['device']}, {kernels.cores()} cores")
    problems = sample_problems() if arguments.problems is None else read_asked(arguments.problems)
    problems = problems[: arguments.most]
    workers = arguments.workers or kernels.cores()
    begun = time.monotonic()
    options = Options(tma=not arguments.no_tma)
    bench = gpu_bench(
        device, options, workers=workers, inline=arguments.inline, seed=arguments.seed
    )
    _print(f"{workers} workers ready after {time.monotonic() - begun:.1f} s")
    plan = Plan(
        effort=Effort(candidates=arguments.candidates), ahead=arguments.ahead,
        exhaustive=arguments.exhaustive, chip=chip_of(device),
    )  # fmt: skip
    begun = time.monotonic()
    try:
        found = tune(
            Run(problems=problems, out=arguments.out, plan=plan, minutes=arguments.minutes),
            bench,
            provenance,
        )
    except DeadDeviceError as error:
        _print(f"the GPU's context is broken: {error}")
        raise SystemExit(1) from error
    seconds = time.monotonic() - begun
    _print(found.text)
    per_minute = 60 * (found.tuned - found.before) / seconds
    _print(f"{seconds:.1f} s, {per_minute:.1f} problems a minute; seconds by what they went to:")
    _print(", ".join(f"{what} {spent:.1f}" for what, spent in sorted(bench.spent.items())))
    done = read_results(arguments.out, torch=provenance["torch"], arch=provenance["arch"])
    lines = [line for line in done.lines.values() if line["status"] == TUNED]
    _print_found(lines)
    for path in write_dumps(read_results(arguments.out), arguments.out):
        _print(f"{path} written")
    bench.draw = random.Random(arguments.seed + 1)  # noqa: S311 - the order of rounds
    torch.manual_seed(arguments.seed + 1)
    if not arguments.once:
        beside = {} if arguments.beside is None else read_results(arguments.beside).lines
        _remeasure(bench, lines, beside)
    bench.close()
    if arguments.against is not None:
        _compare(lines, read_results(arguments.against).lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, prog="build_tools.tune.trial")
    parser.add_argument("problems", nargs="*", type=Path, default=None)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--most", type=int, default=10_000)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--candidates", type=int, default=Effort().candidates)
    parser.add_argument("--ahead", type=int, default=Plan().ahead)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--inline", action="store_true")
    parser.add_argument("--exhaustive", action="store_true", help="measure the whole space")
    parser.add_argument("--against", type=Path, help="results of an exhaustive run")
    parser.add_argument("--once", action="store_true", help="measure nothing again")
    parser.add_argument("--beside", type=Path, help="results of another tuning to compare with")
    parser.add_argument("--no-tma", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    found = parser.parse_args()
    found.problems = found.problems or None
    return found


def _print_found(lines: Iterable[Line]) -> None:
    _print(
        "problem                         aten    host    ours  spread margin noise  tried s  kernel"
    )
    for line in lines:
        ours, known = line["entries"][0], line["incumbents"]
        times = [_us(known.get("aten")), _us(known.get("host")), _us(ours)]
        spread = ours["spread_ns"] / ours["time_ns"]
        _print(
            f"{_name(line['problem']):<30}{''.join(f'{us:>8}' for us in times)}{spread:>7.1%}"
            f"{line['margin']:>7.1%}{line['noise']:>6.1%}{line['evaluated']:>5}"
            f"{line['seconds']:>6.1f}  {_short(ours['plain'])} {line['failures'] or ''}"
        )
        for failed in line["failed_candidates"][:3]:
            _print(f"    {failed['stage']}: {failed['reason'][:150]}")


def _compare(lines: Sequence[Line], full: dict[str, Line]) -> None:
    """Print how far the searches are from the best of the whole space."""
    ratios: list[float] = []
    for line in lines:
        other = full.get(line["problem"])
        if other is not None and other["status"] == TUNED:
            ratios.append(line["entries"][0]["time_ns"] / other["entries"][0]["time_ns"])
            share = line["evaluated"] / other["evaluated"]
            _print(
                f"{_name(line['problem']):<30} {ratios[-1]:.3f} of the best of "
                f"{other['evaluated']}, with {share:.0%} of the evaluations"
            )
    near = sum(ratio <= 1.03 for ratio in ratios)
    _print(f"{near} of {len(ratios)} within 3 % of the best")


def _remeasure(bench: GpuBench, lines: Sequence[Line], beside: dict[str, Line]) -> None:
    _print("measured again: ours, difference, profiler; ours by each other one then, now")
    differences: list[float] = []
    agreeing: list[bool] = []
    for line in lines:
        other = beside.get(line["problem"], {"status": ""})
        theirs = _candidate(other["entries"][0]) if other["status"] == TUNED else None
        try:
            difference, ratio = _again(bench, line, theirs)
        except (InductorTablesError, RuntimeError) as error:
            _print(f"{_name(line['problem'])}: {type(error).__name__}: {error}"[:200])
            difference, ratio = 1.0, math.inf
        differences.append(difference)
        if theirs is not None:
            agreeing.append(abs(ratio - 1) <= _ALIKE)
    if differences:
        close = sum(abs(difference) <= 0.03 for difference in differences)
        worst = max(map(abs, differences))
        middle = statistics.median(map(abs, differences))
        _print(
            f"{close} of {len(differences)} within 3 %, median {middle:.2%}, largest {worst:.2%}"
        )
    if agreeing:
        _print(f"{sum(agreeing)} of {len(agreeing)} choose the same kernel or one within 1 %")


def _again(bench: GpuBench, line: Line, theirs: Config | None) -> tuple[float, float]:
    """Measure an entry, its incumbents and another tuning's entry anew.

    Returns:
        How far the time is from the first one, and ours by theirs (1 where they are the same,
        or there is none).
    """
    job = bench.open(problem_from_key(line["problem"]))
    try:
        ours = _candidate(line["entries"][0])
        known = {name: _candidate(found) for name, found in line["incumbents"].items()}
        others = {**known, **({} if theirs is None else {"theirs": theirs})}
        configs = tuple(dict.fromkeys([ours, *others.values()]))
        job.prepare([*configs, *job.space.aten[:1]])
        while not job.ready():
            bench.wait(1.0)
        answers = job.measure(Ask(candidates=configs, rounds=24, final=True))
        answer = answers[ours]
        if isinstance(answer, Failure):
            _print(f"{_name(line['problem']):<30} {answer.stage}: {answer.reason}")
            return 1.0, math.inf
        difference = float(answer.median_us * 1000 / line["entries"][0]["time_ns"]) - 1
        ratios = {name: _ratio(answer, answers[config]) for name, config in others.items()}
        told = "  ".join(
            f"{name} {1 / line['incumbents'][name]['ratio']:.3f} {ratios[name]:.3f}"
            for name in known
        )
        told += "" if theirs is None else f"  theirs {ratios['theirs']:.3f} {theirs == ours}"
        profiled = job.profiled_us(ours)
        _print(
            f"{_name(line['problem']):<30}{answer.median_us:>8.2f}{difference:>7.1%}"
            f"{profiled:>8.2f}  {told}"
        )
        return difference, ratios.get("theirs", 1.0)
    finally:
        job.close()


def _ratio(ours: Timing, other: Timing | Failure) -> float:
    if isinstance(other, Failure):
        return math.inf
    return compare(ours.samples_us, other.samples_us).ratio


def _candidate(entry: dict[str, Any]) -> Config:
    config = config_of(entry["plain"])
    return candidate(config.template_id, config.template_hash, dict(config.params))


def _us(entry: dict[str, Any] | None) -> str:
    return "-" if entry is None else f"{entry['time_ns'] / 1000:.2f}"


def _name(key: str) -> str:
    problem = problem_from_key(key)
    sizes = [str(list(tensor.size)).replace(" ", "") for tensor in problem.inputs[-2:]]
    if problem.op_name == "scaled_mm":
        sizes = [str(list(tensor.size)).replace(" ", "") for tensor in problem.inputs[:2]]
    return f"{problem.op_name} {' '.join(sizes)}"


def _short(plain: dict[str, Any]) -> str:
    names = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_stages", "num_warps", "GROUP_M", "k_split")
    return " ".join([plain["template_id"], *(str(plain[n]) for n in names if n in plain)])


def _print(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - a script


if __name__ == "__main__":
    main()
