"""The scalar program: the kernel spelled out to loops, integer indices and element accesses, for targets without numpy.

`scalar.spell_out` makes it from a kernel, once for all targets; each target prints it. Two kinds of expression stay apart:
an `Index` counts positions (exact integers, kept as a sum of terms so that what cancels is never printed), a `Value` is
arithmetic on elements in a dtype.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Literal, cast

from planner.emit.index import Condition, Index, Unless, Variable, simplified, variable
from planner.spec.operator import DType, Operator

# Values ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Number:
    """A literal."""

    value: int | float
    dtype: DType


@dataclass(frozen=True, slots=True)
class Local:
    """A named value."""

    name: str
    dtype: DType


@dataclass(frozen=True, slots=True)
class Element:
    """An element of a view: a slot's value, in the view's dtype."""

    view: str
    slots: tuple[Index, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Position:
    """An index as a value."""

    index: Index
    dtype: DType


@dataclass(frozen=True, slots=True)
class Cast:
    """To another dtype: integers wrap, floats round."""

    of: Value
    dtype: DType


Kind = Literal["add", "subtract", "multiply", "divide", "shift_right", "min", "max", "rint"]


@dataclass(frozen=True, slots=True)
class Operation:
    """Arithmetic in a dtype, the same as that of its arguments: integers wrap; divide rounds towards zero for integers."""

    kind: Kind
    of: tuple[Value, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Pick:
    """`yes` if a < b, else `no`; only the one picked is computed."""

    a: Value
    b: Value
    yes: Value
    no: Value

    @property
    def dtype(self) -> DType:
        return self.yes.dtype


Value = Number | Local | Element | Position | Cast | Operation | Pick


# Statements --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Note:
    """A comment."""

    text: str


@dataclass(frozen=True, slots=True)
class For:
    """`for variable in range(start, stop, step)`."""

    variable: str
    start: Index
    stop: Index
    step: int
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Name:
    """Names a position, for all that follows in this body."""

    name: str
    index: Index


@dataclass(frozen=True, slots=True)
class Let:
    """Names a value, for all that follows in this body."""

    name: str
    value: Value


@dataclass(frozen=True, slots=True)
class If:
    """A condition on positions."""

    condition: Condition
    yes: tuple[Statement, ...]
    no: tuple[Statement, ...] = ()


@dataclass(frozen=True, slots=True)
class Enter:
    """A visit of a view with copies begins: it goes on to its next copy."""

    view: str


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a copy: along each axis it starts at an index and goes on in steps."""

    ref: str
    """Name of a tensor or of a view."""
    start: tuple[Index, ...]
    step: tuple[Index, ...]


@dataclass(frozen=True, slots=True)
class Copy:
    """Starts a transfer: `counts` elements along each axis, all positive. `results` are elements in the output's dtype."""

    link: str
    direction: Literal["load", "store"]
    to: Side
    source: Side
    counts: tuple[Index, ...]
    results: bool


@dataclass(frozen=True, slots=True)
class Wait:
    """Waits for the transfers of a link in one direction that were started."""

    link: str
    direction: Literal["load", "store"]


@dataclass(frozen=True, slots=True)
class Fill:
    """Writes a number to `counts` slots along each axis of a view, from slot 0 in steps."""

    view: str
    step: tuple[Index, ...]
    counts: tuple[Index, ...]
    value: Number


@dataclass(frozen=True, slots=True)
class Assign:
    """Writes a slot: a value in the view's dtype, or a result in the output's."""

    view: str
    slots: tuple[Index, ...]
    value: Value
    result: bool = False


@dataclass(frozen=True, slots=True)
class Accumulate:
    """Folds `value` over the loops (variable, how many) into one slot: by sum or by max, in the view's dtype."""

    view: str
    slots: tuple[Index, ...]
    loops: tuple[tuple[str, Index], ...]
    fold: Literal["sum", "max"]
    value: Value


Statement = Note | For | Name | Let | If | Enter | Copy | Wait | Fill | Assign | Accumulate


@dataclass(frozen=True, slots=True)
class Tensor:
    """A whole operand in the backing store, or the partial sums that spill there."""

    name: str
    operand: str
    dtype: DType
    shape: tuple[int, ...]
    kind: Literal["given", "result", "partial"]


