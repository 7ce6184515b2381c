"""Real tensors of a few elements that Inductor makes "on the device" while it lowers."""

from __future__ import annotations

from typing import Any

from inductor_tables.simulation.patching import Patches


def patch_small_tensors(patches: Patches) -> None:
    """Make them on the CPU: constant folding computes on them; 2.10 makes the TMA workspace so."""
    import torch._inductor.constant_folding as constant_folding
    import torch._inductor.fx_passes.joint_graph as joint_graph
    import torch._inductor.select_algorithm as select_algorithm

    patches.wrap(constant_folding.ConstantFolder, "run", _on_cpu)
    patches.wrap(joint_graph.UniformValueConstantFolder, "__init__", _on_cpu)
    patches.wrap(select_algorithm.TritonTemplate, "generate", _on_cpu)


def _on_cpu(function: Any, *args: Any, **kwargs: Any) -> Any:
    with _cuda_means_cpu():
        return function(*args, **kwargs)


def _cuda_means_cpu() -> Any:
    """Return a mode in which every operation that names the device gets the CPU instead."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    def moved(value: Any) -> Any:
        is_cuda = isinstance(value, torch.device) and value.type == "cuda"
        return torch.device("cpu") if is_cuda else value

    class CudaMeansCpu(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = {name: moved(value) for name, value in (kwargs or {}).items()}
            return func(*map(moved, args), **kwargs)

    return CudaMeansCpu()
