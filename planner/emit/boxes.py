"""The box of a tile along one axis of an operand: where it starts, its step, and how many points it has.

The step is the gcd of the coefficients whose dims have more than one point; a ragged tail can have one point where whole tiles
have more, so that the step may depend on the tile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd

from planner.emit.index import Compare, Condition, Index, choose, quotient, total


@dataclass(frozen=True, slots=True)
class Range:
    """The current range of a dim: `[start, end)`, of `fewest` to `most` points."""

    start: Index
    end: Index
    fewest: int
    most: int

    @property
    def size(self) -> Index:
        return Index((), self.most) if self.fewest == self.most else self.end - self.start


@dataclass(frozen=True, slots=True)
class Lattice:
    """A box along one axis."""

    step: int
    count: Index


@dataclass(frozen=True, slots=True)
class Fork:
    """A box along one axis whose step depends on whether a dim has more than one point left."""

    condition: Condition
    yes: Lattice | Fork
    no: Lattice | Fork


def each_step(box: Lattice | Fork, figure: Callable[[Lattice], Index]) -> Index:
    """A figure of the box, whatever its step."""
    if isinstance(box, Lattice):
        return figure(box)
    return choose(box.condition, each_step(box.yes, figure), each_step(box.no, figure))


def lattice(terms: Sequence[tuple[int, Range]]) -> Lattice | Fork:
    """The box that these coefficients and ranges span: the gcd of those with more than one point is its step."""
    sure = [(abs(a), r) for a, r in terms if r.fewest > 1]
    return _lattice_of(sure, [(abs(a), r) for a, r in terms if r.fewest == 1 and r.most > 1])


def _lattice_of(sure: list[tuple[int, Range]], maybe: list[tuple[int, Range]]) -> Lattice | Fork:
    step = gcd(*(a for a, _ in sure))
    fitting = [t for t in maybe if step and t[0] % step == 0]
    rest = [t for t in maybe if t not in fitting]
    if not rest or (not step and len(rest) == 1):
        along = [*sure, *maybe]
        step = step or gcd(*(a for a, _ in along)) or 1
        return Lattice(step, quotient(total((r.size - 1) * a for a, r in along), step) + 1)
    (a, first), *others = rest
    condition = Compare("<", Index((), 1), first.size)
    return Fork(
        condition,
        _lattice_of([*sure, (a, first)], [*fitting, *others]),
        _lattice_of(sure, [*fitting, *others]),
    )
