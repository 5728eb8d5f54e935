"""What is emitted stays as it is, and readable: look at the difference, then run pytest with --update-goldens."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernel_cases import small

import planner
from planner import Plan
from planner.emit import TARGETS, emit_files

GOLDENS = Path(__file__).resolve().parent.parent / "goldens"


def forum(specs: Path) -> Plan:
    operator = planner.load_operator(specs / "operators" / "forum-conv2d.yaml")
    return planner.solve(operator, planner.load_machine(specs / "machines" / "forum.yaml"))


REFUSED = ("spilling-matmul", "tvm-schedule")
"""Partial sums that leave are nothing that TVM's schedules can say; `test_tvm_schedule.py` has the words."""
CASES = [(k, t) for k in ("forum-conv2d", "spilling-matmul") for t in TARGETS if (k, t) != REFUSED]


@pytest.mark.parametrize(("kernel", "target"), CASES)
def test_golden(kernel: str, target: str, specs: Path, request: pytest.FixtureRequest) -> None:
    plan = small() if kernel == "spilling-matmul" else forum(specs)
    texts = {f"{kernel}{TARGETS[target].ending}": plan.emit(target)}
    if target == "c":
        header = next(text for name, text in emit_files(plan, "c").items() if name.endswith(".h") and "dma" not in name)
        texts[f"{kernel}.h"] = header
    for name, text in texts.items():
        path = GOLDENS / name
        if request.config.getoption("--update-goldens"):
            path.write_text(text, encoding="utf-8")
        assert path.read_text(encoding="utf-8") == text
