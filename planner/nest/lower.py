"""Plan -> kernel: the nest's entries become loops and visits, with every load, start, epilogue and store in its place.

An accumulator is started where both the innermost output buffer and the innermost bias buffer are there, in the first
iteration of all reduction loops outside; it is finished at the end of the innermost output buffer's visit, in the last one.
Further out, an output's buffers hold whatever they are given: partial sums or results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from planner.nest.ir import Arena, Buffer, Compute, Finish, For, Init, Kernel, Load, Statement, Store, Tile, Visit, When
from planner.plan import Attach, Loop, NestEntry, Plan


def lower(plan: Plan) -> Kernel:
    """The kernel of a plan; InternalError if it is malformed."""
    lowering = _Lowering(plan)
    body = lowering.body(plan.nest)
    machine = plan.machine
    kernel = Kernel(
        operator=plan.operator,
        backing=machine.backing.name,
        arenas=tuple(Arena(s.name, s.capacity or 0) for s in machine.scopes),
        buffers=tuple(lowering.buffers[str(e)] for e in plan.nest if isinstance(e, Attach)),
        body=body,
    )
    kernel.verify()
    return kernel


@dataclass(slots=True)
class _Lowering:
    plan: Plan
    loop: dict[str, str | None] = field(init=False)
    """Dim -> the loop that sets its current range."""
    tile: dict[str, int] = field(init=False)
    reductions: list[str] = field(default_factory=list[str])
    """Reduction loops so far, outermost first."""
    inner: dict[str, str] = field(init=False)
    """Operand -> its innermost buffer."""
    buffers: dict[str, Buffer] = field(default_factory=dict[str, Buffer])
    started_at: str = field(init=False)
    """The attach point at which accumulators are started."""

    def __post_init__(self) -> None:
        operator = self.plan.operator
        self.loop = dict.fromkeys(operator.dims)
        self.tile = dict(operator.dims)
        attached = [e for e in self.plan.nest if isinstance(e, Attach)]
        self.inner = {e.operand: str(e) for e in attached}
        starters = {operator.output_name, operator.bias_name}
        self.started_at = [str(e) for e in attached if str(e) == self.inner[e.operand] and e.operand in starters][-1]

    def body(self, entries: Sequence[NestEntry]) -> tuple[Statement, ...]:
        if not entries:
            operator = self.plan.operator
            factors = tuple(self.inner[name] for name in operator.factors)
            return (Compute(self.inner[operator.output_name], factors, self._here()),)
        first, *rest = entries
        match first:
            case Loop():
                return (self._for(first, rest),)
            case Attach():
                return (self._visit(first, rest),)

    def _for(self, loop: Loop, rest: Sequence[NestEntry]) -> For:
        outer = self.loop[loop.dim]
        level = 0 if outer is None else int(outer.rsplit("_", 1)[-1]) + 1
        var = f"{loop.dim}_{level}"
        self.loop[loop.dim], self.tile[loop.dim] = var, loop.tile
        if loop.dim in self.plan.operator.reduction_dims:
            self.reductions.append(var)
        return For(var, loop.dim, loop.tile, outer, self.body(rest))

    def _visit(self, attach: Attach, rest: Sequence[NestEntry]) -> Visit:
        name, role = str(attach), self.plan.operator.operands[attach.operand].role
        self.buffers[name] = self._buffer(attach)
        here, above = self._here(), tuple(self.reductions)
        before: list[Statement] = []
        after: list[Statement] = []
        match role:
            case "input" | "weight":
                before.append(Load(name, When("always")))
            case "bias":
                before.append(Load(name, When("first", above)))
            case "output":
                if above:
                    before.append(Load(name, When("not_first", above)))
                if name == self.inner[attach.operand]:
                    after.append(Finish(name, When("last", above)))
                after.append(Store(name, When("last", above)))
        if name == self.started_at:
            bias = self.plan.operator.bias_name
            accumulator = self.inner[self.plan.operator.output_name]
            before.append(Init(accumulator, self.inner[bias] if bias else None, here, When("first", above)))
        return Visit(name, here, (*before, *self.body(rest), *after))

    def _here(self) -> Tile:
        return Tile(tuple(self.loop.items()))

    def _buffer(self, attach: Attach) -> Buffer:
        operator, machine = self.plan.operator, self.plan.machine
        operand = operator.operands[attach.operand]
        path = [m.name for m in machine.path(attach.operand, operand)]
        depth = path.index(attach.memory)
        planned = self.plan.buffer(attach.operand, attach.memory)
        return Buffer(
            operand=attach.operand,
            memory=attach.memory,
            parent=path[depth - 1] if depth else machine.backing.name,
            outer=f"{attach.operand}@{path[depth - 1]}" if depth else None,
            dtype=operator.accumulate if operand.role == "output" else operand.dtype,
            slot_bytes=operator.buffer_element_bytes(attach.operand),
            shape=planned.shape,
            steps=tuple(axis.step(self.tile) for axis in operand.index),
            offset_bytes=planned.offset_bytes,
            size_bytes=planned.size_bytes,
            copies=planned.copies,
            alignment=machine.memory(attach.memory).alignment,
        )
