"""The CP-SAT model of a tiling problem: one method a constraint family. The only module of this package that imports ortools.

Decisions: for each buffer and dim one value (tile size), and for each pair of buffers which one lies above the other. All
orders of attach points live in one model: a buffer above another has tiles at least as large in every dim, and that is all
that an order demands. Footprints are exact products. What a buffer moves is a product of lower bounds that hold for any
tiles further out; Cuts found by `exact.learn` raise them to the exact count where a chain of tiles calls for it, so that the
model's optimum is a lower bound of the true one at every time, and equal to it at the end.
"""

# ortools' stubs leave weighted_sum and only_enforce_if partly untyped.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import prod
from typing import Any, Literal

import numpy as np
from ortools.sat.python import cp_model

from planner.errors import InternalError, SpecError
from planner.tiling.problem import Buffer, Component, Problem
from planner.tiling.tables import Integers, footprints, moved_bounds, moved_points

Expression = Any
"""A linear expression of ortools or an integer; its stubs leave the arithmetic of the two untyped."""
Kind = Literal["moved", "pieces"]
Stage = Literal["traffic", "ties"]
"""What is minimised: the objective, then its tie-break: transfers first, total footprint second, in one number."""
LARGEST = 2**60
"""Every product must stay below this: CP-SAT refuses models that could overflow 64 bits."""


@dataclass(frozen=True, slots=True)
class BoxCut:
    """With exactly `above` above the buffer and all tiles within `box`, this factor of its count is at least `at_least`."""

    buffer: int
    dims: tuple[str, ...]
    kind: Kind
    above: frozenset[int]
    box: tuple[tuple[int, str, int, int], ...]
    """(buffer, dim, smallest tile, largest tile) for the buffer and all above it; the ends are ends of cells."""
    at_least: int


