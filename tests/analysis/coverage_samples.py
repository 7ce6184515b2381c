"""Coverage records that look like real ones, and some that nobody should ever see."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from inductor_tables.analysis.records import Coverage, Gemm, Neighbour
from inductor_tables.decisions import Outcome
from inductor_tables.keys import ParsedKey, TensorKey

H200: Final = "NVIDIA H200"
PEAK_TFLOPS: Final = {"bfloat16": 989.0, "float16": 989.0, "float8_e4m3fn": 1979.0, "float32": 67.0}
PEAK_GB_S: Final = 4800.0
BYTES_OF: Final = {"bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float32": 4}

LAYERS: Final = 32
LINEARS: Final = {
    # name: (N, K, modules of a layer)
    "self_attn.q": (4096, 4096, ("self_attn.q_proj", "self_attn.o_proj")),
    "self_attn.kv": (1024, 4096, ("self_attn.k_proj", "self_attn.v_proj")),
    "mlp.up": (14336, 4096, ("mlp.gate_proj", "mlp.up_proj")),
    "mlp.down": (4096, 14336, ("mlp.down_proj",)),
}
TILES: Final = (
    (64, 128, 128, 4, 4),
    (128, 256, 64, 8, 3),
    (128, 128, 64, 8, 4),
    (64, 64, 128, 4, 5),
)

HOSTILE: Final = (
    "</script><script>window.hostile=1</script>",
    "</style></template></table><img src=x onerror='window.hostile=1'>",
    '"><svg onload=window.hostile=1>{{7*7}}{% raw %}<!--',
    "a\x00b\x1b[31mc\r\nd\u202ee\u2028f\ud800g&lt;",
)
"""Texts that are no markup, whatever they look like; the last one is hardly text."""


def gemm(
    *,
    m: int,
    n: int,
    k: int,
    batch: int = 1,
    op_name: str = "mm",
    dtype: str = "bfloat16",
    outcome: Outcome = "hit",
    efficiency: float = 0.7,
    **fields: Any,
) -> Gemm:
    """Return a product with its key, sizes and roofline.

    A hit gets a kernel, a recorded time at ``efficiency`` of the roofline and an alternative; a
    miss a neighbour and advice; a drop its reason.
    """
    flops = 2 * batch * m * n * k
    moved = batch * (m * k + k * n + m * n) * BYTES_OF[dtype]
    roofline_us = max(flops / PEAK_TFLOPS[dtype] / 1e6, moved / PEAK_GB_S / 1e3)
    sample: dict[str, Any] = {
        "op_name": op_name,
        "key": key_of(op_name, (batch, m, n, k), dtype),
        "phase": "inference",
        "count": 1,
        "targets": ("model",),
        "origins": ("proj",),
        "batch": batch,
        "m": m,
        "n": n,
        "k": k,
        "dtype": dtype,
        "outcome": outcome,
        "flops": flops,
        "bytes": moved,
        "roofline_us": roofline_us,
        **_OUTCOMES[outcome](m, n, k, round(roofline_us / efficiency, 2)),
    }
    return Gemm(**{**sample, **fields})


def key_of(op_name: str, sizes: tuple[int, int, int, int], dtype: str) -> str:
    """Return the key of ``(batch, M, K) @ (batch, K, N)`` with a column-major weight.

    ``sizes`` are batch, M, N and K.
    """
    batch, m, n, k = sizes
    lead, left, right = ((batch,), (m * k,), (k * n,)) if batch > 1 else ((), (), ())
    inputs = [
        TensorKey(dtype=dtype, size=(*lead, m, k), stride=(*left, k, 1)),
        TensorKey(dtype=dtype, size=(*lead, k, n), stride=(*right, 1, k)),
    ]
    scalars: tuple[tuple[str, str], ...] = ()
    if op_name == "addmm":
        inputs.insert(0, TensorKey(dtype=dtype, size=(m, n), stride=(0, 1)))
        scalars = (("alpha", "1"), ("beta", "1"))
    return str(ParsedKey(device=H200, inputs=tuple(inputs), scalars=scalars, op_name=op_name))


def params_of(tile: int) -> dict[str, Any]:
    """Return a Triton kernel's parameters."""
    block_m, block_n, block_k, warps, stages = TILES[tile % len(TILES)]
    return {
        "ACC_TYPE": "tl.float32",
        "BLOCK_K": block_k,
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "EVEN_K": True,
        "GROUP_M": 8,
        "USE_FAST_ACCUM": False,
        "hint_override": None,
        "num_stages": stages,
        "num_warps": warps,
    }


