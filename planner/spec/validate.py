"""Checks of an operator that need more than one field: one function a rule, each raising ValueError with the remedy."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING

from planner.errors import SpecError

if TYPE_CHECKING:
    from planner.spec.affine import Affine
    from planner.spec.machine import Machine
    from planner.spec.operator import Operator, TileRule


def check_operator(operator: Operator) -> None:
    """All rules that an operator must obey on its own, in turn."""
    for rule in (_roles, _dims_exist, _dims_used, _output_index, _bias_index, _ranges, _dtypes, _epilogue, _tile_rules):
        rule(operator)


def check_against(operator: Operator, machine: Machine) -> None:
    """Rules that need the machine too: every operand has a path, every constraint names a buffer. SpecError."""
    buffers: dict[str, tuple[str, str]] = {}
    for name, operand in operator.operands.items():
        try:
            path = machine.path(name, operand)
        except ValueError as error:
            raise SpecError(str(error)) from None
        buffers |= {f"{name}@{scope.name}": (name, scope.name) for scope in path}
    places = {"*", *buffers, *(operand for operand, _ in buffers.values()), *(scope for _, scope in buffers.values())}
    for place in operator.constraints.tiles:
        if place not in places:
            raise SpecError(
                f"constraints.tiles names {place!r}, {_no_such('buffer, memory or operand', place, places)}"
            )
    order = operator.constraints.order
    for place in order:
        if place not in buffers:
            raise SpecError(f"constraints.order names {place!r}, {_no_such('buffer', place, buffers)}")
    if len(set(order)) != len(order):
        raise SpecError(f"constraints.order names a buffer twice: {', '.join(order)}")
    _order_respects_paths(order, list(buffers))


def _order_respects_paths(order: tuple[str, ...], buffers: list[str]) -> None:
    for i, place in enumerate(order):
        operand = place.split("@")[0]
        for later in order[i + 1 :]:
            if later.split("@")[0] == operand and buffers.index(later) < buffers.index(place):
                raise SpecError(f"constraints.order puts {place} above {later}, its outer buffer; swap the two")


def _no_such(kind: str, name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"and there is no such {kind}; {hint}known: {', '.join(names)}"


def _roles(operator: Operator) -> None:
    count = {role: [n for n, o in operator.operands.items() if o.role == role] for role in ("output", "bias")}
    if len(count["output"]) != 1:
        found = ", ".join(count["output"]) or "none"
        raise ValueError(f"operator {operator.name} needs exactly one operand with role output; it has {found}")
    if len(count["bias"]) > 1:
        raise ValueError(
            f"operator {operator.name} has {len(count['bias'])} biases, {', '.join(count['bias'])}; keep one"
        )
    if not operator.factors:
        raise ValueError(f"operator {operator.name} has no operand with role input or weight; it needs at least one")
    if operator.reduce == "max" and count["bias"]:
        raise ValueError(
            f"operator {operator.name} reduces by max and has bias {count['bias'][0]}; a maximum takes no bias"
        )


def _dims_exist(operator: Operator) -> None:
    for name, operand in operator.operands.items():
        for axis, index in enumerate(operand.index):
            for dim in index.dims:
                if dim not in operator.dims:
                    why = _no_such("dim", dim, operator.dims)
                    raise ValueError(f"operand {name}, axis {axis}: index {index} names dim {dim!r}, {why}")


def _dims_used(operator: Operator) -> None:
    used = {dim for operand in operator.operands.values() for dim in operand.dims}
    for dim, extent in operator.dims.items():
        if dim not in used and extent > 1:
            raise ValueError(f"dim {dim} of extent {extent} is in no operand's index; use it or take it out")


def _output_index(operator: Operator) -> None:
    name, output = operator.output_name, operator.output
    seen: set[str] = set()
    for axis, (index, size) in enumerate(zip(output.index, output.shape, strict=True)):
        terms = [(d, a) for d, a in index.terms if operator.dims[d] > 1]
        where = f"operand {name}, axis {axis}: index {index}"
        if index.offset or len(terms) > 1 or any(a != 1 for _, a in terms):
            raise ValueError(f"{where} must be one dim by itself (or 0), so that each output element is written once")
        extent = operator.dims[terms[0][0]] if terms else 1
        if extent != size:
            raise ValueError(f"{where} runs over {extent} and the shape has {size}; make the two equal")
        if terms and terms[0][0] in seen:
            raise ValueError(f"{where} repeats dim {terms[0][0]}, so that most elements are never written")
        seen |= {d for d, _ in terms}


def _bias_index(operator: Operator) -> None:
    if operator.bias_name is None:
        return
    reducing = sorted(operator.operands[operator.bias_name].dims & operator.reduction_dims)
    if any(operator.dims[d] > 1 for d in reducing):
        raise ValueError(
            f"operand {operator.bias_name}: its index uses reduction dim {reducing[0]}; a bias starts the sum"
        )


def _span(index: Affine, dims: dict[str, int]) -> tuple[int, int]:
    low = index.offset + sum(min(a * (dims[d] - 1), 0) for d, a in index.terms)
    high = index.offset + sum(max(a * (dims[d] - 1), 0) for d, a in index.terms)
    return low, high


def _ranges(operator: Operator) -> None:
    for name, operand in operator.operands.items():
        for axis, (index, size) in enumerate(zip(operand.index, operand.shape, strict=True)):
            low, high = _span(index, operator.dims)
            where = f"operand {name}, axis {axis}: index {index} reaches {low}..{high} but the shape has {size}"
            if operand.role == "input" and _is_padded(index):
                if high < 0 or low >= size:
                    raise ValueError(f"{where}: nothing but padding is read; check offset and shape")
            elif low < 0 or high >= size:
                raise ValueError(
                    f"{where}; only an input's windows may be padded: make the shape {high + 1} or change dims"
                )
            elif high < size - 1 and _is_plain(index):
                raise ValueError(f"{where}; make the shape {high + 1}, or the extent of {index.dims[0]} {size}")


def _is_padded(index: Affine) -> bool:
    """Whether an index may leave the shape: a lone dim with no offset has no window to pad."""
    return index.offset != 0 or len(index.terms) > 1 or any(a != 1 for _, a in index.terms)


def _is_plain(index: Affine) -> bool:
    return index.offset == 0 and len(index.terms) == 1 and index.terms[0][1] == 1


def _dtypes(operator: Operator) -> None:
    accumulate_is_float = operator.accumulate.startswith("float")
    for name, operand in operator.operands.items():
        if operand.dtype.startswith("float") and not accumulate_is_float:
            raise ValueError(
                f"operand {name} is {operand.dtype} and accumulate is {operator.accumulate}; accumulate in float"
            )
        if operand.dtype == "int64" and accumulate_is_float:
            raise ValueError(f"operand {name} is int64 and accumulate is {operator.accumulate}; accumulate in int64")
    output, slot = operator.output, operator.buffer_element_bytes(operator.output_name)
    if output.element_bytes > slot:
        raise ValueError(
            f"operand {operator.output_name} is {output.dtype}, wider than accumulate {operator.accumulate}: results "
            f"stay in the accumulator's place; accumulate in {output.dtype}"
        )


def _epilogue(operator: Operator) -> None:
    epilogue = operator.epilogue
    if epilogue.requantise is not None and operator.accumulate.startswith("float"):
        raise ValueError(f"epilogue.requantise needs an integer accumulator; accumulate is {operator.accumulate}")
    if epilogue.clip is not None and epilogue.clip[0] > epilogue.clip[1]:
        raise ValueError(
            f"epilogue.clip is [{epilogue.clip[0]}, {epilogue.clip[1]}]; the first must not exceed the second"
        )
    if epilogue.average is not None:
        if epilogue.average.operand not in operator.factors:
            why = _no_such("input", epilogue.average.operand, operator.factors)
            raise ValueError(f"epilogue.average names operand {epilogue.average.operand!r}, {why}")
        for dim in epilogue.average.dims:
            if dim not in operator.reduction_dims:
                why = _no_such("reduction dim", dim, operator.reduction_dims)
                raise ValueError(f"epilogue.average names dim {dim!r}, {why}")


def _tile_rules(operator: Operator) -> None:
    for place, rules in operator.constraints.tiles.items():
        for dim, rule in rules.items():
            where = f"constraints.tiles, {place}, {dim}"
            if dim not in operator.dims:
                raise ValueError(f"{where}: dim {dim!r}, {_no_such('dim', dim, operator.dims)}")
            _one_tile_rule(where, rule, operator.dims[dim])


def _one_tile_rule(where: str, rule: TileRule, extent: int) -> None:
    equals, multiple = rule.equals, rule.multiple_of or 1
    low, high = rule.minimum or 1, min(rule.maximum or extent, extent)
    if low > high:
        raise ValueError(f"{where}: no tile lies between {low} and {high} (extent {extent}); widen the range")
    if equals is not None and not (low <= equals <= high and equals % multiple == 0):
        raise ValueError(
            f"{where}: tile {equals} is outside {low}..{high} (extent {extent}) or no multiple of {multiple}"
        )
    if high // multiple * multiple < low:
        raise ValueError(f"{where}: no multiple of {multiple} lies between {low} and {high} (extent {extent})")


def near_roles(holds: Iterable[str]) -> str | None:
    """A complaint about a name that is all but a role, such as `inputs`; None if there is none."""
    roles = ("input", "weight", "bias", "output")
    for name in holds:
        near = get_close_matches(name, roles, 1, 0.8)
        if name not in roles and near:
            return f"holds names {name!r}; the role is {near[0]!r}"
    return None
