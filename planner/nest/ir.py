"""The kernel as a small tree: what interpreter and emitters work on.

    Kernel   arenas (one per scope), buffers at addresses, and a body
    For      steps through the current tile of a dim; `end` is clamped to the enclosing tile's, at every level
    Visit    the lifetime of a buffer: it is filled, used by the body, stored where it is an output's, and dies
    Load     fetches a box from the parent; points outside the operand read the padding value and are not fetched
    Init     starts accumulators from the bias or from the reduction's neutral element
    Compute  reduces the points of the current tile into the accumulators
    Finish   runs the epilogue over finished accumulators, in place
    Store    moves a box of the output to the parent

Positions are absolute: a loop variable is an index of its dim, so padding and tails never depend on the nesting. A `Tile` says
for each dim which loop's current range applies; what a statement moves follows from it and from the operand's index.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

from planner.errors import InternalError
from planner.spec.operator import Operator


@dataclass(frozen=True, slots=True)
class Arena:
    """The bytes of one scope."""

    memory: str
    capacity_bytes: int


@dataclass(frozen=True, slots=True)
class Buffer:
    """A typed view into an arena. Slots of an output hold accumulators, or results in their first bytes."""

    operand: str
    memory: str
    parent: str
    outer: str | None
    """Name of the operand's buffer in the parent; None if the parent is the backing store."""
    dtype: str
    slot_bytes: int
    shape: tuple[int, ...]
    steps: tuple[int, ...]
    """Lattice step per axis: neighbouring slots lie that many indices apart."""
    offset_bytes: int
    size_bytes: int
    copies: int
    alignment: int

    @property
    def name(self) -> str:
        return f"{self.operand}@{self.memory}"


@dataclass(frozen=True, slots=True)
class Tile:
    """The current range of each dim: the loop that sets it, None for the whole extent."""

    loops: tuple[tuple[str, str | None], ...]

    def loop(self, dim: str) -> str | None:
        """The loop variable of a dim's current range."""
        return dict(self.loops)[dim]


@dataclass(frozen=True, slots=True)
class When:
    """A condition on reduction loops: all at their first iteration, all at their last, or the opposite of first."""

    kind: Literal["always", "first", "not_first", "last"]
    loops: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class For:
    """`for var in range(start of outer, end of outer, tile)`; the range of var ends at `min(var + tile, end of outer)`."""

    var: str
    dim: str
    tile: int
    outer: str | None
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Visit:
    """One filling of a buffer; `tile` is what it holds."""

    buffer: str
    tile: Tile
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Load:
    """Fetch the buffer's box from its parent, when the condition holds."""

    buffer: str
    when: When


@dataclass(frozen=True, slots=True)
class Init:
    """Start the accumulators of `tile` from the bias buffer, or from the neutral element."""

    buffer: str
    bias: str | None
    tile: Tile
    when: When


@dataclass(frozen=True, slots=True)
class Compute:
    """Reduce all points of `tile` into the accumulators of `output`, reading the innermost buffers of the factors."""

    output: str
    factors: tuple[str, ...]
    tile: Tile


@dataclass(frozen=True, slots=True)
class Finish:
    """Turn the buffer's accumulators into results, when the condition holds."""

    buffer: str
    when: When


@dataclass(frozen=True, slots=True)
class Store:
    """Move the buffer's box to its parent: results when `final` holds, partial sums otherwise."""

    buffer: str
    final: When


Statement = For | Visit | Load | Init | Compute | Finish | Store


@dataclass(frozen=True, slots=True)
class Kernel:
    """A whole kernel."""

    operator: Operator
    backing: str
    arenas: tuple[Arena, ...]
    buffers: tuple[Buffer, ...]
    body: tuple[Statement, ...]

    def buffer(self, name: str) -> Buffer:
        """The buffer of that name."""
        return next(b for b in self.buffers if b.name == name)

    def verify(self) -> None:
        """Loops, tiles and buffers are defined where they are used, and fit each other; InternalError otherwise."""
        _verify(_Scope(self, {}, frozenset()), self.body)

    def __str__(self) -> str:
        return "\n".join(_lines(self.body, 0))


