"""The recording of the host's picks, as far as it goes without a GPU."""

from __future__ import annotations

from pathlib import Path

import host_picks
import pytest
import torch
from click.testing import CliRunner

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
    result = host_picks.product(_problem(op_name))(*found)
    assert tuple(result.shape)[-2:] == (16, 32)
    assert [tuple(t.stride()) for t in found[-2:]] == [
        key.stride for key in _problem(op_name).inputs[-2:]
    ]


def test_the_scalars_of_a_problem_are_compiled_in() -> None:
    """``alpha`` and ``beta`` are the key's, in the graph that the host sees too."""
    problem = problem_from_key(KEYS["addmm"].replace("alpha=1&beta=1", "alpha=2&beta=0.5"))
    bias, first, second = host_picks.operands(problem, torch.device("cpu"))
    seen: list[dict[str, object]] = []

    def backend(module: torch.fx.GraphModule, _inputs: object) -> torch.fx.GraphModule:
        seen.extend(dict(node.kwargs) for node in module.graph.nodes if node.op == "call_function")
        return module

    found = torch.compile(host_picks.product(problem), backend=backend)(bias, first, second)
    torch.testing.assert_close(found, 0.5 * bias + 2 * (first @ second))
    assert seen == [{"alpha": 2, "beta": 0.5}]


def test_what_is_recorded_is_known(tmp_path: Path) -> None:
    """A dump's problems are known whatever the device in their keys; no dump has none."""
    assert host_picks.recorded(tmp_path / "none") == host_picks.recorded(tmp_path) == set()
    _record(tmp_path, _problem("mm"))
    assert host_picks.recorded(tmp_path) == {_problem("mm").key(None)}


def _record(directory: Path, problem: Problem) -> None:
    """Leave the dump that a recorder leaves of an autotuned product."""
    row = make_row(problem.key("NVIDIA H200"), {"template_id": "aten::mm"}, time_ns=5, rank=0)
    directory.mkdir(exist_ok=True)
    path = directory / f"{len(list(directory.iterdir()))}.json"
    path.write_bytes(render_dump([row], {"torch": "2.13.0"}))


def test_a_run_goes_past_what_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What fails is told with its first line; the next run tries all that has no pick."""
    problems, out, tried = [_problem(name) for name in KEYS], tmp_path / "out", []

    def pick(problem: Problem, _device: object) -> None:
        tried.append(problem.op_name)
        if problem.op_name == "mm":
            raise RuntimeError("no kernel\nof many")
        if problem.op_name == "bmm":
            _record(out, problem)

    monkeypatch.setattr(host_picks, "pick", pick)
    text = host_picks.run(problems, out, None, torch.device("cpu"))
    assert tried == ["mm", "addmm", "bmm"]
    assert text == (
        "0 had picks, 1 more have, 1 failed, 1 the host does not autotune, 0 left, of 3"
    )
    assert capsys.readouterr().err == f"{KEYS['mm']}: RuntimeError: no kernel\n"
    tried.clear()
    text = host_picks.run(problems, out, None, torch.device("cpu"))
    assert tried == ["mm", "addmm"]
    assert text.startswith("1 had picks, 0 more have, 1 failed, 1 the host")
    text = host_picks.run(problems, out, -1.0, torch.device("cpu"))
    assert text.endswith("0 failed, 0 the host does not autotune, 2 left, of 3")


def test_without_a_gpu_nothing_is_recorded(tmp_path: Path) -> None:
    """And that is said."""
    asked = tmp_path / "keys.txt"
    asked.write_text(KEYS["mm"])
    found = CliRunner().invoke(host_picks.main, [str(asked), "--out", str(tmp_path / "out")])
    assert found.exit_code == 1 and "needs a GPU" in found.output
