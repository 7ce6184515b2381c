"""Where GEMMs come from, as people read it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

from inductor_tables.decisions import Origin

_NUMBERS = re.compile(r"(?:(?<=\.)|^)\d[\d,-]*(?=\.|$)")
"""A part of a path that is a number, or several that were drawn together."""


def origin_text(origin: Origin) -> str:
    """Return a module's path, else ``file:line``, relative where the file is in this directory."""
    text = str(origin)
    if origin.module is not None or origin.line is None:
        return text
    try:
        return str(Path(text).relative_to(Path.cwd()))
    except ValueError:
        return text


def shortened(origins: Iterable[str]) -> list[str]:
    """Return module paths with the numbers of repeated layers drawn together.

    >>> shortened(["layers.0.up", "layers.1.up", "layers.2.up", "layers.7.up", "head"])
    ['layers.0-2,7.up', 'head']

    Paths are drawn together where they differ in one number only, the outermost first.
    """
    left = list(dict.fromkeys(origins))
    for place in range(max((len(_NUMBERS.findall(text)) for text in left), default=0)):
        left = _drawn_together(left, place)
    return left


def _drawn_together(texts: Sequence[str], place: int) -> list[str]:
    groups: dict[str, list[int]] = {}
    for text in texts:
        numbers = list(_NUMBERS.finditer(text))
        if place >= len(numbers) or not numbers[place][0].isdigit():
            groups.setdefault(text, [])
            continue
        found = numbers[place]
        groups.setdefault(f"{text[: found.start()]}\0{text[found.end() :]}", []).append(
            int(found[0])
        )
    return [
        pattern.replace("\0", _ranges(sorted(numbers))) if numbers else pattern
        for pattern, numbers in groups.items()
    ]


def _ranges(numbers: Sequence[int]) -> str:
    runs = [
        [number for _, number in run]
        for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    ]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
