"""The exceptions that callers of the planner may see.

Three kinds of failure stay apart. `SpecError` is the user's: something that was written down is wrong, and the message
says where, what and how to mend it. Infeasible is no exception at all: it is a `Plan` with `status == "infeasible"`.
`InternalError` is ours: a rule of the planner was broken, and nothing may go on as if it had not been.
"""

from __future__ import annotations

from dataclasses import dataclass


class PlannerError(Exception):
    """Base of every exception that the planner raises on purpose."""


@dataclass(frozen=True, slots=True)
class Location:
    """A place in a spec file; lines and columns count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class SpecError(PlannerError):
    """Bad input. `message` names the object, the value, the limit and the remedy; `location` where it was written."""

    def __init__(self, message: str, location: Location | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.location = location

    def __str__(self) -> str:
        return f"{self.location}: {self.message}" if self.location else self.message


class VerificationError(PlannerError):
    """A plan or a kernel broke a rule of the semantics: found by `check` or by the interpreter."""


class InternalError(PlannerError):
    """A bug in the planner itself, such as a model that the solver calls invalid."""
