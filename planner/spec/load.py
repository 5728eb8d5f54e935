"""Spec files in, machines and operators out; every complaint names file, line and column.

YAML 1.2 (and so JSON) is read with its positions, validated by pydantic, and each error is mapped back to where it was
written. Nothing a file may hold escapes as anything but a SpecError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from planner.errors import Location, SpecError
from planner.spec.library import NAMED
from planner.spec.machine import Machine
from planner.spec.operator import Operator

M = TypeVar("M", bound=BaseModel)
LARGEST_FILE_BYTES = 4 << 20
MOST_NODES = 200_000
"""Beyond this a file is no spec (or its aliases multiply without end)."""


def load_machine(path: str | Path) -> Machine:
    """The machine described in a YAML or JSON file. SpecError."""
    document = Document.read(path)
    return document.validate(Machine)


def load_operator(path: str | Path) -> Operator:
    """The operator described in a YAML or JSON file, named or generic, in generic form. SpecError."""
    document = Document.read(path)
    kind = document.data.get("operator", "generic")
    if kind == "generic":
        return document.validate(Operator)
    if kind not in NAMED:
        known = ["generic", *NAMED]
        near = get_close_matches(str(kind), known, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise SpecError(
            f"operator {kind!r} is not known; {hint}known: {', '.join(known)}", document.location(("operator",))
        )
    spec = document.validate(NAMED[kind])
    try:
        return spec.expand()
    except ValidationError as error:
        message = "; ".join(_message(e) for e in error.errors(include_url=False))
    except ValueError as error:
        message = str(error)
    raise SpecError(message, document.mentioned_in(message))


def machine_schema() -> dict[str, Any]:
    """JSON schema of a machine file."""
    return Machine.model_json_schema()


def operator_schema() -> dict[str, Any]:
    """JSON schema of an operator file: the generic form or any named operator."""
    members = (Operator, *NAMED.values())
    union: Any = members[0]
    for member in members[1:]:
        union = union | member
    return TypeAdapter[Any](union).json_schema()


class Document:
    """A file's content, plain and with positions."""

    def __init__(self, name: str, data: dict[str, Any], positions: Any) -> None:
        self.name = name
        self.data = data
        self.positions = positions

    @classmethod
    def read(cls, path: str | Path) -> Document:
        """Read and parse a file whose top level is a mapping. SpecError."""
        name = str(path)
        try:
            raw = Path(path).read_bytes()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise SpecError(f"cannot read {name!r}: {reason}") from None
        return cls.parse(name, raw)

    @classmethod
    def parse(cls, name: str, raw: bytes) -> Document:
        """Parse the bytes of a file. SpecError."""
        from ruamel.yaml import YAML
        from ruamel.yaml.error import MarkedYAMLError, YAMLError

        if len(raw) > LARGEST_FILE_BYTES:
            raise SpecError(f"{name} has {len(raw)} B; a spec has at most {LARGEST_FILE_BYTES}")
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise SpecError(f"{name} is no text: byte {error.start} is not UTF-8") from None
        try:
            positions = YAML(typ="rt", pure=True).load(text)  # pyright: ignore[reportUnknownMemberType]
        except MarkedYAMLError as error:
            raise _not_yaml(name, error) from None
        except (YAMLError, ValueError, RecursionError, AttributeError, TypeError, KeyError) as error:
            first = (str(error).splitlines() or ["no YAML"])[0]
            raise SpecError(f"not valid YAML: {first}", Location(name, 1, 1)) from None
        if not isinstance(positions, Mapping):
            kind = "is empty" if positions is None else "is no mapping at its top level"
            raise SpecError(f"the file {kind}; write keys such as name: ...", Location(name, 1, 1))
        budget = [MOST_NODES]
        plain = _plain(cast(Any, positions), budget, name)
        return cls(name, plain, cast(Any, positions))

    def validate(self, model: type[M]) -> M:
        """The model that the data describe; SpecError with one line per complaint."""
        try:
            return model.model_validate(self.data)
        except ValidationError as error:
            found = [self._complaint(e, model) for e in error.errors(include_url=False)]
        first, *rest = sorted(found, key=lambda c: (c[0].line, c[0].column))
        message = "\n".join([first[1], *(f"{where}: {text}" for where, text in rest)])
        raise SpecError(message, first[0])

    def _complaint(self, error: ErrorDetails, model: type[BaseModel]) -> tuple[Location, str]:
        path = [part for part in error["loc"] if not _is_branch(part)]
        name = ".".join(str(part) for part in path)
        match error["type"]:
            case "extra_forbidden":
                near = get_close_matches(str(path[-1]), _keys(model, path[:-1]), 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                known = ", ".join(_keys(model, path[:-1]))
                known = f" (known: {known})" if known and not near else ""
                return self.location(path, key=True), f"unknown key {name!r}{hint}{known}"
            case "missing":
                return self.location(path[:-1]), f"{name!r} is missing; add it"
            case "value_error":
                message = _message(error)
                if not path and (inner := self._inside(message)) is not None:
                    return inner, message
                return self.location(path), f"{name}: {message}" if name else message
            case _:
                got = "" if isinstance(error["input"], Mapping) else f", not {error['input']!r}"
                return self.location(path), f"{name}: {error['msg'][:1].lower()}{error['msg'][1:]}{got}"

    def _inside(self, message: str) -> Location | None:
        """For a complaint about the whole file: the operand, memory or section that it names."""
        words = message.replace(":", " ").replace(",", " ").split()
        for before, word in zip(["", *words], words, strict=False):
            if before == "operand" and word in self.data.get("operands", {}):
                return self.location(("operands", word), key=True)
            if before == "memory":
                for i, memory in enumerate(self.data.get("memories", [])):
                    if isinstance(memory, Mapping) and cast(Any, memory).get("name") == word:
                        return self.location(("memories", i))
            if before == "dim" and word.strip("'") in self.data.get("dims", {}):
                return self.location(("dims", word.strip("'")), key=True)
        for section in ("constraints", "epilogue"):
            if message.startswith(section):
                return self.location((section,), key=True)
        return None

    def location(self, path: Sequence[int | str], *, key: bool = False) -> Location:
        """Where the value (or the key) at a path was written; the nearest thing around it that was."""
        node, line, column = self.positions, 0, 0
        for depth, part in enumerate(path):
            try:
                lines = node.lc
                if isinstance(node, Mapping) and part in node:
                    last = depth == len(path) - 1
                    line, column = lines.key(part) if last and key else lines.value(part)
                elif isinstance(part, int) and not isinstance(node, Mapping):
                    line, column = lines.item(part)
                else:
                    break
                node = cast(Any, node)[part]
            except (AttributeError, KeyError, IndexError, TypeError):
                break
        return Location(self.name, line + 1, column + 1)

    def mentioned_in(self, message: str) -> Location:
        """Where the key was written that a message names first."""
        words = message.replace(":", " ").replace(",", " ").split()
        for word in words[:3]:
            head = word.split(".")[0]
            if head in self.data:
                return self.location((head,), key=True)
        return self.location(("operator",), key=True)


def _not_yaml(name: str, error: Any) -> SpecError:
    """What ruamel says, at the place where it says it."""
    mark = error.problem_mark or error.context_mark
    where = Location(name, mark.line + 1, mark.column + 1) if mark else Location(name, 1, 1)
    return SpecError(f"not valid YAML: {(error.problem or 'unreadable').strip().splitlines()[0]}", where)


def _plain(node: Any, budget: list[int], name: str) -> Any:
    """Plain dicts, lists and scalars; SpecError if there is no end of them."""
    budget[0] -= 1
    if budget[0] < 0:
        raise SpecError(f"{name} holds more than {MOST_NODES} values; that is no spec")
    if isinstance(node, Mapping):
        items = cast(Mapping[Any, Any], node).items()
        return {key if isinstance(key, str) else str(key): _plain(value, budget, name) for key, value in items}
    if isinstance(node, list):
        return [_plain(value, budget, name) for value in cast(list[Any], node)]
    match node:
        case bool() | None:
            return node
        case int():
            return int(node)
        case float():
            return float(node)
        case str():
            return str(node)
        case _:
            return str(node)


def _message(error: ErrorDetails) -> str:
    return error["msg"].removeprefix("Value error, ")


def _is_branch(part: int | str) -> bool:
    """Pydantic adds the name of a union's branch to a path; it is nowhere in the file."""
    return isinstance(part, str) and (
        part.startswith(("function-", "constrained-", "tuple[", "lax-or-strict")) or part == "TileRule"
    )


def _keys(model: type[BaseModel], path: Sequence[int | str]) -> list[str]:
    """Keys that a model knows at a path; empty if that cannot be told."""
    schema = model.model_json_schema()
    node: dict[str, Any] = schema
    for part in path:
        if isinstance(part, int):
            node = node.get("items", {})
        else:
            node = node.get("properties", {}).get(part) or node.get("additionalProperties", {})
        if not isinstance(cast(object, node), dict):
            return []
        for option in node.get("anyOf", []):
            if "$ref" in option:
                node = option
        if "$ref" in node:
            node = schema["$defs"][node["$ref"].rsplit("/", 1)[-1]]
    return list(node.get("properties", {}))
