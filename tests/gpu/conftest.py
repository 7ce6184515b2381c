"""Every test on a GPU starts with cold caches and ends with stock torch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import inductor_tables
from inductor_tables import recovery


@pytest.fixture(autouse=True)
def _cold_and_stock() -> Iterator[None]:
    import torch
    from torch._dynamo.utils import counters
    from torch._inductor.utils import fresh_cache

    with fresh_cache():
        torch._dynamo.reset()
        counters.clear()
        recovery.forget()
        yield
    inductor_tables.disable()
    recovery.forget()
    torch._dynamo.reset()
