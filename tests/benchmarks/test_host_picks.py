"""The recording of the host's picks, as far as it goes without a GPU."""

from __future__ import annotations

from pathlib import Path

import host_picks
import pytest
import torch

from inductor_tables.dumps import make_row, render_dump
from inductor_tables.problems import Problem, problem_from_key

F32 = "torch.float32"
KEYS = {
    "mm": f"(({F32}, [16, 48], [48, 1]), ({F32}, [48, 32], [1, 48]))+mm",
    "addmm": f"(({F32}, [16, 32], [0, 1]), ({F32}, [16, 48], [48, 1]), ({F32}, [48, 32], [1, 48]))"
    "+alpha=1&beta=1+addmm",
    "bmm": f"(({F32}, [4, 16, 48], [768, 48, 1]), ({F32}, [4, 48, 32], [1536, 1, 48]))+bmm",
}


def _problem(op_name: str) -> Problem:
    return problem_from_key(KEYS[op_name])


@pytest.mark.parametrize("op_name", host_picks.OPS)
def test_operands_are_the_problems(op_name: str) -> None:
    """Their strides are those of the key, and the product takes them."""
    found = host_picks.operands(_problem(op_name), torch.device("cpu"))
    result = getattr(torch, op_name)(*found)
    assert tuple(result.shape)[-2:] == (16, 32)
    assert [tuple(t.stride()) for t in found[-2:]] == [
        key.stride for key in _problem(op_name).inputs[-2:]
    ]


def test_what_is_recorded_is_not_compiled_again(tmp_path: Path) -> None:
    """A dump's problems are known whatever the device in their keys."""
    assert host_picks.recorded(tmp_path / "none") == set()
    row = make_row(f"NVIDIA H200+{KEYS['mm']}", {"template_id": "aten::mm"}, time_ns=5, rank=0)
    (tmp_path / "a.json").write_bytes(render_dump([row], {"torch": "2.13.0"}))
    assert host_picks.recorded(tmp_path) == {_problem("mm").key(None)}
