"""Real tensors of a few elements that Inductor makes "on the device" while it lowers."""

from __future__ import annotations

from typing import Any

import torch
from torch._inductor import constant_folding, select_algorithm
from torch._inductor.fx_passes import joint_graph
from torch.utils._python_dispatch import TorchDispatchMode

from inductor_tables.simulation.patching import Patches


def patch_small_tensors(patches: Patches) -> None:
    """Make them on the CPU: constant folding computes on them; 2.10 makes the TMA workspace so."""
    patches.wrap(constant_folding.ConstantFolder, "run", _on_cpu)
    patches.wrap(joint_graph.UniformValueConstantFolder, "__init__", _on_cpu)
    patches.wrap(select_algorithm.TritonTemplate, "generate", _on_cpu)


def _on_cpu(function: Any, *args: Any, **kwargs: Any) -> Any:
    with _CudaMeansCpu():
        return function(*args, **kwargs)


class _CudaMeansCpu(TorchDispatchMode):  # type: ignore[misc]  # torch's types are not followed
    """Gives every operation that names the device the CPU instead."""

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        moved = {name: _moved(value) for name, value in (kwargs or {}).items()}
        return func(*map(_moved, args), **moved)


def _moved(value: Any) -> Any:
    is_cuda = isinstance(value, torch.device) and value.type == "cuda"
    return torch.device("cpu") if is_cuda else value
