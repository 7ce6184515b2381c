"""The cases whose keys are recorded on a real GPU, for a real device or a simulated one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from real_models import (
    GPT2,
    LLAMA,
    QWEN,
    SMALL_LLAMA,
    T5,
    Bert,
    Decoder,
    DiT,
    LoRA,
    Mamba2,
    MoE,
    UNetBlock,
    ViT,
    Whisper,
)
from torch import nn
from torch.nn import functional

BF16 = torch.bfloat16
FP16 = torch.float16
FP32 = torch.float32
FP8 = torch.float8_e4m3fn
INT8 = torch.int8
INT64 = torch.int64


class Device(Protocol):
    """What a case asks of a device: a ``Simulation``, or a real one that is recorded."""

    def empty(self, *size: Any, dtype: Any = None) -> Any:
        """Return a contiguous tensor with any values."""

    def zeros(self, *size: Any, dtype: Any = None) -> Any:
        """Return a contiguous tensor of zeros."""

    def module(self, module: Callable[[], Any], dtype: Any = None) -> Any:
        """Build a module on the device, its floating-point tensors in a dtype."""


Built = tuple[Callable[..., Any], tuple[Any, ...]]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One function to compile.

    Attributes:
        build: returns the function and its arguments on a device.
        grad: the function returns a scalar that is differentiated.
        dynamic: as in ``torch.compile``.
        precision: as in ``torch.set_float32_matmul_precision``.
    """

    build: Callable[[Device], Built]
    grad: bool = False
    dynamic: bool | None = None
    precision: str = "highest"


def _tokens(device: Device, batch: int, length: int) -> Any:
    return device.zeros(batch, length, dtype=INT64)


def _decoder(shape: Any, length: int = 512) -> Case:
    def build(device: Device) -> Built:
        return device.module(lambda: Decoder(shape).eval(), BF16), (_tokens(device, 1, length),)

    return Case(build=build)


def _token_loss(logits: Any, tokens: Any) -> Any:
    """Return the loss of predicting each next token."""
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


def _language_training(make: Callable[[], Any], length: int) -> Case:
    def build(device: Device) -> Built:
        model = device.module(make, BF16)
        return lambda tokens: _token_loss(model(tokens), tokens), (_tokens(device, 1, length),)

    return Case(build=build, grad=True)


def _decode(device: Device) -> Built:
    model = device.module(lambda: Decoder(LLAMA).eval(), BF16)
    cache = (device.zeros(16, 8, 1024, 128, dtype=BF16) for _ in range(2))
    return model.decode, (_tokens(device, 16, 1), *cache, device.zeros(1, dtype=INT64))


def _gpt2(device: Device) -> Built:
    return device.module(lambda: GPT2().eval(), FP16), (_tokens(device, 1, 1024),)


def _bert_inputs(device: Device, batch: int = 8, length: int = 128) -> tuple[Any, Any]:
    return _tokens(device, batch, length), device.zeros(batch, length, dtype=torch.bool)


def _bert(dtype: Any, **settings: Any) -> Case:
    def build(device: Device) -> Built:
        return device.module(lambda: Bert().eval(), dtype), _bert_inputs(device)

    return Case(build=build, **settings)


def _bert_training(device: Device) -> Built:
    model = device.module(Bert, BF16)

    def loss(tokens: Any, present: Any, labels: Any) -> Any:
        return functional.cross_entropy(model(tokens, present).float(), labels)

    return loss, (*_bert_inputs(device, 16), device.zeros(16, dtype=INT64))


def _autocast_training(device: Device) -> Built:
    model = device.module(Bert, FP32)

    def loss(tokens: Any, present: Any, labels: Any) -> Any:
        with torch.autocast("cuda", BF16):
            scores = model(tokens, present)
        return functional.cross_entropy(scores.float(), labels)

    return loss, (*_bert_inputs(device), device.zeros(8, dtype=INT64))


def _bert_broken(device: Device) -> Built:
    return device.module(lambda: Bert(broken=True).eval(), BF16), _bert_inputs(device, 4, 64)


def _bert_dynamic(device: Device) -> Built:
    return device.module(lambda: Bert().eval(), BF16), _bert_inputs(device, 6, 96)


