"""Positions, conditions and numbers as C text."""

from __future__ import annotations

from math import prod

import numpy as np

from planner.emit.index import Index
from planner.emit.program import Cast, Element, Number, Operation
from planner.emit.text import Notation, bracketed
from planner.spec.operator import DType

TYPES: dict[DType, str] = {
    "int8": "int8_t", "uint8": "uint8_t", "int16": "int16_t", "uint16": "uint16_t", "int32": "int32_t",
    "uint32": "uint32_t", "int64": "int64_t", "float32": "float", "float64": "double",
}  # fmt: skip

_NOTATION = Notation(
    scaled="{factor} * {atom}",
    extreme="planner_{kind}({a}, {b})",
    quotient="(({of}) / {by})",
    choice="({condition} ? {yes} : {no})",
    every=" && ",
    some=" || ",
    unless="!({of})",
    constant_first=True,
)
index_text, condition_text = _NOTATION.index, _NOTATION.condition


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
