"""Affine index expressions: `"2*p + r - 1"` in, `Affine(terms=(("p", 2), ("r", 1)), offset=-1)` out, and back."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

LONGEST = 200
"""Characters of an index: far beyond any real one, and too few to exhaust a parser."""


@dataclass(frozen=True, slots=True)
class Affine:
    """`sum(coefficient * dim) + offset`; every dim once, no coefficient zero, dims in the order they were written."""

    terms: tuple[tuple[str, int], ...] = ()
    offset: int = 0

    @classmethod
    def parse(cls, text: str | int) -> Affine:
        """Read an integer affine expression; ValueError says what is not affine."""
        if isinstance(text, int):
            return cls((), text)
        if len(text) > LONGEST:
            raise ValueError(f"index {text[:20]!r}... has {len(text)} characters; an index has at most {LONGEST}")
        try:
            # Spaces around the line would be indentation to Python's parser; deep nesting exhausts its stack.
            tree = ast.parse(text.strip(), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise ValueError(f"index {text!r} is no expression; write for instance '2*p + r - 1'") from None
        coefficients, offset = _linear(tree.body, text)
        return cls(tuple((dim, a) for dim, a in coefficients.items() if a != 0), offset)

    @property
    def dims(self) -> tuple[str, ...]:
        """The dims it depends on."""
        return tuple(dim for dim, _ in self.terms)

    def step(self, tile: Mapping[str, int]) -> int:
        """Step of the lattice that a box of `tile` spans: gcd of the coefficients whose tile exceeds 1, else 1."""
        return gcd(*(abs(a) for dim, a in self.terms if tile[dim] > 1)) or 1

    def points(self, tile: Mapping[str, int]) -> int:
        """How many lattice points a box of `tile` spans, with no clipping."""
        return sum(abs(a) * (tile[dim] - 1) for dim, a in self.terms) // self.step(tile) + 1

    def reach(self, extents: Mapping[str, int]) -> tuple[int, int]:
        """The lowest and the highest index over the whole iteration space."""
        ends = [a * (extents[dim] - 1) for dim, a in self.terms]
        return self.offset + sum(min(end, 0) for end in ends), self.offset + sum(max(end, 0) for end in ends)

    def lowest(self, origin: Mapping[str, int], tile: Mapping[str, int]) -> int:
        """The smallest index in the box that starts at `origin`."""
        return self.offset + sum(a * (origin[d] + (tile[d] - 1 if a < 0 else 0)) for d, a in self.terms)

    def __str__(self) -> str:
        parts: list[str] = []
        for dim, a in self.terms:
            sign = "-" if a < 0 else "+"
            parts += [sign, dim if abs(a) == 1 else f"{abs(a)}*{dim}"]
        if self.offset or not parts:
            parts += ["-" if self.offset < 0 else "+", str(abs(self.offset))]
        text = " ".join(parts)
        return text[2:] if text.startswith("+ ") else "-" + text[2:]


def _linear(node: ast.expr, text: str) -> tuple[dict[str, int], int]:
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return {}, value
        case ast.Name(id=name):
            return {name: 1}, 0
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as op, operand=inner):
            coefficients, offset = _linear(inner, text)
            sign = -1 if isinstance(op, ast.USub) else 1
            return {d: sign * a for d, a in coefficients.items()}, sign * offset
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right):
            coefficients, offset = _linear(left, text)
            more, more_offset = _linear(right, text)
            sign = -1 if isinstance(op, ast.Sub) else 1
            for d, a in more.items():
                coefficients[d] = coefficients.get(d, 0) + sign * a
            return coefficients, offset + sign * more_offset
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            first, first_offset = _linear(left, text)
            second, second_offset = _linear(right, text)
            if first and second:
                raise ValueError(
                    f"index {text!r} multiplies two dims; it must be affine: integers times dims, added up"
                )
            coefficients, scale = (first, second_offset) if first else (second, first_offset)
            return {d: scale * a for d, a in coefficients.items()}, first_offset * second_offset
        case _:
            raise ValueError(f"index {text!r} is not affine: use +, -, * with integers and dims")
