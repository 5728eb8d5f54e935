"""Checks of an operator that need more than one field: one function a rule, each raising ValueError."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.errors import SpecError

if TYPE_CHECKING:
    from planner.spec.machine import Machine
    from planner.spec.operator import Operator


def check_operator(operator: Operator) -> None:
    """All rules in turn."""


def check_against(operator: Operator, machine: Machine) -> None:
    """Rules that need the machine too; SpecError."""
    for name, operand in operator.operands.items():
        try:
            machine.path(name, operand)
        except ValueError as error:
            raise SpecError(str(error)) from None
