"""The plan: what the solver decided, what it costs, and how good that is proved to be.

A `Plan` stands alone: it carries the operator in generic form and the machine. Its nest, read from the outermost entry
inwards, is the whole mapping; buffers give shape and address; links give the bytes that each buffer moves.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from planner.spec.machine import Machine
from planner.spec.operator import Operator

if TYPE_CHECKING:
    from planner.verify import Verification

SCHEMA_VERSION = 1

Status = Literal["optimal", "feasible", "infeasible", "unknown"]


@dataclass(frozen=True, slots=True)
class Loop:
    """Steps through the current tile of `dim` in steps of `tile`, which is then the current tile."""

    dim: str
    tile: int


@dataclass(frozen=True, slots=True)
class Attach:
    """Here the buffer of `operand` in `memory` is filled: once per iteration of all loops outside."""

    operand: str
    memory: str

    def __str__(self) -> str:
        return f"{self.operand}@{self.memory}"


NestEntry = Loop | Attach


@dataclass(frozen=True, slots=True)
class PlannedBuffer:
    """One operand's buffer in one scope, at its address."""

    operand: str
    memory: str
    shape: tuple[int, ...]
    """Footprint of the nominal tile, in lattice points per axis of the operand."""
    offset_bytes: int
    size_bytes: int
    """All copies together: footprint x element bytes x copies. Copy i starts at offset + i * size // copies."""
    copies: int


@dataclass(frozen=True, slots=True)
class Link:
    """What moves between one buffer and the memory above it, over the whole kernel."""

    operand: str
    memory: str
    parent: str
    read_bytes: int
    """Bytes read from the parent into the buffer."""
    written_bytes: int
    """Bytes written from the buffer to the parent."""
    loads: int
    """Transfers that move at least one byte from the parent."""
    stores: int
    """Transfers that move at least one byte to the parent."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that one operand moves from and to the backing store."""

    read_bytes: int
    written_bytes: int


@dataclass(frozen=True, slots=True)
class Objective:
    """The cost, its proved lower bound, and the name of what was minimised. None where there is no plan."""

    name: str
    value: int | None
    bound: int | None


@dataclass(frozen=True, slots=True)
class Shortage:
    """A scope that cannot hold even its smallest tiles. Bytes."""

    memory: str
    needed_bytes: int
    capacity_bytes: int
    smallest_tiles: dict[str, int]
    """Smallest bytes of each buffer in the scope, by operand."""
    remedy: str


@dataclass(frozen=True, slots=True)
class Statistics:
    """How the solve went. Not part of the plan file: two runs give the same plan, not the same times."""

    wall_s: float = 0.0
    solver_calls: int = 0
    cuts: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """A mapping with addresses, cost and proof."""

    status: Status
    objective: Objective
    operator: Operator
    machine: Machine
    nest: tuple[NestEntry, ...] = ()
    buffers: tuple[PlannedBuffer, ...] = ()
    links: tuple[Link, ...] = ()
    shortages: tuple[Shortage, ...] = ()
    conflicts: tuple[str, ...] = ()
    """For an infeasible plan with no shortage: demands of the user that exclude each other."""
    ties_proved: bool = True
    """Whether, among plans of equal cost, this one is proved to have the fewest transfers, then the smallest footprint."""
    statistics: Statistics = field(default_factory=Statistics, compare=False)

    @property
    def traffic(self) -> dict[str, Traffic]:
        """Bytes per operand from and to the backing store: its outermost link."""
        outermost: dict[str, Traffic] = {}
        for link in self.links:
            if link.parent == self.machine.backing.name:
                outermost[link.operand] = Traffic(link.read_bytes, link.written_bytes)
        return outermost

    @property
    def total_traffic_bytes(self) -> int:
        """Bytes from and to the backing store, over all operands; 0 without a nest (see `status`)."""
        return sum(t.read_bytes + t.written_bytes for t in self.traffic.values())

    @property
    def transfers(self) -> int:
        """Transfers over all links."""
        return sum(link.loads + link.stores for link in self.links)

    @property
    def gap(self) -> float | None:
        """How far the proved bound lies below the value, as a fraction of the value; None without a plan."""
        value, bound = self.objective.value, self.objective.bound
        if value is None or bound is None:
            return None
        return (value - bound) / value if value else 0.0

    def check(self) -> None:
        """Recompute everything that the plan says from its nest; VerificationError if anything is wrong."""
        from planner.check import check

        check(self)

    def verify(self, seed: int = 0) -> Verification:
        """Check the plan and run its kernel on random inputs; VerificationError if anything is wrong."""
        from planner.verify import verify

        return verify(self, seed)

    def emit(self, target: str = "python") -> str:
        """Source text of the kernel; SpecError for an unknown target or a plan without a nest."""
        from planner.emit import emit

        return emit(self, target)

    def to_json(self) -> str:
        """The plan file's text: the same for the same plan, byte for byte."""
        from planner.plan_file import to_json

        return to_json(self)

    @classmethod
    def from_json(cls, text: str, name: str = "plan") -> Plan:
        """Read a plan file's text; SpecError, with places in `name`, if it is none."""
        from planner.plan_file import from_json

        return from_json(text, name)

    def _repr_html_(self) -> str:
        """What a notebook shows: the same report as the command line's."""
        from html import escape

        from planner.report import plan_text

        return f"<pre>{escape(plan_text(self))}</pre>"

    def buffer(self, operand: str, memory: str) -> PlannedBuffer:
        """The buffer of an operand in a memory; KeyError if there is none."""
        for buffer in self.buffers:
            if (buffer.operand, buffer.memory) == (operand, memory):
                return buffer
        raise KeyError(f"{operand}@{memory}")