def walk(body: Sequence[Statement]) -> Iterator[Statement]:
    """Every statement, outermost first."""
    for statement in body:
        yield statement
        if isinstance(statement, For | Visit):
            yield from walk(statement.body)


def spine(body: Sequence[Statement]) -> Iterator[For | Visit]:
    """The loops and visits of a nest, outermost first."""
    return (statement for statement in walk(body) if isinstance(statement, For | Visit))


@dataclass(frozen=True, slots=True)
class _Scope:
    """What may be named at one place of a kernel: loops with their dims, and buffers that are alive."""

    kernel: Kernel
    loops: dict[str, str]
    live: frozenset[str]

    def need(self, holds: bool, complaint: str) -> None:
        if not holds:
            raise InternalError(f"kernel of {self.kernel.operator.name}: {complaint}")

    def alive(self, *buffers: str) -> None:
        for name in buffers:
            self.need(name in self.live, f"{name} is used outside of its visits")

    def runs(self, loop: str | None, dim: str) -> None:
        """A range of `dim` is set by one of the loops around, over that dim."""
        self.need(loop is None or self.loops.get(loop) == dim, f"{loop} is no loop over {dim} around here")

    def tile(self, tile: Tile) -> None:
        self.need(
            {d for d, _ in tile.loops} == {*self.kernel.operator.dims}, f"tile {tile} does not name every dim once"
        )
        for dim, loop in tile.loops:
            self.runs(loop, dim)

    def condition(self, when: When) -> None:
        for loop in when.loops:
            self.need(loop in self.loops, f"{loop} is in a condition and is no loop around here")


def _verify(scope: _Scope, body: tuple[Statement, ...]) -> None:
    for statement in body:
        match statement:
            case For(var, dim, tile, outer, inner):
                scope.need(dim in scope.kernel.operator.dims and tile >= 1, f"loop {var} over {dim} in steps of {tile}")
                scope.need(var not in scope.loops, f"loop {var} is inside of another {var}")
                scope.runs(outer, dim)
                _verify(_Scope(scope.kernel, {**scope.loops, var: dim}, scope.live), inner)
            case Visit(name, tile, inner):
                declared = [b for b in scope.kernel.buffers if b.name == name]
                scope.need(len(declared) == 1, f"{name} is visited and declared {len(declared)} times")
                scope.need(name not in scope.live, f"{name} is visited inside of its own visit")
                scope.tile(tile)
                scope.alive(*(b.outer for b in declared if b.outer is not None))
                _verify(_Scope(scope.kernel, scope.loops, scope.live | {name}), inner)
            case Load(name, when) | Finish(name, when) | Store(name, when):
                scope.alive(name)
                scope.condition(when)
            case Init(name, bias, tile, when):
                scope.alive(name, *([bias] if bias is not None else []))
                scope.tile(tile)
                scope.condition(when)
            case Compute(name, factors, tile):
                scope.alive(name, *factors)
                scope.tile(tile)
            case _:
                assert_never(statement)


def _lines(body: tuple[Statement, ...], depth: int) -> Iterator[str]:
    pad = "  " * depth
    for statement in body:
        match statement:
            case For():
                outer = statement.outer or "all"
                yield f"{pad}for {statement.var} in {statement.dim} of {outer} step {statement.tile}"
                yield from _lines(statement.body, depth + 1)
            case Visit():
                yield f"{pad}visit {statement.buffer}"
                yield from _lines(statement.body, depth + 1)
            case Load():
                yield f"{pad}load {statement.buffer}{_condition(statement.when)}"
            case Init():
                yield f"{pad}init {statement.buffer} from {statement.bias or 'neutral'}{_condition(statement.when)}"
            case Compute():
                yield f"{pad}compute {statement.output} from {', '.join(statement.factors)}"
            case Finish():
                yield f"{pad}finish {statement.buffer}{_condition(statement.when)}"
            case Store():
                yield f"{pad}store {statement.buffer}, final{_condition(statement.final)}"
            case _:
                assert_never(statement)


def _condition(when: When) -> str:
    if when.kind == "always" or not when.loops:
        return ""
    return f" if {when.kind.replace('_', ' ')} of {', '.join(when.loops)}"
