"""The grammar of lookup keys, and their compact exact form inside a table.

A key is what ``LookupTableChoices.make_lookup_key`` makes
(``torch/_inductor/lookup_table/choices.py``, the same text on 2.10 to 2.15)::

    [<gcnArchName>+]((<dtype>, [<sizes>], [<strides>]), ...)[+<name>=<scalar>&...]+<op_name>
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from inductor_tables.errors import InvalidKeyError

_TENSOR = r"\(torch\.\w+, \[[-\d, ]*\], \[[-\d, ]*\]\)"
_KEY = re.compile(
    rf"(?:(?P<device>[^\n]+?)\+)?(?P<inputs>\({_TENSOR}(?:, {_TENSOR})*,?\))"
    r"(?:\+(?P<scalars>\w+=[^\n]*))?\+(?P<op_name>[A-Za-z_][\w-]*)",
    re.ASCII,
)
_TENSOR_PARTS = re.compile(r"\(torch\.(\w+), \[([-\d, ]*)\], \[([-\d, ]*)\]\)", re.ASCII)
_NUMBER = re.compile(r"(?<![\w.:+-])(0|[1-9][0-9]{0,18})(?![\w.])", re.ASCII)

_SINGLE = re.compile(r"\(torch\.\w+, \[(?:\d+, )*1[,\]]", re.ASCII)
"""An input with a dimension of size 1."""

_MOST_SPELLINGS = 32

MAX_KEY_LENGTH = 4096
"""Longest key text in characters that a table or a dump may hold."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorKey:
    """One input as the key describes it: dtype name, sizes and strides in elements."""

    dtype: str
    size: tuple[int, ...]
    stride: tuple[int, ...]

    def __str__(self) -> str:
        return f"(torch.{self.dtype}, {list(self.size)}, {list(self.stride)})"


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsedKey:
    """A lookup key taken apart; ``str()`` gives the text back."""

    device: str | None
    inputs: tuple[TensorKey, ...]
    scalars: tuple[tuple[str, str], ...]
    op_name: str

    def __str__(self) -> str:
        listed = ", ".join(map(str, self.inputs))
        parts = [f"({listed},)" if len(self.inputs) == 1 else f"({listed})"]
        if self.device is not None:
            parts.insert(0, self.device)
        if self.scalars:
            parts.append("&".join(f"{name}={value}" for name, value in self.scalars))
        return "+".join([*parts, self.op_name])


def parse_key(key: str) -> ParsedKey:
    """Take a lookup key apart.

    Raises:
        InvalidKeyError: the text does not follow the host's grammar.
    """
    found = _KEY.fullmatch(key) if len(key) <= MAX_KEY_LENGTH else None
    if found is None or not key.isprintable():
        raise InvalidKeyError(
            f"not a lookup key: {key[:200]!r}; expected "
            "'[device+]((dtype, [sizes], [strides]), ...)[+name=value&...]+op_name'"
        )
    try:
        inputs = tuple(
            TensorKey(dtype=dtype, size=_numbers(size), stride=_numbers(stride))
            for dtype, size, stride in _TENSOR_PARTS.findall(found["inputs"])
        )
    except ValueError as error:
        raise InvalidKeyError(f"not a lookup key: {key[:200]!r}: {error}") from error
    scalars = found["scalars"].split("&") if found["scalars"] else []
    if not all("=" in scalar for scalar in scalars):
        raise InvalidKeyError(f"not a lookup key: {key[:200]!r}: a scalar lacks '='")
    parsed = ParsedKey(
        device=found["device"],
        inputs=inputs,
        scalars=tuple((name, value) for name, _, value in (s.partition("=") for s in scalars)),
        op_name=found["op_name"],
    )
    if str(parsed) != key:
        raise InvalidKeyError(f"not a lookup key: {key[:200]!r}; it would be spelled {parsed}")
    return parsed


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(", ")) if text else ()


def problem_of(parsed: ParsedKey) -> ParsedKey:
    """Return the key that stands for the whole op.

    From torch 2.12 on one addmm asks under two keys: with the bias as the user gave it
    (``[N]``) for ATen and expanded (``[M, N]``, stride ``[0, 1]``) for Triton
    (``torch/_inductor/kernel/mm.py``, ``tuned_addmm``). Both are one problem: this
    returns the key with the expanded bias.
    """
    if parsed.op_name != "addmm" or len(parsed.inputs) != 3:
        return parsed
    bias, mat1, mat2 = parsed.inputs
    if (len(bias.size), len(bias.stride)) != (1, 1) or len(mat1.size) != 2 or len(mat2.size) != 2:
        return parsed
    rows, columns = mat1.size[0], mat2.size[1]
    stride = bias.stride[0] if bias.size[0] == columns else 0
    expanded = replace(bias, size=(rows, columns), stride=(0, stride))
    return replace(parsed, inputs=(expanded, mat1, mat2))


def other_spellings(key: str) -> Iterator[str]:
    """Yield the other keys of inputs that lie in memory alike: at most 31, mostly none.

    The stride of a dimension of size 1 says nothing, and what it is hangs on where a tensor
    comes from: one row is ``[1, 4096], [4096, 1]`` as a graph's input and ``[1, 4096], [0, 1]``
    where Inductor computed it (``SizeVarAllocator.stride_vars`` gives a dimension that an index
    does not mention 0; ``torch/_inductor/sizevars.py``).
    """
    if _SINGLE.search(key) is None:
        return
    try:
        parsed = parse_key(key)
    except InvalidKeyError:  # a handler of the user's may spell keys as it likes
        return
    spelled = itertools.product(*map(_spellings, parsed.inputs))
    for inputs in itertools.islice(spelled, 1, _MOST_SPELLINGS):
        yield str(replace(parsed, inputs=inputs))


def _spellings(tensor: TensorKey) -> list[TensorKey]:
    """Return a tensor, then it with single dimensions within, around and outside of the others."""
    if 1 not in tensor.size or len(tensor.size) != len(tensor.stride):
        return [tensor]
    within, extent = [], 1
    for size, stride in zip(reversed(tensor.size), reversed(tensor.stride), strict=True):
        within.append(extent if size == 1 else stride)
        extent = extent if size == 1 else max(extent, size * stride)
    given = list(zip(tensor.size, tensor.stride, strict=True))
    around = [extent if size == 1 else stride for size, stride in given]
    outside = [0 if size == 1 else stride for size, stride in given]
    found = dict.fromkeys(map(tuple, (tensor.stride, reversed(within), around, outside)))
    return [replace(tensor, stride=stride) for stride in found]


def split_key(key: str) -> tuple[str, list[int]] | None:
    """Split a key into its skeleton (every plain number a ``#``) and those numbers.

    A plain number has at most 19 digits, so that it fits 64 bits; a longer one stays in
    the skeleton. ``join_key`` undoes it exactly. None where it could not: the key holds
    a ``#``.
    """
    if "#" in key:
        return None
    parts = _NUMBER.split(key)
    return "#".join(parts[::2]), list(map(int, parts[1::2]))


def join_key(skeleton: str, numbers: list[int]) -> str:
    """Put a key together again from what :func:`split_key` gave.

    Raises:
        ValueError: the counts of places and numbers differ.
    """
    texts = skeleton.split("#")
    if len(texts) != len(numbers) + 1:
        raise ValueError(f"{len(texts) - 1} places for {len(numbers)} numbers in {skeleton!r}")
    return texts[0] + "".join(
        f"{number}{text}" for number, text in zip(numbers, texts[1:], strict=True)
    )
