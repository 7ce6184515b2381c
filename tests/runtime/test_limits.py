"""What a device can run: the rules, and the estimate against the compiler's own figure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from products import H200, MM_16, SERIES, lower, mm, triton_entry

import inductor_tables
from inductor_tables import limits
from inductor_tables.keys import parse_key
from inductor_tables.limits import Device, Product
from inductor_tables.parameters import merge
from inductor_tables.schema import Config
from inductor_tables.simulation import OpLowering, Simulation, device_spec, simulate

RECORDINGS = sorted(Path("build_tools/recordings").glob("*.json"))
HOPPER = Device(
    shared_memory=232_448,
    threads=1024,
    warp_size=32,
    capability=(9, 0),
    hip=False,
    tma_stores_in_loop=False,
    scratch_per_thread=128,
    retries_unpipelined=lambda: False,
)
RETRYING = replace(HOPPER, retries_unpipelined=lambda: True)
AMPERE = replace(HOPPER, shared_memory=166_912, capability=(8, 0))
MI300 = replace(
    HOPPER, shared_memory=65_536, warp_size=64, capability=(9, 4), hip=True
)  # gfx942, which says (9, 4) of itself
BF16 = Product(
    element_size=2,
    output_size=2,
    divides_k=lambda _: True,
    less_than_k=lambda _: True,
    aligned=lambda: True,
    no_vector=lambda: True,
)
VECTOR = replace(BF16, no_vector=lambda: False)
UNALIGNED = replace(BF16, aligned=lambda: False)
FP8 = replace(BF16, element_size=1)
FP32 = replace(BF16, element_size=4, output_size=4)


def params(m: int, n: int, k: int, stages: int, warps: int, **others: Any) -> dict[str, Any]:
    """The parameters of a tiled template."""
    tile = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k}
    return {**tile, "num_stages": stages, "num_warps": warps, "ALLOW_TF32": True, **others}


@pytest.mark.parametrize(
    ("device", "template", "given", "product", "expected"),
    [
        (HOPPER, "triton::mm", params(64, 64, 64, 3, 4), BF16, None),
        (HOPPER, "aten::mm", {}, BF16, None),
        (HOPPER, "decompose_k", {"k_split": 4}, BF16, None),
        (
            HOPPER,
            "triton::mm",
            params(256, 256, 128, 5, 8),
            BF16,
            "needs 655360 B of shared memory, the device has 232448",
        ),
        (
            HOPPER,
            "triton::mm",
            params(128, 128, 128, 4, 8),
            BF16,
            "needs 262144 B of shared memory, the device has 232448",
        ),
        (RETRYING, "triton::mm", params(128, 128, 128, 4, 8), BF16, None),
        (
            RETRYING,
            "triton::mm",
            params(256, 256, 256, 4, 8),
            BF16,
            "needs 262144 B of shared memory even with one stage, the device has 232448",
        ),
        (
            AMPERE,
            "triton::mm",
            params(128, 128, 128, 4, 8),
            BF16,
            "needs 196608 B of shared memory, the device has 166912",
        ),
        (AMPERE, "triton::mm", params(128, 128, 128, 3, 8), BF16, None),
        (HOPPER, "triton::mm", params(128, 256, 64, 3, 8), FP32, "needs 294912 B"),
        (HOPPER, "triton::mm", params(128, 256, 64, 3, 8, ALLOW_TF32=False), FP32, None),
        (MI300, "triton::mm", params(128, 128, 64, 3, 8), BF16, None),
        (
            MI300,
            "triton::mm",
            params(128, 128, 64, 4, 8),
            BF16,
            "needs 98304 B of shared memory, the device has 65536",
        ),
        (HOPPER, "triton::mm", params(64, 64, 64, 3, 32), BF16, None),
        (
            HOPPER,
            "triton::mm",
            params(64, 64, 64, 3, 64),
            BF16,
            "num_warps=64 is 2048 threads a block, the device has at most 1024",
        ),
        (MI300, "triton::mm", params(64, 64, 64, 1, 32), BF16, "num_warps=32 is 2048 threads"),
        (HOPPER, "triton::mm", params(64, 64, 64, 0, 4), BF16, "num_stages=0: CUDA needs"),
        (MI300, "triton::mm", params(64, 64, 64, 0, 4), BF16, None),
        (HOPPER, "triton::mm", params(64, 64, 8, 3, 4), BF16, "BLOCK_K=8 is less than 16"),
        (HOPPER, "triton::mm", params(64, 64, 16, 3, 4), FP8, "BLOCK_K=16 is less than 32"),
        (HOPPER, "triton::mm", params(64, 64, 32, 3, 4), FP8, None),
        (
            HOPPER,
            "triton::mm_persistent_tma",
            params(64, 64, 64, 3, 2),
            BF16,
            "num_warps=2 is not safe with TMA",
        ),
        (HOPPER, "triton::mm_persistent_tma", params(64, 64, 64, 3, 1), BF16, None),
        (HOPPER, "triton::mm", params(64, 64, 64, 3, 4), VECTOR, None),
        (
            HOPPER,
            "triton::mm_persistent_tma",
            params(64, 64, 64, 3, 4),
            VECTOR,
            "M, N and K are not all larger than 1 for certain",
        ),
        (HOPPER, "triton::mm", params(64, 64, 64, 3, 4), UNALIGNED, None),
        (
            HOPPER,
            "triton::mm_persistent_tma",
            params(64, 64, 64, 3, 4),
            UNALIGNED,
            "an operand does not begin at a multiple of 16 B for certain",
        ),
        (
            HOPPER,
            "triton::blackwell_ws_persistent_device_tma",
            params(64, 64, 64, 1, 4, WARP_SPECIALIZE=True),
            BF16,
            "num_warps=4, num_stages=1: specialised warps need 4 and 2 at least",
        ),
        (
            HOPPER,
            "triton::mm_plus_mm",
            params(64, 64, 64, 3, 4),
            replace(BF16, less_than_k=lambda bound: bound < 64),
            "BLOCK_K=64 is not less than K for certain",
        ),
        (
            MI300,
            "triton::mm",
            params(64, 64, 16, 1, 4, kpack=2, matrix_instr_nonkdim=16),
            BF16,
            "kpack=2 with",
        ),
        (
            MI300,
            "triton::mm",
            params(16, 64, 32, 1, 4, kpack=2, matrix_instr_nonkdim=32),
            BF16,
            "BLOCK_M=16 is no multiple of matrix_instr_nonkdim=32",
        ),
    ],
)
def test_what_a_device_can_run(
    device: Device, template: str, given: dict[str, Any], product: Product, expected: str | None
) -> None:
    """Every rule has a case on either side of it, and a reason with the numbers."""
    found = limits.problem(template, given, product, device)
    assert (found is None) is (expected is None), found
    assert expected is None or (found or "").startswith(expected)


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: str(path.stem))
def test_every_recorded_row_is_kept(path: Path) -> None:
    """What ran on an H200 is not dropped there, on the torch that it ran with."""
    dump = json.loads(path.read_text())
    torch = dump.pop("inductor-tables")["provenance"]["torch"]
    # From 2.13 on, torch ran what does not fit with one stage, and timed that.
    device = RETRYING if torch.startswith("2.13") else HOPPER
    for key, rows in dump.items():
        size = 4 if parse_key(key).inputs[-1].dtype == "float32" else 2
        product = replace(BF16, element_size=size, output_size=size)
        for row in rows:
            assert limits.problem(row["template_id"], row, product, device) is None, row


def test_an_entry_that_does_not_fit_is_dropped_with_its_numbers() -> None:
    """In a real lowering: the stock choices, and status() says how much was missing."""
    (stock,) = lower(mm)
    too_much = {"BLOCK_M": 256, "BLOCK_N": 256, "BLOCK_K": 256, "num_stages": 5, "num_warps": 8}
    inductor_tables.enable({MM_16: [triton_entry(**too_much)]})
    (op,) = lower(mm)
    assert [c.template_id for c in op.offered] == [c.template_id for c in stock.offered]
    (reason,) = inductor_tables.status().dropped
    needed = "262144 B of shared memory even with one stage"
    if SERIES < (2, 13):
        needed = "1310720 B of shared memory"
    assert reason == f"triton::mm: needs {needed}, the device has 232448"


def test_the_simulated_devices_limit_counts() -> None:
    """The same entry, on a device with less shared memory."""
    entry = triton_entry(BLOCK_M=64, BLOCK_N=128, BLOCK_K=256, num_stages=1, num_warps=4)
    inductor_tables.enable({MM_16: [entry]})
    small = replace(device_spec(H200), shared_memory_per_block_optin=98_303)
    with simulate(small) as sim:
        sim.compile(mm, *_bf16(sim, 16, 4096, 1024))
        assert sim.ops[0].benchmarked
    with simulate(replace(small, shared_memory_per_block_optin=98_304)) as sim:
        sim.compile(mm, *_bf16(sim, 16, 4096, 1024))
        assert not sim.ops[0].benchmarked


def test_scale_tiles_follow_the_tile() -> None:
    """The blockwise template's derived sizes are those of the entry's tile, not the base's."""
    base = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 128, "num_stages": 3, "num_warps": 8}
    tiles = {"TILE_SIZE_A": 1, "TILE_SIZE_B": 128, "MIN_BLOCK_TILE_AM": 1, "MIN_BLOCK_TILE_AK": 1}
    base |= {**tiles, "MIN_BLOCK_TILE_BK": 128, "MIN_BLOCK_TILE_BN": 128}
    entry = {"BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_K": 64, "num_stages": 3, "num_warps": 4}
    config = Config(template_id="t", template_hash=None, params=tuple(entry.items()))
    merged = merge(config, base, lambda _: True)
    assert isinstance(merged, dict)
    derived = [merged[f"MIN_BLOCK_TILE_{name}"] for name in ("AM", "AK", "BK", "BN")]
    assert derived == [1, 1, 64, 32]


