"""Lookup keys of every op and layout, for the tests of what compares keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from hypothesis import strategies as st

from inductor_tables.keys import ParsedKey, TensorKey

H200: Final = "NVIDIA H200"


def tensor(*size: int, dtype: str = "bfloat16", stride: tuple[int, ...] | None = None) -> TensorKey:
    """Return a contiguous input, or one with the given strides."""
    if stride is None:
        steps = [1]
        for length in size[:0:-1]:
            steps.insert(0, steps[0] * length)
        stride = tuple(steps[: len(size)])
    return TensorKey(dtype=dtype, size=size, stride=stride)


def transposed(*size: int, dtype: str = "bfloat16") -> TensorKey:
    """Return a matrix whose columns lie together, as ``nn.Linear`` passes its weight."""
    *batch, rows, columns = size
    strides = (rows * columns,) * len(batch) + (1, rows)
    return TensorKey(dtype=dtype, size=size, stride=strides)


def key(
    op_name: str,
    *inputs: TensorKey,
    device: str | None = H200,
    scalars: tuple[tuple[str, str], ...] = (),
) -> str:
    """Return the text of a key."""
    if op_name in {"addmm", "baddbmm"} and not scalars:
        scalars = (("alpha", "1"), ("beta", "1"))
    return str(ParsedKey(device=device, inputs=inputs, scalars=scalars, op_name=op_name))


def mm(m: int, n: int, k: int, *, dtype: str = "bfloat16", device: str | None = H200) -> str:
    """Return the key of a Linear layer without a bias."""
    x, w = tensor(m, k, dtype=dtype), transposed(k, n, dtype=dtype)
    return key("mm", x, w, device=device)


def addmm(m: int, n: int, k: int, *, dtype: str = "bfloat16") -> str:
    """Return the key of a Linear layer, with the bias expanded."""
    bias = tensor(m, n, dtype=dtype, stride=(0, 1))
    return key("addmm", bias, tensor(m, k, dtype=dtype), transposed(k, n, dtype=dtype))


SIZES: Final = (1, 2, 3, 16, 17, 64, 100, 4096)
OP_NAMES: Final = (
    "mm", "addmm", "bmm", "baddbmm", "mm_plus_mm", "int_mm", "scaled_mm", "new_mm",
)  # fmt: skip
DTYPES: Final = ("bfloat16", "float16", "float8_e4m3fn")
DEVICES: Final = (
    H200, H200, None, "NVIDIA GeForce RTX 4090", "gfx942", "gfx942:sramecc+:xnack-",
)  # fmt: skip


@st.composite
def _matrices(draw: st.DrawFn, rows: int, columns: int, batch: int | None, dtype: str) -> TensorKey:
    """Draw a matrix, or a batch of them, that lies in memory in some way."""
    pad = draw(st.sampled_from([0, 0, 0, 8, 13]))
    down, right = draw(
        st.sampled_from(
            [
                (columns + pad, 1),
                (columns + pad, 1),
                (1, rows + pad),
                (0, 1),
                (1, 0),
                (2 * columns, 2),
            ]
        )
    )
    if batch is None:
        return tensor(rows, columns, dtype=dtype, stride=(down, right))
    apart = draw(st.sampled_from([rows * columns, rows * columns, rows * columns + 64, 0, columns]))
    return tensor(batch, rows, columns, dtype=dtype, stride=(apart, down, right))


@st.composite
def _biases(draw: st.DrawFn, m: int, n: int, batch: int | None, dtype: str) -> TensorKey:
    if batch is None and draw(st.booleans()):
        return tensor(n, dtype=dtype)
    return draw(_matrices(m, n, batch, dtype))


@st.composite
def parsed_products(
    draw: st.DrawFn,
    *,
    op_names: Sequence[str] = OP_NAMES,
    sizes: Sequence[int] = SIZES,
    dtypes: Sequence[str] = DTYPES,
    devices: Sequence[str | None] = DEVICES,
) -> ParsedKey:
    """Draw a key of one of some ops."""
    op_name, dtype = draw(st.sampled_from(op_names)), draw(st.sampled_from(dtypes))
    any_size = st.sampled_from(sizes)
    batch = draw(any_size) if op_name in {"bmm", "baddbmm"} else None
    m, n, k = draw(any_size), draw(any_size), draw(any_size)
    first, second = draw(_matrices(m, k, batch, dtype)), draw(_matrices(k, n, batch, dtype))
    inputs: tuple[TensorKey, ...] = (first, second)
    scalars: tuple[tuple[str, str], ...] = ()
    if op_name in {"addmm", "baddbmm"}:
        inputs = (draw(_biases(m, n, batch, draw(st.sampled_from([dtype, "float32"])))), *inputs)
        values = st.sampled_from(["1", "1", "0", "0.5"])
        scalars = (("alpha", draw(values)), ("beta", draw(values)))
    elif op_name == "mm_plus_mm":
        inputs = (*inputs, *inputs)
    elif op_name == "scaled_mm":
        scales = draw(
            st.sampled_from(
                [
                    (tensor(dtype="float32"), tensor(dtype="float32")),
                    (tensor(m, 1, dtype="float32"), tensor(1, n, dtype="float32")),
                ]
            )
        )
        inputs = (*inputs, *scales)
        if draw(st.booleans()):
            inputs = (*inputs, tensor(n))
    return ParsedKey(
        device=draw(st.sampled_from(devices)), inputs=inputs, scalars=scalars, op_name=op_name
    )
