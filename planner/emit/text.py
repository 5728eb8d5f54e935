"""Positions and conditions as text: the same in every language, but for its signs."""

from __future__ import annotations

from dataclasses import dataclass

from planner.emit.index import Atom, Choice, Compare, Condition, Every, Extreme, Index, Quotient, Some, Unless, Variable


@dataclass(frozen=True, slots=True)
class Notation:
    """How a language writes what positions and conditions are made of: templates, with the names of the parts in them."""

    scaled: str
    extreme: str
    quotient: str
    choice: str
    every: str
    some: str
    unless: str
    constant_first: bool
    """Whether a constant goes before what is subtracted: `c - x`, not `-x + c`."""

    def index(self, index: Index) -> str:
        """A position: what is added first, what is subtracted after it."""
        if not index.terms:
            return str(index.constant)
        signed = [(a, self._term(atom, abs(a))) for atom, a in sorted(index.terms, key=lambda term: term[1] < 0)]
        if self.constant_first and signed[0][0] < 0 < index.constant:
            signed.insert(0, (1, str(index.constant)))
        elif index.constant:
            signed.append((index.constant, str(abs(index.constant))))
        (sign, first), *rest = signed
        return " ".join([f"-{first}" if sign < 0 else first, *(f"{'-' if a < 0 else '+'} {text}" for a, text in rest)])

    def _term(self, atom: Atom, factor: int) -> str:
        text = self._atom(atom)
        return text if factor == 1 else self.scaled.format(atom=text, factor=factor)

    def _atom(self, atom: Atom) -> str:
        match atom:
            case Variable(name):
                return name
            case Extreme(kind, a, b):
                return self.extreme.format(kind=kind, a=self.index(a), b=self.index(b))
            case Quotient(of, by):
                return self.quotient.format(of=self.index(of), by=by)
            case Choice(condition, yes, no):
                return self.choice.format(condition=self.condition(condition), yes=self.index(yes), no=self.index(no))

    def condition(self, condition: Condition) -> str:
        """A condition."""
        match condition:
            case Compare(kind, a, b):
                return f"{self.index(a)} {kind} {self.index(b)}"
            case Every(of):
                return self.every.join(self._within(c, Some) for c in of)
            case Some(of):
                return self.some.join(self._within(c, Every) for c in of)
            case Unless(Compare("==", a, b)):
                return f"{self.index(a)} != {self.index(b)}"
            case Unless(of):
                return self.unless.format(of=self.condition(of))

    def _within(self, condition: Condition, other: type[Every | Some]) -> str:
        """A condition inside of another one, in brackets if it is of the other kind."""
        text = self.condition(condition)
        return f"({text})" if isinstance(condition, other) else text


def bracketed(text: str) -> str:
    """In brackets, unless it is a name, a number, a call or already bracketed."""
    depth = 0
    for i, c in enumerate(text[:-1]):
        depth += (c in "([") - (c in ")]")
        if depth == 0 and not _is_name(text[: i + 1]):
            return f"({text})"
    return text


def _is_name(text: str) -> bool:
    return all(c.isalnum() or c in "_." for c in text)
