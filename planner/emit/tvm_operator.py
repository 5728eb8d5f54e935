"""An operator as TVM's users write it, untiled: pad, reduce into an accumulator, finish."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from planner.emit.epilogue import finished
from planner.emit.index import Index, total, variable
from planner.emit.program import Element, Number, Value
from planner.emit.tvmscript import index_text, number_text, value_text
from planner.nest.arithmetic import neutral
from planner.spec.affine import Affine
from planner.spec.operator import Operator


@dataclass(frozen=True, slots=True)
class PlainOperator:
    """Writes the module `Plain` of an operator. Its blocks are `pad_<input>`, `compute` and `finish`."""

    operator: Operator
    function: str
    names: dict[str, str]
    """Names in the source, by operand."""
    dims: dict[str, str]
    """Names of the loops, by dim; with `_v` behind them, of the blocks' variables."""

    def module(self) -> Iterator[str]:
        """The module's class, `Plain`."""
        operator = self.operator
        given = [n for n, o in operator.operands.items() if o.role != "output"]
        parameters = ", ".join(
            f'{self.names[n]}: T.Buffer({operator.operands[n].shape}, "{operator.operands[n].dtype}")'
            for n in (*given, operator.output_name)
        )
        yield "@I.ir_module"
        yield "class Plain:"
        yield "    @T.prim_func(s_tir=True)"
        yield f"    def {self.function}({parameters}):"
        yield f'        T.func_attr({{"global_symbol": "{self.function}", "tirx.noalias": True}})'
        for name in operator.factors:
            if self._padded(name):
                shape = tuple(high - low + 1 for low, high in self._reach(name))
                yield f'        {self.names[name]}_padded = T.sblock_alloc_buffer({shape}, "{operator.operands[name].dtype}")'
        yield f'        accumulator = T.sblock_alloc_buffer({operator.output.shape}, "{operator.accumulate}")'
        for name in operator.factors:
            if self._padded(name):
                yield from (f"        {line}" for line in self._pad(name))
        yield from (f"        {line}" for line in self._compute())
        yield from (f"        {line}" for line in self._finish())

    def _reach(self, name: str) -> list[tuple[int, int]]:
        operator = self.operator
        return [axis.reach(operator.dims) for axis in operator.operands[name].index]

    def _padded(self, name: str) -> bool:
        return any(map(any, self.operator.margins(name)))

    def _pad(self, name: str) -> Iterator[str]:
        operator, source = self.operator, self.names[name]
        operand, spans = operator.operands[name], self._reach(name)
        axes = [f"v{i}" for i in range(len(spans))]
        at = [index_text(variable(axis) + low) for axis, (low, _) in zip(axes, spans, strict=True)]
        inside = [
            test
            for axis, (low, high), size in zip(axes, spans, operand.shape, strict=True)
            for test in ([f"{-low} <= {axis}"] if low < 0 else [])
            + ([f"{axis} < {size - low}"] if high >= size else [])
        ]
        padding = number_text(Number(operator.padding_value, operand.dtype))
        loops = {f"i{i}": high - low + 1 for i, (low, high) in enumerate(spans)}
        yield _grid(loops)
        yield f'    with T.sblock("pad_{source}"):'
        yield f"        {_axes(axes, loops, 'S' * len(axes))}"
        condition = " and ".join(inside)
        value = f"T.if_then_else({condition}, {source}[{', '.join(at)}], {padding})"
        yield f"        {source}_padded[{', '.join(axes)}] = {value}"

    def _compute(self) -> Iterator[str]:
        operator = self.operator
        at = {d: variable(f"{name}_v") for d, name in self.dims.items()}
        kinds = "".join("R" if d in operator.reduction_dims else "S" for d in operator.dims)
        target = f"accumulator[{', '.join(map(index_text, self._output_places(at)))}]"
        reads = [self._element(name, at) for name in operator.factors]
        wide = [self._wide(name, place) for name, place in zip(operator.factors, reads, strict=True)]
        value = (" * " if operator.combine == "multiply" else " + ").join(wide)
        start = number_text(Number(neutral(operator), operator.accumulate))
        if operator.bias_name is not None:
            # Of reduction dims it may only name some of one point, and TVM has none of them where it starts.
            fixed = {d: Index() if d in operator.reduction_dims else here for d, here in at.items()}
            reads.append(self._element(operator.bias_name, fixed))
            start = self._wide(operator.bias_name, reads[-1])
        loops = {name: operator.dims[d] for d, name in self.dims.items()}
        yield _grid(loops)
        yield '    with T.sblock("compute"):'
        yield f"        {_axes([f'{name}_v' for name in loops], loops, kinds)}"
        yield f"        T.reads({', '.join(dict.fromkeys(reads))})"
        yield f"        T.writes({target})"
        yield "        with T.init():"
        yield f"            {target} = {start}"
        yield f"        {target} = {f'T.max({target}, {value})' if operator.reduce == 'max' else f'{target} + {value}'}"

    def _wide(self, name: str, element: str) -> str:
        """An operand's element in the accumulator's dtype."""
        accumulate = self.operator.accumulate
        same = self.operator.operands[name].dtype == accumulate
        return element if same else f'T.Cast("{accumulate}", {element})'

    def _element(self, name: str, at: Mapping[str, Index]) -> str:
        """An operand's element at a position of every dim: of the padded operand, if it is one."""
        axes = self.operator.operands[name].index
        if not self._padded(name):
            return f"{self.names[name]}[{', '.join(index_text(_place(axis, at)) for axis in axes)}]"
        places = [_place(axis, at) - low for axis, (low, _) in zip(axes, self._reach(name), strict=True)]
        return f"{self.names[name]}_padded[{', '.join(map(index_text, places))}]"

    def _output_places(self, at: Mapping[str, Index]) -> tuple[Index, ...]:
        """Each axis of the output runs over one dim: TVM takes no others in, not even of one point."""
        dims, index = self.operator.dims, self.operator.output.index
        longer = [tuple((d, a) for d, a in axis.terms if dims[d] > 1) for axis in index]
        return tuple(
            _place(Affine(long or axis.terms[:1], axis.offset), at) for axis, long in zip(index, longer, strict=True)
        )

    def _finish(self) -> Iterator[str]:
        operator = self.operator
        inner = [d for d in operator.dims if d in operator.output.dims]
        at = {d: variable(f"{self.dims[d]}_v") for d in inner}
        places = self._output_places(at)
        element = Element("accumulator", places, operator.accumulate)
        value: Value = element if _plain_result(operator) else finished(operator, element, at, lambda _, value: value)
        loops = {self.dims[d]: operator.dims[d] for d in inner} or {"one": 1}
        yield _grid(loops)
        yield '    with T.sblock("finish"):'
        yield f"        {_axes([f'{name}_v' for name in loops], loops, 'S' * len(loops))}"
        yield f"        {self.names[operator.output_name]}[{', '.join(map(index_text, places))}] = {value_text(value)}"


def _place(axis: Affine, at: Mapping[str, Index]) -> Index:
    return total(at[d] * a for d, a in axis.terms) + axis.offset


def _plain_result(operator: Operator) -> bool:
    return operator.epilogue == type(operator.epilogue)() and operator.output.dtype == operator.accumulate


def _grid(loops: Mapping[str, int]) -> str:
    """Loops from 0, one inside of the other."""
    if len(loops) == 1:
        return "".join(f"for {name} in range({extent}):" for name, extent in loops.items())
    return f"for {', '.join(loops)} in T.grid({', '.join(map(str, loops.values()))}):"


def _axes(names: Sequence[str], loops: Mapping[str, int], kinds: str) -> str:
    """A block's variables over these loops: `S`patial or `R`eduction ones."""
    if len(names) == 1:
        kind = "reduce" if kinds == "R" else "spatial"
        return "".join(f"{names[0]} = T.axis.{kind}({extent}, {loop})" for loop, extent in loops.items())
    return f'{", ".join(names)} = T.axis.remap("{kinds}", [{", ".join(loops)}])'