@dataclass(frozen=True, slots=True)
class Choice:
    """A solution: tile sizes by buffer, and which buffers lie above each."""

    tiles: dict[int, dict[str, int]]
    above: dict[int, frozenset[int]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the solver found. `value` and `bound` belong to the last stage; None where there is no solution."""

    status: Literal["optimal", "feasible", "infeasible", "unknown"]
    value: int | None
    bound: int | None
    choice: Choice | None


@dataclass(frozen=True, slots=True)
class Settings:
    """How to run the solver."""

    time_limit_s: float | None = None
    """Wall time."""
    effort: float | None = None
    """The solver's deterministic time: a limit that gives the same result on every run."""
    seed: int = 0


@dataclass(frozen=True, slots=True)
class _Factor:
    """A positive integer that depends on a component's tiles: an expression with its range."""

    expression: Expression
    low: int
    high: int


class Model:
    """The model for a subset of the buffers (leaving buffers out relaxes the problem), under limits on the stages."""

    def __init__(
        self,
        problem: Problem,
        values: Mapping[str, tuple[int, ...]],
        buffers: Sequence[int],
        limits: Mapping[Stage, int],
        box_cuts: Sequence[BoxCut] = (),
        fixed: Mapping[int, Mapping[str, int]] | None = None,
    ) -> None:
        self.problem = problem
        self.values = values
        self.buffers = [problem.buffers[i] for i in buffers]
        self.limits = limits
        self.cp = cp_model.CpModel()
        self.chosen: dict[tuple[int, str], list[cp_model.IntVar]] = {}
        self.at_most: dict[tuple[int, str], list[cp_model.IntVar]] = {}
        self.is_above: dict[tuple[int, int], cp_model.IntVar] = {}
        self.box_cuts = [c for c in box_cuts if {c.buffer, *c.above} <= set(buffers)]
        self._joint: dict[tuple[int, tuple[str, ...]], list[cp_model.IntVar]] = {}
        self._factors: dict[tuple[int, tuple[str, ...], Kind], _Factor] = {}
        self._costs: dict[Stage, Expression] = {}
        self._choose_values(fixed or {})
        self._order_buffers()
        self._stack_tiles()
        self.sizes = {b.index: self._size(b) for b in self.buffers}
        self._fit_scopes()
        self._forbid_spilling()
        for stage, limit in limits.items():
            self.cp.add(self._cost(stage) <= limit)

    # Decisions ------------------------------------------------------------------------------------------------------

    def _choose_values(self, fixed: Mapping[int, Mapping[str, int]]) -> None:
        """Each buffer takes exactly one value per dim, among those that the user's rules (or `fixed`) leave."""
        for b in self.buffers:
            for dim, sizes in self.values.items():
                allowed = {fixed[b.index][dim]} if b.index in fixed else self.problem.allowed[b.index, dim]
                literals = [self.cp.new_bool_var(f"{b}.{dim}={t}") for t in sizes]
                self.cp.add_exactly_one(literals)
                for literal, t in zip(literals, sizes, strict=True):
                    if allowed is not None and t not in allowed:
                        self.cp.add(literal == 0)
                self.chosen[b.index, dim] = literals
                self.at_most[b.index, dim] = self._running(literals)

    def _running(self, literals: Sequence[cp_model.IntVar]) -> list[cp_model.IntVar]:
        """Literals "the tile is at most the i-th value", without the last: this order encoding propagates best."""
        running = [literals[0]]
        for literal in literals[1:-1]:
            reached = self.cp.new_bool_var("")
            self.cp.add(reached == running[-1] + literal)
            running.append(reached)
        return running[: len(literals) - 1]

    def _order_buffers(self) -> None:
        """Of each pair one lies above the other: an operand's outer buffer above its inner one; pinned orders hold."""
        pinned = set(combinations(self.problem.order, 2))
        for a, b in combinations(self.buffers, 2):
            pair = (a.index, b.index)
            if a.operand == b.operand or pair in pinned:
                first = self.cp.new_constant(1)
            elif pair[::-1] in pinned:
                first = self.cp.new_constant(0)
            else:
                first = self.cp.new_bool_var(f"{a} above {b}")
            self.is_above[pair] = first
            self.is_above[pair[::-1]] = first.negated()  # pyright: ignore[reportArgumentType]

    def _stack_tiles(self) -> None:
        """What lies above has tiles at least as large; in divisors mode, multiples of those below."""
        for (a, b), above in self.is_above.items():
            for dim, sizes in self.values.items():
                if self.problem.divisors:
                    for outer, t in zip(self.chosen[a, dim], sizes, strict=True):
                        fitting = [x for x, u in zip(self.chosen[b, dim], sizes, strict=True) if t % u == 0]
                        self.cp.add_bool_or([above.negated(), outer.negated(), *fitting])
                    continue
                for upper, lower in zip(self.at_most[a, dim], self.at_most[b, dim], strict=True):
                    self.cp.add_bool_or([above.negated(), upper.negated(), lower])

    # Factors and products -------------------------------------------------------------------------------------------

    def _literals(self, buffer: Buffer, dims: tuple[str, ...]) -> list[cp_model.IntVar]:
        """One literal per combination of the values of `dims`, in row-major order."""
        if len(dims) == 1:
            return self.chosen[buffer.index, dims[0]]
        key = (buffer.index, dims)
        if key not in self._joint:
            shape = [len(self.values[d]) for d in dims]
            literals = [self.cp.new_bool_var("") for _ in range(prod(shape))]
            grid = np.array(literals, object).reshape(shape)
            for i, dim in enumerate(dims):
                for j, single in enumerate(self.chosen[buffer.index, dim]):
                    self.cp.add(sum(np.take(grid, j, axis=i).flat) == single)
            self._joint[key] = literals
        return self._joint[key]

    def _moved(self, b: Buffer) -> list[_Factor]:
        """Factors of the elements that a buffer moves: a bias is read on first visits only, whatever the reduction loops."""
        return [
            self._pieces(b, c.dims[0]) if c.plain and not c.axes else self._points(b, c)
            for c in b.components
            if b.role != "bias" or not set(c.dims) <= self.problem.reduction
        ]

    def _points(self, b: Buffer, component: Component) -> _Factor:
        """Points that a component moves over all visits: constant if plain, bounded by its own tile otherwise."""
        if component.plain:
            extent = self.problem.extents[component.dims[0]]
            return _Factor(extent, extent, extent)
        numbers = [int(v) for v in moved_cells(self.problem, self.values, component).flat]
        return self._raised((b.index, component.dims, "moved"), self._literals(b, component.dims), numbers)

    def _pieces(self, b: Buffer, dim: str) -> _Factor:
        """Pieces of a dim at a buffer's attach point: what the dim multiplies its visits by."""
        extent = self.problem.extents[dim]
        ends = self.values[dim] if self.problem.divisors else cell_ends(self.values[dim], extent)
        numbers = [-(-extent // t) for t in ends]
        return self._raised((b.index, (dim,), "pieces"), self.chosen[b.index, dim], numbers)

    def _raised(
        self, key: tuple[int, tuple[str, ...], Kind], literals: Sequence[cp_model.IntVar], numbers: Sequence[int]
    ) -> _Factor:
        """The number that goes with the chosen literal, or more where cuts say so."""
        if key not in self._factors:
            expression = cp_model.LinearExpr.weighted_sum(literals, numbers)
            raises = list(self._box_raises(key))
            high = max([*numbers, *(at_least for _, at_least in raises)])
            if raises:
                raised = self.cp.new_int_var(min(numbers), high, "")
                self.cp.add(raised >= expression)
                for conditions, at_least in raises:
                    self.cp.add(raised >= at_least).only_enforce_if(conditions)
                expression = raised
            self._factors[key] = _Factor(expression, min(numbers), high)
        return self._factors[key]

    def _box_raises(self, key: tuple[int, tuple[str, ...], Kind]) -> Iterator[tuple[list[cp_model.IntVar], int]]:
        for cut in self.box_cuts:
            if (cut.buffer, cut.dims, cut.kind) == key:
                conditions = [literal for side in cut.box for literal in self._within(*side)]
                for other in self.buffers:
                    if other.index != cut.buffer:
                        conditions.append(
                            self.is_above[other.index, cut.buffer]
                            if other.index in cut.above
                            else self.is_above[cut.buffer, other.index]
                        )
                yield conditions, cut.at_least

    def _within(self, buffer: int, dim: str, low: int, high: int) -> Iterator[cp_model.IntVar]:
        values, at_most = self.values[dim], self.at_most[buffer, dim]
        last, below = bisect_right(values, high) - 1, bisect_left(values, low) - 1
        if last < len(at_most):
            yield at_most[last]
        if below >= 0:
            yield at_most[below].negated()  # pyright: ignore[reportReturnType]

    def _product(self, factors: Sequence[_Factor], limit: int, name: str) -> tuple[Expression, int]:
        """The product of the factors, known to be at most `limit`; the expression and its least value."""
        factors = sorted((f for f in factors if (f.low, f.high) != (1, 1)), key=lambda f: f.high)
        least = prod(f.low for f in factors)
        if least > limit:
            self.cp.add_bool_or([])
            return 1, 1
        current, low, high = None, 1, 1
        for i, factor in enumerate(factors):
            # What is still to be multiplied bounds what there may be now, unless it may be zero.
            rest = prod(f.low for f in factors[i + 1 :])
            low, high = low * factor.low, high * factor.high
            if rest:
                high = min(high, limit // rest)
            if high > LARGEST:
                raise SpecError(
                    f"{name} may reach {high}, beyond what the solver can count (2^60); make the operator smaller"
                )
            if current is None:
                current = self.cp.new_int_var(low, high, name)
                self.cp.add(current == factor.expression)
                continue
            multiplied = self.cp.new_int_var(low, high, name)
            one = self.cp.new_int_var(factor.low, min(factor.high, high) if low else factor.high, "")
            self.cp.add(one == factor.expression)
            self.cp.add_multiplication_equality(multiplied, [current, one])
            current = multiplied
        return (1 if current is None else current), least

    # Capacity -------------------------------------------------------------------------------------------------------

    def _size(self, b: Buffer) -> Expression:
        """Bytes of a buffer: footprint x element bytes x copies (semantics: footprint and capacity)."""
        factors = [self._footprint(b, c) for c in b.components if c.axes]
        scale = b.element_bytes * b.copies
        capacity = self.problem.machine.memory(b.memory).capacity or 0
        points, _ = self._product(factors, capacity // scale, f"footprint of {b}")
        return points * scale

    def _footprint(self, b: Buffer, component: Component) -> _Factor:
        points = footprints(component, self.values)
        expression = cp_model.LinearExpr.weighted_sum(self._literals(b, component.dims), points)
        return _Factor(expression, min(points), max(points))

    def _fit_scopes(self) -> None:
        """The last byte of a scope's buffers, each at a multiple of the alignment, lies within the capacity."""
        for scope in self.problem.machine.scopes:
            inside = [b for b in self.buffers if b.memory == scope.name]
            if not inside:
                continue
            assert scope.capacity is not None
            step = scope.alignment
            if step == 1 or len(inside) == 1:
                self.cp.add(sum(self.sizes[b.index] for b in inside) <= scope.capacity)
                continue
            slots = {b.index: self.cp.new_int_var(1, -(-scope.capacity // step), "") for b in inside}
            lasts = [self.cp.new_bool_var(f"{b} last in {scope.name}") for b in inside]
            self.cp.add_exactly_one(lasts)
            for b, last in zip(inside, lasts, strict=True):
                self.cp.add(step * slots[b.index] >= self.sizes[b.index])
                before = sum(step * slots[o.index] for o in inside if o is not b)
                self.cp.add(before + self.sizes[b.index] <= scope.capacity).only_enforce_if(last)

    def _forbid_spilling(self) -> None:
        """No reduction loop above a buffer whose partial sums may not leave it."""
        for b in self.buffers:
            if b.role == "output" and not b.may_spill:
                for dim in self.problem.reduction:
                    self.cp.add(self.chosen[b.index, dim][-1] == 1)

    # Stages of the objective ----------------------------------------------------------------------------------------

    def _cost(self, stage: Stage) -> Expression:
        if stage not in self._costs:
            match stage:
                case "traffic":
                    cost = self._traffic()
                case "ties":
                    transfers = sum(self._transfers(b) for b in self.buffers)
                    cost = transfers * tie_scale(self.problem) + sum(self.sizes[b.index] for b in self.buffers)
            self._costs[stage] = cost
        return self._costs[stage]

    def _traffic(self) -> Expression:
        """Bytes to and from the backing store: T elements of an output cost 2 (T - S) partial sums and S results."""
        limit = self.limits.get("traffic", LARGEST)
        outermost = [b for b in self.buffers if b.outer is None]
        least = {b.index: self._bytes(b, prod(f.low for f in self._moved(b))) for b in outermost}
        total: Expression = 0
        for b in outermost:
            # What this buffer may move if all others move their least.
            most = limit - sum(least.values()) + least[b.index]
            moved, _ = self._product(self._moved(b), self._elements(b, most), f"traffic of {b}")
            total = total + self._bytes(b, moved)
        return total

    def _bytes(self, b: Buffer, elements: Expression) -> Expression:
        if b.role != "output":
            return elements * b.element_bytes
        final = self.problem.operator.output
        size = prod(final.shape)
        return (elements - size) * (2 * b.element_bytes) + size * final.element_bytes

    def _elements(self, b: Buffer, limit_bytes: int) -> int:
        """The most elements that `limit_bytes` of traffic allow: `_bytes` solved for its argument."""
        if b.role != "output":
            return limit_bytes // b.element_bytes
        final = self.problem.operator.output
        size = prod(final.shape)
        return (limit_bytes - size * final.element_bytes) // (2 * b.element_bytes) + size

    def _transfers(self, b: Buffer) -> Expression:
        """Loads and stores of a buffer. An output's F first visits store only; the F (R - 1) others load and store."""
        limit = (
            self.limits.get("ties", LARGEST)
            // tie_scale(self.problem)
            // (1 if "ties" in self.limits else len(self.buffers))
        )
        name = f"transfers of {b}"
        reducing = [self._pieces(b, d) for d in self.problem.extents if d in self.problem.reduction]
        rest = [self._pieces(b, d) for d in self.problem.extents if d not in self.problem.reduction]
        if b.role != "output":
            return self._product(rest if b.role == "bias" else [*rest, *reducing], limit, name)[0]
        repeats, least = self._product(reducing, limit, f"visits of {b}")
        highest = min(prod(f.high for f in reducing), limit)
        both = _Factor(2 * repeats - 1, 2 * least - 1, 2 * highest - 1)
        return self._product([*rest, both], limit, name)[0]

    # Solving --------------------------------------------------------------------------------------------------------

    def minimise(
        self,
        stage: Stage,
        settings: Settings,
        *,
        at_least: int = 0,
        hint: Choice | None = None,
        progress: Callable[[int | None, int], None] | None = None,
    ) -> Outcome:
        """Minimise one stage. `at_least` is a bound proved elsewhere. InternalError if the model is invalid."""
        cost = self._cost(stage)
        self.cp.add(cost >= at_least)
        self.cp.minimize(cost)
        if hint is not None:
            self._hint(hint)
        solver = cp_model.CpSolver()
        # One thread is deterministic. On models this small it is also as fast as several; probing, symmetry detection and
        # linear relaxations cost more than they save (measured over the layers of ResNet-50 and MobileNetV2).
        solver.parameters.num_workers = 1
        solver.parameters.cp_model_probing_level = 0
        solver.parameters.symmetry_level = 0
        solver.parameters.linearization_level = 0
        solver.parameters.random_seed = settings.seed
        solver.parameters.catch_sigint_signal = False  # signals are the caller's
        if settings.time_limit_s is not None:
            solver.parameters.max_time_in_seconds = max(settings.time_limit_s, 0.01)
        if settings.effort is not None:
            solver.parameters.max_deterministic_time = settings.effort
        status = solver.solve(self.cp, _Watcher(progress) if progress is not None else None)
        if status == cp_model.MODEL_INVALID:
            raise InternalError(f"the solver calls the model invalid: {self.cp.validate()}")
        if status == cp_model.INFEASIBLE:
            return Outcome("infeasible", None, None, None)
        bound = max(at_least, round(solver.best_objective_bound))
        if status == cp_model.UNKNOWN:
            return Outcome("unknown", None, bound, None)
        value = round(solver.objective_value)
        return Outcome("optimal" if status == cp_model.OPTIMAL else "feasible", value, bound, self._choice(solver))

    def _hint(self, choice: Choice) -> None:
        for (b, dim), literals in self.chosen.items():
            for literal, t in zip(literals, self.values[dim], strict=True):
                self.cp.add_hint(literal, int(choice.tiles[b][dim] == t))

    def _choice(self, solver: cp_model.CpSolver) -> Choice:
        tiles: dict[int, dict[str, int]] = {b.index: {} for b in self.buffers}
        for (b, dim), literals in self.chosen.items():
            tiles[b][dim] = next(
                t for t, literal in zip(self.values[dim], literals, strict=True) if solver.boolean_value(literal)
            )
        above = {
            b.index: frozenset(
                a.index for a in self.buffers if a is not b and solver.boolean_value(self.is_above[a.index, b.index])
            )
            for b in self.buffers
        }
        return Choice(tiles, above)


def tie_scale(problem: Problem) -> int:
    """One transfer outweighs any footprint: a number above the sum of all capacities."""
    return 1 + sum(scope.capacity or 0 for scope in problem.machine.scopes)


def moved_cells(problem: Problem, values: Mapping[str, tuple[int, ...]], component: Component) -> Integers:
    """Lower bounds of the points that a component moves, for each combination of cells; exact in divisors mode."""
    extents = problem.extents
    if not problem.divisors:
        return moved_bounds(component, extents, {d: cell_ends(values[d], extents[d]) for d in component.dims})
    # Dividing tiles leave full pieces only, so that the count depends on the buffer's own tile alone.
    counts = [
        moved_points(component, extents, {d: (t,) for d, t in zip(component.dims, tiles, strict=True)})
        for tiles in product(*(values[d] for d in component.dims))
    ]
    return np.array(counts, np.int64).reshape([len(values[d]) for d in component.dims])


def cell_ends(values: Sequence[int], extent: int) -> tuple[int, ...]:
    """The largest integer of each value's cell."""
    return (*(v - 1 for v in values[1:]), extent)


class _Watcher(cp_model.CpSolverSolutionCallback):
    """Passes each better solution on: its value and the bound at that time."""

    def __init__(self, progress: Callable[[int | None, int], None]) -> None:
        super().__init__()
        self._progress = progress

    def on_solution_callback(self) -> None:
        self._progress(round(self.objective_value), round(self.best_objective_bound))
