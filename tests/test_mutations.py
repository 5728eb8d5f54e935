"""Break a plan or its kernel in each way there is, and see it caught: a check that cannot fail proves nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from conftest import one_scope, scopes

import planner
from planner import Plan, VerificationError
from planner.nest.interpret import interpret
from planner.nest.ir import Compute, Finish, For, Init, Kernel, Load, Statement, Store, Visit, When
from planner.nest.lower import lower
from planner.nest.reference import random_inputs, reference
from planner.plan import Loop, Objective


@pytest.fixture(scope="module")
def plan() -> Plan:
    """A plan with halo, padding, ragged tails, a bias, and partial sums that spill."""
    order = ["weight@wgt_buffer", "output@acc_buffer", "input@inp_buffer"]
    tiles = {"wgt_buffer": {"c": 3, "k": 4}, "output": {"p": 4, "q": 5}, "input": {"q": 4}}
    demands = planner.Constraints.model_validate({"order": order, "tiles": tiles})
    operator = planner.conv2d((1, 7, 9, 9), (10, 7, 3, 3), pads=1, bias=True, constraints=demands)
    made = planner.solve(operator, scopes(120, 110, 500, alignment=4))
    assert made.links[-1].loads > 0, "the output must spill for these tests to mean anything"
    return made


@pytest.fixture(scope="module")
def doubled() -> Plan:
    """A plan whose scope keeps two copies of each buffer."""
    return planner.solve(planner.conv2d((1, 4, 9, 9), (6, 4, 3, 3), pads=1), one_scope(700, double_buffered=True))


# Plans: caught by check ---------------------------------------------------------------------------------------------


def _buffer(plan: Plan, at: int, **change: object) -> Plan:
    changed = [replace(b, **change) if i == at else b for i, b in enumerate(plan.buffers)]  # type: ignore[arg-type]
    return replace(plan, buffers=tuple(changed))


def _link(plan: Plan, at: int, **change: object) -> Plan:
    changed = [replace(k, **change) if i == at else k for i, k in enumerate(plan.links)]  # type: ignore[arg-type]
    return replace(plan, links=tuple(changed))


def _first_loop(plan: Plan, change: Callable[[Loop], Loop | None]) -> Plan:
    at = next(i for i, e in enumerate(plan.nest) if isinstance(e, Loop))
    loop = plan.nest[at]
    assert isinstance(loop, Loop)
    new = change(loop)
    return replace(plan, nest=(*plan.nest[:at], *([new] if new else []), *plan.nest[at + 1 :]))


def _capacity_less_one(plan: Plan) -> Plan:
    last = max((b for b in plan.buffers if b.memory == "acc_buffer"), key=lambda b: b.offset_bytes)
    small = last.offset_bytes + last.size_bytes - 1
    memories = tuple(
        m.model_copy(update={"capacity": small}) if m.name == "acc_buffer" else m for m in plan.machine.memories
    )
    return replace(plan, machine=plan.machine.model_copy(update={"memories": memories}))


def _demanded(plan: Plan, demands: dict[str, object]) -> Plan:
    constraints = planner.Constraints.model_validate(demands)
    return replace(plan, operator=plan.operator.model_copy(update={"constraints": constraints}))


PLAN_MUTATIONS: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "offset overlaps": (lambda p: _buffer(p, 2, offset_bytes=p.buffers[3].offset_bytes), "share bytes"),
    "offset misaligned": (lambda p: _buffer(p, 0, offset_bytes=2), "multiple of 4"),
    "offset beyond the scope": (lambda p: _buffer(p, 0, offset_bytes=120), "capacity"),
    "offset negative": (lambda p: _buffer(p, 0, offset_bytes=-4), "multiple of"),
    "capacity one byte short": (_capacity_less_one, "capacity"),
    "halo too short": (
        lambda p: _buffer(p, 0, shape=(*p.buffers[0].shape[:-1], p.buffers[0].shape[-1] - 1)),
        "its tiles need",
    ),
    "size too small": (lambda p: _buffer(p, 0, size_bytes=p.buffers[0].size_bytes - 1), "needs"),
    "copies wrong": (lambda p: _buffer(p, 0, copies=2), "copies"),
    "buffer missing": (lambda p: replace(p, buffers=p.buffers[1:]), "are listed"),
    "tile larger than what it cuts": (lambda p: _first_loop(p, lambda k: Loop(k.dim, 999)), "outside"),
    "tile zero": (lambda p: _first_loop(p, lambda k: Loop(k.dim, 0)), "outside"),
    "tile changed": (lambda p: _first_loop(p, lambda k: Loop(k.dim, k.tile - 1)), "the plan says|its tiles need"),
    "loop missing": (lambda p: _first_loop(p, lambda k: None), "the plan says|its tiles need"),
    "loop over no dim": (lambda p: _first_loop(p, lambda k: Loop("zz", 1)), "no dim"),
    "attach point missing": (
        lambda p: replace(p, nest=tuple(e for e in p.nest if getattr(e, "operand", "") != "bias")),
        "its path",
    ),
    "attached twice": (lambda p: replace(p, nest=(*p.nest, p.nest[-1])), "its path"),
    "bytes read wrong": (lambda p: _link(p, 0, read_bytes=p.links[0].read_bytes + 1), "the plan says"),
    "bytes written wrong": (lambda p: _link(p, 3, written_bytes=p.links[3].written_bytes - 1), "the plan says"),
    "loads wrong": (lambda p: _link(p, 1, loads=p.links[1].loads + 1), "the plan says"),
    "stores wrong": (lambda p: _link(p, 3, stores=0), "the plan says"),
    "objective wrong": (
        lambda p: replace(p, objective=Objective("traffic", 1, 1)),
        "add up",
    ),
    "bound above value": (
        lambda p: replace(p, objective=replace(p.objective, bound=(p.objective.value or 0) + 1)),
        "exceeds",
    ),
    "optimal with a gap": (
        lambda p: replace(p, objective=replace(p.objective, bound=(p.objective.value or 0) - 1)),
        "optimal",
    ),
    "pin disobeyed": (lambda p: _demanded(p, {"tiles": {"*": {"k": 3}}}), "disobeys"),
    "multiple disobeyed": (lambda p: _demanded(p, {"tiles": {"*": {"p": {"multiple_of": 8}}}}), "disobeys"),
    "spill forbidden": (lambda p: _demanded(p, {"spill": False}), "spills"),
    "order disobeyed": (
        lambda p: _demanded(p, {"order": [str(e) for e in reversed(p.nest) if hasattr(e, "operand")]}),
        "was demanded",
    ),
    "infeasible with a nest": (lambda p: replace(p, status="infeasible"), "yet there is a nest"),
}


def test_the_plan_itself_is_right(plan: Plan, doubled: Plan) -> None:
    plan.verify()
    doubled.verify()


@pytest.mark.parametrize("name", PLAN_MUTATIONS)
def test_check_catches(plan: Plan, name: str) -> None:
    mutate, words = PLAN_MUTATIONS[name]
    with pytest.raises(VerificationError, match=words):
        mutate(plan).check()


# Kernels: caught by the interpreter, or by comparing the result -----------------------------------------------------


def _edit(body: tuple[Statement, ...], edit: Callable[[Statement], tuple[Statement, ...]]) -> tuple[Statement, ...]:
    new: list[Statement] = []
    for statement in body:
        for kept in edit(statement):
            new.append(replace(kept, body=_edit(kept.body, edit)) if isinstance(kept, For | Visit) else kept)
    return tuple(new)


def _drop(kind: type, name: str = "") -> Callable[[Kernel], Kernel]:
    def mutate(kernel: Kernel) -> Kernel:
        def gone(s: Statement) -> bool:
            return isinstance(s, kind) and (not name or getattr(s, "buffer", "").startswith(name))

        return replace(kernel, body=_edit(kernel.body, lambda s: () if gone(s) else (s,)))

    return mutate


def _twice(kind: type) -> Callable[[Kernel], Kernel]:
    return lambda kernel: replace(kernel, body=_edit(kernel.body, lambda s: (s, s) if isinstance(s, kind) else (s,)))


def _condition(kind: type, field: str, when: When) -> Callable[[Kernel], Kernel]:
    def mutate(kernel: Kernel) -> Kernel:
        change = {field: when}
        return replace(
            kernel,
            body=_edit(kernel.body, lambda s: (replace(s, **change),) if isinstance(s, kind) else (s,)),  # type: ignore[type-var]
        )

    return mutate


def _spec(name: str, **change: object) -> Callable[[Kernel], Kernel]:
    def mutate(kernel: Kernel) -> Kernel:
        changed = [replace(b, **change) if b.operand == name else b for b in kernel.buffers]  # type: ignore[arg-type]
        return replace(kernel, buffers=tuple(changed))

    return mutate


def _short_halo(kernel: Kernel) -> Kernel:
    spec = next(b for b in kernel.buffers if b.operand == "input")
    return _spec("input", shape=(*spec.shape[:-1], spec.shape[-1] - 1))(kernel)


def _overlap(kernel: Kernel) -> Kernel:
    output = next(b for b in kernel.buffers if b.operand == "output")
    return _spec("bias", offset_bytes=output.offset_bytes)(kernel)


def _short_loop(kernel: Kernel) -> Kernel:
    """The outermost loop takes steps larger than its tile's end says: elements are left out."""

    def edit(s: Statement) -> tuple[Statement, ...]:
        return (replace(s, tile=s.tile + 1),) if isinstance(s, For) else (s,)

    return replace(kernel, body=_edit(kernel.body, edit))


