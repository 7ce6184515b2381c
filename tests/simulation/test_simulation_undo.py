"""Nothing of a simulation is left behind."""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest
import torch
from simulation_support import needs_simulation, run_script

from inductor_tables import simulation

pytestmark = needs_simulation


def snapshot() -> dict[str, Any]:
    """Return everything that a simulation may touch, each attribute by its identity."""
    import torch._functorch.config
    import torch._inductor.config
    from torch._dynamo import device_interface
    from torch._inductor import (
        async_compile,
        choices,
        compile_fx,
        constant_folding,
        graph,
        select_algorithm,
        utils,
    )
    from torch._inductor.fx_passes import joint_graph, pad_mm
    from torch._inductor.virtualized import V
    from torch._subclasses import fake_tensor
    from triton.runtime import driver

    owners: tuple[Any, ...] = (
        torch.autograd,
        torch.cuda,
        torch.version,
        async_compile.AsyncCompile,
        choices.InductorChoices,
        compile_fx,
        constant_folding.ConstantFolder,
        device_interface,
        device_interface.CudaInterface,
        driver,
        fake_tensor,
        fake_tensor.FakeTensorMode,
        graph.GraphLowering,
        joint_graph.UniformValueConstantFolder,
        pad_mm,
        select_algorithm.AlgorithmSelectorCache,
        select_algorithm.TritonTemplate,
        utils,
    )
    attention = torch.ops.aten.scaled_dot_product_attention.default
    return {
        "attributes": [
            {name: id(value) for name, value in vars(owner).items()} for owner in owners
        ],
        "attention": dict(attention.py_kernels),
        "environment": dict(os.environ),
        "functorch": torch._functorch.config.get_config_copy(),
        "handler": V.choices,
        "inductor": torch._inductor.config.get_config_copy(),
        "preprocessing": list(select_algorithm.get_algorithm_selector_cache().preprocessing_fns),
    }


def compile_something(sim: simulation.Simulation) -> None:
    """Lower a training graph with attention and a product."""
    linear = sim.module(lambda: torch.nn.Linear(64, 64), dtype=torch.bfloat16)

    def loss(x: Any) -> Any:
        heads = linear(x)[None, None]
        return torch.nn.functional.scaled_dot_product_attention(heads, heads, heads).sum()

    sim.compile(loss, sim.empty(32, 64, dtype=torch.bfloat16), grad=True)


def test_every_patch_is_undone() -> None:
    """All that was replaced is what it was, and while it lasted it was something else."""
    with simulation.simulate("NVIDIA H200"):
        pass  # imports whatever there is to import
    before = snapshot()
    with simulation.simulate("NVIDIA H200") as sim:
        inside = snapshot()
        compile_something(sim)
        assert len(sim.patched) > 40
    assert snapshot() == before
    assert {name for name in before if inside[name] != before[name]} >= {
        "attention",
        "attributes",
        "environment",
        "functorch",
        "inductor",
    }


def _compile_and_fail() -> None:
    with simulation.simulate("NVIDIA H200") as sim:
        compile_something(sim)
        _ = 1 // 0


def test_undone_after_an_exception() -> None:
    """An error in the body leaves nothing behind, and the next simulation works."""
    with simulation.simulate("NVIDIA H200"):
        pass
    before = snapshot()
    with pytest.raises(ZeroDivisionError, match="division"):
        _compile_and_fail()
    assert snapshot() == before
    with simulation.simulate("NVIDIA H200") as sim:
        compile_something(sim)


def test_undone_after_a_failed_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error while entering leaves nothing behind either."""
    from inductor_tables.simulation import codegen

    before = snapshot()

    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("entry failed")

    with monkeypatch.context() as patched:
        patched.setattr(codegen, "patch_compile_fx", fail)
        with (
            pytest.raises(RuntimeError, match="entry failed"),
            simulation.simulate("NVIDIA H200"),
        ):
            pass
    assert snapshot() == before


def test_the_device_is_forgotten() -> None:
    """Functions that cache their answer about the device give the real one again."""
    from torch._inductor.utils import get_num_sms
    from torch.utils._triton import has_triton

    assert not has_triton()
    with simulation.simulate("NVIDIA H200"):
        assert has_triton()
        assert get_num_sms() == 132
        assert torch.cuda.is_available()
    assert not has_triton()
    assert not torch.cuda.is_available()


def _has_compiler() -> bool:
    try:
        subprocess.run(["c++", "--version"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


@pytest.mark.skipif(not _has_compiler(), reason="Inductor's CPU backend needs a C++ compiler")
def test_real_cpu_compiles_before_and_after(tmp_path: Any) -> None:
    """A real compile for the CPU trains correctly before and after; no file is left."""
    script = """
import os, sys, tempfile
os.environ["TORCHINDUCTOR_CACHE_DIR"] = sys.argv[1]
tempfile.tempdir = sys.argv[2]
import torch
from inductor_tables import simulation

def trains(width):
    torch._dynamo.reset()
    torch.manual_seed(0)
    layers = torch.nn.Linear(16, width), torch.nn.GELU(), torch.nn.Linear(width, 4)
    module = torch.nn.Sequential(*layers)
    x = torch.randn(8, 16, requires_grad=True)
    plain = torch.autograd.grad(module(x).sum(), x)[0]
    compiled = torch.autograd.grad(torch.compile(module)(x).sum(), x)[0]
    return torch.allclose(plain, compiled, atol=1e-5)

print(trains(32))
with simulation.simulate("NVIDIA H200") as sim:
    x = sim.empty(64, 64).requires_grad_()
    sim.compile(lambda x: (x @ x).sum(), x, grad=True)
    print(len(sim.ops) > 0)
print(trains(48))
print(os.listdir(sys.argv[2]))
"""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    lines = run_script(script, str(tmp_path / "cache"), str(scratch)).splitlines()
    assert lines[:3] == ["True", "True", "True"]
    assert "inductor_simulation" not in lines[3]
