"""Exact counts of what a buffer moves, and lower bounds of them that hold whatever the tiles further out.

Enter components and tile sizes; leave integers. `count` is exact for a whole chain of tiles, ragged tails, clipped halos,
stride gaps and dilation included: it enumerates the pieces of each dim and counts. `moved_bounds` needs the buffer's own
tile only: the pieces of a dim at that place, however they came about, are at least `ceil(extent / tile)` in number and at
most `tile` long, and the cheapest way to cut the extent into such pieces is found by dynamic programming.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import product
from math import gcd, prod

import numpy as np
from numpy.typing import NDArray

from planner.tiling.problem import Axis, Component

Integers = NDArray[np.int64]
PROGRAM_LIMIT = 8_000_000
"""Most pieces (combinations of start and size) for the dynamic program; beyond, a coarser bound and refinement serve."""


def footprint(component: Component, tile: Mapping[str, int]) -> int:
    """Lattice points that the nominal tile spans, not clipped (a factor of the buffer's footprint)."""
    return prod(_points(axis, tile) for axis in component.axes)


def footprints(component: Component, values: Mapping[str, Sequence[int]]) -> tuple[int, ...]:
    """The footprint for each combination of values, in row-major order."""
    return _footprints(_anonymous(component), tuple(tuple(values[d]) for d in component.dims))


@lru_cache(maxsize=1024)
def _footprints(component: Component, values: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    return tuple(footprint(component, dict(zip(component.dims, tile, strict=True))) for tile in product(*values))


def _points(axis: Axis, tile: Mapping[str, int]) -> int:
    step = gcd(*(abs(a) for d, a in axis.terms if tile[d] > 1)) or 1
    return sum(abs(a) * (tile[d] - 1) for d, a in axis.terms) // step + 1


@lru_cache(maxsize=65536)
def piece_sizes(extent: int, chain: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """(size, how many) of the pieces that a chain of nominal tiles, outermost first, cuts an extent into."""
    sizes = {extent: 1}
    for tile in chain:
        cut: dict[int, int] = {}
        for size, times in sizes.items():
            whole, rest = divmod(size, tile)
            if whole:
                cut[tile] = cut.get(tile, 0) + whole * times
            if rest:
                cut[rest] = cut.get(rest, 0) + times
        sizes = cut
    return tuple(sizes.items())


def piece_count(extent: int, chain: tuple[int, ...]) -> int:
    """Number of pieces: the visits that a dim contributes."""
    return sum(times for _, times in piece_sizes(extent, chain))


def pieces(extent: int, chain: tuple[int, ...]) -> tuple[Integers, Integers]:
    """Starts and sizes of the pieces, in order."""
    starts, sizes = np.zeros(1, np.int64), np.full(1, extent, np.int64)
    for tile in chain:
        counts = -(-sizes // tile)
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        starts, sizes = (
            np.repeat(starts, counts) + within * tile,
            np.minimum(tile, np.repeat(sizes, counts) - within * tile),
        )
    return starts, sizes


def moved_points(component: Component, extents: Mapping[str, int], chains: Mapping[str, tuple[int, ...]]) -> int:
    """Lattice points inside the operand, summed over all visits: exact for a chain of tiles per dim down to the buffer's own.

    For a dim that the operand lacks this is the number of pieces: each of them moves the same points again.
    """
    if component.plain:
        (dim,) = component.dims
        return extents[dim] if component.axes else piece_count(extents[dim], chains[dim])
    return int(_clipped_points(component, [pieces(extents[d], chains[d]) for d in component.dims]).sum())


def _clipped_points(component: Component, cut: Sequence[tuple[Integers, Integers]]) -> Integers:
    """Lattice points inside the operand for each combination of pieces: one array axis a dim."""
    rank = len(component.dims)
    starts: dict[str, Integers] = {}
    sizes: dict[str, Integers] = {}
    for i, (dim, (start, size)) in enumerate(zip(component.dims, cut, strict=True)):
        shape = [-1 if i == j else 1 for j in range(rank)]
        starts[dim], sizes[dim] = start.reshape(shape), size.reshape(shape)
    total: Integers = np.ones([1] * rank, np.int64)
    for axis in component.axes:
        total = total * _axis_points(axis, starts, sizes)
    return np.broadcast_to(total, np.broadcast_shapes(*(s.shape for s in sizes.values())))


def _axis_points(axis: Axis, starts: Mapping[str, Integers], sizes: Mapping[str, Integers]) -> Integers:
    step: Integers = np.zeros((), np.int64)
    span: Integers = np.zeros((), np.int64)
    lowest: Integers = np.full((), axis.offset, np.int64)
    for dim, a in axis.terms:
        step = np.gcd(step, np.where(sizes[dim] > 1, abs(a), 0))
        span = span + abs(a) * (sizes[dim] - 1)
        lowest = lowest + a * (starts[dim] + (sizes[dim] - 1 if a < 0 else 0))
    step = np.maximum(step, 1)
    first = np.maximum(0, -(lowest // step))
    last = np.minimum(span // step, (axis.size - 1 - lowest) // step)
    return np.maximum(0, last - first + 1)


def moved_bounds(component: Component, extents: Mapping[str, int], values: Mapping[str, Sequence[int]]) -> Integers:
    """Points moved that no chain of tiles ending in these values can undercut: one array axis a dim, indexed as its values."""
    sizes = tuple(extents[d] for d in component.dims)
    return _moved_bounds(_anonymous(component), sizes, tuple(tuple(values[d]) for d in component.dims))


def _anonymous(component: Component) -> Component:
    """The component with its dims numbered, so that rows and columns of a picture share one table."""
    number = {d: str(i) for i, d in enumerate(component.dims)}
    axes = (Axis(tuple((number[d], a) for d, a in x.terms), x.offset, x.size) for x in component.axes)
    return Component(tuple(number.values()), tuple(axes), component.plain)


@lru_cache(maxsize=256)
def _moved_bounds(component: Component, extents: tuple[int, ...], values: tuple[tuple[int, ...], ...]) -> Integers:
    if prod(e * e for e in extents) > PROGRAM_LIMIT:
        return np.maximum(touched_points(component, extents), _rate_bounds(component, extents, values))
    cut = np.stack([_first_dim_cut(component, extents, tile) for tile in values[0]])
    return _cheapest_cuts(cut, values[1:], 1)


@lru_cache(maxsize=4096)
def _first_dim_cut(component: Component, extents: tuple[int, ...], tile: int) -> Integers:
    """The first dim, usually the longest, cut for one tile: axes (start, size) of the other dims. Worth remembering,
    as refinement asks again for the same tiles and a few more."""
    return _cheapest_cut(np.moveaxis(_piece_points(component, extents), (0, 1), (-2, -1)), tile)


@lru_cache(maxsize=8)
def _piece_points(component: Component, extents: tuple[int, ...]) -> Integers:
    """Points of every combination of pieces: axes (start, size) a dim."""
    points = _clipped_points(component, [_all_pieces(e) for e in extents])
    return points.reshape([n for e in extents for n in (e, e)])


def _all_pieces(extent: int) -> tuple[Integers, Integers]:
    """Every piece of `[0, extent)`: start-major, sizes 1..extent; those that stick out are cut to fit."""
    starts = np.repeat(np.arange(extent), extent)
    sizes = np.tile(np.arange(1, extent + 1), extent)
    return starts, np.minimum(sizes, extent - starts)


def _cheapest_cuts(costs: Integers, values: Sequence[Sequence[int]], first: int) -> Integers:
    """Cheapest way to cut dims into pieces no longer than a value: from axis `first` on, (start, size) in, (value) out.

    One dim after the other: the program for an earlier dim may cut it in another way for each piece of the later ones,
    which can only lower the bound.
    """
    for i, tiles in enumerate(values, first):
        grid = np.moveaxis(costs, (i, i + 1), (-2, -1))
        costs = np.stack([_cheapest_cut(grid, tile) for tile in tiles], axis=i)
    return costs


def _cheapest_cut(grid: Integers, tile: int) -> Integers:
    """Shortest path over the cut points of one dim: `grid[..., start, size - 1]` is the cost of a piece."""
    extent = grid.shape[-1]
    best = np.zeros((*grid.shape[:-2], extent + 1), np.int64)
    for start in range(extent - 1, -1, -1):
        longest = min(tile, extent - start)
        best[..., start] = (grid[..., start, :longest] + best[..., start + 1 : start + longest + 1]).min(axis=-1)
    return best[..., 0]


def _rate_bounds(component: Component, extents: tuple[int, ...], values: tuple[tuple[int, ...], ...]) -> Integers:
    """For a window over a dim too long for the program: points per index of the long dim, at the best length of a piece.

    A piece of x by y spans a number of points that is affine in x from 2 on, so that the rate is least at x = 1, at x = 2
    or at the whole tile. What clipping may save, at most, is taken off. Zero where that reasoning does not apply.
    """
    bounds = np.zeros([len(v) for v in values], np.int64)
    if len(extents) != 2 or len(component.axes) != 1 or min(extents) > 64:
        return bounds
    (axis,) = component.axes
    long = int(extents[1] > extents[0])
    a, d = (dict(axis.terms)[component.dims[i]] for i in (long, 1 - long))
    if a < 0 or d < 0:
        return bounds
    saved = _clipped_at_most(axis, a, d, extents[long], extents[1 - long])
    for i, tile in enumerate(values[long]):
        for j, window in enumerate(values[1 - long]):
            points = min(
                -(-extents[long] * _window_points(a, d, x, extents[1 - long], window) // x)
                for x in {1, min(2, tile), tile}
            )
            bounds[(i, j) if long == 0 else (j, i)] = max(0, points - saved)
    return bounds


def _window_points(a: int, d: int, x: int, extent: int, window: int) -> int:
    """Fewest points that a piece of x spans with all of the short dim, cut into pieces no longer than `window`."""
    best = [0]
    for end in range(1, extent + 1):
        best.append(min(best[end - y] + _span_points(a, d, x, y) for y in range(1, min(window, end) + 1)))
    return best[extent]


def _span_points(a: int, d: int, x: int, y: int) -> int:
    step = gcd(a if x > 1 else 0, d if y > 1 else 0) or 1
    return (a * (x - 1) + d * (y - 1)) // step + 1


def _clipped_at_most(axis: Axis, a: int, d: int, extent: int, short: int) -> int:
    """Points outside the operand, summed over pieces that begin (or end) at every index: more than any cut clips."""
    places = np.arange(extent)[:, None] * a + np.arange(short)[None, :] * d + axis.offset
    return int(np.maximum(0, -places).sum() + np.maximum(0, places - axis.size + 1).sum())


def _distinct(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each value once. Marks are faster than sorting, and indices lie close together."""
    low, high = int(values.min()), int(values.max())
    if high - low > 4 * values.size:
        return np.unique(values)
    marks = np.zeros(high - low + 1, bool)
    marks[values - low] = True
    return np.flatnonzero(marks) + low


def touched_points(component: Component, extents: Sequence[int]) -> int:
    """Points that are read at all: each is fetched at least once."""
    points = 1
    for axis in component.axes:
        reached = np.full(1, axis.offset, np.int64)
        for dim, a in axis.terms:
            extent = extents[component.dims.index(dim)]
            reached = _distinct((reached[:, None] + a * np.arange(extent)[None, :]).ravel())
        points *= int(np.count_nonzero((reached >= 0) & (reached < axis.size)))
    return points
