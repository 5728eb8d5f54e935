"""Why there is no plan: scopes too small for their smallest tiles, by plain arithmetic, or demands that exclude each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from planner.plan import Shortage
from planner.spec.operator import Constraints, Operator
from planner.tiling.model import Model, Settings
from planner.tiling.problem import Buffer, Problem, build_problem, initial_values
from planner.tiling.tables import footprint


def smallest_tiles(problem: Problem) -> dict[int, dict[str, int]]:
    """The smallest tile that the user's rules leave to each buffer in each dim."""
    return {
        b.index: {d: min(allowed) if (allowed := problem.allowed[b.index, d]) else 1 for d in problem.extents}
        for b in problem.buffers
    }


def buffer_bytes(buffer: Buffer, tile: Mapping[str, int]) -> int:
    """Footprint x element bytes x copies."""
    return prod(footprint(c, tile) for c in buffer.components) * buffer.element_bytes * buffer.copies


def packed_bytes(sizes: Sequence[int], alignment: int, elements: Sequence[int]) -> tuple[int, tuple[int, ...]]:
    """End of the last byte, and the offsets, when buffers are stacked at multiples of the alignment in the best order.

    Only the last buffer goes without rounding up, so the one that saves most goes last. Among the others those with the
    widest elements (bytes in `elements`) come first: their sizes are multiples of it, so that every buffer lies at a
    multiple of its element's bytes, whatever the alignment, if both are powers of two.
    """
    padded = [-(-s // alignment) * alignment for s in sizes]
    order = sorted(range(len(sizes)), key=lambda i: (padded[i] - sizes[i], -elements[i], i))
    offsets, at = [0] * len(sizes), 0
    for i in order:
        offsets[i] = at
        at += padded[i]
    return at - (padded[order[-1]] - sizes[order[-1]]), tuple(offsets)


def shortages(problem: Problem, tiles: Mapping[int, Mapping[str, int]] | None = None) -> tuple[Shortage, ...]:
    """Scopes that cannot hold these tiles; by default the smallest ones."""
    chosen = smallest_tiles(problem) if tiles is None else tiles
    found: list[Shortage] = []
    for scope in problem.machine.scopes:
        inside = problem.scope_buffers(scope.name)
        sizes = [buffer_bytes(b, chosen[b.index]) for b in inside]
        needed = packed_bytes(sizes, scope.alignment, [b.element_bytes for b in inside])[0] if sizes else 0
        capacity = scope.capacity or 0
        if needed > capacity:
            pinned = any(problem.allowed[b.index, d] for b in inside for d in problem.extents)
            remedy = f"give {scope.name} {needed} B or more" + (" or relax the tiles demanded there" if pinned else "")
            parts = {b.operand: size for b, size in zip(inside, sizes, strict=True)}
            found.append(Shortage(scope.name, needed, capacity, parts, remedy))
    return tuple(found)


def conflicts(problem: Problem) -> tuple[str, ...]:
    """Demands of the user each of which, left out on its own, would let a plan exist; all of them if none alone does."""
    demands = _demands(problem.operator.constraints)
    guilty = [text for text, rest in demands if _has_plan(problem, rest)]
    found = guilty or [text for text, _ in demands]
    return tuple([*found, "tiles: divisors"] if problem.divisors else found)


def _demands(constraints: Constraints) -> list[tuple[str, Constraints]]:
    """Each demand in words, with the constraints that remain without it."""
    found: list[tuple[str, Constraints]] = []
    for place, rules in constraints.tiles.items():
        for dim, rule in rules.items():
            fewer = {p: {d: r for d, r in ds.items() if (p, d) != (place, dim)} for p, ds in constraints.tiles.items()}
            words = ", ".join(f"{k} {v}" for k, v in rule.model_dump(exclude_none=True).items())
            found.append((f"tile of {dim} at {place}: {words}", constraints.model_copy(update={"tiles": fewer})))
    if constraints.order:
        found.append((f"order {', '.join(constraints.order)}", constraints.model_copy(update={"order": ()})))
    if not constraints.spill:
        found.append(("spill: false", constraints.model_copy(update={"spill": True})))
    return found


def _has_plan(problem: Problem, constraints: Constraints) -> bool:
    operator: Operator = problem.operator.model_copy(update={"constraints": constraints})
    relaxed = build_problem(operator, problem.machine, divisors=problem.divisors)
    if shortages(relaxed):
        return False
    model = Model(relaxed, initial_values(relaxed), range(len(relaxed.buffers)), {})
    return model.minimise("traffic", Settings(effort=1.0)).choice is not None
