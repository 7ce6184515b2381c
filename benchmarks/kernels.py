"""GPU time of ATen, of the host's pick and of a table's entry, problem by problem.

    python benchmarks/kernels.py --out results/kernels --minutes 8
    python benchmarks/kernels.py --out results/kernels --minutes 0 --plot kernels.png

The problems are those of the packaged table for this torch and GPU, or of ``--table``. The host's
pick is what ``max_autotune_gemm`` took when ``host_picks.py`` compiled the problem (``--picks``);
else what the host's own benchmarker says here of all choices of its default space, asked with warm
clocks, which a user's compile does not have. The three kernels are then measured together by the
tuner's machinery: correctness checked, fresh random inputs, graph replay, cold second-level cache,
shuffled rounds. Started again it goes on where it ended; ``--minutes 0`` only reports, and needs
no GPU.

Bars: the table's entry <= 1.01 x the host's pick on every problem; geometric mean <= 0.85 x for
M <= 64 and <= 0.95 x over all; <= 1.00 x ATen within noise.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

sys.path.insert(0, str(Path(__file__).parents[1]))

from ratios import read_comparisons, report_of, show

from build_tools.people import errors_for_people
from build_tools.tune.asked import read_asked
from build_tools.tune.driver import Plan, Procedure
from build_tools.tune.records import Answers, Ask, Failure, Job, Timing
from build_tools.tune.results import FAILED, TUNED, Line, config_of, problem_id
from build_tools.tune.session import Run, start_anew, tune
from build_tools.tune.shapes import shape_of
from build_tools.tune.space import Space, candidate
from build_tools.tune.verdict import compare, fastest
from inductor_tables.arch import base_arch
from inductor_tables.errors import BuildError, DeadDeviceError
from inductor_tables.keys import parse_key
from inductor_tables.problems import Problem, problem_from_key
from inductor_tables.resources import packaged_candidates, user_tables
from inductor_tables.schema import Config
from inductor_tables.table import Table
from inductor_tables.versions import TorchSeries, torch_series

_FIRST_ROUNDS: Final = 5
"""Rounds of all of the host's choices, before its pick is known."""

_MOST_TIMES: Final = 3
"""How often the rounds are repeated until the noise allows to say what is faster."""

_RECORDED: Final = "what max_autotune_gemm took in a compile of its own"
_MISSING: Final = "no entry of the table can be used here"

Offered = Mapping[str, Sequence[Config]]
"""Problem id → a table's entries, in the order of the table."""


def comparing(
    offered: Offered, rounds: int, picks: Mapping[str, Config] | None = None
) -> Callable[[str, Job], Procedure]:
    """Return what measures a problem: the host's choices, its pick, then pick, ATen and entry.

    With ``picks``, the host's by problem id, of its other choices only ATen's are measured.
    """

    def procedure(key: str, job: Job) -> Procedure:
        host = job.space.host
        if picks is not None:
            host = _distinct([*job.space.aten, *([picks[key]] if picks[key] in host else [])])
        ours = served(job.space, offered[key])
        if ours is None:
            yield Ask(candidates=host[:1], rounds=1)  # a procedure asks at least once
            return {"status": FAILED, "reason": _MISSING}
        answers = yield Ask(candidates=_distinct([*host, ours]), rounds=_FIRST_ROUNDS)
        found = answers[ours]
        if isinstance(found, Failure):
            return {"status": FAILED, "reason": f"table: {found.stage}: {found.reason}"}
        times = {c: a.samples_us for c, a in answers.items() if isinstance(a, Timing)}
        pick, how = _pick_of(job, answers) if picks is None else (picks[key], _RECORDED)
        aten, best = fastest(times, job.space.aten), fastest(times, host)
        if pick not in times or aten is None or best is None:
            return {"status": FAILED, "reason": "the host has no pick, or ATen no kernel"}
        roles = {"table": ours, "host": pick, "aten": aten}
        if picks is None:
            roles["host_best"] = best
        samples: dict[Config, list[float]] = {config: [] for config in roles.values()}
        for _ in range(_MOST_TIMES):
            again = yield Ask(candidates=tuple(samples), rounds=rounds, final=True)
            for config, answer in again.items():
                if isinstance(answer, Failure):
                    role = next(name for name, held in roles.items() if held == config)
                    reason = f"{role}: {answer.stage}: {answer.reason}"
                    return {"status": FAILED, "reason": reason}
                samples[config].extend(answer.samples_us)
            if all(compare(samples[ours], times).decided for times in samples.values()):
                break
        return {**_line(roles, samples), "how": how, "choices": len(host)}

    return procedure


