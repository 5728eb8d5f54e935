"""Runs a kernel on numpy and fails on every broken rule of memory.

Each scope is one flat byte array with its buffers at their offsets. It starts poisoned (0xCC) and is poisoned again where a
buffer dies. A buffer knows of each slot whether it is empty, a value or a result. Bytes and transfers are counted per link.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, assert_never

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from planner.errors import VerificationError
from planner.nest.arithmetic import SLAB_ELEMENTS, Array, accumulate, finish, neutral, output_dims, reduce_tile
from planner.nest.ir import Buffer, Compute, Finish, For, Init, Kernel, Load, Statement, Store, Tile, Visit, When

POISON = 0xCC
EMPTY, VALUE, RESULT = 0, 1, 2


@dataclass(slots=True)
class Moved:
    """What has moved over one buffer's link to its parent."""

    read_bytes: int = 0
    written_bytes: int = 0
    loads: int = 0
    stores: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """The output, and what moved: by buffer name (`operand@memory`) and as bytes (read, written) by memory."""

    output: Array
    sums: Array
    """The accumulators of the whole output as they were finished, before the epilogue could hide what is wrong in them."""
    links: dict[str, Moved]
    memories: dict[str, tuple[int, int]]


def interpret(kernel: Kernel, inputs: Mapping[str, Array]) -> Report:
    """Run a kernel. `inputs` holds one array per operand but the output. VerificationError on any broken rule."""
    run = _Run(kernel, dict(inputs))
    run.execute(kernel.body)
    return run.report()


@dataclass(slots=True)
class _Live:
    """A buffer during one visit."""

    spec: Buffer
    values: Array
    results: Array
    state: NDArray[np.uint8]
    box: _Span
    """What the visit holds; its lowest index of each axis is in slot 0."""
    tile: Tile


@dataclass(frozen=True, slots=True)
class _Span:
    """A box of one operand: per axis the lattice `low, low + step, ...` of `count` indices."""

    lows: tuple[int, ...]
    steps: tuple[int, ...]
    counts: tuple[int, ...]

    def moved(self, by: Iterable[int]) -> _Span:
        """The same box, further on in each axis."""
        return _Span(tuple(low + n for low, n in zip(self.lows, by, strict=True)), self.steps, self.counts)


