"""Program -> C99: one static arena per scope, buffers as typed pointers into it, transfers through a header one can replace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib.resources import files as package_files
from math import prod
from typing import assert_never

from planner.emit.c_self_test import self_test
from planner.emit.c_values import TYPES, bare, condition_text, fits_int, index_text, modular, number, product
from planner.emit.index import Index, total
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
    Side,
    Statement,
    Tensor,
    Value,
    View,
    Wait,
    walk,
)
from planner.emit.scalar import require_aligned, spell_out
from planner.emit.text import bracketed
from planner.errors import SpecError
from planner.nest.ir import Kernel
from planner.nest.lower import lower
from planner.plan import Plan
from planner.spec.operator import DTYPE_BYTES

DMA_HEADER = "planner_dma.h"
RESERVED = frozenset(
    "auto break case char const continue default do double else enum extern float for goto if inline int long register "
    "restrict return short signed sizeof static struct switch typedef union unsigned void volatile while _Bool _Complex "
    "_Imaginary asm typeof linux unix main errno assert bool true false NULL EOF BUFSIZ offsetof INFINITY NAN HUGE_VAL "
    "memcpy memmove memset memcmp memchr strcpy strcat strcmp strlen strchr strstr printf fprintf sprintf scanf puts putchar "
    "getchar fopen fclose fread fwrite malloc calloc realloc free abort exit atexit abs labs div ldiv rand srand qsort "
    "bsearch system getenv atoi atof signal raise time clock isalpha isdigit isspace toupper tolower index rindex bcopy "
    "sin cos tan asin acos atan atan2 sinh cosh tanh exp exp2 expm1 log log2 log10 log1p pow sqrt cbrt hypot ceil floor "
    "round trunc rint rintf nearbyint fabs fmod fmin fmax fma erf gamma lgamma tgamma ldexp frexp modf logb scalb y0 y1 yn "
    "j0 j1 jn int8_t uint8_t int16_t uint16_t int32_t uint32_t int64_t uint64_t size_t ptrdiff_t ssize_t to from sum best "
    "different i".split()
)
"""Names that C, its library, or the emitted source itself takes."""


def emit(kernel: Kernel) -> str:
    """The kernel's source. SpecError for a dtype or an address that C cannot take."""
    return "\n".join(_Printer(_program(kernel)).source()) + "\n"


def files(plan: Plan) -> dict[str, str]:
    """Everything for a first run: kernel, its header, the transfers' header, and a test with inputs and golden outputs."""
    program = _program(lower(plan))
    printer = _Printer(program)
    name = program.name
    return {
        f"{name}.c": "\n".join(printer.source()) + "\n",
        f"{name}.h": "\n".join(printer.header()) + "\n",
        DMA_HEADER: package_files("planner.emit").joinpath(DMA_HEADER).read_text("utf-8"),
        f"test_{name}.c": "\n".join(self_test(plan, program, printer.links)) + "\n",
    }


def _program(kernel: Kernel) -> Program:
    for name, operand in kernel.operator.operands.items():
        if operand.dtype not in TYPES:
            raise SpecError(
                f"operand {name} is {operand.dtype}, which C99 has not; use float32, or target python or tvmscript"
            )
    if kernel.operator.accumulate not in TYPES:
        raise SpecError(f"accumulate is {kernel.operator.accumulate}, which C99 has not; accumulate in float32")
    program = spell_out(kernel, Names(set(RESERVED), ascii_spelled), overlap=True)
    require_aligned(program)
    return program


