"""What an operator means, in plain numpy over whole tensors: no tiles, no buffers, nothing shared with the kernel's path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.spec.operator import Operator

Array = NDArray[Any]
Box = dict[str, tuple[int, int]]
"""Half-open range of each dim."""
SLAB_ELEMENTS = 1 << 22
"""Elements of 8 B that one step of the reference works on: a convolution's windows repeat its input many times over."""


def random_inputs(operator: Operator, seed: int = 0) -> dict[str, Array]:
    """Random values for every operand but the output: of the full range, a bias as large as the sums it is added to.

    A bias of the full range would drown the sums: after an epilogue that saturates, nothing else would show.
    """
    generator = np.random.default_rng(seed)
    largest = bias_range(operator)
    made: dict[str, Array] = {}
    for name, operand in operator.operands.items():
        if operand.role == "output":
            continue
        if operand.dtype.startswith("float"):
            made[name] = generator.uniform(-1, 1, operand.shape).astype(operand.dtype)
            continue
        limits = np.iinfo(operand.dtype)
        low, high = (int(limits.min), int(limits.max))
        if operand.role == "bias":
            low, high = max(low, -largest), min(high, largest)
        made[name] = generator.integers(low, high, operand.shape, operand.dtype, endpoint=True)
    return made


def bias_range(operator: Operator) -> int:
    """How large a sum of products of full-range random values is, about: its standard deviation, if these are uniform."""
    deviation = prod(operator.dims[d] for d in operator.reduction_dims) ** 0.5
    for operand in operator.factors.values():
        if not operand.dtype.startswith("float"):
            deviation *= 2 ** (8 * operand.element_bytes) / 12**0.5
    return round(min(deviation, 2.0**62)) + 1


def reference(operator: Operator, inputs: Mapping[str, Array]) -> Array:
    """The output for these inputs: the epilogue of `sums`."""
    return epilogue(operator, sums(operator, inputs))


def sums(operator: Operator, inputs: Mapping[str, Array]) -> Array:
    """The accumulators in the output's shape: exact for integers (which wrap at the end), float64 sums for floats."""
    total = np.empty(operator.output.shape, operator.accumulate)
    for box, part in slabs(operator, inputs):
        total[box] = part
    return total


def slabs(operator: Operator, inputs: Mapping[str, Array]) -> Iterator[tuple[tuple[slice, ...], Array]]:
    """`sums`, box by box of the output: what is widened to compute one box takes about `SLAB_ELEMENTS` elements at most."""
    spread = {name: _gather(operator, name, values) for name, values in inputs.items()}
    axes = [next(iter(d for d in index.dims if operator.dims[d] > 1), None) for index in operator.output.index]
    for box in _boxes(operator, {d: (0, extent) for d, extent in operator.dims.items()}):
        yield tuple(slice(0, 1) if d is None else slice(*box[d]) for d in axes), _box_sums(operator, spread, axes, box)


