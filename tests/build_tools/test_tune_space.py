"""What may be tried for a problem."""

from __future__ import annotations

import math

import pytest
import tune_samples as samples

from build_tools.tune.shapes import item_bytes, shape_of
from build_tools.tune.space import candidate
from inductor_tables.problems import problem_from_key
from inductor_tables.schema import Config

SPACE = samples.space(samples.problem(16, 4096, 4096))
BASE = samples.mm(32, 64, 64, 3, 4)
BASE_OF_64 = samples.mm(64, 64, 64, 3, 4)


def test_moves_are_legal_and_near() -> None:
    """Every neighbour is legal, differs in one or two parameters, and appears once."""
    moves = list(SPACE.moves(BASE))
    assert len(set(moves)) == len(moves) > 20
    for move in moves:
        changed = [n for n, value in move.params if dict(BASE.params)[n] != value]
        assert 1 <= len(changed) <= 2
        assert SPACE.transfer([move]) == [move]


@pytest.mark.parametrize(
    ("config", "legal"),
    [
        (samples.mm(16, 64, 64, 3, 4), True),
        (samples.mm(64, 64, 64, 3, 4), True),  # a warp group's rows, though M is 16
        (samples.mm(128, 64, 64, 3, 4), False),  # rows that are never used
        (samples.mm(64, 256, 64, 3, 2), False),  # spills
        (samples.mm(64, 256, 256, 5, 8), False),  # shared memory
        (samples.mm(16, 16, 64, 3, 2), False),  # a warp without work
        (samples.mm(32, 32, 512, 7, 4), False),
        (samples.ATEN, True),
    ],
)
def test_what_cannot_win_is_not_tried(config: Config, legal: bool) -> None:
    """Candidates that do not fit or cannot win cost no compile."""
    assert SPACE.transfer([config]) == [config] * legal


def test_the_whole_space_is_legal_and_distinct() -> None:
    """Fixed parameters do not vary."""
    everything = list(SPACE.everything({"GROUP_M": 8}))
    assert len(set(everything)) == len(everything) > 500
    assert {dict(config.params)["GROUP_M"] for config in everything} == {8}


@pytest.mark.parametrize(
    ("rows", "group", "kept"),
    [
        (16, 1, 8),
        (16, 8, 8),
        (256, 16, 8),
        (512, 4, 4),
        (512, 8, 8),
        (768, 8, 8),
        (768, 16, 16),
        (1024, 16, 16),
        (1024, 8, 8),
        (2048, 4, 4),
    ],
)
def test_groups_of_all_rows_are_one_candidate(rows: int, group: int, kept: int) -> None:
    """Tiles of 64 rows: orders that are the same are not measured twice."""
    space = samples.space(samples.problem(rows, 4096, 4096))
    found = space.with_params("triton::mm", dict(samples.mm(64, 64, 64, 3, 4, group).params))
    assert found is not None
    assert dict(found.params)["GROUP_M"] == kept
    everything = list(samples.space(samples.problem(rows, 64, 64)).everything())
    assert len(set(everything)) == len(everything)


def test_all_orders_of_tiles_are_steps_away() -> None:
    """Of four rows of tiles: groups of 1, 2 and all; from all of them to 2 is one step."""
    space = samples.space(samples.problem(256, 4096, 4096))
    moves = [dict(move.params) for move in space.moves(samples.mm(64, 64, 64, 3, 4, 8))]
    only = [m["GROUP_M"] for m in moves if {**m, "GROUP_M": 8} == dict(BASE_OF_64.params)]
    assert only == [2]


def test_winners_of_other_problems_are_adapted() -> None:
    """Unknown templates and illegal parameters are left out, duplicates too."""
    other = candidate("triton::bmm", samples.HASH, dict(BASE.params))
    found = SPACE.transfer([BASE, BASE, other, samples.mm(256, 64, 64, 3, 8), samples.ATEN])
    assert found == [BASE, samples.ATEN]


def test_what_runs_is_an_incumbent_though_it_cannot_win() -> None:
    """A previous entry with a warp without work is measured; what does not fit is not."""
    idle, too_big = samples.mm(16, 16, 64, 3, 2), samples.mm(64, 256, 256, 5, 8)
    assert SPACE.transfer([idle, too_big]) == []
    assert SPACE.transfer([idle, too_big], worthwhile=False) == [idle]


def test_a_recording_of_another_torch_is_the_same_candidate() -> None:
    """The template's hash is that of the torch that is here."""
    old = candidate("triton::mm", "cd" * 32, dict(BASE.params))
    assert SPACE.transfer([old]) == [BASE]


def test_distances_order_problems() -> None:
    """Like sizes are near; another dtype says nothing."""
    here = shape_of(samples.problem(16, 4096, 4096))
    near, far = (shape_of(samples.problem(*s)) for s in ((32, 4096, 4096), (2048, 4096, 4096)))
    other = shape_of(samples.problem(16, 4096, 4096, dtype="float32"))
    assert 0 == here.distance(here) < here.distance(near) < here.distance(far) < math.inf
    assert math.isinf(here.distance(other))


def test_sizes_of_a_problem() -> None:
    """Sizes, layouts, operations and bytes are those of the product."""
    shape = shape_of(samples.problem(16, 1024, 4096, "addmm"))
    assert (shape.batch, shape.m, shape.n, shape.k) == (1, 16, 1024, 4096)
    assert shape.transposed == (False, True)
    assert shape.flops == 2 * 16 * 1024 * 4096
    assert shape.bytes == 2 * (1024 + 16 * 4096 + 1024 * 4096 + 16 * 1024)


B = "torch.bfloat16"


@pytest.mark.parametrize(
    ("key", "match"),
    [
        (f"(({B}, [4, 8], [8, 1]), ({B}, [8, 4], [4, 1]))+convolution", "knows mm"),
        (f"(({B}, [4, 8], [8, 1]),)+mm", "with 1 inputs"),
        (f"(({B}, [8], [1]), ({B}, [8, 4], [4, 1]))+mm", "matrices of sizes"),
        (f"(({B}, [4, 8], [8, 1]), ({B}, [9, 4], [4, 1]))+mm", "no product"),
        (f"(({B}, [4, 0], [1, 1]), ({B}, [0, 4], [4, 1]))+mm", "no product"),
    ],
)
def test_what_is_no_product_is_refused(key: str, match: str) -> None:
    """The reason names what is wrong."""
    with pytest.raises(ValueError, match=match):
        shape_of(problem_from_key(key))


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("bfloat16", 2), ("float8_e4m3fn", 1), ("int8", 1), ("float64", 8), ("bool", 1)],
)
def test_bytes_of_an_element(dtype: str, size: int) -> None:
    """They are read off the dtype's name."""
    assert item_bytes(dtype) == size


def test_a_dtype_without_a_width_is_refused() -> None:
    """The error names the dtype."""
    with pytest.raises(ValueError, match="found half"):
        item_bytes("half")
