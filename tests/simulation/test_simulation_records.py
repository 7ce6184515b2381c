"""What a simulation records, with any handler, on any device."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from simulation_support import needs_simulation, run_script

from inductor_tables import simulation
from inductor_tables.errors import SimulationError

pytestmark = needs_simulation

BF16 = torch.bfloat16
H200 = "NVIDIA H200"
KEY = "((torch.bfloat16, [512, 1024], [1024, 1]), (torch.bfloat16, [1024, 4096], [4096, 1]))+mm"


def relu_mm(x: Any, w: Any) -> Any:
    """Return a product with an epilogue, which a Triton template fuses."""
    return torch.relu(x @ w)


def inputs(sim: simulation.Simulation) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the two factors of the product that KEY names."""
    return sim.empty(512, 1024, dtype=BF16), sim.empty(1024, 4096, dtype=BF16)


def prefer(uid: str) -> Callable[[Sequence[Any]], Any]:
    """Return a rule that takes the first choice of a template, else the first."""

    def pick(choices: Sequence[Any]) -> Any:
        named = [c for c in choices if c.annotations["ktc"].template.uid.startswith(uid)]
        return (named or choices)[0]

    return pick


@pytest.fixture
def sim() -> Iterator[simulation.Simulation]:
    """Yield a simulated H200."""
    with simulation.simulate(H200) as sim:
        yield sim


def test_inference(sim: simulation.Simulation) -> None:
    """One product gives one handler call, one op that a real run would time, and one source."""
    out = sim.compile(relu_mm, *inputs(sim))
    (call,), (op,) = sim.calls, sim.ops
    assert (out.shape, out.device.type) == ((512, 4096), "cuda")
    assert (call.op_name, call.phase, call.depth) == ("mm", "inference", 0)
    assert (call.device_key, call.agnostic_key) == (f"{H200}+{KEY}", KEY)
    assert "triton::mm" in call.templates
    assert (op.name, op.calls, op.offered) == ("mm", (call,), call.choices)
    assert op.benchmarked
    assert op.chosen == op.offered[0]
    assert [note.kind for note in sim.notes] == ["choices"]
    assert len(sim.codes) == 1
    assert sim.seconds > 0


def test_training(sim: simulation.Simulation) -> None:
    """With grad, the forward graph and the backward graph are lowered, each op with its phase."""
    linear = sim.module(lambda: torch.nn.Linear(1024, 512), dtype=BF16)
    x = sim.empty(256, 1024, dtype=BF16).requires_grad_()
    loss = sim.compile(lambda x: linear(x).float().pow(2).mean(), x, grad=True)
    assert loss.requires_grad
    assert [op.phase for op in sim.ops] == ["forward", "backward", "backward"]
    assert [op.name for op in sim.ops][1:] == ["mm", "mm"]
    assert len(sim.codes) == 2


def test_dynamic_shapes(sim: simulation.Simulation) -> None:
    """Keys of dynamic sizes hold the hints, and the outputs have them."""
    out = sim.compile(relu_mm, *inputs(sim), dynamic=True)
    assert [call.device_key for call in sim.calls] == [f"{H200}+{KEY}"]
    assert tuple(out.shape) == (512, 4096)
    assert "s77" in sim.codes[0] or "s0" in sim.codes[0]


def test_plain_torch_compile(sim: simulation.Simulation) -> None:
    """User code that knows nothing of the simulation compiles under the fake mode."""
    with sim.fake_mode, torch.no_grad():
        linear = torch.nn.Linear(1024, 512, device="cuda", dtype=BF16)
        out = torch.compile(linear, mode="max-autotune-no-cudagraphs")(
            torch.empty(256, 1024, device="cuda", dtype=BF16)
        )
    assert out.shape == (256, 512)
    assert [op.name for op in sim.ops] == ["addmm"]


def test_user_code_sees_the_device(sim: simulation.Simulation) -> None:
    """Code that branches on the device is traced for the simulated one."""

    def branches(x: Any, w: Any) -> Any:
        big = torch.cuda.get_device_properties(x.device).multi_processor_count == 132
        if torch.cuda.get_device_capability() == (9, 0) and big and x.is_cuda:
            return x @ w
        return x

    assert sim.compile(branches, *inputs(sim)).shape == (512, 4096)


