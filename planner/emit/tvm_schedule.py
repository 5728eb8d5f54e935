"""Kernel -> a TVM schedule: the operator as TVM's users write it, and the calls that turn it into the planned nest.

The text is a Python module: `Plain` is the untiled operator, `schedule()` the calls on `tvm.s_tir.Schedule`.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod

from planner.emit.epilogue import finished
from planner.emit.index import Index, total, variable
from planner.emit.names import Names, ascii_spelled, words
from planner.emit.program import Element, Number, Value
from planner.emit.tvmscript import index_text, number_text, scope_name, value_text
from planner.errors import SpecError
from planner.nest.arithmetic import neutral
from planner.nest.ir import Buffer, For, Kernel, Visit, spine
from planner.spec.operator import Operator

_OWN = (
    "T I Plain tvm np range schedule sch compute finish init accumulator main limits random results module output plain"
)
RESERVED = frozenset([*keyword.kwlist, *_OWN.split(), "planned", "different", "kernel"])
"""Names that Python, or the emitted text itself, takes."""


def emit(kernel: Kernel) -> str:
    """A module with the operator and its schedule. SpecError for a nest that the schedule's primitives cannot make."""
    return "\n".join(_Emitter(kernel).module()) + "\n"


@dataclass(slots=True)
class _Emitter:
    kernel: Kernel
    names: Names = field(init=False)
    operands: dict[str, str] = field(init=False)
    function: str = field(init=False)
    dims: dict[str, str] = field(init=False)
    entries: list[For | Visit] = field(init=False)
    loops: list[str] = field(init=False)
    """Names of the tile loops, outermost first."""

    def __post_init__(self) -> None:
        operator = self.kernel.operator
        self.names = Names(set(RESERVED), ascii_spelled)
        endings = ("", "_padded", *(f"_{ascii_spelled(a.memory)}" for a in self.kernel.arenas))
        self.operands = {n: self.names.new(n, endings) for n in operator.operands}
        self.function = self.names.new(operator.name)
        self.dims = {d: self.names.new(d, ("", *(f"_{level}" for level in range(64)), "_v")) for d in operator.dims}
        self.entries = list(spine(self.kernel.body))
        self._refuse()
        self._refuse_tails()
        self._refuse_overruns()
        self.loops = []

    def _refuse(self) -> None:
        """SpecError for partial sums that leave: TVM's primitives keep an accumulator where it was started."""
        operator = self.kernel.operator
        reductions = 0
        for entry in self.entries:
            if isinstance(entry, For):
                reductions += entry.dim in operator.reduction_dims
                continue
            buffer = self.kernel.buffer(entry.buffer)
            role = operator.operands[buffer.operand].role
            if reductions and role == "output":
                raise SpecError(
                    f"{entry.buffer} is inside of a reduction loop: its partial sums leave and come back, which TVM's schedules "
                    "do not say; use target tvmscript or c, or solve with --no-spill"
                )
            if reductions and role == "bias":
                raise SpecError(
                    f"{entry.buffer} is filled inside of a reduction loop, and TVM starts its accumulators outside; use target "
                    "tvmscript or c, or put it further out with --order"
                )

    def _refuse_tails(self) -> None:
        """SpecError for tails of which TVM takes more than there is: within tiles, and in windows under several loops."""
        tiles = {d: [n] for d, n in self.kernel.operator.dims.items()}
        for entry in self.entries:
            if isinstance(entry, For) and entry.tile < tiles[entry.dim][-1]:
                tiles[entry.dim].append(entry.tile)
        tails = {d: [inner for outer, inner in pairwise(sizes) if outer % inner] for d, sizes in tiles.items()}
        for d, sizes in tiles.items():
            for outer, inner in pairwise(sizes[1:]):
                if outer % inner:
                    self._refuse_tail(d, inner, f"a tile of {outer} around it")
        for operand in self.kernel.operator.operands.values():
            for axis in operand.index:
                loops = sum(len(tiles[d]) - 1 for d in axis.dims)
                for d in axis.dims if len(axis.dims) > 1 and loops > 1 else ():
                    if tails[d]:
                        self._refuse_tail(d, tails[d][0], f"what it divides, in the window {axis} under {loops} loops")

    def _refuse_tail(self, dim: str, tile: int, around: str) -> None:
        raise SpecError(
            f"the tile {tile} of {dim} does not divide {around}, and TVM's schedule would compute and allocate more than the "
            "tile; use target tvmscript or c, or solve with --tiles divisors"
        )

    def _refuse_overruns(self) -> None:
        """SpecError if TVM needs more of a scope than there is: it rounds ragged tiles within tiles up, and takes dense boxes."""
        operator = self.kernel.operator
        needed = dict.fromkeys((a.memory for a in self.kernel.arenas), 0)
        for b in self.kernel.buffers:
            span = self._spans(b.name)
            operand = operator.operands[b.operand]
            elements = 1
            for axis in operand.index:
                low, high = axis.reach(operator.dims)
                elements *= min(sum(abs(a) * (span[d] - 1) for d, a in axis.terms) + 1, high - low + 1)
            if not self._above()[b.name]:  # outside of all loops TVM copies all, read or not
                elements = max(elements, prod(operand.shape))
            needed[b.memory] += elements * b.slot_bytes
        for arena in self.kernel.arenas:
            if needed[arena.memory] > arena.capacity_bytes:
                raise SpecError(
                    f"TVM's schedule needs up to {needed[arena.memory]} B of {arena.memory}, which has "
                    f"{arena.capacity_bytes}: it rounds a tile that does not divide the tile around it up, and does not leave "
                    "out what a stride skips; use target tvmscript or c, or solve with --tiles divisors or for a smaller scope"
                )

    def _spans(self, buffer: str) -> dict[str, int]:
        """Points of each dim that TVM allocates for a buffer: whole inner tiles, and what the last one begins."""
        tiles = {d: [n] for d, n in self.kernel.operator.dims.items()}
        here: dict[str, int] = {}
        for entry in self.entries:
            if isinstance(entry, Visit) and entry.buffer == buffer:
                here = {d: len(sizes) - 1 for d, sizes in tiles.items()}
            elif isinstance(entry, For) and entry.tile < tiles[entry.dim][-1]:
                tiles[entry.dim].append(entry.tile)
        spans: dict[str, int] = {}
        for d, sizes in tiles.items():
            span = sizes[-1]
            for outer, inner in reversed(list(pairwise(sizes[here[d] :]))):
                span += (-(-outer // inner) - 1) * inner
            spans[d] = span
        return spans

    def module(self) -> Iterator[str]:
        operator = self.kernel.operator
        yield f'"""{words(operator.name)} in TVM: the plain operator, and the schedule that tiles it and fills the scopes.'
        yield ""
        yield 'Run this file to compile it for llvm and compare it with the plain operator on random inputs."""'
        yield ""
        yield "import numpy as np"
        yield "import tvm"
        yield "from tvm.script import ir as I"
        yield "from tvm.script import tirx as T"
        yield ""
        yield ""
        yield from self._plain()
        yield ""
        yield ""
        yield "def schedule() -> tvm.s_tir.Schedule:"
        yield '    """Tiles, order and scopes as planned."""'
        yield "    sch = tvm.s_tir.Schedule(Plain)"
        yield f'    sch.work_on("{self.function}")'
        yield from (f"    {line}" for line in self._schedule())
        yield "    return sch"
        yield ""
        yield ""
        yield from self._main()

    # The operator -----------------------------------------------------------------------------------------------------

    def _plain(self) -> Iterator[str]:
        operator = self.kernel.operator
        given = [n for n, o in operator.operands.items() if o.role != "output"]
        parameters = ", ".join(
            f'{self.operands[n]}: T.Buffer({operator.operands[n].shape}, "{operator.operands[n].dtype}")'
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
                yield f'        {self.operands[name]}_padded = T.sblock_alloc_buffer({shape}, "{operator.operands[name].dtype}")'
        yield f'        accumulator = T.sblock_alloc_buffer({operator.output.shape}, "{operator.accumulate}")'
        for name in operator.factors:
            if self._padded(name):
                yield from (f"        {line}" for line in self._pad(name))
        yield from (f"        {line}" for line in self._compute())
        yield from (f"        {line}" for line in self._finish())

    def _reach(self, name: str) -> list[tuple[int, int]]:
        operator = self.kernel.operator
        return [axis.reach(operator.dims) for axis in operator.operands[name].index]

    def _padded(self, name: str) -> bool:
        return any(map(any, self.kernel.operator.margins(name)))

    def _pad(self, name: str) -> Iterator[str]:
        operator, source = self.kernel.operator, self.operands[name]
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
        yield f"for {_tuple([f'i{i}' for i in range(len(spans))])} in T.grid({', '.join(str(h - lo + 1) for lo, h in spans)}):"
        yield f'    with T.sblock("pad_{source}"):'
        yield f'        {_tuple(axes)} = T.axis.remap("{"S" * len(axes)}", [{", ".join(f"i{i}" for i in range(len(axes)))}])'
        condition = " and ".join(inside)
        value = f"T.if_then_else({condition}, {source}[{', '.join(at)}], {padding})"
        yield f"        {source}_padded[{', '.join(axes)}] = {value}"

    def _compute(self) -> Iterator[str]:
        operator = self.kernel.operator
        at = {d: variable(f"{name}_v") for d, name in self.dims.items()}
        kinds = "".join("R" if d in operator.reduction_dims else "S" for d in operator.dims)
        target = f"accumulator[{self._places(operator.output_name, at)}]"
        reads: list[str] = []
        value: str | None = None
        for name in operator.factors:
            padded = self._padded(name)
            spans = self._reach(name)
            shift = [-low if padded else 0 for low, _ in spans]
            place = f"{self.operands[name]}{'_padded' if padded else ''}[{self._places(name, at, shift)}]"
            reads.append(place)
            dtype = operator.operands[name].dtype
            each = place if dtype == operator.accumulate else f'T.Cast("{operator.accumulate}", {place})'
            value = each if value is None else f"{value} {'*' if operator.combine == 'multiply' else '+'} {each}"
        start = number_text(Number(neutral(operator), operator.accumulate))
        if operator.bias_name is not None:
            bias = operator.operands[operator.bias_name]
            start = f"{self.operands[operator.bias_name]}[{self._places(operator.bias_name, at)}]"
            reads.append(start)
            start = start if bias.dtype == operator.accumulate else f'T.Cast("{operator.accumulate}", {start})'
        yield f"for {_tuple(list(self.dims.values()))} in T.grid({', '.join(str(n) for n in operator.dims.values())}):"
        yield '    with T.sblock("compute"):'
        axes = [f"{name}_v" for name in self.dims.values()]
        yield f'        {_tuple(axes)} = T.axis.remap("{kinds}", [{", ".join(self.dims.values())}])'
        yield f"        T.reads({', '.join(dict.fromkeys(reads))})"
        yield f"        T.writes({target})"
        yield "        with T.init():"
        yield f"            {target} = {start}"
        yield f"        {target} = {f'T.max({target}, {value})' if operator.reduce == 'max' else f'{target} + {value}'}"

    def _places(self, name: str, at: dict[str, Index], shift: Sequence[int] | None = None) -> str:
        index = self.kernel.operator.operands[name].index
        moves = shift or [0] * len(index)
        return ", ".join(
            index_text(total(at[d] * a for d, a in axis.terms) + axis.offset + by)
            for axis, by in zip(index, moves, strict=True)
        )

    def _finish(self) -> Iterator[str]:
        operator = self.kernel.operator
        inner = [d for d in operator.dims if d in operator.output.dims]
        at = {d: variable(f"{self.dims[d]}_v") for d in inner}
        place = self._places(operator.output_name, at)
        element = Element(
            "accumulator",
            tuple(total(at[d] * a for d, a in x.terms) + x.offset for x in operator.output.index),
            operator.accumulate,
        )
        value: Value = element if _plain_result(operator) else finished(operator, element, at, lambda _, value: value)
        names = [self.dims[d] for d in inner]
        yield f"for {_tuple(names)} in T.grid({', '.join(str(operator.dims[d]) for d in inner)}):"
        yield '    with T.sblock("finish"):'
        axes = [f"{name}_v" for name in names]
        yield f'        {_tuple(axes)} = T.axis.remap("{"S" * len(axes)}", [{", ".join(names)}])'
        yield f"        {self.operands[operator.output_name]}[{place}] = {value_text(value)}"

    # The schedule -----------------------------------------------------------------------------------------------------

    def _schedule(self) -> Iterator[str]:
        operator = self.kernel.operator
        yield 'compute = sch.get_sblock("compute")'
        yield 'finish = sch.get_sblock("finish")'
        yield f"{_tuple(list(self.dims.values()))} = sch.get_loops(compute)"
        levels = dict.fromkeys(operator.dims, 0)
        size = dict(operator.dims)
        for entry in self.entries:
            if isinstance(entry, For) and entry.tile < size[entry.dim]:
                dim = self.dims[entry.dim]
                yield f"{dim}_{levels[entry.dim]}, {dim} = sch.split({dim}, [None, {entry.tile}])"
                self.loops.append(f"{dim}_{levels[entry.dim]}")
                levels[entry.dim] += 1
                size[entry.dim] = entry.tile
        points = [self.dims[d] for d in sorted(operator.dims, key=lambda d: d in operator.reduction_dims)]
        yield f"sch.reorder({', '.join([*self.loops, *points])})"
        yield from self._attach(points)

    def _attach(self, points: Sequence[str]) -> Iterator[str]:
        """Scopes and places of the buffers, by operand."""
        operator = self.kernel.operator
        order = [*self.loops, *points]
        above = self._above()
        chains: dict[str, list[Buffer]] = {}
        for b in self.kernel.buffers:
            chains.setdefault(b.operand, []).append(b)
        reads = [*operator.factors, *([operator.bias_name] if operator.bias_name else [])]
        for position, name in enumerate(reads):
            yield f"# {words(name)}"
            yield from self._fetch(name, chains[name], position, above)
        out = operator.output_name
        starters = [above[b.name] for n in (out, operator.bias_name) if n for b in chains[n]]
        yield "# the accumulator, and results on their way out"
        yield f'sch.set_scope(compute, 0, "{scope_name(chains[out][-1].memory)}")'
        results: list[tuple[str, int]] = []
        for b in reversed(chains[out][:-1]):
            block = f"{self.operands[out]}_{ascii_spelled(b.memory)}"
            results.append((block, above[b.name]))
        previous = "finish"
        for block, depth in results:
            yield f'{block} = sch.cache_write({previous}, 0, "{scope_name(self._memory(block, chains[out]))}")'
            yield from self._place_result(block, depth)
        yield from self._place_result("finish", above[chains[out][-1].name])
        first = max(starters)
        yield f"init = sch.decompose_reduction(compute, {order[first] if first < len(order) else order[-1]})"

    def _memory(self, block: str, chain: Sequence[Buffer]) -> str:
        return next(b.memory for b in chain if block.endswith(f"_{ascii_spelled(b.memory)}"))

    def _place_result(self, block: str, depth: int) -> Iterator[str]:
        if depth:
            yield f"sch.reverse_compute_at({block}, {self.loops[depth - 1]})"

    def _fetch(self, name: str, chain: Sequence[Buffer], position: int, above: dict[str, int]) -> Iterator[str]:
        """Bring an operand down, scope by scope: padded where it enters the first one."""
        operand, rest = self.operands[name], list(chain)
        if name in self.kernel.operator.factors and self._padded(name):
            outer = rest.pop(0)
            pad = f"{operand}_{ascii_spelled(outer.memory)}"
            yield f'{pad} = sch.get_sblock("pad_{operand}")'
            yield f'sch.set_scope({pad}, 0, "{scope_name(outer.memory)}")'
            placed = [(pad, above[outer.name])]
        else:
            placed = []
        for b in rest:
            copy = f"{operand}_{ascii_spelled(b.memory)}"
            yield f'{copy} = sch.cache_read(compute, {position}, "{scope_name(b.memory)}")'
            placed.append((copy, above[b.name]))
        # The inner ones first: what is needed of an outer one follows from where its reader stands.
        for copy, depth in reversed(placed):
            if depth:
                yield f"sch.compute_at({copy}, {self.loops[depth - 1]})"

    def _above(self) -> dict[str, int]:
        """How many tile loops are outside of each buffer."""
        found: dict[str, int] = {}
        size = dict(self.kernel.operator.dims)
        loops = 0
        for entry in self.entries:
            if isinstance(entry, Visit):
                found[entry.buffer] = loops
            elif entry.tile < size[entry.dim]:
                loops += 1
                size[entry.dim] = entry.tile
        return found

    def _main(self) -> Iterator[str]:
        operator = self.kernel.operator
        inputs = [(self.operands[n], o) for n, o in operator.operands.items() if o.role != "output"]
        yield "def main() -> None:"
        yield '    """Compile both for llvm and compare."""'
        yield "    random = np.random.default_rng(0)"
        for name, o in inputs:
            if o.dtype.startswith("float"):
                yield f"    {name} = random.uniform(-1, 1, {o.shape}).astype(np.{o.dtype})"
            else:
                yield f"    limits = np.iinfo(np.{o.dtype})"
                bounds = f"limits.min, limits.max, {o.shape}, np.{o.dtype}, endpoint=True"
                yield f"    {name} = random.integers({bounds})"
        arguments = ", ".join(f"tvm.runtime.tensor({name})" for name, _ in inputs)
        shape, dtype = operator.output.shape, operator.output.dtype
        yield "    results = []"
        yield "    for module in (Plain, schedule().mod):"
        yield f"        output = tvm.runtime.tensor(np.zeros({shape}, np.{dtype}))"
        yield "        # TVM 0.27 may give two buffers of one local scope the same place."
        yield '        with tvm.transform.PassContext(config={"tirx.disable_storage_rewrite": True}):'
        yield f'            kernel = tvm.compile(module, target="llvm")["{self.function}"]'
        yield f"        kernel({arguments}, output)"
        yield "        results.append(output.numpy())"
        yield "    plain, planned = results"
        if dtype.startswith("float"):
            yield "    different = int((~np.isclose(planned, plain, rtol=1e-5, atol=1e-5 * np.abs(plain).max())).sum())"
        else:
            yield "    different = int((planned != plain).sum())"
        yield '    print(f"{different} of {plain.size} outputs differ")'
        yield "    raise SystemExit(different > 0)"
        yield ""
        yield ""
        yield 'if __name__ == "__main__":'
        yield "    main()"


def _plain_result(operator: Operator) -> bool:
    return operator.epilogue == type(operator.epilogue)() and operator.output.dtype == operator.accumulate


def _tuple(names: Sequence[str]) -> str:
    return f"{names[0]}," if len(names) == 1 else ", ".join(names)