# --- against the compiler's own figure ------------------------------------------------------


def _bf16(sim: Simulation, m: int, k: int, n: int) -> tuple[Any, ...]:
    import torch

    dtype = torch.bfloat16
    return sim.empty(m, k, dtype=dtype), sim.empty(k, n, dtype=dtype)


def _mm(sim: Simulation) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return mm, _bf16(sim, 512, 4096, 1024)


def _masked(sim: Simulation) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return mm, _bf16(sim, 500, 4090, 1000)


def _fused(sim: Simulation) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    import torch

    def fn(x: Any, w: Any, bias: Any, other: Any) -> Any:
        return torch.nn.functional.gelu((x @ w).float() + bias) * other

    return fn, (*_bf16(sim, 512, 4096, 1024), sim.empty(1024), sim.empty(512, 1024))


def _bmm(sim: Simulation) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    import torch

    a, b = _bf16(sim, 512, 4096, 1024)
    return torch.bmm, (a.expand(4, -1, -1), b.expand(4, -1, -1))


def _mm_plus_mm(sim: Simulation) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    pair = _bf16(sim, 512, 4096, 1024)
    return (lambda a, b, c, d: a @ b + c @ d), (*pair, *pair)


def _scaled_mm(sim: Simulation) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    import torch

    a = sim.empty(512, 4096, dtype=torch.float8_e4m3fn)
    b = sim.empty(1024, 4096, dtype=torch.float8_e4m3fn)

    def fn(a: Any, b: Any, scale_a: Any, scale_b: Any) -> Any:
        return torch._scaled_mm(a, b.t(), scale_a, scale_b, out_dtype=torch.bfloat16)

    return fn, (a, b, sim.empty(512, 1), sim.empty(1, 1024))


