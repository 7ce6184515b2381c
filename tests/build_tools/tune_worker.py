"""One worker of a job, in a process of its own: tunes made-up problems with a made-up GPU."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]

import tune_samples as samples

from build_tools.tune.driver import Plan
from build_tools.tune.search import Effort
from build_tools.tune.session import Run, tune


def main() -> None:
    """Tune ``count`` problems into a directory."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=0.0)
    arguments = parser.parse_args()
    problems = [samples.problem(8 + n, 64, 64) for n in range(arguments.count)]
    effort = Effort(candidates=1, batch=1, final_rounds=4, most_rounds=4)
    run = Run(problems=problems, out=arguments.out, lease_s=3.0,
              plan=Plan(effort=effort, ahead=2))  # fmt: skip
    found = tune(run, samples.FakeBench(seconds=arguments.seconds), dict(samples.PROVENANCE))
    sys.stdout.write(found.text)


main()
