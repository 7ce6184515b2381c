"""``torch.autograd.grad`` by walking the graph in Python.

The C++ engine starts a thread and asks for a stream for every accelerator it meets, so that it
cannot differentiate fake CUDA tensors where there is none.
"""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge
from torch.fx import traceback as fx_traceback

from inductor_tables.simulation.patching import Patches

# Nodes of the autograd graph have no public type with what is read here.
_Node = Any
_Tensor = Any


def patch_autograd(patches: Patches) -> None:
    """Differentiate simulated tensors in Python; leave all others to the engine."""

    def grad(engine: Any, outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if any(t.device.type == "cuda" for t in _tensors(outputs)):
            return python_grad(outputs, inputs, *args, **kwargs)
        return engine(outputs, inputs, *args, **kwargs)

    patches.wrap(torch.autograd, "grad", grad)


def python_grad(  # noqa: PLR0917 - the signature of torch.autograd.grad
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,  # noqa: ARG001
    create_graph: bool = False,
    allow_unused: bool | None = None,  # noqa: ARG001
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[_Tensor | None, ...]:
    """Differentiate as ``torch.autograd.grad`` does, without the engine's node hooks.

    The graph is always retained; an input that the outputs do not depend on gets None whatever
    ``allow_unused`` says.

    Raises:
        NotImplementedError: ``is_grads_batched``.
    """
    if is_grads_batched:
        raise NotImplementedError("batched gradients are not simulated")
    targets = _tensors(inputs)
    walk = _Walk([get_gradient_edge(t) for t in targets])
    roots = _tensors(outputs)
    seeds = [None] * len(roots) if grad_outputs is None else _tensors(grad_outputs)
    for root, seed in zip(roots, seeds, strict=True):
        if root.requires_grad:
            edge = get_gradient_edge(root)
            walk.start(edge.node, edge.output_nr, torch.ones_like(root) if seed is None else seed)
    with torch.set_grad_enabled(create_graph):
        walk.run()
    if materialize_grads:
        return tuple(
            torch.zeros_like(t) if g is None else g
            for g, t in zip(walk.results, targets, strict=True)
        )
    return tuple(walk.results)


def _tensors(value: Any) -> Sequence[Any]:
    return (value,) if isinstance(value, torch.Tensor) else tuple(value)


class _Walk:
    """One backward pass: gradients in flight, and what is wanted of them."""

    def __init__(self, wanted: Iterable[Any]) -> None:
        edges = list(wanted)
        self.results: list[_Tensor | None] = [None] * len(edges)
        self._wanted: dict[tuple[_Node, int], list[int]] = {}
        for index, edge in enumerate(edges):
            self._wanted.setdefault((edge.node, edge.output_nr), []).append(index)
        self._roots: dict[_Node, None] = {}
        self._received: dict[_Node, dict[int, _Tensor]] = {}

    def start(self, node: _Node, slot: int, grad: _Tensor) -> None:
        """Put the gradient of an output where the walk begins."""
        self._roots[node] = None
        self._receive(node, slot, grad)

    def run(self) -> None:
        """Run every node once all that feed it have run, the latest of the forward pass first."""
        waiting = _fan_in(self._roots)
        ready = [_queued(node) for node in self._roots if not waiting.get(node)]
        heapq.heapify(ready)
        while ready:
            node = heapq.heappop(ready)[-1]
            grads = self._apply(node)
            for index, (target, slot) in enumerate(node.next_functions):
                if target is None:
                    continue
                if grads is not None and grads[index] is not None:
                    self._receive(target, slot, grads[index])
                waiting[target] -= 1
                if not waiting[target]:
                    heapq.heappush(ready, _queued(target))

    def _receive(self, node: _Node, slot: int, grad: _Tensor) -> None:
        grad = _fitted(grad, node._input_metadata[slot])
        for index in self._wanted.get((node, slot), ()):
            self.results[index] = _sum(self.results[index], grad)
        slots = self._received.setdefault(node, {})
        slots[slot] = _sum(slots.get(slot), grad)

    def _apply(self, node: _Node) -> tuple[_Tensor | None, ...] | None:
        received = self._received.pop(node, None)
        # Leaves end in AccumulateGrad, which would write .grad.
        if received is None or not node.next_functions:
            return None
        slots = range(len(node._input_metadata))
        grads: Any
        with _traced_as_backward_of(node):
            if hasattr(node, "apply"):  # a torch.autograd.Function
                grads = node.apply(*(_materialized(node, slot, received) for slot in slots))
            else:
                grads = node(*(received.get(slot) for slot in slots))
        return grads if isinstance(grads, tuple) else (grads,)


@contextlib.contextmanager
def _traced_as_backward_of(node: _Node) -> Iterator[None]:
    """Number what is traced as the hooks do that AOTAutograd gives the engine's nodes.

    By that number it finds the forward node, whose module and source line a backward node
    gets (``setup_stacktrace_preservation_hooks`` and ``copy_fwd_metadata_to_bw_nodes`` in
    ``torch/_functorch/_aot_autograd``).
    """
    fx_traceback.set_grad_fn_seq_nr(node._sequence_nr())
    try:
        yield
    finally:
        fx_traceback.reset_grad_fn_seq_nr()


def _queued(node: _Node) -> tuple[int, int, _Node]:
    return (-node._sequence_nr(), id(node), node)


def _fan_in(roots: Iterable[_Node]) -> dict[_Node, int]:
    """Count the edges into every node that the roots reach."""
    counts: dict[_Node, int] = {}
    seen = set(roots)
    stack = list(seen)
    while stack:
        for target, _slot in stack.pop().next_functions:
            if target is None:
                continue
            counts[target] = counts.get(target, 0) + 1
            if target not in seen:
                seen.add(target)
                stack.append(target)
    return counts


def _sum(total: _Tensor | None, grad: _Tensor) -> _Tensor:
    return grad if total is None else total + grad


def _fitted(grad: _Tensor, metadata: Any) -> _Tensor:
    """Undo broadcasting and promotion, as the engine does on every edge."""
    if tuple(grad.shape) != tuple(metadata.shape):
        grad = grad.sum_to_size(tuple(metadata.shape))
    return grad if grad.dtype == metadata.dtype else grad.to(metadata.dtype)


def _materialized(node: _Node, slot: int, received: dict[int, _Tensor]) -> _Tensor:
    """Give a Python function zeros for outputs without a gradient, the default of its context."""
    if slot in received:
        return received[slot]
    metadata = node._input_metadata[slot]
    return torch.zeros(tuple(metadata.shape), dtype=metadata.dtype, device=metadata.device)
