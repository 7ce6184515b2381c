"""Whether a device can run a kernel configuration: threads, tile sizes, shared memory.

This module imports nothing of torch. The figures are checked against the compiler's own
(``metadata.shared``) by ``tests/runtime/test_limits.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

_TILE: Final = ("BLOCK_M", "BLOCK_N", "BLOCK_K")
_SCALED_TMA: Final = "triton::scaled_mm_device_tma_epilogue_scaling"
_TMA: Final = "triton::mm_persistent_tma"
_LEAST_SCRATCH: Final = 16_384
_BARRIERS: Final = 16
"""Bytes that tell when the tensor memory accelerator has filled one copy of both tiles."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """What one block of threads may use on a device.

    Attributes:
        shared_memory: bytes, the opt-in limit of one block.
        threads: of one block.
        warp_size: threads of a warp (wavefront on ROCm).
        capability: (major, minor) compute capability.
        hip: whether it is an AMD GPU.
        tma_stores_in_loop: whether ``mm_persistent_tma`` stores its result inside of the
            pipelined loop, so that the tiles are still needed (2.10).
        scratch_per_thread: bytes that Triton takes at once to change a value's layout.
        retries_unpipelined: whether torch compiles a kernel that needs too much shared
            memory once more with one stage (``triton.dynamic_disable_pipelining``,
            2.13 and later).
    """

    shared_memory: int
    threads: int
    warp_size: int
    capability: tuple[int, int]
    hip: bool
    tma_stores_in_loop: bool
    scratch_per_thread: int
    retries_unpipelined: Callable[[], bool]


@dataclass(frozen=True, kw_only=True)
class Product:
    """What it depends on of a matrix product whether a configuration may be used.

    Attributes:
        element_size: bytes of an element of the operands, the larger one's.
        output_size: bytes of an element of the result.
        divides_k: whether the graph guarantees that a number divides K.
        less_than_k: whether the graph guarantees that a number is less than K.
        aligned: whether the graph guarantees that both operands begin at a multiple of 16
            bytes, if its inputs do.
        no_vector: whether the graph guarantees that M, N and K are all larger than 1.
    """

    element_size: int
    output_size: int
    divides_k: Callable[[int], bool]
    less_than_k: Callable[[int], bool]
    aligned: Callable[[], bool]
    no_vector: Callable[[], bool]


def problem(
    template_id: str, params: Mapping[str, Any], product: Product, device: Device
) -> str | None:
    """Return why a device cannot run a configuration of a matrix product, None if it can.

    Args:
        template_id: such as ``triton::mm``.
        params: all parameters of the template, ``ALLOW_TF32`` too; a template without tiles
            (ATen, subgraphs) has no limits.
        product: the op.
        device: the device.
    """
    if not all(type(params.get(name)) is int for name in _TILE):
        return None
    return next(_problems(template_id, params, product, device), None)


def _problems(
    template_id: str, params: Mapping[str, Any], product: Product, device: Device
) -> Iterator[str]:
    warps, stages, block_k = params["num_warps"], params["num_stages"], params["BLOCK_K"]
    threads = warps * device.warp_size
    if threads > device.threads:
        yield (
            f"num_warps={warps} is {threads} threads a block, the device has at most "
            f"{device.threads}"
        )
    if device.hip:
        yield from _problems_of_amd(params)
    else:
        if stages < 1:
            yield f"num_stages={stages}: CUDA needs at least 1"
        # triton/backends/nvidia/compiler.py, min_dot_size
        least = 32 if product.element_size == 1 else 16
        if block_k < least:
            yield f"BLOCK_K={block_k} is less than {least}, the least for this type"
    if "tma" in template_id:
        yield from _problems_of_tma(params, product)
    if template_id == "triton::mm_plus_mm" and not product.less_than_k(block_k):
        # LLVM fails where they are equal: torch/_inductor/template_heuristics/triton.py, 2.13,
        # MMPlusMMTemplateConfigMixin
        yield f"BLOCK_K={block_k} is not less than K for certain"
    yield from _problems_of_memory(template_id, params, product, device)


def _problems_of_amd(params: Mapping[str, Any]) -> Iterator[str]:
    """Yield what crashes the compiler (``ROCmConfigHeuristic`` in the same file, 2.13)."""
    nonkdim, kpack = params.get("matrix_instr_nonkdim") or 0, params.get("kpack") or 0
    if kpack == 2 and (nonkdim == 2 or params["BLOCK_K"] <= 16):
        yield f"kpack=2 with matrix_instr_nonkdim={nonkdim} and BLOCK_K={params['BLOCK_K']}"
    for name in ("BLOCK_M", "BLOCK_N"):
        if nonkdim and params[name] % nonkdim:
            yield f"{name}={params[name]} is no multiple of matrix_instr_nonkdim={nonkdim}"


def _problems_of_tma(params: Mapping[str, Any], product: Product) -> Iterator[str]:
    """Yield what is not safe (``TMAWorkspaceMixin``, ``BlackwellTMATemplateConfigMixin``)."""
    warps, stages = params["num_warps"], params["num_stages"]
    if warps == 2:
        yield "num_warps=2 is not safe with TMA"
    if not product.no_vector():
        # On an H200 the kernel for M=1 gives wrong numbers (torch 2.11 and 2.13): the stride of
        # a size of 1 says nothing, and the descriptors are made by it.
        yield "M, N and K are not all larger than 1 for certain, which TMA needs"
    if not product.aligned():
        yield "an operand does not begin at a multiple of 16 B for certain, which TMA needs"
    if params.get("WARP_SPECIALIZE") and (warps < 4 or stages < 2):
        yield f"num_warps={warps}, num_stages={stages}: specialised warps need 4 and 2 at least"


def _problems_of_memory(
    template_id: str, params: Mapping[str, Any], product: Product, device: Device
) -> Iterator[str]:
    needed, how = shared_memory(template_id, params, product, device), ""
    if needed > device.shared_memory and device.retries_unpipelined():
        unpipelined = {**params, "num_stages": 1}
        needed, how = (
            shared_memory(template_id, unpipelined, product, device),
            " even with one stage",
        )
    if needed > device.shared_memory:
        yield f"needs {needed} B of shared memory{how}, the device has {device.shared_memory}"


def shared_memory(
    template_id: str, params: Mapping[str, Any], product: Product, device: Device
) -> int:
    """Return the bytes of shared memory that Triton allocates for one block, or some more.

    Triton keeps ``num_stages`` copies of both tiles where a warp group's matrix unit reads
    them from shared memory while the next ones are on their way, and one copy less
    elsewhere. To store a result, or to fuse what follows into the kernel, it may change
    the result's layout through shared memory: where the tiles were, except in templates
    that store inside of the pipelined loop.
    """
    block_m, block_n, block_k = (int(params[name]) for name in _TILE)
    grouped = _by_warp_groups(params, product, device)
    copies = max(int(params["num_stages"]) - (not grouped), 1)
    tiles = copies * (block_m + block_n) * block_k * product.element_size
    result = 4 * block_m * block_n
    scratch = device.scratch_per_thread * device.warp_size * int(params["num_warps"])
    if product.element_size > 1:  # one-byte types are seen to take it whole
        result = min(result, max(scratch, _LEAST_SCRATCH))
    if "tma" in template_id:
        tiles += (copies + 1) * _BARRIERS
    if template_id == _SCALED_TMA or (template_id == _TMA and device.tma_stores_in_loop):
        stored = block_m * block_n * product.output_size
        return tiles + max(stored, min(result, scratch))
    return max(tiles, result)


def _by_warp_groups(params: Mapping[str, Any], product: Product, device: Device) -> bool:
    """Whether the product may run on a warp group's matrix unit (wgmma, tcgen05)."""
    return bool(
        device.capability >= (9, 0)
        and not device.hip
        and params["BLOCK_M"] >= 64
        and params["num_warps"] % 4 == 0
        and product.element_size <= (4 if params.get("ALLOW_TF32", True) else 2)
    )
