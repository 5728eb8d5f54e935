"""Optima known from exhaustive search, dividing and ragged; each plan verified."""

from __future__ import annotations

import pytest
from conftest import scopes

import planner
from planner import Operator

KIB = 1024


def _conv(n: int, c: int, k: int, h: int, w: int, r: int, pad: int, **extra: object) -> Operator:
    return planner.conv2d((n, c, h, w), (k, c, r, r), pads=pad, **extra)  # type: ignore[arg-type]


FORUM = _conv(2, 16, 16, 112, 64, 3, 1)
FORUM_BIAS = _conv(2, 16, 16, 112, 64, 3, 1, bias=True, output_dtype="int8")
SQUARE = _conv(1, 256, 256, 14, 14, 3, 1)
UNPADDED = _conv(1, 256, 256, 16, 16, 3, 0)
POINTWISE = _conv(1, 64, 128, 55, 55, 1, 0, strides=(2, 2))
DEPTHWISE = planner.depthwise_conv2d((1, 256, 28, 28), (256, 1, 3, 3), pads=1)

TABLE = [
    ("forum", FORUM, (32, 32, 32), 1160576, None),
    ("forum with bias", FORUM_BIAS, (32, 256, 256), 465216, None),
    ("256x256x14x14", SQUARE, (32, 32, 32), 1191936, 1141760),
    ("256x256x14x14 in 4 KiB", SQUARE, (4, 4, 4), 3215360, 2871296),
    ("no padding", UNPADDED, (32, 32, 32), 1257472, 1249280),
    ("1x1 stride 2", POINTWISE, (32, 32, 32), 459776, 459776),
    ("depthwise", DEPTHWISE, (4, 4, 4), 1005824, 1005824),
    ("matmul 512x768x3072", planner.matmul(512, 768, 3072), (32, 32, 32), 29884416, 29097984),
    ("matmul 1024", planner.matmul(1024, 1024, 1024), (32, 32, 32), 29360128, 28311552),
    ("matmul 100x200x300", planner.matmul(100, 200, 300), (4, 4, 4), 470000, 470000),
]


@pytest.mark.parametrize(("name", "operator", "kib", "dividing", "ragged"), TABLE, ids=[row[0] for row in TABLE])
def test_optimum(name: str, operator: Operator, kib: tuple[int, int, int], dividing: int, ragged: int | None) -> None:
    machine = scopes(*(k * KIB for k in kib))
    plan = planner.solve(operator, machine, tiles="divisors")
    assert (plan.status, plan.objective.value, plan.objective.bound) == ("optimal", dividing, dividing)
    plan.verify()
    plan = planner.solve(operator, machine, tiles="ragged")
    assert plan.status == "optimal"
    assert plan.objective.value == plan.objective.bound
    assert plan.objective.value is not None
    if ragged is None:
        assert plan.objective.value <= dividing
    else:
        assert plan.objective.value == ragged
    plan.verify()
