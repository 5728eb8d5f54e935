"""Plan in, proof out: `check`, then the kernel run by the interpreter, its result and its counters compared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.check import check
from planner.errors import VerificationError
from planner.nest.interpret import Report, interpret
from planner.nest.lower import lower
from planner.nest.reference import Array, random_inputs, reference
from planner.plan import Plan

FLOAT_TOLERANCE = 1e-5
"""Relative; integers must be equal bit for bit."""


@dataclass(frozen=True, slots=True)
class Verification:
    """What was compared."""

    outputs: int
    """Elements of the output, all equal to the reference."""
    traffic_bytes: int
    """Bytes from and to the backing store: the same by model, check and interpreter."""
    transfers: int
    report: Report


def verify(plan: Plan, seed: int = 0) -> Verification:
    """Prove a plan: it obeys every rule, its kernel computes the operator and moves exactly the predicted bytes.

    Runs on random inputs from `seed`. Raises VerificationError at the first thing that is wrong, or if there is no nest.
    """
    if not plan.nest:
        raise VerificationError(f"there is nothing to verify: the plan's status is {plan.status}")
    check(plan)
    inputs = random_inputs(plan.operator, seed)
    report = interpret(lower(plan), inputs)
    _compare_links(plan, report)
    expected = reference(plan.operator, inputs)
    different = int(np.count_nonzero(~_equal(report.output, expected)))
    if different:
        raise VerificationError(f"{different} of {expected.size} outputs differ from the reference")
    return Verification(expected.size, plan.total_traffic_bytes, plan.transfers, report)


def _compare_links(plan: Plan, report: Report) -> None:
    for link in plan.links:
        moved = report.links[f"{link.operand}@{link.memory}"]
        predicted = (link.read_bytes, link.written_bytes, link.loads, link.stores)
        counted = (moved.read_bytes, moved.written_bytes, moved.loads, moved.stores)
        if predicted != counted:
            raise VerificationError(
                f"{link.operand}@{link.memory}: predicted {predicted}, counted {counted} (bytes read, written; loads, stores)"
            )


def _equal(got: Array, expected: Array) -> Array:
    if expected.dtype.kind != "f":
        return got == expected
    scale = float(np.abs(expected).max(initial=1e-30))
    return np.isclose(got, expected, rtol=FLOAT_TOLERANCE, atol=FLOAT_TOLERANCE * scale, equal_nan=True)
