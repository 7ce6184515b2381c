"""Copies of models and inputs whose tensors are elsewhere; the originals stay as they are."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

ToTensor = Callable[[torch.Tensor], torch.Tensor]


def leaves(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors inside tuples, lists and dicts, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from leaves(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from leaves(item)


def replace_tensors(module: Any, to: ToTensor) -> Any:
    """Replace every parameter, buffer and tensor attribute of a module in place, and return it."""
    known: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in known:
            known[id(tensor)] = (tensor, _like(tensor, to(tensor)))
        return known[id(tensor)][1]

    for part in module.modules():
        named = [
            *part.named_parameters(recurse=False, remove_duplicate=False),
            *part.named_buffers(recurse=False, remove_duplicate=False),
            *((n, value) for n, value in vars(part).items() if isinstance(value, torch.Tensor)),
        ]
        for name, tensor in named:
            setattr(part, name, moved(tensor))
    return module


def _like(tensor: torch.Tensor, moved: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, torch.nn.Parameter) and not isinstance(moved, torch.nn.Parameter):
        return torch.nn.Parameter(moved.detach(), requires_grad=tensor.requires_grad)
    return moved


class Mover:
    """Copies models and inputs to where two functions put tensors and modules.

    What it meets twice is copied once.
    """

    def __init__(
        self, tensor: ToTensor, module: Callable[[torch.nn.Module], torch.nn.Module]
    ) -> None:
        self._tensor = tensor
        self._module = module
        self._known: dict[int, tuple[Any, Any]] = {}

    def __call__(self, value: Any) -> Any:
        """Return a copy of a module, function or input.

        A function gets copies of the modules and tensors that it has as free variables, as
        defaults or as globals, and a method one of its object. An object of another type is
        copied if a tensor is in its attributes, however deep, and returned as it is if not.
        """
        if id(value) not in self._known:
            self._known[id(value)] = (value, value)  # what refers to itself ends here
            self._known[id(value)] = (value, self._moved(value))
        return self._known[id(value)][1]

    def _moved(self, value: Any) -> Any:
        rules: Sequence[tuple[type, Callable[[Any], Any]]] = (
            (torch.Tensor, self._tensor),
            (torch.nn.Module, self._module),
            (types.MethodType, lambda v: types.MethodType(v.__func__, self(v.__self__))),
            (types.FunctionType, self._function),
            (functools.partial, self._partial),
            (tuple, self._tuple),
        )
        for kind, rule in rules:
            if isinstance(value, kind):
                return rule(value)
        if type(value) is list:
            return list(map(self, value))
        if type(value) is dict:
            return {name: self(item) for name, item in value.items()}
        return self._object(value)

    def _partial(self, value: functools.partial[Any]) -> functools.partial[Any]:
        return functools.partial(self(value.func), *self(value.args), **self(value.keywords))

    def _tuple(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        items = map(self, value)
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)

    def _function(self, function: types.FunctionType) -> Any:
        cells = [(cell, _content(cell)) for cell in function.__closure__ or ()]
        moved = [self(content) for _, content in cells]
        read = {name: function.__globals__.get(name) for name in function.__code__.co_names}
        held = {n: v for n, v in read.items() if isinstance(v, torch.Tensor | torch.nn.Module)}
        defaults = self(function.__defaults__), self(function.__kwdefaults__)
        changed = any(new is not old for (_, old), new in zip(cells, moved, strict=True))
        if not (held or changed or next(leaves(defaults), None) is not None):
            return function
        copied = types.FunctionType(
            function.__code__,
            {**function.__globals__, **self(held)} if held else function.__globals__,
            function.__name__,
            defaults[0],
            tuple(
                cell if new is old else types.CellType(new)
                for (cell, old), new in zip(cells, moved, strict=True)
            ),
        )
        copied.__kwdefaults__ = defaults[1]
        return copied

    def _object(self, value: Any) -> Any:
        tensors = _tensors_in(value)
        # A copy that finds the moved tensors in its memo takes them for the originals.
        return copy.deepcopy(value, {id(t): self(t) for t in tensors}) if tensors else value


def _tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors in an object's attributes and in what these hold."""
    found: list[torch.Tensor] = []
    seen: set[int] = set()
    left = [value]
    while left:
        held = left.pop()
        if id(held) in seen or isinstance(held, _NEVER_LOOKED_INTO):
            continue
        seen.add(id(held))
        if isinstance(held, torch.Tensor):
            found.append(held)
            continue
        if isinstance(held, Mapping):
            left += held.values()
        elif isinstance(held, tuple | list | set):
            left += held
        left += getattr(held, "__dict__", {}).values()
    return found


_NEVER_LOOKED_INTO = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return None