def _vit(device: Device) -> Built:
    images = device.empty(8, 3, 224, 224, dtype=BF16)
    return device.module(lambda: ViT().eval(), BF16), (images,)


def _vit_training(device: Device) -> Built:
    model = device.module(ViT, BF16)

    def loss(images: Any, labels: Any) -> Any:
        return functional.cross_entropy(model(images).float(), labels)

    return loss, (device.empty(8, 3, 224, 224, dtype=BF16), device.zeros(8, dtype=INT64))


def _dit(device: Device) -> Built:
    shapes = ((2, 256, 16), (2, 256), (2, 77, 768))
    inputs = tuple(device.empty(*shape, dtype=BF16) for shape in shapes)
    return device.module(lambda: DiT().eval(), BF16), inputs


def _unet(device: Device) -> Built:
    inputs = device.empty(2, 320, 32, 32, dtype=FP16), device.empty(2, 1280, dtype=FP16)
    return device.module(lambda: UNetBlock().eval(), FP16), inputs


def _moe_dense(device: Device) -> Built:
    return device.module(MoE, BF16), (device.empty(256, 2048, dtype=BF16),)


def _moe_grouped(device: Device) -> Built:
    return device.module(MoE, BF16).grouped, (device.empty(256, 2048, dtype=BF16),)


def _t5(device: Device) -> Built:
    tokens = _tokens(device, 4, 128), _tokens(device, 4, 64)
    return device.module(lambda: T5().eval(), BF16), tokens


def _whisper(device: Device) -> Built:
    sound = device.empty(2, 80, 3000, dtype=FP16)
    return device.module(lambda: Whisper().eval(), FP16), (sound,)


def _mamba2(device: Device) -> Built:
    return device.module(lambda: Mamba2().eval(), BF16), (device.empty(1, 512, 2048, dtype=BF16),)


def _lora_training(device: Device) -> Built:
    model = device.module(LoRA, BF16)
    return lambda x: model(x).float().pow(2).mean(), (device.empty(4, 256, 4096, dtype=BF16),)


