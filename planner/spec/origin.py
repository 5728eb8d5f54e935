"""Where a spec was written, remembered beside it: some rules need two files, and are checked long after these were read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from pydantic import BaseModel, ConfigDict, PrivateAttr

from planner.errors import Location
from planner.spec.complaints import Path


class Origin:
    """Where the parts of a spec were written, by path; nowhere, for one that Python code made.

    All origins are equal: where a spec was written is no part of what it says.
    """

    def __init__(self, places: Mapping[Path, Location] | None = None) -> None:
        self.places = dict(places or {})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Origin)

    def __hash__(self) -> int:
        return 0

    def at(self, *path: str | int) -> Location | None:
        """Where a part was written; None if it was not written in a file."""
        return self.places.get(path)


class Written(BaseModel):
    """Base of what a whole file describes."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    _origin: Origin = PrivateAttr(default_factory=Origin)

    @property
    def origin(self) -> Origin:
        """Where its parts were written."""
        return self._origin

    def written_at(self, origin: Origin) -> Self:
        """The same, with where it was written."""
        copy = self.model_copy()
        copy._origin = origin
        return copy
