"""What a choice of tiles really costs: exact counts along the whole chain of tiles, and what is learnt from them.

Enter a `Choice` of the model; leave exact costs per buffer. Where the exact count of a component exceeds what the model
assumed, `Knowledge.learn` finds what to add to it: cuts that raise the count for a box of tiles around the chosen ones, and
values that split cells where the box ends. Either way the model's optimum stays a lower bound of the true one, and draws
nearer to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod

import numpy as np

from planner.tiling.model import BoxCut, Choice, Kind, Stage, cell_ends, moved_cells, tie_scale
from planner.tiling.problem import Buffer, Component, Problem
from planner.tiling.tables import Integers, footprint, moved_points, piece_count, touched_points

BOX_LIMIT, SLOW_BOX_LIMIT = 1_000_000, 2_000
"""Most chains of tiles to count for one cut: in one numpy expression, and where each has to be counted by itself."""
BOXES_AT_ONCE = 12
"""Most cuts from one disagreement."""


@dataclass(frozen=True, slots=True)
class BufferCost:
    """Exact figures of one buffer."""

    size_bytes: int
    loads: int
    stores: int
    read_bytes: int
    written_bytes: int


def attach_order(problem: Problem, tiles: Mapping[int, Mapping[str, int]]) -> tuple[int, ...]:
    """Buffers outermost first. Tiles shrink inwards; among equal tiles pins, then outer scopes, then specs' order decide."""
    waiting = sorted(tiles, key=lambda b: (-sum(tiles[b].values()), b))
    placed: list[int] = []
    while waiting:
        largest = sum(tiles[waiting[0]].values())
        level = [b for b in waiting if sum(tiles[b].values()) == largest]
        ready = next(b for b in level if not _predecessors(problem, b) & set(level))
        placed.append(ready)
        waiting.remove(ready)
    return tuple(placed)


def _predecessors(problem: Problem, buffer: int) -> set[int]:
    """Buffers that must not stand below this one."""
    own = {b.index for b in problem.buffers if b.operand == problem.buffers[buffer].operand and b.index < buffer}
    pinned = problem.order[: problem.order.index(buffer)] if buffer in problem.order else ()
    return own | set(pinned)


def chains(order: Sequence[int], tiles: Mapping[int, Mapping[str, int]], buffer: int) -> dict[str, tuple[int, ...]]:
    """Per dim the tiles at the attach points from the outermost down to `buffer`, repeats left out."""
    above = order[: order.index(buffer) + 1]
    return {d: tuple(dict.fromkeys(tiles[b][d] for b in above)) for d in tiles[buffer]}


def buffer_costs(problem: Problem, tiles: Mapping[int, Mapping[str, int]]) -> dict[int, BufferCost]:
    """Exact figures of every buffer in `tiles`."""
    order = attach_order(problem, tiles)
    return {b: _buffer_cost(problem, problem.buffers[b], tiles[b], chains(order, tiles, b)) for b in order}


def _buffer_cost(
    problem: Problem, b: Buffer, tile: Mapping[str, int], chain: Mapping[str, tuple[int, ...]]
) -> BufferCost:
    size = prod(footprint(c, tile) for c in b.components) * b.element_bytes * b.copies
    extents = problem.extents
    first = prod(piece_count(n, chain[d]) for d, n in extents.items() if d not in problem.reduction)
    repeats = prod(piece_count(n, chain[d]) for d, n in extents.items() if d in problem.reduction)
    moved = prod(
        moved_points(c, extents, chain)
        for c in b.components
        if b.role in ("input", "weight") or not set(c.dims) <= problem.reduction
    )
    match b.role:
        case "bias":
            return BufferCost(size, first, 0, moved * b.element_bytes, 0)
        case "output":
            # Each element is started once and finished once; in between it goes out and comes back as a partial sum.
            partial = moved * (repeats - 1) * b.element_bytes
            final = moved * problem.operator.output.element_bytes
            return BufferCost(size, first * (repeats - 1), first * repeats, partial, partial + final)
        case _:
            return BufferCost(size, first * repeats, 0, moved * b.element_bytes, 0)


MOST_INDICES = 10_000_000
"""Indices of one axis that are looked at, to find which are read at all."""


