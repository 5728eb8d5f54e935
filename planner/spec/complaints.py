"""Complaints about a spec: what is wrong, and at which path of keys it was written.

Rules raise `RuleError`; pydantic raises `ValidationError`. Both become a list of `Fault`s here, each one sentence that a
person understands. `load` finds the line of a path; the Python constructors have only the sentences.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, cast

from planner.errors import Location, SpecError

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError
    from pydantic_core import ErrorDetails

Path = tuple[str | int, ...]
MOST_COMPLAINTS = 50
"""Nobody reads more, and a file that holds no spec has one for each of its keys."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One complaint. `path` leads to what it is about: its key if `at_key` (or there is none), else its value."""

    path: Path
    message: str
    at_key: bool = True


Placed = tuple["Location | None", str]
"""A complaint, and where it belongs."""


def refusal(complaints: Iterable[Placed]) -> SpecError:
    """All complaints as one error, in the order of each file, each with its place."""
    ordered = sorted(complaints, key=lambda c: (c[0].line, c[0].column) if c[0] else (0, 0))
    (first, message), *rest = ordered
    return SpecError("\n".join([message, *(f"{where}: {text}" if where else text for where, text in rest)]), first)


class RuleError(ValueError):
    """One or more complaints; a ValueError, so that pydantic carries it."""

    def __init__(self, *faults: Fault) -> None:
        super().__init__("\n".join(f.message for f in faults))
        self.faults = faults


def suggestion(name: str, known: Iterable[str]) -> str:
    """`did you mean 'x'? known: x, y`, for a name that is not among the known ones."""
    names = list(known)
    near = get_close_matches(name, names, 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"{hint}known: {', '.join(names) or 'none'}"


def no_such(kind: str, name: str, known: Iterable[str]) -> str:
    """`'x': there is no such dim; did you mean 'y'? known: y, z`."""
    return f"{name!r}: there is no such {kind}; {suggestion(name, known)}"


def faults_of(error: ValidationError, model: type[BaseModel], data: object) -> list[Fault]:
    """The complaints in what pydantic raised for `model` on `data`: one for each place, in the order it found them."""
    found: dict[tuple[Path, bool, str], Fault] = {}
    for details in error.errors(include_url=False)[:MOST_COMPLAINTS]:
        # Each branch of a union complains about the same value; the first one is enough. A rule's complaints differ.
        rule = details["type"] == "value_error"
        for fault in _faults(details, model, data):
            found.setdefault((fault.path, fault.at_key, fault.message if rule else ""), fault)
    return list(found.values())


def _faults(details: ErrorDetails, model: type[BaseModel], data: object) -> list[Fault]:
    path = _written(details, data)
    name = ".".join(str(part) for part in path)
    match details["type"]:
        case "extra_forbidden":
            known = _keys(model, path[:-1])
            hint = f"; {suggestion(str(path[-1]), known)}" if known else ""
            return [Fault(path, f"unknown key {name!r}{hint}")]
        case "missing":
            return [Fault(path[:-1], f"{name!r} is missing; add it", at_key=False)]
        case "value_error":
            return _from_rule(details, path, name)
        case _:
            return [Fault(path, _sentence(details, name), at_key=False)]


def _from_rule(details: ErrorDetails, path: Path, name: str) -> list[Fault]:
    """Complaints of a rule of ours: a rule that knows the path within its model says so."""
    error = details.get("ctx", {}).get("error")
    if isinstance(error, RuleError):
        return [Fault((*path, *f.path), f.message, f.at_key) for f in error.faults]
    message = details["msg"].removeprefix("Value error, ")
    return [Fault(path, f"{name}: {message}" if name else message, at_key=False)]


_PLAINER = {
    "dict_type": "should be a mapping of keys to values",
    "model_type": "should be a mapping of keys to values",
    "model_attributes_type": "should be a mapping of keys to values",
    "tuple_type": "should be a list",
    "list_type": "should be a list",
    "string_type": "should be text",
    "int_type": "should be an integer",
    "int_parsing": "should be an integer",
    "float_type": "should be a number",
    "float_parsing": "should be a number",
    "finite_number": "should be a finite number",
    "bool_type": "should be a boolean, true or false",
    "bool_parsing": "should be a boolean, true or false",
    "string_too_short": "should have at least 1 character",
}


def _sentence(details: ErrorDetails, name: str) -> str:
    """What pydantic says, in the words of a spec file."""
    kind, value = details["type"], details["input"]
    said = details["msg"].removeprefix("Input ").removeprefix("Value ")
    context: Mapping[str, Any] = details.get("ctx", {})
    match kind:
        case "literal_error":
            known = [part.strip(" '") for part in str(context.get("expected", "")).replace(" or ", ",").split(",")]
            near = suggestion(str(value), [repr(k) for k in known]).replace('"', "")
            return f"{name}: {shown(value)} is not known; {near}"
        case "too_long" | "too_short":
            wants = context.get("max_length" if kind == "too_long" else "min_length")
            limit = "at most" if kind == "too_long" else "at least"
            return f"{name}: has {context.get('actual_length')} entries and needs {limit} {wants}"
        case _:
            return f"{name}: {_PLAINER.get(kind, said)}, not {shown(value)}"


def shown(value: object) -> str:
    """A value as a message quotes it: short, whatever it is."""
    match value:
        case None:
            return "nothing"
        case Mapping():
            return "a mapping"
        case list() | tuple():
            size = len(cast("list[Any]", value))
            text = str(list(cast("list[Any]", value))) if size <= 8 else ""
            return text if text and len(text) <= 60 else f"a list of {size}"
        case int() if not isinstance(value, bool) and value.bit_length() > 256:
            return f"an integer of {value.bit_length()} bits"
        case _:
            text = repr(value)
            return text if len(text) <= 60 else f"{text[:57]}..."


def _written(details: ErrorDetails, data: object) -> Path:
    """The part of pydantic's path that is in the data: it also names branches of unions, which nobody wrote."""
    path: list[str | int] = []
    node = data
    for part in details["loc"]:
        match node:
            case Mapping() if part in node:
                node = cast("Mapping[str | int, object]", node)[part]
            case list() | tuple() if isinstance(part, int) and part < len(cast("list[object]", node)):
                node = cast("list[object]", node)[part]
            case _:
                continue
        path.append(part)
    if details["type"] == "missing":
        path.append(details["loc"][-1])
    return tuple(path)


def _keys(model: type[BaseModel], path: Path) -> list[str]:
    """Keys that a model knows at a path; empty if that cannot be told."""
    schema: Any = model.model_json_schema()
    node: Any = schema
    for part in path:
        node = _step(schema, node, part)
    return list(_resolved(schema, node).get("properties", ()))


def _step(schema: Any, node: Any, part: str | int) -> Any:
    node = _resolved(schema, node)
    if isinstance(part, int):
        return node.get("items", {})
    return node.get("properties", {}).get(part) or node.get("additionalProperties") or {}


def _resolved(schema: Any, node: Any) -> dict[str, Any]:
    """The schema behind references, and behind the one branch of an `anyOf` that refers to a model."""
    found: dict[str, Any] = cast("dict[str, Any]", node) if isinstance(node, dict) else {}
    for option in found.get("anyOf", []):
        if "$ref" in option:
            found = option
    while "$ref" in found:
        found = schema["$defs"][found["$ref"].rsplit("/", 1)[-1]]
    return found
