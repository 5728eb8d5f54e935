"""A constraint-solver-based buffer allocation planner for accelerators with software-managed memories.

    import planner
    op = planner.conv2d((1, 256, 14, 14), (256, 256, 3, 3), pads=1)
    plan = planner.solve(op, planner.load_machine("machine.yaml"))
    plan.verify()
    print(plan.emit("python"))

Names are imported when they are first used: `import planner` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.errors import InternalError, PlannerError, SpecError, VerificationError
    from planner.plan import Plan
    from planner.plan_file import load_plan
    from planner.spec.library import (
        add,
        avg_pool2d,
        batch_matmul,
        conv2d,
        dense,
        depthwise_conv2d,
        matmul,
        max_pool2d,
    )
    from planner.spec.load import load_machine, load_operator, machine_from_dict, operator_from_dict
    from planner.spec.machine import Compute, Machine, Memory
    from planner.spec.operator import Constraints, Epilogue, Operand, Operator, Requantise, TileRule
    from planner.tiling.solve import Progress, solve
    from planner.verify import Verification

__version__ = "0.1.0"

_HOME = {
    "Compute": "planner.spec.machine",
    "Constraints": "planner.spec.operator",
    "Epilogue": "planner.spec.operator",
    "InternalError": "planner.errors",
    "Machine": "planner.spec.machine",
    "Memory": "planner.spec.machine",
    "Operand": "planner.spec.operator",
    "Operator": "planner.spec.operator",
    "Plan": "planner.plan",
    "PlannerError": "planner.errors",
    "Progress": "planner.tiling.solve",
    "Requantise": "planner.spec.operator",
    "SpecError": "planner.errors",
    "TileRule": "planner.spec.operator",
    "Verification": "planner.verify",
    "VerificationError": "planner.errors",
    "add": "planner.spec.library",
    "avg_pool2d": "planner.spec.library",
    "batch_matmul": "planner.spec.library",
    "conv2d": "planner.spec.library",
    "dense": "planner.spec.library",
    "depthwise_conv2d": "planner.spec.library",
    "load_machine": "planner.spec.load",
    "load_operator": "planner.spec.load",
    "load_plan": "planner.plan_file",
    "machine_from_dict": "planner.spec.load",
    "matmul": "planner.spec.library",
    "max_pool2d": "planner.spec.library",
    "operator_from_dict": "planner.spec.load",
    "solve": "planner.tiling.solve",
}

__all__ = [
    "Compute",
    "Constraints",
    "Epilogue",
    "InternalError",
    "Machine",
    "Memory",
    "Operand",
    "Operator",
    "Plan",
    "PlannerError",
    "Progress",
    "Requantise",
    "SpecError",
    "TileRule",
    "Verification",
    "VerificationError",
    "__version__",
    "add",
    "avg_pool2d",
    "batch_matmul",
    "conv2d",
    "dense",
    "depthwise_conv2d",
    "load_machine",
    "load_operator",
    "load_plan",
    "machine_from_dict",
    "matmul",
    "max_pool2d",
    "operator_from_dict",
    "solve",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'planner' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__
