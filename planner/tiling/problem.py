"""The tiling problem: operator + machine in; buffers, their components and the tile sizes worth trying out.

Vocabulary of this package, used in every module of it:

- A **buffer** is one (operand, scope) pair. A plan gives each buffer a *tile vector* (one tile size per dim) at its attach
  point; buffers further in have smaller or equal tiles in every dim.
- A **component** of a buffer is a set of dims that its operand's own index ties together (`p` and `r` of an input), or a
  single dim. Footprint, elements moved and visits of a buffer are products over its components.
- A **value** of a dim is a tile size that the model may choose. Values split `1..extent` into **cells**: the integers from
  one value up to just below the next. A value stands for its whole cell until refinement has split it (`refine`).
"""

from __future__ import annotations

from dataclasses import dataclass

from planner.errors import SpecError
from planner.spec.machine import Machine, Memory
from planner.spec.operator import Operand, Operator, TileRule

SMALL_EXTENT = 32
"""Up to this extent every integer is a value from the start: cheap, and refinement then seldom has to split a cell."""

MOST_VALUES = 100
"""About as many values a dim has at the start, at most: every `ceil(extent / n)` of extents up to 2500."""


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of an operand: `sum(coefficient * dim) + offset`, clipped to `[0, size)`."""

    terms: tuple[tuple[str, int], ...]
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Component:
    """Dims that an operand's axes tie together, with these axes; no axes for a dim that the operand lacks."""

    dims: tuple[str, ...]
    axes: tuple[Axis, ...]
    plain: bool
    """One dim, at most one axis, coefficient 1, nothing clipped: closed formulas hold."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """One operand in one scope."""

    index: int
    operand: str
    role: str
    memory: str
    parent: str
    """The memory it is filled from: the nearest scope above that holds the operand, or the backing store."""
    outer: int | None
    """Index of the same operand's buffer in the parent, None if the parent is the backing store."""
    depth: int
    element_bytes: int
    copies: int
    components: tuple[Component, ...]
    may_spill: bool

    def __str__(self) -> str:
        return f"{self.operand}@{self.memory}"


@dataclass(frozen=True, slots=True)
class Problem:
    """Everything that the model needs, in plain integers."""

    operator: Operator
    machine: Machine
    divisors: bool
    extents: dict[str, int]
    """Dims of extent above 1, in the operator's order."""
    reduction: frozenset[str]
    buffers: tuple[Buffer, ...]
    allowed: dict[tuple[int, str], frozenset[int] | None]
    """(buffer, dim) -> tile sizes that the user's rules leave, None for all."""
    order: tuple[int, ...]
    """Buffers whose order of attach points the user pinned, outermost first."""

    def scope_buffers(self, memory: str) -> tuple[Buffer, ...]:
        return tuple(b for b in self.buffers if b.memory == memory)


LONGEST_EXTENT = 10**10
"""Points of one dim: its sensible tile sizes are about twice the square root of that."""


def build_problem(operator: Operator, machine: Machine, *, divisors: bool) -> Problem:
    """Collect buffers, components and the user's rules. The specs must have passed `check_against`.

    SpecError for an extent whose tile sizes are too many to look at.
    """
    for dim, extent in operator.dims.items():
        if extent > LONGEST_EXTENT:
            raise SpecError(
                f"dim {dim} of {operator.name} has {extent} points, and the solver takes {LONGEST_EXTENT}; split it"
            )
    extents = {d: n for d, n in operator.dims.items() if n > 1}
    buffers: list[Buffer] = []
    for name, operand in operator.operands.items():
        outer: int | None = None
        parent = machine.backing.name
        for depth, scope in enumerate(machine.path(name, operand)):
            buffers.append(
                Buffer(
                    index=len(buffers),
                    operand=name,
                    role=operand.role,
                    memory=scope.name,
                    parent=parent,
                    outer=outer,
                    depth=depth,
                    element_bytes=operator.buffer_element_bytes(name),
                    copies=2 if scope.double_buffered else 1,
                    components=_components(operand, extents),
                    may_spill=_may_spill(operator, scope),
                )
            )
            outer, parent = buffers[-1].index, scope.name
    by_name = {str(b): b.index for b in buffers}
    return Problem(
        operator=operator,
        machine=machine,
        divisors=divisors,
        extents=extents,
        reduction=operator.reduction_dims & frozenset(extents),
        buffers=tuple(buffers),
        allowed={(b.index, d): _allowed(operator, b, d, n) for b in buffers for d, n in operator.dims.items()},
        order=tuple(by_name[place] for place in operator.constraints.order),
    )


def _may_spill(operator: Operator, scope: Memory) -> bool:
    return scope.spill and operator.constraints.spill


