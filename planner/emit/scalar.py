"""Kernel -> scalar program: every box becomes a start, a step and a count along each axis; every window becomes loops.

Ranges of dims are known as `start` and `end`, and slots are counted from where the buffer's visit starts. So what is the same
for a buffer and for the tile inside of it cancels, and a loop that always takes whole tiles has a constant size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from planner.emit.boxes import Fork, Lattice, Range, each_step, lattice
from planner.emit.epilogue import cast, finished
from planner.emit.names import Names
from planner.emit.program import (
    Accumulate,
    Arena,
    Assign,
    Compare,
    Condition,
    Copy,
    Element,
    Enter,
    Every,
    Fill,
    For,
    If,
    Index,
    Kind,
    Let,
    Local,
    Name,
    Note,
    Number,
    Operation,
    Program,
    Side,
    Some,
    Statement,
    Tensor,
    Unless,
    Value,
    View,
    Wait,
    choose,
    least,
    rounded_up,
    simplified,
    total,
    variable,
    walk,
    without_unused,
)
from planner.errors import SpecError
from planner.nest import ir
from planner.nest.arithmetic import neutral
from planner.spec.affine import Affine
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


@dataclass(frozen=True, slots=True)
class _Visit:
    """A buffer that is alive: where its slots lie, and the ranges that it was filled for."""

    buffer: ir.Buffer
    view: View
    index: tuple[Affine, ...]
    ranges: Mapping[str, Range]

    def slot(self, axis: int, low: Mapping[str, Index], high: Mapping[str, Index]) -> Index:
        """Slot of the lowest index of a box inside of this one: dims with positive coefficients are at `low`, others at `high`.

        A dim of which the buffer holds one point is at that point: it adds nothing.
        """
        parts: list[Index] = []
        for d, a in self.index[axis].terms:
            mine, step = self.ranges[d], self.buffer.steps[axis]
            if mine.most > 1:
                parts.append((low[d] - mine.start) * (a // step) if a > 0 else (mine.end - 1 - high[d]) * (-a // step))
        return total(parts)

    def step(self, axis: int, lattice: Lattice) -> Index:
        """Slots between neighbours of a box."""
        return Index((), max(lattice.step // self.buffer.steps[axis], 1))


@dataclass(slots=True)
class _Spelling:
    kernel: ir.Kernel
    names: Names
    overlap: bool
    loops: dict[str, Range] = field(default_factory=dict[str, Range])
    outer: dict[str, Range] = field(default_factory=dict[str, Range])
    """Range around each loop."""
    variables: dict[str, str] = field(default_factory=dict[str, str])
    live: dict[str, _Visit] = field(default_factory=dict[str, _Visit])
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

    def program(self) -> Program:
        operator, kernel = self.kernel.operator, self.kernel
        body = without_unused(self._body(kernel.body))
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
                    visit = self.live[statement.buffer]
                    wait = Wait(statement.buffer, "store")
                    behind = statement.buffer in self.pipelines
                    found += [wait] if behind else []
                    partial = self._output_copy(visit, "store", results=False) if statement.final.loops else []
                    found += self._when(statement.final, self._output_copy(visit, "store", results=True), partial)
                    found += [] if behind else [wait]
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
        name, tile = self.variables[loop.var], min(loop.tile, around.most)
        if tile == around.most:  # one tile, always
            self.loops[loop.var], self.outer[loop.var] = around, around
            return self._body(loop.body)
        here = variable(name)
        first: list[Statement] = []
        if around.fewest == around.most and around.most % tile == 0:
            inside = Range(here, here + tile, tile, tile)
        else:
            first.append(Name(f"{name}_end", least(here + loop.tile, around.end)))
            fewest = around.most % tile if around.fewest == around.most else 1
            inside = Range(here, variable(f"{name}_end"), fewest, tile)
        self.loops[loop.var], self.outer[loop.var] = inside, around
        return [For(name, around.start, around.end, loop.tile, (*first, *self._body(loop.body)))]

    def _visit(self, statement: ir.Visit) -> list[Statement]:
        buffer = self.kernel.buffer(statement.buffer)
        view = self.views[buffer.name]
        index = self.kernel.operator.operands[buffer.operand].index
        self.live[buffer.name] = _Visit(buffer, view, index, self._ranges(statement.tile))
        text = f"{buffer.operand} in {buffer.memory}, below {buffer.parent}: {list(buffer.shape)} at byte {buffer.offset_bytes}"
        enter = [Enter(view.name)] if view.copies > 1 and self.overlap else []
        return [Note(text), *enter, *self._body(statement.body)]

    def _when(self, when: ir.When, yes: list[Statement], no: list[Statement] | None = None) -> list[Statement]:
        tests: list[Condition] = []
        for loop in when.loops:
            inside, around = self.loops[loop], self.outer[loop]
            last = when.kind == "last"
            tests.append(Compare("==", *((inside.end, around.end) if last else (inside.start, around.start))))
        condition: Condition = Unless(Every(tuple(tests))) if when.kind == "not_first" else Every(tuple(tests))
        if when.kind == "always":
            condition = Every(())
        return _if(condition, yes, no or [])

    # Overlap --------------------------------------------------------------------------------------------------------------

    def _begin(self, loop: ir.For) -> list[Statement]:
        """Before a loop: start the first transfer of each buffer that is filled ahead in it."""
        found: list[Statement] = []
        for name, loops in self.pipelines.items():
            view = self.views[name]
            if loops[0] is loop and view.ahead is not None:
                ranges = self._current(loop)
                for each in loops:
                    around = ranges.get(each.dim) or self._whole(each.dim)
                    ranges[each.dim] = self._at(each, around.start, around, None, found)
                found += self._load(self._ahead(name, ranges), "_begin")
        return found

    def _drain(self, loop: ir.For) -> list[Statement]:
        """After a loop: wait for the last store of each buffer that is stored behind in it."""
        output = self.kernel.operator.output_name
        names = [
            n for n, loops in self.pipelines.items() if loops[0] is loop and self.kernel.buffer(n).operand == output
        ]
        return [Wait(name, "store") for name in names]

    def _arrive(self, visit: _Visit) -> list[Statement]:
        """Fill a buffer; where it is filled ahead, wait for that and start on the next one."""
        name = visit.buffer.name
        if visit.view.ahead is None:
            stored = visit.view.result is not None and name in self.pipelines
            before = [Wait(name, "store")] if stored else []  # partial sums may still be on their way out
            return [*before, *self._load(visit, ""), Wait(name, "load")]
        loops = self.pipelines[name]
        steps = [
            each for each in loops if self.loops[each.var] is not self.outer[each.var]
        ]  # others are one tile, always
        going_on = [Compare("<", self.loops[each.var].start + each.tile, self.outer[each.var].end) for each in steps]
        ranges = dict(visit.ranges)
        body: list[Statement] = []
        following: dict[str, Range] = {}
        for each in loops:
            here, around = self.loops[each.var], self.outer[each.var]
            above = following.get(each.outer or "", around)
            following[each.var] = above
            if each in steps:
                i = steps.index(each)
                on = here.start + each.tile
                # There is a next visit: where no loop inside goes on, and none outside, the outermost one does.
                carried = on if i == 0 else choose(going_on[i], on, above.start)
                start = choose(Some(tuple(going_on[i + 1 :])), here.start, carried)
                following[each.var] = self._at(each, start, above, self.variables[each.var] + "_next", body)
            ranges[each.dim] = following[each.var]
        body += self._load(self._ahead(name, ranges), "_next")
        return [Wait(name, "load"), *_if(Some(tuple(going_on)), body)]

    def _at(self, loop: ir.For, start: Index, around: Range, name: str | None, body: list[Statement]) -> Range:
        """Range of a loop that stands at `start`; its ends get names, where one is given."""
        tile = min(loop.tile, around.most)
        if name is not None and not start.fixed:
            body.append(Name(name, start))
            start = variable(name)
        if around.fewest == around.most and around.most % tile == 0:
            return Range(start, start + tile, tile, tile)
        end = least(start + loop.tile, around.end)
        if name is not None and not end.fixed:
            body.append(Name(f"{name}_end", end))
            end = variable(f"{name}_end")
        return Range(start, end, around.most % tile if around.fewest == around.most else 1, tile)

    def _current(self, outermost: ir.For) -> dict[str, Range]:
        """Range of every dim before a loop is entered."""
        ranges = {d: self._whole(d) for d in self.kernel.operator.dims}
        for var in self._around(self.kernel.body, outermost) or ():
            ranges[var.dim] = self.loops[var.var]
        return ranges

    def _around(self, body: Sequence[ir.Statement], target: ir.For) -> list[ir.For] | None:
        """Loops around a loop, outermost first; None if it is not in there."""
        for statement in body:
            if statement is target:
                return []
            if isinstance(statement, ir.For | ir.Visit):
                inner = self._around(statement.body, target)
                if inner is not None:
                    return [statement, *inner] if isinstance(statement, ir.For) else inner
        return None

    def _ahead(self, name: str, ranges: Mapping[str, Range]) -> _Visit:
        """The visit of a buffer for these ranges, in the copy that is filled ahead."""
        buffer, view = self.kernel.buffer(name), self.views[name]
        assert view.ahead is not None
        return _Visit(
            buffer, replace(view, name=view.ahead), self.kernel.operator.operands[buffer.operand].index, ranges
        )

    # Transfers ------------------------------------------------------------------------------------------------------------

    def _axes(self, visit: _Visit) -> list[Lattice | Fork]:
        return [lattice([(a, visit.ranges[d]) for d, a in axis.terms]) for axis in visit.index]

    def _other_side(
        self, visit: _Visit, axes: Sequence[Lattice | Fork], first: Sequence[Index], *, partial: bool
    ) -> Side:
        """Where a visit's box lies in the memory above, from its element number `first` on."""
        low = {d: r.start for d, r in visit.ranges.items()}
        high = {d: r.end - 1 for d, r in visit.ranges.items()}
        if visit.buffer.outer is None:
            name = self.operands[visit.buffer.operand] + ("_partial" if partial else "")
            start = [
                total((low[d] if a > 0 else high[d]) * a for d, a in axis.terms) + axis.offset for axis in visit.index
            ]
            steps = [each_step(axis, lambda leaf: Index((), leaf.step)) for axis in axes]
            skipped = [_times(first[i], axis, lambda leaf: leaf.step) for i, axis in enumerate(axes)]
        else:
            above = self.live[visit.buffer.outer]
            name = above.view.name
            start = [above.slot(i, low, high) for i in range(len(axes))]
            apart = [_slot_step(above, i) for i in range(len(axes))]
            steps = [
                each_step(axis, lambda leaf, by=by: Index((), by(leaf))) for axis, by in zip(axes, apart, strict=True)
            ]
            skipped = [_times(first[i], axis, apart[i]) for i, axis in enumerate(axes)]
        return Side(name, tuple(s + k for s, k in zip(start, skipped, strict=True)), tuple(steps))

    def _own_side(self, visit: _Visit, axes: Sequence[Lattice | Fork], first: Sequence[Index]) -> Side:
        apart = [_slot_step(visit, i) for i in range(len(axes))]
        start = [_times(first[i], axis, apart[i]) for i, axis in enumerate(axes)]
        steps = [each_step(axis, lambda leaf, by=by: Index((), by(leaf))) for axis, by in zip(axes, apart, strict=True)]
        return Side(visit.view.name, tuple(start), tuple(steps))

    def _output_copy(self, visit: _Visit, direction: str, *, results: bool) -> list[Statement]:
        axes = self._axes(visit)
        none = [Index()] * len(axes)
        own = self._own_side(visit, axes, none)
        other = self._other_side(visit, axes, none, partial=not results)
        counts = tuple(each_step(axis, lambda leaf: leaf.count) for axis in axes)
        if direction == "load":
            return [Copy(visit.buffer.name, "load", own, other, counts, results)]
        return [Copy(visit.buffer.name, "store", other, own, counts, results)]

    def _load(self, visit: _Visit, ending: str) -> list[Statement]:
        """Fetch what lies inside the operand; write padding where the box reaches beyond it."""
        operator, name = self.kernel.operator, self.views[visit.buffer.name].name
        operand = operator.operands[visit.buffer.operand]
        if operand.role == "output":
            return self._output_copy(visit, "load", results=False)
        axes = self._axes(visit)
        whole = [each_step(axis, lambda leaf: leaf.count) for axis in axes]
        first, counts, clipped = [Index()] * len(axes), list(whole), list[int]()
        before: list[Statement] = []

        def named(what: str, index: Index) -> Index:
            if index.fixed:
                return index
            before.append(Name(name + what + ending, index))
            return variable(name + what + ending)

        margins = operator.margins(visit.buffer.operand)
        for i, (axis, size, (before_it, behind_it)) in enumerate(zip(visit.index, operand.shape, margins, strict=True)):
            if not before_it and not behind_it:
                continue
            clipped.append(i)
            starts = ((visit.ranges[d].start if a > 0 else visit.ranges[d].end - 1) * a for d, a in axis.terms)
            low = total(starts) + axis.offset
            if before_it:
                first[i] = named(
                    f"_first_{i}", each_step(axes[i], lambda leaf, low=low: rounded_up(low * -1, leaf.step))
                )
            stop = whole[i]
            if behind_it:
                rest = low * -1 + size
                stop = each_step(axes[i], lambda leaf, rest=rest: least(leaf.count, rounded_up(rest, leaf.step)))
            counts[i] = named(f"_count_{i}", stop - first[i])
        own = self._own_side(visit, axes, first)
        other = self._other_side(visit, axes, first, partial=False)
        copy = Copy(visit.buffer.name, "load", own, other, tuple(counts), results=False)
        if not clipped:
            return [copy]
        padding = Number(operator.padding_value, operand.dtype)
        fill = Fill(visit.view.name, own.step, tuple(whole), padding)
        beyond = Some(tuple(Compare("<", counts[i], whole[i]) for i in clipped))
        inside = Every(tuple(Compare("<", Index(), counts[i]) for i in clipped))
        return [*before, *_if(beyond, [fill]), *_if(inside, [copy])]

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

    def _element(self, visit: _Visit, at: Mapping[str, Index]) -> Element:
        slots = tuple(visit.slot(i, at, at) for i in range(len(visit.index)))
        return Element(visit.view.name, slots, visit.view.dtype)

    def _output_dims(self) -> list[str]:
        operator = self.kernel.operator
        return [d for d in operator.dims if d in operator.output.dims]

    def _init(self, init: ir.Init) -> list[Statement]:
        operator, dims = self.kernel.operator, self._output_dims()
        ranges = self._ranges(init.tile)
        at = self._points(ranges, dims)
        target = self._element(self.live[init.buffer], at)
        if init.bias is None:
            value: Value = Number(neutral(operator), operator.accumulate)
        else:
            value = cast(self._element(self.live[init.bias], at), operator.accumulate)
        return self._nested(ranges, dims, [Assign(target.view, target.slots, value)])

    def _compute(self, compute: ir.Compute) -> list[Statement]:
        operator, dims = self.kernel.operator, self._output_dims()
        ranges = self._ranges(compute.tile)
        at = self._points(ranges, list(operator.dims))
        target = self._element(self.live[compute.output], at)
        values = [cast(self._element(self.live[f], at), operator.accumulate) for f in compute.factors]
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

    def _finish(self, visit: _Visit) -> list[Statement]:
        operator, dims = self.kernel.operator, self._output_dims()
        if operator.epilogue == Epilogue() and operator.output.dtype == operator.accumulate:
            return []  # accumulators are results already
        at = self._points(visit.ranges, dims)
        element = self._element(visit, at)
        body: list[Statement] = []

        def let(name: str, value: Value) -> Value:
            taken = self.names.new(name)
            body.append(Let(taken, value))
            return Local(taken, value.dtype)

        result = finished(operator, element, at, let)
        body.append(Assign(element.view, element.slots, result, result=True))
        return self._nested(visit.ranges, dims, body)


def _if(condition: Condition, yes: Sequence[Statement], no: Sequence[Statement] = ()) -> list[Statement]:
    known = simplified(condition)
    if isinstance(known, bool):
        return list(yes if known else no)
    if not yes:
        return [If(Unless(known), tuple(no))] if no else []
    return [If(known, tuple(yes), tuple(no))]


def _slot_step(visit: _Visit, axis: int) -> Callable[[Lattice], int]:
    return lambda leaf: max(leaf.step // visit.buffer.steps[axis], 1)


def _times(index: Index, lattice: Lattice | Fork, factor: Callable[[Lattice], int] = lambda _: 1) -> Index:
    """A position times a factor that depends on the step of a box."""
    return each_step(lattice, lambda leaf: index * factor(leaf))
