"""The transfers that fill and empty a buffer: each box as a start, a step and a count along each axis, on both sides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from planner.emit.boxes import Fork, Lattice, Range, each_step, lattice
from planner.emit.index import Compare, Every, Index, Some, least, rounded_up, total
from planner.emit.program import Copy, Element, Fill, Number, Side, Statement, View, branch, named
from planner.nest.ir import Buffer
from planner.spec.affine import Affine
from planner.spec.operator import Operator

Box = Lattice | Fork
Apart = Callable[[Lattice], int]
"""Elements or slots between neighbours of a box, which depends on the box's step."""


@dataclass(frozen=True, slots=True)
class Filling:
    """One filling of a buffer: where its slots lie, and the ranges that it is for."""

    buffer: Buffer
    view: View
    name: str
    """The name by which its slots are reached: the view's, or that of its copy which is filled ahead."""
    tensor: str
    """Name of the whole operand in the backing store."""
    index: tuple[Affine, ...]
    ranges: Mapping[str, Range]
    above: Filling | None
    """The filling of the operand's buffer in the memory above; None below the backing store."""

    def slot(self, axis: int, low: Mapping[str, Index], high: Mapping[str, Index]) -> Index:
        """Slot of the lowest index of a box inside of this one: dims with positive coefficients are at `low`, others at `high`.

        A dim of which the buffer holds one point is at that point: it adds nothing.
        """
        parts: list[Index] = []
        for d, a in self.index[axis].terms:
            mine, step = self.ranges[d], self.buffer.steps[axis]
            if mine.most > 1:
                parts.append((low[d] - mine.start) * (a // step) if a > 0 else (mine.end - 1 - high[d]) * (-a // step))
        return total(parts)

    def element(self, at: Mapping[str, Index]) -> Element:
        """The element at a position of every dim."""
        slots = tuple(self.slot(axis, at, at) for axis in range(len(self.index)))
        return Element(self.name, slots, self.view.dtype)

    def apart(self, axis: int) -> Apart:
        """Slots between neighbours of a box."""
        return lambda leaf: max(leaf.step // self.buffer.steps[axis], 1)

    def boxes(self) -> list[Box]:
        """What it holds, along each axis."""
        return [lattice([(a, self.ranges[d]) for d, a in axis.terms]) for axis in self.index]

    def lowest(self, axis: int) -> Index:
        """The lowest index that it holds."""
        ends = ((self.ranges[d].start if a > 0 else self.ranges[d].end - 1) * a for d, a in self.index[axis].terms)
        return total(ends) + self.index[axis].offset


def output_copy(filling: Filling, direction: Literal["load", "store"], *, results: bool) -> list[Statement]:
    """Move an output's box to the memory above, or partial sums back from there."""
    boxes = filling.boxes()
    nothing = [Index()] * len(boxes)
    own, above = _own_side(filling, boxes, nothing), _side_above(filling, boxes, nothing, partial=not results)
    to, source = (own, above) if direction == "load" else (above, own)
    counts = tuple(each_step(box, lambda leaf: leaf.count) for box in boxes)
    return [Copy(filling.buffer.name, direction, to, source, counts, results)]


def load(operator: Operator, filling: Filling, ending: str) -> list[Statement]:
    """Fill a buffer: fetch what lies inside the operand, write padding where the box reaches beyond it.

    `ending` is that of the names of positions that it needs.
    """
    operand = operator.operands[filling.buffer.operand]
    if operand.role == "output":
        return output_copy(filling, "load", results=False)
    boxes = filling.boxes()
    whole = [each_step(box, lambda leaf: leaf.count) for box in boxes]
    first, counts = [Index()] * len(boxes), list(whole)
    margins = operator.margins(filling.buffer.operand)
    padded = [axis for axis, margin in enumerate(margins) if any(margin)]
    names: list[Statement] = []
    for axis in padded:
        before, behind = margins[axis]
        low, stop = filling.lowest(axis), whole[axis]
        if before:
            skipped = each_step(boxes[axis], lambda leaf, low=low: rounded_up(low * -1, leaf.step))
            first[axis] = named(f"{filling.view.name}_first_{axis}{ending}", names, skipped)
        if behind:
            rest = low * -1 + operand.shape[axis]
            stop = each_step(boxes[axis], lambda leaf, rest=rest: least(leaf.count, rounded_up(rest, leaf.step)))
        counts[axis] = named(f"{filling.view.name}_count_{axis}{ending}", names, stop - first[axis])
    own, above = _own_side(filling, boxes, first), _side_above(filling, boxes, first, partial=False)
    fetch = Copy(filling.buffer.name, "load", own, above, tuple(counts), results=False)
    pad = Fill(filling.name, own.step, tuple(whole), Number(operator.padding_value, operand.dtype))
    beyond = Some(tuple(Compare("<", counts[axis], whole[axis]) for axis in padded))
    inside = Every(tuple(Compare("<", Index(), counts[axis]) for axis in padded))
    return [*names, *branch(beyond, [pad]), *branch(inside, [fetch])]


def _own_side(filling: Filling, boxes: Sequence[Box], first: Sequence[Index]) -> Side:
    """A filling's box in its own slots, from its element number `first` on."""
    origin = [Index()] * len(boxes)
    return _side(filling.name, origin, boxes, first, [filling.apart(axis) for axis in range(len(boxes))])


def _side_above(filling: Filling, boxes: Sequence[Box], first: Sequence[Index], *, partial: bool) -> Side:
    """Where a filling's box lies in the memory above, from its element number `first` on."""
    axes, above = range(len(boxes)), filling.above
    if above is None:
        name = filling.tensor + ("_partial" if partial else "")
        return _side(
            name, [filling.lowest(axis) for axis in axes], boxes, first, [lambda leaf: leaf.step for _ in axes]
        )
    low = {d: r.start for d, r in filling.ranges.items()}
    high = {d: r.end - 1 for d, r in filling.ranges.items()}
    origin = [above.slot(axis, low, high) for axis in axes]
    return _side(above.name, origin, boxes, first, [above.apart(axis) for axis in axes])


def _side(
    ref: str, origin: Sequence[Index], boxes: Sequence[Box], first: Sequence[Index], apart: Sequence[Apart]
) -> Side:
    starts: list[Index] = []
    steps: list[Index] = []
    for zero, box, skipped, by in zip(origin, boxes, first, apart, strict=True):
        starts.append(zero + each_step(box, lambda leaf, skipped=skipped, by=by: skipped * by(leaf)))
        steps.append(each_step(box, lambda leaf, by=by: Index((), by(leaf))))
    return Side(ref, tuple(starts), tuple(steps))
