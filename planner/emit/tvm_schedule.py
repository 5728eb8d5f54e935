"""Kernel -> a TVM schedule: the operator as TVM's users write it, and the calls that turn it into the planned nest.

The text is a Python module: `Plain` is the untiled operator, `schedule()` the calls on `tvm.s_tir.Schedule`, `plain()` the
operator in numpy, which both are compared with when the module is run.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod

from planner.emit.names import Names, ascii_spelled, words
from planner.emit.numpy_helpers import RESERVED as RESERVED_BY_NUMPY
from planner.emit.numpy_helpers import WINDOW
from planner.emit.plain_numpy import PlainNumpy, indented
from planner.emit.tvm_operator import PlainOperator
from planner.emit.tvmscript import scope_name
from planner.errors import SpecError
from planner.nest.ir import Buffer, For, Kernel, Visit, spine

_OWN = "T I Plain tvm schedule sch compute init accumulator main module output kernel name failed one"
RESERVED = frozenset([*keyword.kwlist, *_OWN.split(), *RESERVED_BY_NUMPY])
"""Names that Python, or the emitted text itself, takes."""


def emit(kernel: Kernel) -> str:
    """A module with the operator and its schedule. SpecError for a nest that the schedule's primitives cannot make."""
    nest = _Nest(kernel)
    _refuse_partial_sums(nest)
    _refuse_tails(nest)
    _refuse_overruns(nest)
    return "\n".join(line.rstrip() for line in _Emitter(nest).module()) + "\n"


