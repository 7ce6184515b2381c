"""What ``inductor-tables demo`` compiles, and how.

Every compile runs in a process of its own, ``python -m inductor_tables.demo RESULT STEP``
(:mod:`inductor_tables.fresh`).
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional

import inductor_tables
from inductor_tables import host
from inductor_tables.errors import InductorTablesError
from inductor_tables.fresh import NO_GPU, FreshProcessError, run_fresh
from inductor_tables.keys import parse_key
from inductor_tables.report import Status, TableStatus
from inductor_tables.resources import packaged_candidates

SIMULATED: Final = "NVIDIA H200"
"""gcnArchName of the device that stands in where no GPU is one that the tables know."""

TOKENS: Final = 16
HIDDEN: Final = 4096
KEY_VALUE: Final = 1024
HEAD: Final = 128
INTERMEDIATE: Final = 14336
"""The sizes of a Llama 3 8B block, whose GEMMs were recorded."""

ADAPTER: Final = 640
"""A width of no known model: the GEMM that misses."""

LAYERS: Final[Mapping[tuple[int, int], str]] = {
    (HIDDEN, HIDDEN): "query, output",
    (HIDDEN, KEY_VALUE): "key, value",
    (HIDDEN, INTERMEDIATE): "gate, up",
    (INTERMEDIATE, HIDDEN): "down",
    (HIDDEN, ADAPTER): "adapter",
}
"""Names of the linear layers by (K, N) of their GEMM."""

COMPILES: Final[Mapping[str, str]] = {
    "default": "torch.compile, default options",
    "autotuning": "max_autotune_gemm",
    "table": "max_autotune_gemm + table",
}
"""What a real GPU compiles, each in a fresh process with empty caches."""

_AUTOTUNE: Final = {"max_autotune_gemm": True}


class DemoError(InductorTablesError, RuntimeError):
    """The demo cannot run here."""


class Block(nn.Module):  # type: ignore[misc]
    """A Llama-like transformer block: grouped-query attention, then a gated MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention = nn.RMSNorm(HIDDEN)
        self.query = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.key = nn.Linear(HIDDEN, KEY_VALUE, bias=False)
        self.value = nn.Linear(HIDDEN, KEY_VALUE, bias=False)
        self.output = nn.Linear(HIDDEN, HIDDEN, bias=False)
        self.before_mlp = nn.RMSNorm(HIDDEN)
        self.gate = nn.Linear(HIDDEN, INTERMEDIATE, bias=False)
        self.up = nn.Linear(HIDDEN, INTERMEDIATE, bias=False)
        self.down = nn.Linear(INTERMEDIATE, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, tokens, HIDDEN) to the same shape."""
        x = x + self.attend(self.before_attention(x))
        y = self.before_mlp(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        """Return causal self-attention of (batch, tokens, HIDDEN)."""
        query, key, value = (
            layer(x).unflatten(-1, (-1, HEAD)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        attended = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=True
        )
        return self.output(attended.transpose(1, 2).flatten(-2))


class Adapted(nn.Module):  # type: ignore[misc]
    """The block and behind it a layer that no table holds."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.adapter = nn.Linear(HIDDEN, ADAPTER, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, tokens, HIDDEN) to (batch, tokens, ADAPTER)."""
        return self.adapter(self.block(x))


# --- the process that a person started --------------------------------------------------


def run_demo() -> dict[str, Any]:
    """Run the demo on the first visible GPU that a packaged table serves, else simulated.

    Returns:
        ``simulated``, ``device`` (gcnArchName), ``torch``, ``triton``, ``table`` (a
        :class:`TableStatus` as dict, or None), ``hits`` and ``misses`` (ops), ``gemms``
        (one dict a key), and ``compiles``: for each of :data:`COMPILES` ``compile_s``,
        ``step_us`` and ``error`` (relative to eager), empty where it is simulated.

    Raises:
        DemoError: triton is missing, or a step failed.
    """
    if importlib.util.find_spec("triton") is None:
        raise DemoError(
            "triton is not installed (CPU builds of torch bring none); without it nothing can be "
            "compiled for a GPU, real or simulated: pip install 'inductor-tables[demo]'"
        )
    found = served_device()
    return _run_simulated() if found is None else _run_real(*found)


def served_device() -> tuple[int, str] | None:
    """Return index and gcnArchName of the first visible GPU that a packaged table serves."""
    series = host.installed_series()
    for index, arch in enumerate(host.visible_archs()):
        if next(packaged_candidates(series, arch), None) is not None:
            return index, arch
    return None


def _run_simulated() -> dict[str, Any]:
    step = _in_fresh_process("simulated", **NO_GPU)  # hides a GPU that no table knows
    return {"simulated": True, **_about(SIMULATED), **step, "compiles": {}}


def _run_real(index: int, arch: str) -> dict[str, Any]:
    steps = {name: _in_fresh_process(name, str(index)) for name in COMPILES}
    with_table = steps["table"].pop("looked_up")
    return {"simulated": False, **_about(arch), **with_table, "compiles": steps}


def _about(device: str) -> dict[str, Any]:
    import triton

    return {"device": device, "torch": torch.__version__, "triton": triton.__version__}


