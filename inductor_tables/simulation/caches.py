"""Leave nothing in a cache that a real compile could meet, in memory or on disk."""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from torch._functorch import config as functorch_config
from torch._inductor import config
from torch._inductor.async_compile import AsyncCompile
from torch._subclasses.fake_tensor import FakeTensorMode

from inductor_tables.simulation.patching import Patches

# Modules whose lru_caches may hold an answer of the device, or a patched function of torch.cuda;
# prefixes.  Not torch._inductor's fx_passes: clearing theirs registers every pattern twice.
_DEVICE_MODULES = (
    "torch._dynamo.device_interface",
    "torch._dynamo.variables.torch",
    "torch._inductor.analysis",
    "torch._inductor.choices",
    "torch._inductor.codecache",
    "torch._inductor.codegen",
    "torch._inductor.compile_fx",
    "torch._inductor.heuristics",
    "torch._inductor.kernel",
    "torch._inductor.lookup_table",
    "torch._inductor.runtime.benchmarking",
    "torch._inductor.runtime.hints",
    "torch._inductor.select_algorithm",
    "torch._inductor.template_heuristics",
    "torch._inductor.utils",
    "torch.cuda",
    "torch.utils._triton",
)

# Caches of the installed software, dear to fill, and of registrations that may run once.
_KEEP = frozenset(
    {
        "_triton_kernel_hash",
        "get_triton_version",
        "has_triton_package",
        "init_backend_registration",
        "make_kernel_call",
        "process_pool",
        "torch_key",
        "triton_key",
    }
)


def clear_device_caches() -> None:
    """Empty the lru_caches that may hold an answer of the device, and fake tensors' cache."""
    for cached in _device_caches():
        cached.cache_clear()
    FakeTensorMode.cache_clear()  # meta functions look at torch.version.hip


def _device_caches() -> Iterator[Any]:
    for name, module in list(sys.modules.items()):
        if module is None or not name.startswith(_DEVICE_MODULES):
            continue
        classes = [v for v in vars(module).values() if isinstance(v, type) and v.__module__ == name]
        for owner in (module, *classes):
            yield from _caches_of(owner, name)


def _caches_of(owner: Any, module: str) -> Iterator[Any]:
    for name, value in list(vars(owner).items()):
        function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        if not isinstance(function, functools._lru_cache_wrapper) or name in _KEEP:
            continue
        # A function imported from elsewhere is the other module's business.
        if getattr(function, "__module__", module).startswith(_DEVICE_MODULES):
            yield function


def patch_settings(patches: Patches) -> str:
    """Switch caches on disk and worker processes off; return a folder that dies with the patches.

    A disk cache filled here carries the simulated device's name: a real run would hit it, and a
    hit skips lowering.  ``force_disable_caches`` would leave a cache folder behind per compile.
    """
    folder = patches.enter_context(tempfile.TemporaryDirectory(prefix="inductor_simulation_"))
    _patch_environment(patches, folder)
    patches.enter_context(
        config.patch(
            {
                "autotune_in_subproc": False,
                "autotune_local_cache": False,
                "autotune_remote_cache": False,
                "compile_threads": 1,
                "fx_graph_cache": False,
                "fx_graph_remote_cache": False,
                "triton.autotune_at_compile_time": False,
            }
        )
    )
    patches.enter_context(
        functorch_config.patch(
            {
                "enable_autograd_cache": False,
                # The backward graph is otherwise lowered by .backward(), which cannot run.
                "force_non_lazy_backward_lowering": True,
                # Checkpointing would take the device's random generator; it can keep a state.
                "graphsafe_rng_functionalization": False,
            }
        )
    )
    _patch_workers(patches)
    return folder


def _patch_environment(patches: Patches, folder: str) -> None:
    """Point both caches at the folder; a compile also writes TRITON_CACHE_DIR by itself."""
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        patches.callback(_set_environment, name, os.environ.get(name))
        os.environ[name] = os.path.join(folder, name.lower())


def _set_environment(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _patch_workers(patches: Patches) -> None:
    """Start no compile workers: they would inherit none of the patches."""
    nothing = classmethod(lambda _cls: None)
    patches.replace(AsyncCompile, "wakeup", nothing, if_present=True)
    patches.replace(AsyncCompile, "warm_pool", nothing, if_present=True)
