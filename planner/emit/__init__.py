"""Kernel -> text: one module a target. A new target is a module and a line in `TARGETS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from planner.check import check
from planner.emit import c, mlir, mlir_transform, python, tvm_schedule, tvmscript
from planner.emit.names import ascii_spelled
from planner.errors import SpecError
from planner.nest.ir import Kernel
from planner.nest.lower import lower
from planner.plan import Plan


@dataclass(frozen=True, slots=True)
class Target:
    """What can be written for one target."""

    source: Callable[[Kernel], str]
    """The kernel alone."""
    ending: str
    """Of the kernel's file."""
    files: Callable[[Plan], dict[str, str]] | None = None
    """The kernel and all that a first run of it needs, by file name; None if that is the kernel alone."""


TARGETS: dict[str, Target] = {
    "python": Target(python.emit, ".py"),
    "c": Target(c.emit, ".c", c.files),
    "tvmscript": Target(tvmscript.emit, ".tvmscript.py"),
    "tvm-schedule": Target(tvm_schedule.emit, "_schedule.py"),
    "mlir": Target(mlir.emit, ".mlir"),
    "mlir-transform": Target(mlir_transform.emit, "_transform.mlir"),
}


def emit(plan: Plan, target: str) -> str:
    """Source of a plan's kernel. SpecError for an unknown target or a plan without a nest.

    VerificationError if the plan breaks a rule: no kernel of a broken plan leaves the house.
    """
    return _target(plan, target).source(lower(plan))


def emit_files(plan: Plan, target: str) -> dict[str, str]:
    """All files of a plan's kernel, by name. SpecError as `emit`."""
    found = _target(plan, target)
    if found.files is not None:
        return found.files(plan)
    return {f"{ascii_spelled(plan.operator.name)}{found.ending}": found.source(lower(plan))}


def _target(plan: Plan, target: str) -> Target:
    if target not in TARGETS:
        raise SpecError(f"target {target!r} is not known; known: {', '.join(TARGETS)}")
    if not plan.nest:
        raise SpecError(f"there is no kernel to emit: the plan's status is {plan.status}")
    check(plan)
    return TARGETS[target]
