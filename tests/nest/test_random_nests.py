"""Random nests: check, interpreter and reference agree on every byte and every bit, whatever the order and the tiles."""

from __future__ import annotations

import hand_plans
from hypothesis import HealthCheck, given, note, settings
from random_nests import plans, written

from planner import Plan
from planner.nest.lower import lower


@settings(max_examples=400, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(plans())
def test_every_nest_computes_the_operator_and_moves_what_is_counted(plan: Plan) -> None:
    note(written(plan))
    plan.verify()


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(plans())
def test_the_printed_kernel_names_every_buffer_once(plan: Plan) -> None:
    note(written(plan))
    text = str(lower(plan))
    for buffer in plan.buffers:
        assert text.count(f"visit {buffer.operand}@{buffer.memory}\n") == 1


@settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(plans())
def test_a_plan_of_the_same_nest_is_the_same(plan: Plan) -> None:
    note(written(plan))
    assert hand_plans.plan_of(plan.operator, plan.machine, plan.nest) == plan
