"""Which series a torch version belongs to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inductor_tables.versions import (
    NEWEST_KNOWN_SERIES,
    OLDEST_SERIES,
    series_order,
    torch_series,
)


@pytest.mark.parametrize(
    ("version", "series"),
    [
        ("2.13.0", "2.13"),
        ("2.13.0+cpu", "2.13"),
        ("2.13.0+cu130", "2.13"),
        ("2.13.0+rocm7.1", "2.13"),
        ("2.13.1rc2", "2.13"),
        ("2.13.0a0+git1234abc", "2.13"),
        ("2.14.0.dev20260501+cu130", "2.14"),
        ("2.10", "2.10"),
        ("2.1", "2.1"),
        ("3", "3.0"),
        ("v2.13.0", "2.13"),
        (" 2.13.0 ", "2.13"),
        ("02.013.0", "2.13"),
    ],
)
def test_series(version: str, series: str) -> None:
    """Major and minor decide; patch, local and development suffixes do not."""
    assert torch_series(version) == series


@pytest.mark.parametrize(
    "version", ["", "x", "2.x", "2.13.0-", "2..13", "..", "../2.13", "2.13\x00", "2.13.0 2.14"]
)
def test_what_is_no_version(version: str) -> None:
    """Anything that PEP 440 does not know is refused by name."""
    with pytest.raises(ValueError, match="not a torch version"):
        torch_series(version)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 99))
def test_a_series_is_its_own_series(major: int, minor: int, patch: int) -> None:
    """Taking the series of a series changes nothing."""
    series = torch_series(f"{major}.{minor}.{patch}")
    assert torch_series(series) == series == f"{major}.{minor}"


def test_series_are_ordered_as_numbers() -> None:
    """2.9 comes before 2.10, and the known range is in order."""
    assert sorted(["2.10", "2.9", "3.0", "2.13"], key=series_order) == [
        "2.9",
        "2.10",
        "2.13",
        "3.0",
    ]
    assert series_order(OLDEST_SERIES) < series_order(NEWEST_KNOWN_SERIES)
