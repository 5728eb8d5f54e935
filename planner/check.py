"""Recomputes a plan from its nest and compares: footprints, addresses, capacity, traffic, constraints, status.

Independent on purpose: it imports nothing of the solver's or the kernel's code. It walks the nest with the tiles that it
finds there, cuts each dim into pieces by the loops above each attach point, and counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd, prod

import numpy as np

from planner.errors import VerificationError
from planner.plan import Attach, Link, Loop, NestEntry, Plan, PlannedBuffer
from planner.spec.affine import Affine
from planner.spec.machine import Machine
from planner.spec.operator import Operand, Operator, TileRule

Pieces = list[tuple[int, int]]
"""(start, size) of each piece that a dim is cut into."""
AT_ONCE = 1 << 20
"""Combinations of pieces that are counted in one numpy step: bounds the memory, whatever the nest."""


def check(plan: Plan) -> None:
    """Raise VerificationError with every rule that a plan breaks; return if it breaks none."""
    wrong = list(_problems(plan))
    if wrong:
        raise VerificationError(f"plan of {plan.operator.name} on {plan.machine.name}: " + "; ".join(wrong))


@dataclass(frozen=True, slots=True)
class Site:
    """An attach point: the tiles there, and the loops above it, outermost first."""

    attach: Attach
    tiles: dict[str, int]
    loops: tuple[Loop, ...]


def sites(operator: Operator, nest: Sequence[NestEntry]) -> list[Site]:
    """The attach points of a nest, outermost first."""
    found: list[Site] = []
    tiles, loops = dict(operator.dims), list[Loop]()
    for entry in nest:
        match entry:
            case Loop():
                tiles[entry.dim] = entry.tile
                loops.append(entry)
            case Attach():
                found.append(Site(entry, dict(tiles), tuple(loops)))
    return found


def measure(
    operator: Operator, machine: Machine, nest: Sequence[NestEntry]
) -> tuple[dict[str, tuple[int, ...]], list[Link]]:
    """Shapes of the buffers by `operand@memory`, and the links, in the order of the nest."""
    shapes: dict[str, tuple[int, ...]] = {}
    links: list[Link] = []
    for site in sites(operator, nest):
        operand = operator.operands[site.attach.operand]
        shapes[str(site.attach)] = tuple(_width(index, site.tiles) for index in operand.index)
        links.append(_link(operator, machine, site))
    return shapes, links


def _problems(plan: Plan) -> Iterator[str]:
    if plan.status in ("infeasible", "unknown"):
        if plan.nest or plan.buffers or plan.links:
            yield f"status is {plan.status}, yet there is a nest"
        yield from _shortage_problems(plan)
        return
    if not plan.nest:
        yield f"status is {plan.status}, yet there is no nest"
        return
    broken = list(_nest_problems(plan))
    yield from broken
    if broken:
        return
    yield from _buffer_problems(plan)
    yield from _address_problems(plan)
    yield from _link_problems(plan)
    yield from _constraint_problems(plan)
    yield from _objective_problems(plan)


def _shortage_problems(plan: Plan) -> Iterator[str]:
    """What is infeasible says why: a scope with too little for one point of each operand at least, or the user's demands."""
    if plan.objective.value is not None:
        yield f"status is {plan.status}, yet the objective has value {plan.objective.value}"
    if plan.status == "infeasible" and not plan.shortages and not plan.conflicts:
        yield "status is infeasible, yet no scope is short and no demands exclude each other"
    for short in plan.shortages:
        scope = next((m for m in plan.machine.scopes if m.name == short.memory), None)
        if scope is None:
            yield f"shortage in {short.memory}, which is no scope"
            continue
        if short.capacity_bytes != scope.capacity:
            yield f"shortage in {short.memory} says capacity {short.capacity_bytes}; the machine says {scope.capacity}"
        if short.needed_bytes <= short.capacity_bytes:
            yield f"shortage in {short.memory}: {short.needed_bytes} B needed, and it has {short.capacity_bytes}"
        if sum(short.smallest_tiles.values()) > short.needed_bytes:
            yield f"shortage in {short.memory}: its smallest tiles add up to more than the {short.needed_bytes} B needed"
        held = [n for n, o in plan.operator.operands.items() if scope in plan.machine.path(n, o)]
        if sorted(held) != sorted(short.smallest_tiles):
            yield f"shortage in {short.memory} lists tiles of {sorted(short.smallest_tiles)}; it holds {sorted(held)}"
            continue
        copies = 2 if scope.double_buffered else 1
        for name, size in short.smallest_tiles.items():
            if size < (least := copies * plan.operator.buffer_element_bytes(name)):
                yield f"shortage in {short.memory}: {name} takes {size} B, and one element takes {least}"


