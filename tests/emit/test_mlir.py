"""Emitted MLIR: parsed and verified by MLIR, lowered to LLVM, run, and equal to the reference."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from kernel_cases import OPERATORS, aligned, assert_equal, machine, small
from random_nests import plans, written

import planner
from planner import Plan
from planner.nest.reference import random_inputs, reference

ir: Any = pytest.importorskip("mlir.ir", reason="MLIR's bindings are not installed: pip install 'scope-planner[mlir]'")
LOWERING = "convert-scf-to-cf,convert-math-to-llvm,expand-strided-metadata,convert-to-llvm,reconcile-unrealized-casts"


def run(plan: Plan) -> None:
    from mlir.execution_engine import ExecutionEngine
    from mlir.passmanager import PassManager
    from mlir.runtime import get_ranked_memref_descriptor

    inputs = random_inputs(plan.operator)
    expected = reference(plan.operator, inputs)
    output = np.zeros(expected.shape, expected.dtype)
    with ir.Context():
        module = ir.Module.parse(plan.emit("mlir"))
        module.operation.verify()
        (name,) = [str(op.name.value) for op in module.body if op.operation.name == "func.func"]
        PassManager.parse(f"builtin.module({LOWERING})").run(module.operation)
        engine = ExecutionEngine(module, opt_level=2)
        arrays = [*(np.ascontiguousarray(v) for v in inputs.values()), output]
        arguments = [ctypes.pointer(ctypes.pointer(get_ranked_memref_descriptor(a))) for a in arrays]
        for _ in range(2):
            engine.invoke(name, *arguments)
            assert_equal(plan, output, expected)


@settings(
    max_examples=60, deadline=None, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(plans())
def test_every_nest(plan: Plan) -> None:
    note(written(plan))
    run(aligned(plan))


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", OPERATORS)
def test_operators(kind: str, depth: int) -> None:
    plan = planner.solve(OPERATORS[kind], machine(depth, copies=False, kib=0.75))
    run(plan)


def test_partial_sums_that_leave() -> None:
    run(small())
