"""Program -> TVMScript: a PrimFunc of loops and blocks, each buffer allocated in the storage scope `local.<memory>`.

TVM lays out a scope itself: the plan's addresses are not in the text, its sizes are. Results stay in the accumulators' buffer,
as values of its dtype, until they are stored.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import assert_never

import numpy as np

from planner.emit.index import (
    Index,
    rounded_up,
    total,
    variable,
)
from planner.emit.names import Names, ascii_spelled, words
from planner.emit.program import (
    Accumulate,
    Assign,
    Cast,
    Copy,
    Element,
    Enter,
    Fill,
    For,
    If,
    Let,
    Local,
    Name,
    Note,
    Number,
    Operation,
    Pick,
    Position,
    Program,
    Statement,
    Tensor,
    Value,
    View,
    Wait,
)
from planner.emit.scalar import require_aligned, spell_out
from planner.emit.text import Notation, bracketed
from planner.errors import SpecError
from planner.nest.ir import Kernel
from planner.spec.operator import DTYPE_BYTES, DType

RESERVED = frozenset(
    [*keyword.kwlist, *"T I Module tvm range min max float int bool i".split(), *(f"i{n}" for n in range(32))]
)
"""Names that Python, or the emitted text itself, takes."""
_LARGEST = 2**31
_NOTATION = Notation(
    scaled="{atom} * {factor}",
    extreme="T.{kind}({a}, {b})",
    quotient="T.truncdiv({of}, {by})",
    choice="T.if_then_else({condition}, {yes}, {no})",
    every=" and ",
    some=" or ",
    unless="not ({of})",
    constant_first=False,
)
index_text, condition_text = _NOTATION.index, _NOTATION.condition


def emit(kernel: Kernel) -> str:
    """An IRModule with one PrimFunc, as `tvm.script.from_source` takes it. SpecError for tensors beyond 32-bit positions."""
    for name, operand in kernel.operator.operands.items():
        if prod(operand.shape) >= _LARGEST:
            raise SpecError(
                f"operand {name} has {prod(operand.shape)} elements; TVMScript counts them in 32 bits; use target c"
            )
    program = spell_out(kernel, Names(set(RESERVED), ascii_spelled))
    require_aligned(program)
    return "\n".join(_Printer(program).module()) + "\n"


@dataclass(slots=True)
class _Printer:
    program: Program
    depth: int = 0

    def module(self) -> Iterator[str]:
        program, operator = self.program, self.program.operator
        # As comments, as TVM prints them itself: from_source knows both names, and takes no imports.
        yield "# from tvm.script import ir as I"
        yield "# from tvm.script import tirx as T"
        yield "#"
        yield f"# {words(operator.name)}: {', '.join(f'{words(d)} = {n}' for d, n in operator.dims.items())}"
        for name, o in operator.operands.items():
            yield f"# {words(name)}: index [{', '.join(map(str, o.index))}]"
        yield "# m_0, m_1, ... are positions of dim m, tile by tile; m_in counts points within a tile."
        yield "@I.ir_module"
        yield "class Module:"
        yield "    @T.prim_func(s_tir=True)"
        parameters = ", ".join(
            f"{t.name}: T.Buffer({t.shape}, {t.dtype!r})" for t in program.tensors if t.kind != "partial"
        )
        yield f"    def {program.name}({parameters}):"
        self.depth = 2
        yield self._line(f'T.func_attr({{"global_symbol": "{program.name}", "tirx.noalias": True}})')
        for a in program.arenas:
            text = f'{a.name} = T.alloc_buffer(({a.used_bytes},), "uint8", scope="{scope_name(a.memory)}")'
            yield self._line(f"{text}  # of {a.capacity_bytes} B")
        for v in program.views:
            offset = v.offset_bytes // DTYPE_BYTES[v.dtype]
            place = f'data={v.arena}.data, elem_offset={offset}, scope="{scope_name(v.memory)}"'
            yield self._line(f'{v.name} = T.decl_buffer({v.shape}, "{v.dtype}", {place})')
        for t in program.tensors:
            if t.kind == "partial":
                yield self._line(f'{t.name} = T.alloc_buffer({t.shape}, "{t.dtype}")  # partial sums on their way')
        yield from self._body(program.body)

    def _line(self, text: str) -> str:
        return "    " * self.depth + text

    def _block(self, body: Sequence[Statement]) -> Iterator[str]:
        self.depth += 1
        yield from self._body(body)
        self.depth -= 1

    # Statements -------------------------------------------------------------------------------------------------------

    def _body(self, body: Sequence[Statement]) -> Iterator[str]:
        for statement in body:
            match statement:
                case Note(text):
                    yield self._line(f"# {words(text)}")
                case For():
                    yield from self._for(statement)
                case Name(name, index):
                    yield self._line(f"{name}: T.let[T.int32] = {index_text(index)}")
                case Let(name, value):
                    yield self._line(f"{name}: T.let[T.{value.dtype}] = {value_text(value)}")
                case If(condition, yes, no):
                    yield self._line(f"if {condition_text(condition)}:")
                    yield from self._block(yes)
                    if no:
                        yield self._line("else:")
                        yield from self._block(no)
                case Copy():
                    yield from self._copy(statement)
                case Fill(view, step, counts, value):
                    yield self._line(f'with T.sblock("pad_{view}"):')
                    slots = [variable(f"i{n}") for n in range(len(counts))]
                    yield from self._elements(
                        counts, f"{view}[{_places(None, step, slots, counts)}] = {number_text(value)}"
                    )
                case Assign():
                    yield from self._assign(statement)
                case Accumulate():
                    yield from self._accumulate(statement)
                case Enter() | Wait():
                    pass
                case _:
                    assert_never(statement)

    def _for(self, loop: For) -> Iterator[str]:
        """A loop; those right inside of each other that count from 0 are one grid."""
        loops = [loop]
        while (
            _counts(loop)
            and len(loops[-1].body) == 1
            and isinstance(inner := loops[-1].body[0], For)
            and _counts(inner)
        ):
            loops.append(inner)
        if len(loops) == 1 and isinstance(fold := loop.body[0], Accumulate) and _counts(loop) and len(loop.body) == 1:
            yield from self._accumulate(fold, [(loop.variable, loop.stop)])
        elif len(loops) == 1:
            yield from self._tiles(loop)
        elif isinstance(fold := loops[-1].body[0], Accumulate) and len(loops[-1].body) == 1:
            yield from self._accumulate(fold, [(each.variable, each.stop) for each in loops])
        else:
            yield self._line(_grid([(each.variable, each.stop) for each in loops]))
            yield from self._block(loops[-1].body)

    def _tiles(self, loop: For) -> Iterator[str]:
        """A loop in steps, as a loop over the number of the tile: TVM 0.27 miscounts a stepped loop inside of another one."""
        if loop.step == 1:
            yield self._line(_for(loop.variable, loop.start, loop.stop))
        else:
            number = f"{loop.variable}_number"
            yield self._line(_for(number, Index(), rounded_up(loop.stop - loop.start, loop.step)))
            here = loop.start + variable(number) * loop.step
            yield self._line(f"    {loop.variable}: T.let[T.int32] = {index_text(here)}")
        yield from self._block(loop.body)

    def _elements(self, counts: Sequence[Index], text: str) -> Iterator[str]:
        """A statement for all i0, i1, ... below the counts; those of one element have no loop."""
        loops = [(f"i{n}", count) for n, count in enumerate(counts) if count != Index((), 1)]
        self.depth += 1
        if loops:
            yield self._line(_grid(loops))
        self.depth += bool(loops)
        yield self._line(text)
        self.depth -= 1 + bool(loops)

    def _copy(self, copy: Copy) -> Iterator[str]:
        to, source = self.program.array(copy.to.ref), self.program.array(copy.source.ref)
        slots = [variable(f"i{n}") for n in range(len(copy.counts))]
        there = f"{copy.to.ref}[{_places(copy.to.start, copy.to.step, slots, copy.counts)}]"
        here = f"{copy.source.ref}[{_places(copy.source.start, copy.source.step, slots, copy.counts)}]"
        if copy.results and isinstance(to, Tensor) and isinstance(source, View):
            here = _from_slot(here, source.dtype, to.dtype)
        own = source if copy.direction == "store" else to
        assert isinstance(own, View)
        yield self._line(f'with T.sblock("{copy.direction}_{own.name}"):')
        yield from self._elements(copy.counts, f"{there} = {here}")

    def _assign(self, assign: Assign) -> Iterator[str]:
        view = self.program.view(assign.view)
        value = value_text(assign.value)
        if assign.result and view.result is not None:
            value = _to_slot(value, view.result, view.dtype)
        yield self._line(f'with T.sblock("{"finish" if assign.result else "init"}_{view.name}"):')
        yield self._line(f"    {view.name}[{_slots(assign.slots)}] = {value}")

    def _accumulate(self, fold: Accumulate, outside: Sequence[tuple[str, Index]] = ()) -> Iterator[str]:
        loops = [*outside, *fold.loops]
        if loops:
            yield self._line(_grid(loops))
        self.depth += bool(loops)
        target = f"{fold.view}[{_slots(fold.slots)}]"
        value = value_text(fold.value)
        yield self._line('with T.sblock("compute"):')
        yield self._line(
            f"    {target} = {f'T.max({target}, {value})' if fold.fold == 'max' else f'{target} + {value}'}"
        )
        self.depth -= bool(loops)


def scope_name(memory: str) -> str:
    """TVM's storage scope of a memory."""
    return f"local.{ascii_spelled(memory)}"