def _pick_of(job: Job, answers: Answers) -> tuple[Config | None, str]:
    found = job.host_pick(answers)
    return (None, "") if found is None else (found.config, found.how)


def served(space: Space, entries: Sequence[Config]) -> Config | None:
    """Return the first entry that a look-up would serve, None if it would drop all."""
    return next((config for config in entries if _is_served(space, config)), None)


def _is_served(space: Space, config: Config) -> bool:
    if config in space.host or config in space.extended:
        return True
    base = space.templates.get(config.template_id)
    if base is None or space.problem(config) is not None:
        return False
    hashes = {config.template_hash, base.template_hash}
    return None in hashes or len(hashes) == 1


def _line(roles: Mapping[str, Config], samples: Mapping[Config, Sequence[float]]) -> Line:
    medians = {config: statistics.median(times) for config, times in samples.items()}
    ours = roles["table"]
    ratios = {name: compare(samples[ours], samples[roles[name]]) for name in roles}
    return {
        "status": TUNED,
        "best": [dict(config.plain) for config in sorted(medians, key=medians.__getitem__)],
        "kernels": {
            name: {"plain": dict(config.plain), "time_us": medians[config]}
            for name, config in roles.items()
        },
        "ratios": {
            name: {"ratio": found.ratio, "noise": found.noise, "same": roles[name] == ours}
            for name, found in ratios.items()
            if name != "table"
        },
        "rounds": len(samples[ours]),
    }


def table_entries(tables: Iterable[Table], arch: str) -> dict[str, list[Config]]:
    """Return what tables offer a device by problem id; the first table that has a key serves it."""
    found: dict[str, list[Config]] = {}
    for table in tables:
        for key, entries in table.items():
            if parse_key(key).device in (None, arch, base_arch(arch)):
                configs = [entry.config for entry in entries]
                found.setdefault(
                    problem_id(problem_from_key(key)),
                    [candidate(c.template_id, c.template_hash, dict(c.params)) for c in configs],
                )
    return found


def _picks(path: Path, series: TorchSeries, arch: str) -> dict[str, Config]:
    """Return the fastest choice of each problem of recordings.

    Raises:
        BuildError: there are none for this torch and device.
    """
    found = table_entries(user_tables(path, series, "--picks"), arch)
    if not found:
        raise BuildError(f"{path} holds no picks for torch {series} on {arch}: record some there")
    return {key: entries[0] for key, entries in found.items()}


def sample(problems: Sequence[Problem], most: int | None, seed: int) -> list[Problem]:
    """Return problems in an order of which every beginning is a fair sample over M.

    Problems are shuffled among those whose M has the same power of two, and these classes are
    interleaved in proportion to their sizes.
    """
    classes: dict[int, list[Problem]] = {}
    for problem in sorted(problems, key=problem_id):
        classes.setdefault(shape_of(problem).m.bit_length(), []).append(problem)
    draw = random.Random(seed)
    places: list[tuple[float, int, Problem]] = []
    for size, held in sorted(classes.items()):
        draw.shuffle(held)
        places += [((at + 0.5) / len(held), size, problem) for at, problem in enumerate(held)]
    ordered = [problem for _, _, problem in sorted(places, key=lambda place: place[:2])]
    return ordered[:most]