Case = tuple[Callable[[Simulation], tuple[Callable[..., Any], tuple[Any, ...]]], str]
CASES: dict[str, Case] = {
    "mm": (_mm, "triton::mm"),
    "masked": (_masked, "triton::mm"),
    "fused": (_fused, "triton::mm"),
    "bmm": (_bmm, "triton::bmm"),
    "mm_plus_mm": (_mm_plus_mm, "triton::mm_plus_mm"),
    "scaled_mm": (_scaled_mm, "triton::mm"),
    "tma": (_mm, "triton::mm_persistent_tma"),
    "fused_tma": (_fused, "triton::mm_persistent_tma"),
    "scaled_tma": (_scaled_mm, "triton::scaled_mm_device_tma_epilogue_scaling"),
}
SMALL = [(128, 128, 64, 3, 8), (32, 64, 32, 2, 4)]
LARGE = [
    (m, n, k, stages, warps)
    for m, n in ((16, 16), (16, 128), (64, 32), (64, 128), (128, 128), (128, 256), (256, 64))
    for k in (32, 64, 128)
    for stages, warps in ((1, 4), (2, 8), (4, 4), (5, 16))
]


def _compiled(
    case: str, grid: Sequence[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[tuple[int, ...], int, int]]:
    """Yield each configuration with our estimate and the compiler's figure."""
    make, template = CASES[case]
    estimates: list[int] = []

    def unlimited(template_id: str, merged: Any, product: Product, device: Device) -> None:
        estimates.append(limits.shared_memory(template_id, merged, product, device))

    monkeypatch.setattr(limits, "problem", unlimited)
    options = {"triton.enable_persistent_tma_matmul": "tma" in template}
    with simulate(H200) as sim:
        fn, args = make(sim)
        sim.compile(fn, *args, options=options)
        key, base = _stock(sim.ops[-1], template)
        for shape in grid:
            names = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_stages", "num_warps")
            entry = {**base, **dict(zip(names, shape, strict=True))}
            inductor_tables.enable({key: [{"template_id": template, **entry}]})
            sim.clear()
            estimates.clear()
            sim.compile(fn, *args, options=options)
            (source,) = (s for name, s in sim.kernel_sources().items() if "_tem_" in name)
            (report,) = sim.compile_kernel(source)
            assert report.error == "", shape
            yield shape, estimates[-1], report.shared_memory


def _stock(op: OpLowering, template: str) -> tuple[str, dict[str, Any]]:
    """Return the key that a template is looked up under, and parameters of it."""
    choices = [choice for choice in op.offered if choice.template_id == template]
    if not choices:
        pytest.skip(f"this torch does not offer {template} here")
    key = next(c.device_key for c in reversed(op.calls) if template in c.templates)
    assert key is not None
    return key, {k: v for k, v in choices[0].params.items() if _is_plain(v)}


def _is_plain(value: Any) -> bool:
    return not isinstance(value, str) or value.startswith("tl.")


@pytest.mark.parametrize("case", CASES)
def test_the_estimate_is_never_less_than_the_compilers_figure(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two configurations of each kind of kernel, compiled for sm_90."""
    for shape, estimate, needed in _compiled(case, SMALL, monkeypatch):
        assert needed <= estimate, shape


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_estimate_over_a_grid(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Never too low; and of what would run on an H200, hardly anything is dropped."""
    fits = dropped = 0
    for shape, estimate, needed in _compiled(case, LARGE, monkeypatch):
        assert needed <= estimate, shape
        fits += needed <= HOPPER.shared_memory
        dropped += needed <= HOPPER.shared_memory < estimate
    assert dropped <= fits // 20
