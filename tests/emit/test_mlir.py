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
from planner.nest.arithmetic import neutral
from planner.nest.reference import random_inputs, reference, sums
from planner.plan import Loop

ir: Any = pytest.importorskip(
    "mlir.ir", exc_type=ImportError, reason="MLIR's bindings are not installed: pip install 'scope-planner[mlir]'"
)
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


def tiled(plan: Plan) -> tuple[int, np.ndarray[Any, Any]]:
    """Run the transform script and then the tiled payload; the loops that it made, and the accumulators."""
    from mlir.execution_engine import ExecutionEngine
    from mlir.passmanager import PassManager
    from mlir.runtime import get_ranked_memref_descriptor

    operator = plan.operator
    inputs = random_inputs(operator)
    arrays: list[np.ndarray[Any, Any]] = []
    for name, operand in operator.factors.items():
        spans = [
            (axis.offset + sum(min(a * (operator.dims[d] - 1), 0) for d, a in axis.terms),
             axis.offset + sum(max(a * (operator.dims[d] - 1), 0) for d, a in axis.terms))
            for axis in operand.index
        ]  # fmt: skip
        margins = [
            (max(-low, 0), max(high - size + 1, 0)) for (low, high), size in zip(spans, operand.shape, strict=True)
        ]
        arrays.append(np.ascontiguousarray(np.pad(inputs[name], margins, constant_values=operator.padding_value)))
    text = plan.emit("mlir-transform")
    if "%window" in text:
        shape = text.split("%window: memref<")[1].split("xi8>")[0]
        arrays.append(np.zeros([int(n) for n in shape.split("x")], np.int8))
    without_bias = {n: o for n, o in operator.operands.items() if o.role != "bias"}
    bare = operator.model_copy(update={"operands": without_bias})
    expected = sums(bare, {n: v for n, v in inputs.items() if n in without_bias})
    start = neutral(operator)
    result = np.full(operator.output.shape, start, operator.accumulate)
    with ir.Context():
        module = ir.Module.parse(text)
        module.operation.verify()
        PassManager.parse("builtin.module(transform-interpreter)").run(module.operation)
        loops = str(module).count("scf.for")
        lowering = "convert-linalg-to-loops,lower-affine," + LOWERING.replace("expand-strided-metadata,", "")
        for op in list(module.body):
            if op.operation.name == "transform.named_sequence":
                op.operation.erase()
        (name,) = [str(op.name.value) for op in module.body if op.operation.name == "func.func"]
        pipeline = f"builtin.module(expand-strided-metadata,{lowering})"
        PassManager.parse(pipeline).run(module.operation)
        engine = ExecutionEngine(module, opt_level=2)
        engine.invoke(
            name, *[ctypes.pointer(ctypes.pointer(get_ranked_memref_descriptor(a))) for a in [*arrays, result]]
        )
    assert_equal(plan, result, expected)
    return loops, result


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("kind", OPERATORS)
def test_transform_script(kind: str, depth: int) -> None:
    """The script makes the plan's tile loops, and the tiled payload still computes the same sums."""
    plan = planner.solve(OPERATORS[kind], machine(depth, copies=False, kib=0.75))
    loops, _ = tiled(plan)
    assert loops == sum(isinstance(entry, Loop) for entry in plan.nest)
