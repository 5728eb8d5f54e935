"""Random small problems: the planner's optimum is the exhaustive search's, and every figure has three equal sources."""

from __future__ import annotations

import json
from typing import Any

import pytest
from brute_force import Judge
from random_problems import deep_output, demanding, problem

import planner
from planner import Machine, Operator, VerificationError


@pytest.mark.parametrize("number", range(300))
def test_random_problem(number: int) -> None:
    _agree(*problem(number))


@pytest.mark.parametrize("number", range(0, 300, 3))
def test_demands(number: int) -> None:
    _agree(*demanding(number))


@pytest.mark.parametrize("number", range(40))
def test_partial_sums_two_scopes_deep(number: int) -> None:
    _agree(*deep_output(number))


def _agree(operator: dict[str, Any], machine: dict[str, Any]) -> None:
    """The planner's answer is the judge's; every figure has three equal sources."""
    best = Judge(operator, machine).search()
    plan = planner.solve(Operator.model_validate(operator), Machine.model_validate(machine))
    context = f"operator: {json.dumps(operator)}\nmachine: {json.dumps(machine)}"
    if best is None:
        assert plan.status == "infeasible", context
        assert plan.shortages or plan.conflicts, context
        plan.check()
        return
    assert plan.status == "optimal", context
    assert plan.total_traffic_bytes == best[0], context
    ours = (plan.total_traffic_bytes, plan.transfers, sum(b.size_bytes for b in plan.buffers))
    assert ours >= best, f"the judge has missed a better mapping\n{context}"
    if plan.ties_proved:
        assert ours == best, context
    try:
        plan.verify()
    except VerificationError as error:
        pytest.fail(f"{error}\n{context}")


@pytest.mark.parametrize("number", range(0, 120, 2))
def test_dividing_tiles(number: int) -> None:
    operator, machine = problem(number)
    best = Judge(operator, machine, divisors=True).search()
    plan = planner.solve(Operator.model_validate(operator), Machine.model_validate(machine), tiles="divisors")
    if best is None:
        assert plan.status == "infeasible"
    else:
        assert plan.total_traffic_bytes == best[0]
        plan.verify()
