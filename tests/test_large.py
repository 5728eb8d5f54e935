"""Operators whose extents are too long for exhaustive tables: still bounded, still verified."""

from __future__ import annotations

import pytest
from conftest import machine

import planner
from planner import Operator, SpecError


def test_a_full_hd_picture() -> None:
    operator = planner.conv2d((1, 16, 1080, 1920), (32, 16, 3, 3), pads=1, bias=True, output_dtype="int8")
    plan = planner.solve(operator, machine("forum"), time_limit_s=60)
    assert plan.status in ("optimal", "feasible")
    assert plan.gap is not None and plan.gap < 0.01
    plan.check()


def test_a_million_samples() -> None:
    operator = Operator.model_validate(
        {
            "name": "filter",
            "dims": {"p": 1_000_000, "r": 5},
            "accumulate": "int32",
            "operands": {
                "x": {"role": "input", "dtype": "int8", "shape": [1_000_000], "index": ["p + r - 2"]},
                "w": {"role": "weight", "dtype": "int8", "shape": [5], "index": ["r"]},
                "y": {"role": "output", "dtype": "int32", "shape": [1_000_000], "index": ["p"]},
            },
        }
    )
    plan = planner.solve(operator, machine("three-scopes-4k"), time_limit_s=5)
    assert plan.status in ("optimal", "feasible")
    assert plan.gap is not None and plan.gap < 0.01
    plan.verify()


@pytest.mark.parametrize("extent", [10**10 + 1, 10**18, 2**200])
def test_extents_beyond_counting(extent: int) -> None:
    """Refused at once, with the dim, its extent and the limit."""
    with pytest.raises(SpecError, match=rf"dim m .* has {extent} points, and the solver takes 10000000000"):
        planner.solve(planner.matmul(extent, 2, 2), machine("forum"))
