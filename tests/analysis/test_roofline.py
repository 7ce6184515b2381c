"""What a product costs, and how fast devices are by their data sheets."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

import pytest
from hypothesis import given, settings
from key_samples import addmm, key, mm, parsed_products, tensor, transposed

from inductor_tables.analysis.records import Coverage
from inductor_tables.analysis.roofline import Cost, Roofline, cost, roofline
from inductor_tables.errors import InvalidKeyError
from inductor_tables.keys import ParsedKey, parse_key
from inductor_tables.resources import packaged_tables
from inductor_tables.simulation.catalogue import CATALOGUE, DeviceSpec, device_spec

H200 = device_spec("NVIDIA H200")
H100 = device_spec("NVIDIA H100 80GB HBM3")
A100 = device_spec("NVIDIA A100-SXM4-80GB")
B200 = device_spec("NVIDIA B200")
MI300X = device_spec("gfx942:sramecc+:xnack-")

# --- cost -------------------------------------------------------------------------------

X, W = tensor(16, 64), transposed(64, 32)
FLOPS = 2 * 16 * 32 * 64
OPERANDS = 16 * 64 + 64 * 32
RESULT = 16 * 32
BATCH = tensor(4, 16, 64), tensor(4, 64, 32)
SCALE = tensor(dtype="float32")
FP8 = tensor(16, 64, dtype="float8_e4m3fn"), transposed(64, 32, dtype="float8_e4m3fn")
SCALES = tensor(16, 1, dtype="float32"), tensor(1, 32, dtype="float32")


@pytest.mark.parametrize(
    ("text", "flops", "moved"),
    [
        (mm(16, 32, 64), FLOPS, 2 * (OPERANDS + RESULT)),
        (mm(16, 32, 64, dtype="float32"), FLOPS, 4 * (OPERANDS + RESULT)),
        (mm(16, 32, 64, dtype="float64"), FLOPS, 8 * (OPERANDS + RESULT)),
        (mm(16, 32, 64, dtype="complex64"), FLOPS, 8 * (OPERANDS + RESULT)),
        (mm(16, 32, 64, device=None), FLOPS, 2 * (OPERANDS + RESULT)),
        # a bias counts for what it has, expanded or not
        (addmm(16, 32, 64), FLOPS, 2 * (OPERANDS + RESULT + 32)),
        (key("addmm", tensor(32), X, W), FLOPS, 2 * (OPERANDS + RESULT + 32)),
        (key("addmm", tensor(16, 32), X, W), FLOPS, 2 * (OPERANDS + RESULT + 16 * 32)),
        (
            key("addmm", tensor(32, dtype="float32"), X, W),
            FLOPS,
            2 * (OPERANDS + RESULT) + 4 * 32,
        ),
        # batches
        (key("bmm", *BATCH), 4 * FLOPS, 4 * 2 * (OPERANDS + RESULT)),
        (
            key("bmm", BATCH[0], tensor(4, 64, 32, stride=(0, 32, 1))),
            4 * FLOPS,
            2 * (4 * 16 * 64 + 64 * 32 + 4 * RESULT),
        ),
        (
            key("baddbmm", tensor(4, 16, 32, stride=(0, 0, 1)), *BATCH),
            4 * FLOPS,
            4 * 2 * (OPERANDS + RESULT) + 2 * 32,
        ),
        # a row for all rows is read once; padding between rows is not read
        (
            key("mm", tensor(16, 64, stride=(0, 1)), W),
            FLOPS,
            2 * (64 + 64 * 32 + RESULT),
        ),
        (key("mm", tensor(16, 64, stride=(999, 1)), W), FLOPS, 2 * (OPERANDS + RESULT)),
        (key("mm_plus_mm", X, W, X, W), 2 * FLOPS, 2 * (2 * OPERANDS + RESULT)),
        (
            key("int_mm", tensor(16, 64, dtype="int8"), transposed(64, 32, dtype="int8")),
            FLOPS,
            OPERANDS + 4 * RESULT,
        ),
        # scaled: a 16-bit result, or what the bias is of
        (key("scaled_mm", *FP8, SCALE, SCALE), FLOPS, OPERANDS + 8 + 2 * RESULT),
        (key("scaled_mm", *FP8, *SCALES), FLOPS, OPERANDS + 4 * (16 + 32) + 2 * RESULT),
        (
            key("scaled_mm", *FP8, SCALE, SCALE, tensor(32, dtype="float32")),
            FLOPS,
            OPERANDS + 8 + 4 * 32 + 4 * RESULT,
        ),
        # the host's rule for an op that is not known: the last two are the matrices
        (key("new_mm", SCALE, X, W), FLOPS, 2 * (OPERANDS + RESULT) + 4),
        (mm(16, 32, 64, dtype="strange"), FLOPS, 2 * (OPERANDS + RESULT)),
        (mm(16, 32, 64, dtype="float4_e2m1fn_x2"), FLOPS, OPERANDS + RESULT),
        (mm(16, 32, 64, dtype="bool"), FLOPS, OPERANDS + RESULT),
        # nothing to do
        (mm(0, 32, 64), 0, 2 * 64 * 32),
        (mm(16, 32, 0), 0, 2 * RESULT),
    ],
)
def test_cost(text: str, flops: int, moved: int) -> None:
    """Two operations a multiplication, and every byte once."""
    found = cost(parse_key(text))
    assert (found.flops, found.bytes) == (flops, moved)


def test_sizes_of_a_cost() -> None:
    """The sizes and the type of the operands are those of the key."""
    found = cost(parse_key(key("baddbmm", tensor(4, 16, 32, dtype="float32"), *BATCH)))
    assert (found.batch, found.m, found.n, found.k, found.dtype) == (4, 16, 32, 64, "bfloat16")
    assert cost(parse_key(mm(16, 32, 64))).batch == 1


@settings(max_examples=200)
@given(parsed_products())
def test_every_op_has_a_cost(parsed: ParsedKey) -> None:
    """No input can make it fail, and the device and the scalars do not matter."""
    found = cost(parsed)
    assert found.flops == 2 * found.batch * found.m * found.n * found.k * (
        2 if parsed.op_name == "mm_plus_mm" else 1
    )
    assert found.bytes > 0
    assert cost(replace(parsed, device=None, scalars=())) == found


def test_no_product_has_no_cost() -> None:
    """A key without two matrices is refused."""
    with pytest.raises(InvalidKeyError, match="no matrix product that is known"):
        cost(parse_key(key("relu", X)))


# --- devices ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "dtype", "tflops"),
    [
        (H200, "bfloat16", 989.4),
        (H200, "float16", 989.4),
        (H200, "float8_e4m3fn", 1978.9),
        (H200, "float8_e5m2", 1978.9),
        (H200, "int8", 1978.9),
        (H200, "float32", 66.9),
        (H200, "float64", 66.9),
        (H100, "bfloat16", 989.4),
        (A100, "bfloat16", 312),
        (A100, "int8", 624),
        (A100, "float32", 19.5),
        (A100, "float64", 19.5),
        (B200, "bfloat16", 2250),
        (B200, "float8_e4m3fn", 4500),
        (B200, "float32", 75),
        (B200, "float64", 37),
        (MI300X, "bfloat16", 1307.4),
        (MI300X, "float8_e4m3fnuz", 2614.9),
        (MI300X, "int8", 2614.9),
        (MI300X, "float32", 163.4),
        (MI300X, "float64", 163.4),
    ],
)
def test_peaks_are_those_of_the_data_sheets(spec: DeviceSpec, dtype: str, tflops: float) -> None:
    """SMs, clock and operations a clock give the published dense figures, within 1 %."""
    assert roofline(spec).peak_tflops[dtype] == pytest.approx(tflops, rel=0.01)


@pytest.mark.parametrize(
    ("spec", "tflops"), [(H200, 494.7), (A100, 156), (B200, 1125), (MI300X, 653.7)]
)
def test_float32_as_tf32(spec: DeviceSpec, tflops: float) -> None:
    """Torch's default is not to round float32; where the process allows it, the peak is another."""
    allowed = roofline(spec, tf32=True)
    assert allowed.peak_tflops["float32"] == pytest.approx(tflops, rel=0.01)
    others = {name: value for name, value in allowed.peak_tflops.items() if name != "float32"}
    stock = dict(roofline(spec).peak_tflops)
    del stock["float32"]
    assert others == stock