def value_text(value: Value) -> str:
    """A value as TVMScript."""
    match value:
        case Number():
            return number_text(value)
        case Local(name):
            return name
        case Element(view, slots):
            return f"{view}[{_slots(slots)}]"
        case Position(index, dtype):
            return f'T.Cast("{dtype}", {index_text(index)})'
        case Cast(of, dtype):
            return f'T.Cast("{dtype}", {value_text(of)})'
        case Pick(a, b, yes, no):
            return f"T.if_then_else({value_text(a)} < {value_text(b)}, {value_text(yes)}, {value_text(no)})"
        case Operation("rint", (a,), _):
            return f"T.nearbyint({value_text(a)})"
        case Operation("min" | "max" as kind, (a, b), _):
            return f"T.{kind}({value_text(a)}, {value_text(b)})"
        case Operation("shift_right", (a, b), _):
            return f"T.shift_right({value_text(a)}, {value_text(b)})"
        case Operation("divide", (a, b), dtype):
            first, second = value_text(a), value_text(b)
            return f"{first} / {second}" if dtype.startswith("float") else f"T.truncdiv({first}, {second})"
        case Operation(kind, (a, b), _):
            sign = {"add": "+", "subtract": "-", "multiply": "*"}[kind]
            return f"({value_text(a)} {sign} {value_text(b)})"
        case _:
            raise AssertionError(value)


