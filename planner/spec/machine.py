"""The machine: a tree of software-managed memories and a compute unit.

The first memory is the backing store (DRAM): it has no capacity and holds everything. Every other memory is a *scope*
with a parent, a capacity, and the operands it holds. An operand's *path* runs from the backing store through every
scope that holds it, outermost first, to the compute unit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from planner.spec.operator import Operand
from planner.spec.origin import Written
from planner.spec.validate import apart, check_machine, unheld

_UNITS = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_BITS = ("b", "bit", "bits")
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")


def parse_size(value: object) -> int:
    """Bytes in a size: `32KiB`, `1.5 MiB`, `64B`, bits as `2097152b`, or a bare integer of bytes. ValueError otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"size {value!r} is neither an integer of bytes nor text such as '32KiB'")
    if isinstance(value, int):
        return value
    if value.strip().isdigit():
        return int(value)
    match = _SIZE.fullmatch(value)
    if match is None:
        raise ValueError(f"size {value!r} is not a number with a unit; write for instance 32KiB")
    digits, unit = match.groups()
    if unit in _BITS:
        scale, divisor = 1, 8
    elif unit in _UNITS:
        scale, divisor = _UNITS[unit], 1
    else:
        raise ValueError(f"size {value!r} has unit {unit!r}; use B, KiB, MiB, GiB, or b for bits")
    whole, _, fraction = digits.partition(".")
    numerator = int(whole + fraction) * scale
    denominator = 10 ** len(fraction) * divisor
    if numerator % denominator:
        raise ValueError(f"size {value!r} is not a whole number of bytes")
    return numerator // denominator


Size = Annotated[int, BeforeValidator(parse_size, json_schema_input_type=int | str)]


def _memory_name(name: str) -> str:
    """Places are written operand@memory, or * for all: neither mark can be in a name."""
    if not name or "@" in name or name == "*":
        raise ValueError(f"{name!r} is no name of a memory; use at least 1 character, neither @ nor *")
    return name


MemoryName = Annotated[str, AfterValidator(_memory_name)]


class _Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Memory(_Spec):
    """One memory of the machine; a *scope* if it has a parent."""

    name: MemoryName = Field(description="Name of the memory, such as inp_buffer.")
    parent: str | None = Field(None, description="The memory it is filled from; none for the backing store only.")
    capacity: Size | None = Field(None, gt=0, description="Bytes, or text with a unit: 32KiB, 2097152b (bits).")
    holds: tuple[str, ...] | None = Field(None, description="Roles or operand names; all operands if left out.")
    alignment: Size = Field(1, gt=0, description="Each buffer starts at a multiple of this many bytes.")
    double_buffered: bool = Field(False, description="Every buffer in this scope is kept in two copies.")
    spill: bool = Field(True, description="Whether partial sums may leave this scope and come back.")
    bytes_per_cycle: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="Rate of the link to its children."
    )
    setup_cycles: int = Field(0, ge=0, description="Cycles before the first byte of a transfer on that link.")
    read_energy: float = Field(0, ge=0, allow_inf_nan=False, description="pJ per byte read.")
    write_energy: float = Field(0, ge=0, allow_inf_nan=False, description="pJ per byte written.")


class Compute(_Spec):
    """The compute unit."""

    macs_per_cycle: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="Multiply-accumulates per cycle at best."
    )
    mac_energy: float = Field(0, ge=0, allow_inf_nan=False, description="pJ per multiply-accumulate.")


class Machine(Written):
    """A tree of memories, backing store first, and a compute unit."""

    name: str = Field(min_length=1, description="Name of the machine.")
    memories: tuple[Memory, ...] = Field(min_length=1, description="The tree; the first one is the backing store.")
    compute: Compute = Field(default_factory=lambda: Compute(macs_per_cycle=None, mac_energy=0))

    @model_validator(mode="after")
    def _is_a_tree(self) -> Self:
        check_machine(self)
        return self

    @property
    def backing(self) -> Memory:
        """The backing store."""
        return self.memories[0]

    @property
    def scopes(self) -> tuple[Memory, ...]:
        """Every memory but the backing store, parents before children."""
        return self.memories[1:]

    def memory(self, name: str) -> Memory:
        """The memory of that name; KeyError if there is none."""
        for memory in self.memories:
            if memory.name == name:
                return memory
        raise KeyError(name)

    def ancestors(self, name: str) -> Iterable[str]:
        """Names of the memories above `name`, nearest first."""
        parent = self.memory(name).parent
        while parent is not None:
            yield parent
            parent = self.memory(parent).parent

    def holding(self, operand_name: str, operand: Operand) -> tuple[Memory, ...]:
        """The scopes that hold an operand, in the order of the file."""
        return tuple(m for m in self.scopes if m.holds is None or operand_name in m.holds or operand.role in m.holds)

    def path(self, operand_name: str, operand: Operand) -> tuple[Memory, ...]:
        """The scopes that hold an operand, outermost first, without the backing store.

        ValueError if no scope holds it, or if two scopes on different branches do.
        """
        holding = self.holding(operand_name, operand)
        if not holding:
            raise ValueError(unheld(self, operand_name, operand))
        for outer, inner in pairwise(holding):
            if outer.name not in self.ancestors(inner.name):
                raise ValueError(apart(operand_name, operand, outer, inner))
        return holding
