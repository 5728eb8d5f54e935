"""Kernel -> Python/numpy source that runs by itself: nested loops, byte arenas, buffers as typed views at their addresses."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import assert_never

import numpy as np

from planner.nest.ir import Buffer, Compute, Finish, For, Init, Kernel, Load, Statement, Store, Tile, Visit, When
from planner.spec.affine import Affine

_HELPERS = '''
def span(offset, *terms):
    """The lattice of offset + sum(a * i), each i in [start, end): its lowest index, step and number of points."""
    low = offset + sum(a * (start if a > 0 else end - 1) for a, start, end in terms)
    step = math.gcd(*(abs(a) for a, start, end in terms if end - start > 1)) or 1
    return low, step, sum(abs(a) * (end - start - 1) for a, start, end in terms) // step + 1


def clip(box, shape):
    """The part of a box inside the tensor; None if there is none."""
    clipped = []
    for (low, step, count), size in zip(box, shape):
        first, last = max(0, -(low // step)), min(count - 1, (size - 1 - low) // step)
        if last < first:
            return None
        clipped.append((low + first * step, step, last - first + 1))
    return clipped


def at(box, base=None, steps=None):
    """Slices of a box: in a whole tensor, or in a buffer whose slot 0 holds index `base` and slots lie `steps` apart."""
    base, steps = base or [0] * len(box), steps or [1] * len(box)
    return tuple(
        slice((low - b) // s, (low - b) // s + max(step // s, 1) * (count - 1) + 1, max(step // s, 1))
        for (low, step, count), b, s in zip(box, base, steps)
    )


def view(arena, offset, shape, dtype, slot_bytes):
    """A typed view of a scope's bytes at an address; each slot takes `slot_bytes`."""
    strides = [slot_bytes * math.prod(shape[i + 1 :]) for i in range(len(shape))]
    return np.ndarray(shape, dtype, arena, offset, strides)


