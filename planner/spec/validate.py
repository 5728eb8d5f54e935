"""Rules that need more than one field: one generator a rule, which yields a `Fault` with place, value, limit and remedy.

Rules run in stages, since later ones take for granted what earlier ones assert; within a stage all complaints are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from itertools import pairwise
from keyword import iskeyword
from typing import TYPE_CHECKING

from planner.spec.complaints import Fault, Placed, RuleError, no_such, refusal

if TYPE_CHECKING:
    from planner.spec.affine import Affine
    from planner.spec.machine import Machine, Memory
    from planner.spec.operator import DType, Operand, Operator, TileRule

Rule = Callable[["Operator"], Iterator[Fault]]
ROLES = ("input", "weight", "bias", "output")


def check_operator(operator: Operator) -> None:
    """All rules that an operator must obey on its own. RuleError (a ValueError)."""
    stages: tuple[tuple[Rule, ...], ...] = (
        (_names, _roles),
        (_dims_exist,),
        (_dims_used, _output_index, _bias_index, _ranges),
        (_dtypes, _maximum, _requantise, _clip, _average, _tile_rules),
    )
    for stage in stages:
        if faults := [fault for rule in stage for fault in rule(operator)]:
            raise RuleError(*faults)


def check_against(operator: Operator, machine: Machine) -> None:
    """Rules that need the machine too: every operand has a path, every constraint names a buffer. SpecError."""
    if wrong := list(_paths(operator, machine)):
        raise refusal(wrong)
    paths = {name: machine.path(name, operand) for name, operand in operator.operands.items()}
    buffers = {f"{name}@{scope.name}": scope.name for name, path in paths.items() for scope in path}
    if wrong := [*_places(operator, machine, buffers), *_order(operator, list(buffers))]:
        raise refusal(wrong)


def _paths(operator: Operator, machine: Machine) -> Iterator[Placed]:
    """Scopes hold each operand, and lie above one another."""
    numbers = {memory.name: i for i, memory in enumerate(machine.memories)}
    for name, operand in operator.operands.items():
        holding = machine.holding(name, operand)
        if not holding:
            yield operator.origin.at("operands", name), unheld(machine, name, operand)
        for outer, inner in pairwise(holding):
            if outer.name not in machine.ancestors(inner.name):
                yield machine.origin.at("memories", numbers[inner.name], "holds"), apart(name, operand, outer, inner)


def unheld(machine: Machine, name: str, operand: Operand) -> str:
    """What to say of an operand that no scope holds."""
    held = "; ".join(f"{m.name} holds {', '.join(m.holds or ('all',))}" for m in machine.scopes) or "it has no scopes"
    return (
        f"no scope of machine {machine.name} holds operand {name} (role {operand.role}): {held}; add {operand.role!r} to the "
        "holds of one of them"
    )


def apart(name: str, operand: Operand, one: Memory, other: Memory) -> str:
    """What to say of an operand that scopes on different branches hold."""
    return (
        f"operand {name} (role {operand.role}) is held by {one.name} and by {other.name}, and neither lies above the other; "
        "take it out of the holds of one of them"
    )


def _places(operator: Operator, machine: Machine, buffers: dict[str, str]) -> Iterator[Placed]:
    """Every place that `constraints.tiles` names is a buffer, or an operand or a memory that has one, or `*`."""
    scopes = {scope.name for scope in machine.scopes}
    known = ["*", *operator.operands, *dict.fromkeys(buffers.values()), *buffers]
    for place in operator.constraints.tiles:
        written = operator.origin.at("constraints", "tiles", place)
        if place in operator.operands and place in scopes:
            why = f"{place!r} is both an operand and a memory; write {place}@MEMORY or OPERAND@{place}"
            yield written, f"constraints.tiles: {why}"
        elif place not in known:
            yield written, f"constraints.tiles: {no_such('buffer, memory or operand', place, known)}"


def _order(operator: Operator, buffers: list[str]) -> Iterator[Placed]:
    """`constraints.order` names buffers, each once, and an operand's outer buffer before its inner one."""
    order = operator.constraints.order
    for i, place in enumerate(order):
        written = operator.origin.at("constraints", "order", i)
        if place not in buffers:
            yield written, f"constraints.order: {no_such('buffer', place, buffers)}"
        if place in order[:i]:
            yield written, f"constraints.order names {place} twice; keep one"
        for later in order[i + 1 :]:
            same = later.partition("@")[0] == place.partition("@")[0]
            if same and {place, later} <= {*buffers} and buffers.index(later) < buffers.index(place):
                yield written, f"constraints.order puts {place} above {later}, its outer buffer; swap the two"