def _hit(m: int, n: int, k: int, time_us: float) -> dict[str, Any]:
    tile = (m + n // 1024 + k // 1024) % 5
    triton = [("triton::mm", params_of(tile + i)) for i in range(3)]
    ranked = [("aten::mm", {}), *triton] if tile == 4 else [*triton, ("aten::mm", {})]
    (template_id, params), *others = ranked
    slower = [round(time_us * (1 + 0.021 * (tile + 1) * i), 2) for i in (1, 2, 4)]
    return {
        "template_id": template_id,
        "params": params,
        "table": "2.13/nvidia-h200/gemm.msgpack 2026.12",
        "time_us": time_us,
        "margin": slower[0] / time_us - 1,
        "alternatives": tuple(
            {"template_id": name, "params": found, "time_us": us}
            for (name, found), us in zip(others, slower, strict=True)
        ),
    }


def _miss(m: int, n: int, k: int, _time_us: float) -> dict[str, Any]:
    return {
        "nearest": (
            Neighbour(
                key=key_of("mm", (1, 512, n, k), "bfloat16"),
                differences=(f"M {m}, table has 512",),
            ),
            Neighbour(
                key=key_of("mm", (1, m, n - 64, k), "bfloat16"),
                differences=(
                    f"N {n}, table has {n - 64}",
                    "stride: weight is column-major, table has row-major",
                ),
            ),
        ),
        "advice": f"record M={m} on the device, or pad the tokens to 512",
    }


def _dropped(_m: int, _n: int, _k: int, _time_us: float) -> dict[str, Any]:
    return {
        "table": "2.13/nvidia-h200/gemm.msgpack 2026.12",
        "dropped": (
            "triton::mm: template hash: expected d99842e46680, found 5b1c07aa93ef",
            "triton::mm_persistent_tma: needs 655,360 bytes of shared memory, device has 232,448",
        ),
        "advice": "rebuild the table for the templates of torch 2.13.0",
    }


_OUTCOMES: Final = {"hit": _hit, "miss": _miss, "dropped": _dropped}


def llama() -> Coverage:
    """Return Llama 3 8B at six token counts and one training step, and what else a server runs."""
    return coverage(*_llama())


def _llama() -> Iterator[Gemm]:
    for i, tokens in enumerate((1, 16, 64, 512, 2048, 8192)):
        for j, (n, k, modules) in enumerate(LINEARS.values()):
            yield gemm(
                m=tokens,
                n=n,
                k=k,
                outcome=_outcome(tokens, j),
                efficiency=0.45 + 0.06 * ((3 * i + 2 * j) % 7),
                count=LAYERS * len(modules),
                origins=tuple(f"model.layers.{i}.{m}" for i in range(LAYERS) for m in modules),
                targets=(f"Llama 3 8B, tokens={tokens}",),
            )
    yield gemm(
        m=1,
        n=128256,
        k=4096,
        count=6,
        origins=("lm_head",),
        targets=tuple(f"Llama 3 8B, tokens={tokens}" for tokens in (1, 16, 64, 512, 2048, 8192)),
        efficiency=0.88,
    )
    yield from _training(2048)
    yield from _rest()


def _outcome(tokens: int, linear: int) -> Outcome:
    if tokens == 8192 and linear == 3:
        return "dropped"
    return "miss" if tokens == 8192 or (tokens == 512 and linear > 1) else "hit"


def _training(tokens: int) -> Iterator[Gemm]:
    """Yield the two products of each linear layer's backward pass."""
    for j, (n, k, modules) in enumerate(LINEARS.values()):
        for m_, n_, k_ in ((tokens, k, n), (n, k, tokens)):
            yield gemm(
                m=m_,
                n=n_,
                k=k_,
                outcome="hit" if j < 2 else "miss",
                efficiency=0.61 + 0.05 * j,
                phase="backward",
                count=LAYERS * len(modules),
                origins=tuple(f"model.layers.{i}.{m}" for i in range(LAYERS) for m in modules),
                targets=(f"Llama 3 8B training step, tokens={tokens}",),
            )


def _rest() -> Iterator[Gemm]:
    def encoder(op_name: str, where: str, **fields: Any) -> Gemm:
        targets = ("reranker (BERT-large), batch=8",)
        return gemm(op_name=op_name, origins=(where,), targets=targets, **fields)

    def quantized(module: str, **fields: Any) -> Gemm:
        targets = ("Llama 3 8B fp8, tokens=64",)
        return gemm(origins=(f"model.layers.0.{module}",), targets=targets, **fields)

    query, dense = "encoder.layer.0.attention.self.query", "encoder.layer.0.intermediate.dense"
    line = "serving/rerank/score.py:118"
    yield encoder("addmm", query, m=4096, n=1024, k=1024, count=96, efficiency=0.52)
    yield encoder("addmm", dense, m=4096, n=4096, k=1024, count=24, outcome="dropped")
    yield encoder("bmm", line, m=512, n=512, k=64, batch=128, count=24, efficiency=0.31)
    yield encoder("bmm", line, m=512, n=64, k=512, batch=128, count=24, outcome="miss")
    yield encoder("addmm", "classifier", m=8, n=2, k=1024, dtype="float32", outcome="miss")
    fp8: Any = {"op_name": "scaled_mm", "dtype": "float8_e4m3fn"}
    yield quantized("mlp.gate_proj", m=64, n=14336, k=4096, count=64, efficiency=0.66, **fp8)
    yield quantized("mlp.down_proj", m=64, n=4096, k=14336, count=32, outcome="miss", **fp8)
    untimed: Any = {"time_us": None, "margin": None, "alternatives": ()}
    yield quantized("self_attn.q_proj", m=256, n=4096, k=4096, count=64, **untimed)


def many(number: int) -> Coverage:
    """Return a coverage of so many products, each with 32 origins."""
    outcomes: tuple[Outcome, ...] = ("hit", "hit", "miss", "hit", "dropped")
    return coverage(
        *(
            gemm(
                m=16 * (1 + i // 40),
                n=1024 * (1 + i % 8),
                k=512 * (1 + i // 8 % 5),
                op_name=("mm", "addmm")[i % 2],
                outcome=outcomes[i % len(outcomes)],
                efficiency=0.2 + 0.01 * (i % 73),
                count=LAYERS,
                origins=tuple(
                    f"model.layers.{layer}.block_{i % 11}.proj" for layer in range(LAYERS)
                ),
                targets=(f"model {i % 6}",),
            )
            for i in range(number)
        )
    )


def hostile() -> Coverage:
    """Return a coverage whose every text tries to be markup or is hardly text."""
    texts = HOSTILE
    nasty: Mapping[str, Any] = {
        "op_name": texts[0],
        "key": texts[1],
        "targets": texts,
        "origins": texts,
        "dtype": texts[2],
        "template_id": texts[0],
        "params": dict.fromkeys(texts, texts[1]),
        "table": texts[2],
        "dropped": texts,
        "alternatives": (
            {"template_id": texts[1], "params": {texts[0]: texts[3]}, "time_us": 1.0},
        ),
        "nearest": (Neighbour(key=texts[1], differences=texts),),
        "advice": texts[0],
    }
    plain = gemm(m=16, n=4096, k=4096)
    return Coverage(
        device=texts[0],
        torch=texts[1],
        triton=texts[2],
        tables=texts,
        targets=texts,
        gemms=tuple(
            replace(plain, outcome=outcome, **nasty) for outcome in ("hit", "miss", "dropped")
        ),
        peak_tflops={texts[2]: 989.0},
        peak_gb_s=4800.0,
    )


def coverage(*gemms: Gemm) -> Coverage:
    """Return the coverage of some products on an H200, sorted as the record says."""
    ranked = sorted(gemms, key=lambda gemm: (-gemm.estimated_us * gemm.count, gemm.key))
    return Coverage(
        device=H200,
        torch="2.13.0",
        triton="3.7.1",
        tables=("2.13/nvidia-h200/gemm.msgpack 2026.12",),
        targets=tuple(dict.fromkeys(target for gemm in gemms for target in gemm.targets)),
        gemms=tuple(ranked),
        peak_tflops=PEAK_TFLOPS,
        peak_gb_s=PEAK_GB_S,
    )
