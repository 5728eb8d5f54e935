"""Program -> MLIR in func, scf, arith, math and memref: memory spaces by number, buffers as views at the plan's addresses.

Memory space 0 is the backing store; each scope has the number of its place in the machine. Results stay in the accumulators'
buffer, as values of its dtype, until they are stored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import assert_never

import numpy as np

from planner.emit.index import Atom, Choice, Compare, Condition, Every, Extreme, Index, Quotient, Some, Unless, Variable
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
    Kind,
    Let,
    Local,
    Name,
    Note,
    Number,
    Operation,
    Pick,
    Position,
    Program,
    Side,
    Statement,
    Tensor,
    Value,
    View,
    Wait,
)
from planner.emit.scalar import require_aligned, spell_out
from planner.nest.ir import Kernel
from planner.spec.operator import DTYPE_BYTES, DType

_OWN = re.compile(r"c(m?\d|st_).*|i\d+")
"""Names of the text's own constants and loops; a spec's names that look so get something in front."""
_FLOATS = {"float16": "f16", "float32": "f32", "float64": "f64"}


def emit(kernel: Kernel) -> str:
    """A module with one function over memrefs: the inputs, then the output. SpecError for an address that no load takes."""
    spaces = {arena.memory: number for number, arena in enumerate(kernel.arenas, start=1)}
    program = spell_out(kernel, Names(set(), spelled_name))
    require_aligned(program)
    return "\n".join(_Printer(program, spaces).module()) + "\n"


def spelled_name(name: str) -> str:
    """A name that none of the text's own is."""
    plain = ascii_spelled(name)
    return f"n_{plain}" if _OWN.fullmatch(plain) else plain


