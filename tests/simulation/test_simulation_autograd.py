"""The Python walk of the autograd graph against torch's engine, on real CPU tensors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from inductor_tables.simulation.autograd import python_grad


class Doubled(torch.autograd.Function):  # type: ignore[misc]
    """Has a backward pass of its own, wrong on purpose, and an output that may go unused."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        """Return two functions of x."""
        ctx.save_for_backward(x)
        return x.sin(), x.cos()

    @staticmethod
    def backward(ctx: Any, sine: Any, cosine: Any) -> Any:
        """Return twice the gradient of the first, less the second's."""
        (x,) = ctx.saved_tensors
        return sine * x.cos() * 2 - cosine


def _linear(x: Any, w: Any) -> Any:
    return functional.gelu(x @ w).pow(2).mean()


def _reused(x: Any, w: Any) -> Any:
    y = x @ w
    return (y * y.t() + y).logsumexp(1).sum() + x.sum()


def _many_outputs(x: Any, w: Any) -> Any:
    left, right = torch.chunk(x @ w, 2, 1)
    rows = torch.unbind(left, 0)
    return torch.stack(rows).max(1).values.sum() + right.detach().mul(rows[0].sum()).sum()


def _in_place(x: Any, w: Any) -> Any:
    y = (x @ w).clone()
    y[:, 0] = x[0].sum()
    return y.mul_(2).sum()


def _broadcast(x: Any, w: Any) -> Any:
    return (x * w.sum(0) + w[0, 0]).double().sum()


def _custom(x: Any, w: Any) -> Any:
    return Doubled.apply(x @ w)[0].sum()


def _checkpointed(x: Any, w: Any) -> Any:
    return checkpoint(lambda t: functional.gelu(t @ w), x, use_reentrant=False).sum()


def _unused(x: Any, w: Any) -> Any:
    return x.sum() + w.detach().sum()


@pytest.mark.parametrize(
    "function",
    [
        _linear,
        _reused,
        _many_outputs,
        _in_place,
        _broadcast,
        _custom,
        _checkpointed,
        _unused,
    ],
)
def test_equals_the_engine(function: Any) -> None:
    """The same gradients as the engine's, for the same inputs."""
    torch.manual_seed(0)
    inputs = [torch.randn(8, 8, requires_grad=True) for _ in range(2)]
    engine = torch.autograd.grad(function(*inputs), inputs, allow_unused=True)
    walked = python_grad(function(*inputs), inputs, allow_unused=True)
    for expected, found in zip(engine, walked, strict=True):
        assert (expected is None) == (found is None)
        if expected is not None and found is not None:
            torch.testing.assert_close(found, expected)


def test_seeds_and_several_outputs() -> None:
    """Given gradients of the outputs are used, and inputs may be inside the graph."""
    torch.manual_seed(0)
    x = torch.randn(4, requires_grad=True)
    y = x * 2
    outputs, seeds = (y.sin(), y.cos()), (torch.randn(4), torch.randn(4))
    engine = torch.autograd.grad(outputs, (x, y), seeds, retain_graph=True)
    for expected, found in zip(engine, python_grad(outputs, (x, y), seeds), strict=True):
        torch.testing.assert_close(found, expected)


def test_create_graph() -> None:
    """A gradient can be differentiated again."""
    x = torch.tensor([2.0], requires_grad=True)
    (first,) = python_grad(x**3, x, create_graph=True)
    assert first is not None
    (second,) = python_grad(first, x)
    assert second is not None
    assert second.item() == 12.0


def test_materialized() -> None:
    """Zeros stand for the gradient of an unused input on demand."""
    x, unused = torch.ones(2, requires_grad=True), torch.ones(3, requires_grad=True)
    grads = python_grad(x.sum(), (x, unused), allow_unused=True, materialize_grads=True)
    assert grads[1] is not None
    assert grads[1].tolist() == [0, 0, 0]


def test_batched_is_refused() -> None:
    """What is not walked is said."""
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(NotImplementedError, match="batched gradients are not simulated"):
        python_grad(x.sum(), x, is_grads_batched=True)


def test_a_module() -> None:
    """A small network with normalisation, convolution and an embedding."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten())
    table = nn.Embedding(10, 8)
    parameters = [*layers.parameters(), *table.parameters()]
    loss = (layers(torch.randn(2, 3, 6, 6)).sum(1) * table(torch.tensor([1, 2])).sum(1)).sum()
    engine = torch.autograd.grad(loss, parameters, retain_graph=True)
    for expected, found in zip(engine, python_grad(loss, parameters), strict=True):
        torch.testing.assert_close(found, expected)
