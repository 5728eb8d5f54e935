"""The operator on whole tensors as numpy source, and a comparison with it: what an emitted module tests its kernel against."""

from __future__ import annotations

import string
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from planner.emit.names import Names
from planner.emit.numpy_helpers import RESERVED
from planner.nest.arithmetic import EXACT_FLOAT, neutral, output_dims, tolerance
from planner.nest.reference import bias_range
from planner.spec.operator import Operator


@dataclass(frozen=True, slots=True)
class PlainNumpy:
    """Writes an operator's functions `finish` and `plain`, which need the helper `window`, and a test against `plain`."""

    operator: Operator
    names: Mapping[str, str]
    """Names in the source, by operand."""

    @property
    def given(self) -> list[str]:
        """Names of the inputs, in order."""
        return [self.names[n] for n, o in self.operator.operands.items() if o.role != "output"]

    def plain(self) -> Iterator[str]:
        """The same computation on whole tensors: pad, window, reduce, finish."""
        operator = self.operator
        yield f"def plain({', '.join(self.given)}):"
        yield '    """The operator on whole tensors, without tiles or buffers."""'
        lines: list[str] = []
        windows: list[str] = []
        for name in operator.factors:
            own, margins = self.names[name], operator.margins(name)
            padding = literal(operator.padding_value)
            if any(map(any, margins)):
                lines.append(f"{own} = np.pad({own}, {margins}, constant_values={padding})")
            windows.append(self._whole_window(name, [-before for before, _ in margins]))
        lines.append(f"acc = np.full({operator.output.shape}, {literal(neutral(operator))}, np.{operator.accumulate})")
        if operator.bias_name is not None:
            window = self._whole_window(operator.bias_name, [0] * len(operator.operands[operator.bias_name].shape))
            lines.append(f"acc[...] = {self.spread(window, operator.bias_name)}")
        lines += self.reduction("acc[...]", windows, list(operator.factors))
        lines.append(f"return finish(acc, {', '.join(f'range({n})' for n in operator.output.shape)})")
        yield from indented(lines, 1)

    def inputs(self) -> Iterator[str]:
        """Random values of every input: of the full range, but a bias as large as the sums, which it would drown otherwise."""
        operator = self.operator
        yield "random = np.random.default_rng(0)"
        for name, operand in operator.operands.items():
            if operand.role == "output":
                continue
            if operand.dtype.startswith("float"):
                yield f"{self.names[name]} = random.uniform(-1, 1, {operand.shape}).astype(np.{operand.dtype})"
                continue
            limits = np.iinfo(operand.dtype)
            low, high = int(limits.min), int(limits.max)
            if operand.role == "bias":
                low, high = max(low, -bias_range(operator)), min(high, bias_range(operator))
            bounds = f"{low}, {high}, {operand.shape}, np.{operand.dtype}"
            yield f"{self.names[name]} = random.integers({bounds}, endpoint=True)"

    def difference(self) -> Iterator[str]:
        """Counts the elements in which `actual` differs from `expected`."""
        if not self.operator.output.dtype.startswith("float"):
            yield "different = int((actual != expected).sum())"
            return
        off = f"{tolerance(self.operator):.1e}"
        yield "largest = np.abs(expected[np.isfinite(expected)]).max(initial=0)"
        yield f"different = int((~np.isclose(actual, expected, rtol={off}, atol={off} * largest)).sum())"

    def _whole_window(self, operand: str, base: Sequence[int]) -> str:
        """An operand over all of its dims, its first element at index `base`."""
        dims = self.operator.dims
        ranges = ", ".join(f"{d!r}: (0, {dims[d]})" for d in self.dims_of(operand))
        steps = [1] * len(base)
        return f"window({self.names[operand]}, {list(base)}, {steps}, {self.index_of(operand)}, {{{ranges}}})"

    def finish(self) -> Iterator[str]:
        """The epilogue: a function of accumulators and of the positions that they are at."""
        operator = self.operator
        epilogue, output = operator.epilogue, operator.output
        floats = operator.accumulate.startswith("float")
        names = self._finish_names()
        yield f"def finish(values, {', '.join(names)}):"
        yield f'    """Accumulators of a box of outputs, at these positions, to results in {output.dtype}."""'
        if not floats:
            yield "    values = values.astype(np.int64)"
        if epilogue.average is not None:
            yield from indented(self._average(floats), 1)
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
        return [names.new(d or f"axis_{i}") for i, d in enumerate(output_dims(self.operator))]

    def _average(self, floats: bool) -> Iterator[str]:
        operator = self.operator
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

    def reduction(self, target: str, factors: Sequence[str], names: Sequence[str]) -> Iterator[str]:
        """Fold the factors into the target: a sum of products by einsum, anything else by broadcasting."""
        operator = self.operator
        subscripts = dict(zip(operator.dims, string.ascii_letters, strict=False))
        own = {n: self.dims_of(n) for n in names}
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
        operator = self.operator
        bound = prod(operator.dims[d] for d in operator.reduction_dims)
        for operand in operator.factors.values():
            bound *= max(-int(np.iinfo(operand.dtype).min), int(np.iinfo(operand.dtype).max))
        return bound

    def _wide(self) -> str:
        """The dtype of the arithmetic: float64 where all sums of products are exact in it."""
        operator = self.operator
        if operator.accumulate.startswith("float"):
            return operator.accumulate
        products = operator.reduce == "sum" and operator.combine == "multiply"
        return "float64" if products and self._bound() < EXACT_FLOAT else "int64"

    def _narrow(self) -> str:
        """The cast of a sum to the accumulator's dtype. Integers wrap there; a float beyond its range might not."""
        accumulate = self.operator.accumulate
        if not accumulate.startswith("float") and self._bound() > np.iinfo(accumulate).max:
            return f".astype(np.int64).astype(np.{accumulate})"
        return f".astype(np.{accumulate})"

    def spread(self, window: str, operand: str) -> str:
        """An operand's window as an array with the axes of the output."""
        axes, own = output_dims(self.operator), self.dims_of(operand)
        order = [own.index(d) for d in axes if d in own]
        moved = f"{window}.transpose({order})" if order != sorted(order) else window
        return f"{moved}[{', '.join(':' if d in own else 'None' for d in axes)}]"

    def dims_of(self, operand: str) -> list[str]:
        """The dims longer than 1 of an operand: the axes of its window."""
        operator = self.operator
        return [d for d, n in operator.dims.items() if n > 1 and d in operator.operands[operand].dims]

    def index_of(self, operand: str) -> str:
        """The index of each axis as (offset, coefficients); a dim of extent 1 is always 0 and left out."""
        own, index = self.dims_of(operand), self.operator.operands[operand].index
        return "[" + ", ".join(f"({i.offset}, { {d: a for d, a in i.terms if d in own} })" for i in index) + "]"


def literal(value: float) -> str:
    return "-np.inf" if value == float("-inf") else str(value)


def indented(lines: Iterable[str], depth: int) -> Iterator[str]:
    for line in lines:
        yield "    " * depth + line