def _boxes(operator: Operator, box: Box) -> Iterator[Box]:
    """A box of the iteration space, its longest output dim halved until each part is small enough."""
    size = {d: high - low for d, (low, high) in box.items()}
    if operator.reduce == "sum" and operator.combine == "multiply":
        widened = [o.dims for o in operator.factors.values()] + [operator.output.dims]
    else:
        widened = [frozenset(operator.dims)]
    longest = max((d for d in operator.dims if d not in operator.reduction_dims), key=lambda d: size[d], default=None)
    if longest is None or size[longest] == 1 or max(prod(size[d] for d in ds) for ds in widened) <= SLAB_ELEMENTS:
        yield box
        return
    low, high = box[longest]
    for part in ((low, (low + high) // 2), ((low + high) // 2, high)):
        yield from _boxes(operator, {**box, longest: part})


def _box_sums(
    operator: Operator, spread: Mapping[str, tuple[list[str], Array]], axes: Sequence[str | None], box: Box
) -> Array:
    """The accumulators of one box, in the axes of the output."""
    size = {d: high - low for d, (low, high) in box.items()}
    kept = [d for d in operator.dims if d not in operator.reduction_dims]
    folded = [d for d in operator.dims if d in operator.reduction_dims]
    cut = {name: (dims, values[tuple(slice(*box[d]) for d in dims)]) for name, (dims, values) in spread.items()}
    total = _reduce(operator, cut, size, kept, folded)
    if operator.bias_name is not None:
        total = total + _broadcast(cut[operator.bias_name], kept).astype(total.dtype)
    order = [kept.index(d) for d in axes if d is not None]
    rest = [i for i in range(len(kept)) if i not in order]
    shape = [1 if d is None else size[d] for d in axes]
    return total.astype(operator.accumulate).transpose(order + rest).reshape(shape)


def _gather(operator: Operator, name: str, values: Array) -> tuple[list[str], Array]:
    """An operand as a function of its dims longer than 1: padded all round, then read through a strided window."""
    operand = operator.operands[name]
    dims = [d for d in operator.dims if d in operand.dims and operator.dims[d] > 1]
    margins: list[tuple[int, int]] = []
    for index, size in zip(operand.index, operand.shape, strict=True):
        reach = [index.offset + sum(min(0, a * (operator.dims[d] - 1)) for d, a in index.terms)]
        reach.append(index.offset + sum(max(0, a * (operator.dims[d] - 1)) for d, a in index.terms))
        margins.append((max(0, -reach[0]), max(0, reach[1] - size + 1)))
    padded = np.pad(values, margins, constant_values=operator.padding_value if operand.role == "input" else 0)
    strides, offset = [0] * len(dims), 0
    for (before, _), index, stride in zip(margins, operand.index, padded.strides, strict=True):
        offset += (index.offset + before) * stride
        for d, a in index.terms:
            if d in dims:
                strides[dims.index(d)] += a * stride
    flat = padded.reshape(-1).view(np.uint8)
    window: Array = np.ndarray([operator.dims[d] for d in dims], values.dtype, flat, offset, strides)
    return dims, window


def _broadcast(factor: tuple[list[str], Array], dims: list[str]) -> Array:
    names, values = factor
    values = values.transpose(sorted(range(len(names)), key=lambda i: dims.index(names[i])))
    return values[tuple(slice(None) if d in names else None for d in dims)]


def _reduce(
    operator: Operator,
    spread: Mapping[str, tuple[list[str], Array]],
    size: Mapping[str, int],
    kept: list[str],
    folded: list[str],
) -> Array:
    factors = [spread[name] for name in operator.factors]
    floats = operator.accumulate.startswith("float")
    if operator.reduce == "sum" and operator.combine == "multiply":
        letters = {d: i for i, d in enumerate([*kept, *folded])}
        wide = np.float64 if floats or _exact(operator) else np.int64
        arguments: list[Any] = []
        for names, values in factors:
            arguments += [values.astype(wide), [letters[d] for d in names]]
        present = [letters[d] for d in kept if any(d in names for names, _ in factors)]
        total = np.einsum(*arguments, present, optimize=True)
        total = total[tuple(slice(None) if any(d in names for names, _ in factors) else None for d in kept)]
        total = np.broadcast_to(total, [size[d] for d in kept])
        return total if floats else total.astype(np.int64)
    wide = np.float64 if floats else np.int64
    combined: Array | None = None
    for factor in factors:
        each = _broadcast(factor, [*kept, *folded]).astype(wide)
        combined = each if combined is None else (combined + each if operator.combine == "add" else combined * each)
    assert combined is not None
    whole = np.broadcast_to(combined, [size[d] for d in (*kept, *folded)])
    axes = tuple(range(len(kept), len(kept) + len(folded)))
    return whole.max(axis=axes) if operator.reduce == "max" else whole.sum(axis=axes)


def _exact(operator: Operator) -> bool:
    """Whether no sum of products can leave the integers that float64 holds exactly."""
    bound = 1
    for dim in operator.reduction_dims:
        bound *= operator.dims[dim]
    for operand in operator.factors.values():
        limits = np.iinfo(operand.dtype)
        bound *= max(-int(limits.min), int(limits.max))
    return bound < 2**53


def epilogue(operator: Operator, finished: Array, box: tuple[slice, ...] | None = None) -> Array:
    """Accumulators of the output, or of a box of it, to results: average, requantise, ReLU, clip, saturate."""
    steps, dtype = operator.epilogue, operator.output.dtype
    floats = operator.accumulate.startswith("float")
    work = finished if floats else finished.astype(np.int64)
    if steps.average is not None:
        points = _points(operator)
        if box is not None and points.ndim:
            points = points[tuple(s if n > 1 else slice(None) for s, n in zip(box, points.shape, strict=True))]
        if floats:
            work = (work / points).astype(finished.dtype)
        else:
            quotient, rest = np.divmod(np.abs(work), points)
            work = np.where(work < 0, -1, 1) * (quotient + (2 * rest >= points))
    if (q := steps.requantise) is not None:
        scaled = work * q.multiplier
        work = np.floor_divide(scaled + (2**q.shift // 2), 2**q.shift) + q.zero_point
    if steps.relu:
        floor = q.zero_point if q is not None else 0
        work = np.where(work < floor, np.asarray(floor, work.dtype), work)
    if steps.clip is not None:
        low, high = steps.clip
        work = np.minimum(np.maximum(work, low), high)
    if dtype.startswith("float"):
        return work.astype(dtype)
    limits = np.iinfo(dtype)
    whole = np.rint(work) if work.dtype.kind == "f" else work
    return np.minimum(np.maximum(whole, limits.min), limits.max).astype(dtype)


def _points(operator: Operator) -> Array:
    """Points of each averaging window, by counting ones."""
    average = operator.epilogue.average
    assert average is not None
    if not average.valid:
        return np.array(int(np.prod([operator.dims[d] for d in average.dims])))
    ones = np.ones(operator.operands[average.operand].shape, np.int64)
    blank = operator.model_copy(update={"reduce": "sum"})
    dims, window = _gather(blank, average.operand, ones)
    axes = tuple(dims.index(d) for d in average.dims if d in dims)
    counts = window.sum(axis=axes)
    left = [d for d in dims if d not in average.dims]
    order = [next(iter(d for d in index.dims if operator.dims[d] > 1), None) for index in operator.output.index]
    picked = [left.index(d) for d in order if d in left]
    spare = [i for i in range(len(left)) if i not in picked]
    shape = [size if d in left else 1 for d, size in zip(order, operator.output.shape, strict=True)]
    return np.maximum(counts.transpose(picked + spare).reshape(shape), 1)
