"""Models that ``torch.export.save`` has written, as calls that can be lowered."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from inductor_tables.analysis.moving import leaves, replace_tensors
from inductor_tables.analysis.targets import Case, DynamicSize, Options, dtype_of
from inductor_tables.errors import TargetError

_DEVICE = torch.device("cuda:0")


def exported_cases(path: Path, target: str, options: Options) -> list[Case]:
    """Return the one call that a model was exported with.

    Raises:
        TargetError: the file cannot be loaded, holds no inputs, or token counts are asked for.
    """
    if options.tokens:
        raise TargetError(
            f"{target}: an exported model has the sizes that it was exported with; leave --tokens "
            "out, or export it once for each token count"
        )
    program = _loaded(path, target)
    if program.example_inputs is None:
        raise TargetError(f"{target}: the file holds no example inputs; export the model again")
    args, kwargs = program.example_inputs
    return [
        Case(
            name=target,
            model=_on_the_device(program.module()),
            args=tuple(args),
            kwargs=dict(kwargs),
            dtype=dtype_of(options.dtype),
            dynamic=tuple(_dynamic_sizes(program)),
        )
    ]


def _loaded(path: Path, target: str) -> Any:
    try:
        return torch.export.load(path)
    except Exception as error:
        cuda = " It was exported on a GPU: move the model to the CPU or the meta device first."
        hint = cuda if "cuda" in str(error).lower() else ""
        raise TargetError(
            f"{target}: torch.export.load of torch {torch.__version__} cannot read it "
            f"({type(error).__name__}: {error}).{hint}"
        ) from error


def _on_the_device(module: Any) -> Any:
    """Have a graph make its tensors on the device: an export writes its own device into it.

    What it asserts of the device, type and layout of tensors on the way is left out. Parameters
    become empty ones on the meta device: only their layout matters, and the graph is Dynamo's to
    trace again.
    """
    for part in module.modules():
        graph = getattr(part, "graph", None)
        if isinstance(graph, torch.fx.Graph):
            for node in list(graph.nodes):
                _put_on_the_device(graph, node)
            part.recompile()
    return replace_tensors(module, lambda tensor: tensor.to("meta"))


def _put_on_the_device(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    if node.target is torch.ops.aten._assert_tensor_metadata.default:
        graph.erase_node(node)
        return
    node.args = tuple(_DEVICE if isinstance(a, torch.device) else a for a in node.args)
    node.kwargs = {
        name: _DEVICE if isinstance(value, torch.device) else value
        for name, value in node.kwargs.items()
    }


def _dynamic_sizes(program: Any) -> Iterator[DynamicSize]:
    """Yield the sizes of inputs that are symbols, with their ranges where they have one."""
    places = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    inputs = [places[name].meta.get("val") for name in program.graph_signature.user_inputs
              if name in places]  # fmt: skip
    ranges = {str(symbol): found for symbol, found in program.range_constraints.items()}
    given = list(leaves(program.example_inputs))
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    if [t.dim() for t in tensors] != [t.dim() for t in given]:
        return
    for leaf, value in enumerate(tensors):
        for dim, size in enumerate(value.shape):
            if isinstance(size, torch.SymInt):
                found = ranges.get(str(size))
                yield DynamicSize(
                    leaf=leaf,
                    dim=dim,
                    least=_bound(found and found.lower),
                    most=_bound(found and found.upper),
                )


def _bound(value: Any) -> int | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return int(number) if math.isfinite(number) and number < 2**53 else None
