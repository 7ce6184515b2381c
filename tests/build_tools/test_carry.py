"""Carrying over: what serves another torch and why, and what ``build`` makes of it."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from samples import (
    ADDMM_ATEN,
    ADDMM_TRITON,
    ATEN,
    COMMITTED,
    INPUTS,
    MM,
    RECORDINGS,
    WIDE_MM,
    Timed,
    built,
    dump_bytes,
    h200_table,
    run,
    run_build,
    triton,
    write_dump,
    write_plain,
)

from build_tools.carry.carrying import Compare, carry, write
from build_tools.carry.command import pythons_of
from build_tools.carry.rules import Carry, Compared, Pair
from build_tools.hashes import TemplateHashes
from inductor_tables.dumps import Dump, parse_dump, read_dump
from inductor_tables.errors import BuildError, InvalidDumpError
from inductor_tables.schema import Proof
from inductor_tables.versions import TorchSeries

OLD, NEW, NEWER = (TorchSeries(series) for series in ("2.11", "2.12", "2.13"))
SAME, FORMER, LATER = ("a" * 64, "b" * 64, "c" * 64)


def hashes(series: str, **texts: str | None) -> TemplateHashes:
    """The templates of a series: ATen's, a subgraph, and ``triton::<name>`` with a hash each."""
    named = {f"triton::{name}": digest for name, digest in texts.items()}
    others = {"aten::mm": None, "aten::addmm": None, "decompose_k": None}
    return TemplateHashes(version=f"{series}.0", templates={**others, **named}, rocm={})


FAKES = {
    OLD: hashes(OLD, mm=FORMER, bmm=SAME, mm_persistent_tma=FORMER, gone=SAME),
    NEW: hashes(NEW, mm=LATER, bmm=SAME, mm_persistent_tma=LATER),
    NEWER: hashes(NEWER, mm=LATER, bmm=SAME, mm_persistent_tma=LATER),
}


def entry(template: str, digest: str | None = None, **params: Any) -> dict[str, Any]:
    """A plain entry."""
    hashed = {} if digest is None else {"template_hash": digest}
    return {"template_id": template, **hashed, **params}


FAST, SLOW = entry("triton::mm", FORMER, BLOCK_M=16), entry("triton::mm", FORMER, BLOCK_M=32)
BMM = entry("triton::bmm", SAME, BLOCK_M=16)
TMA = entry("triton::mm_persistent_tma", FORMER, BLOCK_M=64)
SPLIT = entry("decompose_k", k_split=4)
ADDMM = entry("aten::addmm")


def recorded(
    rows: Mapping[str, Sequence[Timed]], name: str = "old.json", torch: str = "2.11.0", **said: Any
) -> Dump:
    """A dump of torch 2.11, unless another is named."""
    return parse_dump(dump_bytes(rows, torch=torch, **said), name)


def carried(
    dump: Dump, target: TorchSeries = NEW, compare: Compare | None = None, **more: Any
) -> Carry:
    """Carry one dump to one series, by made-up hashes."""
    (one,) = carry([dump], [target], FAKES, compare=compare, **more)
    return one


def served(one: Carry) -> dict[str, list[Any]]:
    """Template id and tile of what serves, by how that was found."""
    return {
        by: [(row.config.template_id, dict(row.config.params).get("BLOCK_M")) for row in rows]
        for by, rows in one.rows.items()
    }


class Comparison:
    """Finds what it is told to for tiles, and nothing different for all others."""

    def __init__(self, **reasons: str) -> None:
        self.reasons, self.asked = reasons, list[Pair]()

    def __call__(self, pairs: Sequence[Pair]) -> Compared:
        """Return a reason, or None, for each pair."""
        self.asked += pairs
        return {pair: self.reasons.get(f"m{dict(pair.config.params)['BLOCK_M']}") for pair in pairs}


# --- by the text --------------------------------------------------------------------------------


def test_same_text_serves() -> None:
    """Rows stay as they are, with their times and proofs."""
    proof = Proof(spread_ns=3, aten_ns=200, rounds=12)
    dump = recorded({MM: [(BMM, 100, proof), (ATEN, 200)]})
    one = carried(dump)
    assert list(one.rows["hash"]) == list(dump.rows)
    assert not one.left
    assert one.rows["hash"][0].proof == proof