def _nest_problems(plan: Plan) -> Iterator[str]:
    """Each tile fits the one it cuts; each operand has one buffer in each scope of its path, from the outside in."""
    operator, machine = plan.operator, plan.machine
    tiles = dict(operator.dims)
    attached: dict[str, list[str]] = {name: [] for name in operator.operands}
    for entry in plan.nest:
        match entry:
            case Loop():
                if entry.dim not in tiles:
                    yield f"the nest loops over {entry.dim}, which is no dim"
                elif not 1 <= entry.tile <= tiles[entry.dim]:
                    yield f"loop {entry.dim} has tile {entry.tile}, outside 1..{tiles[entry.dim]}"
                else:
                    tiles[entry.dim] = entry.tile
            case Attach():
                if entry.operand not in attached:
                    yield f"the nest attaches {entry}, which is no operand's"
                else:
                    attached[entry.operand].append(entry.memory)
    for name, operand in operator.operands.items():
        path = [m.name for m in machine.path(name, operand)]
        if attached[name] != path:
            yield f"operand {name} is attached at {attached[name] or 'nothing'}; its path is {path}"


def _buffer_problems(plan: Plan) -> Iterator[str]:
    shapes, _ = measure(plan.operator, plan.machine, plan.nest)
    listed = {f"{b.operand}@{b.memory}": b for b in plan.buffers}
    if set(listed) != set(shapes) or len(plan.buffers) != len(shapes):
        yield f"buffers {sorted(listed)} are listed, the nest attaches {sorted(shapes)}"
        return
    for name, shape in shapes.items():
        buffer = listed[name]
        copies = 2 if plan.machine.memory(buffer.memory).double_buffered else 1
        size = prod(shape) * _slot_bytes(plan.operator, buffer.operand) * copies
        if buffer.copies != copies:
            yield f"{name} has {buffer.copies} copies; the scope says {copies}"
        if buffer.shape != shape:
            yield f"{name} has shape {list(buffer.shape)}; its tiles need {list(shape)}"
        if buffer.size_bytes != size:
            yield f"{name} has {buffer.size_bytes} B; its shape needs {size}"


def _address_problems(plan: Plan) -> Iterator[str]:
    for scope in plan.machine.scopes:
        inside = sorted((b for b in plan.buffers if b.memory == scope.name), key=lambda b: b.offset_bytes)
        for b in inside:
            if b.offset_bytes < 0 or b.offset_bytes % scope.alignment:
                yield f"{b.operand}@{b.memory} starts at byte {b.offset_bytes}, no multiple of {scope.alignment}"
            if scope.capacity is not None and _end(b) > scope.capacity:
                yield f"{b.operand}@{b.memory} ends at byte {_end(b)}, capacity {scope.capacity}"
        for first, second in pairwise(inside):
            if _end(first) > second.offset_bytes:
                yield f"{first.operand} and {second.operand} share bytes of {scope.name}"


def _end(buffer: PlannedBuffer) -> int:
    return buffer.offset_bytes + buffer.size_bytes


def _link_problems(plan: Plan) -> Iterator[str]:
    _, links = measure(plan.operator, plan.machine, plan.nest)
    counted = {(k.operand, k.memory): k for k in links}
    listed = {(k.operand, k.memory): k for k in plan.links}
    if set(counted) != set(listed) or len(plan.links) != len(links):
        yield f"links of {sorted(listed)} are listed, the nest has {sorted(counted)}"
        return
    for key, link in counted.items():
        if listed[key] != link:
            yield f"link of {key[0]}@{key[1]}: the plan says {listed[key]}, the nest makes {link}"


