"""The judge itself, on values that can be worked out by hand."""

from __future__ import annotations

from brute_force import Judge, parse_index


def _matmul(m: int, n: int, k: int) -> dict:
    return {
        "dims": {"m": m, "n": n, "k": k},
        "accumulate": "int32",
        "operands": {
            "a": {"role": "input", "dtype": "int8", "shape": [m, k], "index": ["m", "k"]},
            "b": {"role": "weight", "dtype": "int8", "shape": [k, n], "index": ["k", "n"]},
            "c": {"role": "output", "dtype": "int32", "shape": [m, n], "index": ["m", "n"]},
        },
    }


def _machine(*capacities: int) -> dict:
    names = (("inp", ["input"]), ("wgt", ["weight"]), ("acc", ["bias", "output"]))
    scopes = [
        {"name": n, "parent": "dram", "capacity": c, "holds": h} for (n, h), c in zip(names, capacities, strict=True)
    ]
    return {"memories": [{"name": "dram"}, *scopes]}


def test_index() -> None:
    assert parse_index("2*p + r - 1") == ({"p": 2, "r": 1}, -1)
    assert parse_index("p - 2*r + 3") == ({"p": 1, "r": -2}, 3)
    assert parse_index("0") == ({}, 0)


def test_everything_fits() -> None:
    assert Judge(_matmul(2, 3, 4), _machine(8, 12, 24)).search() == (8 + 12 + 24, 3, 44)


def test_nothing_fits() -> None:
    assert Judge(_matmul(2, 3, 4), _machine(8, 12, 3)).search() is None


def test_one_element_each() -> None:
    # One slot an operand: the accumulator stays over k, one factor is loaded for each point, the other too.
    best = Judge(_matmul(2, 2, 2), _machine(1, 1, 4)).search()
    assert best is not None
    assert best[0] == 16 + 8 + 8


def test_ragged_chain_of_six_and_four() -> None:
    """10 as 6 + 4, and 6 as 4 + 2: three pieces of at most 4, two of at most 6; five would make four pieces."""
    judge = Judge(_matmul(1, 1, 10), _machine(6, 4, 4))
    assert len(judge.leaves("k", (6, 4))) == 3
    assert len(judge.leaves("k", (5, 4))) == 4