@pytest.mark.parametrize(
    ("key", "plain", "reason"),
    [
        (MM, FAST, "the text of triton::mm differs, and the code was not compared"),
        (MM, entry("triton::gone", SAME), "torch 2.12 has no triton::gone"),
        (MM, SPLIT, "decompose_k has no text that could be compared"),
        (MM, entry("triton::bmm"), "triton::bmm was recorded without a hash"),
        (ADDMM_TRITON, ADDMM, "torch 2.12 asks for ATen's addmm of a broadcast bias under"),
    ],
)
def test_reasons(key: str, plain: Mapping[str, Any], reason: str) -> None:
    """What does not serve is left, with the reason."""
    one = carried(recorded({key: [(plain, 100)]}))
    ((row, why),) = one.left
    assert why.startswith(reason)
    assert row.config.template_id == plain["template_id"]
    assert not one.rows


@pytest.mark.parametrize(
    ("key", "source", "target", "serves"),
    [
        (ADDMM_TRITON, "2.11.0", NEW, False),
        (ADDMM_ATEN, "2.13.0", OLD, False),
        (ADDMM_ATEN, "2.13.0", NEW, True),
        (ADDMM_TRITON.replace("[0, 1]", "[768, 1]"), "2.11.0", NEW, True),
    ],
)
def test_aten_of_an_addmm(key: str, source: str, target: TorchSeries, serves: bool) -> None:
    """ATen is asked for under another key since 2.12 where the bias is broadcast, only there."""
    one = carried(recorded({key: [(ADDMM, 100)]}, torch=source), target)
    assert bool(one.rows) is serves


def test_old_rocm_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text of old tritons is one of the target's too, on AMD GPUs only."""
    target = replace(FAKES[NEW], rocm={"triton::mm": FORMER})
    monkeypatch.setitem(FAKES, NEW, target)
    amd = MM.replace("NVIDIA H200", "gfx942:sramecc+:xnack-")
    found = [bool(carried(recorded({key: [(FAST, 1)]}, arch=None)).rows) for key in (amd, MM)]
    assert found == [True, False]


def test_behind_what_does_not_carry() -> None:
    """A table that held the slower ones would answer with them."""
    one = carried(recorded({MM: [(FAST, 100), (ATEN, 200)], WIDE_MM: [(ATEN, 100), (FAST, 200)]}))
    assert served(one) == {"hash": [("aten::mm", None)]}
    assert one.reasons == {
        "slower than a choice of its problem that does not carry": 1,
        "the text of triton::mm differs, and the code was not compared": 2,
    }


def test_ranks_tell_where_there_are_no_times() -> None:
    """The first of untimed choices is the fastest."""
    one = carried(
        recorded({MM: [(ATEN, None), (FAST, None)], WIDE_MM: [(FAST, None), (ATEN, None)]})
    )
    assert [row.key for row in one.rows["hash"]] == [MM]


@pytest.mark.parametrize(("aten_ns", "serves"), [(200, True), (199, False), (None, False)])
def test_a_proof_stands_for_itself(aten_ns: int | None, serves: bool) -> None:
    """What beat everything the host has serves, whatever is faster still."""
    proof = Proof(spread_ns=3, aten_ns=aten_ns, rounds=12)
    one = carried(recorded({MM: [(FAST, 100), (BMM, 200, proof)]}))
    assert bool(one.rows) is serves


def test_what_users_switch_on_is_in_nobodys_way() -> None:
    """Behind a TMA kernel that does not carry is what all get that do not have it on."""
    one = carried(recorded({MM: [(TMA, 100), (ATEN, 200)]}))
    assert served(one) == {"hash": [("aten::mm", None)]}


TILE: dict[str, Any] = {
    "BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 128, "num_stages": 4, "num_warps": 8,
}  # fmt: skip
"""262,144 B of shared memory; the H200 has 232,448."""


@pytest.mark.parametrize(
    ("target", "params", "reason"),
    [
        (NEW, TILE, "needs 262144 B of shared memory, the device has 232448"),
        (NEWER, TILE, None),
        (NEW, {**TILE, "num_stages": 3}, None),
        (NEW, {**TILE, "num_stages": 3, "kpack": 2}, "the template takes no kpack there"),
        (NEW, {**TILE, "num_stages": None}, "the entry lacks num_stages"),
        (NEW, {**TILE, "num_warps": 64, "num_stages": 1}, "num_warps=64 is 2048 threads a block"),
    ],
)
def test_what_cannot_run_there(target: TorchSeries, params: Any, reason: str | None) -> None:
    """What a look-up there would drop is left; 2.13 compiles once more with one stage."""
    one = carried(recorded({MM: [(entry("triton::bmm", SAME, **params), 100)]}), target)
    assert [why.startswith(str(reason)) for _, why in one.left] == (
        [] if reason is None else [True]
    )


