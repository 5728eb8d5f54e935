"""Random operators, machines and nests: any legal plan, optimal or not, checks, runs, and computes what it should."""

from __future__ import annotations

import json
import math
import random
from typing import Any

import numpy as np
import pytest
from random_problems import problem

import planner
from planner import Machine, Operator, Plan
from planner.check import measure
from planner.nest.reference import random_inputs, reference
from planner.plan import Attach, Loop, NestEntry, Objective, PlannedBuffer


def random_plan(operator: Operator, machine: Machine, rng: random.Random) -> Plan:
    """A plan with a random order of attach points and random tiles, in scopes as large as it needs."""
    waiting = {name: [m.name for m in machine.path(name, o)] for name, o in operator.operands.items()}
    tiles, nest = dict(operator.dims), list[NestEntry]()
    while waiting:
        dims = list(operator.dims)
        rng.shuffle(dims)
        for dim in dims:
            if tiles[dim] > 1 and rng.random() < 0.35:
                tiles[dim] = rng.randint(1, tiles[dim])
                nest.append(Loop(dim, tiles[dim]))
        name = rng.choice(sorted(waiting))
        nest.append(Attach(name, waiting[name].pop(0)))
        if not waiting[name]:
            del waiting[name]
    return placed(operator, machine, tuple(nest))


