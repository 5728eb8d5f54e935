"""Emitted Python: any nest, and any name that a spec may hold, gives a module that runs by itself and is right."""

from __future__ import annotations

import ast
import builtins
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hand_plans import attach_all, plan_of
from hypothesis import HealthCheck, given, note, settings
from random_nests import plans, written

import planner
from planner import Machine, Operator, Plan
from planner.emit.numpy_helpers import RESERVED
from planner.emit.python import identifier
from planner.nest.arithmetic import tolerance
from planner.nest.reference import random_inputs, reference
from planner.plan import Attach, Loop, NestEntry


def function(plan: Plan) -> Any:
    """The emitted function."""
    names: dict[str, Any] = {"__name__": "kernel"}
    exec(compile(plan.emit("python"), "kernel.py", "exec"), names)
    return names[identifier(plan.operator.name)]


def assert_right(plan: Plan) -> None:
    inputs = random_inputs(plan.operator)
    got, expected = function(plan)(*inputs.values()), reference(plan.operator, inputs)
    assert got.dtype == expected.dtype
    if expected.dtype.kind == "f":
        off = tolerance(plan.operator)
        finite = expected[np.isfinite(expected)]
        scale = float(np.abs(finite).max(initial=0))
        assert np.isclose(got, expected, rtol=off, atol=off * scale).all()
    else:
        assert (got == expected).all()


@settings(max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(plans())
def test_every_nest(plan: Plan) -> None:
    note(written(plan))
    assert_right(plan)


# Names --------------------------------------------------------------------------------------------------------------


def matmul(a: str, b: str, y: str, *, bias: str = "", dims: str = "m n k", memory: str = "l1", name: str = "f") -> Plan:
    """A small matmul with these names, tiled so that partial sums spill and the kernel has everything in it."""
    m, n, k = dims.split()
    operands: dict[str, Any] = {
        a: {"role": "input", "dtype": "int8", "shape": [5, 7], "index": [m, k]},
        b: {"role": "weight", "dtype": "int8", "shape": [7, 6], "index": [k, n]},
        y: {"role": "output", "dtype": "int16", "shape": [5, 6], "index": [m, n]},
    }
    if bias:
        operands[bias] = {"role": "bias", "dtype": "int32", "shape": [6], "index": [n]}
    operator = Operator.model_validate(
        {"name": name, "dims": {m: 5, n: 6, k: 7}, "accumulate": "int32", "operands": operands}
    )
    scope = {"name": memory, "parent": "dram", "capacity": 4096, "double_buffered": True}
    machine = Machine.model_validate({"name": "m", "memories": [{"name": "dram"}, scope]})
    first, *others = attach_all(operator, memory)
    nest: list[NestEntry] = [Loop(m, 2), first, Loop(k, 3), *others, Loop(n, 4)]
    return plan_of(operator, machine, nest)


NAMES: dict[str, Plan] = {
    "temporaries": matmul("x0", "x1", "total"),
    "names of the self-test": matmul("acc", "expected", "box", bias="actual"),
    "loop variables": matmul("m_0", "k_0", "m_0_end"),
    "the function's own": matmul("f", "b", "y"),
    "an output as the function": matmul("a", "b", "f"),
    "buffers": matmul("a", "a_l1", "a_l1_box", bias="a_l1_base"),
    "arenas": matmul("l1_bytes", "y_partial", "y"),
    "modules": matmul("np", "math", "random"),
    "builtins that the kernel calls": matmul("slice", "range", "min", bias="tuple"),
    "builtins that the self-test calls": matmul("print", "int", "SystemExit"),
    "helpers": matmul("span", "clip", "at", bias="window"),
    "helpers as dims": matmul("a", "b", "y", dims="view finish plain"),
    "operands as dims": matmul("a", "b", "y", dims="a b y"),
    "dims of the epilogue": matmul("a", "b", "y", dims="values count place"),
    "a scope with marks": matmul("a", "b", "y", memory="2nd.l1-a"),
    "a function in words": matmul("a", "b", "y", name="my kernel, 2nd"),
    "quotes": matmul("a", "b", "y", name='"""; raise SystemExit("ran"); """'),
    "backslashes": matmul("a", "b", "y", name="a\\"),
    "other letters": matmul("a", "b", "y", name="faltung-größe"),
    "letters that Python reads as others": matmul("fi", "b", "y", name="ﬁ"),
    "a keyword": matmul("a", "b", "y", name="class"),
    "a module's name": matmul("a", "b", "y", name="np"),
    "a helper's name": matmul("a", "b", "y", name="finish"),
}


@pytest.mark.parametrize("kind", NAMES)
def test_any_names(kind: str, tmp_path: Path) -> None:
    plan = NAMES[kind]
    plan.verify()
    assert_right(plan)
    file = tmp_path / "kernel.py"
    file.write_text(plan.emit("python"), encoding="utf-8")
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "0 of 30 outputs differ\n"), done.stderr


