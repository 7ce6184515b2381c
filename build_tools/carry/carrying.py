"""Carries dumps to series, and writes what serves them as dumps that ``build`` takes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from build_tools.carry.rules import Carry, Compared, Pair, Plan
from build_tools.files import replace_file
from build_tools.hashes import TemplateHashes, hashes_of
from build_tools.place import recorded_series
from inductor_tables.dumps import PROVENANCE_FIELDS, Carried, Dump, render_dump
from inductor_tables.errors import BuildError
from inductor_tables.versions import TorchSeries, series_order

Compare = Callable[[Sequence[Pair]], Compared]


def carry(
    dumps: Sequence[Dump],
    targets: Sequence[TorchSeries],
    committed: Mapping[TorchSeries, TemplateHashes],
    *,
    torch: str | None = None,
    compare: Compare | None = None,
) -> list[Carry]:
    """Carry every dump to every series that it was not recorded on.

    Args:
        dumps: recordings.
        targets: series to serve; none: all that are committed.
        committed: template hashes by series.
        torch: that of dumps that do not say.
        compare: compares the code of pairs; None: those do not carry.

    Raises:
        BuildError: nothing is known of a target, a dump's series cannot be told, or a dump was
            carried over itself.
    """
    chosen = sorted(set(targets) or committed, key=series_order)
    templates = {target: hashes_of(target, committed) for target in chosen}
    recorded: dict[TorchSeries, list[Dump]] = defaultdict(list)
    for dump in dumps:
        recorded[recorded_series(dump, torch)].append(dump)
    plans = [
        Plan(recorded[source], source, templates[target])
        for source in sorted(recorded, key=series_order)
        for target in chosen
        if target != source
    ]
    pairs = list(dict.fromkeys(pair for plan in plans for pair in plan.pairs)) if compare else []
    compared = compare(pairs) if compare else {}
    return [one for plan in plans for one in plan.carry(compared)]


def write(carries: Sequence[Carry], directory: Path, *, torch: str | None = None) -> list[Path]:
    """Write a dump for each dump, series and way of finding that it serves; return the files.

    Raises:
        BuildError: two dumps would have files of one name; nothing is written.
        OSError: a file cannot be written.
    """
    texts: dict[Path, bytes] = {}
    for one in carries:
        for by, rows in one.rows.items():
            path = directory / f"{Path(one.dump.resource).stem}_for_torch{one.target}_by_{by}.json"
            if path in texts:
                raise BuildError(f"{one.dump.resource}: another dump has that name; rename one")
            carried = Carried(series=one.target, by=by, dump_digest=one.dump.digest)
            texts[path] = render_dump(rows, _provenance(one.dump, torch), carried)
    for path, data in texts.items():
        replace_file(path, data)
    return list(texts)


def _provenance(dump: Dump, torch: str | None) -> dict[str, Any]:
    said = {name: getattr(dump.source, name, None) for name in PROVENANCE_FIELDS}
    return {**said, "arch": dump.arch, "torch": dump.source.torch or torch}
