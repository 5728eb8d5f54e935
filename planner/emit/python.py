"""Kernel -> Python/numpy source that runs by itself: nested loops, byte arenas, buffers as typed views at their addresses."""

from __future__ import annotations

import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import assert_never

import numpy as np

from planner.emit.names import Names, words
from planner.emit.numpy_helpers import HELPERS, RESERVED
from planner.nest.arithmetic import EXACT_FLOAT, neutral, output_dims, tolerance
from planner.nest.ir import Buffer, Compute, Finish, For, Init, Kernel, Load, Statement, Store, Tile, Visit, When, walk
from planner.nest.reference import bias_range
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

    def __post_init__(self) -> None:
        operator = self.kernel.operator
        names = Names({*RESERVED, *(f"x{i}" for i in range(len(operator.factors)))})
        names.taken.add(identifier(operator.name))
        found = [s.var for s in walk(self.kernel.body) if isinstance(s, For)]
        names.taken |= {f"inside_{depth}" for depth in range(0, len(found) + 1, LOOPS_AT_ONCE)}
        self.loops = {var: names.new(var, ("", "_end")) for var in found}
        self.operands = {name: names.new(name, ("", "_partial")) for name in operator.operands}
        self.arenas = {a.memory: names.new(f"{a.memory}_bytes") for a in self.kernel.arenas}
        self.buffers = {b.name: names.new(f"{b.operand}_{b.memory}", _OF_A_BUFFER) for b in self.kernel.buffers}

    def module(self) -> str:
        operator = self.kernel.operator
        inputs = [self.operands[n] for n, o in operator.operands.items() if o.role != "output"]
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
            HELPERS,
            "",
            *self._finish_function(),
            "",
            "",
            f"def {identifier(operator.name)}({', '.join(inputs)}):",
            *_indented(self._prologue(), 1),
            *_indented(self._statements(self.kernel.body), 1),
            f"    return {self.operands[operator.output_name]}",
            "",
            "",
            *self._plain_function(inputs),
            "",
            "",
            *self._main(inputs),
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
                    yield from _indented(self._inside(statement.body, depth + 1), 1)
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
        yield from _indented(self._statements(body, depth), 1)
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
        yield from _indented(body, 1)

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
            padding = _literal(operator.padding_value)
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
            yield f"{target} = {_literal(neutral(operator))}"
            return
        bias = self.kernel.buffer(init.bias)
        yield f"{target} = {self._spread(self._window(bias, init.tile), bias.operand)}  # start from the bias"

    def _spread(self, window: str, operand: str) -> str:
        """An operand's window as an array with the axes of the output."""
        axes, own = output_dims(self.kernel.operator), self._dims(operand)
        order = [own.index(d) for d in axes if d in own]
        moved = f"{window}.transpose({order})" if order != sorted(order) else window
        return f"{moved}[{', '.join(':' if d in own else 'None' for d in axes)}]"

    def _dims(self, operand: str) -> list[str]:
        """The dims longer than 1 of an operand: the axes of its window."""
        operator = self.kernel.operator
        return [d for d, n in operator.dims.items() if n > 1 and d in operator.operands[operand].dims]

    def _window(self, b: Buffer, tile: Tile) -> str:
        name, own = self.buffers[b.name], self._dims(b.operand)
        dims = ", ".join(f"{d!r}: ({', '.join(self._range(d, tile.loop(d)))})" for d in own)
        return f"window({name}, {name}_base, {b.steps}, {self._index(b.operand)}, {{{dims}}})"

    def _index(self, operand: str) -> str:
        """The index of each axis as (offset, coefficients); a dim of extent 1 is always 0 and left out."""
        own, index = self._dims(operand), self.kernel.operator.operands[operand].index
        return "[" + ", ".join(f"({i.offset}, { {d: a for d, a in i.terms if d in own} })" for i in index) + "]"

    def _compute(self, compute: Compute) -> Iterator[str]:
        operator, out = self.kernel.operator, self.kernel.buffer(compute.output)
        factors = [self._window(self.kernel.buffer(f), compute.tile) for f in compute.factors]
        target = f"{self.buffers[out.name]}[{self._in(out, self._box(operator.output.index, compute.tile))}]"
        yield from self._reduction(target, factors, [self.kernel.buffer(f).operand for f in compute.factors])

    def _reduction(self, target: str, factors: Sequence[str], names: Sequence[str]) -> Iterator[str]:
        """Fold the factors into the target: a sum of products by einsum, anything else by broadcasting."""
        operator = self.kernel.operator
        subscripts = dict(zip(operator.dims, string.ascii_letters, strict=False))
        own = {n: self._dims(n) for n in names}
        axes = output_dims(operator)
        kept = [d for d in axes if d and any(d in dims for dims in own.values())]
        picked = ", ".join(":" if d in kept else "None" for d in axes)
        for i, factor in enumerate(factors):
            yield f"x{i} = {factor}.astype(np.{self._wide()})"
        if operator.reduce == "sum" and operator.combine == "multiply":
            terms = ",".join("".join(subscripts[d] for d in own[n]) for n in names)
            result = "".join(subscripts[d] for d in kept)
            arguments = ", ".join(f"x{i}" for i in range(len(factors)))
            yield f'total = np.einsum("{terms}->{result}", {arguments}, optimize=True)'
            yield f"{target} += total[{picked}]{self._narrow()}"
            return
        order = [*kept, *dict.fromkeys(d for dims in own.values() for d in dims if d not in kept)]
        for i, n in enumerate(names):
            moved = [own[n].index(d) for d in order if d in own[n]]
            along = ", ".join(":" if d in own[n] else "None" for d in order)
            yield f"x{i} = x{i}.transpose({moved})[{along or '...'}]"
        sign = " * " if operator.combine == "multiply" else " + "
        combined = sign.join(f"x{i}" for i in range(len(factors)))
        folded = tuple(range(len(kept), len(order)))
        fold = "max" if operator.reduce == "max" else "sum"
        yield f"total = ({combined}).{fold}({folded})" if folded else f"total = {combined}"
        both = f"np.maximum({target}, total[{picked}])" if fold == "max" else f"{target} + total[{picked}]"
        yield f"{target} = ({both}).astype(np.{operator.accumulate})"

    def _bound(self) -> int:
        """No sum of products exceeds this in magnitude. For integers."""
        operator = self.kernel.operator
        bound = prod(operator.dims[d] for d in operator.reduction_dims)
        for operand in operator.factors.values():
            bound *= max(-int(np.iinfo(operand.dtype).min), int(np.iinfo(operand.dtype).max))
        return bound

    def _wide(self) -> str:
        """The dtype of the arithmetic: float64 where all sums of products are exact in it."""
        operator = self.kernel.operator
        if operator.accumulate.startswith("float"):
            return operator.accumulate
        products = operator.reduce == "sum" and operator.combine == "multiply"
        return "float64" if products and self._bound() < EXACT_FLOAT else "int64"

    def _narrow(self) -> str:
        """The cast of a sum to the accumulator's dtype. Integers wrap there; a float beyond its range might not."""
        accumulate = self.kernel.operator.accumulate
        if not accumulate.startswith("float") and self._bound() > np.iinfo(accumulate).max:
            return f".astype(np.int64).astype(np.{accumulate})"
        return f".astype(np.{accumulate})"

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

    # Epilogue and self-test -----------------------------------------------------------------------------------------

    def _finish_function(self) -> Iterator[str]:
        operator = self.kernel.operator
        epilogue, output = operator.epilogue, operator.output
        floats = operator.accumulate.startswith("float")
        names = self._finish_names()
        yield f"def finish(values, {', '.join(names)}):"
        yield f'    """Accumulators of a box of outputs, at these positions, to results in {output.dtype}."""'
        if not floats:
            yield "    values = values.astype(np.int64)"
        if epilogue.average is not None:
            yield from _indented(self._average(floats), 1)
        if (q := epilogue.requantise) is not None:
            yield f"    values = values * {q.multiplier}"
            if q.shift:
                yield f"    values = (values + {1 << (q.shift - 1)}) >> {q.shift}"
            if q.zero_point:
                yield f"    values = values + {q.zero_point}"
        if epilogue.relu:
            yield f"    values = np.maximum(values, {q.zero_point if q is not None else 0})"
        if epilogue.clip is not None:
            yield f"    values = np.clip(values, {epilogue.clip[0]}, {epilogue.clip[1]})"
        if not output.dtype.startswith("float"):
            limits = np.iinfo(output.dtype)
            if floats:
                yield "    values = np.rint(values)"
            yield f"    values = np.clip(values, {limits.min}, {limits.max})"
        yield f"    return values.astype(np.{output.dtype})"

    def _finish_names(self) -> list[str]:
        """Parameters of `finish`, one an axis of the output."""
        names = Names(set(RESERVED))
        return [names.new(d or f"axis_{i}") for i, d in enumerate(output_dims(self.kernel.operator))]

    def _average(self, floats: bool) -> Iterator[str]:
        operator = self.kernel.operator
        average = operator.epilogue.average
        assert average is not None
        operand, dims = operator.operands[average.operand], output_dims(operator)
        names = dict(zip(dims, self._finish_names(), strict=True))
        covered: set[str] = set()
        yield "count = 1"
        for index, size in zip(operand.index, operand.shape, strict=True):
            inner = [d for d in index.dims if d in average.dims]
            if not average.valid or not inner:
                continue
            covered |= set(inner)
            terms = [str(index.offset)]
            for d, a in index.terms:
                if operator.dims[d] == 1:
                    continue
                axis = len(dims) + inner.index(d) if d in inner else dims.index(d)
                shape = [1] * (len(dims) + len(inner))
                shape[axis] = -1
                along = f"range({operator.dims[d]})" if d in inner else names[d]
                terms.append(f"{a} * np.array({along}).reshape({shape})")
            if len(terms) == 1:
                terms = [f"np.full({[1] * (len(dims) + len(inner))}, {index.offset})"]
            yield f"place = {' + '.join(terms)}"
            axes = tuple(range(len(dims), len(dims) + len(inner)))
            yield f"count = count * ((place >= 0) & (place < {size})).sum({axes})"
        rest = prod(operator.dims[d] for d in average.dims if d not in covered)
        yield f"count = np.maximum(count * {rest}, 1)"
        if floats:
            yield "values = (values / count).astype(values.dtype)"
        else:
            yield "values = np.sign(values) * ((2 * np.abs(values) + count) // (2 * count))  # halves away from zero"

    def _plain_function(self, inputs: Sequence[str]) -> Iterator[str]:
        """The same computation on whole tensors: pad, window, reduce, finish."""
        operator = self.kernel.operator
        yield f"def plain({', '.join(inputs)}):"
        yield '    """The operator on whole tensors, without tiles or buffers."""'
        lines: list[str] = []
        windows: list[str] = []
        for name in operator.factors:
            own, margins = self.operands[name], operator.margins(name)
            padding = _literal(operator.padding_value)
            if any(map(any, margins)):
                lines.append(f"{own} = np.pad({own}, {margins}, constant_values={padding})")
            windows.append(self._whole_window(name, [-before for before, _ in margins]))
        lines.append(f"acc = np.full({operator.output.shape}, {_literal(neutral(operator))}, np.{operator.accumulate})")
        if operator.bias_name is not None:
            window = self._whole_window(operator.bias_name, [0] * len(operator.operands[operator.bias_name].shape))
            lines.append(f"acc[...] = {self._spread(window, operator.bias_name)}")
        lines += self._reduction("acc[...]", windows, list(operator.factors))
        lines.append(f"return finish(acc, {', '.join(f'range({n})' for n in operator.output.shape)})")
        yield from _indented(lines, 1)

    def _whole_window(self, operand: str, base: Sequence[int]) -> str:
        """An operand over all of its dims, its first element at index `base`."""
        dims = self.kernel.operator.dims
        ranges = ", ".join(f"{d!r}: (0, {dims[d]})" for d in self._dims(operand))
        steps = [1] * len(base)
        return f"window({self.operands[operand]}, {list(base)}, {steps}, {self._index(operand)}, {{{ranges}}})"

    def _main(self, inputs: Sequence[str]) -> Iterator[str]:
        operator = self.kernel.operator
        yield 'if __name__ == "__main__":'
        yield "    random = np.random.default_rng(0)"
        given = [o for o in operator.operands.values() if o.role != "output"]
        for name, operand in zip(inputs, given, strict=True):
            if operand.dtype.startswith("float"):
                yield f"    {name} = random.uniform(-1, 1, {operand.shape}).astype(np.{operand.dtype})"
            else:
                limits = np.iinfo(operand.dtype)
                low, high = int(limits.min), int(limits.max)
                if operand.role == "bias":  # as large as the sums, which it would drown otherwise
                    low, high = max(low, -bias_range(operator)), min(high, bias_range(operator))
                bounds = f"{low}, {high}, {operand.shape}, np.{operand.dtype}"
                yield f"    {name} = random.integers({bounds}, endpoint=True)"
        arguments = ", ".join(inputs)
        yield f"    expected = plain({arguments})"
        yield f"    actual = {identifier(operator.name)}({arguments})"
        if operator.output.dtype.startswith("float"):
            yield "    largest = np.abs(expected[np.isfinite(expected)]).max(initial=0)"
            off = f"rtol={tolerance(operator):.1e}, atol={tolerance(operator):.1e} * largest"
            yield f"    different = int((~np.isclose(actual, expected, {off})).sum())"
        else:
            yield "    different = int((actual != expected).sum())"
        yield '    print(f"{different} of {expected.size} outputs differ")'
        yield "    raise SystemExit(different > 0)"


def _literal(value: float) -> str:
    return "-np.inf" if value == float("-inf") else str(value)


def _indented(lines: Iterator[str] | Sequence[str], depth: int) -> Iterator[str]:
    for line in lines:
        yield "    " * depth + line