@dataclass(slots=True)
class _Run:
    kernel: Kernel
    homes: dict[str, Array]
    arenas: dict[str, NDArray[np.uint8]] = field(init=False)
    live: dict[str, _Live] = field(default_factory=dict[str, _Live])
    visits: dict[str, int] = field(default_factory=dict[str, int])
    ranges: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    links: dict[str, Moved] = field(init=False)
    specs: dict[str, Buffer] = field(init=False)
    partials: Array = field(init=False)
    sums: Array = field(init=False)
    started: NDArray[np.bool_] = field(init=False)
    finals: NDArray[np.bool_] = field(init=False)
    loops: dict[str, For] = field(default_factory=dict[str, For])
    boxes: dict[tuple[str, tuple[int, ...]], _Span] = field(default_factory=dict[tuple[str, tuple[int, ...]], _Span])
    """Boxes at position 0, by operand and the sizes of a tile: most visits have one of a few shapes."""

    def __post_init__(self) -> None:
        operator, kernel = self.kernel.operator, self.kernel
        self.specs = {b.name: b for b in kernel.buffers}
        self.links = {name: Moved() for name in self.specs}
        needed = {a.memory: 0 for a in kernel.arenas}
        for b in kernel.buffers:
            needed[b.memory] = max(needed[b.memory], b.offset_bytes + b.size_bytes)
        for arena in kernel.arenas:
            if needed[arena.memory] > arena.capacity_bytes:
                raise VerificationError(
                    f"{arena.memory}: the last buffer ends at byte {needed[arena.memory]}, capacity {arena.capacity_bytes}"
                )
        self.arenas = {name: np.full(size, POISON, np.uint8) for name, size in needed.items()}
        output = operator.output
        self.homes[operator.output_name] = np.zeros(output.shape, output.dtype)
        self.partials = np.zeros(output.shape, operator.accumulate)
        self.sums = np.zeros(output.shape, operator.accumulate)
        self.started = np.zeros(output.shape, bool)
        self.finals = np.zeros(output.shape, bool)

    def report(self) -> Report:
        if not self.finals.all():
            where = tuple(int(i) for i in np.unravel_index(int(self.finals.argmin()), self.finals.shape))
            raise VerificationError(f"output element {where} was never finally written; once is right")
        memories: dict[str, list[int]] = {self.kernel.backing: [0, 0], **{a.memory: [0, 0] for a in self.kernel.arenas}}
        for name, moved in self.links.items():
            spec = self.specs[name]
            memories[spec.parent][0] += moved.read_bytes
            memories[spec.memory][1] += moved.read_bytes
            memories[spec.memory][0] += moved.written_bytes
            memories[spec.parent][1] += moved.written_bytes
        output = self.homes[self.kernel.operator.output_name]
        return Report(output, self.sums, self.links, {name: (r, w) for name, (r, w) in memories.items()})

    # Control --------------------------------------------------------------------------------------------------------

    def execute(self, body: Iterable[Statement]) -> None:
        for statement in body:
            match statement:
                case For():
                    self._for(statement)
                case Visit():
                    self._visit(statement)
                case Load():
                    if self._holds(statement.when):
                        self._load(self._alive(statement.buffer))
                case Init():
                    if self._holds(statement.when):
                        self._init(statement)
                case Compute():
                    self._compute(statement)
                case Finish():
                    if self._holds(statement.when):
                        self._finish(self._alive(statement.buffer))
                case Store():
                    self._store(self._alive(statement.buffer), final=self._holds(statement.final))
                case _:
                    assert_never(statement)

    def _for(self, loop: For) -> None:
        start, end = self._range(loop.dim, loop.outer)
        self.loops[loop.var] = loop
        for position in range(start, end, loop.tile):
            self.ranges[loop.var] = (position, min(position + loop.tile, end))
            self.execute(loop.body)

    def _range(self, dim: str, loop: str | None) -> tuple[int, int]:
        return (0, self.kernel.operator.dims[dim]) if loop is None else self.ranges[loop]

    def _holds(self, when: When) -> bool:
        def edge(side: int) -> bool:
            for var in when.loops:
                loop = self.loops[var]
                if self.ranges[var][side] != self._range(loop.dim, loop.outer)[side]:
                    return False
            return True

        match when.kind:
            case "always":
                return True
            case "first":
                return edge(0)
            case "not_first":
                return not edge(0)
            case "last":
                return edge(1)

    # Buffers --------------------------------------------------------------------------------------------------------

    def _visit(self, visit: Visit) -> None:
        spec = self.specs[visit.buffer]
        number = self.visits.get(visit.buffer, 0)
        self.visits[visit.buffer] = number + 1
        part = spec.size_bytes // spec.copies
        start = spec.offset_bytes + number % spec.copies * part
        self._check_place(spec, start, part)
        arena = self.arenas[spec.memory]
        strides, run = [0] * len(spec.shape), spec.slot_bytes
        for axis in reversed(range(len(spec.shape))):
            strides[axis] = run
            run *= spec.shape[axis]
        if run > part:
            raise VerificationError(f"{spec.name}: shape {list(spec.shape)} takes {run} B and the buffer has {part} B")

        def view(dtype: str) -> Array:
            return np.ndarray(spec.shape, dtype, buffer=arena[start : start + part], strides=strides)

        operand = self.kernel.operator.operands[spec.operand]
        results = view(operand.dtype) if operand.role == "output" else view(spec.dtype)
        span = self._span(spec.operand, visit.tile)
        live = _Live(spec, view(spec.dtype), results, np.zeros(spec.shape, np.uint8), span, visit.tile)
        for axis, (count, step) in enumerate(zip(span.counts, span.steps, strict=True)):
            if ((count - 1) * step) // spec.steps[axis] >= spec.shape[axis] or (count > 1 and step % spec.steps[axis]):
                raise VerificationError(
                    f"{spec.name}, axis {axis}: {count} points of step {step} do not fit {spec.shape[axis]} slots of step "
                    f"{spec.steps[axis]}"
                )
        self.live[visit.buffer] = live
        self.execute(visit.body)
        del self.live[visit.buffer]
        arena[start : start + part] = POISON

    def _check_place(self, spec: Buffer, start: int, part: int) -> None:
        """Aligned, inside the scope, and apart from all that lives: other buffers, and copies of the same one."""
        if spec.offset_bytes % spec.alignment:
            raise VerificationError(f"{spec.name}: offset {spec.offset_bytes} is no multiple of {spec.alignment}")
        if start < 0 or start + part > len(self.arenas[spec.memory]):
            raise VerificationError(f"{spec.name}: bytes {start}..{start + part} lie outside {spec.memory}")
        for other in self.live.values():
            if other.spec.memory == spec.memory:
                low, high = other.spec.offset_bytes, other.spec.offset_bytes + other.spec.size_bytes
                if spec.offset_bytes < high and low < spec.offset_bytes + spec.size_bytes:
                    raise VerificationError(f"{spec.name} and {other.spec.name} share bytes of {spec.memory}")

    def _alive(self, name: str) -> _Live:
        if name not in self.live:
            raise VerificationError(f"{name} is used outside of its visits")
        return self.live[name]

    def _span(self, operand: str, tile: Tile) -> _Span:
        """The box that the current ranges of a tile span in an operand."""
        index = self.kernel.operator.operands[operand].index
        starts: dict[str, int] = {}
        sizes: dict[str, int] = {}
        for dim, loop in tile.loops:
            low, high = self._range(dim, loop)
            starts[dim], sizes[dim] = low, high - low
        key = operand, tuple(sizes.values())
        if key not in self.boxes:
            origin = dict.fromkeys(sizes, 0)
            self.boxes[key] = _Span(
                tuple(axis.lowest(origin, sizes) for axis in index),
                tuple(axis.step(sizes) for axis in index),
                tuple(axis.points(sizes) for axis in index),
            )
        return self.boxes[key].moved(sum(a * starts[d] for d, a in axis.terms) for axis in index)

    def _slots(
        self, live: _Live, lows: Iterable[int], steps: Iterable[int], counts: Iterable[int]
    ) -> tuple[slice, ...]:
        """Slices of a buffer for a box; VerificationError if it is not all inside."""
        found: list[slice] = []
        for axis, (low, step, count) in enumerate(zip(lows, steps, counts, strict=True)):
            apart, stride = low - live.box.lows[axis], live.spec.steps[axis]
            first, by = apart // stride, max(step // stride, 1)
            last = first + by * (count - 1)
            if apart % stride or (count > 1 and step % stride) or first < 0 or last >= live.spec.shape[axis]:
                raise VerificationError(
                    f"{live.spec.name}, axis {axis}: indices {low}..{low + step * (count - 1)} by {step} are not in the buffer, "
                    f"which holds {live.spec.shape[axis]} from {live.box.lows[axis]} by {stride}{self._place()}"
                )
            found.append(slice(first, last + 1, by))
        return tuple(found)

    def _place(self) -> str:
        return " at " + ", ".join(f"{var} = {low}" for var, (low, _) in self.ranges.items()) if self.ranges else ""

    def _inside(self, live: _Live, span: _Span) -> _Span | None:
        """The part of a box within the operand's shape; None if it is empty."""
        shape = self.kernel.operator.operands[live.spec.operand].shape
        lows: list[int] = []
        counts: list[int] = []
        for low, step, count, size in zip(span.lows, span.steps, span.counts, shape, strict=True):
            first = max(0, -(low // step))
            last = min(count - 1, (size - 1 - low) // step)
            if last < first:
                return None
            lows.append(low + first * step)
            counts.append(last - first + 1)
        return _Span(tuple(lows), span.steps, tuple(counts))

    # Transfers ------------------------------------------------------------------------------------------------------

    def _load(self, live: _Live) -> None:
        operator, spec = self.kernel.operator, live.spec
        operand = operator.operands[spec.operand]
        span = live.box
        moved = self.links[spec.name]
        moved.loads += 1
        inside = self._inside(live, span)
        if operand.role != "output" and inside != span:
            box = self._slots(live, span.lows, span.steps, span.counts)
            live.values[box] = operator.padding_value
            live.state[box] = VALUE
        if inside is None:
            return
        target = self._slots(live, inside.lows, inside.steps, inside.counts)
        live.values[target] = self._fetch(live, inside)
        live.state[target] = VALUE
        moved.read_bytes += int(np.prod(inside.counts)) * spec.slot_bytes

    def _fetch(self, live: _Live, box: _Span) -> Array:
        """Values of a box from the buffer's parent."""
        spec = live.spec
        if spec.outer is not None:
            parent = self._alive(spec.outer)
            source = self._slots(parent, box.lows, box.steps, box.counts)
            self._need(parent, source, VALUE)
            return parent.values[source]
        source = _slices(box)
        if spec.operand != self.kernel.operator.output_name:
            return self.homes[spec.operand][source]
        if not self.started[source].all():
            raise VerificationError(f"{spec.name} reads partial sums that were never written{self._place()}")
        return self.partials[source]

    def _store(self, live: _Live, *, final: bool) -> None:
        spec, operator = live.spec, self.kernel.operator
        box = live.box
        source = self._slots(live, box.lows, box.steps, box.counts)
        self._need(live, source, RESULT if final else VALUE)
        moved = self.links[spec.name]
        moved.stores += 1
        element = operator.output.element_bytes if final else spec.slot_bytes
        moved.written_bytes += int(np.prod(box.counts)) * element
        if spec.outer is not None:
            parent = self._alive(spec.outer)
            target = self._slots(parent, box.lows, box.steps, box.counts)
            if final:
                parent.results[target] = live.results[source]
            else:
                parent.values[target] = live.values[source]
            parent.state[target] = RESULT if final else VALUE
        elif final:
            if self.finals[_slices(box)].any():
                raise VerificationError(f"{spec.name} finally writes outputs twice; once is right{self._place()}")
            self.homes[operator.output_name][_slices(box)] = live.results[source]
            self.finals[_slices(box)] = True
        else:
            self.partials[_slices(box)] = live.values[source]
            self.started[_slices(box)] = True

    def _need(self, live: _Live, box: tuple[slice, ...], state: int) -> None:
        if (live.state[box] != state).any():
            what = {VALUE: "a value", RESULT: "a result"}[state]
            raise VerificationError(f"{live.spec.name} is read where it holds no such thing as {what}{self._place()}")

    # Arithmetic -----------------------------------------------------------------------------------------------------

    def _init(self, init: Init) -> None:
        operator, live = self.kernel.operator, self._alive(init.buffer)
        box = self._span(operator.output_name, init.tile)
        target = self._slots(live, box.lows, box.steps, box.counts)
        if init.bias is None:
            live.values[target] = neutral(operator)
        else:
            bias = self._alive(init.bias)
            ((dims, values),) = _drop_singles(operator.dims, [self._operand_tile(bias, init.tile)])
            order = output_dims(operator)
            shape = [values.shape[dims.index(d)] if d in dims else 1 for d in order]
            spread = values.transpose([dims.index(d) for d in order if d in dims]).reshape(shape)
            live.values[target] = np.broadcast_to(spread, live.values[target].shape).astype(operator.accumulate)
        live.state[target] = VALUE

    def _operand_tile(self, live: _Live, tile: Tile) -> tuple[list[str], Array]:
        """An operand's values over the current tile, one array axis a dim; reads only what was written."""
        operand = self.kernel.operator.operands[live.spec.operand]
        span = self._span(live.spec.operand, tile)
        box = self._slots(live, span.lows, span.steps, span.counts)
        self._need(live, box, VALUE)
        dims = [d for d in self.kernel.operator.dims if d in operand.dims]
        ranges = {d: self._range(d, loop) for d, loop in tile.loops}
        strides = [0] * len(dims)
        corner: list[int] = []
        for axis, index in enumerate(operand.index):
            step = live.spec.steps[axis]
            here = index.offset + sum(a * ranges[d][0] for d, a in index.terms)
            corner.append((here - live.box.lows[axis]) // step)
            for d, a in index.terms:
                if ranges[d][1] - ranges[d][0] > 1:
                    strides[dims.index(d)] += a // step * live.values.strides[axis]
        at = live.values[tuple(slice(c, None) for c in corner)]
        shape = [ranges[d][1] - ranges[d][0] for d in dims]
        return dims, as_strided(at, shape, strides, writeable=False)

    def _compute(self, compute: Compute) -> None:
        operator, live = self.kernel.operator, self._alive(compute.output)
        factors = [self._operand_tile(self._alive(name), compute.tile) for name in compute.factors]
        box = self._span(operator.output_name, compute.tile)
        target = self._slots(live, box.lows, box.steps, box.counts)
        self._need(live, target, VALUE)
        axes = output_dims(operator)
        reduced = reduce_tile(operator, _drop_singles(operator.dims, factors), [d for d in axes if d])
        placed = reduced[tuple(slice(None) if d else None for d in axes)]
        live.values[target] = accumulate(operator, live.values[target], placed)

    def _finish(self, live: _Live) -> None:
        operator = self.kernel.operator
        box = live.box
        target = self._slots(live, box.lows, box.steps, box.counts)
        self._need(live, target, VALUE)
        ranges = {d: range(*self._range(d, loop)) for d, loop in live.tile.loops}
        values: Any = live.values[target].copy()
        self.sums[_slices(box)] = values
        for part, inside in _parts(output_dims(operator), values.shape, ranges):
            live.results[target][part] = finish(operator, values[part], inside).reshape(values[part].shape)
        live.state[target] = RESULT


def _parts(
    dims: Sequence[str], shape: Sequence[int], ranges: Mapping[str, range]
) -> Iterator[tuple[tuple[slice, ...], dict[str, range]]]:
    """A box of outputs, sliced along its longest axis: an epilogue works on several copies of 8 B an element."""
    axis = max(range(len(shape)), key=lambda i: shape[i])
    rows = max(1, SLAB_ELEMENTS * shape[axis] // prod(shape)) if dims[axis] else shape[axis]
    for start in range(0, shape[axis], rows):
        piece = slice(start, start + rows)
        inside = {**ranges, dims[axis]: ranges[dims[axis]][piece]} if dims[axis] else dict(ranges)
        yield tuple(piece if i == axis else slice(None) for i in range(len(shape))), inside


def _drop_singles(
    extents: Mapping[str, int], factors: Iterable[tuple[list[str], Array]]
) -> list[tuple[list[str], Array]]:
    """Factors without the axes of dims of extent 1."""
    kept: list[tuple[list[str], Array]] = []
    for dims, values in factors:
        keep = [i for i, d in enumerate(dims) if extents[d] > 1]
        kept.append(
            (
                [dims[i] for i in keep],
                values.reshape([values.shape[i] for i in keep]) if len(keep) < len(dims) else values,
            )
        )
    return kept


def _slices(box: _Span) -> tuple[slice, ...]:
    return tuple(
        slice(low, low + step * (count - 1) + 1, step)
        for low, step, count in zip(box.lows, box.steps, box.counts, strict=True)
    )