def _names(operator: Operator) -> Iterator[Fault]:
    """Indices name dims, places name operands: each must be readable there. A role's name is for that role."""
    for name in operator.dims:
        if not (name.isascii() and name.isidentifier()) or iskeyword(name):
            why = (
                f"dims: {name!r} is no name for an index; use letters, digits and _, no digit first, no word of Python"
            )
            yield Fault(("dims", name), why)
    for name in operator.operands:
        if not name or "@" in name or name == "*":
            why = f"operands: {name!r} is no name, since places are written operand@memory or *; use letters and digits"
            yield Fault(("operands", name), why)
    for name, operand in operator.operands.items():
        if name in ROLES and name != operand.role:
            why = f"operand {name} has role {operand.role}; a machine that holds {name!r} would mean both: rename it"
            yield Fault(("operands", name), why)


def _roles(operator: Operator) -> Iterator[Fault]:
    """One output, at most one bias, and something to compute from."""
    named = {role: [n for n, o in operator.operands.items() if o.role == role] for role in ROLES}
    outputs, biases = named["output"], named["bias"]
    if len(outputs) != 1:
        found = ", ".join(outputs) or "none"
        why = f"operator {operator.name} needs exactly one operand with role output; it has {found}"
        yield Fault((), why)
    if len(biases) > 1:
        why = f"operator {operator.name} has {len(biases)} biases, {', '.join(biases)}; keep one"
        yield Fault(("operands", biases[1]), why)
    if not operator.factors:
        why = f"operator {operator.name} has no operand with role input or weight; it needs at least one"
        yield Fault(("operands",), why)
    if operator.reduce == "max" and biases:
        why = f"operator {operator.name} reduces by max and has bias {biases[0]}; a maximum takes no bias"
        yield Fault(("operands", biases[0]), why)


def _dims_exist(operator: Operator) -> Iterator[Fault]:
    """Every dim that an index names is declared."""
    for name, operand in operator.operands.items():
        for axis, index in enumerate(operand.index):
            for dim in index.dims:
                if dim not in operator.dims:
                    why = f"operand {name}, axis {axis}: index {index}: {no_such('dim', dim, operator.dims)}"
                    yield Fault(("operands", name), why)


def _dims_used(operator: Operator) -> Iterator[Fault]:
    """A dim that no operand depends on would only repeat the same work."""
    used = {dim for operand in operator.operands.values() for dim in operand.dims}
    for dim, extent in operator.dims.items():
        if dim not in used and extent > 1:
            why = f"dim {dim} of extent {extent} is in no operand's index; use it or take it out"
            yield Fault(("dims", dim), why)


def _output_index(operator: Operator) -> Iterator[Fault]:
    """Each axis of the output is a dim of its own, or 0 where it has one element. Dims of extent 1 count for nothing."""
    name, output = operator.output_name, operator.output
    seen: set[str] = set()
    for axis, (index, size) in enumerate(zip(output.index, output.shape, strict=True)):
        terms = [(d, a) for d, a in index.terms if operator.dims[d] > 1]
        where = f"operand {name}, axis {axis}: index {index}"
        place = ("operands", name)
        extent = operator.dims[terms[0][0]] if terms else 1
        if index.offset or len(terms) > 1 or any(a != 1 for _, a in terms):
            yield Fault(place, f"{where} must be one dim by itself (or 0), so that each element is written once")
        elif terms and terms[0][0] in seen:
            yield Fault(place, f"{where} repeats dim {terms[0][0]}, so that most elements are never written")
        elif extent != size:
            why = f"{where} runs over {extent} and the shape has {size}; make the two equal"
            yield Fault(("operands", name), why)
        seen |= {d for d, _ in terms}