def _objective_problems(plan: Plan) -> Iterator[str]:
    cost = plan.objective
    if cost.name != "traffic":
        yield f"objective {cost.name!r} is not known"
        return
    backing = plan.machine.backing.name
    traffic = sum(k.read_bytes + k.written_bytes for k in plan.links if k.parent == backing)
    if cost.value != traffic:
        yield f"the objective says {cost.value} B, the links add up to {traffic} B"
    if cost.bound is None or (cost.value is not None and cost.bound > cost.value):
        yield f"bound {cost.bound} exceeds the value {cost.value}"
    elif plan.status == "optimal" and cost.bound != cost.value:
        yield f"status is optimal, yet the bound is {cost.bound} and the value {cost.value}"


# Counting -----------------------------------------------------------------------------------------------------------


def _slot_bytes(operator: Operator, name: str) -> int:
    operand = operator.operands[name]
    return np.dtype(operator.accumulate if operand.role == "output" else operand.dtype).itemsize


def _width(index: Affine, tiles: Mapping[str, int]) -> int:
    """Lattice points of a nominal tile along one axis."""
    moving = [(abs(a), tiles[d] - 1) for d, a in index.terms if tiles[d] > 1]
    step = gcd(*(a for a, _ in moving)) if moving else 1
    return sum(a * n for a, n in moving) // step + 1


def _pieces(operator: Operator, dim: str, loops: Sequence[Loop]) -> Pieces:
    """How the loops over a dim cut its extent."""
    pieces: Pieces = [(0, operator.dims[dim])]
    for loop in loops:
        if loop.dim == dim:
            pieces = [
                (start + i, min(loop.tile, size - i)) for start, size in pieces for i in range(0, size, loop.tile)
            ]
    return pieces


def _count(operator: Operator, dim: str, loops: Sequence[Loop]) -> int:
    """Number of pieces, without listing them."""
    tiles = [loop.tile for loop in loops if loop.dim == dim]

    def below(size: int, level: int) -> int:
        if level == len(tiles):
            return 1
        whole, rest = divmod(size, tiles[level])
        return whole * below(tiles[level], level + 1) + (below(rest, level + 1) if rest else 0)

    return below(operator.dims[dim], 0)


def _moved(operator: Operator, operand: Operand, loops: Sequence[Loop], skip: frozenset[str]) -> int:
    """Points inside the shape, summed over all visits; loops over the dims in `skip` count once."""
    total, done = 1, set[str]()
    for dim in operator.dims:
        if dim in done:
            continue
        group = _tied(operand, dim)
        done |= group
        axes = [(i, n) for i, n in zip(operand.index, operand.shape, strict=True) if set(i.dims) & group]
        if not axes:
            total *= 1 if dim in skip else _count(operator, dim, loops)
        elif (
            len(group) == 1
            and len(axes) == 1
            and axes[0][0] == Affine(((dim, 1),), 0)
            and operator.dims[dim] <= axes[0][1]
        ):
            total *= operator.dims[dim]
        else:
            pieces = {d: np.array(_pieces(operator, d, loops), np.int64) for d in sorted(group)}
            total *= _points_of_group(pieces, axes)
    return total


def _tied(operand: Operand, dim: str) -> set[str]:
    """The dims that share an axis with `dim`, directly or through others."""
    group, grown = {dim}, True
    while grown:
        wider = group | {d for index in operand.index if set(index.dims) & group for d in index.dims}
        grown = wider != group
        group = wider
    return group