def _to_slot(text: str, result: DType, slot: DType) -> str:
    """A result as a value of the accumulator's dtype, from which `_from_slot` gets it back."""
    if result == slot:
        return text
    return f'T.reinterpret("{slot}", {text})' if _bits(result, slot) else f'T.Cast("{slot}", {text})'


def _from_slot(text: str, slot: DType, result: DType) -> str:
    if result == slot:
        return text
    return f'T.reinterpret("{result}", {text})' if _bits(result, slot) else f'T.Cast("{result}", {text})'


def _bits(result: DType, slot: DType) -> bool:
    """Whether integers are kept bit by bit: a float of their size does not hold all of them."""
    return slot.startswith("float") and not result.startswith("float") and DTYPE_BYTES[slot] == DTYPE_BYTES[result]


def _for(name: str, start: Index, stop: Index) -> str:
    return (
        f"for {name} in range({index_text(stop) if start == Index() else f'{index_text(start)}, {index_text(stop)}'}):"
    )


def _counts(loop: For) -> bool:
    return loop.start == Index() and loop.step == 1


def _grid(loops: Sequence[tuple[str, Index]]) -> str:
    """Loops from 0, one inside of the other."""
    if len(loops) == 1:
        return _for(loops[0][0], Index(), loops[0][1])
    return (
        f"for {', '.join(name for name, _ in loops)} in T.grid({', '.join(index_text(count) for _, count in loops)}):"
    )


def _places(
    start: Sequence[Index] | None, step: Sequence[Index], slots: Sequence[Index], counts: Sequence[Index]
) -> str:
    """`start + i * step` along each axis, i left out where there is one element."""
    texts: list[str] = []
    for n, (by, slot, count) in enumerate(zip(step, slots, counts, strict=True)):
        first = Index() if start is None else start[n]
        if count == Index((), 1):
            texts.append(index_text(first))
        elif by.fixed:
            texts.append(index_text(total([first, slot * by.constant])))
        else:
            head = "" if first == Index() else f"{index_text(first)} + "
            texts.append(f"{head}{index_text(slot)} * {bracketed(index_text(by))}")
    return ", ".join(texts)


def _slots(slots: Sequence[Index]) -> str:
    return ", ".join(map(index_text, slots))


def number_text(number: Number) -> str:
    """A literal as TVMScript."""
    if number.dtype == "int32":
        return str(number.value)
    if number.dtype.startswith("float"):
        value = float(number.value)
        return f'T.{number.dtype}("{value}")' if np.isinf(value) else f"T.{number.dtype}({value!r})"
    return f"T.{number.dtype}({number.value})"
