"""Positions, conditions and numbers as C text."""

from __future__ import annotations

from math import prod

import numpy as np

from planner.emit.index import Atom, Choice, Compare, Condition, Every, Extreme, Index, Quotient, Some, Unless, Variable
from planner.emit.program import Cast, Element, Number, Operation
from planner.spec.operator import DType

TYPES: dict[DType, str] = {
    "int8": "int8_t", "uint8": "uint8_t", "int16": "int16_t", "uint16": "uint16_t", "int32": "int32_t",
    "uint32": "uint32_t", "int64": "int64_t", "float32": "float", "float64": "double",
}  # fmt: skip


def product(name: str, factor: Index) -> str:
    """A variable times a position."""
    if factor == Index((), 1):
        return name
    return f"{name} * {bracketed(index_text(factor))}"


def bare(text: str) -> str:
    """Without brackets around it all."""
    if text.startswith("(") and bracketed(text) == text:
        return text[1:-1]
    return text


def bracketed(text: str) -> str:
    """In brackets, unless it is a name, a number or already bracketed."""
    if text.replace("_", "a").isalnum():
        return text
    depth = 0
    for i, c in enumerate(text):
        depth += (c in "([") - (c in ")]")
        if depth == 0 and i < len(text) - 1 and not (text[: i + 1].replace("_", "a").isalnum()):
            return f"({text})"
    return text


def index_text(index: Index) -> str:
    """As C: what is added first, what is subtracted after it."""
    parts: list[str] = []
    for atom, a in sorted(index.terms, key=lambda term: term[1] < 0):
        text = _atom(atom)
        times = text if abs(a) == 1 else f"{abs(a)} * {text}"
        parts.append(times if not parts and a > 0 else f"- {times}" if a < 0 else f"+ {times}")
    if index.constant or not parts:
        if not parts:
            return str(index.constant)
        parts.append(f"{'-' if index.constant < 0 else '+'} {abs(index.constant)}")
    if parts[0].startswith("- "):
        if index.constant > 0:  # c - x reads better than -x + c
            return " ".join([str(index.constant), *parts[:-1]])
        parts[0] = "-" + parts[0][2:]
    return " ".join(parts)


def _atom(atom: Atom) -> str:
    match atom:
        case Variable(name):
            return name
        case Extreme(kind, a, b):
            return f"planner_{kind}({index_text(a)}, {index_text(b)})"
        case Quotient(of, by):
            return f"(({index_text(of)}) / {by})"
        case Choice(condition, yes, no):
            return f"({condition_text(condition)} ? {index_text(yes)} : {index_text(no)})"


def condition_text(condition: Condition) -> str:
    """A condition."""
    match condition:
        case Compare(kind, a, b):
            return f"{index_text(a)} {kind} {index_text(b)}"
        case Every(of):
            return " && ".join(f"({condition_text(c)})" if isinstance(c, Some) else condition_text(c) for c in of)
        case Some(of):
            return " || ".join(f"({condition_text(c)})" if isinstance(c, Every) else condition_text(c) for c in of)
        case Unless(Compare("==", a, b)):
            return f"{index_text(a)} != {index_text(b)}"
        case Unless(of):
            return f"!({condition_text(of)})"


def number(literal: Number) -> str:
    """A literal."""
    if literal.dtype.startswith("float"):
        return _float(float(literal.value), literal.dtype)
    return _integer(int(literal.value), literal.dtype)


def _float(value: float, dtype: DType) -> str:
    if np.isinf(value):
        return "-INFINITY" if value < 0 else "INFINITY"
    return value.hex() + ("f" if dtype == "float32" else "")


def _integer(value: int, dtype: DType) -> str:
    # The most negative one is no literal: it would be the minus of a number that is too large.
    if dtype == "int64" and not -(2**31) < value < 2**31:
        return "INT64_MIN" if value == -(2**63) else f"INT64_C({value})"
    if dtype == "int32" and value == -(2**31):
        return "INT32_MIN"
    return f"{value}u" if dtype == "uint32" else str(value)


def modular(dtype: DType) -> str:
    """The unsigned type in which sums of a dtype wrap as they should."""
    return "uint64_t" if dtype == "int64" else "uint32_t"


def fits_int(value: Operation) -> bool:
    """Whether the operation on two elements, as they are stored, stays within int32_t."""
    limits: list[int] = []
    for part in value.of:
        inner = part.of if isinstance(part, Cast) else part
        if not isinstance(inner, Element) or inner.dtype not in ("int8", "uint8", "int16", "uint16"):
            return False
        info = np.iinfo(inner.dtype)
        limits.append(max(-int(info.min), int(info.max)))
    return (prod(limits) if value.kind == "multiply" else sum(limits)) < 2**31
