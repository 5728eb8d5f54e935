"""Spec files in, machines and operators out; every complaint names file, line and column.

YAML 1.2 (and so JSON) is read with its positions, validated by pydantic, and each error is mapped back to where it was
written. Nothing that a file may hold escapes as anything but a SpecError.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

from pydantic import BaseModel, TypeAdapter, ValidationError

from planner.errors import Location, SpecError
from planner.spec.complaints import Fault, Path, RuleError, faults_of, no_such, refusal, shown
from planner.spec.library import NAMED
from planner.spec.machine import Machine
from planner.spec.operator import Operator
from planner.spec.origin import Origin

M = TypeVar("M", bound=BaseModel)
LARGEST_FILE_BYTES = 256 << 10
"""Spec and plan files are a few KiB; reading with positions takes ten seconds for so many bytes."""
MOST_NODES = 200_000
"""Beyond this a file is no spec (or its aliases multiply without end)."""
DEEPEST = 50
"""Nesting beyond this is no spec (or an alias that contains itself)."""


def load_machine(path: str | pathlib.Path) -> Machine:
    """The machine described in a YAML or JSON file. SpecError."""
    return _machine(Document.read(path))


def load_operator(path: str | pathlib.Path) -> Operator:
    """The operator described in a YAML or JSON file, named or generic, in generic form. SpecError."""
    return _operator(Document.read(path))


def parse_machine(text: str, name: str = "machine") -> Machine:
    """The machine described in YAML or JSON text; `name` stands for the file in messages. SpecError."""
    return _machine(Document.parse(name, text.encode("utf-8", "surrogatepass")))


def parse_operator(text: str, name: str = "operator") -> Operator:
    """The operator described in YAML or JSON text, named or generic; `name` stands for the file in messages. SpecError."""
    return _operator(Document.parse(name, text.encode("utf-8", "surrogatepass")))


def machine_from_dict(data: Mapping[str, Any]) -> Machine:
    """The machine that plain data describe, as a file would. SpecError, whose messages name keys instead of lines."""
    return Document.of("machine", data).validate(Machine)


def operator_from_dict(data: Mapping[str, Any]) -> Operator:
    """The operator that plain data describe, named or generic. SpecError, whose messages name keys instead of lines."""
    return _operator(Document.of("operator", data))


def _machine(document: Document) -> Machine:
    _not_another(document, "a machine")
    return document.validate(Machine).written_at(document.origin())


def _operator(document: Document) -> Operator:
    _not_another(document, "an operator")
    kind = document.data.get("operator", "generic")
    if kind == "generic":
        return document.validate(Operator).written_at(document.origin())
    known = ["generic", *NAMED]
    if not isinstance(kind, str):
        why = f"operator: {shown(kind)} is no name of an operator; known: {', '.join(known)}"
        raise SpecError(why, document.location(("operator",)))
    if kind not in NAMED:
        raise SpecError(f"operator {no_such('operator', kind, known)}", document.location(("operator",)))
    named = document.validate(NAMED[kind])
    try:
        operator = named.to_operator()
    except RuleError as faults:
        raise document.refused(faults.faults) from None
    written = document.origin()
    places = {("operands", name): written.at(*named.written(("operands", name))) for name in operator.operands}
    return operator.written_at(Origin({**written.places, **{path: where for path, where in places.items() if where}}))


def _not_another(document: Document, wanted: str) -> None:
    """SpecError for a file of another kind, where its keys tell which."""
    marks = {"a plan": "schema_version", "a machine": "memories", "an operator": "operator"}
    for kind, mark in marks.items():
        if kind != wanted and mark in document.data and marks[wanted] not in document.data:
            raise SpecError(f"this is {kind}, not {wanted}", document.location((mark,), key=True))


def machine_schema() -> dict[str, Any]:
    """JSON schema of a machine file."""
    return Machine.model_json_schema()


def operator_schema() -> dict[str, Any]:
    """JSON schema of an operator file: the generic form or any named operator, told apart by `operator`."""
    members = (Operator, *NAMED.values())
    union: Any = members[0]
    for member in members[1:]:
        union = union | member
    schema = TypeAdapter[Any](union).json_schema()
    definitions: dict[str, Any] = schema["$defs"]
    for member in NAMED.values():
        # Only the generic form may leave it out: exactly one branch fits any file.
        definitions[member.__name__]["required"] = ["operator", *definitions[member.__name__].get("required", [])]
    references = {kind: f"#/$defs/{member.__name__}" for kind, member in {"generic": Operator, **NAMED}.items()}
    schema["oneOf"] = schema.pop("anyOf")
    schema["discriminator"] = {"propertyName": "operator", "mapping": references}
    return schema


class Document:
    """A file's content, plain and with positions; without positions where there is no file."""

    def __init__(self, name: str, data: dict[str, Any], positions: Any) -> None:
        self.name = name
        self.data = data
        self.positions = positions

    @classmethod
    def read(cls, path: str | pathlib.Path) -> Document:
        """Read and parse a file whose top level is a mapping. SpecError."""
        name = str(path)
        try:
            with pathlib.Path(path).open("rb") as file:
                raw = file.read(LARGEST_FILE_BYTES + 1)
        except (OSError, ValueError, TypeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise SpecError(f"cannot read {name!r}: {reason}") from None
        return cls.parse(name, raw)

    @classmethod
    def parse(cls, name: str, raw: bytes) -> Document:
        """Parse the bytes of a file. SpecError."""
        if len(raw) > LARGEST_FILE_BYTES:
            raise SpecError(f"{name} has more than {LARGEST_FILE_BYTES} B; that is no spec")
        try:
            text = raw.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise SpecError(f"{name} is no text: byte {error.start} is not UTF-8") from None
        if _brackets_deep(text) > 4 * DEEPEST or re.search(rf"^ {{{4 * DEEPEST},}}\S", text, re.MULTILINE):
            raise SpecError(f"{name} is nested more than {DEEPEST} deep; that is no spec")
        positions = _parsed(name, text)
        if not isinstance(positions, Mapping):
            kind = "is empty" if positions is None else "is no mapping at its top level"
            raise SpecError(f"the file {kind}; write keys such as name: ...", Location(name, 1, 1))
        plain = _plain(positions, [MOST_NODES], name, 0)
        return cls(name, plain, cast("Any", positions))

    @classmethod
    def of(cls, name: str, data: object) -> Document:
        """A document of plain data that no file holds. SpecError."""
        if not isinstance(data, Mapping):
            raise SpecError(f"{name}: {shown(data)} is no mapping of keys to values")
        return cls(name, _plain(cast("Any", data), [MOST_NODES], name, 0), None)

    def validate(self, model: type[M]) -> M:
        """The model that the data describe; SpecError with one line per complaint."""
        try:
            return model.model_validate(self.data)
        except ValidationError as error:
            found = faults_of(error, model, self.data)
        raise self.refused(found)

    def refused(self, faults: Iterable[Fault]) -> SpecError:
        """All complaints as one error, in the order of the file, each with its place."""
        return refusal((self.location(f.path, key=f.at_key), f.message) for f in faults)

    def origin(self) -> Origin:
        """Where each key and each entry of a list was written."""
        return Origin(dict(self._places((), self.data)) if self.positions is not None else None)

    def _places(self, path: Path, node: object) -> Iterator[tuple[Path, Location]]:
        match node:
            case Mapping():
                inner = cast("Mapping[str, object]", node).items()
            case list() | tuple():
                inner = enumerate(cast("Sequence[object]", node))
            case _:
                return
        for part, value in inner:
            if (where := self.location((*path, part), key=True)) is not None:
                yield (*path, part), where
            yield from self._places((*path, part), value)

    def location(self, path: Sequence[int | str], *, key: bool = False) -> Location | None:
        """Where the value (or the key) at a path was written; the nearest thing around it that was."""
        if self.positions is None:
            return None
        node: Any = self.positions
        line = column = 0
        for depth, part in enumerate(path):
            try:
                if isinstance(part, int):
                    line, column = node.lc.item(part)
                else:
                    at_key = key and depth == len(path) - 1
                    line, column = node.lc.key(part) if at_key else node.lc.value(part)
                node = node[part]
            except (AttributeError, LookupError, TypeError):
                break
        return Location(self.name, line + 1, column + 1)


def _brackets_deep(text: str) -> int:
    """How deep brackets nest, those in quoted text and comments included; the parser takes quadratic time for that."""
    depth = deepest = 0
    for mark in re.findall(r"[\[\]{}]", text):
        depth += 1 if mark in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _parsed(name: str, text: str) -> object:
    """What YAML makes of a text, with positions. SpecError."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError

    try:
        return cast("object", YAML(typ="rt", pure=True).load(text))  # pyright: ignore[reportUnknownMemberType]
    except MarkedYAMLError as error:
        where, problem = _marked(name, error)
    except RecursionError:
        where, problem = Location(name, 1, 1), "nested too deeply"
    except Exception as error:
        # The parser raises what it likes on what it does not expect: assertions, attribute and index errors among them.
        where, problem = Location(name, 1, 1), (str(error).splitlines() or ["unreadable"])[0]
    raise SpecError(f"not valid YAML: {problem}", where)


def _marked(name: str, error: Any) -> tuple[Location, str]:
    """Where the parser stopped, and why."""
    mark = error.problem_mark or error.context_mark
    where = Location(name, mark.line + 1, mark.column + 1) if mark else Location(name, 1, 1)
    return where, (str(error.problem or "").strip().splitlines() or ["unreadable"])[0]


def _plain(node: Any, budget: list[int], name: str, depth: int) -> Any:
    """Plain dicts, lists and scalars; SpecError if there is no end of them."""
    budget[0] -= 1
    if budget[0] < 0:
        raise SpecError(f"{name} holds more than {MOST_NODES} values; that is no spec")
    if depth > DEEPEST:
        raise SpecError(f"{name} is nested more than {DEEPEST} deep; that is no spec")
    if isinstance(node, Mapping):
        plain: dict[str, Any] = {}
        for key, value in cast("Mapping[Any, Any]", node).items():
            if str(key) in plain:
                raise SpecError(f"{name} has key {str(key)!r} twice, written in two ways; keep one")
            plain[str(key)] = _plain(value, budget, name, depth + 1)
        return plain
    if isinstance(node, list | tuple):
        return [_plain(value, budget, name, depth + 1) for value in cast("list[Any]", node)]
    match node:
        case bool() | None:
            return node
        case int():
            return int(node)
        case float():
            return float(node)
        case _ if hasattr(node, "model_dump"):
            return _plain(node.model_dump(mode="json"), budget, name, depth)
        case _ if type(node).__name__ == "ScalarBoolean":
            return bool(node)
        case _:
            return str(node)