def test_pick_extern() -> None:
    """The rule takes ATen's kernel, and its source calls it."""
    with simulation.simulate(H200, pick="extern") as sim:
        sim.compile(relu_mm, *inputs(sim))
        assert sim.ops[0].chosen.template_id == "aten::mm"
        assert "extern_kernels.mm" in sim.codes[0]


def test_pick_function() -> None:
    """A function's choice is the one that is generated, its epilogue fused."""
    with simulation.simulate(H200, pick=prefer("triton::mm")) as sim:
        sim.compile(relu_mm, *inputs(sim))
        assert sim.ops[0].chosen.template_id == "triton::mm"
        assert "triton_tem_fused_" in sim.codes[0]
        assert "relu" in sim.codes[0]


def test_pick_outside_the_choices() -> None:
    """A function that returns anything else is refused."""
    with (
        simulation.simulate(H200, pick=lambda choices: None) as sim,
        pytest.raises(Exception, match="pick returned None for mm, not one of the choices"),
    ):
        sim.compile(relu_mm, *inputs(sim))


def test_nested_lowering() -> None:
    """The operations inside a decomposed product are recorded one level deeper."""
    with simulation.simulate(H200, pick=prefer("decompose_k")) as sim:
        x, w = sim.empty(32, 32768, dtype=BF16), sim.empty(32768, 32, dtype=BF16)
        sim.compile(relu_mm, x, w)
        assert [(op.name, op.depth) for op in sim.ops] == [("mm", 0), ("bmm", 1)]
        assert [[call.op_name for call in op.calls] for op in sim.ops] == [["mm"], ["bmm"]]


def test_operations_without_the_handler(sim: simulation.Simulation) -> None:
    """A convolution gets a kernel without a handler call."""
    conv = sim.module(lambda: torch.nn.Conv2d(64, 64, 3), dtype=BF16)
    sim.compile(conv, sim.empty(8, 64, 32, 32, dtype=BF16))
    assert [(op.name, op.calls) for op in sim.ops] == [("convolution", ())]
    assert sim.calls == []


@pytest.mark.parametrize("answer", [False, True])
def test_pad_mm(answer: bool) -> None:
    """A product that pad_mm would time is noted and padded as asked."""
    with simulation.simulate(H200, pad_mm=answer, codegen=False) as sim:
        sim.compile(
            torch.matmul, sim.empty(4096, 4096, dtype=BF16), sim.empty(4096, 4095, dtype=BF16)
        )
        decisions = {note.decision for note in sim.notes if note.kind == "pad_mm"}
        assert decisions == {"padded" if answer else "not padded"}
        assert ("[4096, 4096]), (torch" in str(sim.calls[0].device_key)) is False
        assert ("[4096, 4095]" in str(sim.calls[0].device_key)) is not answer


def test_without_codegen() -> None:
    """Choices are recorded without any source being generated."""
    with simulation.simulate(H200, codegen=False) as sim:
        sim.compile(relu_mm, *inputs(sim))
        assert len(sim.ops) == 1
        assert sim.codes == []


def _entry(sim: simulation.Simulation) -> dict[str, Any]:
    """Return a table's entry for the product: the last Triton choice that was offered."""
    sim.compile(relu_mm, *inputs(sim))
    offered = [choice for choice in sim.ops[0].offered if choice.template_id == "triton::mm"]
    sim.clear()
    return {"template_id": "triton::mm", **offered[-1].params}


def test_a_table_leaves_one_choice(sim: simulation.Simulation) -> None:
    """The host's handler with a table: nothing to time, and the table's kernel in the source."""
    from torch._inductor.lookup_table.choices import LookupTableChoices
    from torch._inductor.virtualized import V

    entry = _entry(sim)
    before = V.choices
    V.set_choices_handler(LookupTableChoices())
    try:
        with torch._inductor.config.patch({"lookup_table.table": {f"{H200}+{KEY}": [entry]}}):
            sim.compile(relu_mm, *inputs(sim))
    finally:
        V.set_choices_handler(before)
    (op,) = sim.ops
    assert not op.benchmarked
    assert op.chosen.template_id == "triton::mm"
    assert op.chosen.params["BLOCK_M"] == entry["BLOCK_M"]
    assert sim.notes == []
    assert f"BLOCK_M : tl.constexpr = {entry['BLOCK_M']}" in sim.codes[0]
    assert f"BLOCK_N : tl.constexpr = {entry['BLOCK_N']}" in sim.codes[0]