def test_what_cannot_run_there_is_in_nobodys_way() -> None:
    """The host there would not find it either."""
    one = carried(recorded({MM: [(entry("triton::bmm", SAME, **TILE), 100), (ATEN, 200)]}))
    assert served(one) == {"hash": [("aten::mm", None)]}


def test_scaled_products_and_devices_that_nobody_knows() -> None:
    """Bytes are those of the matrices, not of scales; without a device nothing is known."""
    tile = entry("triton::bmm", SAME, **TILE)
    scales = "(torch.float32, [16, 1], [1, 1]), (torch.float32, [1, 1024], [1, 1])"
    inputs = f"{INPUTS[:-1]}, {scales})".replace("bfloat16", "float8_e4m3fn")
    rows: dict[str, list[Timed]] = {
        f"NVIDIA H200+{inputs}+scaled_mm": [(tile, 1)],
        MM.replace("H200", "Z1"): [(tile, 1)],
        MM: [(tile, 1)],
    }
    assert [row.key for row, _ in carried(recorded(rows)).left] == [MM]


def test_dumps_of_one_torch_are_looked_at_together() -> None:
    """What one dump says is faster and does not carry keeps back the other's."""
    fast, slow = recorded({MM: [(FAST, 100)]}), recorded({MM: [(ATEN, 200)]}, "other.json")
    other = recorded({MM: [(ATEN, 200)]}, "newer.json", torch="2.13.0")
    found = {one.dump.resource: bool(one.rows) for one in carry([fast, slow, other], [NEW], FAKES)}
    assert found == {"old.json": False, "other.json": False, "newer.json": True}


# --- by the code --------------------------------------------------------------------------------


def test_same_code_serves_with_the_targets_hash() -> None:
    """The hash is what the handler there will compare."""
    compare = Comparison()
    one = carried(recorded({MM: [(FAST, 100), (ATEN, 200)]}), compare=compare)
    assert served(one) == {"code": [("triton::mm", 16)], "hash": [("aten::mm", None)]}
    assert [row.config.template_hash for row in one.rows["code"]] == [LATER]
    (pair,) = compare.asked
    assert (pair.key, pair.device, pair.source, pair.target) == (MM, "NVIDIA H200", OLD, NEW)
    assert (pair.recorded.template_hash, pair.config.template_hash) == (FORMER, LATER)


def test_other_code_does_not() -> None:
    """The comparison's reason is kept, and what is behind stays behind."""
    compare = Comparison(m16="the compiled code differs")
    one = carried(recorded({MM: [(FAST, 100), (SLOW, 200)]}), compare=compare)
    assert [why for _, why in one.left] == [
        "the compiled code differs",
        "slower than a choice of its problem that does not carry",
    ]


def test_nothing_is_compared_in_vain() -> None:
    """Not what serves, not what never can, not what is behind it, nothing twice."""
    compare = Comparison()
    rows: dict[str, list[Timed]] = {MM: [(SPLIT, 50), (FAST, 100)], WIDE_MM: [(BMM, 1), (SLOW, 2)]}
    carry([recorded(rows), recorded(rows, "twice.json")], [NEW], FAKES, compare=compare)
    assert [(pair.key, dict(pair.config.params)) for pair in compare.asked] == [
        (WIDE_MM, {"BLOCK_M": 32})
    ]


def test_the_dump_names_a_device_that_the_key_does_not() -> None:
    """Code is compared for the device that was recorded on."""
    compare = Comparison()
    carried(recorded({MM.partition("+")[2]: [(FAST, 100)]}), compare=compare)
    assert [pair.device for pair in compare.asked] == ["NVIDIA H200"]


# --- carried dumps ------------------------------------------------------------------------------


