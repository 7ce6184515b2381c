"""Every input that changes what a kernel must do: the key differs, or the entry is right.

docs/keys.md lists what the host's key leaves out; each line of it is a case here.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("triton")
import torch
from oracle import TMA, Graph, entry_of, lower, stock, templates_used
from products import H200, SERIES, inputs, mm

import inductor_tables
from inductor_tables import host
from inductor_tables.dumps import make_row
from inductor_tables.errors import InvalidTableError
from inductor_tables.simulation import CATALOGUE, Simulation

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
ATEN, TRITON, TMA_MM = "aten::mm", "triton::mm", "triton::mm_persistent_tma"
Shapes = tuple[tuple[int, ...], ...]


def tensors(
    *shapes: tuple[int, ...], dtype: torch.dtype = BF16
) -> Callable[[Simulation], list[torch.Tensor]]:
    """Contiguous arguments."""
    return lambda sim: [sim.empty(shape, dtype=dtype) for shape in shapes]


def dynamic(
    make: Callable[[Simulation], Any], *places: tuple[int, int]
) -> Callable[[Simulation], Any]:
    """The same arguments with (argument, dimension) marked as dynamic."""

    def args(sim: Simulation) -> Any:
        made = make(sim)
        for argument, dimension in places:
            torch._dynamo.mark_dynamic(made[argument], dimension)
        return made

    return args


@contextlib.contextmanager
def matmul_setting(name: str, value: Any) -> Iterator[None]:
    """Change a setting of ``torch.backends.cuda.matmul``."""
    matmul = torch.backends.cuda.matmul
    before = getattr(matmul, name)
    setattr(matmul, name, value)
    try:
        yield
    finally:
        setattr(matmul, name, before)


def scaled(*given: torch.Tensor) -> torch.Tensor:
    """A scaled product."""
    return torch._scaled_mm(*given, out_dtype=BF16)


def fp8(
    scale_a: tuple[int, ...] = (), scale_b: tuple[int, ...] = (), *more: tuple[int, ...]
) -> Callable[[Simulation], list[torch.Tensor]]:
    """The operands of :func:`scaled` and, if given, a bias."""

    def args(sim: Simulation) -> list[torch.Tensor]:
        a, b = (sim.empty(256, 512, dtype=FP8) for _ in range(2))
        biases = [sim.empty(shape, dtype=BF16) for shape in more]
        return [a, b.t(), sim.empty(scale_a), sim.empty(scale_b), *biases]

    return args


def shifted(elements: int) -> Callable[[Simulation], list[torch.Tensor]]:
    """``inputs`` with the first operand's storage offset by so many elements."""

    def args(sim: Simulation) -> list[torch.Tensor]:
        flat = sim.empty(16 * 4096 + elements, dtype=BF16)[elements:]
        return [flat.view(16, 4096), sim.empty(4096, 1024, dtype=BF16)]

    return args


def four(*given: torch.Tensor) -> torch.Tensor:
    """A sum of two products."""
    a, b, c, d = given
    return a @ b + c @ d


BATCHED = tensors((4, 64, 128), (4, 128, 64))
BIASED = tensors((1024,), (16, 4096), (4096, 1024))
BIASED_BATCHED = tensors((4, 64, 64), (4, 64, 128), (4, 128, 64))
SQUARES = tensors((128, 128), (128, 128), (128, 128), (128, 128))
THREE = tensors((128, 128), (128, 128), (128, 128))
LONG = tensors((32, 32768), (32768, 32))

MM = Graph(fn=mm, args=inputs)
MM_TMA = Graph(fn=mm, args=inputs, options=TMA)
FP32 = Graph(fn=mm, args=tensors((64, 1024), (1024, 1024), dtype=torch.float32))
SQUARE = Graph(fn=mm, args=tensors((256, 256), (256, 256)))
BMM = Graph(fn=torch.bmm, args=BATCHED)
ADDMM = Graph(fn=torch.addmm, args=BIASED)
BADDBMM = Graph(fn=torch.baddbmm, args=BIASED_BATCHED)
INT_MM = Graph(fn=torch._int_mm, args=tensors((64, 128), (128, 64), dtype=torch.int8))
SCALED = Graph(fn=scaled, args=fp8((256, 4), (4, 2)), options=TMA)


