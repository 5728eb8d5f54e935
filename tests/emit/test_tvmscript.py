"""Emitted TVMScript: parsed, compiled for llvm and for C by TVM, equal to the reference, and within each scope."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from kernel_cases import OPERATORS, aligned, assert_equal, machine, small
from random_nests import plans, written

import planner
from planner import Plan, SpecError
from planner.emit.tvmscript import scope_name
from planner.nest.reference import random_inputs, reference

tvm: Any = pytest.importorskip("tvm", reason="apache-tvm is not installed: pip install 'scope-planner[tvm]'")


def module(plan: Plan) -> Any:
    return tvm.script.from_source(plan.emit("tvmscript"))


def run(mod: Any, plan: Plan) -> None:
    inputs = random_inputs(plan.operator)
    expected = reference(plan.operator, inputs)
    output = tvm.runtime.tensor(np.zeros(expected.shape, expected.dtype))
    (name,) = [v.name_hint for v in mod.get_global_vars()]
    kernel = tvm.compile(mod, target="llvm")[name]
    for _ in range(2):
        kernel(*[tvm.runtime.tensor(np.ascontiguousarray(v)) for v in inputs.values()], output)
        assert_equal(plan, output.numpy(), expected)


@settings(
    max_examples=60, deadline=None, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(plans())
def test_every_nest(plan: Plan) -> None:
    note(written(plan))
    run(module(aligned(plan)), plan)


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", OPERATORS)
def test_operators(kind: str, depth: int) -> None:
    """Right on llvm, taken by the C backend, and no scope holds more than the plan says."""
    plan = planner.solve(OPERATORS[kind], machine(depth, copies=False, kib=0.75))
    mod = module(plan)
    run(mod, plan)
    source = tvm.compile(mod, target="c").mod.inspect_source()
    assert plan.operator.name in source
    allocated = next(iter(tvm.s_tir.analysis.calculate_allocated_bytes(mod).values()))
    for scope in plan.machine.scopes:
        planned = max((b.offset_bytes + b.size_bytes for b in plan.buffers if b.memory == scope.name), default=0)
        assert int(allocated.get(scope_name(scope.name), 0)) == planned <= (scope.capacity or 0)


def test_partial_sums_that_leave() -> None:
    run(module(small()), small())


def test_too_many_elements() -> None:
    plan = planner.solve(planner.matmul(2**16, 2**16, 4), machine(2, copies=False))
    with pytest.raises(SpecError, match="32 bits; use target c"):
        plan.emit("tvmscript")
