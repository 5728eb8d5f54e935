"""Number rules of the kernel: what one tile's reduction and the epilogue compute, in numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.spec.operator import Operator

Array = NDArray[Any]
EXACT_FLOAT = 2**53
"""Integers below this are exact in float64, so that sums of products may run on BLAS."""
SLAB_ELEMENTS = 1 << 22
"""Elements of 8 B that one step may copy, whatever the tile."""


FLOAT_TOLERANCE = 1e-5
"""How far float outputs may lie off at least, relative to the largest; integers must be equal bit for bit."""


def tolerance(operator: Operator) -> float:
    """How far float outputs may lie off, relative to the largest: tiles add up in another order than the reference.

    Rounding errors of n additions grow as sqrt(n) units in the last place of the accumulator; four times that is allowed.
    """
    if not operator.accumulate.startswith("float"):
        return 0.0
    terms = prod(operator.dims[d] for d in operator.reduction_dims)
    allowed = 4 * sqrt(terms) * float(np.finfo(operator.accumulate).eps)
    if operator.output.dtype.startswith("float"):
        allowed = max(allowed, 4 * float(np.finfo(operator.output.dtype).eps))
    return max(FLOAT_TOLERANCE, allowed)


def neutral(operator: Operator) -> int | float:
    """What an accumulator starts from where there is no bias: the neutral element of the reduction."""
    if operator.reduce == "sum":
        return 0
    if operator.accumulate.startswith("float"):
        return float("-inf")
    return int(np.iinfo(operator.accumulate).min)


def output_dims(operator: Operator) -> list[str]:
    """The dim that each axis of the output runs over; "" for an axis of one element, whatever its index names."""
    return [next((d for d in axis.dims if operator.dims[d] > 1), "") for axis in operator.output.index]


def reduce_tile(operator: Operator, factors: Sequence[tuple[Sequence[str], Array]], result: Sequence[str]) -> Array:
    """Combine factors (dims and values) and reduce to the dims of `result`; in the accumulator's dtype, integers wrap.

    One axis a dim of `result`, of length 1 for a dim that no factor has: the reduction is the same all along it.
    """
    found = {d for dims, _ in factors for d in dims}
    reduced = _in_slabs(operator, factors, [d for d in result if d in found])
    return reduced[tuple(slice(None) if d in found else None for d in result)]


def _in_slabs(operator: Operator, factors: Sequence[tuple[Sequence[str], Array]], result: Sequence[str]) -> Array:
    """`_reduce`, the longest dim of the result halved as long as what is copied on the way is large: windows overlap."""
    size = {d: n for dims, values in factors for d, n in zip(dims, values.shape, strict=True)}
    longest = max(result, key=lambda d: size[d], default=None)
    contracted = operator.reduce == "sum" and operator.combine == "multiply" and len(factors) == 2
    copied = max(values.size for _, values in factors) if contracted else prod(size.values())
    if longest is None or size[longest] == 1 or copied <= SLAB_ELEMENTS:
        return _reduce(operator, factors, result)
    middle = size[longest] // 2
    halves: list[Array] = []
    for part in (slice(0, middle), slice(middle, None)):
        cut = [(ds, v[tuple(part if d == longest else slice(None) for d in ds)]) for ds, v in factors]
        halves.append(_in_slabs(operator, cut, result))
    return np.concatenate(halves, axis=list(result).index(longest))


def _reduce(operator: Operator, factors: Sequence[tuple[Sequence[str], Array]], result: Sequence[str]) -> Array:
    if operator.reduce == "sum" and operator.combine == "multiply" and len(factors) == 2:
        return _contract(operator, factors[0], factors[1], result)
    dims = list(dict.fromkeys([*result, *(d for ds, _ in factors for d in ds)]))
    total: Array | None = None
    for names, values in factors:
        wide = _aligned(names, _widen(operator, values), dims)
        if total is None:
            total = wide
        else:
            total = total * wide if operator.combine == "multiply" else total + wide
    assert total is not None
    axes = tuple(range(len(result), len(dims)))
    if operator.reduce == "max":
        reduced = total.max(axis=axes) if axes else total
    else:
        reduced = total.sum(axis=axes) if axes else total
    return reduced.astype(operator.accumulate)


def _widen(operator: Operator, values: Array) -> Array:
    return values.astype(operator.accumulate if operator.accumulate.startswith("float") else np.int64)


def _aligned(names: Sequence[str], values: Array, dims: Sequence[str]) -> Array:
    """Axes in the order of `dims`, length 1 where the factor lacks one."""
    order = sorted(range(len(names)), key=lambda i: dims.index(names[i]))
    shape = [values.shape[names.index(d)] if d in names else 1 for d in dims]
    return values.transpose(order).reshape(shape)


def _contract(
    operator: Operator, a: tuple[Sequence[str], Array], b: tuple[Sequence[str], Array], result: Sequence[str]
) -> Array:
    """Sum of products as one batched matrix product."""
    (da, va), (db, vb) = a, b
    va, da = _summed(operator, va, da, {*db, *result})
    vb, db = _summed(operator, vb, db, {*da, *result})
    batch = [d for d in result if d in da and d in db]
    rows = [d for d in result if d in da and d not in db]
    columns = [d for d in result if d in db and d not in da]
    inner = [d for d in da if d in db and d not in result]
    size = {d: n for names, v in ((da, va), (db, vb)) for d, n in zip(names, v.shape, strict=True)}

    def matrix(names: Sequence[str], values: Array, first: list[str], second: list[str]) -> Array:
        order = [list(names).index(d) for d in (*batch, *first, *second)]
        shape = [int(np.prod([size[d] for d in group])) for group in (batch, first, second)]
        return values.transpose(order).reshape(shape)

    kind = _product_dtype(operator, va, vb, int(np.prod([size[d] for d in inner])))
    left, right = matrix(da, va, rows, inner).astype(kind), matrix(db, vb, inner, columns).astype(kind)
    product = np.matmul(left, right).reshape([size[d] for d in (*batch, *rows, *columns)])
    if kind == np.float64 and not operator.accumulate.startswith("float"):
        product = product.astype(np.int64)
    order = [[*batch, *rows, *columns].index(d) for d in result]
    return product.transpose(order).astype(operator.accumulate)


def _summed(operator: Operator, values: Array, names: Sequence[str], keep: set[str]) -> tuple[Array, list[str]]:
    """Sum away dims that only this factor has."""
    alone = tuple(i for i, d in enumerate(names) if d not in keep)
    if not alone:
        return values, list(names)
    return _widen(operator, values).sum(axis=alone), [d for d in names if d in keep]


def _product_dtype(operator: Operator, a: Array, b: Array, terms: int) -> Any:
    """float64 where every sum of products is exact in it, else the accumulator's own arithmetic."""
    if operator.accumulate.startswith("float"):
        return np.dtype(operator.accumulate)

    def largest(values: Array) -> int:
        return max(-int(np.iinfo(values.dtype).min), int(np.iinfo(values.dtype).max))

    return np.dtype(np.float64) if largest(a) * largest(b) * max(terms, 1) < EXACT_FLOAT else np.dtype(np.int64)


