"""The least time that a device could need for a matrix product, from data sheets.

A roofline knows two limits: how fast the device multiplies, and how fast it reads and writes its
memory. It knows no launch, which takes some µs on any device and decides the time of small
products, and no cache, from which operands may come faster than from memory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from inductor_tables.analysis.products import product_of
from inductor_tables.keys import ParsedKey, TensorKey
from inductor_tables.simulation.catalogue import DeviceSpec

_HALVES: Final = ("bfloat16", "float16")
_NVIDIA_FP8: Final = ("float8_e4m3fn", "float8_e5m2")
_AMD_FP8: Final = ("float8_e4m3fnuz", "float8_e5m2fnuz")

_BITS: Final[Mapping[str, int]] = {"bool": 8, "float4_e2m1fn_x2": 8}
_NUMBER_OF_BITS: Final = re.compile(r"(?:u?int|b?float|complex)(\d+)(?:_\w+)?")
_UNKNOWN_BITS: Final = 16


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one occurrence of a product takes of any device.

    Attributes:
        batch, m, n, k: sizes; ``batch`` is 1 for plain matrices.
        dtype: of the first operand, such as ``bfloat16``.
        flops: floating point (or integer) operations; an addition and a multiplication are two.
        bytes: every input and the result, each moved once.
    """

    batch: int
    m: int
    n: int
    k: int
    dtype: str
    flops: int
    bytes: int


