"""Kernel -> text: one module a target, each with `emit(kernel) -> str`. A new target is a module and a line in `TARGETS`."""

from __future__ import annotations

from collections.abc import Callable

from planner.emit import python
from planner.errors import SpecError
from planner.nest.ir import Kernel
from planner.nest.lower import lower
from planner.plan import Plan

TARGETS: dict[str, Callable[[Kernel], str]] = {"python": python.emit}


def emit(plan: Plan, target: str) -> str:
    """Source of a plan's kernel. SpecError for an unknown target or a plan without a nest."""
    if target not in TARGETS:
        raise SpecError(f"target {target!r} is not known; known: {', '.join(TARGETS)}")
    if not plan.nest:
        raise SpecError(f"there is no kernel to emit: the plan's status is {plan.status}")
    return TARGETS[target](lower(plan))
