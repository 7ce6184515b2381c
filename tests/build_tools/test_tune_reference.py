"""The reference that candidates are checked against, and the distance from it."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from build_tools.tune.reference import (
    Error,
    empty,
    error_of,
    exact_dtype,
    fill,
    poison,
    reference,
    result_dtype,
)
from inductor_tables.keys import TensorKey

CPU = torch.device("cpu")


def _random(*size: int) -> torch.Tensor:
    return torch.randn(size, dtype=torch.float32)


@pytest.mark.parametrize(
    ("op_name", "inputs", "right"),
    [
        ("mm", [_random(4, 8), _random(8, 3)], lambda a, b: a @ b),
        ("bmm", [_random(2, 4, 8), _random(2, 8, 3)], torch.bmm),
        ("addmm", [_random(3), _random(4, 8), _random(8, 3)],
         lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2)),
        ("baddbmm", [_random(2, 4, 3), _random(2, 4, 8), _random(2, 8, 3)],
         lambda c, a, b: torch.baddbmm(c, a, b, beta=0.5, alpha=2)),
        ("mm_plus_mm", [_random(4, 8), _random(8, 3), _random(4, 8), _random(8, 3)],
         lambda a, b, c, d: a @ b + c @ d),
        ("scaled_mm", [_random(4, 8), _random(8, 3), _random(4, 1), _random(1, 3)],
         lambda a, b, s, t: (a * s) @ (b * t)),
        ("scaled_mm", [_random(4, 8), _random(8, 3), _random(1), _random(), _random(3)],
         lambda a, b, s, t, c: (a * s) @ (b * t) + c),
        ("scaled_mm", [_random(4, 300), _random(300, 3), _random(4, 3), _random(3, 1)],
         lambda a, b, s, t: (a * s.repeat_interleave(128, 1)[:, :300])
         @ (b * t.repeat_interleave(128, 0)[:300])),
    ],
)  # fmt: skip
def test_the_reference_is_the_product(
    op_name: str, inputs: list[torch.Tensor], right: Callable[..., torch.Tensor]
) -> None:
    """In double precision, it is what torch computes of doubles."""
    named = {f"arg{n}_1": tensor for n, tensor in enumerate(inputs)}
    found = reference(op_name, named, {"alpha": 2, "beta": 0.5}, torch.float64)
    torch.testing.assert_close(found, right(*(tensor.double() for tensor in inputs)))


def test_whole_numbers_are_exact() -> None:
    """A product of 8-bit numbers is checked bit by bit."""
    first, second = torch.randint(-128, 128, (2, 64, 64), dtype=torch.int8)
    exact = reference("int_mm", {"a": first, "b": second}, {}, torch.float64)
    right = (first.long() @ second.long()).int()
    assert error_of(right, exact) == Error(total=0.0, largest=0.0)
    right[3, 4] += 1
    assert not error_of(right, exact).within(Error(total=0.0, largest=0.0), 2.0)


def test_one_wrong_element_of_many_shows() -> None:
    """The largest difference sees what the norm hides."""
    exact = torch.randn(512, 512, dtype=torch.float64)
    result = exact.to(torch.bfloat16)
    usual = error_of(result, exact)
    result[7, 9] += 0.2
    wrong = error_of(result, exact)
    assert wrong.total < 2 * usual.total and wrong.largest > 2 * usual.largest
    assert usual.within(usual, 2.0) and not wrong.within(usual, 2.0)


@pytest.mark.parametrize("place", [0, 50, 99])
def test_an_element_that_was_not_written_is_never_right(
    place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Poison shows wherever it is left, also in the last part of a large result."""
    monkeypatch.setattr("build_tools.tune.reference._CHUNK", 30)
    exact = torch.ones(100, dtype=torch.float64)
    result = torch.empty(100)
    poison(result)
    assert bool(result.isnan().all())
    result[:place], result[place + 1 :] = 1.0, 1.0
    assert not error_of(result, exact).within(Error(total=math.inf, largest=math.inf), 2.0)


def test_parts_make_the_same_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing in parts changes nothing."""
    exact = torch.randn(1000, dtype=torch.float64)
    whole = error_of(exact.float(), exact)
    monkeypatch.setattr("build_tools.tune.reference._CHUNK", 64)
    parts = error_of(exact.float(), exact)
    assert parts.total == pytest.approx(whole.total) and parts.largest == whole.largest


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float8_e4m3fn", "int8"])
def test_inputs_have_the_keys_layout_and_random_numbers(dtype: str) -> None:
    """Sizes and strides are the key's, numbers differ from draw to draw."""
    tensor = empty(TensorKey(dtype=dtype, size=(64, 32), stride=(1, 80)), CPU)
    assert tensor.shape == (64, 32) and tensor.stride() == (1, 80)
    assert tensor.untyped_storage().nbytes() == (63 + 31 * 80 + 1) * tensor.element_size()
    fill(tensor)
    before = tensor.float().clone()
    fill(tensor)
    assert not torch.equal(before, tensor.float())
    assert bool(before.isfinite().all()) and float(before.std()) > 0.5


def test_scales_are_positive() -> None:
    """Scales are between 0.5 and 1.5."""
    scale = empty(TensorKey(dtype="float32", size=(64, 1), stride=(1, 1)), CPU)
    fill(scale, positive=True)
    assert 0.5 <= float(scale.min()) < float(scale.max()) <= 1.5


@pytest.mark.parametrize(
    ("op_name", "dtype"),
    [("mm", torch.float16), ("int_mm", torch.int32), ("scaled_mm", torch.bfloat16)],
)
def test_dtypes_of_results(op_name: str, dtype: torch.dtype) -> None:
    """They are the op's."""
    inputs = {"arg0_1": torch.zeros(1, dtype=torch.float16)}
    assert result_dtype(op_name, inputs, "bfloat16") == dtype


def test_large_products_are_checked_in_single_precision() -> None:
    """Double precision would take too long there."""
    assert exact_dtype(10**9) == torch.float64 and exact_dtype(10**13) == torch.float32
