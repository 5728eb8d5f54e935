"""Paths and machines that many tests use."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner import Machine, load_machine

ROOT = Path(__file__).resolve().parent.parent
SPECS = ROOT / "specs"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-goldens", action="store_true", help="Write tests/goldens anew instead of comparing with it."
    )


@pytest.fixture
def specs() -> Path:
    """The folder of ready spec files."""
    return SPECS


def scopes(inp: int, wgt: int, acc: int, **extra: object) -> Machine:
    """Three scopes of so many bytes below DRAM; bias and output share the last."""
    memories = [
        {"name": "dram"},
        {"name": "inp_buffer", "parent": "dram", "capacity": inp, "holds": ["input"], **extra},
        {"name": "wgt_buffer", "parent": "dram", "capacity": wgt, "holds": ["weight"], **extra},
        {"name": "acc_buffer", "parent": "dram", "capacity": acc, "holds": ["bias", "output"], **extra},
    ]
    return Machine.model_validate({"name": "scopes", "memories": memories})


def one_scope(capacity: int, **extra: object) -> Machine:
    """One scope for everything."""
    memories = [{"name": "dram"}, {"name": "scope", "parent": "dram", "capacity": capacity, **extra}]
    return Machine.model_validate({"name": "one-scope", "memories": memories})


def machine(name: str) -> Machine:
    """A ready machine by its file's name."""
    return load_machine(SPECS / "machines" / f"{name}.yaml")