def test_a_carried_dump_says_where_it_is_from(tmp_path: Path) -> None:
    """The torch and dump it was recorded with, whom it serves, and how that was found."""
    dump = recorded({MM: [(FAST, 100), (ATEN, 200)]})
    paths = write([carried(dump, compare=Comparison())], tmp_path)
    assert [path.name for path in paths] == [
        "old_for_torch2.12_by_code.json",
        "old_for_torch2.12_by_hash.json",
    ]
    for path, by in zip(paths, ("code", "hash"), strict=True):
        found = read_dump(path)
        assert found.carried is not None
        assert (found.carried.series, found.carried.by) == (NEW, by)
        assert found.source == replace(dump.source, carried=by)
        assert found.arch == dump.arch


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"by": "guess"}, r"carried\.by: expected one of hash, code, found 'guess'"),
        ({"dump": "12"}, r"carried\.dump: '12' is not a digest of 32 hex digits"),
        ({"to": "2.12.1"}, r"carried\.to: '2\.12\.1' is not the series of a torch such as"),
        ({"to": "new"}, r"carried\.to: 'new' is not the series"),
        ({"why": "so"}, r"carried: expected the fields by, dump, to"),
    ],
)
def test_what_a_carried_dump_says_is_checked(changes: dict[str, Any], message: str) -> None:
    """Each field is named that is not what it has to be."""
    content = json.loads(dump_bytes({MM: [(ATEN, 1)]}))
    fields = {"by": "hash", "dump": "ab" * 16, "to": "2.12"}
    content["inductor-tables"]["carried"] = {**fields, **changes}
    with pytest.raises(InvalidDumpError, match=message):
        parse_dump(json.dumps(content).encode(), "dump.json")


def test_a_carried_dump_says_its_torch() -> None:
    """Without, nobody knew what it was carried from."""
    content = json.loads(dump_bytes({MM: [(ATEN, 1)]}, torch=None))
    content["inductor-tables"]["carried"] = {"by": "hash", "dump": "ab" * 16, "to": "2.12"}
    with pytest.raises(InvalidDumpError, match=r"provenance\.torch: a carried dump has to say it"):
        parse_dump(json.dumps(content).encode(), "dump.json")