def compulsory_traffic(problem: Problem) -> int:
    """Bytes that every plan moves from and to the backing store: what is read, once, and every output, once."""
    found = 0
    for b in problem.buffers:
        if b.outer is not None:
            continue
        if b.role == "output":
            found += prod(problem.operator.output.shape) * problem.operator.output.element_bytes
        elif all(
            prod(problem.extents[d] for d, _ in axis.terms) <= MOST_INDICES for c in b.components for axis in c.axes
        ):
            points = (touched_points(c, [problem.extents[d] for d in c.dims]) for c in b.components)
            found += prod(points) * b.element_bytes
    return found


def stage_costs(problem: Problem, costs: Mapping[int, BufferCost]) -> dict[Stage, int]:
    """The value of each stage of the objective over the buffers in `costs`."""
    outermost = [c for b, c in costs.items() if problem.buffers[b].outer is None]
    return {
        "traffic": sum(c.read_bytes + c.written_bytes for c in outermost),
        "ties": sum((c.loads + c.stores) * tie_scale(problem) + c.size_bytes for c in costs.values()),
    }


@dataclass(slots=True)
class Knowledge:
    """What the model may use: values of each dim, and cuts. It only grows, and the model's bound with it."""

    values: dict[str, tuple[int, ...]]
    box_cuts: list[BoxCut] = field(default_factory=list[BoxCut])

    @property
    def size(self) -> int:
        """How many cuts there are."""
        return len(self.box_cuts)

    def learn(self, problem: Problem, choice: Choice) -> bool:
        """Compare each factor that the model assumed with the exact one; False if they agree everywhere."""
        student = _Student(problem, self, choice)
        student.study()
        self.box_cuts += student.box_cuts
        for dim, sizes in student.splits.items():
            self.values[dim] = tuple(sorted({*self.values[dim], *sizes}))
        return bool(student.box_cuts)


