"""Time of ``import inductor_tables``, next to a Python that imports nothing.

    python benchmarks/import_time.py --json

Fresh processes, the kinds in turn. ``import_ms`` is timed inside the process, around the
import; ``autoload_off_ms`` around what ``import torch`` calls by our entry point where
``INDUCTOR_TABLES`` is not set; ``process_ms`` and ``bare_process_ms`` are whole processes from
outside. Medians, with the least and the greatest. Bars: import_ms <= 20, autoload_off_ms <= 2.
"""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import sys
import time
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

BARS_MS: Final = {"import_ms": 20.0, "autoload_off_ms": 2.0}

IMPORT: Final = (
    "import time; begin = time.perf_counter(); import inductor_tables; "
    "print((time.perf_counter() - begin) * 1e3)"
)
ENABLE: Final = (
    "import time, inductor_tables; begin = time.perf_counter(); inductor_tables.enable(); "
    "print((time.perf_counter() - begin) * 1e3)"
)
AUTOLOAD: Final = (
    # what torch has imported by then
    "import time, importlib, typing, threading, os; begin = time.perf_counter(); "
    "from inductor_tables.autoload import autoload; autoload(); "
    "print((time.perf_counter() - begin) * 1e3)"
)
NOTHING: Final = "import time; time.perf_counter(); print(0)"


def run(code: str) -> tuple[float, float]:
    """Return the time in ms that the code printed, and that its whole process took."""
    begin = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True
    )
    return float(done.stdout), (time.perf_counter() - begin) * 1e3


def measure(rounds: int) -> dict[str, Any]:
    """Run each kind of process that many times, in turn, after one of each to warm up."""
    times: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        _, bare = run(NOTHING)
        imported, process = run(IMPORT)
        enabled, _ = run(ENABLE)
        autoloaded, _ = run(AUTOLOAD)
        if number:
            for name, value in (
                ("import_ms", imported),
                ("enable_ms", enabled),
                ("autoload_off_ms", autoloaded),
                ("process_ms", process),
                ("bare_process_ms", bare),
            ):
                times.setdefault(name, []).append(value)
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {
        **medians,
        "spread": {name: [min(values), max(values)] for name, values in times.items()},
        "rounds": rounds,
        "bars_ms": BARS_MS,
        "within_bars": all(medians[name] <= bar for name, bar in BARS_MS.items()),
        "machine": platform.platform(),
        "python": platform.python_version(),
    }


@click.command()
@click.option("--rounds", default=21, show_default=True, help="Processes of each kind.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def main(rounds: int, as_json: bool) -> None:
    """Measure what importing and enabling cost."""
    result = measure(rounds)
    if as_json:
        print(json.dumps(result, indent=2))
        return
    grid = Table("figure", "median", "least", "greatest", title=f"{rounds} processes of each kind")
    for name, (least, greatest) in result["spread"].items():
        grid.add_row(name, *(f"{value:.2f}" for value in (result[name], least, greatest)))
    console = Console()
    console.print(grid)
    bars = ", ".join(f"{name} <= {bar:g}" for name, bar in BARS_MS.items())
    console.print(f"bars: {bars}; {result['machine']}, Python {result['python']}")


if __name__ == "__main__":
    main()