@dataclass(slots=True)
class _Printer:
    program: Program
    spaces: dict[str, int]
    lines: list[str] = field(default_factory=list[str])
    depth: int = 0
    numbered: int = 0
    known: list[dict[object, str]] = field(default_factory=list[dict[object, str]])
    """Values computed so far, by what they are: one dict for each region around, outermost first."""
    taken: list[set[str]] = field(default_factory=list[set[str]])
    """Names in use, likewise: neighbouring regions may use the same ones."""
    constants: dict[str, str] = field(default_factory=dict[str, str])
    """Name of each constant, by its operation; they are all defined first."""

    def module(self) -> Iterator[str]:
        program, operator = self.program, self.program.operator
        yield f"// {words(operator.name)}: {', '.join(f'{words(d)} = {n}' for d, n in operator.dims.items())}"
        for name, o in operator.operands.items():
            yield f"// {words(name)}: {o.dtype}, index [{', '.join(map(str, o.index))}]"
        spaces = [f"0 = {words(program.backing)}", *(f"{n} = {words(memory)}" for memory, n in self.spaces.items())]
        yield f"// memory spaces: {', '.join(spaces)}"
        yield "module {"
        for a in program.arenas:
            space = self.spaces[a.memory]
            shape = f"memref<{a.used_bytes}xi8, {space}>"
            yield f"  memref.global @{a.name} : {shape} = uninitialized {{alignment = {max(a.alignment, 8)} : i64}}"
        for t in program.tensors:
            if t.kind == "partial":
                yield f"  memref.global @{t.name} : {self._type(t)} = uninitialized"
        parameters = ", ".join(f"%{t.name}: {self._type(t)}" for t in program.tensors if t.kind != "partial")
        yield f"  func.func @{program.name}({parameters}) attributes {{llvm.emit_c_interface}} {{"
        self.depth = 2
        with self._region():
            self.taken[-1] = {a.name for a in (*program.tensors, *program.views, *program.arenas)}
            self._views()
            self._body(program.body)
        yield from (f"    %{name} = {operation}" for operation, name in self.constants.items())
        yield from self.lines
        yield "    return"
        yield "  }"
        yield "}"

    def _views(self) -> None:
        for a in self.program.arenas:
            space = f"memref<{a.used_bytes}xi8, {self.spaces[a.memory]}>"
            self._line(f"%{a.name} = memref.get_global @{a.name} : {space}")
        for t in self.program.tensors:
            if t.kind == "partial":
                self._line(f"%{t.name} = memref.get_global @{t.name} : {self._type(t)}")
        for v in self.program.views:
            arena = next(a for a in self.program.arenas if a.name == v.arena)
            offset = self._constant(v.offset_bytes)
            source = f"memref<{arena.used_bytes}xi8, {self.spaces[v.memory]}>"
            self._line(f"%{v.name} = memref.view %{v.arena}[{offset}][] : {source} to {self._type(v)}")

    def _type(self, array: Tensor | View) -> str:
        shape = "x".join(map(str, array.shape))
        space = f", {self.spaces[array.memory]}" if isinstance(array, View) else ""
        return f"memref<{shape}x{type_of(array.dtype)}{space}>"

    # Text -------------------------------------------------------------------------------------------------------------

    def _line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    @contextmanager
    def _region(self) -> Generator[None]:
        self.known.append({})
        self.taken.append(set())
        self.depth += len(self.known) > 1
        yield
        self.depth -= len(self.known) > 1
        self.known.pop()
        self.taken.pop()

    def _new(self, wanted: str | None = None) -> str:
        """A name for the result of an operation: the wanted one if it is free, else a number."""
        if wanted is not None and not any(wanted in names for names in self.taken):
            self.taken[-1].add(wanted)
            return f"%{wanted}"
        self.numbered += 1
        return f"%{self.numbered - 1}"

    def _once(self, key: object, text: str, wanted: str | None = None) -> str:
        """The result of an operation without effects; what was computed in this region or around it is used again."""
        for region in self.known:
            if key in region:
                return region[key]
        result = self._new(wanted)
        self._line(f"{result} = {text}")
        self.known[-1][key] = result
        return result

    def _constant(self, value: int | str, type_: str = "index") -> str:
        operation = f"arith.constant {value} : {type_}" if type_ != "i1" else f"arith.constant {value}"
        if operation not in self.constants:
            whole = str(value).lstrip("-").isdigit()
            name = str(value).replace("-", "m") if whole else f"st_{len(self.constants)}"
            self.constants[operation] = f"c{name}" + ("" if type_ == "index" else f"_{type_}")
        return f"%{self.constants[operation]}"

    # Positions --------------------------------------------------------------------------------------------------------

    def _index(self, index: Index, wanted: str | None = None) -> str:
        """The value of a position; named as wanted where an operation makes it."""
        terms = sorted(index.terms, key=lambda term: term[1] < 0)
        if not terms:
            return self._constant(index.constant)
        if terms[0][1] < 0:  # c - x - ...
            result, rest = self._constant(index.constant), 0
        else:
            (atom, a), *terms = terms
            only = not terms and not index.constant
            result, rest = self._scaled(atom, a, wanted if only else None), index.constant
        for n, (atom, a) in enumerate(terms, start=1):
            part, kind = self._scaled(atom, abs(a)), "addi" if a > 0 else "subi"
            last = wanted if n == len(terms) and not rest else None
            result = self._once((kind, result, part), f"arith.{kind} {result}, {part} : index", last)
        if rest:
            by, kind = self._constant(abs(rest)), "addi" if rest > 0 else "subi"
            result = self._once((kind, result, by), f"arith.{kind} {result}, {by} : index", wanted)
        return result

    def _scaled(self, atom: Atom, factor: int, wanted: str | None = None) -> str:
        if factor == 1:
            return self._atom(atom, wanted)
        part, by = self._atom(atom), self._constant(factor)
        return self._once(("muli", part, by), f"arith.muli {part}, {by} : index", wanted)

    def _atom(self, atom: Atom, wanted: str | None = None) -> str:
        match atom:
            case Variable(name):
                return next(r["name", name] for r in reversed(self.known) if ("name", name) in r)
            case Extreme(kind, a, b):
                first, second = self._index(a), self._index(b)
                return self._once((kind, first, second), f"arith.{kind}si {first}, {second} : index", wanted)
            case Quotient(of, by):
                first, second = self._index(of), self._constant(by)
                return self._once(("divui", first, second), f"arith.divui {first}, {second} : index", wanted)
            case Choice(condition, yes, no):
                if_, first, second = self._condition(condition), self._index(yes), self._index(no)
                text = f"arith.select {if_}, {first}, {second} : index"
                return self._once(("select", if_, first, second), text, wanted)

    def _condition(self, condition: Condition) -> str:
        match condition:
            case Compare(kind, a, b):
                predicate = {"==": "eq", "<": "slt", "<=": "sle"}[kind]
                first, second = self._index(a), self._index(b)
                return self._once((predicate, first, second), f"arith.cmpi {predicate}, {first}, {second} : index")
            case Every(of) | Some(of):
                kind = "andi" if isinstance(condition, Every) else "ori"
                result = self._condition(of[0])
                for other in of[1:]:
                    second = self._condition(other)
                    result = self._once((kind, result, second), f"arith.{kind} {result}, {second} : i1")
                return result
            case Unless(of):
                true = self._constant("true", "i1")
                inner = self._condition(of)
                return self._once(("xori", inner), f"arith.xori {inner}, {true} : i1")

    # Statements -------------------------------------------------------------------------------------------------------

    def _body(self, body: Sequence[Statement]) -> None:
        for statement in body:
            match statement:
                case Note(text):
                    self._line(f"// {words(text)}")
                case For(name, start, stop, step, inner):
                    with self._loop(name, self._index(start), self._index(stop), step):
                        self._body(inner)
                case Name(name, index):
                    self.known[-1]["name", name] = self._index(index, name)
                case Let(name, value):
                    self.known[-1]["local", name] = self._value(value, name)
                case If(condition, yes, no):
                    self._line(f"scf.if {self._condition(condition)} {{")
                    with self._region():
                        self._body(yes)
                    if no:
                        self._line("} else {")
                        with self._region():
                            self._body(no)
                    self._line("}")
                case Copy():
                    self._copy(statement)
                case Fill():
                    self._fill(statement)
                case Assign():
                    self._assign(statement)
                case Accumulate():
                    self._accumulate(statement)
                case Enter() | Wait():
                    pass
                case _:
                    assert_never(statement)

    @contextmanager
    def _loop(self, name: str, start: str, stop: str, step: int = 1) -> Generator[str]:
        by, at = self._constant(step), len(self.lines)
        with self._region():
            variable = self._new(name)
            self.known[-1]["name", name] = variable
            yield variable
        self.lines.insert(at, "  " * self.depth + f"scf.for {variable} = {start} to {stop} step {by} {{")
        self._line("}")

    def _nested(self, counts: Sequence[Index], body: Callable[[Sequence[str]], None]) -> None:
        """Loops over all elements; None for the position along an axis of one."""
        at: list[str] = []

        def inner(axis: int) -> None:
            if axis == len(counts):
                body(at)
            elif counts[axis] == Index((), 1):
                at.append("")
                inner(axis + 1)
            else:
                with self._loop(f"i{axis}", self._constant(0), self._index(counts[axis])) as variable:
                    at.append(variable)
                    inner(axis + 1)

        inner(0)

    def _places(self, start: Sequence[Index] | None, step: Sequence[Index], at: Sequence[str]) -> list[str]:
        """`start + at * step` along each axis; an empty position is the first one."""
        found: list[str] = []
        for axis, position in enumerate(at):
            first = Index() if start is None else start[axis]
            if not position:
                found.append(self._index(first))
                continue
            if step[axis] != Index((), 1):
                by = self._index(step[axis])
                position = self._once(("muli", position, by), f"arith.muli {position}, {by} : index")
            if first != Index():
                low = self._index(first)
                position = self._once(("addi", low, position), f"arith.addi {low}, {position} : index")
            found.append(position)
        return found

    def _copy(self, copy: Copy) -> None:
        to, source = self.program.array(copy.to.ref), self.program.array(copy.source.ref)

        def places(side: Side, at: Sequence[str]) -> list[str]:
            return self._places(side.start, side.step, at)

        def move(at: Sequence[str]) -> None:
            value = self._fetch(source, places(copy.source, at))
            if copy.results and isinstance(to, Tensor):
                value = self._kept(value, source.dtype, to.dtype)
            self._store(to, places(copy.to, at), value)

        self._nested(copy.counts, move)

    def _fill(self, fill: Fill) -> None:
        view, number = self.program.view(fill.view), self._value(fill.value)

        def put(at: Sequence[str]) -> None:
            self._store(view, self._places(None, fill.step, at), number)

        self._nested(fill.counts, put)

    def _fetch(self, array: Tensor | View, at: Sequence[str]) -> str:
        result = self._new()
        self._line(f"{result} = memref.load %{array.name}[{', '.join(at)}] : {self._type(array)}")
        return result

    def _store(self, array: Tensor | View, at: Sequence[str], value: str) -> None:
        self._line(f"memref.store {value}, %{array.name}[{', '.join(at)}] : {self._type(array)}")

    def _assign(self, assign: Assign) -> None:
        view = self.program.view(assign.view)
        value = self._value(assign.value)
        if assign.result and view.result is not None:
            value = self._kept(value, view.result, view.dtype)
        self._store(view, [self._index(s) for s in assign.slots], value)

    def _kept(self, value: str, dtype: DType, to: DType) -> str:
        """A result in an accumulator's slot, or out of it: bit by bit where a float does not hold all integers of its size."""
        integer, floating = sorted((dtype, to), key=lambda d: d.startswith("float"))
        if (
            not integer.startswith("float")
            and floating.startswith("float")
            and DTYPE_BYTES[integer] == DTYPE_BYTES[floating]
        ):
            result = self._new()
            self._line(f"{result} = arith.bitcast {value} : {type_of(dtype)} to {type_of(to)}")
            return result
        return self._cast(value, dtype, to)

    def _accumulate(self, fold: Accumulate) -> None:
        view = self.program.view(fold.view)
        at = [self._index(s) for s in fold.slots]
        dtype = view.dtype
        kind: Kind = "max" if fold.fold == "max" else "add"

        def inner(loops: Sequence[tuple[str, Index]], carried: str) -> str:
            if not loops:
                return self._arithmetic(kind, carried, self._value(fold.value), dtype)
            (name, count), *rest = loops
            start, stop, by = self._constant(0), self._index(count), self._constant(1)
            so_far, result, at = self._new(), self._new(), len(self.lines)
            with self._region():
                variable = self._new(name)
                self.known[-1]["name", name] = variable
                self._line(f"scf.yield {inner(rest, so_far)} : {type_of(dtype)}")
            loop = f"{result} = scf.for {variable} = {start} to {stop} step {by}"
            head = f"{loop} iter_args({so_far} = {carried}) -> ({type_of(dtype)}) {{"
            self.lines.insert(at, "  " * self.depth + head)
            self._line("}")
            return result

        self._store(view, at, inner(fold.loops, self._fetch(view, at)))

    # Values -----------------------------------------------------------------------------------------------------------

    def _value(self, value: Value, wanted: str | None = None) -> str:
        match value:
            case Number(number, dtype):
                return self._constant(_literal(number, dtype), type_of(dtype))
            case Local(name):
                return next(r["local", name] for r in reversed(self.known) if ("local", name) in r)
            case Element(view, slots):
                return self._fetch(self.program.view(view), [self._index(s) for s in slots])
            case Position(index, dtype):
                position, result = self._index(index), self._new()
                self._line(f"{result} = arith.index_cast {position} : index to i64")
                return self._cast(result, "int64", dtype)
            case Cast(of, dtype):
                return self._cast(self._value(of), of.dtype, dtype)
            case Pick(a, b, yes, no):
                first, second = self._value(a), self._value(b)
                one, other = self._value(yes), self._value(no)
                less, result = self._new(), self._new(wanted)
                self._line(f"{less} = {_less(a.dtype)}, {first}, {second} : {type_of(a.dtype)}")
                self._line(f"{result} = arith.select {less}, {one}, {other} : {type_of(yes.dtype)}")
                return result
            case Operation("rint", (a,), dtype):
                of, result = self._value(a), self._new(wanted)
                self._line(f"{result} = math.roundeven {of} : {type_of(dtype)}")
                return result
            case Operation(kind, (a, b), dtype):
                return self._arithmetic(kind, self._value(a), self._value(b), dtype, wanted)
            case _:
                raise AssertionError(value)

    def _arithmetic(self, kind: Kind, a: str, b: str, dtype: DType, wanted: str | None = None) -> str:
        result = self._new(wanted)
        self._line(f"{result} = arith.{operation(kind, dtype)} {a}, {b} : {type_of(dtype)}")
        return result

    def _cast(self, value: str, dtype: DType, to: DType) -> str:
        if type_of(dtype) == type_of(to):
            return value
        result = self._new()
        self._line(f"{result} = arith.{conversion(dtype, to)} {value} : {type_of(dtype)} to {type_of(to)}")
        return result