def biased(**kwargs: Any) -> Callable[..., Any]:
    """An addmm or baddbmm with other scalars."""

    def product(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (torch.addmm if a.dim() == 2 else torch.baddbmm)(bias, a, b, **kwargs)

    return product


OTHER_KEY: dict[str, tuple[Graph, Graph]] = {
    "dtype": (MM, Graph(fn=mm, args=tensors((16, 4096), (4096, 1024), dtype=torch.float16))),
    "column-major operand": (
        MM,
        Graph(fn=lambda x, w: x @ w.t(), args=tensors((16, 4096), (1024, 4096))),
    ),
    "padded rows": (
        MM,
        Graph(fn=lambda x, w: x[:, :4096] @ w, args=tensors((16, 4104), (4096, 1024))),
    ),
    "stride 0": (
        MM,
        Graph(fn=lambda x, w: x.expand(16, 4096) @ w, args=tensors((1, 4096), (4096, 1024))),
    ),
    "broadcast batch": (
        BMM,
        Graph(
            fn=lambda a, b: torch.bmm(a.expand(4, 64, 128), b),
            args=tensors((1, 64, 128), (4, 128, 64)),
        ),
    ),
    "batch in the middle": (
        BMM,
        Graph(
            fn=lambda a, b: torch.bmm(a.transpose(0, 1), b),
            args=tensors((64, 4, 128), (4, 128, 64)),
        ),
    ),
    "alpha": (ADDMM, Graph(fn=biased(alpha=2), args=BIASED)),
    "alpha, float": (
        Graph(fn=biased(alpha=2), args=BIASED),
        Graph(fn=biased(alpha=2.0), args=BIASED),
    ),
    "beta": (ADDMM, Graph(fn=biased(beta=0.5), args=BIASED)),
    "beta 0": (ADDMM, Graph(fn=biased(beta=0), args=BIASED)),
    "alpha 0, batched": (BADDBMM, Graph(fn=biased(alpha=0), args=BIASED_BATCHED)),
    "beta, batched": (BADDBMM, Graph(fn=biased(beta=-1.5), args=BIASED_BATCHED)),
    "matrix bias": (
        ADDMM,
        Graph(fn=torch.addmm, args=tensors((16, 1024), (16, 4096), (4096, 1024))),
    ),
    "column bias": (ADDMM, Graph(fn=torch.addmm, args=tensors((16, 1), (16, 4096), (4096, 1024)))),
    "broadcast bias, batched": (
        BADDBMM,
        Graph(fn=torch.baddbmm, args=tensors((4, 1, 64), (4, 64, 128), (4, 128, 64))),
    ),
    "second pair's strides": (
        Graph(fn=four, args=SQUARES),
        Graph(fn=lambda a, b, c, d: a @ b + c @ d.t(), args=SQUARES),
    ),
    "scales a row": (SCALED, Graph(fn=scaled, args=fp8((256, 1), (1, 256)), options=TMA)),
    "scales a tensor": (SCALED, Graph(fn=scaled, args=fp8(), options=TMA)),
}
"""What the key tells apart: (recorded, run) by what differs."""


@pytest.mark.parametrize("what", OTHER_KEY)
def test_the_key_differs(what: str) -> None:
    """An entry of one is never asked for the other."""
    recorded, run = OTHER_KEY[what]
    assert templates_used(recorded, run) is None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Same:
    """Two graphs with one key: whose entries answer, and whose must not."""

    recorded: Graph
    run: Graph
    used: set[str]
    unused: set[str] = dataclasses.field(default_factory=set)
    since: tuple[int, int] = (2, 10)


SAME_KEY: dict[str, Same] = {
    "nothing": Same(recorded=MM_TMA, run=MM_TMA, used={ATEN, TRITON, TMA_MM}),
    # the type of the result
    "out_dtype": Same(
        recorded=MM,
        run=Graph(fn=lambda x, w: torch.mm(x, w, out_dtype=torch.float32), args=inputs),
        used=set(),
        unused={ATEN},
    ),
    "no out_dtype": Same(
        recorded=Graph(fn=lambda x, w: torch.mm(x, w, out_dtype=torch.float32), args=inputs),
        run=MM,
        used=set(),
        unused={"aten::mm_dtype"},
    ),
    "out_dtype, batched": Same(
        recorded=BMM,
        run=Graph(fn=lambda a, b: torch.bmm(a, b, out_dtype=torch.float32), args=BATCHED),
        used=set(),
        unused={"aten::bmm"},
    ),
    # where the operands lie in memory
    "aligned storage offset": Same(
        recorded=MM_TMA, run=dataclasses.replace(MM_TMA, args=shifted(8)), used={ATEN, TRITON}
    ),
    "unaligned storage offset": Same(
        recorded=MM_TMA,
        run=dataclasses.replace(MM_TMA, args=shifted(1)),
        used={ATEN, TRITON},
        unused={TMA_MM},
    ),
    "storage offset inside the graph": Same(
        recorded=MM,
        run=Graph(fn=lambda x, w: x[1:].view(16, 4096) @ w, args=tensors((65537,), (4096, 1024))),
        used={ATEN, TRITON},
    ),
    "both operands are one tensor": Same(
        recorded=Graph(fn=lambda x, y: x @ y.t(), args=tensors((256, 256), (256, 256))),
        run=Graph(fn=lambda x: x @ x.t(), args=tensors((256, 256))),
        used={ATEN, TRITON},
    ),
    "result inside another buffer": Same(
        recorded=MM,
        run=Graph(fn=lambda x, w: torch.cat([x @ w, torch.relu(x[:, :1024])]), args=inputs),
        used={ATEN, TRITON},
    ),
    # the bias
    "bias of [1, N]": Same(
        recorded=ADDMM,
        run=Graph(fn=torch.addmm, args=tensors((1, 1024), (16, 4096), (4096, 1024))),
        used={TRITON},
        since=(2, 11),
    ),
    "bias expanded by the user": Same(
        recorded=ADDMM,
        run=Graph(fn=lambda b, x, w: torch.addmm(b.expand(16, 1024), x, w), args=BIASED),
        used={TRITON},
        since=(2, 11),
    ),
    # what is fused
    "epilogue": Same(
        recorded=MM,
        run=Graph(fn=lambda x, w: torch.nn.functional.gelu(x @ w), args=inputs),
        used={ATEN, TRITON},
    ),
    "epilogue of another type": Same(
        recorded=MM,
        run=Graph(fn=lambda x, w: (x @ w).to(torch.float32) * 0.1, args=inputs),
        used={ATEN, TRITON},
    ),
    "epilogue, batched": Same(
        recorded=BMM,
        run=Graph(fn=lambda a, b: torch.bmm(a, b).relu(), args=BATCHED),
        used={"aten::bmm"},
    ),
    "prologue": Same(
        recorded=MM,
        run=Graph(fn=lambda x, w: torch.relu(x) @ w, args=inputs),
        used={ATEN, TRITON},
    ),
    "epilogue fusion off": Same(
        recorded=MM,
        run=Graph(
            fn=lambda x, w: torch.relu(x @ w), args=inputs, options={"epilogue_fusion": False}
        ),
        used={ATEN, TRITON},
    ),
    "eager's roundings": Same(
        recorded=MM,
        run=Graph(
            fn=lambda x, w: torch.relu(x @ w) + 1,
            args=inputs,
            options={"emulate_precision_casts": True},
        ),
        used={ATEN, TRITON},
    ),
    # which sizes are known
    "dynamic M": Same(
        recorded=MM, run=Graph(fn=mm, args=dynamic(inputs, (0, 0))), used={ATEN, TRITON}
    ),
    "dynamic N": Same(
        recorded=MM, run=Graph(fn=mm, args=dynamic(inputs, (1, 1))), used={ATEN, TRITON}
    ),
    "dynamic K": Same(
        recorded=MM, run=Graph(fn=mm, args=dynamic(inputs, (0, 1), (1, 0))), used={ATEN, TRITON}
    ),
    "dynamic K of a split product": Same(
        recorded=Graph(fn=mm, args=LONG),
        run=Graph(fn=mm, args=dynamic(LONG, (0, 1), (1, 0))),
        used={ATEN},
        unused={"decompose_k"},
    ),
    "dynamic batch": Same(
        recorded=BMM,
        run=Graph(fn=torch.bmm, args=dynamic(BATCHED, (0, 0), (1, 0))),
        used={"aten::bmm"},
    ),
    "dynamic M of an addmm": Same(
        recorded=ADDMM,
        run=Graph(fn=torch.addmm, args=dynamic(BIASED, (1, 0))),
        used={TRITON},
        since=(2, 11),
    ),
    "dynamic M of two products": Same(
        recorded=Graph(fn=four, args=SQUARES),
        run=Graph(fn=four, args=dynamic(SQUARES, (0, 0), (2, 0))),
        used={"triton::mm_plus_mm"},
    ),
    "dynamic K of two products": Same(
        recorded=Graph(fn=four, args=SQUARES),
        run=Graph(fn=lambda a, b, d: four(a, b, a, d), args=dynamic(THREE, (0, 1), (1, 0), (2, 0))),
        used={"aten::_mm_plus_mm"},
        unused={"triton::mm_plus_mm"},
    ),
    "dynamic M of a scaled product": Same(
        recorded=Graph(fn=scaled, args=fp8()),
        run=Graph(fn=scaled, args=dynamic(fp8(), (0, 0))),
        used={"aten::_scaled_mm", TRITON},
    ),
    # settings of the process
    "reduced-precision reduction": Same(
        recorded=MM,
        run=dataclasses.replace(
            MM,
            state=lambda: matmul_setting("allow_bf16_reduced_precision_reduction", False),
        ),
        used={ATEN, TRITON},
    ),
    "persistent TMA off": Same(recorded=MM_TMA, run=MM, used={ATEN, TRITON}, unused={TMA_MM}),
    "only ATen": Same(
        recorded=MM,
        run=dataclasses.replace(MM, options={"max_autotune_gemm_backends": "ATEN"}),
        used={ATEN},
        unused={TRITON},
    ),
    "only Triton": Same(
        recorded=MM,
        run=dataclasses.replace(MM, options={"max_autotune_gemm_backends": "TRITON"}),
        used={TRITON},
        unused={ATEN},
    ),
    "no splitting of K": Same(
        recorded=Graph(fn=mm, args=LONG),
        run=Graph(fn=mm, args=LONG, options={"triton.num_decompose_k_splits": 0}),
        used={ATEN},
        unused={"decompose_k"},
    ),
    "flexible layouts": Same(
        recorded=MM,
        run=dataclasses.replace(MM, options={"max_autotune_allow_flexible_layouts": True}),
        used={ATEN, TRITON},
    ),
    # the device
    "SM count": Same(
        recorded=MM_TMA,
        run=dataclasses.replace(
            MM_TMA, device=dataclasses.replace(CATALOGUE[H200], multi_processor_count=100)
        ),
        used={ATEN, TRITON, TMA_MM},
    ),
    # the kinds of product that no case above has
    "integers": Same(recorded=INT_MM, run=INT_MM, used={"aten::_int_mm", TRITON}),
    "bias, batched": Same(recorded=BADDBMM, run=BADDBMM, used={"aten::baddbmm", "triton::bmm"}),
    "blockwise scales": Same(
        recorded=SCALED,
        run=SCALED,
        used={"aten::_scaled_mm", "triton::scaled_mm_device_tma_main_loop_scaling"},
    ),
}
"""What the key does not tell apart, by what differs."""


@pytest.mark.parametrize("what", SAME_KEY)
def test_the_entry_is_right_or_not_used(what: str) -> None:
    """With one key for both: stock's code for the same tile, or stock's code altogether.

    The entries lie about everything that is not a table's to decide.
    """
    case = SAME_KEY[what]
    if case.since > SERIES:
        pytest.skip(f"before {'.'.join(map(str, case.since))} the op is another")
    used = templates_used(case.recorded, case.run)
    assert used is not None, "the keys differ"
    assert used >= case.used
    assert not used & case.unused


def test_deterministic_mode_takes_the_entry_without_a_benchmark() -> None:
    """config.deterministic forbids measuring, not a choice that is known beforehand."""
    (choice,) = (c for c in stock(MM).op.offered[-1:])
    inductor_tables.enable({stock(MM).keys[0]: [entry_of(choice)]})
    found = lower(dataclasses.replace(MM, options={"deterministic": True}))
    assert found.op.chosen.template_id == TRITON
    assert not found.op.benchmarked


RECORDED: dict[str, Graph] = {
    "mm": MM_TMA,
    "addmm": ADDMM,
    "int_mm": INT_MM,
    "mm_plus_mm": Graph(fn=four, args=SQUARES),
    "scaled_mm": SCALED,
    "bmm with out_dtype": SAME_KEY["out_dtype, batched"].run,
}


@pytest.mark.parametrize(
    "what",
    RECORDED,
)
def test_all_that_competes_can_be_recorded(what: str) -> None:
    """A table that must leave one out, ATen above all, would make the second best the answer."""
    if what == "bmm with out_dtype" and SERIES < (2, 12):
        pytest.skip("before 2.12 nothing competes with ATen")
    refused = []

    def pick(callers: list[Any]) -> Any:
        for caller in callers:
            found = host.recorded_choice(caller, "product", with_device=False)
            if found is not None and found.key is not None:
                entry = {"template_id": found.template_id, **found.params}
                try:
                    make_row(found.key, entry, time_ns=1, rank=0)
                except InvalidTableError as error:
                    refused.append(str(error))
        return callers[0]

    lower(RECORDED[what], pick)
    assert refused == []


def test_tma_is_not_used_where_the_graph_itself_breaks_the_alignment() -> None:
    """A view at an odd offset inside the graph: autotuning would find out, an entry does not."""
    run = dataclasses.replace(
        MM_TMA,
        fn=lambda x, w: x[1:].view(16, 4096) @ w,
        args=tensors((65537,), (4096, 1024)),
    )
    assert TMA_MM not in (templates_used(MM_TMA, run) or set())
