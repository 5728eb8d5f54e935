"""A few hundred small operators and machines, from a fixed seed: `python tests/random_problems.py 17` prints number 17."""

from __future__ import annotations

import math
import random
import sys
from typing import Any

MOST_MAPPINGS = 500_000
"""Larger problems are drawn again: the exhaustive search has to end within seconds."""
SIZES = {"int8": 1, "int16": 2, "int32": 4, "float32": 4}


def problem(number: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Operator and machine number `number`, as plain dicts in the form of the spec files."""
    for attempt in range(100):
        rng = random.Random(1000 * number + attempt)
        operator = rng.choice([_matmul, _conv1d, _conv1d, _depthwise, _two_dims, _pool, _add, _three])(rng)
        operator["name"] = f"random-{number}"
        machine = _machine(rng, operator, number)
        if _mappings(operator, machine) <= MOST_MAPPINGS:
            return operator, machine
    raise AssertionError("no attempt was small enough")


def demanding(number: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Problem `number`, with some of everything that a user may demand."""
    operator, machine = problem(number)
    rng = random.Random(77_000 + number)
    buffers = [
        f"{name}@{m['name']}"
        for name, o in operator["operands"].items()
        for m in machine["memories"][1:]
        if name in m["holds"] or o["role"] in m["holds"]
    ]
    places = ["*", *operator["operands"], *{b.partition("@")[2] for b in buffers}, *buffers]
    tiles: dict[str, dict[str, Any]] = {}
    for _ in range(rng.choice([0, 1, 1, 2, 3])):
        dim = rng.choice([*operator["dims"]])
        size = rng.randint(1, operator["dims"][dim])
        rule = rng.choice([{"equals": size}, {"minimum": size}, {"maximum": size}, {"multiple_of": min(size, 3)}, size])
        tiles.setdefault(rng.choice(places), {})[dim] = rule
    order = rng.sample(buffers, 2) if rng.random() < 0.5 else []
    # Of one operand, the outer buffer is named first.
    if order and order[0].partition("@")[0] == order[1].partition("@")[0]:
        order.sort(key=buffers.index)
    operator["constraints"] = {"tiles": tiles, "order": order, "spill": rng.random() < 0.8}
    return operator, machine


def deep_output(number: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A small problem whose accumulators lie two scopes deep, so that partial sums may leave either scope."""
    for attempt in range(1000):
        rng = random.Random(55_000_000 + 1000 * number + attempt)
        operator = rng.choice([_matmul, _conv1d, _two_dims, _three])(rng)
        operator["operands"].pop("bias", None)
        operator["name"] = f"deep-{number}"
        sizes = [math.prod(o["shape"]) for o in operator["operands"].values()]
        scopes = [("l2", "dram", ["weight", "output"]), ("acc", "l2", ["output"]), ("inp", "dram", ["input"])]
        machine: dict[str, Any] = {"name": f"deep-{number}", "memories": [{"name": "dram"}]}
        for name, parent, roles in scopes:
            capacity = rng.randint(1, 4 * sum(sizes) // 2) if name != "acc" else rng.randint(4, max(4, 2 * sizes[-1]))
            memory = {"name": name, "parent": parent, "capacity": capacity, "holds": roles}
            machine["memories"].append({**memory, "spill": False} if rng.random() < 0.15 else memory)
        if _mappings(operator, machine) <= MOST_MAPPINGS:
            return operator, machine
    raise AssertionError("no attempt was small enough")


def _mappings(operator: dict[str, Any], machine: dict[str, Any]) -> int:
    """How many mappings exhaustive search may have to look at."""
    buffers = 0
    for name, o in operator["operands"].items():
        buffers += sum(name in m.get("holds", ()) or o["role"] in m.get("holds", ()) for m in machine["memories"][1:])
    chains = math.factorial(buffers)
    for n in operator["dims"].values():
        chains *= math.comb(n + buffers - 1, buffers)
    return chains


def _operand(role: str, dtype: str, shape: list[int], index: list[str]) -> dict[str, Any]:
    return {"role": role, "dtype": dtype, "shape": shape, "index": index}


def _operator(dims: dict[str, int], operands: dict[str, Any], dtype: str) -> dict[str, Any]:
    accumulate = "float32" if dtype == "float32" else "int32"
    return {"name": "", "operator": "generic", "dims": dims, "accumulate": accumulate, "operands": operands}


def _result(rng: random.Random, dtype: str) -> str:
    return "float32" if dtype == "float32" else rng.choice(["int32", "int8"])


def _bias(rng: random.Random, operands: dict[str, Any], dtype: str, size: int, dim: str) -> None:
    if rng.random() < 0.4:
        operands["bias"] = _operand("bias", "float32" if dtype == "float32" else "int32", [size], [dim])


def _matmul(rng: random.Random) -> dict[str, Any]:
    m, n, k = (rng.choice([1, 2, 3, 4, 5, 6, 7, 10]) for _ in range(3))
    dtype = rng.choice(["int8", "int8", "int16", "float32"])
    operands = {
        "a": _operand("input", dtype, [m, k], ["m", "k"]),
        "b": _operand("weight", dtype, [k, n], ["k", "n"]),
    }
    if m * n * k <= 100:
        _bias(rng, operands, dtype, n, "n")
    operands["out"] = _operand("output", _result(rng, dtype), [m, n], ["m", "n"])
    return _operator({"m": m, "n": n, "k": k}, operands, dtype)


def _window(rng: random.Random, most: int) -> tuple[int, int, int, int, int, int]:
    """(outputs, kernel, stride, dilation, pad before, input size)."""
    while True:
        p, r = rng.randint(1, most), rng.randint(1, 3)
        stride, dilation, before = rng.randint(1, 3), rng.randint(1, 2), rng.randint(0, 2)
        size = (p - 1) * stride + (r - 1) * dilation + 1 - before - rng.randint(0, 2) + rng.randint(0, 1)
        if size >= 1 and before <= (r - 1) * dilation + (p - 1) * stride:
            return p, r, stride, dilation, before, size


def _conv1d(rng: random.Random) -> dict[str, Any]:
    p, r, stride, dilation, before, size = _window(rng, 10)
    k, c = rng.randint(1, 4), rng.randint(1, 3)
    dtype = rng.choice(["int8", "int8", "int16"])
    operands = {
        "x": _operand("input", dtype, [c, size], ["c", f"{stride}*p + {dilation}*r - {before}"]),
        "w": _operand("weight", dtype, [k, c, r], ["k", "c", "r"]),
    }
    if p * r * k * c <= 60:
        _bias(rng, operands, dtype, k, "k")
    operands["y"] = _operand("output", _result(rng, dtype), [k, p], ["k", "p"])
    return _operator({"k": k, "c": c, "p": p, "r": r}, operands, dtype)


def _depthwise(rng: random.Random) -> dict[str, Any]:
    p, r, stride, dilation, before, size = _window(rng, 8)
    c = rng.randint(1, 6)
    operands = {
        "x": _operand("input", "int8", [c, size], ["c", f"{stride}*p + {dilation}*r - {before}"]),
        "w": _operand("weight", "int8", [c, r], ["c", "r"]),
        "y": _operand("output", _result(rng, "int8"), [c, p], ["c", "p"]),
    }
    return _operator({"c": c, "p": p, "r": r}, operands, "int8")


def _two_dims(rng: random.Random) -> dict[str, Any]:
    """An axis that ties two dims with odd coefficients, one of them negative at times."""
    p, r = rng.randint(2, 6), rng.randint(2, 4)
    a, b = rng.choice([1, 2, 3]), rng.choice([-2, -1, 2, 3])
    low, high = min(0, b * (r - 1)), a * (p - 1) + max(0, b * (r - 1))
    shift = rng.randint(-1, 1) - low
    size = max(1, high - low + 1 + rng.randint(-2, 1))
    sign = "+" if b > 0 else "-"
    operands = {
        "x": _operand(
            "input",
            "int8",
            [size],
            [f"{a}*p {sign} {abs(b)}*r + {shift}" if shift >= 0 else f"{a}*p {sign} {abs(b)}*r - {-shift}"],
        ),
        "w": _operand("weight", "int8", [r], ["r"]),
        "y": _operand("output", "int32", [p], ["p"]),
    }
    return _operator({"p": p, "r": r}, operands, "int8")


def _pool(rng: random.Random) -> dict[str, Any]:
    p, r, stride, dilation, before, size = _window(rng, 9)
    c = rng.randint(1, 5)
    operands = {
        "x": _operand("input", "int8", [c, size], ["c", f"{stride}*p + {dilation}*r - {before}"]),
        "y": _operand("output", "int8", [c, p], ["c", "p"]),
    }
    return {**_operator({"c": c, "p": p, "r": r}, operands, "int8"), "reduce": "max", "accumulate": "int8"}


def _add(rng: random.Random) -> dict[str, Any]:
    m, n = rng.randint(1, 9), rng.randint(1, 7)
    operands = {
        "a": _operand("input", "int8", [m, n], ["m", "n"]),
        "b": _operand("input", "int8", [m, n], ["m", "n"]),
        "y": _operand("output", "int8", [m, n], ["m", "n"]),
    }
    return {**_operator({"m": m, "n": n}, operands, "int8"), "combine": "add"}


def _three(rng: random.Random) -> dict[str, Any]:
    """One dim, tiled differently by three buffers: chains of ragged tiles."""
    n, m = rng.choice([7, 10, 11, 13, 15]), rng.randint(1, 3)
    operands = {
        "a": _operand("input", "int8", [n], ["n"]),
        "b": _operand("weight", "int8", [m, n], ["m", "n"]),
        "y": _operand("output", "int8", [m], ["m"]),
    }
    return _operator({"m": m, "n": n}, operands, "int8")


def _machine(rng: random.Random, operator: dict[str, Any], number: int) -> dict[str, Any]:
    """Scopes from too small to roomy for the operator's whole tensors."""
    whole = {"input": 0, "weight": 0, "bias": 0, "output": 0}
    for o in operator["operands"].values():
        elements = 1
        for n in o["shape"]:
            elements *= n
        slot = SIZES[operator["accumulate"] if o["role"] == "output" else o["dtype"]]
        whole[o["role"]] += elements * slot

    def scope(name: str, parent: str, roles: list[str]) -> dict[str, Any]:
        need = sum(whole[r] for r in roles)
        capacity = max(1, int(need * rng.choice([0.02, 0.1, 0.25, 0.4, 0.5, 0.7, 1.0, 1.6])) + rng.randint(0, 9))
        made = {"name": name, "parent": parent, "capacity": capacity, "holds": roles}
        if rng.random() < 0.3:
            made["alignment"] = rng.choice([2, 4, 8, 16])
        if rng.random() < 0.15:
            made["double_buffered"] = True
        if "output" in roles and rng.random() < 0.15:
            made["spill"] = False
        return made

    kind = rng.random()
    dims = 1
    for n in operator["dims"].values():
        dims *= n
    memories: list[dict[str, Any]] = [{"name": "dram"}]
    if kind < 0.35:
        memories.append(scope("l1", "dram", ["input", "weight", "bias", "output"]))
    elif kind < 0.8 or dims > 60 or len(operator["operands"]) > 3:
        memories.append(scope("inp", "dram", ["input"]))
        memories.append(scope("wgt", "dram", ["weight"]))
        memories.append(scope("acc", "dram", ["bias", "output"]))
    else:
        # Two scopes deep for some operands: five buffers at most, so that exhaustive search still ends.
        memories.append(scope("l2", "dram", ["input", "weight"]))
        memories.append(scope("inp", "l2", ["input"]))
        memories.append(scope("acc", "dram", ["bias", "output"]))
    return {"name": f"random-{number}", "memories": memories}


if __name__ == "__main__":
    import json

    for spec in problem(int(sys.argv[1])):
        print(json.dumps(spec, indent=1))