def _points_of_group(pieces: Mapping[str, np.ndarray], axes: Sequence[tuple[Affine, int]]) -> int:
    """All combinations of pieces (start, size) of these dims, each axis clipped to its size; one dim a numpy axis."""
    if prod(len(p) for p in pieces.values()) > AT_ONCE:
        longest = max(pieces, key=lambda d: len(pieces[d]))
        halves = np.array_split(pieces[longest], 2)
        return sum(_points_of_group({**pieces, longest: half}, axes) for half in halves)
    grids: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for i, (dim, cut) in enumerate(pieces.items()):
        shape = [1] * len(pieces)
        shape[i] = len(cut)
        grids[dim] = (cut[:, 0].reshape(shape), cut[:, 1].reshape(shape))
    total = np.ones([1] * len(pieces), dtype=np.int64)
    for index, size in axes:
        least: np.ndarray = np.array(index.offset)
        most: np.ndarray = np.array(index.offset)
        step: np.ndarray = np.array(0)
        for d, a in index.terms:
            start, length = grids[d]
            ends = (a * start, a * (start + length - 1))
            least, most = least + np.minimum(*ends), most + np.maximum(*ends)
            step = np.gcd(step, np.where(length > 1, abs(a), 0))
        step = np.where(step == 0, 1, step)
        # Of least, least + step, ..., most: those from 0 on, less those from size on.
        from_zero = (most - np.maximum(least, least + -(least // step) * step)) // step + 1
        beyond = (most - np.maximum(least, least + -((least - size) // step) * step)) // step + 1
        total = total * (np.maximum(from_zero, 0) - np.maximum(beyond, 0))
    return int(np.broadcast_to(total, np.broadcast_shapes(*(g.shape for g, _ in grids.values()))).sum())


def _link(operator: Operator, machine: Machine, site: Site) -> Link:
    name, memory = site.attach.operand, site.attach.memory
    operand = operator.operands[name]
    path = [machine.backing.name, *(m.name for m in machine.path(name, operand))]
    parent = path[path.index(memory) - 1]
    folding = operator.reduction_dims
    keep = prod(_count(operator, d, site.loops) for d in operator.dims if d not in folding)
    fold = prod(_count(operator, d, site.loops) for d in operator.dims if d in folding)
    if operand.role == "output":
        elements = prod(operand.shape)
        partial = elements * (fold - 1) * _slot_bytes(operator, name)
        final = elements * np.dtype(operand.dtype).itemsize
        return Link(name, memory, parent, partial, partial + final, keep * (fold - 1), keep * fold)
    skip = folding if operand.role == "bias" else frozenset[str]()
    loaded = _moved(operator, operand, site.loops, skip) * np.dtype(operand.dtype).itemsize
    return Link(name, memory, parent, loaded, 0, keep if operand.role == "bias" else keep * fold, 0)


# Constraints --------------------------------------------------------------------------------------------------------


def _constraint_problems(plan: Plan) -> Iterator[str]:
    operator, demands = plan.operator, plan.operator.constraints
    found = sites(operator, plan.nest)
    for site in found:
        places = ("*", site.attach.memory, site.attach.operand, str(site.attach))
        for place in places:
            for dim, rule in demands.tiles.get(place, {}).items():
                if not _obeyed(site.tiles[dim], rule):
                    yield f"tile {site.tiles[dim]} of {dim} at {site.attach} disobeys {rule.model_dump(exclude_none=True)}"
        scope = plan.machine.memory(site.attach.memory)
        spills = any(loop.dim in operator.reduction_dims and _cuts(operator, site, loop) for loop in site.loops)
        if operator.operands[site.attach.operand].role == "output" and spills and not (scope.spill and demands.spill):
            yield f"{site.attach} spills partial sums, which is forbidden"
    names = [str(site.attach) for site in found]
    listed = [place for place in names if place in demands.order]
    if listed != list(demands.order):
        yield f"attach points stand in the order {listed}; {list(demands.order)} was demanded"


def _cuts(operator: Operator, site: Site, loop: Loop) -> bool:
    """Whether a loop runs more than once in all."""
    return _count(operator, loop.dim, site.loops) > 1


def _obeyed(tile: int, rule: TileRule) -> bool:
    if rule.equals not in (None, tile):
        return False
    if rule.multiple_of is not None and tile % rule.multiple_of:
        return False
    return (rule.minimum or 1) <= tile and (rule.maximum is None or tile <= rule.maximum)
