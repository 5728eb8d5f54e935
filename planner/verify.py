"""Plan in, proof out: `check`, then the kernel run by the interpreter, its result and its counters compared."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from planner.check import check
from planner.errors import SpecError, VerificationError
from planner.nest import reference
from planner.nest.arithmetic import tolerance
from planner.nest.interpret import Report, interpret
from planner.nest.lower import lower
from planner.nest.reference import Array, random_inputs
from planner.plan import Plan

LARGEST_BYTES = 1 << 30
"""Tensors in all, of a plan whose kernel is run."""


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

    Runs on random inputs from `seed`. Raises VerificationError at the first thing that is wrong; SpecError if there is no
    nest, or tensors too large to run on, after the plan has been checked.
    """
    if not plan.nest:
        raise SpecError(f"there is nothing to verify: the plan's status is {plan.status}")
    check(plan)
    tensors = sum(prod(o.shape) * o.element_bytes for o in plan.operator.operands.values())
    if tensors > LARGEST_BYTES:
        raise SpecError(
            f"the tensors have {tensors} B, and a run takes at most {LARGEST_BYTES}; the plan itself has been checked: it "
            "obeys every rule and moves what it says"
        )
    inputs = random_inputs(plan.operator, seed)
    report = interpret(lower(plan), inputs)
    _compare_links(plan, report)
    sums = reference.sums(plan.operator, inputs)
    expected = reference.epilogue(plan.operator, sums)
    off = tolerance(plan.operator)
    # An epilogue saturates and clips: two wrong sums often have the right output. So both are compared.
    if wrong := int(np.count_nonzero(~_equal(report.sums, sums, off))):
        raise VerificationError(f"{wrong} of {sums.size} accumulators differ from the reference")
    different = int(np.count_nonzero(~_equal(report.output, expected, off)))
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


def _equal(got: Array, expected: Array, relative: float) -> Array:
    """Equal elements. An infinite one counts as equal to itself only, and does not widen what the others may be off."""
    if expected.dtype.kind != "f":
        return got == expected
    scale = float(np.abs(expected, where=np.isfinite(expected), out=np.zeros_like(expected)).max(initial=0))
    return np.isclose(got, expected, rtol=relative, atol=relative * scale, equal_nan=True)