@dataclass(frozen=True, slots=True)
class View:
    """A buffer: an array of slots at an offset of an arena. An output's slots hold values or, in their place, results."""

    name: str
    operand: str
    memory: str
    arena: str
    dtype: DType
    shape: tuple[int, ...]
    offset_bytes: int
    size_bytes: int
    copies: int
    ahead: str | None
    """Name of the copy that the next visit's tile is fetched into, during this visit; None if none is."""
    result: DType | None
    """dtype of results; None where the operand is no output."""


@dataclass(frozen=True, slots=True)
class Arena:
    """The bytes of one scope that the plan uses."""

    name: str
    memory: str
    used_bytes: int
    capacity_bytes: int
    alignment: int


@dataclass(frozen=True, slots=True)
class Program:
    """A whole kernel, spelled out."""

    name: str
    operator: Operator
    backing: str
    tensors: tuple[Tensor, ...]
    arenas: tuple[Arena, ...]
    views: tuple[View, ...]
    body: tuple[Statement, ...]

    def view(self, name: str) -> View:
        """The view of that name, or with a copy of that name."""
        return next(v for v in self.views if name in (v.name, v.ahead))

    def array(self, name: str) -> Tensor | View:
        """The tensor or view of that name."""
        return next((t for t in self.tensors if t.name == name), None) or self.view(name)


def branch(condition: Condition, yes: Sequence[Statement], no: Sequence[Statement] = ()) -> list[Statement]:
    """`yes` where the condition holds, else `no`; decided now if it is known."""
    known = simplified(condition)
    if isinstance(known, bool):
        return list(yes if known else no)
    if not yes:
        return [If(Unless(known), tuple(no))] if no else []
    return [If(known, tuple(yes), tuple(no))]


def named(name: str, before: list[Statement], index: Index) -> Index:
    """The position under a name, which a statement in `before` gives it; itself if it is a constant."""
    if index.fixed:
        return index
    before.append(Name(name, index))
    return variable(name)


def walk(body: Sequence[Statement]) -> Iterable[Statement]:
    """Every statement, outermost first."""
    for statement in body:
        yield statement
        match statement:
            case For(body=inner):
                yield from walk(inner)
            case If(yes=yes, no=no):
                yield from walk(yes)
                yield from walk(no)
            case _:
                pass


def without_idle_waits(body: Sequence[Statement]) -> tuple[Statement, ...]:
    """The same without waits for links on which nothing ever moves: those of an input of which only padding is read."""
    moving = {(s.link, s.direction) for s in walk(body) if isinstance(s, Copy)}
    return _moving(body, moving)


def _moving(body: Sequence[Statement], moving: set[tuple[str, str]]) -> tuple[Statement, ...]:
    kept: list[Statement] = []
    for statement in body:
        match statement:
            case Wait(link, direction) if (link, direction) not in moving:
                continue
            case For(name, start, stop, step, inner):
                kept.append(For(name, start, stop, step, _moving(inner, moving)))
            case If(condition, yes, no):
                kept.append(If(condition, _moving(yes, moving), _moving(no, moving)))
            case _:
                kept.append(statement)
    return tuple(kept)


def without_unused(body: Sequence[Statement]) -> tuple[Statement, ...]:
    """The same without positions that are named and never used."""
    used: set[str] = set()
    return _pruned(body, used)


def _pruned(body: Sequence[Statement], used: set[str]) -> tuple[Statement, ...]:
    """From the last statement to the first: whatever is used comes after its name. Adds what is used here to `used`."""
    kept: list[Statement] = []
    for statement in reversed(body):
        match statement:
            case Name(name, index):
                if name not in used:
                    continue
                used.discard(name)  # what comes before means another one of this name
                _note(index, used)
            case For(name, start, stop, step, inner):
                statement = For(name, start, stop, step, _pruned(inner, used))
                _note((start, stop), used)
            case If(condition, yes, no):
                statement = If(condition, _pruned(yes, used), _pruned(no, used))
                _note(condition, used)
            case _:
                _note(statement, used)
        kept.append(statement)
    return tuple(reversed(kept))


def _note(part: object, used: set[str]) -> None:
    """Adds every variable in an expression or statement."""
    if isinstance(part, Variable):
        used.add(part.name)
    elif isinstance(part, tuple):
        for item in cast(tuple[object, ...], part):
            _note(item, used)
    elif is_dataclass(part):
        for each in fields(part):
            _note(getattr(part, each.name), used)