def placed(operator: Operator, machine: Machine, nest: tuple[NestEntry, ...]) -> Plan:
    """The plan of a nest, its buffers stacked in scopes grown to hold them."""
    shapes, links = measure(operator, machine, nest)
    ends = dict.fromkeys((m.name for m in machine.memories), 0)
    buffers: list[PlannedBuffer] = []
    for entry in nest:
        if isinstance(entry, Attach):
            scope = machine.memory(entry.memory)
            copies = 2 if scope.double_buffered else 1
            size = math.prod(shapes[str(entry)]) * operator.buffer_element_bytes(entry.operand) * copies
            offset = -(-ends[scope.name] // scope.alignment) * scope.alignment
            buffers.append(PlannedBuffer(entry.operand, entry.memory, shapes[str(entry)], offset, size, copies))
            ends[scope.name] = offset + size
    memories = tuple(
        m.model_copy(update={"spill": True, **({"capacity": max(ends[m.name], 1)} if m.parent else {})})
        for m in machine.memories
    )
    grown = machine.model_copy(update={"memories": memories})
    traffic = sum(k.read_bytes + k.written_bytes for k in links if k.parent == machine.backing.name)
    return Plan("feasible", Objective("traffic", traffic, 0), operator, grown, nest, tuple(buffers), tuple(links))


def run_source(plan: Plan, inputs: dict[str, Any]) -> Any:
    """The output of the emitted Python kernel."""
    from planner.emit.python import identifier

    names: dict[str, Any] = {"__name__": "kernel"}
    exec(compile(plan.emit("python"), "kernel.py", "exec"), names)
    return names[identifier(plan.operator.name)](*inputs.values())


EPILOGUES: list[dict[str, Any]] = [
    {},
    {"relu": True},
    {"requantise": {"multiplier": 77, "shift": 9, "zero_point": -3}, "relu": True},
    {"requantise": {"multiplier": -5, "shift": 0}, "clip": [-100, 90]},
    {"clip": [-7, 11]},
]


@pytest.mark.parametrize("number", range(250))
def test_any_legal_plan_is_right(number: int) -> None:
    operator_data, machine_data = problem(number)
    rng = random.Random(number)
    epilogue = rng.choice(EPILOGUES)
    if operator_data["accumulate"].startswith("float") and "requantise" in epilogue:
        epilogue = {"relu": True}
    operator = Operator.model_validate({**operator_data, "epilogue": epilogue})
    for _ in range(3):
        plan = random_plan(operator, Machine.model_validate(machine_data), rng)
        context = plan.to_json()
        try:
            plan.verify(number)
        except planner.VerificationError as error:
            pytest.fail(f"{error}\n{context}")
        assert Plan.from_json(context) == plan
    inputs = random_inputs(operator, number)
    actual, expected = run_source(plan, inputs), reference(operator, inputs)
    if expected.dtype.kind == "f":
        assert np.allclose(actual, expected, rtol=1e-4, atol=1e-4), context
    else:
        assert (actual == expected).all(), context


NAMED: dict[str, Operator] = {
    "conv2d": planner.conv2d((2, 5, 11, 9), (6, 5, 3, 3), pads=(1, 0, 2, 1), strides=(2, 1), bias=True),
    "dilated": planner.conv2d((1, 3, 13, 12), (4, 3, 3, 2), dilations=(2, 3), pads=2),
    "grouped": planner.conv2d((1, 6, 8, 8), (9, 2, 3, 3), groups=3, pads=1, bias=True, output_dtype="int8"),
    "depthwise": planner.depthwise_conv2d((1, 7, 10, 9), (7, 1, 3, 3), pads=1, strides=(2, 2), bias=True),
    "multiplier": planner.depthwise_conv2d((1, 3, 7, 7), (6, 1, 3, 3), pads=1),
    "matmul": planner.matmul(13, 11, 17, bias=True),
    "batch_matmul": planner.batch_matmul(3, 5, 7, 11),
    "dense": planner.dense(3, 19, 10, bias=True, dtype="float32"),
    "max_pool2d": planner.max_pool2d((1, 5, 11, 11), (3, 3), strides=(2, 2), pads=1),
    "avg_pool2d": planner.avg_pool2d((1, 5, 11, 11), (3, 3), strides=(2, 2), pads=1),
    "avg_pool2d with padding": planner.avg_pool2d((1, 5, 9, 9), (2, 3), pads=1, count_include_pad=True),
    "float avg_pool2d": planner.avg_pool2d((1, 3, 9, 9), (3, 3), pads=1, dtype="float32"),
    "add": planner.add((3, 5, 7)),
    "int16": planner.conv2d((1, 3, 8, 8), (4, 3, 3, 3), dtype="int16"),
    "uint8": planner.conv2d((1, 3, 8, 8), (4, 3, 3, 3), dtype="uint8", pads=1),
    "float16": planner.matmul(5, 6, 7, dtype="float16"),
    "one point": planner.matmul(1, 1, 1),
}


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("kind", ["three scopes", "one scope", "two deep", "double"])
def test_named_operators_end_to_end(name: str, kind: str) -> None:
    plan = planner.solve(NAMED[name], _machine(kind))
    assert plan.status == "optimal", plan.shortages
    plan.verify()
    inputs = random_inputs(plan.operator, 3)
    actual, expected = run_source(plan, inputs), reference(plan.operator, inputs)
    assert (
        np.allclose(actual, expected, rtol=1e-3, atol=1e-3)
        if expected.dtype.kind == "f"
        else (actual == expected).all()
    )


def _machine(kind: str) -> Machine:
    shared = {"name": "l1", "parent": "dram", "capacity": 600, "alignment": 8}
    three = [
        {"name": "i", "parent": "dram", "capacity": 128, "holds": ["input"]},
        {"name": "w", "parent": "dram", "capacity": 96, "holds": ["weight"]},
        {"name": "a", "parent": "dram", "capacity": 256, "holds": ["bias", "output"], "alignment": 16},
    ]
    scopes: dict[str, list[dict[str, Any]]] = {
        "three scopes": three,
        "one scope": [shared],
        "two deep": [shared, *({**s, "parent": "l1"} for s in three)],
        "double": [{**shared, "double_buffered": True}],
    }
    return Machine.model_validate({"name": kind, "memories": [{"name": "dram"}, *scopes[kind]]})


def test_the_average_of_a_constant_is_the_constant() -> None:
    """Padding must not dilute a mean: divide by the points inside."""
    plan = planner.solve(planner.avg_pool2d((1, 1, 5, 5), (3, 3), pads=1), _machine("one scope"))
    assert (run_source(plan, {"input": np.full((1, 1, 5, 5), 9, np.int8)}) == 9).all()


def test_padding_never_wins_a_maximum() -> None:
    plan = planner.solve(planner.max_pool2d((1, 1, 5, 5), (3, 3), pads=1), _machine("one scope"))
    assert (run_source(plan, {"input": np.full((1, 1, 5, 5), -9, np.int8)}) == -9).all()


def test_the_epilogue_by_hand() -> None:
    """2 * 3 = 6 times 5, plus 4 (half of 8), over 8: 4 (floor of 4.25); -30 + 4 over 8: -4 (floor of -3.25)."""
    epilogue = planner.Epilogue(requantise=planner.Requantise(multiplier=5, shift=3, zero_point=1))
    operator = planner.matmul(2, 1, 1, epilogue=epilogue, output_dtype="int8")
    plan = planner.solve(operator, _machine("one scope"))
    inputs = {"input": np.array([[2], [-2]], np.int8), "weight": np.array([[3]], np.int8)}
    assert run_source(plan, inputs).tolist() == [[5], [-3]]
    assert reference(operator, inputs).tolist() == [[5], [-3]]


def test_json_is_stable() -> None:
    plan = planner.solve(NAMED["conv2d"], _machine("two deep"))
    assert plan.to_json() == Plan.from_json(plan.to_json()).to_json()
    assert json.loads(plan.to_json())["schema_version"] == 1
