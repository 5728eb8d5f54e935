"""Plans made by hand: a nest in, a plan with measured buffers and links out, no solver involved."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from planner import Machine, Operator, Plan
from planner.check import measure
from planner.plan import Attach, NestEntry, Objective, PlannedBuffer


def plan_of(operator: Operator, machine: Machine, nest: Sequence[NestEntry]) -> Plan:
    """The plan of a nest: buffers one after the other in each scope, in the order in which the nest attaches them."""
    shapes, links = measure(operator, machine, nest)
    ends = {scope.name: 0 for scope in machine.scopes}
    buffers: list[PlannedBuffer] = []
    for entry in nest:
        if not isinstance(entry, Attach):
            continue
        scope = machine.memory(entry.memory)
        copies = 2 if scope.double_buffered else 1
        size = prod(shapes[str(entry)]) * operator.buffer_element_bytes(entry.operand) * copies
        offset = -(-ends[scope.name] // scope.alignment) * scope.alignment
        ends[scope.name] = offset + size
        buffers.append(PlannedBuffer(entry.operand, entry.memory, shapes[str(entry)], offset, size, copies))
    off_chip = sum(k.read_bytes + k.written_bytes for k in links if k.parent == machine.backing.name)
    objective = Objective("traffic", off_chip, 0)
    return Plan("feasible", objective, operator, machine, tuple(nest), tuple(buffers), tuple(links))


def exactly_full(plan: Plan) -> Plan:
    """The same plan on a machine whose scopes end with the last byte that the plan uses."""
    ends = {s.name: 1 for s in plan.machine.scopes}
    for b in plan.buffers:
        ends[b.memory] = max(ends[b.memory], b.offset_bytes + b.size_bytes)
    memories = [
        m if m.parent is None else m.model_copy(update={"capacity": ends[m.name]}) for m in plan.machine.memories
    ]
    return plan_of(plan.operator, plan.machine.model_copy(update={"memories": tuple(memories)}), plan.nest)


def attach_all(operator: Operator, memory: str) -> list[Attach]:
    """Every operand attached in one scope, in the order in which the operator lists them."""
    return [Attach(name, memory) for name in operator.operands]
