"""Which torch a table serves: the series, major.minor."""

from __future__ import annotations

from typing import NewType

from packaging.version import InvalidVersion, Version

TorchSeries = NewType("TorchSeries", str)
"""``"2.13"``; only :func:`torch_series` makes one."""

OLDEST_SERIES = TorchSeries("2.10")
"""First torch with ``torch._inductor.lookup_table.LookupTableChoices``."""

NEWEST_KNOWN_SERIES = TorchSeries("2.15")


def torch_series(version: str) -> TorchSeries:
    """Return the series of a torch version; local and development suffixes do not matter.

    >>> torch_series("2.13.0a0+git1234abc")
    '2.13'

    Raises:
        ValueError: ``version`` is not a PEP 440 version.
    """
    try:
        release = Version(version).release
    except InvalidVersion as error:
        raise ValueError(f"not a torch version: {version!r}") from error
    major, minor = (*release, 0)[:2]
    return TorchSeries(f"{major}.{minor}")


def distance(recorded: str, target: str) -> tuple[int, int, bool]:
    """Sort key of series by how near they are to one: of two equally near the newer is nearer.

    >>> min(["2.11", "2.13", "2.15"], key=lambda series: distance(series, "2.12"))
    '2.13'
    """
    one, other = series_order(recorded), series_order(target)
    return abs(one.major - other.major), abs(one.minor - other.minor), one < other


def series_order(series: str) -> Version:
    """Sort key of a series: 2.9 comes before 2.10."""
    return Version(series)
