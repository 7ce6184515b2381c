"""One torch's part of a comparison: ``python -m build_tools.carry.worker TASKS``, in its Python.

TASKS is a file of JSON: ``device``, ``timeout_s`` and ``tasks``, each with ``key``, ``entry`` in
the plain form, and the other torch's ``kernel`` or null. Each line of the output is JSON. The
first says which torch and triton these are; each further one belongs to a task, in order, and
holds ``kernel``, if none was given, or ``reason``, null if both torches' kernels are one.

A compiler that crashes or hangs ends the process; the task that has no answer is the one.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, Final, NoReturn

from build_tools.distinct import Case
from inductor_tables.errors import BuildError, SimulationError
from inductor_tables.keys import parse_key
from inductor_tables.schema import plain_config

_LONGEST: Final = 300


def main(tasks: Path) -> None:
    """Do the tasks of a file.

    Raises:
        SimulationError: the device cannot be simulated here.
        ImportError: torch, triton or the project is not installed here.
    """
    with _alone() as answers:
        asked = json.loads(tasks.read_text(encoding="utf-8"))
        for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
            os.environ[name] = ""  # a process that sees a GPU may not simulate one
        torch, triton = importlib.import_module("torch"), importlib.import_module("triton")
        importlib.import_module("inductor_tables.tables")  # an installed project has it
        simulate = importlib.import_module("inductor_tables.simulation").simulate
        with simulate(asked["device"]) as sim:
            _tell(answers, {"torch": str(torch.__version__), "triton": triton.__version__})
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # what hangs in a compiler runs no Python
            for task in asked["tasks"]:
                signal.setitimer(signal.ITIMER_REAL, asked["timeout_s"])
                _tell(answers, _answer(sim, task))
            signal.setitimer(signal.ITIMER_REAL, 0)


def _alone() -> IO[str]:
    """Return the output, which no compiler that prints writes into any more."""
    own = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(own, "w", encoding="utf-8")


def _tell(answers: IO[str], line: Mapping[str, Any]) -> None:
    answers.write(json.dumps(line) + "\n")
    answers.flush()


def _answer(sim: Any, task: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return _compared(sim, task)
    except SimulationError:
        raise
    except Exception as error:  # noqa: BLE001 - torch and triton raise anything
        text = next(iter(str(error).strip().splitlines()), "")
        return {"reason": f"{type(error).__name__}: {text}"[:_LONGEST]}


def _compared(sim: Any, task: Mapping[str, Any]) -> dict[str, Any]:
    render = importlib.import_module("build_tools.render")
    kernels = importlib.import_module("build_tools.carry.kernel")
    config = plain_config(task["entry"], "entry", _fail)
    rendered = render.render(sim, Case(key=parse_key(task["key"]), config=config, pairs=1))
    if rendered.source is None:
        return {"reason": rendered.dropped}
    own = kernels.kernel_of(sim, rendered.source)
    if task["kernel"] is None:
        return {"kernel": asdict(own)}
    other = kernels.Kernel(**task["kernel"])
    plain = kernels.Kernel(**json.loads(json.dumps(asdict(own))))  # tuples are lists there
    try:
        return {"reason": kernels.difference(other, plain)}
    finally:  # a MB a kernel, which nothing reads again
        shutil.rmtree(os.environ["TRITON_CACHE_DIR"], ignore_errors=True)


def _fail(where: str, problem: str) -> NoReturn:
    raise BuildError(f"{where}: {problem}")


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        main(Path(sys.argv[1]))
