"""Kernel -> Python/numpy source that runs by itself: nested loops, byte arenas, buffers as typed views at their addresses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from planner.emit.names import Names, words
from planner.emit.numpy_helpers import HELPERS, RESERVED, WINDOW
from planner.emit.plain_numpy import PlainNumpy, indented, literal
from planner.nest.arithmetic import neutral, output_dims
from planner.nest.ir import Buffer, Compute, Finish, For, Init, Kernel, Load, Statement, Store, Tile, Visit, When, walk
from planner.spec.affine import Affine

LOOPS_AT_ONCE = 16
"""Loops nested in one function; Python takes 20."""
_OF_A_BUFFER = ("", "_box", "_base", "_inside", "_result", "_visit")
"""Endings of the variables that go with each buffer."""


def emit(kernel: Kernel) -> str:
    """The source of a module with one function, named as the operator, and a self-test under `__main__`."""
    return _Emitter(kernel).module()


def identifier(name: str) -> str:
    """The Python name of the function that is emitted for an operator of this name."""
    return Names(set(RESERVED)).new(name)


@dataclass(slots=True)
class _Emitter:
    kernel: Kernel
    operands: dict[str, str] = field(init=False)
    """Names in the source, by operand; likewise of arenas by memory, of buffers, and of loop variables."""
    arenas: dict[str, str] = field(init=False)
    buffers: dict[str, str] = field(init=False)
    loops: dict[str, str] = field(init=False)
    plain: PlainNumpy = field(init=False)

    def __post_init__(self) -> None:
        operator = self.kernel.operator
        names = Names({*RESERVED, *(f"x{i}" for i in range(len(operator.factors)))})
        names.taken.add(identifier(operator.name))
        found = [s.var for s in walk(self.kernel.body) if isinstance(s, For)]
        names.taken |= {f"inside_{depth}" for depth in range(0, len(found) + 1, LOOPS_AT_ONCE)}
        self.loops = {var: names.new(var, ("", "_end")) for var in found}
        self.operands = {name: names.new(name, ("", "_partial")) for name in operator.operands}
        self.plain = PlainNumpy(operator, self.operands)
        self.arenas = {a.memory: names.new(f"{a.memory}_bytes") for a in self.kernel.arenas}
        self.buffers = {b.name: names.new(f"{b.operand}_{b.memory}", _OF_A_BUFFER) for b in self.kernel.buffers}

    def module(self) -> str:
        operator = self.kernel.operator
        dims = ", ".join(f"{words(d)} = {n}" for d, n in operator.dims.items())
        lines = [
            f'"""Kernel of {words(operator.name)}: {dims}.',
            "",
            *(
                f"{words(n)}: {o.dtype} {list(o.shape)}, index [{', '.join(map(str, o.index))}]"
                for n, o in operator.operands.items()
            ),
            "",
            'Run this file to compare it with a plain computation on random inputs."""',
            "",
            "import math",
            "",
            "import numpy as np",
            HELPERS + WINDOW,
            "",
            *self.plain.finish(),
            "",
            "",
            f"def {identifier(operator.name)}({', '.join(self.plain.given)}):",
            *indented(self._prologue(), 1),
            *indented(self._statements(self.kernel.body), 1),
            f"    return {self.operands[operator.output_name]}",
            "",
            "",
            *self.plain.plain(),
            "",
            "",
            *self._main(),
        ]
        return "\n".join(line.rstrip() for line in lines) + "\n"

    def _prologue(self) -> Iterator[str]:
        operator = self.kernel.operator
        name, output = self.operands[operator.output_name], operator.output
        yield f"{name} = np.zeros({output.shape}, np.{output.dtype})"
        if self._spills_home():
            yield f"{name}_partial = np.zeros({output.shape}, np.{operator.accumulate})  # partial sums"
        for arena in self.kernel.arenas:
            used = max(
                (b.offset_bytes + b.size_bytes for b in self.kernel.buffers if b.memory == arena.memory), default=0
            )
            if used:
                yield f"{self.arenas[arena.memory]} = np.zeros({used}, np.uint8)  # of {arena.capacity_bytes} B"
        for b in self.kernel.buffers:
            if b.copies > 1:
                yield f"{self.buffers[b.name]}_visit = -1"

    def _spills_home(self) -> bool:
        return any(
            isinstance(s, Store) and s.final.loops and self.kernel.buffer(s.buffer).outer is None
            for s in walk(self.kernel.body)
        )

    # Statements -----------------------------------------------------------------------------------------------------

    def _statements(self, body: Sequence[Statement], depth: int = 0) -> Iterator[str]:
        for statement in body:
            match statement:
                case For():
                    start, end = self._range(statement.dim, statement.outer)
                    var = self.loops[statement.var]
                    yield f"for {var} in range({start}, {end}, {statement.tile}):"
                    yield f"    {var}_end = min({var} + {statement.tile}, {end})"
                    yield from indented(self._inside(statement.body, depth + 1), 1)
                case Visit():
                    yield from self._visit(statement)
                    yield from self._statements(statement.body, depth)
                case Load():
                    yield from self._when(statement.when, self._load(self.kernel.buffer(statement.buffer)))
                case Init():
                    yield from self._when(statement.when, self._init(statement))
                case Compute():
                    yield from self._compute(statement)
                case Finish():
                    yield from self._when(statement.when, self._finish(self.kernel.buffer(statement.buffer)))
                case Store():
                    yield from self._store(statement)
                case _:
                    assert_never(statement)

    def _inside(self, body: Sequence[Statement], depth: int) -> Iterator[str]:
        """What is inside of `depth` loops: in a function of its own where Python's limit is near."""
        if depth % LOOPS_AT_ONCE:
            yield from self._statements(body, depth)
            return
        counters = [f"{self.buffers[b.name]}_visit" for b in self.kernel.buffers if b.copies > 1]
        yield f"def inside_{depth}():"
        if counters:
            yield f"    nonlocal {', '.join(counters)}"
        yield from indented(self._statements(body, depth), 1)
        yield f"inside_{depth}()"

    def _range(self, dim: str, loop: str | None) -> tuple[str, str]:
        if loop is None:
            return "0", str(self.kernel.operator.dims[dim])
        return self.loops[loop], f"{self.loops[loop]}_end"

    def _when(self, when: When, body: Iterator[str]) -> Iterator[str]:
        if when.kind == "always":
            yield from body
            return
        if not when.loops:
            if when.kind != "not_first":
                yield from body
            return
        yield f"if {self._condition(when)}:"
        yield from indented(body, 1)

    def _condition(self, when: When) -> str:
        loops = {s.var: s for s in walk(self.kernel.body) if isinstance(s, For)}
        tests: list[str] = []
        for var in when.loops:
            start, end = self._range(loops[var].dim, loops[var].outer)
            own = self.loops[var]
            tests.append(f"{own}_end == {end}" if when.kind == "last" else f"{own} == {start}")
        joined = " and ".join(tests)
        return f"not ({joined})" if when.kind == "not_first" else joined

    def _box(self, index: Sequence[Affine], tile: Tile) -> str:
        spans: list[str] = []
        for axis in index:
            terms = [f"({a}, {', '.join(self._range(d, tile.loop(d)))})" for d, a in axis.terms]
            spans.append(f"span({', '.join([str(axis.offset), *terms])})")
        return "[" + ", ".join(spans) + "]"

    def _visit(self, visit: Visit) -> Iterator[str]:
        b = self.kernel.buffer(visit.buffer)
        operand = self.kernel.operator.operands[b.operand]
        name, arena, offset = self.buffers[b.name], self.arenas[b.memory], str(b.offset_bytes)
        yield f"# {words(b.operand)} in {words(b.memory)}, below {words(b.parent)}: {list(b.shape)} at byte {b.offset_bytes}"
        if b.copies > 1:
            yield f"{name}_visit += 1"
            offset = f"{b.offset_bytes} + {name}_visit % {b.copies} * {b.size_bytes // b.copies}"
        yield f"{name} = view({arena}, {offset}, {b.shape}, np.{b.dtype}, {b.slot_bytes})"
        if operand.role == "output":
            yield f"{name}_result = view({arena}, {offset}, {b.shape}, np.{operand.dtype}, {b.slot_bytes})"
        yield f"{name}_box = {self._box(operand.index, visit.tile)}"
        yield f"{name}_base = [low for low, _, _ in {name}_box]"

    def _in(self, b: Buffer, box: str) -> str:
        return f"at({box}, {self.buffers[b.name]}_base, {b.steps})"

    def _load(self, b: Buffer) -> Iterator[str]:
        operator, name = self.kernel.operator, self.buffers[b.name]
        role = operator.operands[b.operand].role
        if b.outer is not None:
            outer = self.kernel.buffer(b.outer)
            source = f"{self.buffers[outer.name]}[{self._in(outer, f'{name}_inside')}]"
        elif role == "output":
            source = f"{self.operands[b.operand]}_partial[at({name}_inside)]"
        else:
            source = f"{self.operands[b.operand]}[at({name}_inside)]"
        if role == "output":
            yield f"{name}_inside = {name}_box  # partial sums come back"
            yield f"{name}[{self._in(b, f'{name}_inside')}] = {source}"
            return
        if self._padded(b):
            padding = literal(operator.padding_value)
            yield f"{name}_inside = clip({name}_box, {operator.operands[b.operand].shape})"
            yield f"{name}[{self._in(b, f'{name}_box')}] = {padding}  # padding is written, never fetched"
            yield f"if {name}_inside:"
            yield f"    {name}[{self._in(b, f'{name}_inside')}] = {source}"
            return
        yield f"{name}_inside = {name}_box"
        yield f"{name}[{self._in(b, f'{name}_inside')}] = {source}"

    def _padded(self, b: Buffer) -> bool:
        return any(map(any, self.kernel.operator.margins(b.operand)))

    def _init(self, init: Init) -> Iterator[str]:
        operator, b = self.kernel.operator, self.kernel.buffer(init.buffer)
        target = f"{self.buffers[b.name]}[{self._in(b, self._box(operator.output.index, init.tile))}]"
        if init.bias is None:
            yield f"{target} = {literal(neutral(operator))}"
            return
        bias = self.kernel.buffer(init.bias)
        yield f"{target} = {self.plain.spread(self._window(bias, init.tile), bias.operand)}  # start from the bias"

    def _window(self, b: Buffer, tile: Tile) -> str:
        name, own = self.buffers[b.name], self.plain.dims_of(b.operand)
        dims = ", ".join(f"{d!r}: ({', '.join(self._range(d, tile.loop(d)))})" for d in own)
        return f"window({name}, {name}_base, {b.steps}, {self.plain.index_of(b.operand)}, {{{dims}}})"

    def _compute(self, compute: Compute) -> Iterator[str]:
        operator, out = self.kernel.operator, self.kernel.buffer(compute.output)
        factors = [self._window(self.kernel.buffer(f), compute.tile) for f in compute.factors]
        target = f"{self.buffers[out.name]}[{self._in(out, self._box(operator.output.index, compute.tile))}]"
        yield from self.plain.reduction(target, factors, [self.kernel.buffer(f).operand for f in compute.factors])

    def _finish(self, b: Buffer) -> Iterator[str]:
        name = self.buffers[b.name]
        tile = next(s.tile for s in walk(self.kernel.body) if isinstance(s, Visit) and s.buffer == b.name)
        ranges = ", ".join(
            f"range({', '.join(self._range(d, tile.loop(d)))})" if d else "range(1)"
            for d in output_dims(self.kernel.operator)
        )
        yield f"box = {self._in(b, f'{name}_box')}"
        yield f"{name}_result[box] = finish({name}[box].copy(), {ranges})"

    def _store(self, store: Store) -> Iterator[str]:
        b = self.kernel.buffer(store.buffer)
        name = self.buffers[b.name]
        if b.outer is not None:
            outer = self.kernel.buffer(b.outer)
            there = self._in(outer, f"{name}_box")
            final = f"{self.buffers[outer.name]}_result[{there}]"
            partial = f"{self.buffers[outer.name]}[{there}]"
        else:
            final = f"{self.operands[b.operand]}[at({name}_box)]"
            partial = f"{self.operands[b.operand]}_partial[at({name}_box)]"
        box = self._in(b, f"{name}_box")
        if not store.final.loops:
            yield f"{final} = {name}_result[{box}]"
            return
        yield f"if {self._condition(store.final)}:"
        yield f"    {final} = {name}_result[{box}]"
        yield "else:  # partial sums go out"
        yield f"    {partial} = {name}[{box}]"

    def _main(self) -> Iterator[str]:
        arguments = ", ".join(self.plain.given)
        yield 'if __name__ == "__main__":'
        yield from indented(self.plain.inputs(), 1)
        yield f"    expected = plain({arguments})"
        yield f"    actual = {identifier(self.kernel.operator.name)}({arguments})"
        yield from indented(self.plain.difference(), 1)
        yield '    print(f"{different} of {expected.size} outputs differ")'
        yield "    raise SystemExit(different > 0)"
