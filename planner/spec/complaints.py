"""Complaints about a spec: what is wrong, and at which path of keys it was written.

Rules raise `Faults`; pydantic raises `ValidationError`. Both become a list of `Fault`s here, each one sentence that a
person understands. `load` finds the line of a path; the Python constructors have only the sentences.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from pydantic import BaseModel, ValidationError
    from pydantic_core import ErrorDetails

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """One complaint. `path` leads to the value at fault, or to its key if `at_key`."""

    path: Path
    message: str
    at_key: bool = False


class Faults(ValueError):
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
    """`'x' is no dim; did you mean 'y'? known: y, z`."""
    return f"{name!r} is no {kind}; {suggestion(name, known)}"


def faults_of(error: ValidationError, model: type[BaseModel]) -> list[Fault]:
    """The complaints in what pydantic raised for `model`: one for each place, in the order pydantic found them."""
    found: dict[tuple[Path, bool], Fault] = {}
    for details in error.errors(include_url=False):
        for fault in _faults(details, model):
            found.setdefault((fault.path, "unknown key" in fault.message), fault)
    return list(found.values())


def _faults(details: ErrorDetails, model: type[BaseModel]) -> list[Fault]:
    path = tuple(part for part in details["loc"] if not _is_branch(part))
    name = ".".join(str(part) for part in path)
    match details["type"]:
        case "extra_forbidden":
            known = _keys(model, path[:-1])
            hint = f"; {suggestion(str(path[-1]), known)}" if known else ""
            return [Fault(path, f"unknown key {name!r}{hint}", at_key=True)]
        case "missing":
            return [Fault(path[:-1], f"{name!r} is missing; add it")]
        case "value_error":
            return _from_rule(details, path, name)
        case _:
            return [Fault(path, _sentence(details, name))]


def _from_rule(details: ErrorDetails, path: Path, name: str) -> list[Fault]:
    """Complaints of a rule of ours: a rule that knows the path within its model says so."""
    error = details.get("ctx", {}).get("error")
    if isinstance(error, Faults):
        return [Fault((*path, *f.path), f.message, f.at_key) for f in error.faults]
    message = details["msg"].removeprefix("Value error, ")
    return [Fault(path, f"{name}: {message}" if name else message)]


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
    "bool_type": "should be true or false",
    "bool_parsing": "should be true or false",
    "string_too_short": "should not be empty",
}


def _sentence(details: ErrorDetails, name: str) -> str:
    """What pydantic says, in the words of a spec file."""
    kind, value = details["type"], details["input"]
    said = details["msg"].removeprefix("Input ").removeprefix("Value ")
    context: Mapping[str, Any] = details.get("ctx", {})
    match kind:
        case "literal_error":
            known = [part.strip(" '") for part in str(context.get("expected", "")).replace(" or ", ",").split(",")]
            return f"{name}: {shown(value)} is not known; {suggestion(str(value), known)}"
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


def _is_branch(part: int | str) -> bool:
    """Pydantic adds the branch of a union, or `[key]`, to a path; neither is anywhere in the file."""
    return isinstance(part, str) and (
        part.startswith(("function-", "constrained-", "tuple[", "lax-or-strict", "[key]")) or part in _BRANCHES
    )


_BRANCHES = frozenset({"TileRule", "_Loop", "_Attach"})


def _keys(model: type[BaseModel], path: Path) -> list[str]:
    """Keys that a model knows at a path; empty if that cannot be told."""
    schema: Any = model.model_json_schema()
    node: Any = schema
    for part in path:
        node = _step(schema, node, part)
    return list(_resolved(schema, node).get("properties", {}))


def _step(schema: Any, node: Any, part: str | int) -> Any:
    node = _resolved(schema, node)
    if isinstance(part, int):
        return node.get("items", {})
    return node.get("properties", {}).get(part) or node.get("additionalProperties") or {}


def _resolved(schema: Any, node: Any) -> Any:
    """The schema behind references, and behind the one branch of an `anyOf` that refers to a model."""
    for option in node.get("anyOf", []) if isinstance(node, dict) else []:
        if "$ref" in option:
            node = option
    while isinstance(node, dict) and "$ref" in node:
        node = schema["$defs"][cast("dict[str, str]", node)["$ref"].rsplit("/", 1)[-1]]
    return cast("dict[str, Any]", node) if isinstance(node, dict) else {}