def _mlp(*widths: int, bias: bool = True) -> nn.Module:
    pairs = itertools.pairwise(widths)
    layers = [layer for pair in pairs for layer in (nn.Linear(*pair, bias=bias), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def _mlp_dynamic(device: Device) -> Built:
    x = device.empty(48, 1024, dtype=BF16)
    torch._dynamo.mark_dynamic(x, 0)
    return device.module(lambda: _mlp(1024, 4096, 1024), BF16), (x,)


def _mlp_dynamic_training(device: Device) -> Built:
    model = device.module(lambda: _mlp(1024, 4096, 1024), BF16)
    x = device.empty(48, 1024, dtype=BF16)
    torch._dynamo.mark_dynamic(x, 0)
    return lambda x: model(x).float().pow(2).mean(), (x,)


def _odd_sizes(device: Device) -> Built:
    model = device.module(lambda: _mlp(77, 2500, 2501, 77, bias=False), BF16)
    return model, (device.empty(2047, 77, dtype=BF16),)


def _odd_sizes_bias(device: Device) -> Built:
    model = device.module(lambda: _mlp(1001, 2500, 1003), FP16)
    return model, (device.empty(1024, 1001, dtype=FP16),)


def _conv1x1(device: Device) -> Built:
    def make() -> nn.Module:
        return nn.Sequential(nn.Conv2d(256, 512, 1), nn.ReLU(), nn.Conv2d(512, 256, 1, bias=False))

    return device.module(make, BF16).eval(), (device.empty(8, 256, 28, 28, dtype=BF16),)


def _fp8_operands(device: Device) -> tuple[Any, Any]:
    return device.zeros(512, 4096, dtype=FP8), device.zeros(6144, 4096, dtype=FP8)


def _scaled(left: Any, right: Any, left_scale: Any, right_scale: Any) -> Any:
    return torch._scaled_mm(left, right.t(), left_scale, right_scale, out_dtype=BF16)


def _fp8_tensorwise(device: Device) -> Built:
    scales = (device.zeros((), dtype=FP32) for _ in range(2))
    return _scaled, (*_fp8_operands(device), *scales)


def _fp8_rowwise(device: Device) -> Built:
    scales = device.zeros(512, 1, dtype=FP32), device.zeros(1, 6144, dtype=FP32)
    return _scaled, (*_fp8_operands(device), *scales)


def _int8_products(device: Device) -> Built:
    def products(x: Any, weight: Any, y: Any, scale: Any) -> tuple[Any, Any]:
        return torch._int_mm(x, weight.t()), functional.linear(y, weight.to(y.dtype)) * scale

    weight = device.zeros(4096, 1024, dtype=INT8)
    y = device.empty(64, 1024, dtype=BF16)
    x = device.zeros(256, 1024, dtype=INT8)
    return products, (x, weight, y, device.empty(4096, dtype=BF16))


def _plain_products(device: Device) -> Built:
    def products(a: Any, b: Any, c: Any, x: Any, y: Any) -> tuple[Any, ...]:
        added = torch.baddbmm(y, x, x.transpose(1, 2), beta=0.5, alpha=2.0)
        return a @ b + b @ c, added, x @ x.mT

    matrices = tuple(device.empty(512, 512, dtype=BF16) for _ in range(3))
    batched = device.empty(16, 256, 128, dtype=BF16), device.empty(16, 256, 256, dtype=BF16)
    return products, (*matrices, *batched)


def _few_rows(device: Device) -> Built:
    def products(x: Any, y: Any, weight: Any, tall: Any) -> tuple[Any, ...]:
        return x @ weight, y @ weight, tall.t() @ tall

    rows = device.empty(1, 4096, dtype=BF16), device.empty(5, 4096, dtype=BF16)
    return products, (
        *rows,
        device.empty(4096, 4096, dtype=BF16),
        device.empty(32768, 32, dtype=BF16),
    )


def _grouped_query_mask(device: Device) -> Built:
    def attend(query: Any, key: Any, value: Any, mask: Any) -> Any:
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, enable_gqa=True
        )

    key, value = (device.empty(4, 8, 256, 128, dtype=BF16) for _ in range(2))
    mask = device.zeros(4, 1, 64, 256, dtype=BF16)
    return attend, (device.empty(4, 32, 64, 128, dtype=BF16), key, value, mask)


CASES: dict[str, Case] = {
    "llama_prefill": _decoder(LLAMA),
    "llama_decode": Case(build=_decode),
    "llama_training": _language_training(lambda: Decoder(SMALL_LLAMA), 512),
    "qwen_prefill": _decoder(QWEN, 300),
    "gpt2": Case(build=_gpt2),
    "gpt2_training": _language_training(GPT2, 512),
    "bert": _bert(BF16),
    "bert_training": Case(build=_bert_training, grad=True),
    "vit": Case(build=_vit),
    "dit": Case(build=_dit),
    "moe_dense": Case(build=_moe_dense),
    "moe_grouped": Case(build=_moe_grouped),
    "t5": Case(build=_t5),
    "mlp_dynamic": Case(build=_mlp_dynamic),
    "bert_dynamic": Case(build=_bert_dynamic, dynamic=True),
    "whisper": Case(build=_whisper),
    "mamba2": Case(build=_mamba2),
    "unet": Case(build=_unet),
    "fp8_tensorwise": Case(build=_fp8_tensorwise),
    "fp8_rowwise": Case(build=_fp8_rowwise),
    "odd_sizes": Case(build=_odd_sizes),
    "odd_sizes_bias": Case(build=_odd_sizes_bias),
    "plain_products": Case(build=_plain_products),
    "few_rows": Case(build=_few_rows),
    "int8_products": Case(build=_int8_products),
    "conv1x1": Case(build=_conv1x1),
    "grouped_query_mask": Case(build=_grouped_query_mask),
    "bert_fp16": _bert(FP16),
    "bert_fp32": _bert(FP32),
    "bert_tf32": _bert(FP32, precision="high"),
    "bert_autocast_training": Case(build=_autocast_training, grad=True),
    "bert_graph_break": Case(build=_bert_broken),
    "lora_training": Case(build=_lora_training, grad=True),
    "mlp_dynamic_training": Case(build=_mlp_dynamic_training, grad=True),
    "llama_checkpointed": _language_training(lambda: Decoder(SMALL_LLAMA, checkpointed=True), 512),
    "vit_training": Case(build=_vit_training, grad=True),
}
"""By name; what matters most first, for a recording that runs out of time."""