@pytest.mark.parametrize(
    ("spec", "gb_s"), [(H200, 4800), (H100, 3350), (A100, 2039), (B200, 8000), (MI300X, 5325)]
)
def test_bandwidths_are_those_of_the_data_sheets(spec: DeviceSpec, gb_s: float) -> None:
    """Clock, transfers and bus width give the published figures, within 3 %."""
    assert roofline(spec).peak_gb_s == pytest.approx(gb_s, rel=0.03)


def test_types_that_a_chip_lacks() -> None:
    """What the chip has no unit for has no peak: only memory counts."""
    assert "float8_e4m3fn" not in roofline(A100).peak_tflops
    assert "float8_e4m3fn" not in roofline(MI300X).peak_tflops
    assert "complex64" not in roofline(H200).peak_tflops


def test_every_device_of_the_catalogue_is_known() -> None:
    """No device is added without its figures."""
    for spec in CATALOGUE.values():
        found = roofline(spec)
        assert found.peak_tflops["bfloat16"] > 300
        assert found.peak_gb_s > 2000
        assert "TFLOP/s" in str(found)


def test_a_slower_clock_and_fewer_multiprocessors() -> None:
    """A device of the same chip is scaled; a clock that may rise does not raise the peak."""
    slower = replace(H200, clock_rate=915_000, multi_processor_count=66)
    assert roofline(slower).peak_tflops["bfloat16"] == pytest.approx(989.4 / 4, rel=0.001)
    raised = replace(H200, clock_rate=2_500_000)
    assert roofline(raised).peak_tflops["bfloat16"] == roofline(H200).peak_tflops["bfloat16"]


