"""Kernel -> scalar program: every box becomes a start, a step and a count along each axis; every window becomes loops.

Ranges of dims are known as `start` and `end`, and slots are counted from where the buffer's visit starts. So what is the same
for a buffer and for the tile inside of it cancels, and a loop that always takes whole tiles has a constant size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import assert_never

from planner.emit.boxes import Range
from planner.emit.epilogue import cast, finished
from planner.emit.index import Compare, Condition, Every, Index, Some, Unless, choose, least, variable
from planner.emit.names import Names
from planner.emit.program import (
    Accumulate,
    Arena,
    Assign,
    Copy,
    Enter,
    For,
    Kind,
    Let,
    Local,
    Note,
    Number,
    Operation,
    Program,
    Statement,
    Tensor,
    Value,
    View,
    Wait,
    branch,
    named,
    walk,
    without_idle_waits,
    without_unused,
)
from planner.emit.transfers import Filling, load, output_copy
from planner.errors import SpecError
from planner.nest import ir
from planner.nest.arithmetic import neutral
from planner.spec.operator import DTYPE_BYTES, DType, Epilogue

_WHEN = ("", "_begin", "_next")
"""Endings of what is computed at a visit for itself, before the first visit, and at a visit for the next one."""


def spell_out(kernel: ir.Kernel, names: Names, *, overlap: bool = False) -> Program:
    """The scalar program of a kernel, with names that the target can hold.

    With `overlap`, buffers in two copies are filled ahead: the transfer for the next visit is started before this visit's
    body, and a store is waited for when the next one is due. Otherwise each transfer is waited for at once, and there is no
    use for copies.
    """
    return _Spelling(kernel, names, overlap).program()


def require_aligned(program: Program) -> None:
    """SpecError if a buffer lies where its elements cannot be read one by one.

    Plans of the solver have none such, unless an alignment is no power of two.
    """
    for view in program.views:
        each = DTYPE_BYTES[view.dtype]
        if view.offset_bytes % each or (view.size_bytes // view.copies) % each:
            raise SpecError(
                f"{view.operand}@{view.memory} lies at byte {view.offset_bytes}, and its {view.dtype} are read at multiples of "
                f"{each}; give {view.memory} alignment: {each} or more"
            )


@dataclass(slots=True)
class _Spelling:
    kernel: ir.Kernel
    names: Names
    overlap: bool
    loops: dict[str, Range] = field(default_factory=dict[str, Range])
    """Range that each loop sets."""
    around: dict[str, Range] = field(default_factory=dict[str, Range])
    """Range that each loop steps through."""
    current: dict[str, Range] = field(init=False)
    """Range of each dim at this place of the kernel."""
    variables: dict[str, str] = field(default_factory=dict[str, str])
    live: dict[str, Filling] = field(default_factory=dict[str, Filling])
    operands: dict[str, str] = field(init=False)
    views: dict[str, View] = field(init=False)
    arenas: dict[str, str] = field(init=False)
    pipelines: dict[str, tuple[ir.For, ...]] = field(init=False)
    """Loops through the visits of a buffer for which the memory above stays as it is; for buffers in copies."""
    within: dict[str, str] = field(init=False)
    """Name of the variable that counts points of a dim within a tile."""

    def __post_init__(self) -> None:
        operator, names = self.kernel.operator, self.names
        self.operands = {name: names.new(name, ("", "_partial")) for name in operator.operands}
        used = [a.memory for a in self.kernel.arenas if any(b.memory == a.memory for b in self.kernel.buffers)]
        self.arenas = {memory: names.new(memory) for memory in used}
        self.pipelines = self._pipelines() if self.overlap else {}
        self.views = {b.name: self._view(b) for b in self.kernel.buffers}
        for loop in (s for s in ir.walk(self.kernel.body) if isinstance(s, ir.For)):
            self.variables[loop.var] = names.new(loop.var, ("", "_end", "_next", "_next_end", "_number"))
        self.within = {d: names.new(f"{d}_in") for d in operator.dims}
        self.current = {d: self._whole(d) for d in operator.dims}

    def program(self) -> Program:
        operator, kernel = self.kernel.operator, self.kernel
        body = without_unused(without_idle_waits(self._body(kernel.body)))
        arenas = tuple(
            Arena(
                self.arenas[a.memory],
                a.memory,
                max(b.offset_bytes + b.size_bytes for b in kernel.buffers if b.memory == a.memory),
                a.capacity_bytes,
                max(b.alignment for b in kernel.buffers if b.memory == a.memory),
            )
            for a in kernel.arenas
            if a.memory in self.arenas
        )
        return Program(
            name=self.names.new(operator.name),
            operator=operator,
            backing=kernel.backing,
            tensors=tuple(self._tensors(body)),
            arenas=arenas,
            views=tuple(self.views.values()),
            body=body,
        )

    def _tensors(self, body: Sequence[Statement]) -> Sequence[Tensor]:
        operator = self.kernel.operator
        inputs = [(n, o) for n, o in operator.operands.items() if o.role != "output"]
        found = [Tensor(self.operands[n], n, o.dtype, o.shape, "given") for n, o in inputs]
        name, output = operator.output_name, operator.output
        found.append(Tensor(self.operands[name], name, output.dtype, output.shape, "result"))
        partial = f"{self.operands[name]}_partial"
        if any(partial in (s.to.ref, s.source.ref) for s in walk(body) if isinstance(s, Copy)):
            found.append(Tensor(partial, name, operator.accumulate, output.shape, "partial"))
        return found

    def _view(self, b: ir.Buffer) -> View:
        operand = self.kernel.operator.operands[b.operand]
        dtype: DType = self.kernel.operator.accumulate if operand.role == "output" else operand.dtype
        suffixes = ["", "_copy", "_ahead"]
        suffixes += [f"_{what}_{i}{when}" for i in range(len(b.shape)) for what in ("first", "count") for when in _WHEN]
        name = self.names.new(f"{b.operand}_{b.memory}", suffixes)
        return View(
            name=name,
            operand=b.operand,
            memory=b.memory,
            arena=self.arenas[b.memory],
            dtype=dtype,
            shape=b.shape,
            offset_bytes=b.offset_bytes,
            size_bytes=b.size_bytes,
            copies=b.copies,
            ahead=f"{name}_ahead" if b.name in self.pipelines and operand.role in ("input", "weight") else None,
            result=operand.dtype if operand.role == "output" else None,
        )

    def _pipelines(self) -> dict[str, tuple[ir.For, ...]]:
        """The loops between each buffer in copies and its parent's buffer, outermost first; none without loops there."""
        found: dict[str, tuple[ir.For, ...]] = {}

        def scan(body: Sequence[ir.Statement], around: dict[str | None, tuple[ir.For, ...]]) -> None:
            """`around` has the loops since the visit of each buffer that is alive; None is the backing store."""
            for statement in body:
                match statement:
                    case ir.For(body=inner):
                        scan(inner, {name: (*loops, statement) for name, loops in around.items()})
                    case ir.Visit(name, _, inner):
                        buffer = self.kernel.buffer(name)
                        if buffer.copies > 1 and around[buffer.outer]:
                            found[name] = around[buffer.outer]
                        scan(inner, {**around, name: ()})
                    case _:
                        pass

        scan(self.kernel.body, {None: ()})
        return found

    # Statements -----------------------------------------------------------------------------------------------------------

    def _body(self, body: Sequence[ir.Statement]) -> list[Statement]:
        found: list[Statement] = []
        for statement in body:
            match statement:
                case ir.For():
                    found += [*self._begin(statement), *self._for(statement), *self._drain(statement)]
                case ir.Visit():
                    found += self._visit(statement)
                case ir.Load():
                    found += self._when(statement.when, self._arrive(self.live[statement.buffer]))
                case ir.Init():
                    found += self._when(statement.when, self._init(statement))
                case ir.Compute():
                    found += self._compute(statement)
                case ir.Finish():
                    found += self._when(statement.when, self._finish(self.live[statement.buffer]))
                case ir.Store():
                    found += self._store(statement)
                case _:
                    assert_never(statement)
        return found

    def _whole(self, dim: str) -> Range:
        extent = self.kernel.operator.dims[dim]
        return Range(Index(), Index((), extent), extent, extent)

    def _ranges(self, tile: ir.Tile) -> dict[str, Range]:
        return {d: self._whole(d) if loop is None else self.loops[loop] for d, loop in tile.loops}

    def _for(self, loop: ir.For) -> list[Statement]:
        around = self._whole(loop.dim) if loop.outer is None else self.loops[loop.outer]
        name, first = self.variables[loop.var], list[Statement]()
        inside = _at(loop, variable(name), around, partial(named, f"{name}_end", first))
        self.loops[loop.var], self.around[loop.var] = inside, around
        before, self.current[loop.dim] = self.current[loop.dim], inside
        body = self._body(loop.body)
        self.current[loop.dim] = before
        return body if inside is around else [For(name, around.start, around.end, loop.tile, (*first, *body))]

    def _visit(self, statement: ir.Visit) -> list[Statement]:
        buffer = self.kernel.buffer(statement.buffer)
        view = self.views[buffer.name]
        self.live[buffer.name] = self._filling(buffer, view.name, self._ranges(statement.tile))
        text = f"{buffer.operand} in {buffer.memory}, below {buffer.parent}: {list(buffer.shape)} at byte {buffer.offset_bytes}"
        enter = [Enter(view.name)] if view.copies > 1 and self.overlap else []
        return [Note(text), *enter, *self._body(statement.body)]

    def _filling(self, buffer: ir.Buffer, name: str, ranges: Mapping[str, Range]) -> Filling:
        """A filling of a buffer, in its copy of that name."""
        index = self.kernel.operator.operands[buffer.operand].index
        above = None if buffer.outer is None else self.live[buffer.outer]
        return Filling(buffer, self.views[buffer.name], name, self.operands[buffer.operand], index, ranges, above)

    def _store(self, store: ir.Store) -> list[Statement]:
        """Empty a buffer; where it is stored behind, the transfer before this one has to be over, else this one."""
        filling, wait = self.live[store.buffer], Wait(store.buffer, "store")
        partial = output_copy(filling, "store", results=False) if store.final.loops else []
        moved = self._when(store.final, output_copy(filling, "store", results=True), partial)
        return [wait, *moved] if store.buffer in self.pipelines else [*moved, wait]

    def _when(self, when: ir.When, yes: list[Statement], no: list[Statement] | None = None) -> list[Statement]:
        tests: list[Condition] = []
        for loop in when.loops:
            inside, around = self.loops[loop], self.around[loop]
            last = when.kind == "last"
            tests.append(Compare("==", *((inside.end, around.end) if last else (inside.start, around.start))))
        condition: Condition = Unless(Every(tuple(tests))) if when.kind == "not_first" else Every(tuple(tests))
        if when.kind == "always":
            condition = Every(())
        return branch(condition, yes, no or [])

    # Overlap --------------------------------------------------------------------------------------------------------------

    def _begin(self, loop: ir.For) -> list[Statement]:
        """Before a loop: start the first transfer of each buffer that is filled ahead in it."""
        found: list[Statement] = []
        for name, loops in self.pipelines.items():
            view = self.views[name]
            if loops[0] is loop and view.ahead is not None:
                ranges = dict(self.current)
                for each in loops:
                    around = ranges[each.dim]
                    ranges[each.dim] = _at(each, around.start, around)
                found += load(self.kernel.operator, self._ahead(name, ranges), "_begin")
        return found

    def _drain(self, loop: ir.For) -> list[Statement]:
        """After a loop: wait for the last store of each buffer that is stored behind in it."""
        output = self.kernel.operator.output_name
        names = [
            n for n, loops in self.pipelines.items() if loops[0] is loop and self.kernel.buffer(n).operand == output
        ]
        return [Wait(name, "store") for name in names]

    def _arrive(self, filling: Filling) -> list[Statement]:
        """Fill a buffer; where it is filled ahead, wait for that and start on the next one."""
        name = filling.buffer.name
        if filling.view.ahead is None:
            stored = filling.view.result is not None and name in self.pipelines
            before = [Wait(name, "store")] if stored else []  # partial sums may still be on their way out
            return [*before, *load(self.kernel.operator, filling, ""), Wait(name, "load")]
        loops = self.pipelines[name]
        # A loop of one tile never goes on.
        steps = [each for each in loops if self.loops[each.var] is not self.around[each.var]]
        going_on = [Compare("<", self.loops[each.var].start + each.tile, self.around[each.var].end) for each in steps]
        body: list[Statement] = []
        ranges = {**filling.ranges, **self._following(loops, steps, going_on, body)}
        body += load(self.kernel.operator, self._ahead(name, ranges), "_next")
        return [Wait(name, "load"), *branch(Some(tuple(going_on)), body)]

    def _following(
        self, loops: Sequence[ir.For], steps: Sequence[ir.For], going_on: Sequence[Condition], before: list[Statement]
    ) -> dict[str, Range]:
        """Ranges of the dims of `loops` at the next visit, if there is one; `before` gives them names.

        `steps` are the loops of more than one tile, outermost first, and `going_on` says for each that it has another one.
        """
        following: dict[str, Range] = {}
        for each in loops:
            here, around = self.loops[each.var], self.around[each.var]
            above = following.get(each.dim, around)
            following[each.dim] = above
            if each in steps:
                i = steps.index(each)
                on = here.start + each.tile
                # There is a next visit: where no loop inside goes on, and none outside, the outermost one does.
                carried = on if i == 0 else choose(going_on[i], on, above.start)
                name = f"{self.variables[each.var]}_next"
                start = named(name, before, choose(Some(tuple(going_on[i + 1 :])), here.start, carried))
                following[each.dim] = _at(each, start, above, partial(named, f"{name}_end", before))
        return following

    def _ahead(self, name: str, ranges: Mapping[str, Range]) -> Filling:
        """The visit of a buffer for these ranges, in the copy that is filled ahead."""
        ahead = self.views[name].ahead
        assert ahead is not None
        return self._filling(self.kernel.buffer(name), ahead, ranges)

    # Elements -------------------------------------------------------------------------------------------------------------

    def _points(self, ranges: Mapping[str, Range], dims: Sequence[str]) -> dict[str, Index]:
        """Position of every dim: within its range where it is one of `dims` and longer than one point."""
        return {
            d: r.start + variable(self.within[d]) if d in dims and r.most > 1 else r.start for d, r in ranges.items()
        }

    def _nested(self, ranges: Mapping[str, Range], dims: Sequence[str], body: Sequence[Statement]) -> list[Statement]:
        inner: list[Statement] = list(body)
        for d in reversed(dims):
            if ranges[d].most > 1:
                inner = [For(self.within[d], Index(), ranges[d].size, 1, tuple(inner))]
        return inner

    def _output_dims(self) -> list[str]:
        operator = self.kernel.operator
        return [d for d in operator.dims if d in operator.output.dims]

    def _init(self, init: ir.Init) -> list[Statement]:
        operator, dims = self.kernel.operator, self._output_dims()
        ranges = self._ranges(init.tile)
        at = self._points(ranges, dims)
        target = self.live[init.buffer].element(at)
        if init.bias is None:
            value: Value = Number(neutral(operator), operator.accumulate)
        else:
            value = cast(self.live[init.bias].element(at), operator.accumulate)
        return self._nested(ranges, dims, [Assign(target.view, target.slots, value)])

    def _compute(self, compute: ir.Compute) -> list[Statement]:
        operator, dims = self.kernel.operator, self._output_dims()
        ranges = self._ranges(compute.tile)
        at = self._points(ranges, list(operator.dims))
        target = self.live[compute.output].element(at)
        values = [cast(self.live[f].element(at), operator.accumulate) for f in compute.factors]
        value = values[0]
        for other in values[1:]:
            kind: Kind = "multiply" if operator.combine == "multiply" else "add"
            value = Operation(kind, (value, other), operator.accumulate)
        loops = tuple(
            (self.within[d], ranges[d].size)
            for d in operator.dims
            if d in operator.reduction_dims and ranges[d].most > 1
        )
        return self._nested(ranges, dims, [Accumulate(target.view, target.slots, loops, operator.reduce, value)])

    # Epilogue -------------------------------------------------------------------------------------------------------------

    def _finish(self, filling: Filling) -> list[Statement]:
        operator, dims = self.kernel.operator, self._output_dims()
        if operator.epilogue == Epilogue() and operator.output.dtype == operator.accumulate:
            return []  # accumulators are results already
        at = self._points(filling.ranges, dims)
        element = filling.element(at)
        body: list[Statement] = []

        def let(name: str, value: Value) -> Value:
            taken = self.names.new(name)
            body.append(Let(taken, value))
            return Local(taken, value.dtype)

        result = finished(operator, element, at, let)
        body.append(Assign(element.view, element.slots, result, result=True))
        return self._nested(filling.ranges, dims, body)


def _at(loop: ir.For, start: Index, around: Range, as_end: Callable[[Index], Index] = lambda end: end) -> Range:
    """Range of a loop that stands at `start` of `around`, which it is itself if it is one tile. `as_end` may name an end."""
    tile = min(loop.tile, around.most)
    if tile == around.most:
        return around
    left = around.most % tile if around.fewest == around.most else 1
    if left == 0:
        return Range(start, start + tile, tile, tile)
    return Range(start, as_end(least(start + loop.tile, around.end)), left, tile)
