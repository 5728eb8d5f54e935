"""Tiles in, a `Plan` out: nest, buffers at addresses, and the figures of every link."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from planner.errors import InternalError
from planner.plan import Attach, Link, Loop, NestEntry, Objective, Plan, PlannedBuffer
from planner.tiling.exact import attach_order, buffer_costs, stage_costs
from planner.tiling.infeasible import packed_bytes
from planner.tiling.problem import Problem

Tiles = Mapping[int, Mapping[str, int]]


def realise(
    problem: Problem, tiles: Tiles, status: Literal["optimal", "feasible"], objective: Objective, *, ties_proved: bool
) -> Plan:
    """The plan for these tiles. InternalError if it does not cost what the objective says."""
    costs = buffer_costs(problem, tiles)
    traffic = stage_costs(problem, costs)["traffic"]
    if objective.name == "traffic" and traffic != objective.value:
        raise InternalError(f"the plan moves {traffic} B, the objective says {objective.value} B")
    links = tuple(
        Link(b.operand, b.memory, b.parent, c.read_bytes, c.written_bytes, c.loads, c.stores)
        for b in problem.buffers
        for c in (costs[b.index],)
    )
    return Plan(
        status=status,
        objective=objective,
        operator=problem.operator,
        machine=problem.machine,
        nest=_nest(problem, tiles),
        buffers=_buffers(problem, tiles),
        links=links,
        ties_proved=ties_proved,
    )


def _nest(problem: Problem, tiles: Tiles) -> tuple[NestEntry, ...]:
    """Loops where a tile shrinks, above the buffer that wants it so. In a band reduction loops go innermost."""
    entries: list[NestEntry] = []
    current = dict(problem.extents)
    dims = sorted(problem.extents, key=lambda d: d in problem.reduction)
    for index in attach_order(problem, tiles):
        for dim in dims:
            if tiles[index][dim] < current[dim]:
                current[dim] = tiles[index][dim]
                entries.append(Loop(dim, current[dim]))
        buffer = problem.buffers[index]
        entries.append(Attach(buffer.operand, buffer.memory))
    return tuple(entries)


def _buffers(problem: Problem, tiles: Tiles) -> tuple[PlannedBuffer, ...]:
    shapes = {b.index: _shape(problem, b.operand, tiles[b.index]) for b in problem.buffers}
    sizes: dict[int, int] = {}
    for b in problem.buffers:
        elements = 1
        for points in shapes[b.index]:
            elements *= points
        sizes[b.index] = elements * b.element_bytes * b.copies
    offsets: dict[int, int] = {}
    for scope in problem.machine.scopes:
        inside = [b.index for b in problem.scope_buffers(scope.name)]
        if not inside:
            continue
        widths = [problem.buffers[i].element_bytes for i in inside]
        end, placed = packed_bytes([sizes[i] for i in inside], scope.alignment, widths)
        if scope.capacity is not None and end > scope.capacity:
            raise InternalError(f"{scope.name}: the model packed {end} B into {scope.capacity} B")
        offsets.update(zip(inside, placed, strict=True))
    return tuple(
        PlannedBuffer(b.operand, b.memory, shapes[b.index], offsets[b.index], sizes[b.index], b.copies)
        for b in problem.buffers
    )


def _shape(problem: Problem, operand: str, tile: Mapping[str, int]) -> tuple[int, ...]:
    full = {dim: tile.get(dim, 1) for dim in problem.operator.dims}
    return tuple(axis.points(full) for axis in problem.operator.operands[operand].index)
