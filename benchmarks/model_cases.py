"""Whole models with few layers and random weights, in the phases that are measured.

The layers of a model are alike, so few of them show compile time and the step's products; there
are as many as make the weights exceed the second-level cache of 60 MB, as whole models' do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from blocks import GPT2, Bert, Decoder, DecoderSizes, Tokens, ViT
from torch import nn

PREFILL: Final = Tokens(new=512)
DECODE: Final = Tokens(batch=16, new=1, cached=511)

LLAMA_8B: Final = DecoderSizes(vocabulary=128256)
LLAMA_1B: Final = DecoderSizes(
    hidden=2048, intermediate=8192, head=64, layers=2, vocabulary=128256, tied=True
)
QWEN3_8B: Final = DecoderSizes(intermediate=12288, vocabulary=151936, query_key_norm=True)
TINY: Final = DecoderSizes(
    hidden=64, intermediate=128, heads=4, key_value_heads=2, head=16, layers=1, vocabulary=100
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model in a phase.

    Attributes:
        layers: of the model as measured.
        build: makes the model, on torch's default device.
        inputs: makes its inputs, on torch's default device.
    """

    layers: int
    build: Callable[[], nn.Module]
    inputs: Callable[[], torch.Tensor]


def _decoder(sizes: DecoderSizes, tokens: Tokens) -> Case:
    return Case(
        layers=sizes.layers,
        build=lambda: Decoder(sizes, tokens),
        inputs=lambda: torch.randint(0, sizes.vocabulary, (tokens.batch, tokens.new)),
    )


def _gpt2(layers: int, tokens: Tokens) -> Case:
    return Case(
        layers=layers,
        build=lambda: GPT2(layers, tokens),
        inputs=lambda: torch.randint(0, 50257, (tokens.batch, tokens.new)),
    )


SMOKE: Final = {"tiny": _decoder(TINY, Tokens(batch=2, new=1, cached=15))}
"""For trying the benchmark out, also without a GPU."""

CASES: Final[dict[str, Case]] = {
    "llama-3.1-8b decode": _decoder(LLAMA_8B, DECODE),
    "llama-3.1-8b prefill": _decoder(LLAMA_8B, PREFILL),
    "llama-3.2-1b decode": _decoder(LLAMA_1B, DECODE),
    "llama-3.2-1b prefill": _decoder(LLAMA_1B, PREFILL),
    "qwen3-8b decode": _decoder(QWEN3_8B, DECODE),
    "qwen3-8b prefill": _decoder(QWEN3_8B, PREFILL),
    "gpt2 decode": _gpt2(4, DECODE),
    "gpt2 prefill": _gpt2(4, PREFILL),
    "bert-base 1 x 512": Case(
        layers=4,
        build=lambda: Bert(4),
        inputs=lambda: torch.randint(0, 30522, (1, 512)),
    ),
    "vit-l/16 1 x 224": Case(
        layers=4, build=lambda: ViT(4), inputs=lambda: torch.randn(1, 3, 224, 224)
    ),
}


def made(case: Case, device: str) -> tuple[nn.Module, torch.Tensor]:
    """Return a model in bfloat16 with random weights, and its inputs.

    Weights have a standard deviation of 0.02, norms scale by 1, biases are small.
    """
    torch.manual_seed(0)
    with torch.device(device):
        model, inputs = case.build().to(torch.bfloat16).eval(), case.inputs()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
    if inputs.is_floating_point():
        inputs = inputs.to(torch.bfloat16)
    return model, inputs