def _bias_index(operator: Operator) -> Iterator[Fault]:
    """A bias starts the sum, so it cannot depend on what is summed over."""
    if operator.bias_name is None:
        return
    for axis, index in enumerate(operator.operands[operator.bias_name].index):
        for dim in index.dims:
            if dim in operator.reduction_dims and operator.dims[dim] > 1:
                why = (
                    f"operand {operator.bias_name}, axis {axis}: index {index} uses reduction dim {dim}, and a bias starts "
                    f"the sum; use dims of the output only"
                )
                yield Fault(("operands", operator.bias_name), why)


def _ranges(operator: Operator) -> Iterator[Fault]:
    """Indices stay in their shapes, but for an input's windows, which may reach into the padding."""
    for name, operand in operator.operands.items():
        if operand.role == "output":
            continue
        for axis, (index, size) in enumerate(zip(operand.index, operand.shape, strict=True)):
            why = _range(operator, index, size, padded=operand.role == "input" and not _is_plain(index))
            if why is not None:
                low, high = index.reach(operator.dims)
                where = f"operand {name}, axis {axis}: index {index} reaches {low}..{high} but the shape has {size}"
                yield Fault(("operands", name), f"{where}; {why}")


def _range(operator: Operator, index: Affine, size: int, *, padded: bool) -> str | None:
    """What is wrong with an index on an axis of `size`, and the remedy; None if nothing is."""
    low, high = index.reach(operator.dims)
    if padded:
        return "nothing but padding is read: check offset and shape" if high < 0 or low >= size else None
    if _is_plain(index) and high + 1 != size:
        return f"make the shape {high + 1} or the extent of {index.dims[0]} {size}"
    if low < 0:
        return f"only an input's windows may be padded: add {-low} to the index"
    if high >= size:
        return f"only an input's windows may be padded: make the shape {high + 1}, or an extent smaller"
    return None


def _is_plain(index: Affine) -> bool:
    """Whether an index is a dim by itself: it has no window that could be padded, and no stride that skips elements."""
    return index.offset == 0 and len(index.terms) == 1 and index.terms[0][1] == 1


def _holds(accumulate: DType, dtype: DType) -> bool:
    """Whether an accumulator keeps the values of an operand. Floats take integers up to 32 bits, rounded."""
    from planner.spec.operator import DTYPE_BYTES

    wide, narrow = DTYPE_BYTES[accumulate], DTYPE_BYTES[dtype]
    if accumulate.startswith("float"):
        return narrow <= wide if dtype.startswith("float") else narrow <= 4
    if dtype.startswith("float"):
        return False
    match accumulate.startswith("u"), dtype.startswith("u"):
        case (True, False):
            return False
        case (False, True):
            return narrow < wide
        case _:
            return narrow <= wide


def _dtypes(operator: Operator) -> Iterator[Fault]:
    """The accumulator keeps every operand's values, and the result fits in the accumulator's place."""
    accumulate = operator.accumulate
    for name, operand in operator.operands.items():
        place = ("operands", name)
        if operand.role == "output":
            slot = operator.buffer_element_bytes(name)
            if operand.element_bytes > slot:
                why = (
                    f"operand {name} is {operand.dtype}, {operand.element_bytes} B, wider than accumulate {accumulate}, {slot} "
                    f"B; results stay in the accumulator's place: accumulate in {operand.dtype}"
                )
                yield Fault(place, why)
            elif operand.dtype.startswith("float") and not accumulate.startswith("float"):
                yield Fault(
                    place, f"operand {name} is {operand.dtype} and accumulate is {accumulate}; make both floats"
                )
        elif not _holds(accumulate, operand.dtype):
            why = f"operand {name} is {operand.dtype}, whose values accumulate {accumulate} does not hold"
            yield Fault(place, f"{why}; accumulate in {_wider(accumulate, operand.dtype)}")