def test_preprocessing_functions_run_once(sim: simulation.Simulation) -> None:
    """A registered preprocessing function sees each op once, and what it leaves is offered."""
    from torch._inductor import select_algorithm

    seen: list[int] = []

    def two(choices: list[Any]) -> list[Any]:
        seen.append(len(choices))
        return choices[:2]

    functions = select_algorithm.get_algorithm_selector_cache().preprocessing_fns
    select_algorithm.add_preprocessing_fn(two)
    try:
        sim.compile(relu_mm, *inputs(sim))
    finally:
        functions.remove(two)
    assert len(seen) == 1
    assert seen[0] > 2
    assert len(sim.ops[0].offered) == 2


def test_archs_one_after_the_other() -> None:
    """Nothing of one device is left in the answers for the next."""
    offered: dict[str, tuple[str, ...]] = {}
    for name in (H200, "NVIDIA A100-SXM4-80GB", "NVIDIA B200", H200):
        with simulation.simulate(name, codegen=False) as sim:
            options = {"triton.enable_persistent_tma_matmul": True}
            sim.compile(relu_mm, *inputs(sim), options=options)
            assert [call.device_key for call in sim.calls] == [f"{name}+{KEY}"]
            templates = sim.calls[0].templates
            assert offered.setdefault(name, templates) == templates
    tma = {name: any("tma" in uid for uid in uids) for name, uids in offered.items()}
    assert tma == {H200: True, "NVIDIA A100-SXM4-80GB": False, "NVIDIA B200": True}


def test_amd_in_a_process_of_its_own() -> None:
    """An AMD device is lowered where torch._inductor was imported for it, NVIDIA then refused."""
    script = """
import torch
from inductor_tables import simulation
from inductor_tables.errors import SimulationError
with simulation.simulate("gfx942:sramecc+:xnack-") as sim:
    x = sim.empty(512, 1024, dtype=torch.bfloat16)
    sim.compile(torch.matmul, x, sim.empty(1024, 4096, dtype=torch.bfloat16))
    print(sim.calls[0].device_key)
    print(sum("matrix_instr_nonkdim" in choice.params for choice in sim.ops[0].offered) > 0)
try:
    simulation.simulate("NVIDIA H200").__enter__()
except SimulationError as error:
    print(error)
"""
    key, has_amd_choices, refusal = run_script(script).splitlines()[:3]
    assert key == f"gfx942:sramecc+:xnack-+{KEY}"
    assert has_amd_choices == "True"
    assert refusal.startswith("torch._inductor was imported for 'hip' in this process")


class Tied(torch.nn.Module):  # type: ignore[misc]
    """Two layers that share a weight, and an attribute that is a buffer's."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(64, 64)
        self.second = torch.nn.Linear(64, 64)
        self.second.weight = self.first.weight
        self.register_buffer("steps", torch.zeros(3, dtype=torch.int64))
        self.original_steps = self.steps


@pytest.mark.parametrize("source", [Tied, Tied()], ids=["built", "existing"])
def test_modules(sim: simulation.Simulation, source: Any) -> None:
    """A module's copy has simulated tensors, tied where they were, floats converted."""
    module: Any = sim.module(source, dtype=BF16)
    assert module.first.weight is module.second.weight
    assert module.original_steps is module.steps
    assert isinstance(module.first.weight, torch.nn.Parameter)
    assert module.first.weight.dtype == module.first.bias.dtype == BF16
    assert module.steps.dtype == torch.int64
    assert {t.device.type for t in module.state_dict().values()} == {"cuda"}
    if isinstance(source, Tied):
        assert source.first.weight.device.type == "cpu"
        assert source.first.weight.dtype == torch.float32


def test_fake_keeps_the_layout(sim: simulation.Simulation) -> None:
    """A simulated tensor has the sizes, strides and gradient flag of its model."""
    real = torch.empty(4, 6).t().requires_grad_()
    fake = sim.fake(real)
    assert (fake.shape, fake.stride(), fake.requires_grad) == ((6, 4), (1, 6), True)
    assert sim.zeros(2, dtype=torch.int64).dtype == torch.int64


def test_running_is_refused(sim: simulation.Simulation) -> None:
    """The driver launches nothing and says so."""
    from triton.runtime import driver

    with pytest.raises(SimulationError, match="a simulated device runs no kernels"):
        driver.active.get_benchmarker()