def _in_fresh_process(step: str, *args: str, **environment: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = run_fresh(
            "inductor_tables.demo", step, *args, environment=environment
        )
    except FreshProcessError as error:
        raise DemoError(
            f"the step {step!r} failed (exit status {error.status}):\n{error.ending}"
        ) from error
    return found


# --- the fresh process of one step ------------------------------------------------------


def _simulated() -> dict[str, Any]:
    with inductor_tables.enable(), inductor_tables.simulate(SIMULATED) as sim:
        model = sim.module(Adapted, torch.bfloat16)
        sim.compile(model, sim.empty(1, TOKENS, HIDDEN, dtype=torch.bfloat16))
        gemms = {}
        for op in sim.ops:
            key = op.calls[-1].device_key if op.calls else None
            if key is not None:
                gemms[key] = _gemm(key, op.chosen.template_id, op.chosen.params, len(op.offered))
        return _looked_up(inductor_tables.status(), SIMULATED, list(gemms.values()))


def _real(name: str, index: int) -> dict[str, Any]:
    torch.cuda.set_device(index)
    torch.manual_seed(0)
    with torch.device("cuda"):
        block = Block().to(torch.bfloat16)
        adapter = nn.Linear(HIDDEN, ADAPTER, bias=False).to(torch.bfloat16)
        x = torch.randn(1, TOKENS, HIDDEN).to(torch.bfloat16)
    with torch.no_grad():
        if name == "default":
            return _measure(block, x, {})
        if name == "autotuning":
            return _measure(block, x, _AUTOTUNE)
        with inductor_tables.enable():
            measured = _measure(block, x, _AUTOTUNE)
            seconds, _ = _compile(adapter, x, _AUTOTUNE)
            found = _really_looked_up(host.visible_archs()[index])
            return {**measured, "miss_compile_s": seconds, "looked_up": found}


def _measure(block: nn.Module, x: torch.Tensor, options: dict[str, Any]) -> dict[str, Any]:
    expected = block(x)  # also wakes up CUDA and cuBLAS, whose start is not the compiler's
    seconds, compiled = _compile(block, x, options)
    off = (compiled(x).float() - expected.float()).norm() / expected.float().norm()
    return {"compile_s": seconds, "step_us": _step_us(compiled, x), "error": off.item()}


def _compile(
    module: nn.Module, x: torch.Tensor, options: dict[str, Any]
) -> tuple[float, Callable[[torch.Tensor], torch.Tensor]]:
    """Return the seconds of compiling and the first call, and the compiled module."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    compiled: Any = torch.compile(module, options=dict(options))
    compiled(x)
    torch.cuda.synchronize()
    return time.perf_counter() - start, compiled


def _step_us(step: Callable[[torch.Tensor], Any], x: torch.Tensor, rounds: int = 1000) -> float:
    """Return the median GPU time of a step in µs.

    The step is replayed from a CUDA graph, so that the host's launches do not count, and
    the first half of the rounds only brings the clocks up.
    """
    for _ in range(3):
        step(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(x)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(rounds + 1)]
    events[0].record()
    for event in events[1:]:
        graph.replay()
        event.record()
    torch.cuda.synchronize()
    times: list[float] = [start.elapsed_time(end) for start, end in pairwise(events)]
    return 1000 * statistics.median(times[rounds // 2 :])


def _really_looked_up(arch: str) -> dict[str, Any]:
    status = inductor_tables.status()
    gemms = [_from_table(key, arch) for key in status.last_hits]
    gemms += [_gemm(key, None, {}, None) for key in status.last_misses]
    return _looked_up(status, arch, gemms)


def _from_table(key: str, arch: str) -> dict[str, Any]:
    for candidate in packaged_candidates(host.installed_series(), arch):
        entries = candidate.table.lookup(key)
        if entries:
            config = entries[0].config
            return _gemm(key, config.template_id, dict(config.params), len(entries))
    return _gemm(key, None, {}, None)


def _looked_up(status: Status, arch: str, gemms: Sequence[dict[str, Any]]) -> dict[str, Any]:
    tables: list[TableStatus] = status.devices.get(arch, [])
    for gemm in gemms:
        gemm["hit"] = gemm["key"] in status.last_hits
    return {
        "table": status.as_dict()["devices"][arch][0] if tables else None,
        "hits": status.hits,
        "misses": status.misses,
        "gemms": list(gemms),
    }


def _gemm(
    key: str, template_id: str | None, params: Mapping[str, Any], choices: int | None
) -> dict[str, Any]:
    """Describe one GEMM; ``choices`` None: as many as stock torch has."""
    left, right = parse_key(key).inputs[-2:]
    k, n = right.size
    return {
        "layers": LAYERS.get((k, n), "other"),
        "key": key,
        "m": left.size[0],
        "n": n,
        "k": k,
        "template_id": template_id if choices == 1 else None,
        "params": dict(params) if choices == 1 else {},
        "choices": choices,
        "autotuned": choices != 1,
    }


def _main(result: str, step: str, index: str = "0") -> None:
    found = _simulated() if step == "simulated" else _real(step, int(index))
    Path(result).write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    _main(*sys.argv[1:])
