"""Checks of an operator that need more than one field: one function a rule, each raising ValueError."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.spec.operator import Operator


def check_operator(operator: Operator) -> None:
    """All rules in turn."""