@dataclass(slots=True)
class _Printer:
    program: Program
    links: dict[str, str] = field(init=False)
    """Channel constants, by link and direction."""
    depth: int = 0

    def __post_init__(self) -> None:
        # Channels are counted in the order of the views, so that a test can walk them.
        self.links = {}
        by_name = {f"{v.operand}@{v.memory}": v for v in self.program.views}
        found = {(s.link, s.direction) for s in walk(self.program.body) if isinstance(s, Copy)}
        for link, view in by_name.items():
            for direction in ("load", "store"):
                if (link, direction) in found:
                    self.links[f"{link} {direction}"] = f"{self.program.name}_{direction}_{view.name}".upper()

    # Files ------------------------------------------------------------------------------------------------------------

    def prototype(self) -> str:
        tensors = [t for t in self.program.tensors if t.kind != "partial"]
        return f"void {self.program.name}({', '.join(map(self._parameter, tensors))})"

    def _parameter(self, tensor: Tensor) -> str:
        const = "const " if tensor.kind == "given" else ""
        return f"{const}{TYPES[tensor.dtype]} *restrict {tensor.name}"

    def _about(self) -> Iterator[str]:
        operator = self.program.operator
        yield f" * {words(operator.name)}: " + ", ".join(f"{words(d)} = {n}" for d, n in operator.dims.items())
        yield " *"
        for name, o in operator.operands.items():
            yield f" * {words(name)}: {o.dtype} {list(o.shape)}, index [{', '.join(map(str, o.index))}]"

    def header(self) -> Iterator[str]:
        program, guard = self.program, f"{self.program.name}_H".upper()
        yield "/*"
        yield from self._about()
        yield " *"
        yield " * The caller provides whole tensors in row-major order, which may not overlap. Not reentrant: scopes are static."
        yield " */"
        yield f"#ifndef {guard}"
        yield f"#define {guard}"
        yield ""
        yield "#include <stdint.h>"
        yield ""
        yield "/* What moves: the `channel` argument of each transfer. */"
        channels = [*self.links.values(), f"{program.name}_channels".upper()]
        yield "enum {"
        yield from (f"    {c}{',' if c != channels[-1] else ''}" for c in channels)
        yield "};"
        yield ""
        yield f"{self.prototype()};"
        yield ""
        yield "#endif"

    def source(self) -> Iterator[str]:
        program = self.program
        yield "/*"
        yield from self._about()
        yield " *"
        yield " * m_0, m_1, ... are positions of dim m, tile by tile; m_in counts points within a tile."
        yield " */"
        yield f'#include "{program.name}.h"'
        yield ""
        if self._floats():
            yield "#include <math.h>"
        yield "#include <stddef.h>"
        yield "#include <string.h>"
        yield ""
        yield f'#include "{DMA_HEADER}"'
        yield ""
        yield from self._scopes()
        yield ""
        yield self.prototype()
        yield "{"
        self.depth = 1
        yield from self._pointers()
        yield ""
        yield from self._unread()
        yield from self._body(program.body)
        yield "}"

    def _scopes(self) -> Iterator[str]:
        """The memory that the kernel has of its own."""
        program = self.program
        for arena in program.arenas:
            alignment = max(arena.alignment, 8)
            yield f"/* {words(arena.memory)}: {arena.used_bytes} of {arena.capacity_bytes} B. */"
            yield f"PLANNER_SCOPE({arena.name}) PLANNER_ALIGN({alignment})"
            yield f"static unsigned char {arena.name}[{arena.used_bytes}];"
        for t in program.tensors:
            if t.kind == "partial":
                yield f"/* {words(program.backing)}: partial sums of {words(t.operand)} on their way. */"
                backing = ascii_spelled(program.backing)
                yield f"PLANNER_SCOPE({backing}) static {TYPES[t.dtype]} {t.name}[{prod(t.shape)}];"

    def _pointers(self) -> Iterator[str]:
        """The buffers, in their first copies."""
        for v in self.program.views:
            address = self._address(v, str(v.offset_bytes))
            if v.copies == 1:
                yield self._line(f"{TYPES[v.dtype]} *const {v.name} = {address};")
                continue
            yield self._line(f"{TYPES[v.dtype]} *{v.name} = {address}; /* and {v.copies - 1} more copy behind it */")
            if v.ahead:
                yield self._line(f"{TYPES[v.dtype]} *{v.ahead} = {address};")
            yield self._line(f"unsigned {v.name}_copy = {v.copies - 1};")

    def _unread(self) -> Iterator[str]:
        """Uses parameters of which nothing is read but padding, so that no compiler complains."""
        read = {s.source.ref for s in walk(self.program.body) if isinstance(s, Copy)}
        for t in self.program.tensors:
            if t.kind == "given" and t.name not in read:
                yield self._line(f"(void){t.name}; /* only padding is read */")

    def _floats(self) -> bool:
        operator = self.program.operator
        return any(o.dtype.startswith("float") for o in operator.operands.values()) or operator.accumulate.startswith(
            "float"
        )

    def _address(self, view: View, offset: str) -> str:
        return f"({TYPES[view.dtype]} *)(void *)({view.arena} + {offset})"

    def _line(self, text: str) -> str:
        return "    " * self.depth + text if text else ""

    def _block(self, body: Sequence[Statement]) -> Iterator[str]:
        self.depth += 1
        yield from self._body(body)
        self.depth -= 1

    # Statements -------------------------------------------------------------------------------------------------------

    def _body(self, body: Sequence[Statement]) -> Iterator[str]:
        for statement in body:
            match statement:
                case Note(text):
                    yield self._line(f"/* {words(text)} */")
                case For(name, start, stop, step, inner):
                    yield self._line(self._for(name, start, stop, step))
                    yield from self._block(inner)
                    yield self._line("}")
                case Name(name, index):
                    yield self._line(f"const ptrdiff_t {name} = {index_text(index)};")
                case Let(name, value):
                    yield self._line(f"const {TYPES[value.dtype]} {name} = {bare(self._value(value))};")
                case If(condition, yes, no):
                    yield self._line(f"if ({condition_text(condition)}) {{")
                    yield from self._block(yes)
                    if no:
                        yield self._line("} else {")
                        yield from self._block(no)
                    yield self._line("}")
                case Enter(view):
                    yield from self._enter(self.program.view(view))
                case Copy():
                    yield from self._copy(statement)
                case Wait(link, direction):
                    yield self._line(f"planner_dma_wait({self.links[f'{link} {direction}']});")
                case Fill():
                    yield from self._fill(statement)
                case Assign():
                    yield from self._assign(statement)
                case Accumulate():
                    yield from self._accumulate(statement)
                case _:
                    assert_never(statement)

    def _for(self, name: str, start: Index, stop: Index, step: int = 1) -> str:
        by = f"++{name}" if step == 1 else f"{name} += {step}"
        return f"for (ptrdiff_t {name} = {index_text(start)}; {name} < {index_text(stop)}; {by}) {{"

    def _enter(self, view: View) -> Iterator[str]:
        copy = f"{view.name}_copy"
        each = view.size_bytes // view.copies
        yield self._line(f"{copy} = ({copy} + 1) % {view.copies};")
        yield self._line(f"{view.name} = {self._address(view, f'{view.offset_bytes} + {copy} * {each}')};")
        if view.ahead is not None:
            offset = f"{view.offset_bytes} + ({copy} + 1) % {view.copies} * {each}"
            yield self._line(f"{view.ahead} = {self._address(view, offset)};")

    def _assign(self, assign: Assign) -> Iterator[str]:
        view = self.program.view(assign.view)
        at = index_text(flat(view.shape, assign.slots))
        if not assign.result or view.result == view.dtype:
            yield self._line(f"{view.name}[{at}] = {self._value(assign.value)};")
            return
        assert view.result is not None
        yield self._line(f"const {TYPES[view.result]} result = {self._value(assign.value)};")
        yield self._line(f"memcpy(&{view.name}[{at}], &result, sizeof result); /* in the accumulator's place */")

    def _fill(self, fill: Fill) -> Iterator[str]:
        view = self.program.view(fill.view)
        loops = [(f"i{n}", count) for n, count in enumerate(fill.counts)]
        steps = [step * stride for step, stride in zip(fill.step, strides(view.shape), strict=True)]
        kept = [(n, c, step) for (n, c), step in zip(loops, steps, strict=True) if c != Index((), 1)]
        target = " + ".join(product(name, step) for name, _, step in kept) or "0"
        for name, count, _ in kept:
            yield self._line(self._for(name, Index(), count))
            self.depth += 1
        yield self._line(f"{fill.view}[{target}] = {number(fill.value)};")
        for _ in kept:
            self.depth -= 1
            yield self._line("}")

    def _accumulate(self, fold: Accumulate) -> Iterator[str]:
        view = self.program.view(fold.view)
        target = f"{view.name}[{index_text(flat(view.shape, fold.slots))}]"
        kind = TYPES[view.dtype]
        if fold.fold == "max":
            yield self._line(f"{kind} best = {target};")
        elif view.dtype.startswith("float"):
            yield self._line(f"{kind} sum = {target};")
        else:
            yield self._line(f"{modular(view.dtype)} sum = ({modular(view.dtype)}){target};")
        for name, count in fold.loops:
            yield self._line(self._for(name, Index(), count))
            self.depth += 1
        if fold.fold == "max":
            yield self._line(f"const {kind} value = {self._value(fold.value)};")
            yield self._line("if (best < value) {")
            yield self._line("    best = value;")
            yield self._line("}")
        elif view.dtype.startswith("float"):
            yield self._line(f"sum += {self._value(fold.value)};")
        else:
            yield self._line(f"sum += {self._wrapping(fold.value, modular(view.dtype))};")
        for _ in fold.loops:
            self.depth -= 1
            yield self._line("}")
        if fold.fold == "max" or view.dtype.startswith("float"):
            yield self._line(f"{target} = {'best' if fold.fold == 'max' else 'sum'};")
        else:
            yield self._line(f"{target} = ({kind})sum;")

    # Transfers --------------------------------------------------------------------------------------------------------

    def _copy(self, copy: Copy) -> Iterator[str]:
        to, source = self.program.array(copy.to.ref), self.program.array(copy.source.ref)
        dtype = to.dtype if isinstance(to, Tensor) else source.dtype
        if copy.results:
            dtype = self.program.operator.output.dtype
        axes = _merged(to, source, copy)
        channel = self.links[f"{copy.link} {copy.direction}"]
        *outer, rows, columns = [_Axis(Index((), 1), Index(), Index()), _Axis(Index((), 1), Index(), Index()), *axes]
        outer = [axis for axis in outer if axis.count != Index((), 1)]
        names = [f"i{n}" for n in range(len(outer))]
        for name, axis in zip(names, outer, strict=True):
            yield self._line(self._for(name, Index(), axis.count))
            self.depth += 1

        def address(array: Tensor | View, side: Side, strides: Sequence[Index]) -> str:
            text = index_text(flat(array.shape, side.start))
            moving = [product(name, stride) for name, stride in zip(names, strides, strict=True)]
            inside = " + ".join([*([text] if text != "0" else []), *moving])
            return f"{side.ref} + {inside}" if inside else side.ref

        there = address(to, copy.to, [a.to for a in outer])
        here = address(source, copy.source, [a.source for a in outer])
        width = DTYPE_BYTES[dtype]
        sizes = [DTYPE_BYTES[to.dtype], DTYPE_BYTES[source.dtype]]
        strides = [(rows.to * sizes[0], columns.to * sizes[0]), (rows.source * sizes[1], columns.source * sizes[1])]
        texts = [f"{index_text(row)}, {index_text(column)}" for row, column in strides]
        yield self._line(f"planner_dma_2d_start({channel},")
        yield self._line(f"                     {there}, {texts[0]},")
        yield self._line(f"                     {here}, {texts[1]},")
        yield self._line(f"                     {index_text(rows.count)}, {index_text(columns.count)}, {width});")
        for _ in outer:
            self.depth -= 1
            yield self._line("}")

    # Values -----------------------------------------------------------------------------------------------------------

    def _value(self, value: Value) -> str:
        match value:
            case Number():
                return number(value)
            case Local(name):
                return name
            case Element(view, slots):
                return f"{view}[{index_text(flat(self.program.view(view).shape, slots))}]"
            case Position(index, dtype):
                return f"({TYPES[dtype]})({index_text(index)})"
            case Cast(of, dtype):
                return f"({TYPES[dtype]}){bracketed(self._value(of))}"
            case Pick(a, b, yes, no):
                return f"({self._value(a)} < {self._value(b)} ? {self._value(yes)} : {self._value(no)})"
            case Operation("min" | "max" as kind, (a, b), _):
                first, second = self._value(a), self._value(b)
                return f"({first} {'<' if kind == 'min' else '>'} {second} ? {first} : {second})"
            case Operation("rint", (a,), dtype):
                return f"{'rintf' if dtype == 'float32' else 'rint'}({self._value(a)})"
            case Operation(kind, (a, b), _):
                sign = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "shift_right": ">>"}[kind]
                return f"({self._value(a)} {sign} {self._value(b)})"
            case _:
                raise AssertionError(value)

    def _wrapping(self, value: Value, modular: str) -> str:
        """An integer value modulo 2 to the bits of an unsigned type: signed overflow is undefined in C."""
        match value:
            case Operation("multiply" | "add" as kind, (a, b), _):
                sign = "*" if kind == "multiply" else "+"
                if fits_int(value):
                    return f"({modular})({self._small(a)} {sign} {self._small(b)})"
                return f"({self._wrapping(a, modular)} {sign} {self._wrapping(b, modular)})"
            case Cast(of, _):
                return f"({modular}){bracketed(self._value(of))}"
            case _:
                return f"({modular}){bracketed(self._value(value))}"

    def _small(self, value: Value) -> str:
        """A value as C promotes it to int32_t by itself."""
        inner = value.of if isinstance(value, Cast) else value
        text = self._value(inner)
        # int may have 16 bits where int32_t is long.
        return f"(int32_t){text}"


@dataclass(frozen=True, slots=True)
class _Axis:
    """One axis of a transfer: how many, and elements between neighbours on either side."""

    count: Index
    to: Index
    source: Index


def _merged(to: Tensor | View, source: Tensor | View, copy: Copy) -> list[_Axis]:
    """The axes of a transfer, without those of one element; neighbours that lie behind each other on both sides are one."""
    found: list[_Axis] = []
    here, there = strides(to.shape), strides(source.shape)
    for i, count in enumerate(copy.counts):
        if count == Index((), 1):
            continue
        axis = _Axis(count, copy.to.step[i] * here[i], copy.source.step[i] * there[i])
        if found and count.fixed:
            last = found[-1]
            if last.to == axis.to * count.constant and last.source == axis.source * count.constant:
                found[-1] = _Axis(last.count * count.constant, axis.to, axis.source)
                continue
        found.append(axis)
    return found


def strides(shape: Sequence[int]) -> list[int]:
    """Elements between neighbours along each axis, row-major."""
    return [prod(shape[i + 1 :]) for i in range(len(shape))]


def flat(shape: Sequence[int], slots: Sequence[Index]) -> Index:
    """Row-major position of an element."""
    return total(slot * stride for slot, stride in zip(slots, strides(shape), strict=True))