def test_dumps_of_one_name_are_refused(tmp_path: Path) -> None:
    """One would replace the other; nothing is written."""
    dumps = [recorded({key: [(ATEN, 1)]}, f"{key[-9:]}/a.json") for key in (MM, WIDE_MM + "x")]
    with pytest.raises(BuildError, match=r"a\.json: another dump has that name; rename one"):
        write(carry(dumps, [NEW], FAKES), tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_result_does_not_depend_on_order(tmp_path: Path) -> None:
    """Neither on that of dumps nor on that of rows."""
    rows: list[tuple[str, Timed]] = [(MM, (ATEN, 5)), (WIDE_MM, (ATEN, 5)), (MM, (FAST, 5))]

    def files(seed: int) -> dict[str, bytes]:
        shuffled = random.Random(seed)
        dumps = [recorded({MM: [(FAST, 4), (SLOW, 9)]}), recorded({MM: [(ATEN, 3)]}, "b.json")]
        listed = shuffled.sample(rows, k=len(rows))
        dumps.append(recorded({key: [r for k, r in listed if k == key] for key in (MM, WIDE_MM)},
                              "c.json"))  # fmt: skip
        out = tmp_path / str(seed)
        found = carry(shuffled.sample(dumps, k=3), [NEW], FAKES, compare=Comparison())
        written = write(found, out)
        texts = {path.name: path.read_bytes() for path in written}
        return {name: text for name, text in texts.items() if not name.startswith("c")}

    assert files(1) == files(2) == files(3)


# --- tables of them -----------------------------------------------------------------------------


def dumps_for(tmp_path: Path, *torches: str, time_ns: int = 100) -> list[Path]:
    """Dumps of ATen, slower the newer, recorded on torches and carried to 2.12."""
    paths = []
    for number, torch in enumerate(torches):
        made = write_dump(
            tmp_path / f"t{torch}.json", {MM: [(ATEN, time_ns + number)]}, torch=torch
        )
        paths.append(made)
    found = carry([read_dump(path) for path in paths], [NEW], COMMITTED)
    own = [path for path, torch in zip(paths, torches, strict=True) if torch.startswith("2.12")]
    return [*own, *write(found, tmp_path / "carried")]


@pytest.mark.parametrize(
    ("torches", "chosen"),
    [
        (["2.11.0", "2.12.1"], "2.12.1"),
        (["2.12.1", "2.13.0"], "2.12.1"),
        (["2.10.0", "2.11.0"], "2.11.0"),
        (["2.11.0", "2.13.0"], "2.13.0"),
        (["2.13.0", "2.14.1", "2.15.0"], "2.13.0"),
    ],
)
def test_the_nearest_torch_has_a_problem(tmp_path: Path, torches: list[str], chosen: str) -> None:
    """The table's own before all carried ones, the nearest of these, of two the newer."""
    report = built(tmp_path / "out", *dumps_for(tmp_path, *torches))
    (found,) = h200_table(tmp_path / "out", NEW).lookup(MM)
    assert found.source.torch == chosen
    assert found.measured is (chosen == "2.12.1")
    dropped = [one["dropped"] for one in report["dumps"]]
    assert dropped.count({"a nearer torch has its problem": 1}) == len(torches) - 1


def test_other_problems_of_a_farther_torch_stay(tmp_path: Path) -> None:
    """Only what a nearer torch has, too, is left out; ways of finding do not compete."""
    rows: dict[str, list[Timed]] = {MM: [(triton("2.11"), 50), (ATEN, 60)], WIDE_MM: [(ATEN, 70)]}
    old = read_dump(write_dump(tmp_path / "old.json", rows, torch="2.11.0"))
    new = read_dump(write_dump(tmp_path / "new.json", {WIDE_MM: [(ATEN, 90)]}, torch="2.13.0"))
    paths = write(carry([old, new], [NEW], COMMITTED, compare=Comparison()), tmp_path / "carried")
    built(tmp_path / "out", *paths)
    table = h200_table(tmp_path / "out", NEW)
    found = {
        key: [(e.source.torch, e.source.carried) for e in table.lookup(key)]
        for key in (MM, WIDE_MM)
    }
    assert found == {
        MM: [("2.11.0", "code"), ("2.11.0", "hash")],
        WIDE_MM: [("2.13.0", "hash")],
    }


def test_what_was_proved_elsewhere_wins_over_what_was_timed_in_line(tmp_path: Path) -> None:
    """A carried entry is the same kernel; the table's own recording proves nothing."""
    own = write_dump(tmp_path / "own.json", {MM: [(ATEN, 40)], WIDE_MM: [(ATEN, 40)]},
                     torch="2.12.1")  # fmt: skip
    proof = Proof(spread_ns=1, rounds=12, aten_ns=60, host_ns=None, previous_ns=None)
    rows: dict[str, list[Timed]] = {MM: [(triton("2.11"), 50, proof), (ATEN, 60, proof)]}
    old = read_dump(write_dump(tmp_path / "old.json", rows, torch="2.11.0"))
    carried = write(carry([old], [NEW], COMMITTED, compare=Comparison()), tmp_path / "carried")
    built(tmp_path / "out", own, *carried)
    table = h200_table(tmp_path / "out", NEW)
    found = {key: [e.source.carried for e in table.lookup(key)] for key in (MM, WIDE_MM)}
    assert found == {MM: ["code", "hash"], WIDE_MM: [None]}


def test_an_addmm_is_one_problem_under_both_keys(tmp_path: Path) -> None:
    """A carried Triton entry does not stand beside an ATen entry that was measured."""
    own = write_dump(tmp_path / "own.json", {ADDMM_ATEN: [(ADDMM, 90)]}, torch="2.12.1")
    rows: dict[str, list[Timed]] = {ADDMM_TRITON: [(triton("2.13"), 10)]}
    near = read_dump(write_dump(tmp_path / "near.json", rows, torch="2.13.0"))
    built(tmp_path / "out", own, *write(carry([near], [NEW], COMMITTED), tmp_path / "carried"))
    assert list(h200_table(tmp_path / "out", NEW).keys()) == [ADDMM_ATEN]


# --- the command --------------------------------------------------------------------------------


def test_the_recordings_give_tables_for_every_torch(tmp_path: Path) -> None:
    """Recordings of 2.11 and 2.13 serve 2.10 to 2.15; what is carried says so."""
    names = [RECORDINGS / f"h200_torch{version}.json" for version in ("2.11.0", "2.13.0")]
    assert run("carry", *names, "--out", tmp_path / "carried").exit_code == 0
    report = built(tmp_path / "out", *names, tmp_path / "carried")
    keys = {one["torch_series"]: one["keys"] for one in report["tables"]}
    assert list(keys) == list(COMMITTED)
    assert min(keys.values()) >= 16
    nearest = {"2.10": "2.11", "2.11": "2.11", "2.14": "2.13", "2.15": "2.13"}
    for series, source in nearest.items():
        table = h200_table(tmp_path / "out", series)
        (fastest, *_) = table.lookup(
            next(iter(read_dump(RECORDINGS / f"h200_torch{source}.0.json").rows)).key
        )
        assert str(fastest.source.torch).startswith(source)
        assert fastest.measured is (series == source)


def test_the_report(tmp_path: Path) -> None:
    """It counts every row of every dump and series, and names the files."""
    rows: dict[str, list[Timed]] = {MM: [(ATEN, 1), (triton("2.13"), 2)]}
    path = write_dump(tmp_path / "new.json", rows)
    arguments = ("carry", path, "--to", "2.11", "--to", "2.14", "--out", tmp_path / "out")
    report = json.loads(run(*arguments, "--json").stdout)
    counts = [
        (one["torch_series"], one["rows"], one["hash"], one["code"], one["left"])
        for one in report["carries"]
    ]
    assert counts == [
        ("2.11", 2, 1, 0, {"the text of triton::mm differs, and the code was not compared": 1}),
        ("2.14", 2, 2, 0, {}),
    ]
    assert [Path(name).exists() for name in report["written"]] == [True, True]
    text = run(*arguments).output
    assert "2.13 -> 2.11: 1 rows: the text of triton::mm differs" in text


def test_a_plain_dump(tmp_path: Path) -> None:
    """Its torch has to be named, and is in what is carried."""
    path = write_plain(tmp_path / "plain.json", {MM: [ATEN]})
    refused = run("carry", path, "--out", tmp_path / "out")
    assert refused.exit_code == 1
    assert "plain.json: the dump does not say which torch it was recorded with" in refused.output
    assert run("carry", path, "--out", tmp_path / "out", "--torch", "2.13").exit_code == 0
    sources = {read_dump(found).source.torch for found in (tmp_path / "out").iterdir()}
    assert sources == {"2.13"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "2.99"], "found 2.99; run 'python -m build_tools hashes --write' on torch 2.99"),
        (["--to", "soon"], "not a torch version: 'soon'; expected e.g. 2.12"),
        (["--python", "2.12=python"], "--python: only with --by-code"),
        (
            ["--by-code", "--python", "2.12"],
            "expected SERIES=PATH, and '' is no file that can be run",
        ),
        (["--by-code", "--python", "x=y"], "not a torch version: 'x'; expected SERIES=PATH"),
        (["--by-code", "--to", "2.10"], "nothing can be compared: there are Pythons of"),
    ],
)
def test_refusals(tmp_path: Path, arguments: list[str], message: str) -> None:
    """What cannot be done is said before anything is written."""
    path = write_dump(tmp_path / "new.json", {MM: [(triton("2.13"), 2)]})
    result = run("carry", path, "--out", tmp_path / "out", *arguments)
    assert result.exit_code != 0
    assert message in " ".join(result.output.split())
    assert not (tmp_path / "out").exists()


