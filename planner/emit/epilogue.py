"""What is done to a finished accumulator before it is stored, as values of the scalar program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product as combinations
from math import prod

from planner.emit.index import Index, least, rounded_up, total
from planner.emit.program import Cast, Number, Operation, Pick, Position, Value
from planner.errors import SpecError
from planner.spec.operator import DTYPE_BYTES, DType, Operator

MOST_UNROLLED = 1024
"""Terms of a count that are written out one by one: windows with two dims along one axis."""


def finished(operator: Operator, element: Value, at: Mapping[str, Index], let: Callable[[str, Value], Value]) -> Value:
    """The result of one accumulator at a position: average, requantise, ReLU, clip, saturate. `let` names what is used twice.

    SpecError for an average that takes too long to write out.
    """
    epilogue, output = operator.epilogue, operator.output.dtype
    floats = operator.accumulate.startswith("float")
    work: DType = operator.accumulate if floats else "int64"
    value = let("total", cast(element, work))
    if epilogue.average is not None:
        count = let("count", _window_count(operator, at, work))
        value = let("mean", _mean(value, count, floats=floats))
    zero = 0
    if (q := epilogue.requantise) is not None:
        zero = q.zero_point
        value = let("scaled", Operation("multiply", (value, Number(q.multiplier, work)), work))
        if q.shift:
            half = Operation("add", (value, Number(1 << (q.shift - 1), work)), work)
            value = let("shifted", Operation("shift_right", (half, Number(q.shift, work)), work))
        if q.zero_point:
            value = let("moved", Operation("add", (value, Number(q.zero_point, work)), work))
    if epilogue.relu:
        value = let("positive", Operation("max", (value, Number(zero, work)), work))
    if epilogue.clip is not None:
        low, high = epilogue.clip
        value = let("at_least", Operation("max", (value, Number(low, work)), work))
        value = let("clipped", Operation("min", (value, Number(high, work)), work))
    return _saturated(value, output, let)


def _saturated(value: Value, dtype: DType, let: Callable[[str, Value], Value]) -> Value:
    """Integers saturate, floats to integers round half to even first, floats are plain."""
    work = value.dtype
    if dtype.startswith("float"):
        return cast(value, dtype)
    low, high = limits(dtype)
    if not work.startswith("float"):
        kept_low, kept_high = limits(work)
        if low > kept_low:
            value = let("raised", Operation("max", (value, Number(low, work)), work))
        if high < kept_high:
            value = let("saturated", Operation("min", (value, Number(high, work)), work))
        return cast(value, dtype)
    value = let("rounded", Operation("rint", (value,), work))
    # The cast of a float beyond the integer's range would be undefined.
    above = Pick(value, Number(high, work), Cast(value, dtype), Number(high, dtype))
    return Pick(Number(low, work), value, above, Number(low, dtype))


def _window_count(operator: Operator, at: Mapping[str, Index], dtype: DType) -> Value:
    """Points of the averaged window at an output element: all, or those inside the operand; never none."""
    average = operator.epilogue.average
    assert average is not None
    operand = operator.operands[average.operand]
    covered: set[str] = set()
    counts: list[Index] = []
    for axis, size, margin in zip(operand.index, operand.shape, operator.margins(average.operand), strict=True):
        window = [(d, a) for d, a in axis.terms if d in average.dims]
        if window and average.valid and any(margin):
            covered |= {d for d, _ in window}
            base = total(at[d] * a for d, a in axis.terms if d not in average.dims) + axis.offset
            counts.append(_inside(operator, base, window, size))
    count: Value = Number(prod(operator.dims[d] for d in average.dims if d not in covered), dtype)
    if not counts:
        return count
    for each in counts:
        count = Operation("multiply", (count, Position(each, dtype)), dtype)
    return Operation("max", (count, Number(1, dtype)), dtype)


def _inside(operator: Operator, base: Index, window: Sequence[tuple[str, int]], size: int) -> Index:
    """How many points of a window along one axis have an index in [0, size)."""
    dims = operator.dims
    (longest, a), *others = sorted(window, key=lambda t: -dims[t[0]])
    if prod(dims[d] for d, _ in others) > MOST_UNROLLED:
        raise SpecError(f"an average over {len(window)} dims of one axis with these extents is too long to write out")
    parts: list[Index] = []
    for places in combinations(*(range(dims[d]) for d, _ in others)):
        here = base + sum(b * i for (_, b), i in zip(others, places, strict=True))
        if a < 0:
            here = here + a * (dims[longest] - 1)
        first = least(rounded_up(here * -1, abs(a)), Index((), dims[longest]))
        stop = least(rounded_up(here * -1 + size, abs(a)), Index((), dims[longest]))
        parts.append(stop - first)
    return total(parts)


def limits(dtype: DType) -> tuple[int, int]:
    """The least and the greatest integer of a dtype."""
    bits, unsigned = 8 * DTYPE_BYTES[dtype], dtype.startswith("u")
    return (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def cast(value: Value, dtype: DType) -> Value:
    """A value in another dtype; itself if it has that."""
    return value if value.dtype == dtype else Cast(value, dtype)


def _mean(value: Value, count: Value, *, floats: bool) -> Value:
    """Halves away from zero for integers."""
    dtype = value.dtype
    if floats:
        return Operation("divide", (value, count), dtype)
    zero = Number(0, dtype)
    twice = Operation("multiply", (Number(2, dtype), count), dtype)

    def rounded(positive: Value) -> Value:
        doubled = Operation("multiply", (Number(2, dtype), positive), dtype)
        return Operation("divide", (Operation("add", (doubled, count), dtype), twice), dtype)

    negative = rounded(Operation("subtract", (zero, value), dtype))
    return Pick(value, zero, Operation("subtract", (zero, negative), dtype), rounded(value))