def test_the_self_test_can_fail(tmp_path: Path) -> None:
    """A kernel that adds up twice as much says so, and exits with 1."""
    source = matmul("a", "b", "y").emit("python")
    broken = source.replace(" += total", " += 2 * total", 1)
    assert broken != source
    file = tmp_path / "kernel.py"
    file.write_text(broken, encoding="utf-8")
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert not done.stdout.startswith("0 of")


def test_run_again_gives_the_same() -> None:
    """Nothing is left behind from one run to the next, and no input is written to."""
    plan = matmul("a", "b", "y", bias="c")
    kernel, inputs = function(plan), random_inputs(plan.operator)
    before = {name: values.copy() for name, values in inputs.items()}
    first = kernel(*inputs.values())
    assert (kernel(*inputs.values()) == first).all()
    assert all((inputs[name] == before[name]).all() for name in inputs)


def test_more_loops_than_python_nests() -> None:
    """45 loops around partial sums and double buffers: Python takes 20 in one function."""
    plan = matmul("a", "b", "y", bias="c")
    idle: list[NestEntry] = [Loop(d, n) for d, n in (("m", 5), ("n", 6), ("k", 7)) for _ in range(5)]
    more: list[NestEntry] = [Loop("m", 2)] * 15
    first, rest = plan.nest[0], list(plan.nest[1:])
    deep = plan_of(plan.operator, plan.machine, [*idle, first, *more, *rest, *[Loop("n", 4)] * 12])
    deep.verify()
    assert_right(deep)
    assert deep.emit("python").count("def inside_") == 2


@pytest.mark.parametrize("size", [1, 2])
def test_means_of_one_point(size: int) -> None:
    operator = planner.avg_pool2d((1, 1, size, 1), (1, 1))
    machine = Machine.model_validate(
        {"name": "m", "memories": [{"name": "dram"}, {"name": "l1", "parent": "dram", "capacity": 4096}]}
    )
    plan = plan_of(operator, machine, attach_all(operator, "l1"))
    plan.verify()
    assert_right(plan)


def test_narrow_accumulators_wrap() -> None:
    """Sums beyond an int16 wrap; a cast from a float beyond its range would do as the processor likes."""
    operator = planner.matmul(3, 4, 600, accumulate="int16", output_dtype="int16")
    machine = Machine.model_validate(
        {"name": "m", "memories": [{"name": "dram"}, {"name": "l1", "parent": "dram", "capacity": 65536}]}
    )
    plan = plan_of(operator, machine, [Attach(name, "l1") for name in operator.operands])
    plan.verify()
    assert_right(plan)
    assert ".astype(np.int64).astype(np.int16)" in plan.emit("python")


def test_every_builtin_that_the_source_uses_is_reserved() -> None:
    """An operand may have any name: what the module itself calls must not be shadowed."""
    plan = matmul("a", "b", "y", bias="c")
    tree = ast.parse(plan.emit("python"))
    called = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and hasattr(builtins, n.id)}
    assert called <= RESERVED
