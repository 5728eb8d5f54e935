"""Kernels that every target has to emit: each kind of operator on trees of one to four levels, and odd ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from hand_plans import attach_all, plan_of
from numpy.typing import NDArray

import planner
from planner import Machine, Plan
from planner.nest.arithmetic import tolerance
from planner.plan import Loop


def machine(depth: int, *, copies: bool, kib: float = 1) -> Machine:
    """One scope, three side by side, or these below a shared one."""
    double = {"double_buffered": copies}
    memories: list[dict[str, object]] = [{"name": "dram"}]
    if depth == 1:
        memories.append({"name": "l1", "parent": "dram", "capacity": int(3 * kib * 1024), **double})
    else:
        parent = "dram"
        for level in range(3, depth + 1):
            memories.append(
                {"name": f"l{level}", "parent": parent, "capacity": int(2 ** (9 - level) * kib * 1024), **double}
            )
            parent = f"l{level}"
        roles = {"inp": ["input"], "wgt": ["weight"], "acc": ["bias", "output"]}
        memories += [
            {"name": name, "parent": parent, "holds": holds, "capacity": int(kib * 1024), **double}
            for name, holds in roles.items()
        ]
    return Machine.model_validate({"name": f"depth-{depth}", "memories": memories})


SCALED = {"requantise": {"multiplier": 1_340_000, "shift": 30, "zero_point": -3}, "relu": True}
OPERATORS = {
    "conv2d": planner.conv2d((1, 6, 11, 9), (7, 6, 3, 3), pads=1, bias=True, epilogue=SCALED),
    "groups, stride, dilation, asymmetric pads": planner.conv2d(
        (2, 6, 12, 13), (4, 3, 3, 2), groups=2, strides=(2, 3), dilations=(2, 1), pads=(0, 1, 3, 2), bias=True
    ),
    "depthwise": planner.depthwise_conv2d((1, 9, 11, 12), (9, 1, 3, 3), strides=2, pads=1, epilogue=SCALED),
    "matmul": planner.matmul(13, 17, 19, bias=True),
    "matmul in float32": planner.matmul(13, 17, 19, dtype="float32"),
    "batch_matmul": planner.batch_matmul(3, 7, 11, 5),
    "dense": planner.dense(5, 33, 21, bias=True, epilogue={**SCALED, "clip": (0, 6)}),
    "max_pool2d": planner.max_pool2d((1, 5, 13, 11), (3, 2), strides=2, pads=(1, 0, 1, 1)),
    "avg_pool2d": planner.avg_pool2d((1, 5, 13, 11), 3, strides=2, pads=1),
    "add": planner.add((3, 17, 19)),
}


def aligned(plan: Plan) -> Plan:
    """The same nest on a machine whose addresses suit any dtype."""
    wide = {"alignment": 8, "capacity": 2**30}
    memories = [m if m.parent is None else m.model_copy(update=wide) for m in plan.machine.memories]
    return plan_of(plan.operator, plan.machine.model_copy(update={"memories": tuple(memories)}), plan.nest)


def small(**fields: object) -> Plan:
    """A matmul with partial sums that leave, in a scope with two copies."""
    operator = planner.matmul(5, 6, 7, bias=True)
    scope = {"name": "l1", "parent": "dram", "capacity": 4096, "alignment": 4, "double_buffered": True, **fields}
    machine = Machine.model_validate({"name": "m", "memories": [{"name": "dram"}, scope]})
    first, *others = attach_all(operator, "l1")
    return plan_of(operator, machine, [Loop("m", 2), first, Loop("k", 3), *others, Loop("n", 4)])


def assert_equal(plan: Plan, got: NDArray[Any], expected: NDArray[Any]) -> None:
    """Bit by bit for integers; floats within the tolerance of their sums."""
    if expected.dtype.kind != "f":
        assert (got == expected).all()
        return
    off = tolerance(plan.operator)
    scale = float(np.abs(expected[np.isfinite(expected)]).max(initial=0))
    assert np.isclose(got, expected, rtol=off, atol=off * scale).all()
