"""Plans as JSON: written whole or not at all, validated strictly when read."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from planner.errors import SpecError
from planner.plan import SCHEMA_VERSION, Attach, Link, Loop, NestEntry, Objective, Plan, PlannedBuffer, Shortage
from planner.spec.load import Document
from planner.spec.machine import Machine
from planner.spec.operator import Operator
from planner.spec.validate import check_against


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Objective(_Part):
    name: str
    value: int | None
    bound: int | None


class _Loop(_Part):
    loop: str
    tile: int = Field(ge=1)


class _Attach(_Part):
    buffer: str
    memory: str


class _Buffer(_Part):
    operand: str
    memory: str
    shape: tuple[int, ...]
    offset_bytes: int
    size_bytes: int
    copies: int


class _Traffic(_Part):
    read_bytes: int
    written_bytes: int


class _Link(_Part):
    operand: str
    memory: str
    parent: str
    read_bytes: int
    written_bytes: int
    loads: int
    stores: int


class _Shortage(_Part):
    memory: str
    needed_bytes: int
    capacity_bytes: int
    smallest_tiles: dict[str, int]
    remedy: str


class PlanFile(_Part):
    """The form of a plan file."""

    schema_version: Literal[1]
    status: Literal["optimal", "feasible", "infeasible", "unknown"]
    objective: _Objective
    workload: Operator
    machine: Machine
    nest: tuple[_Loop | _Attach, ...]
    buffers: tuple[_Buffer, ...]
    links: tuple[_Link, ...]
    traffic: dict[str, _Traffic]
    total_traffic_bytes: int
    shortages: tuple[_Shortage, ...] = ()
    conflicts: tuple[str, ...] = ()
    ties_proved: bool = True


def plan_schema() -> dict[str, Any]:
    """JSON schema of a plan file."""
    return PlanFile.model_json_schema()


def to_json(plan: Plan) -> str:
    """The text of a plan's file."""
    data = {
        "schema_version": SCHEMA_VERSION,
        "status": plan.status,
        "objective": {"name": plan.objective.name, "value": plan.objective.value, "bound": plan.objective.bound},
        "workload": plan.operator.model_dump(mode="json", exclude_none=True),
        "machine": plan.machine.model_dump(mode="json", exclude_none=True),
        "nest": [_entry(e) for e in plan.nest],
        "buffers": [_fields(b) for b in plan.buffers],
        "links": [_fields(k) for k in plan.links],
        "traffic": {name: _fields(t) for name, t in plan.traffic.items()},
        "total_traffic_bytes": plan.total_traffic_bytes,
        "shortages": [_fields(s) for s in plan.shortages],
        "conflicts": list(plan.conflicts),
        "ties_proved": plan.ties_proved,
    }
    return json.dumps(data, indent=1) + "\n"


def _entry(entry: NestEntry) -> dict[str, Any]:
    match entry:
        case Loop():
            return {"loop": entry.dim, "tile": entry.tile}
        case Attach():
            return {"buffer": entry.operand, "memory": entry.memory}


def _fields(part: Any) -> dict[str, Any]:
    values = {name: getattr(part, name) for name in part.__slots__}
    return {name: [*value] if isinstance(value, tuple) else value for name, value in values.items()}


def from_json(text: str, name: str = "plan") -> Plan:
    """The plan in a text. SpecError if it is not one: wrong version, unknown keys, names that nothing declares."""
    document = Document.parse(name, text.encode())
    if "schema_version" not in document.data:
        kind = "a machine" if "memories" in document.data else "an operator" if "operator" in document.data else None
        if kind is not None:
            raise SpecError(f"this is {kind}, not a plan; solve -o writes plans", document.location(()))
    file = document.validate(PlanFile)
    plan = Plan(
        status=file.status,
        objective=Objective(file.objective.name, file.objective.value, file.objective.bound),
        operator=file.workload,
        machine=file.machine,
        nest=tuple(Loop(e.loop, e.tile) if isinstance(e, _Loop) else Attach(e.buffer, e.memory) for e in file.nest),
        buffers=tuple(PlannedBuffer(**b.model_dump()) for b in file.buffers),
        links=tuple(Link(**k.model_dump()) for k in file.links),
        shortages=tuple(Shortage(**s.model_dump()) for s in file.shortages),
        conflicts=file.conflicts,
        ties_proved=file.ties_proved,
    )
    check_against(plan.operator, plan.machine)
    _check_names(document, plan)
    for operand, traffic in file.traffic.items():
        if operand not in plan.traffic or plan.traffic[operand] != _known(traffic):
            raise SpecError(f"traffic of {operand} disagrees with its links", document.location(("traffic", operand)))
    if file.total_traffic_bytes != plan.total_traffic_bytes:
        raise SpecError(
            f"total_traffic_bytes is {file.total_traffic_bytes}; the links add up to {plan.total_traffic_bytes}",
            document.location(("total_traffic_bytes",)),
        )
    return plan


def _known(traffic: _Traffic) -> Any:
    from planner.plan import Traffic

    return Traffic(traffic.read_bytes, traffic.written_bytes)


def _check_names(document: Document, plan: Plan) -> None:
    """Every operand, memory and dim that the plan names exists."""
    memories = {m.name for m in plan.machine.scopes}

    def need(
        name: str, known: Sequence[str] | set[str] | dict[str, Any], kind: str, path: tuple[int | str, ...]
    ) -> None:
        if name not in known:
            listed = ", ".join(sorted(known))
            raise SpecError(f"{kind} {name!r} is not declared; known: {listed}", document.location(path))

    for i, entry in enumerate(plan.nest):
        match entry:
            case Loop():
                need(entry.dim, plan.operator.dims, "dim", ("nest", i, "loop"))
            case Attach():
                need(entry.operand, plan.operator.operands, "operand", ("nest", i, "buffer"))
                need(entry.memory, memories, "memory", ("nest", i, "memory"))
    for section, parts in (("buffers", plan.buffers), ("links", plan.links)):
        for i, part in enumerate(parts):
            need(part.operand, plan.operator.operands, "operand", (section, i, "operand"))
            need(part.memory, memories, "memory", (section, i, "memory"))


def load_plan(path: str | Path) -> Plan:
    """The plan in a file. SpecError."""
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SpecError(f"cannot read {str(path)!r}: {reason}") from None
    return from_json(text, str(path))


unfinished: set[str] = set()
"""Files that are being written aside: an interrupt that ends the process at once removes them."""


def write_whole(path: str | Path, text: str) -> None:
    """Write a file aside and rename it into place, so that it is never seen half-written. SpecError if it cannot be."""
    # Behind a link lies what is to be written; a pipe or a device is written to, never replaced.
    target = Path(os.path.realpath(path))
    aside: str | None = None
    try:
        if target.exists() and not target.is_file() and not target.is_dir():
            target.write_text(text, "utf-8")
            return
        handle, aside = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        unfinished.add(aside)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(aside, 0o666 & ~umask)
        os.replace(aside, target)
        aside = None
    except OSError as error:
        raise SpecError(f"cannot write {str(path)!r}: {error.strerror}") from None
    finally:
        if aside is not None and os.path.exists(aside):
            os.unlink(aside)
        unfinished.discard(aside or "")


def make_directory(path: str | Path) -> Path:
    """A directory to write to; made if there is none. SpecError if it cannot be."""
    target = Path(path)
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SpecError(f"cannot make the directory {str(path)!r}: {error.strerror}") from None
    return target
