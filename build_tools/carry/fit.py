"""Whether a torch can run an entry on its device, by what is known without that torch.

A look-up there checks the same and more (``inductor_tables.handler``); what is known to be dropped
is not carried.
"""

from __future__ import annotations

import functools
from typing import Final

from build_tools.distinct import itemsize, product_sizes
from build_tools.tune.shapes import MATRICES
from inductor_tables.keys import ParsedKey
from inductor_tables.limits import Device, Product, problem
from inductor_tables.schema import Config
from inductor_tables.simulation import CATALOGUE
from inductor_tables.versions import TorchSeries, series_order

_ONLY_AMD: Final = ("kpack", "matrix_instr_nonkdim", "waves_per_eu")
_TILED: Final = ("BLOCK_M", "BLOCK_N", "BLOCK_K")
_ALWAYS: Final = ("num_warps", "num_stages")
_RESULT_BYTES: Final = {"int_mm": 4, "scaled_mm": 2}

_SMALL_SCRATCH: Final = "2.12"
"""Since when the triton that belongs to torch is 3.7 or newer."""
_RETRIES: Final = "2.13"
"""Since when torch compiles what does not fit once more with one stage."""
_STORES_BEHIND_LOOP: Final = "2.11"
"""Since when ``mm_persistent_tma`` stores behind its loop."""


def misfit(key: ParsedKey, config: Config, arch: str | None, series: TorchSeries) -> str | None:
    """Say why a torch cannot run an entry, None if it can or the device is not in the catalogue."""
    if arch not in CATALOGUE:
        return None
    params = dict(config.params)
    if not all(type(params.get(name)) is int for name in _TILED):
        return None
    device = _device(str(arch), series)
    foreign = [name for name in _ONLY_AMD if params.get(name) is not None and not device.hip]
    if foreign:
        return f"the template takes no {', '.join(foreign)} there"
    missing = [name for name in _ALWAYS if type(params.get(name)) is not int]
    if missing:
        return f"the entry lacks {', '.join(missing)}"
    return problem(config.template_id, params, _product(key), device)


@functools.cache
def _device(arch: str, series: TorchSeries) -> Device:
    spec = CATALOGUE[arch]
    known = series_order(series)
    return Device(
        shared_memory=spec.shared_memory_per_block_optin,
        threads=spec.max_threads_per_block,
        warp_size=spec.warp_size,
        capability=spec.capability,
        hip=spec.backend == "hip",
        tma_stores_in_loop=known < series_order(_STORES_BEHIND_LOOP),
        scratch_per_thread=128 if known >= series_order(_SMALL_SCRATCH) else 512,
        retries_unpipelined=lambda: known >= series_order(_RETRIES),
    )


def _product(key: ParsedKey) -> Product:
    """Describe a product by its key; what the key does not tell is taken for granted."""
    m, n, k = product_sizes(key)
    first, second = MATRICES.get(key.op_name, (0, 1))
    element = max(itemsize(tensor.dtype) for tensor in (key.inputs[first], key.inputs[second]))
    return Product(
        element_size=element,
        output_size=_RESULT_BYTES.get(key.op_name, element),
        divides_k=lambda divisor: k % divisor == 0,
        less_than_k=lambda bound: bound < k,
        aligned=lambda: True,
        no_vector=lambda: min(m, n, k) > 1,
    )
