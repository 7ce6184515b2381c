"""Keys, entries and dumps that the tests of the build tools share."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from build_tools.cli import main
from build_tools.hashes import read_committed
from inductor_tables.dumps import make_row, render_dump
from inductor_tables.schema import Proof
from inductor_tables.table import Table
from inductor_tables.versions import TorchSeries

needs_simulation = pytest.mark.skipif(
    torch.cuda.is_available() or importlib.util.find_spec("triton") is None,
    reason="needs triton and no visible GPU (CUDA_VISIBLE_DEVICES='')",
)

TILE: dict[str, Any] = {
    "BLOCK_M": 16, "BLOCK_N": 32, "BLOCK_K": 64, "GROUP_M": 8, "num_stages": 3, "num_warps": 4,
}  # fmt: skip

COMMITTED = read_committed()
RECORDINGS = Path(__file__).parents[2] / "build_tools" / "recordings"

INPUTS = "((torch.bfloat16, [16, 4096], [4096, 1]), (torch.bfloat16, [4096, 1024], [1, 4096]))"
MM = f"NVIDIA H200+{INPUTS}+mm"
WIDE_MM = MM.replace("1024", "2048")
AGNOSTIC_MM = f"{INPUTS}+mm"
ADDMM_ATEN = (
    "NVIDIA H200+((torch.bfloat16, [768], [1]), (torch.bfloat16, [128, 768], [768, 1]), "
    "(torch.bfloat16, [768, 768], [1, 768]))+alpha=1&beta=1+addmm"
)
ADDMM_TRITON = ADDMM_ATEN.replace("[768], [1]", "[128, 768], [0, 1]")

ATEN: dict[str, Any] = {"template_id": "aten::mm"}
PROVENANCE = {"torch": "2.13.0+cu130", "device": "NVIDIA H200", "arch": "NVIDIA H200"}

Timed = tuple[Mapping[str, Any], int | None] | tuple[Mapping[str, Any], int | None, Proof | None]
"""A plain entry and its time in ns, with or without a proof."""


def triton(series: str = "2.13", template_id: str = "triton::mm", **params: Any) -> dict[str, Any]:
    """Return a plain Triton entry with the hash that the template has in a series."""
    template_hash = COMMITTED[TorchSeries(series)].templates[template_id]
    chosen = {"BLOCK_M": 16, "num_warps": 4, **params}
    return {"template_id": template_id, "template_hash": template_hash, **chosen}


def dump_bytes(rows: Mapping[str, Sequence[Timed]], **provenance: Any) -> bytes:
    """Return a dump; ``provenance`` replaces fields of that of an H200 on torch 2.13."""
    return render_dump(
        [
            make_row(key, timed[0], time_ns=timed[1], rank=rank, proof=(*timed, None)[2])
            for key, listed in rows.items()
            for rank, timed in enumerate(listed)
        ],
        {**PROVENANCE, **provenance},
    )


def write_dump(path: Path, rows: Mapping[str, Sequence[Timed]], **provenance: Any) -> Path:
    """Write what :func:`dump_bytes` returns."""
    path.write_bytes(dump_bytes(rows, **provenance))
    return path


def write_plain(path: Path, plain: Mapping[str, Sequence[Mapping[str, Any]]]) -> Path:
    """Write a dump in the host's plain form."""
    path.write_text(json.dumps(plain), encoding="utf-8")
    return path


def run(*arguments: object) -> Result:
    """Run the command line in this process."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def run_build(out: Path, *arguments: object) -> Result:
    """Run ``build`` with a table version, unless the arguments name another."""
    return run("build", "--out", out, "--table-version", "1.0", *arguments)


def built(out: Path, *arguments: object) -> dict[str, Any]:
    """Run ``build`` and return its report; it must succeed."""
    result = run_build(out, *arguments, "--json")
    assert result.exit_code == 0, result.output
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def h200_table(out: Path, series: str = "2.13") -> Table:
    """Open the H200's table in a directory of tables."""
    return Table.open(out / series / "nvidia-h200" / "gemm.msgpack")


def choices(table: Table, key: str) -> list[tuple[str, int | None]]:
    """Return (template id, ns) of a key's entries, in the table's order."""
    return [(entry.config.template_id, entry.time_ns) for entry in table.lookup(key)]