def measure(
    out: Path,
    table: Path | None,
    picks: Path | None,
    problems: Sequence[Path],
    minutes: float | None,
    **options: Any,
) -> None:
    """Compare problems on this process's GPU until none is left or the time is up.

    Raises:
        BuildError: there is no GPU or no table for it, or ``out`` holds other comparisons or
            other results.
        OSError: a file cannot be read or written.
    """
    from build_tools.tune.device import described, own_device
    from build_tools.tune.kernels import cores
    from build_tools.tune.lowering import Options
    from build_tools.tune.measure import gpu_bench

    device = own_device()
    provenance = described(device)
    arch, series = provenance["arch"], torch_series(provenance["torch"])
    tables = (
        [found.table for found in packaged_candidates(series, arch)]
        if table is None
        else user_tables(table, series, "--table")
    )
    offered = table_entries(tables, arch)
    wanted = read_asked(problems) if problems else [problem_from_key(key) for key in offered]
    picked = None if picks is None else _picks(picks, series, arch)
    known = sample(
        [p for p in wanted if problem_id(p) in offered and (not picked or problem_id(p) in picked)],
        options["most"],
        options["seed"],
    )
    if not known:
        raise BuildError(f"no table for torch {series} on {arch} holds a problem; give --table")
    provenance.update(tma=options["tma"], picks=picked is not None)
    held = read_comparisons(out, torch=provenance["torch"], arch=arch)
    check_same(held, offered, picked, tma=options["tma"])
    # The host's benchmarker wants the CPU in time, as it has it in a user's compile.
    workers = options["workers"] or max(cores() - 2, 1)
    bench = gpu_bench(
        device, Options(tma=options["tma"]), workers=workers, inline=True, seed=options["seed"]
    )
    plan = Plan(procedure=comparing(offered, options["rounds"], picked))
    run = Run(problems=known, out=out, plan=plan, minutes=minutes, retry=options["retry"])
    try:
        tune(run, bench, provenance, progress=_tell)
    except DeadDeviceError as error:
        bench.close()
        start_anew(error)
    bench.close()
    spent = sorted(bench.spent.items(), key=lambda pair: -pair[1])
    click.echo(", ".join(f"{what} {seconds:.1f} s" for what, seconds in spent), err=True)


def check_same(
    lines: Iterable[Line], offered: Offered, picks: Mapping[str, Config] | None = None, *, tma: bool
) -> None:
    """Check that results are comparisons of what is compared now; others may have come to them.

    Args:
        lines: the results.
        offered: the entries by problem id.
        picks: the host's by problem id, None where its benchmarker is asked.
        tma: whether TMA entries are served.

    Raises:
        BuildError: they are not; names the problem and what is another's there.
    """
    settings = {"tma": tma, "picks": picks is not None}
    for line in lines:
        key = line["problem"]
        held = {name: config_of(one["plain"]) for name, one in line.get("kernels", {}).items()}
        others = [f"--{name}" for name, value in settings.items() if _set(line, name) != value]
        if "table" in held and held["table"] not in offered.get(key, ()):
            others.append("entry")
        if picks and key in picks and held.get("host", picks[key]) != picks[key]:
            others.append("pick of the host's")
        if others:
            raise BuildError(
                f"the results there compare {key} with another {', another '.join(others)}: "
                "use another --out"
            )


def _set(line: Line, name: str) -> bool:
    return bool(line["worker"].get(name))


def _distinct(configs: Iterable[Config]) -> tuple[Config, ...]:
    return tuple(dict.fromkeys(configs))


def _tell(done: int, total: int) -> None:
    if done % 10 == 0 or done == total:
        click.echo(f"{done} of {total} problems done", err=True)


_PATH: Final = click.Path(path_type=Path)


@click.command()
@click.argument("problems", nargs=-1, type=_PATH)
@click.option("--out", required=True, type=_PATH, help="Directory of results, resumed.")
@click.option("--minutes", type=float, help="Begin no problem after that; 0: only report.")
@click.option("--table", type=_PATH, help="Table, dump or a directory of them; else the packaged.")
@click.option("--picks", type=_PATH, help="Dumps of host_picks.py: what the host took.")
@click.option("--most", type=int, help="Problems at most, a fair sample over M.")
@click.option("--rounds", default=24, show_default=True, help="Of each kernel, up to three times.")
@click.option("--seed", default=0, show_default=True, help="Of the sample, the data, the orders.")
@click.option("--workers", type=int, help="Compiling processes; default: the cores but two.")
@click.option("--tma", is_flag=True, help="Serve TMA entries too, as to users who switch them on.")
@click.option("--retry", is_flag=True, help="Do problems again that failed.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--plot", type=_PATH, help="Draw the ratios over M into a PNG.")
@errors_for_people
def main(
    out: Path, minutes: float | None, as_json: bool, plot: Path | None, **options: Any
) -> None:
    """Compare a table's entries with the host's pick and ATen; PROBLEMS: of these only."""
    if minutes != 0:
        measure(out, minutes=minutes, **options)
    report = report_of(read_comparisons(out))
    if as_json:
        click.echo(json.dumps(report, indent=1))
    else:
        show(report)
    if plot is not None:
        from plots import plot_kernels

        plot_kernels(report, plot)


if __name__ == "__main__":
    main()