def test_a_device_that_is_not_known() -> None:
    """Only the memory counts, and the text says so."""
    unknown = replace(H200, gcn_arch_name="NVIDIA X1", triton_arch=121, capability=(12, 1))
    found = roofline(unknown, tf32=True)
    assert found.peak_tflops == {}
    assert found.peak_gb_s == roofline(H200).peak_gb_s
    assert str(found) == (
        f"NVIDIA X1: {found.peak_gb_s:,.0f} GB/s; how fast it multiplies is not known here, so "
        "that times count memory only"
    )
    big = cost(parse_key(mm(8192, 8192, 8192)))
    assert found.time_us(big) == pytest.approx(big.bytes / (found.peak_gb_s * 1e3))


# --- times ------------------------------------------------------------------------------


def test_many_operations_take_as_long_as_the_operations() -> None:
    """A large product is bound by multiplying: 1.1 TFLOP at 989 TFLOP/s."""
    found = roofline(H200).time_us(cost(parse_key(mm(8192, 8192, 8192))))
    assert found == pytest.approx(2 * 8192**3 / 989.4e12 * 1e6, rel=0.001)


def test_few_rows_take_as_long_as_reading_the_weight() -> None:
    """A decoding step is bound by memory: 117 MB at 4.8 TB/s."""
    found = roofline(H200).time_us(cost(parse_key(mm(1, 14336, 4096))))
    assert found == pytest.approx(14336 * 4096 * 2 / 4.8e12 * 1e6, rel=0.03)


def test_no_recorded_kernel_is_faster() -> None:
    """Packaged times of products too large for a cache are no shorter than the least time."""
    compared = 0
    for _, _, table in packaged_tables():
        if table.header.arch is None or table.header.arch not in CATALOGUE:
            continue
        spec = device_spec(table.header.arch)
        for text, entries in table.items():
            spent = cost(parse_key(text))
            if entries[0].time_us is not None and spent.bytes > 2 * spec.l2_cache_size:
                assert roofline(spec).time_us(spent) <= entries[0].time_us, text
                compared += 1
    assert compared > 5


@pytest.mark.parametrize(
    ("dtype", "gb_s", "expected"),
    [("bfloat16", 1000.0, 2.0), ("float64", 1000.0, 1.0), ("bfloat16", 0.0, 2.0),
     ("float64", 0.0, 0.0)],
)  # fmt: skip
def test_what_is_not_known_counts_nothing(dtype: str, gb_s: float, expected: float) -> None:
    """The longer of what is known, 0 where nothing is."""
    device = Roofline(device="x", peak_tflops={"bfloat16": 1.0}, peak_gb_s=gb_s)
    spent = Cost(batch=1, m=1, n=1, k=1, dtype=dtype, flops=2_000_000, bytes=1_000_000)
    assert device.time_us(spent) == expected


def test_a_device_that_does_not_tell_its_memory() -> None:
    """A clock of 0 is a bandwidth that is not known."""
    assert roofline(replace(H200, memory_clock_rate=0)).peak_gb_s == 0


def test_peaks_go_into_a_report() -> None:
    """They are plain values that a coverage record can copy."""
    found = roofline(H200)
    report = Coverage(
        device=found.device,
        torch="2.13.0",
        triton="3.7.1",
        tables=(),
        targets=(),
        gemms=(),
        peak_tflops=found.peak_tflops,
        peak_gb_s=found.peak_gb_s,
    )
    assert dataclasses.asdict(report)["peak_tflops"]["bfloat16"] > 900