def test_carried_dumps_are_not_carried_on(tmp_path: Path) -> None:
    """What the first step found would be lost."""
    write_dump(tmp_path / "new.json", {MM: [(ATEN, 2)]})
    run("carry", tmp_path / "new.json", "--to", "2.14", "--out", tmp_path)
    again = run("carry", tmp_path, "--to", "2.15", "--out", tmp_path / "out")
    assert again.exit_code == 1
    assert "was carried over from torch 2.13.0+cu130 already; carry the recording" in " ".join(
        again.output.split()
    )


def test_a_carried_dump_with_a_foreign_hash_is_refused(tmp_path: Path) -> None:
    """``build`` holds it to the hashes of the series that it says it serves."""
    write_dump(tmp_path / "new.json", {MM: [(triton("2.13"), 2)]})
    run("carry", tmp_path / "new.json", "--to", "2.14", "--out", tmp_path / "out")
    (path,) = (tmp_path / "out").iterdir()
    path.write_text(path.read_text().replace('"to": "2.14"', '"to": "2.11"'))
    result = run_build(tmp_path / "tables", path)
    assert result.exit_code == 1
    assert "stale triton::mm" in result.output


def test_pythons(tmp_path: Path) -> None:
    """The running one is that of its torch, unless another is named; links are not followed."""
    link = tmp_path / "python"
    link.symlink_to(sys.executable)
    running = Path(sys.executable)
    assert pythons_of([], NEW, running) == {NEW: running}
    assert pythons_of([f"2.11.0={link}"], NEW, running) == {NEW: running, OLD: link}
    assert pythons_of([f"2.12={link}"], NEW, running) == {NEW: link}
    assert pythons_of([f"2.12={link}"], None, running) == {NEW: link}
