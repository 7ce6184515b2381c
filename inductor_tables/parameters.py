"""Which parameters of an entry a table may decide, and which the running process does.

A recording holds everything the host's heuristic set: tuning choices, but also facts of
the recorded graph (``EVEN_K``), of its device (``NUM_SMS``) and of the recording
process (``ACC_TYPE``, ``ALLOW_TF32``). Only the tuning choices are a table's to make.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from inductor_tables.schema import Config, is_param_value

REQUIRED: Final = frozenset({"BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages", "k_split"})
"""Tuning choices that an entry must make where the template takes them."""

TUNING: Final = REQUIRED | frozenset(
    {"GROUP_M", "kpack", "matrix_instr_nonkdim", "waves_per_eu", "EPILOGUE_SUBTILE"}
)
"""All tuning choices. Whatever else the heuristic sets, it sets for this graph."""


_SCALE_TILES: Final = (
    ("MIN_BLOCK_TILE_AM", "BLOCK_M", "TILE_SIZE_A"),
    ("MIN_BLOCK_TILE_AK", "BLOCK_K", "TILE_SIZE_A"),
    ("MIN_BLOCK_TILE_BK", "BLOCK_K", "TILE_SIZE_B"),
    ("MIN_BLOCK_TILE_BN", "BLOCK_N", "TILE_SIZE_B"),
)


def recordable(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of a choice's parameters belongs into an entry.

    Tuning choices, and of the rest what a table may hold: an ATen choice's ``out_dtype``
    is a torch.dtype object, which no look-up would read.
    """
    return {n: value for n, value in params.items() if n in TUNING or is_param_value(value)}


def merge(
    config: Config, base: Mapping[str, Any], divides_k: Callable[[int], bool]
) -> dict[str, Any] | str:
    """Return the parameters to run an entry with, or why it cannot run here.

    Args:
        config: the entry.
        base: the parameters that the running heuristic sets for the same template, of
            any of its configurations.
        divides_k: whether the graph guarantees that a number divides K.
    """
    chosen = {name: value for name, value in config.params if name in TUNING}
    if not chosen.keys() <= base.keys():
        unknown = [name for name in chosen if name not in base]
        return f"the template takes no {', '.join(unknown)} here"
    missing = sorted(name for name in REQUIRED if name in base and name not in chosen)
    if missing:
        return f"the entry lacks {', '.join(missing)}"
    wrong = [name for name, value in chosen.items() if not _fits(name, value, base[name])]
    if wrong:
        return ", ".join(f"{name}={chosen[name]!r} is not a value it can have" for name in wrong)
    merged = {**base, **chosen}
    _derive(merged)
    if "EVEN_K" in merged:  # recorded for the recorded sizes; this graph may promise less
        merged["EVEN_K"] = divides_k(merged["BLOCK_K"])
    if "k_split" in merged and not divides_k(merged["k_split"]):
        return f"k_split={merged['k_split']} does not divide K for certain"
    return merged


def _derive(params: dict[str, Any]) -> None:
    """Set what the host's heuristics compute from a tile, for the tile that was chosen.

    ``CUDAScaledTMAMainLoopScalingTemplateConfigHeuristic``
    (``torch/_inductor/template_heuristics/triton.py``).
    """
    for name, block, tile in _SCALE_TILES:
        if name in params:
            params[name] = min(params[block], params[tile])


def _fits(name: str, value: Any, base: Any) -> bool:
    if type(value) is not int:
        return value is None and base is None
    if name in REQUIRED and name not in ("num_stages", "k_split"):
        return 0 < value <= 2**12 and value & (value - 1) == 0  # Triton: powers of two
    least = 1 if name == "GROUP_M" else 0  # the kernels divide by it
    return least <= value <= 2**12


def kernel_text(template_id: str, params: Mapping[str, Any]) -> str:
    """Return a template and its tuning choices: ``triton::mm 64x128x32, 4 warps, 3 stages``."""
    tuning = {name: value for name, value in params.items() if name in TUNING}
    block = [tuning.pop(f"BLOCK_{side}", None) for side in "MNK"]
    parts = [template_id] if None in block else [f"{template_id} {'x'.join(map(str, block))}"]
    for name, unit in (("num_warps", "warps"), ("num_stages", "stages")):
        if name in tuning:
            parts.append(f"{tuning.pop(name)} {unit}")
    return ", ".join([*parts, *(f"{name}={tuning[name]}" for name in sorted(tuning))])