def _wider(accumulate: DType, dtype: DType) -> DType:
    """The narrowest accumulator, of 32 bits or more, that holds both."""
    choices: tuple[DType, ...] = ("int32", "uint32", "int64", "float32")
    for choice in choices:
        if _holds(choice, dtype) and _holds(choice, accumulate):
            return choice
    return "float64"


def _maximum(operator: Operator) -> Iterator[Fault]:
    """Under a maximum, padding is the least value of the input itself: combined with a second operand it would not be."""
    if operator.reduce != "max" or len(operator.factors) == 1:
        return
    for name, operand in operator.factors.items():
        for axis, (index, size) in enumerate(zip(operand.index, operand.shape, strict=True)):
            low, high = index.reach(operator.dims)
            if low < 0 or high >= size:
                why = (
                    f"operand {name}, axis {axis}: index {index} reaches {low}..{high}, beyond the shape {size}; a maximum "
                    f"over several operands takes no padding: pad the tensor itself"
                )
                yield Fault(("operands", name), why)


def _requantise(operator: Operator) -> Iterator[Fault]:
    """Requantising is integer arithmetic in 64 bits, whose products must not wrap."""
    if operator.epilogue.requantise is not None and operator.accumulate in ("float16", "float32", "float64"):
        why = f"epilogue.requantise needs an integer accumulator and accumulate is {operator.accumulate}"
        yield Fault(("epilogue", "requantise"), f"{why}; accumulate in int32 or take it out")
    elif operator.epilogue.requantise is not None and operator.accumulate in ("uint32", "int64"):
        why = f"epilogue.requantise multiplies in 64 bits, too few for accumulate {operator.accumulate}"
        yield Fault(("epilogue", "requantise"), f"{why}; accumulate in int32")


def _clip(operator: Operator) -> Iterator[Fault]:
    """The bounds of a clip are in order, and integers where values are."""
    clip = operator.epilogue.clip
    if clip is None:
        return
    low, high = clip
    if low > high:
        why = f"epilogue.clip is [{low}, {high}]; the first must not exceed the second: swap them"
        yield Fault(("epilogue", "clip"), why)
    if not operator.accumulate.startswith("float"):
        for bound in clip:
            if bound != int(bound) or not -(2**63) <= bound < 2**63:
                why = f"epilogue.clip has bound {bound} and accumulate is {operator.accumulate}; write an int64"
                yield Fault(("epilogue", "clip"), why)


def _average(operator: Operator) -> Iterator[Fault]:
    """A mean is over reduction dims, of an input whose windows alone they make up."""
    average = operator.epilogue.average
    if average is None:
        return
    if average.operand not in operator.factors:
        why = f"epilogue.average.operand: {no_such('input', average.operand, operator.factors)}"
        yield Fault(("epilogue", "average"), why)
        return
    for dim in average.dims:
        if dim not in operator.reduction_dims:
            known = [d for d in operator.dims if d in operator.reduction_dims]
            yield Fault(("epilogue", "average"), f"epilogue.average.dims: {no_such('reduction dim', dim, known)}")
    if average.valid:
        yield from _valid_average(operator, average.operand, average.dims)


def _valid_average(operator: Operator, name: str, dims: tuple[str, ...]) -> Iterator[Fault]:
    """To count the points inside the operand, axes must be independent: a window dim is on one axis, beside output dims."""
    place = ("epilogue", "average")
    windows = [index for index in operator.operands[name].index if {*index.dims} & {*dims}]
    for dim in dims:
        if sum(dim in index.dims for index in windows) > 1:
            yield Fault(
                place, f"epilogue.average.dims: {dim} is on several axes of {name}; with valid, it may be on one"
            )
    for index in windows:
        for dim in index.dims:
            if dim in operator.reduction_dims and dim not in dims:
                yield Fault(place, f"epilogue.average.dims: index {index} of {name} also sums over {dim}; add {dim}")