def type_of(dtype: DType) -> str:
    """MLIR's type; integers have no sign there, the operations do."""
    return _FLOATS.get(dtype) or f"i{8 * DTYPE_BYTES[dtype]}"


def operation(kind: Kind, dtype: DType) -> str:
    """arith's operation on values of a dtype."""
    if dtype.startswith("float"):
        names = {
            "add": "addf",
            "subtract": "subf",
            "multiply": "mulf",
            "divide": "divf",
            "min": "minimumf",
            "max": "maximumf",
        }
        return names[kind]
    sign = "u" if dtype.startswith("u") else "s"
    names = {
        "add": "addi",
        "subtract": "subi",
        "multiply": "muli",
        "divide": f"div{sign}i",
        "shift_right": f"shr{sign}i",
    }
    return names.get(kind) or f"{kind}{sign}i"


def _less(dtype: DType) -> str:
    if dtype.startswith("float"):
        return "arith.cmpf olt"
    return "arith.cmpi ult" if dtype.startswith("u") else "arith.cmpi slt"


def conversion(dtype: DType, to: DType) -> str:
    """arith's operation from one dtype to another of another type."""
    floats, sign = (dtype.startswith("float"), to.startswith("float")), "u" if dtype.startswith("u") else "s"
    match floats:
        case (True, True):
            return "extf" if DTYPE_BYTES[to] > DTYPE_BYTES[dtype] else "truncf"
        case (True, False):
            return "fptoui" if to.startswith("u") else "fptosi"
        case (False, True):
            return f"{sign}itofp"
        case _:
            return f"ext{sign}i" if DTYPE_BYTES[to] > DTYPE_BYTES[dtype] else "trunci"


def _literal(value: int | float, dtype: DType) -> str:
    if not dtype.startswith("float"):
        bits = 8 * DTYPE_BYTES[dtype]
        return str(int(value) - (1 << bits) if dtype.startswith("u") and value >= 1 << (bits - 1) else int(value))
    if np.isinf(value):
        bits = {"float16": "0xFC00", "float32": "0xFF800000", "float64": "0xFFF0000000000000"}[dtype]
        return (
            bits
            if value < 0
            else {"float16": "0x7C00", "float32": "0x7F800000", "float64": "0x7FF0000000000000"}[dtype]
        )
    text = f"{float(value):.17e}"
    return text
