"""Small models, and tables for them, that the tests of coverage share."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from inductor_tables import host
from inductor_tables.parameters import recordable
from inductor_tables.schema import Config, Entry, Source
from inductor_tables.simulation import simulate
from inductor_tables.table import write_table

H200 = "NVIDIA H200"
BF16 = torch.bfloat16
WIDTH, HIDDEN, OUT = 64, 128, 96

needs_simulation = pytest.mark.skipif(
    torch.cuda.is_available() or importlib.util.find_spec("triton") is None,
    reason="needs triton and no visible GPU (CUDA_VISIBLE_DEVICES='')",
)


class Mlp(nn.Module):
    """Two products."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, HIDDEN)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (tokens, WIDTH) to the same shape."""
        return self.down(torch.relu(self.up(x)))


class Experts(nn.Module):
    """Every expert on every token, as one batched product."""

    def __init__(self, count: int = 4) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, WIDTH, HIDDEN))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (tokens, WIDTH) to (experts, tokens, HIDDEN)."""
        return torch.bmm(x.expand(self.weight.shape[0], -1, -1), self.weight)


def stack(layers: int = 2) -> nn.Sequential:
    """Return a model with ``2 * layers + 1`` products of three kinds."""
    return nn.Sequential(*(Mlp() for _ in range(layers)), nn.Linear(WIDTH, OUT, bias=False))


def meta(build: Callable[[], Any], dtype: torch.dtype = BF16) -> Any:
    """Build a module or tensor on the meta device."""
    with torch.device("meta"):
        return build().to(dtype)


def tokens(count: int = 16, dtype: torch.dtype = BF16) -> torch.Tensor:
    """Return an input of :func:`stack`."""
    return torch.empty(count, WIDTH, dtype=dtype, device="meta")


def mm_key(m: int, n: int, k: int, dtype: str = "bfloat16", device: str = H200) -> str:
    """Return the key of a product with the weight of a linear layer."""
    left, right = f"[{m}, {k}], [{k}, 1]", f"[{k}, {n}], [1, {k}]"
    return f"{device}+((torch.{dtype}, {left}), (torch.{dtype}, {right}))+mm"


def offered(model: Any, *args: torch.Tensor) -> dict[str, list[Config]]:
    """Return, by key, the choices that torch offers for the products of a model."""
    with simulate(H200, codegen=False) as sim:
        sim.compile(sim.module(model), *map(sim.fake, args))
        return {
            call.device_key or "": [
                Config(
                    template_id=choice.template_id,
                    template_hash=None,
                    params=tuple(sorted(recordable(choice.params).items())),
                )
                for choice in call.choices
                if choice.template_id is not None
            ]
            for op in sim.ops
            for call in op.calls
        }


def table_file(path: Path, entries: Mapping[str, Sequence[tuple[Config, int | None]]]) -> Path:
    """Write a table of configurations with their times in ns."""
    source = Source(dump_digest="11" * 32)
    data = write_table(
        {
            key: [Entry(config=config, time_ns=time, source=source) for config, time in listed]
            for key, listed in entries.items()
        },
        table_version="1",
        series=host.installed_series(),
        arch=H200,
    )
    path.write_bytes(data)
    return path


ATEN = Config(template_id="aten::mm", template_hash=None, params=())
