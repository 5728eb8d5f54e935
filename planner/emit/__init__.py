"""Kernel -> text: one module a target. A new target is a module and a line in `TARGETS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from planner.emit import c, mlir, python, tvmscript
from planner.errors import SpecError
from planner.nest.ir import Kernel
from planner.nest.lower import lower
from planner.plan import Plan


@dataclass(frozen=True, slots=True)
class Target:
    """What can be written for one target."""

    source: Callable[[Kernel], str]
    """The kernel alone."""
    files: Callable[[Plan], dict[str, str]] | None = None
    """The kernel and all that a first run of it needs, by file name; None if the kernel is one file that runs by itself."""


TARGETS: dict[str, Target] = {
    "python": Target(python.emit),
    "c": Target(c.emit, c.files),
    "tvmscript": Target(tvmscript.emit),
    "mlir": Target(mlir.emit),
}


def emit(plan: Plan, target: str) -> str:
    """Source of a plan's kernel. SpecError for an unknown target or a plan without a nest."""
    return _target(plan, target).source(lower(plan))


def emit_files(plan: Plan, target: str) -> dict[str, str] | None:
    """The files of a plan's kernel by name, for a target that needs several; None for one that doesn't."""
    files = _target(plan, target).files
    return None if files is None else files(plan)


def _target(plan: Plan, target: str) -> Target:
    if target not in TARGETS:
        raise SpecError(f"target {target!r} is not known; known: {', '.join(TARGETS)}")
    if not plan.nest:
        raise SpecError(f"there is no kernel to emit: the plan's status is {plan.status}")
    return TARGETS[target]
