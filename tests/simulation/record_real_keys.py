"""Record on a real GPU what every case asks for: ``python record_real_keys.py OUT.json``.

Needs torch, triton and the GPU, and nothing installed: run it from a checkout. Cases that OUT.json
holds already are not run again, so that a second call finishes what the first one did not.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import traceback
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
GRACE = 20.0
"""Seconds that a case which has begun may take beyond the budget."""


def main() -> None:
    """Read the command line; a worker is this script again."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=pathlib.Path, help="JSON file to write or to complete")
    parser.add_argument("--budget", type=float, default=90.0, help="seconds to begin cases in")
    parser.add_argument("--jobs", type=int, default=4, help="processes that share the GPU")
    parser.add_argument("--only", nargs="*", default=(), help="names of cases; default: all")
    parser.add_argument("--skip", nargs="*", default=(), help="names of cases to leave out")
    parser.add_argument("--device", default="cuda", help="cpu: try the script without a GPU")
    parser.add_argument("--shard", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.shard is None:
        _supervise(arguments)
    else:
        _work(arguments)


def _supervise(arguments: argparse.Namespace) -> None:
    """Run the workers, and put what they recorded together, also where one died."""
    end = time.monotonic() + arguments.budget + GRACE
    before = _read(arguments.out)
    done = [name for name, case in before["cases"].items() if "error" not in case]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        parts = [pathlib.Path(folder, f"{shard}.json") for shard in range(arguments.jobs)]
        workers = [_worker(arguments, shard, part, done) for shard, part in enumerate(parts)]
        for worker in workers:
            try:
                worker.wait(max(end - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
        for part in map(_read, parts):
            before["made"] = part["made"] or before["made"]
            before["cases"].update(part["cases"])
    arguments.out.write_text(dumps(before))
    ended = [worker.returncode for worker in workers]
    if any(ended):
        _say(f"workers ended with {ended}")
    bad = sorted(name for name, case in before["cases"].items() if "error" in case)
    _say(f"{arguments.out}: {len(before['cases'])} cases; errors: {', '.join(bad) or 'none'}")


def _worker(
    arguments: argparse.Namespace, shard: int, part: pathlib.Path, done: list[str]
) -> subprocess.Popen[bytes]:
    """Start a worker with empty caches and its share of the cores."""
    threads = max((os.cpu_count() or arguments.jobs) // arguments.jobs, 1)
    environment = {
        "TORCHINDUCTOR_CACHE_DIR": str(part.with_suffix(".inductor")),
        "TRITON_CACHE_DIR": str(part.with_suffix(".triton")),
        "TORCHINDUCTOR_COMPILE_THREADS": str(threads),
    }
    command = [sys.executable, __file__, str(part), "--shard", str(shard)]
    command += ["--device", arguments.device]
    command += ["--jobs", str(arguments.jobs), "--budget", str(arguments.budget)]
    command += ["--only", *arguments.only, "--skip", *arguments.skip, *done]
    return subprocess.Popen(command, env=os.environ | environment)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _read(path: pathlib.Path) -> dict[str, Any]:
    if not path.exists():
        return {"made": {}, "cases": {}}
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def dumps(content: dict[str, Any]) -> str:
    """Return JSON with one row a line, which a diff can be read of."""
    lines = [f' "made": {json.dumps(content["made"], sort_keys=True)}']
    cases = []
    for name, case in sorted(content["cases"].items()):
        calls = ",\n    ".join(json.dumps(row) for row in case.get("calls", []))
        rest = {field: value for field, value in sorted(case.items()) if field != "calls"}
        fields = [f"   {json.dumps(field)}: {json.dumps(value)}" for field, value in rest.items()]
        fields.append(f'   "calls": [\n    {calls}]')
        cases.append(f"  {json.dumps(name)}: {{\n" + ",\n".join(fields) + "}")
    lines.append(' "cases": {\n' + ",\n".join(cases) + "}")
    return "{\n" + ",\n".join(lines) + "}\n"


def _work(arguments: argparse.Namespace) -> None:
    """Record this worker's share of the cases, and write the file after each."""
    end = time.monotonic() + arguments.budget
    sys.path.insert(0, str(ROOT))
    import torch
    from real_cases import CASES
    from real_recorder import recorded_device

    todo = [name for name in arguments.only or CASES if name not in arguments.skip]
    content: dict[str, Any] = {"made": _made(torch, arguments.device), "cases": {}}
    with recorded_device(arguments.device) as device:
        for name in todo[arguments.shard :: arguments.jobs]:
            if time.monotonic() > end:
                _say(f"{name}: no time left")
                continue
            content["cases"][name] = _record(device, CASES[name], name)
            arguments.out.with_suffix(".new").write_text(json.dumps(content))
            arguments.out.with_suffix(".new").replace(arguments.out)
            torch.cuda.empty_cache()


def _record(device: Any, case: Any, name: str) -> dict[str, Any]:
    """Return the record of one case; an exception is a record as well."""
    from key_records import record_case

    start = time.monotonic()
    try:
        found = record_case(device, case)
    except Exception as error:  # noqa: BLE001 - the other cases are worth having
        traceback.print_exc()
        found = {"error": f"compile: {type(error).__name__}: {str(error)[:500]}"}
    else:
        if device.run_error:
            found["error"] = f"run: {device.run_error[:500]}"
    found["padding"] = [list(row) for row in device.padding]
    found["seconds"] = round(time.monotonic() - start, 1)
    asked = sum(row[-1] for row in found.get("calls", ()))
    _say(f"{name}: {found['seconds']} s, {asked} calls {found.get('error', '')}")
    return found


def _made(torch: Any, device: str) -> dict[str, Any]:
    """Say where and when the recording was made."""
    import dataclasses

    import triton

    from inductor_tables.simulation import read_device_spec

    return {
        "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "cudnn": _cudnn(torch),
        "driver": _driver(),
        "python": sys.version.split()[0],
        "device": dataclasses.asdict(read_device_spec()) if device == "cuda" else device,
    }


def _cudnn(torch: Any) -> str:
    """Return cuDNN's version; where torch refuses the one that is here, do without it."""
    try:
        return str(torch.backends.cudnn.version())
    except RuntimeError as error:
        torch.backends.cudnn.enabled = False
        return f"off: {str(error)[:200]}"


def _driver() -> str:
    """Return the driver's version, or why it is not known."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"unknown: {error}"


if __name__ == "__main__":
    main()
