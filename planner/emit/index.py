"""Positions of the scalar program: exact integers as sums of terms, so that what cancels is never printed, and conditions.

What is known before the loops run is decided here: an extreme of two positions that differ by a constant, a condition that
always holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Variable:
    """A loop variable or a named position."""

    name: str


@dataclass(frozen=True, slots=True)
class Extreme:
    """The least (`min`) or the greatest (`max`) of two positions."""

    kind: Literal["min", "max"]
    a: Index
    b: Index


@dataclass(frozen=True, slots=True)
class Quotient:
    """A position that is never negative, divided by a positive integer, rounded down."""

    of: Index
    by: int


@dataclass(frozen=True, slots=True)
class Choice:
    """One position if the condition holds, else the other."""

    condition: Condition
    yes: Index
    no: Index


Atom = Variable | Extreme | Quotient | Choice


@dataclass(frozen=True, slots=True)
class Index:
    """`sum(coefficient * atom) + constant`, with no atom twice and no coefficient zero."""

    terms: tuple[tuple[Atom, int], ...] = ()
    constant: int = 0

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.terms, self.constant + other)
        total = dict(self.terms)
        for atom, a in other.terms:
            total[atom] = total.get(atom, 0) + a
        return Index(tuple((atom, a) for atom, a in total.items() if a), self.constant + other.constant)

    def __sub__(self, other: Index | int) -> Index:
        return self + other * -1

    def __mul__(self, factor: int) -> Index:
        return Index(tuple((atom, a * factor) for atom, a in self.terms) if factor else (), self.constant * factor)

    @property
    def fixed(self) -> bool:
        """Whether it is a constant."""
        return not self.terms


def variable(name: str) -> Index:
    return Index(((Variable(name), 1),))


def total(parts: Iterable[Index]) -> Index:
    result = Index()
    for part in parts:
        result = result + part
    return result


def _atom(atom: Atom) -> Index:
    return Index(((atom, 1),))


def least(a: Index, b: Index) -> Index:
    """The smaller of two; decided now if they differ by a constant."""
    apart = a - b
    if apart.fixed:
        return a if apart.constant <= 0 else b
    return _atom(Extreme("min", a, b))


def greatest(a: Index, b: Index) -> Index:
    """The larger of two; decided now if they differ by a constant."""
    apart = a - b
    if apart.fixed:
        return a if apart.constant >= 0 else b
    return _atom(Extreme("max", a, b))


def quotient(a: Index, by: int) -> Index:
    """`a / by` rounded down, for a that is never negative."""
    if by == 1:
        return a
    if a.fixed:
        return Index((), a.constant // by)
    if all(c % by == 0 for _, c in a.terms) and a.constant % by == 0:
        return Index(tuple((atom, c // by) for atom, c in a.terms), a.constant // by)
    return _atom(Quotient(a, by))


def rounded_up(a: Index, by: int) -> Index:
    """`max(a, 0) / by` rounded up."""
    return quotient(greatest(a, Index()) + (by - 1), by)


def choose(condition: Condition, yes: Index, no: Index) -> Index:
    """`yes` where the condition holds; decided now if it is known."""
    known = simplified(condition)
    if isinstance(known, bool):
        return yes if known else no
    return yes if yes == no else _atom(Choice(known, yes, no))


@dataclass(frozen=True, slots=True)
class Compare:
    """A comparison of two positions."""

    kind: Literal["==", "<", "<="]
    a: Index
    b: Index


@dataclass(frozen=True, slots=True)
class Every:
    """All of the conditions hold; so it does if there are none."""

    of: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Some:
    """One of the conditions holds, at least."""

    of: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Unless:
    """The condition does not hold."""

    of: Condition


Condition = Compare | Every | Some | Unless


def _known(condition: Condition) -> bool | None:
    """Whether a condition holds, where that does not depend on the loops."""
    match condition:
        case Compare(kind, a, b):
            apart = a - b
            if not apart.fixed:
                return None
            return {"==": apart.constant == 0, "<": apart.constant < 0, "<=": apart.constant <= 0}[kind]
        case Every(of):
            known = [_known(c) for c in of]
            return False if False in known else None if None in known else True
        case Some(of):
            known = [_known(c) for c in of]
            return True if True in known else None if None in known else False
        case Unless(of):
            inner = _known(of)
            return None if inner is None else not inner


def simplified(condition: Condition) -> Condition | bool:
    """Without the parts that are known; a bool if nothing else is left."""
    if (known := _known(condition)) is not None:
        return known
    if isinstance(condition, Unless):
        inner = simplified(condition.of)
        return not inner if isinstance(inner, bool) else Unless(inner)
    if isinstance(condition, Every | Some):
        left = tuple(dict.fromkeys(c for c in condition.of if _known(c) is None))
        return left[0] if len(left) == 1 else type(condition)(left)
    return condition