KERNEL_MUTATIONS: dict[str, Callable[[Kernel], Kernel]] = {
    "input never loaded": _drop(Load, "input"),
    "weight never loaded": _drop(Load, "weight"),
    "bias never loaded": _drop(Load, "bias"),
    "partial sums never read back": _drop(Load, "output"),
    "accumulator never started": _drop(Init),
    "accumulator started at every step": _condition(Init, "when", When("always")),
    "partial sums read back at first": _condition(Load, "when", When("always")),
    "nothing computed": _drop(Compute),
    "computed twice": _twice(Compute),
    "never finished": _drop(Finish),
    "finished too early": _condition(Finish, "when", When("always")),
    "never stored": _drop(Store),
    "stored twice": _twice(Store),
    "stored as final at every step": _condition(Store, "final", When("always")),
    "halo too short": _short_halo,
    "bias and output overlap": _overlap,
    "offset misaligned": _spec("input", offset_bytes=1),
    "offset beyond the scope": _spec("weight", offset_bytes=4096),
    "tiles overrun": _short_loop,
}


@pytest.mark.parametrize("name", KERNEL_MUTATIONS)
def test_the_interpreter_catches(plan: Plan, name: str) -> None:
    kernel = KERNEL_MUTATIONS[name](lower(plan))
    inputs = random_inputs(plan.operator)
    try:
        report = interpret(kernel, inputs)
    except VerificationError:
        return
    assert (report.output != reference(plan.operator, inputs)).any(), "the broken kernel passed"


