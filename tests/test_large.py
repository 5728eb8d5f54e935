"""Operators whose extents are too long for exhaustive tables: still bounded, still verified."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from conftest import ROOT, machine

import planner
from planner import Operator, SpecError


def test_a_full_hd_picture() -> None:
    operator = planner.conv2d((1, 16, 1080, 1920), (32, 16, 3, 3), pads=1, bias=True, output_dtype="int8")
    plan = planner.solve(operator, machine("forum"))
    assert plan.status == "optimal"
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
    assert plan.gap is not None and plan.gap < 1  # how small depends on the time
    plan.verify()


def test_verify_stays_below_a_gibibyte() -> None:
    """A convolution whose windows, copied out for every tap, would take 5 GiB; its one tile is the whole picture."""
    program = (
        "import resource, planner, conftest\n"
        "plan = planner.solve(planner.conv2d((1, 16, 540, 960), (32, 16, 3, 3), pads=1), conftest.one_scope(80 << 20))\n"
        "assert plan.transfers == 3, plan.transfers\n"
        "plan.verify()\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1 << 20  # KiB


def test_verify_refuses_what_would_not_fit() -> None:
    plan = planner.solve(planner.matmul(20_000, 20_000, 4), machine("forum"))
    with pytest.raises(SpecError, match=r"a run of the kernel takes \d+ B .* the plan itself has been checked"):
        plan.verify()


@pytest.mark.parametrize("extent", [10**10 + 1, 10**18, 2**200])
def test_extents_beyond_counting(extent: int) -> None:
    """Refused at once, with the dim, its extent and the limit."""
    with pytest.raises(SpecError, match=rf"dim m .* has {extent} points, and the solver takes 10000000000"):
        planner.solve(planner.matmul(extent, 2, 2), machine("forum"))
