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

LARGEST_BYTES = 768 << 20
"""What a run may take: tensors, accumulators and scopes. The rest of the process stays well below another 256 MiB."""


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
    if (needed := _run_bytes(plan)) > LARGEST_BYTES:
        raise SpecError(
            f"a run of the kernel takes {needed} B for tensors, accumulators and scopes, and at most {LARGEST_BYTES} are "
            "allowed; the plan itself has been checked: it obeys every rule and moves what it says"
        )
    inputs = random_inputs(plan.operator, seed)
    report = interpret(lower(plan), inputs)
    _compare_links(plan, report)
    # An epilogue saturates and clips: two wrong sums often have the right output. So both are compared.
    accumulators, outputs = _Comparison(tolerance(plan.operator)), _Comparison(tolerance(plan.operator))
    for box, sums in reference.slabs(plan.operator, inputs):
        accumulators.add(report.sums[box], sums)
        outputs.add(report.output[box], reference.epilogue(plan.operator, sums, box))
    if wrong := accumulators.different():
        raise VerificationError(f"{wrong} of {accumulators.seen} accumulators differ from the reference")
    if wrong := outputs.different():
        raise VerificationError(f"{wrong} of {outputs.seen} outputs differ from the reference")
    return Verification(outputs.seen, plan.total_traffic_bytes, plan.transfers, report)


def _run_bytes(plan: Plan) -> int:
    """What tensors, accumulators, scopes and the arithmetic of a tile take in a run."""
    operator = plan.operator
    tensors = sum(prod(o.shape) * o.element_bytes for o in operator.operands.values())
    # Finished ones with a mark each; and again, if some leave for the backing store before they are finished.
    spilled = any(b.role == "output" and plan.traffic[n].read_bytes for n, b in operator.operands.items())
    accumulators = (
        (1 + spilled) * prod(operator.output.shape) * (operator.buffer_element_bytes(operator.output_name) + 1)
    )
    # A byte of state for each slot; and the accumulators of a tile again: the old ones, the new ones, their sum.
    scopes = sum(b.size_bytes + prod(b.shape) for b in plan.buffers)
    tile = max(b.size_bytes for b in plan.buffers if b.operand == operator.output_name)
    return tensors + accumulators + scopes + 3 * tile


def _compare_links(plan: Plan, report: Report) -> None:
    for link in plan.links:
        moved = report.links[f"{link.operand}@{link.memory}"]
        predicted = (link.read_bytes, link.written_bytes, link.loads, link.stores)
        counted = (moved.read_bytes, moved.written_bytes, moved.loads, moved.stores)
        if predicted != counted:
            raise VerificationError(
                f"{link.operand}@{link.memory}: predicted {predicted}, counted {counted} (bytes read, written; loads, stores)"
            )


class _Comparison:
    """Counts what differs, part by part. Floats may lie off a little, relative to themselves and to the largest of all."""

    def __init__(self, relative: float) -> None:
        self.relative = relative
        self.seen = 0
        self._wrong = 0
        self._largest = 0.0
        self._doubtful: list[Array] = []
        """How far off those lie that the largest value so far does not excuse; a later one may."""

    def add(self, got: Array, expected: Array) -> None:
        self.seen += expected.size
        if expected.dtype.kind != "f":
            self._wrong += int(np.count_nonzero(got != expected))
            return
        # An infinite one is equal to itself only, and does not widen what the others may be off.
        finite = np.isfinite(expected) & np.isfinite(got)
        self._wrong += int(np.count_nonzero(~finite & ~((got == expected) | (np.isnan(got) & np.isnan(expected)))))
        values = expected[finite].astype(np.float64)
        off = np.abs(got[finite] - values) - self.relative * np.abs(values)
        self._largest = max(self._largest, float(np.abs(values).max(initial=0)))
        self._doubtful.append(off[off > self.relative * self._largest])

    def different(self) -> int:
        """Elements that differ."""
        return self._wrong + sum(int(np.count_nonzero(o > self.relative * self._largest)) for o in self._doubtful)