def test_merged_copies_are_caught(doubled: Plan) -> None:
    """Both copies of a double buffer on the same bytes: half the size, so that the next buffer moves up into it."""
    kernel = lower(doubled)
    doubles = [b for b in kernel.buffers if b.copies == 2]
    assert len(doubles) == 3
    first = min(doubles, key=lambda b: b.offset_bytes)
    merged = replace(doubled, buffers=tuple(
        replace(b, offset_bytes=b.offset_bytes - first.size_bytes // 2) if b.offset_bytes else b for b in doubled.buffers
    ))  # fmt: skip
    with pytest.raises(VerificationError, match="share bytes"):
        merged.check()
    with pytest.raises(VerificationError, match="share bytes"):
        interpret(lower(merged), random_inputs(doubled.operator))
    single = replace(doubled, buffers=tuple(replace(b, copies=1) for b in doubled.buffers))
    with pytest.raises(VerificationError, match="copies"):
        single.check()


def test_scopes_are_poisoned() -> None:
    """A kernel that computes before it loads reads poison, not yesterday's data."""
    plan = planner.solve(planner.matmul(4, 4, 8), scopes(8, 8, 64))
    kernel = _drop(Load, "input")(lower(plan))
    with pytest.raises(VerificationError, match="holds no such thing"):
        interpret(kernel, random_inputs(plan.operator))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shortages": ()}, "no scope is short"),
        ({"status": "optimal"}, "yet there is no nest"),
        ({"objective": Objective("traffic", 5, 5)}, "yet the objective has value 5"),
        ({"needed_bytes": 3}, "3 B needed, and it has"),
        ({"capacity_bytes": 2}, "says capacity 2"),
        ({"memory": "dram"}, "which is no scope"),
        ({"smallest_tiles": {"output": 1}}, "one element takes 4"),
        ({"smallest_tiles": {"input": 4}}, "it holds"),
        ({"smallest_tiles": {"output": 4096}}, "add up to more"),
    ],
)
def test_a_false_infeasibility_is_found(change: dict[str, Any], words: str) -> None:
    plan = planner.solve(planner.matmul(4, 4, 4), scopes(1024, 1024, 3))
    plan.check()
    parts = {k: v for k, v in change.items() if k not in ("shortages", "status", "objective")}
    whole = {k: v for k, v in change.items() if k not in parts}
    broken = replace(plan, shortages=tuple(replace(s, **parts) for s in plan.shortages))
    with pytest.raises(VerificationError, match=words):
        replace(broken, **whole).check()