def cost(parsed: ParsedKey) -> Cost:
    """Return the cost of a key.

    A dimension that is broadcast (stride 0) is moved once. The result has the operands' type but
    for ``int_mm``, which gives int32, and ``scaled_mm``, which gives its bias's type or, where it
    has none, is taken to give a type of 16 bits: a key does not say ``out_dtype``.

    Raises:
        InvalidKeyError: the key is of no matrix product.
    """
    product = product_of(parsed)
    batch, m, n, k = product.sizes
    read = sum(_elements(tensor) * _bits(tensor.dtype) // 8 for tensor in parsed.inputs)
    return Cost(
        batch=batch,
        m=m,
        n=n,
        k=k,
        dtype=product.first.dtype,
        flops=2 * product.op.products * batch * m * n * k,
        bytes=read + batch * m * n * _bits(_result_type(parsed, product.first.dtype)) // 8,
    )


def _elements(tensor: TensorKey) -> int:
    count = 1
    for size, stride in zip(tensor.size, tensor.stride, strict=True):
        count *= size if stride or not size else 1
    return count


def _result_type(parsed: ParsedKey, operand: str) -> str:
    if parsed.op_name == "int_mm":
        return "int32"
    if parsed.op_name == "scaled_mm":
        return parsed.inputs[4].dtype if len(parsed.inputs) > 4 else "bfloat16"
    return operand


def _bits(dtype: str) -> int:
    """Return the bits of one element; 16 for a type that is not known."""
    found = _NUMBER_OF_BITS.fullmatch(dtype)
    return _BITS.get(dtype) or (int(found[1]) if found else _UNKNOWN_BITS)


@dataclass(frozen=True, kw_only=True)
class _Chip:
    """How much one multiprocessor does in a clock, and at which clocks.

    Attributes:
        per_clock: dtype to operations a clock; an addition and a multiplication are two.
        tf32_per_clock: the same for float32 where torch may round it to TF32; None where the
            chip has nothing of the kind.
        matrix_clock: kHz that the data sheet's tensor core figures stand for, less than what the
            clock may rise to; None where they stand for the highest clock.
        at_highest_clock: dtypes whose figures stand for the highest clock all the same.
        transfers: transfers a memory clock.
    """

    per_clock: Mapping[str, int]
    tf32_per_clock: int | None = None
    matrix_clock: int | None = None
    at_highest_clock: tuple[str, ...] = ("float32", "float64")
    transfers: int = 2


# Dense figures, without sparsity. The data sheets give the product of all factors: the figures
# per multiprocessor and clock are from the architecture white papers and reproduce it.
_CHIPS: Final[Mapping[int | str, _Chip]] = {
    # NVIDIA A100 data sheet: 312 TFLOP/s bf16 and fp16, 156 TF32, 624 TOP/s int8, 19.5 TFLOP/s
    # float32 and (tensor core) float64, 2,039 GB/s; 108 SMs at 1,410 MHz.
    80: _Chip(
        per_clock={
            **dict.fromkeys(_HALVES, 2048),
            "int8": 4096,
            "float32": 128,
            "float64": 128,
        },
        tf32_per_clock=1024,
    ),
    # NVIDIA H100 SXM and H200 data sheets (half of their figures "with sparsity"): 989 TFLOP/s
    # bf16 and fp16, 494 TF32, 1,979 fp8 and int8, at 1,830 MHz, though the clock may rise to
    # 1,980 MHz, at which 67 TFLOP/s float32 and float64 are given; 3.35 and 4.8 TB/s.
    90: _Chip(
        per_clock={
            **dict.fromkeys(_HALVES, 4096),
            **dict.fromkeys((*_NVIDIA_FP8, "int8"), 8192),
            "float32": 256,
            "float64": 256,
        },
        tf32_per_clock=2048,
        matrix_clock=1_830_000,
    ),
    # NVIDIA HGX B200 data sheet, an eighth, without sparsity: 2.25 PFLOP/s bf16 and fp16, 1.12
    # TF32, 4.5 fp8 and int8, 75 TFLOP/s float32, 37 float64, 8 TB/s. 2.25 PFLOP/s of 148 SMs
    # are 8192 a clock at 1,856 MHz.
    100: _Chip(
        per_clock={
            **dict.fromkeys(_HALVES, 8192),
            **dict.fromkeys((*_NVIDIA_FP8, "int8"), 16384),
            "float32": 256,
            "float64": 128,
        },
        tf32_per_clock=4096,
        matrix_clock=1_856_000,
    ),
    # AMD Instinct MI300X data sheet: 1,307.4 TFLOP/s bf16 and fp16, 2,614.9 fp8 and int8, 163.4
    # float32 and float64 by matrix cores, 653.7 TF32; 304 CUs at 2,100 MHz; 5.3 TB/s: HBM3 at
    # 5.2 GT/s, four times the clock that the driver tells.
    "gfx942": _Chip(
        per_clock={
            **dict.fromkeys(_HALVES, 2048),
            **dict.fromkeys((*_AMD_FP8, "int8"), 4096),
            "float32": 256,
            "float64": 256,
        },
        tf32_per_clock=1024,
        transfers=4,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """How fast a device is at most.

    Attributes:
        device: gcnArchName.
        peak_tflops: by dtype, in 10^12 operations a second, dense; empty for a device whose chip
            is not known here, for which only the memory counts.
        peak_gb_s: memory bandwidth in 10^9 bytes a second; 0 where the device does not say.
    """

    device: str
    peak_tflops: Mapping[str, float]
    peak_gb_s: float

    def time_us(self, cost: Cost) -> float:
        """Return the least time in µs: by operations or by bytes, whichever is longer.

        What is not known of the device counts nothing: where neither the dtype nor the bandwidth
        is known, the time is 0. A launch is not in it.
        """
        tflops = self.peak_tflops.get(cost.dtype)
        computing = cost.flops / (tflops * 1e6) if tflops else 0.0
        moving = cost.bytes / (self.peak_gb_s * 1e3) if self.peak_gb_s else 0.0
        return max(computing, moving)

    def __str__(self) -> str:
        if not self.peak_tflops:
            return (
                f"{self.device}: {self.peak_gb_s:,.0f} GB/s; how fast it multiplies is not known "
                "here, so that times count memory only"
            )
        shown = ", ".join(f"{name} {value:,.0f}" for name, value in self.peak_tflops.items())
        return f"{self.device}: {self.peak_gb_s:,.0f} GB/s; TFLOP/s: {shown}"


def roofline(spec: DeviceSpec, *, tf32: bool = False) -> Roofline:
    """Return what a device reaches at most by the data sheets of its chip.

    The figures are by chip, multiprocessors and clocks: a device whose maker slowed the chip down
    is taken to be as fast as the chip, so that its least times are too short.

    Args:
        spec: the device.
        tf32: whether torch may multiply float32 as TF32
            (``torch.backends.cuda.matmul.fp32_precision`` or ``allow_tf32``); not its default.
    """
    arch = spec.triton_arch
    chip = _CHIPS.get(arch.partition(":")[0] if isinstance(arch, str) else arch)
    transfers = chip.transfers if chip else 2
    return Roofline(
        device=spec.gcn_arch_name,
        peak_tflops=_peaks(spec, chip, tf32) if chip else {},
        peak_gb_s=spec.memory_clock_rate * transfers * spec.memory_bus_width / 8 / 1e6,
    )


def _peaks(spec: DeviceSpec, chip: _Chip, tf32: bool) -> dict[str, float]:
    per_clock, highest = dict(chip.per_clock), chip.at_highest_clock
    if tf32 and chip.tf32_per_clock:
        per_clock["float32"] = chip.tf32_per_clock
        highest = tuple(name for name in highest if name != "float32")
    clocks = {
        name: spec.clock_rate
        if name in highest
        else min(spec.clock_rate, chip.matrix_clock or spec.clock_rate)
        for name in per_clock
    }
    return {
        name: spec.multi_processor_count * clocks[name] * operations / 1e9
        for name, operations in per_clock.items()
    }