def accumulate(operator: Operator, old: Array, new: Array) -> Array:
    """Fold a tile's reduction into the accumulators."""
    return np.maximum(old, new) if operator.reduce == "max" else old + new


def finish(operator: Operator, values: Array, ranges: Mapping[str, range]) -> Array:
    """The epilogue of accumulators over a box of output dims: average, requantise, ReLU, clip, saturate to the dtype."""
    epilogue, dtype = operator.epilogue, operator.output.dtype
    floats = operator.accumulate.startswith("float")
    work = values if floats else values.astype(np.int64)
    if epilogue.average is not None:
        work = _divide(work, _window_counts(operator, ranges), floats)
    if epilogue.requantise is not None:
        q = epilogue.requantise
        work = work * np.int64(q.multiplier)
        if q.shift:
            work = (work + np.int64(1 << (q.shift - 1))) >> q.shift
        work = work + q.zero_point
    if epilogue.relu:
        zero = epilogue.requantise.zero_point if epilogue.requantise is not None else 0
        work = np.maximum(work, zero)
    if epilogue.clip is not None:
        work = np.clip(work, *epilogue.clip)
    return saturate(work, dtype)


def saturate(values: Array, dtype: str) -> Array:
    """Cast: integers saturate, floats to integers round half to even first, floats are plain."""
    if dtype.startswith("float"):
        return values.astype(dtype)
    if values.dtype.kind == "f":
        values = np.rint(values)
    limits = np.iinfo(dtype)
    return np.clip(values, limits.min, limits.max).astype(dtype)


def _divide(values: Array, counts: Array, floats: bool) -> Array:
    """Mean: halves away from zero for integers."""
    if floats:
        return (values / counts).astype(values.dtype)
    return np.sign(values) * ((2 * np.abs(values) + counts) // (2 * counts))


def _window_counts(operator: Operator, ranges: Mapping[str, range]) -> Array:
    """Points of the averaged window at each output element: all of them, or those inside the operand."""
    average = operator.epilogue.average
    assert average is not None
    dims = output_dims(operator)
    counts: Array = np.ones([len(ranges[d]) if d else 1 for d in dims], np.int64)
    operand = operator.operands[average.operand]
    covered: set[str] = set()
    for index, size in zip(operand.index, operand.shape, strict=True):
        window = [d for d in index.dims if d in average.dims]
        if not window or not average.valid:
            continue
        covered |= set(window)
        places = np.full([1] * (len(dims) + len(window)), index.offset, np.int64)
        for dim, a in index.terms:
            if operator.dims[dim] == 1:
                continue
            axis = len(dims) + window.index(dim) if dim in window else dims.index(dim)
            along = np.array(range(operator.dims[dim]) if dim in window else ranges[dim], np.int64)
            places = places + a * along.reshape([-1 if i == axis else 1 for i in range(places.ndim)])
        inside = (places >= 0) & (places < size)
        counts = counts * inside.sum(axis=tuple(range(len(dims), places.ndim)))
    for dim in average.dims:
        if dim not in covered:
            counts = counts * operator.dims[dim]
    return np.maximum(counts, 1)
