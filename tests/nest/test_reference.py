"""The plain reference against Python integers, one point after the other: the rules of numbers as they are written down."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from itertools import product
from math import floor, prod
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, note, settings
from random_nests import operators

import planner
from planner import Operator
from planner.nest.reference import epilogue, random_inputs, reference, sums
from planner.spec.affine import Affine


def _index(index: tuple[Affine, ...], at: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(axis.offset + sum(a * at[d] for d, a in axis.terms) for axis in index)


def _wrap(value: int, dtype: str) -> int:
    limits = np.iinfo(dtype)
    return (value - int(limits.min)) % (1 << limits.bits) + int(limits.min)


def _inside(place: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return all(0 <= i < n for i, n in zip(place, shape, strict=True))


def point_by_point(operator: Operator, inputs: Mapping[str, Any]) -> tuple[dict[Any, int], dict[Any, int]]:
    """Accumulators and outputs by place, in Python's unbounded integers."""
    accumulators: dict[tuple[int, ...], int] = {}
    for where in product(*(range(n) for n in operator.dims.values())):
        at = dict(zip(operator.dims, where, strict=True))
        values: list[int] = []
        for name, operand in operator.factors.items():
            place = _index(operand.index, at)
            inside = _inside(place, operand.shape)
            values.append(int(inputs[name][place]) if inside else int(operator.padding_value))
        value = prod(values) if operator.combine == "multiply" else sum(values)
        target = _index(operator.output.index, at)
        if target not in accumulators:
            start = 0
            if operator.bias_name is not None:
                bias = operator.operands[operator.bias_name]
                start = int(inputs[operator.bias_name][_index(bias.index, at)])
            accumulators[target] = value if operator.reduce == "max" else start + value
        elif operator.reduce == "max":
            accumulators[target] = max(accumulators[target], value)
        else:
            accumulators[target] += value
    wrapped = {place: _wrap(value, operator.accumulate) for place, value in accumulators.items()}
    return wrapped, {place: _finished(operator, place, value) for place, value in wrapped.items()}


def _finished(operator: Operator, place: tuple[int, ...], value: int) -> int:
    steps = operator.epilogue
    if steps.average is not None:
        mean = Fraction(value, _points(operator, place))
        value = floor(abs(mean) + Fraction(1, 2)) * (-1 if mean < 0 else 1)
    if (q := steps.requantise) is not None:
        # Halves round up; a shift of zero has none.
        value = floor(Fraction(value * q.multiplier, 1 << q.shift) + Fraction(1, 2)) + q.zero_point
    if steps.relu:
        value = max(value, q.zero_point if q is not None else 0)
    if steps.clip is not None:
        value = min(max(value, int(steps.clip[0])), int(steps.clip[1]))
    limits = np.iinfo(operator.output.dtype)
    return min(max(value, int(limits.min)), int(limits.max))


def _points(operator: Operator, place: tuple[int, ...]) -> int:
    """Points of the averaged window at an output: inside the operand if only valid ones count."""
    average = operator.epilogue.average
    assert average is not None
    operand = operator.operands[average.operand]
    at = dict.fromkeys(operator.dims, 0)
    for axis, i in zip(operator.output.index, place, strict=True):
        at |= {d: i for d in axis.dims if operator.dims[d] > 1}
    count = 0
    for where in product(*(range(operator.dims[d]) for d in average.dims)):
        spot = _index(operand.index, {**at, **dict(zip(average.dims, where, strict=True))})
        count += not average.valid or _inside(spot, operand.shape)
    return max(count, 1)


@settings(max_examples=250, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(operators())
def test_every_integer_operator(operator: Operator) -> None:
    note(operator.model_dump_json(exclude_defaults=True))
    assume(not operator.accumulate.startswith("float") and operator.macs <= 5000)
    inputs = random_inputs(operator)
    accumulators, outputs = point_by_point(operator, inputs)
    computed = sums(operator, inputs)
    assert {place: int(computed[place]) for place in accumulators} == accumulators
    made = reference(operator, inputs)
    assert made.size == len(outputs)
    assert {place: int(made[place]) for place in outputs} == outputs


@pytest.mark.parametrize("dtype", ["int32", "uint32"])
def test_products_beyond_53_bits_are_exact(dtype: str) -> None:
    operator = Operator.model_validate({
        "name": "wide", "dims": {"m": 3, "k": 9}, "accumulate": "int64", "operands": {
            "a": {"role": "input", "dtype": dtype, "shape": [3, 9], "index": ["m", "k"]},
            "b": {"role": "weight", "dtype": dtype, "shape": [9], "index": ["k"]},
            "y": {"role": "output", "dtype": "int64", "shape": [3], "index": ["m"]},
        },
    })  # fmt: skip
    inputs = random_inputs(operator)
    exact = [sum(int(x) * int(y) for x, y in zip(row, inputs["b"], strict=True)) for row in inputs["a"]]
    assert reference(operator, inputs).tolist() == [_wrap(value, "int64") for value in exact]


def test_random_inputs_reach_both_ends() -> None:
    operator = planner.matmul(64, 64, 64)
    made = random_inputs(operator)
    assert (made["input"].min(), made["input"].max()) == (-128, 127)
    again = random_inputs(operator)
    assert all((made[name] == again[name]).all() for name in made)


def test_floats_to_integers_round_half_to_even() -> None:
    operator = planner.matmul(1, 4, 1, dtype="float32", output_dtype="int8")
    assert epilogue(operator, np.array([[0.5, 1.5, -2.5, 300.0]], np.float32)).tolist() == [[0, 2, -2, 127]]
