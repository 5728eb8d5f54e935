"""Emitted TVM schedules: made by TVM, right on llvm, and within each scope once TVM has compacted the buffers."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hand_plans import attach_all, plan_of
from hypothesis import HealthCheck, Phase, given, note, settings
from kernel_cases import OPERATORS, assert_equal, machine, small
from random_nests import plans, written

import planner
from planner import Constraints, Machine, Plan, SpecError
from planner.emit.tvmscript import scope_name
from planner.nest.reference import random_inputs, reference
from planner.plan import Loop, NestEntry

tvm: Any = pytest.importorskip("tvm", reason="apache-tvm is not installed: pip install 'scope-planner[tvm]'")


def loaded(plan: Plan, folder: Path) -> Any:
    """The emitted module, imported."""
    path = folder / "scheduled.py"
    path.write_text(plan.emit("tvm-schedule"), encoding="utf-8")
    spec = importlib.util.spec_from_file_location("scheduled", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["scheduled"] = module  # TVM's parser looks the source up there
    spec.loader.exec_module(module)
    return module


def run(mod: Any, plan: Plan) -> None:
    inputs = random_inputs(plan.operator)
    expected = reference(plan.operator, inputs)
    output = tvm.runtime.tensor(np.zeros(expected.shape, expected.dtype))
    (name,) = [v.name_hint for v in mod.get_global_vars()]
    with tvm.transform.PassContext(config={"tirx.disable_storage_rewrite": True}):
        kernel = tvm.compile(mod, target="llvm")[name]
    kernel(*[tvm.runtime.tensor(np.ascontiguousarray(v)) for v in inputs.values()], output)
    assert_equal(plan, output.numpy(), expected)


def allocated(mod: Any) -> dict[str, int]:
    """Bytes of each scope once the buffers are as small as their use."""
    passes = [
        "LowerInitBlock", "PlanAndUpdateBufferAllocationLocation", "ConvertBlocksToOpaque", "CompactBufferAllocation",
        "LowerOpaqueBlock",
    ]  # fmt: skip
    for name in passes:
        mod = getattr(tvm.s_tir.transform, name)()(mod)
    found = next(iter(tvm.s_tir.analysis.calculate_allocated_bytes(mod).values()))
    return {str(k): int(v) for k, v in found.items()}


def assert_fits(mod: Any, plan: Plan) -> None:
    found = allocated(mod)
    for scope in plan.machine.scopes:
        assert found.get(scope_name(scope.name), 0) <= (scope.capacity or 0), (scope.name, found)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("kind", OPERATORS)
def test_operators(kind: str, depth: int, tmp_path: Path) -> None:
    """Ragged tiles where TVM needs no more than there is; else in larger scopes, and the plan for the small ones is refused."""
    operator = OPERATORS[kind].model_copy(update={"constraints": Constraints(spill=False)})
    plan = planner.solve(operator, machine(depth, copies=False, kib=0.75))
    try:
        plan.emit("tvm-schedule")
    except SpecError as error:
        assert "tvmscript or c, or" in str(error)
        plan = planner.solve(operator, machine(depth, copies=False, kib=4))
    mod = loaded(plan, tmp_path).schedule().mod
    run(mod, plan)
    assert_fits(mod, plan)


def test_the_forum_question(specs: Path, tmp_path: Path) -> None:
    """Padded input, weights, bias and the accumulator come on chip, and fit."""
    operator = planner.load_operator(specs / "operators" / "forum-conv2d.yaml")
    plan = planner.solve(operator, planner.load_machine(specs / "machines" / "forum.yaml"))
    mod = loaded(plan, tmp_path).schedule().mod
    run(mod, plan)
    used = {
        m: sum(b.size_bytes for b in plan.buffers if b.memory == m) for m in ("inp_buffer", "wgt_buffer", "acc_buffer")
    }
    assert allocated(mod) == {scope_name(m): n for m, n in used.items()}


def test_partial_sums_that_leave() -> None:
    refused = "output@l1 is inside of a reduction loop: its partial sums leave and come back"
    with pytest.raises(SpecError, match=f"{refused}.*use target tvmscript or c, or solve with --no-spill"):
        small().emit("tvm-schedule")


@settings(
    max_examples=60, deadline=None, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(plans())
def test_every_nest(tmp_path_factory: pytest.TempPathFactory, plan: Plan) -> None:
    """Refused with another target to take, or right."""
    note(written(plan))
    try:
        plan.emit("tvm-schedule")
    except SpecError as error:
        assert "tvmscript or c, or" in str(error)
        return
    mod = loaded(plan, tmp_path_factory.mktemp("tvm")).schedule().mod
    run(mod, plan)
    assert_fits(mod, plan)


def test_results_leave_through_every_scope(tmp_path: Path) -> None:
    """Four scopes in a chain, each in a loop of its own but the last two."""
    operator = planner.matmul(8, 16, 32, bias=True)
    memories = [{"name": "dram"}]
    memories += [{"name": f"l{i}", "parent": f"l{i + 1}" if i < 4 else "dram", "capacity": 4096} for i in (4, 3, 2, 1)]
    nest: list[NestEntry] = []
    for memory, loops in {"l4": [Loop("m", 4)], "l3": [Loop("n", 8)], "l2": [Loop("m", 2)], "l1": []}.items():
        nest += [*loops, *attach_all(operator, memory)]
    plan = plan_of(operator, Machine.model_validate({"name": "chain", "memories": memories}), [*nest, Loop("k", 4)])
    mod = loaded(plan, tmp_path).schedule().mod
    run(mod, plan)
    used = {m.name: sum(b.size_bytes for b in plan.buffers if b.memory == m.name) for m in plan.machine.scopes}
    assert allocated(mod) == {scope_name(m): n for m, n in used.items()}


@pytest.mark.parametrize("kind", ["conv2d", "matmul in float32", "avg_pool2d"])
def test_the_module_compares_itself_with_numpy(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    operator = OPERATORS[kind].model_copy(update={"constraints": Constraints(spill=False)})
    plan = planner.solve(operator, machine(2, copies=False, kib=4))
    with pytest.raises(SystemExit) as exit:
        loaded(plan, tmp_path).main()
    assert exit.value.code == 0
    assert [line.partition(" of ")[0] for line in capsys.readouterr().out.splitlines()] == ["plain: 0", "planned: 0"]
