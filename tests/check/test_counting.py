"""What `check` counts, against values worked out by hand, and on nests too large to walk through."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import one_scope

import planner
from planner import Operator
from planner.check import measure
from planner.plan import Attach, Loop, NestEntry


def _axis(index: str, size: int, dims: dict[str, int], *loops: Loop) -> tuple[int, int]:
    """(slots, points read) of one input axis under these loops."""
    operands: dict[str, Any] = {
        "x": {"role": "input", "dtype": "int8", "shape": [size], "index": [index]},
        "w": {"role": "weight", "dtype": "int8", "shape": list(dims.values())[1:], "index": list(dims)[1:]},
        "y": {"role": "output", "dtype": "int32", "shape": [dims["p"]], "index": ["p"]},
    }
    operator = Operator.model_validate({"name": "axis", "dims": dims, "accumulate": "int32", "operands": operands})
    nest: list[NestEntry] = [*loops, Attach("x", "scope"), Attach("w", "scope"), Attach("y", "scope")]
    shapes, links = measure(operator, one_scope(1 << 20), nest)
    return shapes["x@scope"][0], links[0].read_bytes


@pytest.mark.parametrize(
    ("index", "size", "dims", "tiles", "slots", "points"),
    [
        # Whole axis: every point inside once, padding in the buffer and not fetched.
        ("p + r - 1", 14, {"p": 14, "r": 3}, [], 16, 14),
        # Rows of 8 need 10 with a 3-tap window, 12 with dilation 2; the halo of two is read again.
        ("p + r", 18, {"p": 16, "r": 3}, [("p", 8)], 10, 20),
        ("p + 2*r", 20, {"p": 16, "r": 3}, [("p", 8)], 12, 24),
        # 1x1 with stride 2: the skipped pixels are neither held nor read.
        ("2*p", 27, {"p": 14, "r": 1}, [], 14, 14),
        # One tap at a time of a strided window: 7 pixels each, the first and last clipped by padding.
        ("2*p + r - 1", 13, {"p": 7, "r": 3}, [("r", 1)], 7, 6 + 7 + 6),
        # One output at a time: 3 taps each, less one at either end.
        ("p + r - 1", 5, {"p": 5, "r": 3}, [("p", 1)], 3, 2 + 3 + 3 + 3 + 2),
        # Ragged at two levels, 10 as 4 + 4 + 2 and 4 as 3 + 1: pieces 3 1 3 1 2, each with a halo of one.
        ("p + r", 11, {"p": 10, "r": 2}, [("p", 4), ("p", 3)], 4, 4 + 2 + 4 + 2 + 3),
        # A window that runs backwards.
        ("p - r + 2", 8, {"p": 6, "r": 3}, [("p", 3)], 5, 10),
        # Taps three apart, outputs two apart: a lattice of step one, all of it held.
        ("2*p + 3*r", 10, {"p": 4, "r": 2}, [], 10, 10),
    ],
)
def test_one_axis(
    index: str, size: int, dims: dict[str, int], tiles: list[tuple[str, int]], slots: int, points: int
) -> None:
    assert _axis(index, size, dims, *(Loop(d, t) for d, t in tiles)) == (slots, points)


def test_partial_sums() -> None:
    """T elements over all visits and S in the output: 2 (T - S) accumulators and S results move."""
    operator = planner.matmul(6, 4, 10, output_dtype="int8")
    nest: list[NestEntry] = [
        Loop("k", 4),
        Attach("output", "scope"),
        Attach("input", "scope"),
        Attach("weight", "scope"),
    ]
    link = measure(operator, one_scope(4096), nest)[1][0]
    assert (link.read_bytes, link.written_bytes) == (2 * 24 * 4, 2 * 24 * 4 + 24)
    assert (link.loads, link.stores) == (2, 3)


def test_a_bias_is_read_on_first_visits_only() -> None:
    operator = planner.matmul(6, 4, 10, bias=True)
    nest = [Loop("k", 4), Loop("m", 2), *(Attach(n, "scope") for n in ("bias", "input", "weight", "output"))]
    link = measure(operator, one_scope(4096), nest)[1][0]
    assert (link.read_bytes, link.loads) == (3 * 4 * 4, 3)


def test_nests_of_a_million_visits_and_more() -> None:
    """Sixteen million combinations of tied tiles, each a visit."""
    slots, points = _axis("p + r", 8191, {"p": 4096, "r": 4096}, Loop("p", 1), Loop("r", 1))
    assert (slots, points) == (1, 4096 * 4096)


def test_more_visits_than_could_be_walked_through() -> None:
    """Of independent dims, each is counted by itself."""
    operator = planner.matmul(10**6, 10**6, 10**6)
    loops = [Loop(d, t) for d in "mnk" for t in (999, 10)]
    nest = [*loops, *(Attach(n, "scope") for n in ("input", "weight", "output"))]
    links = measure(operator, one_scope(4096), nest)[1]
    # 10^6 = 1001 * 999 + 1: 1001 times 99 pieces of 10 and one of 9, and one piece of 1.
    pieces = 1001 * 100 + 1
    assert links[0].read_bytes == 10**12 * pieces