def window(values, base, steps, index, dims):
    """values[index of the dims] as an array with one axis a dim; `dims` gives each dim's range."""
    strides, corner = dict.fromkeys(dims, 0), []
    for (offset, terms), stride, b, s in zip(index, values.strides, base, steps):
        corner.append((offset + sum(a * dims[d][0] for d, a in terms.items()) - b) // s)
        for d, a in terms.items():
            if dims[d][1] - dims[d][0] > 1:
                strides[d] += a // s * stride
    start = values[tuple(slice(c, None) for c in corner)]
    return np.lib.stride_tricks.as_strided(start, [b - a for a, b in dims.values()], list(strides.values()))
'''


_TAKEN = frozenset(
    "math np span clip at view window finish plain box total values count place range min max sum abs str len zip dict list "
    "tuple print int random expected actual different".split()
)
"""Names that the module's own code uses."""


def emit(kernel: Kernel) -> str:
    """The source of a module with one function, named as the operator, and a self-test under `__main__`."""
    return _Emitter(kernel).module()


def identifier(name: str) -> str:
    """A Python name for a name out of a spec."""
    plain = re.sub(r"\W", "_", name)
    if keyword.iskeyword(plain) or plain in _TAKEN:
        return f"{plain}_"
    return f"_{plain}" if not plain or plain[0].isdigit() else plain


@dataclass(slots=True)
class _Emitter:
    kernel: Kernel

    def module(self) -> str:
        operator = self.kernel.operator
        inputs = [identifier(n) for n, o in operator.operands.items() if o.role != "output"]
        lines = [
            f'"""Kernel of {operator.name}: {", ".join(f"{d} = {n}" for d, n in operator.dims.items())}.',
            "",
            *(
                f"{n}: {o.dtype} {list(o.shape)}, index [{', '.join(map(str, o.index))}]"
                for n, o in operator.operands.items()
            ),
            "",
            'Run this file to compare it with a plain computation on random inputs."""',
            "",
            "import math",
            "",
            "import numpy as np",
            _HELPERS,
            "",
            *self._finish_function(),
            "",
            "",
            f"def {identifier(operator.name)}({', '.join(inputs)}):",
            *_indented(self._prologue(), 1),
            *_indented(self._statements(self.kernel.body), 1),
            f"    return {identifier(operator.output_name)}",
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
        name, output = operator.output_name, operator.output
        yield f"{identifier(name)} = np.zeros({output.shape}, np.{output.dtype})"
        if self._spills_home():
            yield f"{identifier(name)}_partial = np.zeros({output.shape}, np.{operator.accumulate})  # partial sums"
        for arena in self.kernel.arenas:
            used = max(
                (b.offset_bytes + b.size_bytes for b in self.kernel.buffers if b.memory == arena.memory), default=0
            )
            if used:
                yield f"{self._arena(arena.memory)} = np.zeros({used}, np.uint8)  # of {arena.capacity_bytes} B"
        for b in self.kernel.buffers:
            if b.copies > 1:
                yield f"{_name(b)}_visit = -1"

    def _arena(self, memory: str) -> str:
        return f"{identifier(memory)}_bytes"

    def _spills_home(self) -> bool:
        return any(
            isinstance(s, Store) and s.final.loops and self.kernel.buffer(s.buffer).outer is None
            for s in _walk(self.kernel.body)
        )

    # Statements -----------------------------------------------------------------------------------------------------

    def _statements(self, body: Sequence[Statement]) -> Iterator[str]:
        for statement in body:
            match statement:
                case For():
                    start, end = self._range(statement.dim, statement.outer)
                    yield f"for {statement.var} in range({start}, {end}, {statement.tile}):"
                    clamp = f"min({statement.var} + {statement.tile}, {end})"
                    yield from _indented([f"{statement.var}_end = {clamp}"], 1)
                    yield from _indented(self._statements(statement.body), 1)
                case Visit():
                    yield from self._visit(statement)
                    yield from self._statements(statement.body)
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

    def _range(self, dim: str, loop: str | None) -> tuple[str, str]:
        return ("0", str(self.kernel.operator.dims[dim])) if loop is None else (loop, f"{loop}_end")

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
        loops = {s.var: s for s in _walk(self.kernel.body) if isinstance(s, For)}
        tests: list[str] = []
        for var in when.loops:
            start, end = self._range(loops[var].dim, loops[var].outer)
            tests.append(f"{var}_end == {end}" if when.kind == "last" else f"{var} == {start}")
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
        name, offset = _name(b), str(b.offset_bytes)
        yield f"# {b.operand} in {b.memory}: {list(b.shape)} at byte {b.offset_bytes}"
        if b.copies > 1:
            yield f"{name}_visit += 1"
            offset = f"{b.offset_bytes} + {name}_visit % {b.copies} * {b.size_bytes // b.copies}"
        yield f"{name} = view({self._arena(b.memory)}, {offset}, {b.shape}, np.{b.dtype}, {b.slot_bytes})"
        if operand.role == "output":
            yield f"{name}_result = view({self._arena(b.memory)}, {offset}, {b.shape}, np.{operand.dtype}, {b.slot_bytes})"
        yield f"{name}_box = {self._box(operand.index, visit.tile)}"
        yield f"{name}_base = [low for low, _, _ in {name}_box]"

    def _in(self, b: Buffer, box: str) -> str:
        return f"at({box}, {_name(b)}_base, {b.steps})"

    def _load(self, b: Buffer) -> Iterator[str]:
        operator, name = self.kernel.operator, _name(b)
        role = operator.operands[b.operand].role
        if b.outer is not None:
            outer = self.kernel.buffer(b.outer)
            source = f"{_name(outer)}[{self._in(outer, f'{name}_inside')}]"
        elif role == "output":
            source = f"{identifier(b.operand)}_partial[at({name}_inside)]"
        else:
            source = f"{identifier(b.operand)}[at({name}_inside)]"
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
        dims, operand = self.kernel.operator.dims, self.kernel.operator.operands[b.operand]
        for axis, size in zip(operand.index, operand.shape, strict=True):
            low = axis.offset + sum(min(a * (dims[d] - 1), 0) for d, a in axis.terms)
            high = axis.offset + sum(max(a * (dims[d] - 1), 0) for d, a in axis.terms)
            if low < 0 or high >= size:
                return True
        return False

    def _init(self, init: Init) -> Iterator[str]:
        operator, b = self.kernel.operator, self.kernel.buffer(init.buffer)
        target = f"{_name(b)}[{self._in(b, self._box(operator.output.index, init.tile))}]"
        if init.bias is None:
            start = 0 if operator.reduce == "sum" else _lowest(operator.accumulate)
            yield f"{target} = {_literal(start)}"
            return
        bias = self.kernel.buffer(init.bias)
        names = [d for d in operator.dims if d in operator.operands[bias.operand].dims]
        picked = ", ".join(":" if d in names else "None" for d in self._output_dims())
        yield f"{target} = {self._window(bias, init.tile)}[{picked}]  # start from the bias"

    def _output_dims(self) -> list[str]:
        return [axis.dims[0] if axis.dims else "" for axis in self.kernel.operator.output.index]

    def _window(self, b: Buffer, tile: Tile) -> str:
        operand = self.kernel.operator.operands[b.operand]
        names = [d for d in self.kernel.operator.dims if d in operand.dims]
        dims = ", ".join(f"{d!r}: ({', '.join(self._range(d, tile.loop(d)))})" for d in names)
        return f"window({_name(b)}, {_name(b)}_base, {b.steps}, {_index(operand.index)}, {{{dims}}})"

    def _compute(self, compute: Compute) -> Iterator[str]:
        operator, out = self.kernel.operator, self.kernel.buffer(compute.output)
        factors = [self._window(self.kernel.buffer(f), compute.tile) for f in compute.factors]
        target = f"{_name(out)}[{self._in(out, self._box(operator.output.index, compute.tile))}]"
        yield from self._reduction(target, factors, [self.kernel.buffer(f).operand for f in compute.factors])

    def _reduction(self, target: str, factors: Sequence[str], names: Sequence[str]) -> Iterator[str]:
        """Fold the factors into the target: a sum of products by einsum, anything else by broadcasting."""
        operator = self.kernel.operator
        letters = {d: chr(ord("a") + i) for i, d in enumerate(operator.dims)}
        subscripts = ["".join(letters[d] for d in operator.dims if d in operator.operands[n].dims) for n in names]
        kept = [d for d in self._output_dims() if d]
        for i, factor in enumerate(factors):
            yield f"x{i} = {factor}.astype(np.{self._wide()})"
        if operator.reduce == "sum" and operator.combine == "multiply":
            everywhere = "".join(letters[d] for d in kept if any(letters[d] in s for s in subscripts))
            arguments = ", ".join(f"x{i}" for i in range(len(factors)))
            yield f'total = np.einsum("{",".join(subscripts)}->{everywhere}", {arguments}, optimize=True)'
            present = "".join(everywhere)
            picked = ", ".join(":" if d and letters[d] in present else "None" for d in self._output_dims())
            yield f"{target} += total[{picked}].astype(np.{operator.accumulate})"
            return
        order = [*kept, *(d for d in operator.dims if d in operator.reduction_dims)]
        for i, n in enumerate(names):
            own = [d for d in operator.dims if d in operator.operands[n].dims]
            transposed = [own.index(d) for d in order if d in own]
            picked = ", ".join(":" if d in own else "None" for d in order)
            yield f"x{i} = x{i}.transpose({transposed})[{picked}]"
        sign = " * " if operator.combine == "multiply" else " + "
        combined = sign.join(f"x{i}" for i in range(len(factors)))
        axes = tuple(range(len(kept), len(order)))
        fold = "max" if operator.reduce == "max" else "sum"
        yield f"total = ({combined}).{fold}({axes})" if axes else f"total = {combined}"
        picked = ", ".join(":" if d else "None" for d in self._output_dims())
        folded = f"np.maximum({target}, total[{picked}])" if fold == "max" else f"{target} + total[{picked}]"
        yield f"{target} = ({folded}).astype(np.{operator.accumulate})"

    def _wide(self) -> str:
        """The dtype of the arithmetic: float64 where all sums of products are exact in it."""
        operator = self.kernel.operator
        if operator.accumulate.startswith("float"):
            return operator.accumulate
        bound = prod(operator.dims[d] for d in operator.reduction_dims)
        for operand in operator.factors.values():
            bound *= max(-int(np.iinfo(operand.dtype).min), int(np.iinfo(operand.dtype).max))
        exact = operator.reduce == "sum" and operator.combine == "multiply" and bound < 2**31
        return "float64" if exact else "int64"

    def _finish(self, b: Buffer) -> Iterator[str]:
        name = _name(b)
        tile = next(s.tile for s in _walk(self.kernel.body) if isinstance(s, Visit) and s.buffer == b.name)
        ranges = ", ".join(
            f"range({', '.join(self._range(d, tile.loop(d)))})" if d else "range(1)" for d in self._output_dims()
        )
        yield f"box = {self._in(b, f'{name}_box')}"
        yield f"{name}_result[box] = finish({name}[box].copy(), {ranges})"

    def _store(self, store: Store) -> Iterator[str]:
        b = self.kernel.buffer(store.buffer)
        name = _name(b)
        if b.outer is not None:
            outer = self.kernel.buffer(b.outer)
            there = self._in(outer, f"{name}_box")
            final, partial = f"{_name(outer)}_result[{there}]", f"{_name(outer)}[{there}]"
        else:
            final = f"{identifier(b.operand)}[at({name}_box)]"
            partial = f"{identifier(b.operand)}_partial[at({name}_box)]"
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
        names = [identifier(d) if d else f"axis_{i}" for i, d in enumerate(self._output_dims())]
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

    def _average(self, floats: bool) -> Iterator[str]:
        operator = self.kernel.operator
        average = operator.epilogue.average
        assert average is not None
        operand, dims = operator.operands[average.operand], self._output_dims()
        covered: set[str] = set()
        yield "count = 1"
        for index, size in zip(operand.index, operand.shape, strict=True):
            inner = [d for d in index.dims if d in average.dims]
            if not average.valid or not inner:
                continue
            covered |= set(inner)
            terms = [str(index.offset)]
            for d, a in index.terms:
                axis = len(dims) + inner.index(d) if d in inner else dims.index(d)
                shape = [1] * (len(dims) + len(inner))
                shape[axis] = -1
                along = f"range({operator.dims[d]})" if d in inner else identifier(d)
                terms.append(f"{a} * np.array({along}).reshape({shape})")
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
            operand = operator.operands[name]
            low = [i.offset + sum(min(a * (operator.dims[d] - 1), 0) for d, a in i.terms) for i in operand.index]
            high = [i.offset + sum(max(a * (operator.dims[d] - 1), 0) for d, a in i.terms) for i in operand.index]
            margins = [(max(0, -a), max(0, b - n + 1)) for a, b, n in zip(low, high, operand.shape, strict=True)]
            padding = _literal(operator.padding_value)
            lines.append(f"{identifier(name)} = np.pad({identifier(name)}, {margins}, constant_values={padding})")
            ranges = ", ".join(f"{d!r}: (0, {n})" for d, n in operator.dims.items() if d in operand.dims)
            base = [-before for before, _ in margins]
            windows.append(
                f"window({identifier(name)}, {base}, {[1] * len(base)}, {_index(operand.index)}, {{{ranges}}})"
            )
        lines.append(f"acc = np.full({operator.output.shape}, {self._neutral()}, np.{operator.accumulate})")
        if operator.bias_name is not None:
            bias = operator.operands[operator.bias_name]
            names = [d for d in operator.dims if d in bias.dims]
            ranges = ", ".join(f"{d!r}: (0, {operator.dims[d]})" for d in names)
            zeros, ones = [0] * len(bias.shape), [1] * len(bias.shape)
            picked = ", ".join(":" if d in names else "None" for d in self._output_dims())
            window = f"window({identifier(operator.bias_name)}, {zeros}, {ones}, {_index(bias.index)}, {{{ranges}}})"
            lines.append(f"acc[...] = {window}[{picked}]")
        lines += self._reduction("acc[...]", windows, list(operator.factors))
        lines.append(f"return finish(acc, {', '.join(f'range({n})' for n in operator.output.shape)})")
        yield from _indented(lines, 1)

    def _neutral(self) -> str:
        operator = self.kernel.operator
        return _literal(0 if operator.reduce == "sum" else _lowest(operator.accumulate))

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
                bounds = f"{limits.min}, {limits.max}, {operand.shape}, np.{operand.dtype}"
                yield f"    {name} = random.integers({bounds}, endpoint=True)"
        arguments = ", ".join(inputs)
        yield f"    expected = plain({arguments})"
        yield f"    actual = {identifier(operator.name)}({arguments})"
        if operator.output.dtype.startswith("float"):
            yield "    different = int((~np.isclose(actual, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())).sum())"
        else:
            yield "    different = int((actual != expected).sum())"
        yield '    print(f"{different} of {expected.size} outputs differ")'
        yield "    raise SystemExit(different > 0)"


def _name(b: Buffer) -> str:
    return f"{identifier(b.operand)}_{identifier(b.memory)}"


def _index(index: Sequence[Affine]) -> str:
    return "[" + ", ".join(f"({axis.offset}, {dict(axis.terms)})" for axis in index) + "]"


def _literal(value: float) -> str:
    return "-np.inf" if value == float("-inf") else str(value)


def _lowest(dtype: str) -> int | float:
    return float("-inf") if dtype.startswith("float") else int(np.iinfo(dtype).min)


def _walk(body: Sequence[Statement]) -> Iterator[Statement]:
    for statement in body:
        yield statement
        if isinstance(statement, For | Visit):
            yield from _walk(statement.body)


def _indented(lines: Iterator[str] | Sequence[str], depth: int) -> Iterator[str]:
    for line in lines:
        yield "    " * depth + line
