"""Whatever is changed in a plan, `check` says so, or the changed plan is right as well: it then runs and is verified."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from random_nests import plans, written

from planner import Plan, VerificationError
from planner.check import check
from planner.plan import Attach, Loop

Draw = Callable[[st.SearchStrategy[Any]], Any]


@st.composite
def mutated(draw: Draw) -> Plan:
    """A random plan with one thing changed: a figure of a buffer or link, an entry moved, lost, doubled or altered."""
    plan = draw(plans())
    part = draw(st.sampled_from(["nest", "nest", "buffers", "links", "status", "objective"]))
    if part == "status":
        return replace(plan, status=draw(st.sampled_from(["optimal", "infeasible", "unknown"])))
    if part == "objective":
        value = plan.objective.value + draw(st.sampled_from([-1, 1]))
        return replace(plan, objective=replace(plan.objective, value=value))
    items = list(getattr(plan, part))
    at = draw(st.integers(0, len(items) - 1))
    match draw(st.sampled_from(["lose", "double", "swap", "change", "change"])):
        case "lose":
            del items[at]
        case "double":
            items.insert(at, items[at])
        case "swap":
            other = draw(st.integers(0, len(items) - 1))
            items[at], items[other] = items[other], items[at]
        case _:
            items[at] = _changed(draw, plan, items[at])
    return replace(plan, **{part: tuple(items)})


def _changed(draw: Draw, plan: Plan, item: Any) -> Any:
    match item:
        case Loop():
            other = draw(st.sampled_from(list(plan.operator.dims)))
            return Loop(other, item.tile) if other != item.dim else Loop(item.dim, item.tile + draw(st.integers(-2, 2)))
        case Attach():
            return Attach(item.operand, draw(st.sampled_from([m.name for m in plan.machine.memories])))
        case _:
            name = draw(st.sampled_from([f.name for f in fields(item)]))
            old = getattr(item, name)
            if isinstance(old, int):
                return replace(item, **{name: old + draw(st.sampled_from([-64, -2, -1, 1, 2, 64]))})
            if isinstance(old, tuple):
                axis = draw(st.integers(0, len(old) - 1))
                return replace(
                    item, **{name: (*old[:axis], old[axis] + draw(st.sampled_from([-1, 1])), *old[axis + 1 :])}
                )
            return replace(item, **{name: f"{old}x"})


@settings(max_examples=400, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(mutated())
def test_it_is_caught_or_right(plan: Plan) -> None:
    note(written(plan))
    try:
        check(plan)
    except VerificationError:
        return
    if plan.status in ("optimal", "feasible"):
        plan.verify()
