"""Merging: order independence, explained counts, top-k per problem."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import (
    ADDMM_ATEN,
    ADDMM_TRITON,
    AGNOSTIC_MM,
    ATEN,
    COMMITTED,
    MM,
    WIDE_MM,
    Timed,
    built,
    choices,
    dump_bytes,
    h200_table,
    run_build,
    triton,
    write_dump,
    write_plain,
)

from build_tools.build import build
from build_tools.merge import DumpReport
from inductor_tables.dumps import Dump, parse_dump
from inductor_tables.errors import BuildError
from inductor_tables.keys import ParsedKey, parse_key, problem_of
from inductor_tables.schema import Proof

ENTRIES = [ATEN, triton(), triton(num_warps=8), triton(EVEN_K=True), triton(EVEN_K=1)]
PROOF = Proof(spread_ns=30, aten_ns=900, host_ns=None, previous_ns=850, rounds=24)
PROOFS = [None, PROOF, PROOF._replace(aten_ns=None), PROOF._replace(rounds=12)]
TIMED = st.tuples(st.sampled_from(ENTRIES), st.none() | st.integers(1, 3), st.sampled_from(PROOFS))
KEYS = [MM, WIDE_MM, ADDMM_ATEN, ADDMM_TRITON, AGNOSTIC_MM]
ROWS = st.dictionaries(st.sampled_from(KEYS), st.lists(TIMED, min_size=1, max_size=4), min_size=1)
DUMPS = st.lists(ROWS, min_size=1, max_size=3).map(
    lambda found: [
        parse_dump(dump_bytes(r, date=f"2026-01-0{9 - n}"), f"{n}.json")
        for n, r in enumerate(found)
    ]
)
"""The first is the latest."""


def report_data(reports: Sequence[DumpReport]) -> list[tuple[Any, ...]]:
    """Return reports as values that compare."""
    return [(r.resource, r.rows, r.kept, r.merged, dict(r.dropped), r.unordered) for r in reports]


@settings(max_examples=60)
@given(dumps=DUMPS, topk=st.none() | st.integers(1, 3), data=st.data())
def test_result_is_independent_of_order(
    dumps: list[Dump], topk: int | None, data: st.DataObject
) -> None:
    """Neither the order of dumps nor that of rows changes a byte or a count."""
    shuffled = [
        replace(dump, rows=tuple(data.draw(st.permutations(dump.rows))))
        for dump in data.draw(st.permutations(dumps))
    ]
    first, second = (
        build(given, table_version="1", topk=topk, committed=COMMITTED)
        for given in (dumps, shuffled)
    )
    assert [t.data for t in first.tables] == [t.data for t in second.tables]
    assert report_data(first.reports) == report_data(second.reports)


@settings(max_examples=60)
@given(dumps=DUMPS, topk=st.none() | st.integers(1, 3))
def test_every_row_is_explained(dumps: list[Dump], topk: int | None) -> None:
    """Kept, merged and dropped add up to the rows that came in and to those in the tables."""
    result = build(dumps, table_version="1", topk=topk, committed=COMMITTED)
    for dump, report in zip(dumps, result.reports, strict=True):
        dropped = sum(report.dropped.values())
        assert report.rows == len(dump.rows) == report.kept + report.merged + dropped
    stored = sum(one.table.header.entry_count for one in result.tables)
    assert stored == sum(report.kept for report in result.reports)


@settings(max_examples=40)
@given(dumps=DUMPS)
def test_merge_is_lossless(dumps: list[Dump]) -> None:
    """Without top-k every configuration of every key is in its table, with its fastest time.

    Except, where some of a problem are proved, all that were not proved together with the latest.
    """
    result = build(dumps, table_version="1", committed=COMMITTED)
    stored = {
        (key, entry.config.order): entry.time_ns
        for one in result.tables
        for key, entries in one.table.items()
        for entry in entries
    }
    rows = [(dump.resource, row) for dump in dumps for row in dump.rows]
    proved: dict[ParsedKey, str] = {}
    for resource, row in rows:
        if row.proof is not None:
            proved.setdefault(problem_of(parse_key(row.key)), resource)
    expected: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for resource, row in rows:
        latest = proved.get(problem_of(parse_key(row.key)))
        if latest is None or (row.proof is not None and resource == latest):
            times = expected.setdefault((row.key, row.config.order), [])
            times += [] if row.time_ns is None else [row.time_ns]
    assert stored == {place: min(times, default=None) for place, times in expected.items()}


def test_unexplained_loss_is_refused() -> None:
    """A report that does not add up is an error with the numbers in it."""
    report = DumpReport(resource="a.json", rows=3, kept=1, merged=1)
    with pytest.raises(BuildError, match=r"a\.json: unexplained loss: 3 rows came in, but 1 kept"):
        report.account()


def test_fastest_measurement_wins(tmp_path: Path) -> None:
    """Of one configuration in two dumps the faster one stays, with its own source."""
    slow = write_dump(tmp_path / "a.json", {MM: [(ATEN, 900)]}, date="2026-01-01")
    fast = write_dump(tmp_path / "b.json", {MM: [(ATEN, 800), (triton(), 850)]}, date="2026-01-02")
    report = built(tmp_path / "out", slow, fast)
    assert [(d["rows"], d["kept"], d["merged"]) for d in report["dumps"]] == [(1, 0, 1), (2, 2, 0)]
    first, second = h200_table(tmp_path / "out").lookup(MM)
    assert (first.time_ns, first.source.date) == (800, "2026-01-02")
    assert second.time_ns == 850


def test_times_of_two_tunings_do_not_compete(tmp_path: Path) -> None:
    """On a slower day what is proved faster looks slower than what was timed before."""
    first = write_dump(tmp_path / "b.json", {MM: [(ATEN, 1000, PROOF)]}, date="2026-01-01")
    other = PROOF._replace(aten_ns=1050)
    then = write_dump(tmp_path / "a.json", {MM: [(triton(), 1008, other)]}, date="2026-01-02")
    report = built(tmp_path / "out", first, then, "--topk", 1)
    (entry,) = h200_table(tmp_path / "out").lookup(MM)
    assert (entry.config.template_id, entry.time_ns, entry.proof) == ("triton::mm", 1008, other)
    assert [d["dropped"] for d in report["dumps"]] == [{}, {"a later tuning has its problem": 1}]


def test_what_was_proved_together_stays_together(tmp_path: Path) -> None:
    """Several choices of one tuning keep their proofs, the fastest measurement of each."""
    other = PROOF._replace(spread_ns=99)
    rows = {MM: [(ATEN, 900, other), (triton(), 700, PROOF)]}
    built(tmp_path / "out", write_dump(tmp_path / "a.json", rows))
    table = h200_table(tmp_path / "out")
    found = [(e.config.template_id, e.time_ns, e.proof) for e in table.lookup(MM)]
    assert found == [("triton::mm", 700, PROOF), ("aten::mm", 900, other)]
    assert table.header.proof_count == 2


def test_only_what_is_proved(tmp_path: Path) -> None:
    """--proved leaves problems without a proof out, and says how many rows that is."""
    rows: dict[str, list[Timed]] = {
        MM: [(ATEN, 900, PROOF)],
        WIDE_MM: [(ATEN, 800), (triton(), 700)],
    }
    report = built(tmp_path / "out", write_dump(tmp_path / "a.json", rows), "--proved")
    assert report["dumps"][0]["dropped"] == {"not proved": 2}
    assert list(h200_table(tmp_path / "out").keys()) == [MM]


def test_proved_choices_stand_alone(tmp_path: Path) -> None:
    """What autotuning timed in line is not compared with them, under either key of an addmm."""
    tuned = write_dump(
        tmp_path / "a.json", {MM: [(triton(), 900, PROOF)], ADDMM_TRITON: [(triton(), 900, PROOF)]}
    )
    rows = [(ATEN, 800), (triton(), 700)]
    inline = write_dump(tmp_path / "b.json", {MM: rows, ADDMM_ATEN: rows, WIDE_MM: rows})
    report = built(tmp_path / "out", tuned, inline)
    table = h200_table(tmp_path / "out")
    assert [(e.time_ns, e.proof) for e in table.lookup(MM)] == [(900, PROOF)]
    assert len(table.lookup(WIDE_MM)) == 2 and not table.lookup(ADDMM_ATEN)
    (dropped,) = (d["dropped"] for d in report["dumps"] if d["dropped"])
    assert dropped == {"its problem has proved choices": 4}


@pytest.mark.parametrize("names", [("a.json", "b.json"), ("b.json", "a.json")])
def test_of_equal_measurements_a_proved_one_stays(tmp_path: Path, names: tuple[str, str]) -> None:
    """Whichever dump it is in."""
    paths = [
        write_dump(tmp_path / names[0], {MM: [(ATEN, 800)]}, date=names[0]),
        write_dump(tmp_path / names[1], {MM: [(ATEN, 800, PROOF)]}, date=names[1]),
    ]
    built(tmp_path / "out", *paths)
    (entry,) = h200_table(tmp_path / "out").lookup(MM)
    assert (entry.proof, entry.source.date) == (PROOF, names[1])


def test_same_dump_twice_is_merged(tmp_path: Path) -> None:
    """A copy of a dump adds nothing, and its rows are accounted for."""
    rows = {MM: [(ATEN, 900), (triton(), 950)]}
    paths = [write_dump(tmp_path / name, rows) for name in ("a.json", "b.json")]
    report = built(tmp_path / "out", *paths)
    assert [(d["kept"], d["merged"]) for d in report["dumps"]] == [(2, 0), (0, 2)]


@pytest.mark.parametrize(("topk", "kept"), [(1, [700]), (2, [700, 800]), (9, [700, 800, 900])])
def test_topk_keeps_the_fastest(tmp_path: Path, topk: int, kept: list[int]) -> None:
    """--topk K keeps the K fastest of a key and says how many it dropped."""
    rows = {MM: [(triton(num_warps=n), 600 + 100 * n) for n in (3, 1, 2)]}
    report = built(tmp_path / "out", write_dump(tmp_path / "a.json", rows), "--topk", topk)
    assert [time for _, time in choices(h200_table(tmp_path / "out"), MM)] == kept
    dropped = report["dumps"][0]["dropped"]
    assert sum(dropped.values()) == 3 - len(kept)
    assert all(reason == f"beyond the {topk} fastest of its problem" for reason in dropped)


@pytest.mark.parametrize(
    ("aten_ns", "winner", "loser"),
    [(500, ADDMM_ATEN, ADDMM_TRITON), (900, ADDMM_TRITON, ADDMM_ATEN)],
)
def test_topk_counts_both_addmm_keys_as_one_problem(
    tmp_path: Path, aten_ns: int, winner: str, loser: str
) -> None:
    """An addmm asks under two keys from torch 2.12 on; K=1 keeps the faster side only."""
    rows = {
        ADDMM_ATEN: [({"template_id": "aten::addmm"}, aten_ns)],
        ADDMM_TRITON: [(triton(), 700)],
    }
    built(tmp_path / "out", write_dump(tmp_path / "a.json", rows), "--topk", 1)
    table = h200_table(tmp_path / "out")
    assert len(table.lookup(winner)) == 1
    assert table.lookup(loser) == ()


def test_topk_goes_by_rank_without_times(tmp_path: Path) -> None:
    """In a plain dump the position is all that is known of speed, and it decides."""
    plain = {MM: [triton(num_warps=8), triton(num_warps=1), ATEN]}
    dump = write_plain(tmp_path / "plain.json", plain)
    report = built(tmp_path / "out", dump, "--torch", "2.13", "--topk", 1)
    (entry,) = h200_table(tmp_path / "out").lookup(MM)
    assert dict(entry.config.params)["num_warps"] == 8
    assert report["dumps"][0]["unordered"] == 0


def test_rows_without_order_are_told(tmp_path: Path) -> None:
    """Several untimed rows of a key are kept, and the user learns that their order is lost."""
    dump = write_plain(tmp_path / "plain.json", {MM: [triton(), ATEN]})
    result = run_build(tmp_path / "out", dump, "--torch", "2.13")
    assert result.exit_code == 0
    assert "2 kept rows have no time" in result.output