def _tile_rules(operator: Operator) -> Iterator[Fault]:
    """Tile rules name dims, and leave at least one tile size."""
    for place, rules in operator.constraints.tiles.items():
        for dim, rule in rules.items():
            where, path = f"constraints.tiles, {place}, {dim}", ("constraints", "tiles", place, dim)
            if dim not in operator.dims:
                yield Fault(path, f"{where}: {no_such('dim', dim, operator.dims)}")
            elif why := _one_tile_rule(rule, operator.dims[dim]):
                yield Fault(path, f"{where}: {why}")


def _one_tile_rule(rule: TileRule, extent: int) -> str | None:
    """Why no tile size of a dim obeys a rule; None if one does."""
    low, high, multiple = rule.minimum or 1, min(rule.maximum or extent, extent), rule.multiple_of or 1
    if low > extent:
        return f"minimum {low} exceeds the extent {extent}; lower it"
    if low > high:
        return f"minimum {low} exceeds maximum {high}; widen the range"
    if high // multiple * multiple < low:
        return (
            f"no multiple of {multiple} lies in {low}..{high} (extent {extent}); lower multiple_of or widen the range"
        )
    if rule.equals is None:
        return None
    if rule.equals > extent:
        return f"tile {rule.equals} is outside 1..{extent}, the extent; lower it"
    if not low <= rule.equals <= high:
        return f"tile {rule.equals} is outside {low}..{high}, the minimum and maximum; drop one of them"
    if rule.equals % multiple:
        return f"equals {rule.equals} is no multiple of {multiple}, as multiple_of demands; drop one of them"
    return None


def check_machine(machine: Machine) -> None:
    """Rules of a machine: the memories form a tree below the backing store. RuleError (a ValueError)."""
    if faults := [*_backing(machine), *_tree(machine), *_held(machine)]:
        raise RuleError(*faults)


def _backing(machine: Machine) -> Iterator[Fault]:
    """The first memory is below nothing, holds everything and is never full."""
    backing = machine.backing
    given = {
        "parent": backing.parent is not None,
        "capacity": backing.capacity is not None,
        "holds": backing.holds is not None,
        "double_buffered": backing.double_buffered,
    }
    if any(given.values()):
        extra = ", ".join(field for field, there in given.items() if there)
        takes = "it takes no parent and no capacity, holds everything and has no second copies"
        yield Fault(
            ("memories", 0), f"the first memory, {backing.name}, is the backing store: {takes}; take out {extra}"
        )


def _tree(machine: Machine) -> Iterator[Fault]:
    """Every scope has a name of its own, a parent that is declared above it, and a capacity."""
    seen = [machine.backing.name]
    for i, scope in enumerate(machine.scopes, 1):
        place = ("memories", i)
        if scope.name in seen:
            yield Fault((), f"two memories are named {scope.name}; rename one")
        if scope.parent is None:
            yield Fault(place, f"memory {scope.name} has no parent; name one of: {', '.join(seen)}")
        elif scope.parent not in seen:
            why = f"memory {scope.name}: parent {no_such('memory declared above it', scope.parent, seen)}"
            yield Fault(place, why)
        if scope.capacity is None:
            yield Fault(place, f"memory {scope.name} has no capacity; write for instance capacity: 32KiB")
        seen.append(scope.name)


def _held(machine: Machine) -> Iterator[Fault]:
    """What a scope holds are roles or names of operands. Any name may be an operand's; a misspelt role is not."""
    for i, scope in enumerate(machine.scopes, 1):
        if scope.holds is None:
            continue
        if not scope.holds:
            why = f"memory {scope.name} holds nothing; leave holds out if it holds all operands, or take the memory out"
            yield Fault(("memories", i), why)
        for j, name in enumerate(scope.holds):
            if role := _near_role(name):
                yield Fault(("memories", i), f"memory {scope.name} holds {name!r}; the role is {role!r}")
            if name in scope.holds[:j]:
                yield Fault(("memories", i), f"memory {scope.name} holds {name!r} twice; keep one")


def _near_role(name: str) -> str | None:
    """The role that a name all but is, such as `inputs` or `Input`; None for a role itself, or anything else."""
    if name in ROLES:
        return None
    near: Iterable[str] = get_close_matches(name.lower(), ROLES, 1, 0.8)
    return next(iter(near), None)
