"""In what two lookup keys differ, in words, and how far that sets them apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import log2
from typing import Final, Literal

from inductor_tables.analysis.layouts import alike, layouts
from inductor_tables.analysis.products import OPS, Product, product_of
from inductor_tables.arch import base_arch
from inductor_tables.keys import ParsedKey, TensorKey, problem_of

Kind = Literal["device", "op", "dtype", "size", "stride", "bias", "scale", "scalars", "other"]

# How far a difference sets two keys apart, in factors of two of a size: a product of another
# layout is as near as one of the same layout and a sixteenth of the size.
_DEVICE: Final = 24.0
_OP: Final = 12.0
_DTYPE: Final = 8.0
_ORDER: Final = 4.0
_SCALAR: Final = 4.0
_EXTRA: Final = 2.0
_SPACING: Final = 1.0
FINE: Final = 0.25
"""Weight of a difference that only tells apart what is otherwise as near."""

_SIZE_NAMES: Final = ("batch", "M", "N", "K")


@dataclass(frozen=True)
class Difference:
    """One field that differs.

    ``text`` is for people, such as ``N 2688, table has 2624``; ``weight`` is in factors of two
    of a size.
    """

    kind: Kind
    text: str
    weight: float


def size_log(size: int) -> float:
    """Return the logarithm that sizes are compared by; 0 is half of 1."""
    return log2(max(size, 0.5))


def differences(
    asked: ParsedKey, known: ParsedKey, *, serves_base_arch: bool = False
) -> tuple[Difference, ...]:
    """Return in what a key of a table differs from the one that was asked for.

    Empty if the table would answer with it: a key without a device is for any.

    Args:
        asked: the key that was asked for.
        known: the key of the table.
        serves_base_arch: an AMD arch of the table serves all of its feature flags.

    Raises:
        InvalidKeyError: one of them is of no matrix product.
    """
    mine, theirs = product_of(asked), product_of(known)
    found = [
        *_devices(asked, known, serves_base_arch),
        *_ops(asked, known, mine.sizes == theirs.sizes),
        *_dtypes(mine, theirs),
        *_sizes(mine, theirs),
        *_strides(mine, theirs),
    ]
    if asked.op_name == known.op_name:
        found += [*_extras(asked, known, mine), *_scalars(asked, known)]
    if not found and (asked.inputs, asked.scalars) != (known.inputs, known.scalars):
        found += _anything(asked, known)
    return tuple(found)


def _devices(asked: ParsedKey, known: ParsedKey, serves_base_arch: bool) -> Iterator[Difference]:
    if known.device in {None, asked.device}:
        return
    if serves_base_arch and asked.device and known.device == base_arch(asked.device):
        return
    asks = asked.device or "none"
    yield Difference("device", f"other device: {asks}, table has {known.device}", _DEVICE)


def _ops(asked: ParsedKey, known: ParsedKey, same_sizes: bool) -> Iterator[Difference]:
    if asked.op_name == known.op_name:
        return
    held = f"the same product as {known.op_name}" if same_sizes else known.op_name
    why = ": the bias differs" if _biases_differ(asked.op_name, known.op_name) else ""
    yield Difference("op", f"other op: {asked.op_name} asked, table has {held}{why}", _OP)


def _biases_differ(*names: str) -> bool:
    return set(names) in ({"mm", "addmm"}, {"bmm", "baddbmm"})


def _dtypes(mine: Product, theirs: Product) -> Iterator[Difference]:
    asked, known = (
        " and ".join(dict.fromkeys((product.first.dtype, product.second.dtype)))
        for product in (mine, theirs)
    )
    if asked != known:
        yield Difference("dtype", f"other dtype: {asked}, table has {known}", _DTYPE)


def _sizes(mine: Product, theirs: Product) -> Iterator[Difference]:
    for name, asked, known in zip(_SIZE_NAMES, mine.sizes, theirs.sizes, strict=True):
        if asked != known:
            weight = abs(size_log(asked) - size_log(known))
            yield Difference("size", f"{name} {asked}, table has {known}", weight)


def _strides(mine: Product, theirs: Product) -> Iterator[Difference]:
    yield from _layouts(mine.op.inputs[mine.op.first], mine.first, theirs.first)
    yield from _layouts(mine.op.inputs[mine.op.second], mine.second, theirs.second)


def _layouts(name: str, asked: TensorKey, known: TensorKey) -> Iterator[Difference]:
    mine, theirs = alike(layouts(asked), layouts(known))
    if mine != theirs:
        weight = FINE
        if mine.order != theirs.order:
            weight = _ORDER
        elif not mine.spacing or not theirs.spacing:
            weight = _SPACING
        yield Difference("stride", f"stride: {name} is {mine}, table has {theirs}", weight)
    elif asked.size == known.size and asked.stride != known.stride:
        mine_text, theirs_text = list(asked.stride), list(known.stride)
        yield Difference(
            "stride",
            f"stride: {name} has {mine_text}, table has {theirs_text}, which is the same memory",
            FINE,
        )


def _extras(asked: ParsedKey, known: ParsedKey, mine: Product) -> Iterator[Difference]:
    """Yield differences of what is multiplied with nothing: biases and scales."""
    if asked.op_name not in OPS:
        return
    for place, name in enumerate(mine.op.inputs):
        tensors = [
            problem_of(parsed).inputs[place] if place < len(parsed.inputs) else None
            for parsed in (asked, known)
        ]
        if place not in {mine.op.first, mine.op.second} and tensors != [None, None]:
            yield from _extra("bias" if name == "bias" else "scale", name, *tensors)
    if problem_of(asked).inputs == problem_of(known).inputs and asked.inputs != known.inputs:
        yield Difference(
            "bias",
            f"bias: given as {list(asked.inputs[0].size)}, "
            f"table has it as {list(known.inputs[0].size)}",
            FINE,
        )


def _extra(
    kind: Kind, name: str, asked: TensorKey | None, known: TensorKey | None
) -> Iterator[Difference]:
    mine, theirs = _extent(asked), _extent(known)
    if mine != theirs:
        yield Difference(kind, f"{name}: {mine}, table has {theirs}", _EXTRA)
    if asked is None or known is None:
        return
    if asked.dtype != known.dtype:
        yield Difference(
            "dtype", f"dtype of {name}: {asked.dtype}, table has {known.dtype}", _EXTRA
        )
    if asked.size == known.size and asked.stride != known.stride and mine == theirs:
        strides = f"{list(asked.stride)}, table has {list(known.stride)}"
        yield Difference("stride", f"stride: {name} has {strides}", FINE)


def _extent(tensor: TensorKey | None) -> str:
    """Return what a bias or a scale has an element for, whatever it is expanded to."""
    if tensor is None:
        return "none"
    pairs = list(zip(tensor.size, tensor.stride, strict=True))
    *batch, rows, columns = [(1, 1), (1, 1), *pairs][-max(len(pairs), 2) :]
    varies = [size > 1 and stride != 0 for size, stride in (rows, columns)]
    one = {
        (False, False): "one number",
        (False, True): "one row",
        (True, False): "one column",
        (True, True): "a whole matrix",
    }[varies[0], varies[1]]
    each = any(size > 1 and stride != 0 for size, stride in batch)
    return f"{one} for each of the batch" if each else one


def _scalars(asked: ParsedKey, known: ParsedKey) -> Iterator[Difference]:
    if asked.scalars != known.scalars:
        mine, theirs = (
            " ".join(f"{name}={value}" for name, value in parsed.scalars) or "none"
            for parsed in (asked, known)
        )
        yield Difference("scalars", f"other scalars: {mine}, table has {theirs}", _SCALAR)


def _anything(asked: ParsedKey, known: ParsedKey) -> Iterator[Difference]:
    """Yield what no other rule has words for."""
    if len(asked.inputs) != len(known.inputs):
        counts = f"{len(asked.inputs)} inputs, table has {len(known.inputs)}"
        yield Difference("other", counts, FINE)
    for place, (mine, theirs) in enumerate(zip(asked.inputs, known.inputs, strict=False)):
        if mine != theirs:
            yield Difference("other", f"input {place} is {mine}, table has {theirs}", FINE)