@dataclass(slots=True)
class _Student:
    problem: Problem
    known: Knowledge
    choice: Choice
    box_cuts: list[BoxCut] = field(default_factory=list[BoxCut])
    splits: dict[str, set[int]] = field(default_factory=dict[str, set[int]])

    def study(self) -> None:
        order = attach_order(self.problem, self.choice.tiles)
        for index in order:
            b = self.problem.buffers[index]
            chain = chains(order, self.choice.tiles, index)
            for dim, extent in self.problem.extents.items():
                assumed = self._assumed_pieces(b, dim)
                if piece_count(extent, chain[dim]) > assumed:
                    self._study_box(b, Component((dim,), (), plain=True), "pieces", order)
            # Inner buffers move nothing from the backing store: what they move is in no stage.
            for component in b.components if b.outer is None else ():
                if not component.plain:
                    exact = moved_points(component, self.problem.extents, chain)
                    if exact > self._assumed_points(b, component):
                        self._study_box(b, component, "moved", order)

    # What the model assumed -----------------------------------------------------------------------------------------

    def _assumed_pieces(self, b: Buffer, dim: str) -> int:
        own, extent = self.choice.tiles[b.index][dim], self.problem.extents[dim]
        end = own if self.problem.divisors else self._cell_end(dim, own)
        return max(-(-extent // end), self._assumed_box(b, (dim,), "pieces"))

    def _cell_end(self, dim: str, tile: int) -> int:
        values = self.known.values[dim]
        return dict(zip(values, cell_ends(values, self.problem.extents[dim]), strict=True))[tile]

    def _assumed_points(self, b: Buffer, component: Component) -> int:
        table = moved_cells(self.problem, self.known.values, component)
        tiles = self.choice.tiles[b.index]
        bound = int(table[tuple(self.known.values[d].index(tiles[d]) for d in component.dims)])
        return max(bound, self._assumed_box(b, component.dims, "moved"))

    def _assumed_box(self, b: Buffer, dims: tuple[str, ...], kind: Kind) -> int:
        applying = [
            cut.at_least
            for cut in self.known.box_cuts
            if (cut.buffer, cut.dims, cut.kind) == (b.index, dims, kind)
            and cut.above == self.choice.above[b.index]
            and all(low <= self.choice.tiles[a][d] <= high for a, d, low, high in cut.box)
        ]
        return max(applying, default=0)

    # What there is to learn -----------------------------------------------------------------------------------------

    def _study_box(self, b: Buffer, component: Component, kind: Kind, order: Sequence[int]) -> None:
        """Grow a box of tiles around the chosen ones within which the count is never less; it ends where cells end."""
        above = self.choice.above[b.index]
        holders = [a for a in order if a in above or a == b.index]
        sides = [(a, d) for d in component.dims for a in holders]
        chosen = [self.choice.tiles[a][d] for a, d in sides]
        ranges = self._ranges(component, sides, chosen)
        counts = _counts(self.problem, component, kind, sides, ranges)
        assumed = self._assumed_pieces(b, component.dims[0]) if kind == "pieces" else self._assumed_points(b, component)
        corners = [tuple(t - r.start for t, r in zip(chosen, ranges, strict=True))]
        seen: set[tuple[int, ...]] = set()
        while corners and len(seen) < BOXES_AT_ONCE:
            # Past each end of a box the model would choose next: look there too, rather than meet it a solve later.
            corner = corners.pop(0)
            if corner in seen or not assumed < counts[corner] < np.iinfo(np.int64).max:
                continue
            seen.add(corner)
            lows, highs = _grow(counts, corner)
            sized = [
                (a, d, r.start + low, r.start + high)
                for (a, d), r, low, high in zip(sides, ranges, lows, highs, strict=True)
            ]
            self.box_cuts.append(BoxCut(b.index, component.dims, kind, above, tuple(sized), int(counts[corner])))
            for _, d, low, high in sized:
                for start in (low, high + 1):
                    if start <= self.problem.extents[d] and start not in self.known.values[d]:
                        self.splits.setdefault(d, set()).add(start)
            corners += [
                (*corner[:i], high + 1, *corner[i + 1 :]) for i, high in enumerate(highs) if high + 1 < counts.shape[i]
            ]

    def _ranges(self, component: Component, sides: Sequence[tuple[int, str]], chosen: Sequence[int]) -> list[range]:
        """Tiles in the same cell or with as many pieces of the whole extent, trimmed so that all can be counted."""
        limit = BOX_LIMIT if component.plain else SLOW_BOX_LIMIT
        width = max(1, int(limit ** (1 / len(sides))))
        ranges: list[range] = []
        for (_, d), tile in zip(sides, chosen, strict=True):
            extent = self.problem.extents[d]
            pieces = -(-extent // tile)
            low, high = -(-extent // pieces), extent if pieces == 1 else -(-extent // (pieces - 1)) - 1
            high = max(high, self._cell_end(d, tile))
            ranges.append(range(max(low, tile - width // 2), min(high, tile + width - 1) + 1))
        return ranges


def _counts(
    problem: Problem, component: Component, kind: Kind, sides: Sequence[tuple[int, str]], ranges: Sequence[range]
) -> Integers:
    """The count for every combination of tiles in the ranges; a huge number where tiles grow inwards."""
    rank = len(sides)
    grid = [np.array(r, np.int64).reshape([-1 if i == j else 1 for j in range(rank)]) for i, r in enumerate(ranges)]
    shape = tuple(len(r) for r in ranges)
    if kind == "pieces":
        counts = np.broadcast_to(_nested_pieces(np.int64(problem.extents[component.dims[0]]), grid), shape).copy()
    else:
        counts = np.empty(shape, np.int64)
        for where in product(*(range(n) for n in shape)):
            tiles = [r[i] for r, i in zip(ranges, where, strict=True)]
            chain = {d: tuple(t for (_, e), t in zip(sides, tiles, strict=True) if e == d) for d in component.dims}
            counts[where] = moved_points(component, problem.extents, chain)
    for i in range(rank - 1):
        if sides[i][1] == sides[i + 1][1]:
            counts[np.broadcast_to(grid[i] < grid[i + 1], shape)] = np.iinfo(np.int64).max
    return counts


def _nested_pieces(size: Integers | np.int64, tiles: Sequence[Integers]) -> Integers:
    """Pieces of a size under nested tiles: whole ones times the pieces of the tile, and those of the rest."""
    if not tiles:
        return np.asarray(size > 0).astype(np.int64)
    first, inner = tiles[0], tiles[1:]
    return size // first * _nested_pieces(first, inner) + _nested_pieces(size % first, inner)


def _grow(counts: Integers, here: Sequence[int]) -> tuple[list[int], list[int]]:
    """A maximal box around `here` whose counts are all at least the one there; inclusive ends."""
    target = counts[tuple(here)]
    lows, highs = list(here), list(here)
    for axis in range(counts.ndim):
        for step, ends, stop in ((1, highs, counts.shape[axis] - 1), (-1, lows, 0)):
            while ends[axis] != stop:
                slab = tuple(
                    ends[axis] + step if i == axis else slice(low, high + 1)
                    for i, (low, high) in enumerate(zip(lows, highs, strict=True))
                )
                if counts[slab].min() < target:
                    break
                ends[axis] += step
    return lows, highs
