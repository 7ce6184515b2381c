"""Fixtures of the runtime's tests: every one ends with stock torch."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import inductor_tables


@pytest.fixture(autouse=True)
def _stock_torch_afterwards() -> Iterator[None]:
    yield
    inductor_tables.disable()
