"""The program that tests an emitted C kernel: random inputs and golden outputs as arrays, a comparison, and a count of bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.emit.c_values import TYPES, number
from planner.emit.names import words
from planner.emit.program import Number, Program, Tensor
from planner.nest.arithmetic import tolerance
from planner.nest.reference import random_inputs, reference
from planner.plan import Plan


def self_test(plan: Plan, program: Program, links: Iterable[str]) -> Iterator[str]:
    """Lines of the program; `links` are the kernel's channels in order, as `input@l1 load`."""
    inputs = random_inputs(plan.operator)
    golden = reference(plan.operator, inputs)
    name = program.name
    given = [t for t in program.tensors if t.kind == "given"]
    result = next(t for t in program.tensors if t.kind == "result")
    yield "/*"
    yield f" * Runs {name} twice on random inputs and compares with golden outputs; with -DPLANNER_COUNT it also compares the"
    yield " * bytes that each link moves with the plan's."
    yield " *"
    yield f" *     cc -std=c99 {name}.c test_{name}.c -lm && ./a.out"
    yield " */"
    yield f'#include "{name}.h"'
    yield ""
    if program.operator.output.dtype.startswith("float"):
        yield "#include <math.h>"
    yield "#include <stdio.h>"
    yield ""
    for t in given:
        yield from _array(f"given_{t.name}", t, inputs[t.operand])
    yield from _array("golden", result, golden)
    yield f"static {TYPES[result.dtype]} output[{golden.size}];"
    yield ""
    yield from _predicted(plan, name, links)
    yield ""
    yield from _main(plan, program, golden)


def _predicted(plan: Plan, name: str, links: Iterable[str]) -> Iterator[str]:
    """What each channel is to move, by the plan."""
    predicted: dict[str, int] = {}
    for link in plan.links:
        predicted[f"{link.operand}@{link.memory} load"] = link.read_bytes
        predicted[f"{link.operand}@{link.memory} store"] = link.written_bytes
    yield "#ifdef PLANNER_COUNT"
    yield f"unsigned long long planner_dma_bytes[{name.upper()}_CHANNELS];"
    yield "static const struct {"
    yield "    const char *link;"
    yield "    unsigned long long bytes;"
    yield f"}} predicted[{name.upper()}_CHANNELS] = {{"
    yield from (f'    {{"{words(link)}", {predicted[link]}ull}},' for link in links)
    yield "};"
    yield "#endif"


def _main(plan: Plan, program: Program, golden: NDArray[Any]) -> Iterator[str]:
    name = program.name
    result = next(t for t in program.tensors if t.kind == "result")
    yield "int main(void)"
    yield "{"
    yield "    long different = 0;"
    yield "    for (int run = 0; run < 2; ++run) {"
    yield f"        for (long i = 0; i < {golden.size}; ++i) {{"
    yield f"            output[i] = {number(Number(0, result.dtype))};"
    yield "        }"
    arguments = ", ".join(
        f"given_{t.name}" if t.kind == "given" else "output" for t in program.tensors if t.kind != "partial"
    )
    yield f"        {name}({arguments});"
    yield f"        for (long i = 0; i < {golden.size}; ++i) {{"
    yield f"            different += {_differs(plan, golden)};"
    yield "        }"
    yield "    }"
    yield f'    printf("%ld of %ld outputs differ\\n", different, {golden.size}L);'
    yield "#ifdef PLANNER_COUNT"
    yield f"    for (int i = 0; i < {name.upper()}_CHANNELS; ++i) {{"
    yield "        const unsigned long long moved = planner_dma_bytes[i] / 2;"
    yield '        printf("%s: %llu B moved, %llu B predicted\\n", predicted[i].link, moved, predicted[i].bytes);'
    yield "        different += planner_dma_bytes[i] != 2 * predicted[i].bytes;"
    yield "    }"
    yield "#endif"
    yield "    return different != 0;"
    yield "}"


def _differs(plan: Plan, golden: NDArray[Any]) -> str:
    if golden.dtype.kind != "f":
        return "output[i] != golden[i]"
    off = tolerance(plan.operator)
    scale = float(np.abs(golden, where=np.isfinite(golden), out=np.zeros_like(golden)).max(initial=0))
    away = "fabs((double)output[i] - (double)golden[i])"
    return f"!(output[i] == golden[i] || {away} <= {off * scale!r} + {off!r} * fabs((double)golden[i]))"


def _array(name: str, tensor: Tensor, values: NDArray[Any]) -> Iterator[str]:
    flat_values = values.reshape(-1)
    yield f"static const {TYPES[tensor.dtype]} {name}[{flat_values.size}] = {{"
    for start in range(0, flat_values.size, 16):
        row = flat_values[start : start + 16].tolist()
        yield "    " + ", ".join(number(Number(v, tensor.dtype)) for v in row) + ","
    yield "};"
