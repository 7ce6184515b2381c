"""Which kernel ``scaled_dot_product_attention`` takes on the simulated device.

torch asks a function of the CUDA build, which asks the device.  A CPU build falls back on the
plain formula, so that a graph would hold two matrix products that a real run has not.  The rule
here is an approximation of ``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp``.
"""

from __future__ import annotations

from typing import Any

import torch

from inductor_tables.simulation.patching import Patches

_FLASH_MAX_HEAD = 256
_FLASH_HEAD_MULTIPLE = 8
_CUDNN_MAX_HEAD = 128
_CUDNN_FIRST = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 11)


def patch_attention(patches: Patches) -> None:
    """Decide for the simulated device, in the place of the composite kernel."""
    op = torch.ops.aten.scaled_dot_product_attention.default
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    kernels: dict[Any, Any] = op.py_kernels
    before = kernels.get(key)

    def restore() -> None:
        kernels.pop(key)
        if before is not None:
            kernels[key] = before
        op._dispatch_cache.clear()

    kernels[key] = _attention
    op._dispatch_cache.clear()
    patches.callback(restore)
    patches.names.append(f"{op}.py_kernels")


def _attention(  # noqa: PLR0917 - the operator's own signature
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    heads = (query, key, value)
    settings: dict[str, Any] = {"dropout_p": dropout_p, "is_causal": is_causal, "scale": scale}
    if _takes_flash(query, value, attn_mask):
        return _flash(*heads, **settings)
    if not enable_gqa and _takes_efficient(query, attn_mask):
        return _efficient(*heads, attn_mask, **settings)
    if enable_gqa and _takes_cudnn(query, value, attn_mask):
        return _cudnn(*heads, attn_mask, **settings)
    op: Any = torch.ops.aten.scaled_dot_product_attention.default
    return op._op_dk(
        torch._C.DispatchKey.CompositeImplicitAutograd,
        *(*heads, attn_mask, dropout_p, is_causal),
        scale=scale,
        enable_gqa=enable_gqa,
    )


def _fused_kernels_apply(query: Any) -> bool:
    return query.device.type == "cuda" and query.dim() == 4 and not query.is_nested


def _takes_flash(query: Any, value: Any, attn_mask: Any) -> bool:
    head = query.shape[-1]
    return bool(
        _fused_kernels_apply(query)
        and torch.backends.cuda.flash_sdp_enabled()
        and attn_mask is None
        and query.dtype in (torch.float16, torch.bfloat16)
        and head == value.shape[-1]
        and head <= _FLASH_MAX_HEAD
    )


def _takes_efficient(query: Any, attn_mask: Any) -> bool:
    return bool(
        _fused_kernels_apply(query)
        and torch.backends.cuda.mem_efficient_sdp_enabled()
        and not (attn_mask is not None and attn_mask.requires_grad)
    )


def _takes_cudnn(query: Any, value: Any, attn_mask: Any) -> bool:
    """Say whether cuDNN's kernel, the only one for grouped heads with a mask, is taken.

    It comes before the plain formula on compute capability 9 and 10 where cuDNN is newer than
    9.15, which the wheels of torch 2.11 and later bring.  Where flash or the efficient kernel
    would do, it comes before these too, and leaves the graph's matrix products as they are.
    """
    return bool(
        _fused_kernels_apply(query)
        and _CUDNN_FIRST
        and torch.version.hip is None
        and torch.cuda.get_device_capability()[0] in (9, 10)
        and torch.backends.cuda.cudnn_sdp_enabled()
        and query.dtype in (torch.float16, torch.bfloat16)
        and all(x.shape[-1] <= _CUDNN_MAX_HEAD and x.shape[-1] % 8 == 0 for x in (query, value))
        and value.shape[2] != 1
        and not (attn_mask is not None and attn_mask.requires_grad)
    )


def _flash(
    query: Any, key: Any, value: Any, *, dropout_p: float, is_causal: bool, scale: float | None
) -> Any:
    head = query.shape[-1]
    scale = float(head) ** -0.5 if scale is None else scale
    missing = -head % _FLASH_HEAD_MULTIPLE
    if missing:
        query, key, value = (torch.nn.functional.pad(t, (0, missing)) for t in (query, key, value))
    out = torch.ops.aten._scaled_dot_product_flash_attention.default(
        query, key, value, dropout_p, is_causal, False, scale=scale
    )[0]
    return out[..., :head] if missing else out


def _cudnn(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any,
    *,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> Any:
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = _as_bias(attn_mask, query.dtype)
    tensors = (query, key, value)
    return torch.ops.aten._scaled_dot_product_cudnn_attention.default(
        *tensors, attn_mask, _is_trained(*tensors), dropout_p, is_causal, False, scale=scale
    )[0]


def _efficient(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any,
    *,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> Any:
    tensors = (query, key, value)
    bias = None if attn_mask is None else _bias(attn_mask, query, key)
    return torch.ops.aten._scaled_dot_product_efficient_attention.default(
        *tensors, bias, _is_trained(*tensors), dropout_p, is_causal, scale=scale
    )[0]


def _is_trained(*tensors: Any) -> bool:
    """Say whether a gradient will be asked for, which needs the kernel's logsumexp."""
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def _as_bias(mask: Any, dtype: Any) -> Any:
    """Turn a mask of true where to attend into what is added to the scores."""
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask.logical_not(), float("-inf"))


def _bias(mask: Any, query: Any, key: Any) -> Any:
    if mask.dtype == torch.bool:
        mask = _as_bias(mask, query.dtype)
    if mask.dim() == 2:
        mask = mask[None, None]
    return mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