@dataclass(slots=True)
class _Nest:
    """The loops of a kernel, and where its buffers stand among them."""

    kernel: Kernel
    entries: list[For | Visit] = field(init=False)
    """The nest, outermost first, without loops of one tile."""
    sizes: dict[str, list[int]] = field(init=False)
    """What each dim is tiled to: its extent, then the tiles, outermost first."""
    around: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    """How many loops over each dim are outside of each buffer."""

    def __post_init__(self) -> None:
        self.sizes = {d: [n] for d, n in self.kernel.operator.dims.items()}
        self.entries = []
        for entry in spine(self.kernel.body):
            if isinstance(entry, Visit):
                self.around[entry.buffer] = {d: len(sizes) - 1 for d, sizes in self.sizes.items()}
            elif entry.tile < self.sizes[entry.dim][-1]:
                self.sizes[entry.dim].append(entry.tile)
            else:
                continue
            self.entries.append(entry)

    def depth(self, buffer: Buffer) -> int:
        """How many loops are outside of a buffer."""
        return sum(self.around[buffer.name].values())

    def buffers(self, operand: str) -> list[Buffer]:
        """The buffers of an operand, outermost first."""
        return [b for b in self.kernel.buffers if b.operand == operand]

    def points(self, buffer: Buffer) -> dict[str, int]:
        """Points of each dim that TVM allocates for a buffer: whole inner tiles, and what the last one begins."""
        points: dict[str, int] = {}
        for d, sizes in self.sizes.items():
            inside = sizes[self.around[buffer.name][d] :]
            points[d] = inside[-1] + sum((-(-outer // inner) - 1) * inner for outer, inner in pairwise(inside))
        return points


def _refuse_partial_sums(nest: _Nest) -> None:
    """SpecError for partial sums that leave: TVM's primitives keep an accumulator where it was started."""
    operator = nest.kernel.operator
    inside = [b for b in nest.kernel.buffers if any(nest.around[b.name][d] for d in operator.reduction_dims)]
    for b in inside:
        if b.operand == operator.output_name:
            raise SpecError(
                f"{b.name} is inside of a reduction loop: its partial sums leave and come back, which TVM's schedules "
                "do not say; use target tvmscript or c, or solve with --no-spill"
            )
    for b in inside:
        if b.operand == operator.bias_name:
            raise SpecError(
                f"{b.name} is filled inside of a reduction loop, and TVM starts its accumulators outside; use target "
                "tvmscript or c, or put it further out with --order"
            )


def _refuse_tails(nest: _Nest) -> None:
    """SpecError for tails of which TVM takes more than there is: within tiles, and in windows under several loops."""
    tails = {d: [inner for outer, inner in pairwise(sizes) if outer % inner] for d, sizes in nest.sizes.items()}
    for d, sizes in nest.sizes.items():
        for outer, inner in pairwise(sizes[1:]):
            if outer % inner:
                raise _tail(d, inner, f"a tile of {outer} around it")
    for operand in nest.kernel.operator.operands.values():
        for axis in operand.index:
            loops = sum(len(nest.sizes[d]) - 1 for d in axis.dims)
            for d in axis.dims if len(axis.dims) > 1 and loops > 1 else ():
                if tails[d]:
                    raise _tail(d, tails[d][0], f"what it divides, in the window {axis} under {loops} loops")


def _tail(dim: str, tile: int, around: str) -> SpecError:
    return SpecError(
        f"the tile {tile} of {dim} does not divide {around}, and TVM's schedule would compute and allocate more than the "
        "tile; use target tvmscript or c, or solve with --tiles divisors"
    )


def _refuse_overruns(nest: _Nest) -> None:
    """SpecError if TVM needs more of a scope than there is: it rounds ragged tiles within tiles up, and takes dense boxes."""
    operator = nest.kernel.operator
    needed = dict.fromkeys((a.memory for a in nest.kernel.arenas), 0)
    for b in nest.kernel.buffers:
        points, operand = nest.points(b), operator.operands[b.operand]
        elements = 1
        for axis in operand.index:
            low, high = axis.reach(operator.dims)
            elements *= min(sum(abs(a) * (points[d] - 1) for d, a in axis.terms) + 1, high - low + 1)
        if not nest.depth(b):  # outside of all loops TVM copies all, read or not
            elements = max(elements, prod(operand.shape))
        needed[b.memory] += elements * b.slot_bytes
    for arena in nest.kernel.arenas:
        if needed[arena.memory] > arena.capacity_bytes:
            raise SpecError(
                f"TVM's schedule needs up to {needed[arena.memory]} B of {arena.memory}, which has "
                f"{arena.capacity_bytes}: it rounds a tile that does not divide the tile around it up, and does not leave "
                "out what a stride skips; use target tvmscript or c, or solve with --tiles divisors or for a smaller scope"
            )


@dataclass(slots=True)
class _Emitter:
    nest: _Nest
    operands: dict[str, str] = field(init=False)
    """Names in the source, by operand; likewise of loops by dim."""
    dims: dict[str, str] = field(init=False)
    function: str = field(init=False)
    loops: list[str] = field(default_factory=list[str])
    """Names of the tile loops, outermost first."""

    def __post_init__(self) -> None:
        kernel = self.nest.kernel
        names = Names({*RESERVED, *(f"x{i}" for i in range(len(kernel.operator.factors)))}, ascii_spelled)
        endings = ("", "_padded", *(f"_{ascii_spelled(a.memory)}" for a in kernel.arenas))
        self.operands = {n: names.new(n, endings) for n in kernel.operator.operands}
        self.function = names.new(kernel.operator.name)
        self.dims = {d: names.new(d, ("", *(f"_{level}" for level in range(64)), "_v")) for d in kernel.operator.dims}

    def module(self) -> Iterator[str]:
        operator = self.nest.kernel.operator
        plain = PlainNumpy(operator, self.operands)
        yield f'"""{words(operator.name)} in TVM: the plain operator, and the schedule that tiles it and fills the scopes.'
        yield ""
        yield 'Run this file to compile both for llvm and compare them with a plain computation on random inputs."""'
        yield ""
        yield "import numpy as np"
        yield "import tvm"
        yield "from tvm.script import ir as I"
        yield "from tvm.script import tirx as T"
        yield ""
        yield ""
        yield from PlainOperator(operator, self.function, self.operands, self.dims).module()
        yield ""
        yield ""
        yield "def schedule() -> tvm.s_tir.Schedule:"
        yield '    """Tiles, order and scopes as planned."""'
        yield "    sch = tvm.s_tir.Schedule(Plain)"
        yield f'    sch.work_on("{self.function}")'
        yield from indented(self._schedule(), 1)
        yield "    return sch"
        yield WINDOW
        yield ""
        yield ""
        yield from plain.finish()
        yield ""
        yield ""
        yield from plain.plain()
        yield ""
        yield ""
        yield from self._main(plain)

    # The schedule -----------------------------------------------------------------------------------------------------

    def _schedule(self) -> Iterator[str]:
        operator = self.nest.kernel.operator
        yield 'compute = sch.get_sblock("compute")'
        yield 'finish = sch.get_sblock("finish")'
        points = ", ".join(self.dims.values())
        yield f"{points if len(self.dims) > 1 else f'[{points}]'} = sch.get_loops(compute)"
        levels = dict.fromkeys(operator.dims, 0)
        for entry in self.nest.entries:
            if isinstance(entry, For):
                dim = self.dims[entry.dim]
                loop = f"{dim}_{levels[entry.dim]}"
                yield f"{loop}, {dim} = sch.split({dim}, [None, {entry.tile}])"
                self.loops.append(loop)
                levels[entry.dim] += 1
        points = [self.dims[d] for d in sorted(operator.dims, key=lambda d: d in operator.reduction_dims)]
        yield f"sch.reorder({', '.join([*self.loops, *points])})"
        reads = [*operator.factors, *([operator.bias_name] if operator.bias_name else [])]
        for position, name in enumerate(reads):
            yield f"# {words(name)}"
            yield from self._fetch(name, position)
        yield "# the accumulator, and results on their way out"
        yield from self._accumulate()
        order = [*self.loops, *points]
        starters = [b for n in (operator.output_name, operator.bias_name) if n for b in self.nest.buffers(n)]
        first = max(map(self.nest.depth, starters))
        yield f"init = sch.decompose_reduction(compute, {order[min(first, len(order) - 1)]})"

    def _fetch(self, name: str, position: int) -> Iterator[str]:
        """Bring an operand down, scope by scope: padded where it enters the first one."""
        operator, operand = self.nest.kernel.operator, self.operands[name]
        padded = name in operator.factors and any(map(any, operator.margins(name)))
        placed: list[tuple[str, Buffer]] = []
        for b in self.nest.buffers(name):
            block = f"{operand}_{ascii_spelled(b.memory)}"
            if padded and not placed:
                yield f'{block} = sch.get_sblock("pad_{operand}")'
                yield f'sch.set_scope({block}, 0, "{scope_name(b.memory)}")'
            else:
                yield f'{block} = sch.cache_read(compute, {position}, "{scope_name(b.memory)}")'
            placed.append((block, b))
        # The inner ones first: what is needed of an outer one follows from where its reader stands.
        yield from self._place("compute_at", placed[::-1])

    def _accumulate(self) -> Iterator[str]:
        """Accumulate in the innermost scope; results leave it scope by scope, from `finish` on."""
        name = self.nest.kernel.operator.output_name
        *outer, innermost = self.nest.buffers(name)
        yield f'sch.set_scope(compute, 0, "{scope_name(innermost.memory)}")'
        placed: list[tuple[str, Buffer]] = []
        for b in outer:  # each goes between `finish` and what `finish` has written to so far
            block = f"{self.operands[name]}_{ascii_spelled(b.memory)}"
            yield f'{block} = sch.cache_write(finish, 0, "{scope_name(b.memory)}")'
            placed.append((block, b))
        # The inner ones first: a block can only join a loop that what it reads is in already.
        yield from self._place("reverse_compute_at", [("finish", innermost), *placed[::-1]])

    def _place(self, primitive: str, blocks: Sequence[tuple[str, Buffer]]) -> Iterator[str]:
        """Move blocks into the loop in which their buffers are filled."""
        for block, buffer in blocks:
            if depth := self.nest.depth(buffer):
                yield f"sch.{primitive}({block}, {self.loops[depth - 1]})"

    # The test ---------------------------------------------------------------------------------------------------------

    def _main(self, plain: PlainNumpy) -> Iterator[str]:
        output = self.nest.kernel.operator.output
        yield "def main() -> None:"
        yield '    """Compile both for llvm and compare them with numpy."""'
        yield from indented(plain.inputs(), 1)
        yield f"    expected = plain({', '.join(plain.given)})"
        yield "    failed = False"
        yield '    for name, module in (("plain", Plain), ("planned", schedule().mod)):'
        yield f"        output = tvm.runtime.tensor(np.zeros({output.shape}, np.{output.dtype}))"
        yield "        # TVM 0.27 may give two buffers of one local scope the same place."
        yield '        with tvm.transform.PassContext(config={"tirx.disable_storage_rewrite": True}):'
        yield f'            kernel = tvm.compile(module, target="llvm")["{self.function}"]'
        arguments = ", ".join(f"tvm.runtime.tensor({name})" for name in plain.given)
        yield f"        kernel({arguments}, output)"
        yield "        actual = output.numpy()"
        yield from indented(plain.difference(), 2)
        yield '        print(f"{name}: {different} of {expected.size} outputs differ")'
        yield "        failed |= different > 0"
        yield "    raise SystemExit(failed)"
        yield ""
        yield ""
        yield 'if __name__ == "__main__":'
        yield "    main()"
