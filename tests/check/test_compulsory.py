"""The least that any plan moves, by the report's count, the solver's, and a plan that keeps everything on chip."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import SPECS, one_scope

import planner
from planner.report import compulsory_bytes
from planner.tiling.exact import compulsory_traffic
from planner.tiling.problem import build_problem

FILES = sorted(
    p for p in (SPECS / "operators").rglob("*.yaml") if p.name not in ("27-huge.yaml", "26-pinned-window.yaml")
)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_three_counts(path: Path) -> None:
    operator, roomy = planner.load_operator(path), one_scope(1 << 30)
    operator = operator.model_copy(update={"constraints": planner.Constraints()})
    by_report = {name: compulsory_bytes(operator, name) for name in operator.operands}
    assert sum(by_report.values()) == compulsory_traffic(build_problem(operator, roomy, divisors=False))
    moved = planner.solve(operator, roomy).traffic
    assert by_report == {name: t.read_bytes + t.written_bytes for name, t in moved.items()}