def _components(operand: Operand, extents: dict[str, int]) -> tuple[Component, ...]:
    """Connected dims of the operand's axes, in the order of the dims."""
    axes = [
        Axis(tuple((d, a) for d, a in index.terms if d in extents), index.offset, size)
        for index, size in zip(operand.index, operand.shape, strict=True)
    ]
    groups: list[set[str]] = [{d} for d in extents]
    for axis in axes:
        touched = {d for d, _ in axis.terms}
        joined = [g for g in groups if g & touched]
        if joined:
            groups = [g for g in groups if not g & touched] + [set[str]().union(*joined)]
    components: list[Component] = []
    for group in groups:
        dims = tuple(d for d in extents if d in group)
        own = tuple(axis for axis in axes if any(d in group for d, _ in axis.terms))
        components.append(Component(dims, own, plain=_is_plain(dims, own, extents)))
    return tuple(sorted(components, key=lambda c: list(extents).index(c.dims[0])))


def _is_plain(dims: tuple[str, ...], axes: tuple[Axis, ...], extents: dict[str, int]) -> bool:
    if len(dims) > 1 or len(axes) > 1:
        return False
    if not axes:
        return True
    (axis,) = axes
    ((_, coefficient),) = axis.terms
    last = axis.offset + coefficient * (extents[next(iter(dims))] - 1)
    return min(axis.offset, last) >= 0 and max(axis.offset, last) < axis.size


def _allowed(operator: Operator, buffer: Buffer, dim: str, extent: int) -> frozenset[int] | None:
    rules = [
        rule
        for place in ("*", buffer.memory, buffer.operand, str(buffer))
        if (rule := operator.constraints.tiles.get(place, {}).get(dim)) is not None
    ]
    if not rules:
        return None
    return frozenset(t for t in _candidates(rules, extent) if all(_obeys(t, rule) for rule in rules))


def _candidates(rules: list[TileRule], extent: int) -> range | tuple[int, ...]:
    """A small superset of what the rules allow, so that an extent of 1e6 with a pin costs nothing."""
    for rule in rules:
        if rule.equals is not None:
            return (rule.equals,) if rule.equals <= extent else ()
    step = max(rule.multiple_of or 1 for rule in rules)
    return range(step, extent + 1, step)


def _obeys(tile: int, rule: TileRule) -> bool:
    return (
        (rule.equals is None or tile == rule.equals)
        and (rule.multiple_of is None or tile % rule.multiple_of == 0)
        and (rule.minimum is None or tile >= rule.minimum)
        and (rule.maximum is None or tile <= rule.maximum)
    )


def initial_values(problem: Problem) -> dict[str, tuple[int, ...]]:
    """Ascending values of each dim.

    In `divisors` mode these are the divisors. In `ragged` mode: every `ceil(extent / n)`, the smallest size that makes do
    with n tiles, and whatever the user's rules single out (all multiples; pins; the ends of ranges). Rounding a tile
    down to the nearest value keeps every plan legal, its footprints no larger and the lower bounds of its visits equal.
    """
    values: dict[str, tuple[int, ...]] = {}
    for dim, extent in problem.extents.items():
        if problem.divisors:
            values[dim] = divisors_of(extent)
            continue
        chosen = set(range(1, extent + 1)) if extent <= SMALL_EXTENT else set(_thinned(ceilings_of(extent)))
        for buffer in problem.buffers:
            allowed = problem.allowed[buffer.index, dim]
            if allowed:
                chosen |= _anchors(allowed)
        values[dim] = tuple(sorted(chosen))
    return values


def _thinned(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """At most about MOST_VALUES sizes, evenly spread on a logarithmic scale: for huge extents refinement finds the rest."""
    if len(sizes) <= MOST_VALUES:
        return sizes
    ratio = sizes[-1] ** (1 / MOST_VALUES)
    kept = [sizes[0]]
    for size in sizes[1:-1]:
        if size >= kept[-1] * ratio:
            kept.append(size)
    return (*kept, sizes[-1])


def _anchors(allowed: frozenset[int]) -> set[int]:
    """The members of a set that start a run of consecutive integers: rounding down from within the run stays in it."""
    return {t for t in allowed if t - 1 not in allowed}


def divisors_of(extent: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    small = [t for t in range(1, int(extent**0.5) + 1) if extent % t == 0]
    return tuple(sorted({*small, *(extent // t for t in small)}))


def ceilings_of(extent: int) -> tuple[int, ...]:
    """Every `ceil(extent / n)`, ascending: about 2 * sqrt(extent) sizes."""
    sizes: list[int] = []
    tile = extent
    while True:
        sizes.append(tile)
        if tile == 1:
            return tuple(reversed(sizes))
        count = -(-extent // tile)
        # The largest tile below this one that needs one tile more, then the smallest with that many.
        fewer = -(-extent // (count + 1))
        tile = fewer if fewer < tile else -(-extent // -(-extent // (tile - 1)))
