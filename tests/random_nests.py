"""Hypothesis strategies: small operators of every kind, trees of one to three scopes, and nests that no solver would choose."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hand_plans import exactly_full, plan_of
from hypothesis import strategies as st

from planner import Machine, Operator, Plan
from planner.plan import Attach, Loop, NestEntry
from planner.spec.affine import Affine

MOST_STEPS = 1200
"""Iterations of a whole nest: larger ones are cut off, so that an example takes milliseconds."""

Draw = Callable[[st.SearchStrategy[Any]], Any]
Spec = dict[str, Any]


def _operand(role: str, dtype: str, shape: list[int], index: list[str]) -> Spec:
    return {"role": role, "dtype": dtype, "shape": shape, "index": index}


# Operators ----------------------------------------------------------------------------------------------------------


def _numbers(draw: Draw) -> tuple[str, str, str]:
    """dtypes of factors, accumulator and output."""
    return draw(
        st.sampled_from(
            [
                ("int8", "int32", "int8"),
                ("int8", "int32", "int32"),
                ("uint8", "int32", "uint8"),
                ("int8", "int16", "int8"),
                ("int16", "int32", "int16"),
                ("int16", "int64", "int32"),
                ("int32", "int64", "int64"),
                ("float32", "float32", "float32"),
            ]
        )
    )


def _epilogue(draw: Draw, accumulate: str) -> Spec:
    made: Spec = {"relu": draw(st.booleans())}
    if draw(st.booleans()):
        made["clip"] = draw(st.sampled_from([(-100, 90), (0, 6), (3, 3)]))
    if accumulate in ("int8", "int16", "int32") and draw(st.booleans()):
        made["requantise"] = {
            "multiplier": draw(st.integers(-300, 300)),
            "shift": draw(st.integers(0, 12)),
            "zero_point": draw(st.integers(-20, 20)),
        }
    return made


def _spec(draw: Draw, dims: dict[str, int], operands: Spec, accumulate: str, **more: Any) -> Spec:
    epilogue = {**_epilogue(draw, accumulate), **more.pop("epilogue", {})}
    order = draw(st.permutations(list(dims)))
    base = {"name": "random", "dims": {d: dims[d] for d in order}, "operands": operands}
    return {**base, "accumulate": accumulate, "epilogue": epilogue, **more}


def _bias(draw: Draw, operands: Spec, accumulate: str, shape: list[int], index: list[str]) -> None:
    if draw(st.booleans()):
        operands["bias"] = _operand("bias", accumulate, shape, index)


def _window(draw: Draw, outputs: str, taps: str, most: int) -> tuple[int, int, int, str]:
    """(outputs, taps, input size, index) of one axis of a window: stride, dilation, uneven padding."""
    p, r = draw(st.integers(1, most)), draw(st.integers(1, 3))
    stride, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    reach = (p - 1) * stride + (r - 1) * dilation
    before, after = draw(st.integers(0, min(reach, 3))), draw(st.integers(-1, 2))
    return p, r, max(reach + 1 - before - after, 1), f"{stride}*{outputs} + {dilation}*{taps} - {before}"


def _conv(draw: Draw) -> Spec:
    factor, accumulate, result = _numbers(draw)
    p, r, h, rows = _window(draw, "p", "r", 7)
    g, k, c, n = (draw(st.integers(1, m)) for m in (2, 4, 4, 2))
    operands = {
        "x": _operand("input", factor, [n, g, c, h], ["n", "g", "c", rows]),
        "w": _operand("weight", factor, [g, k, c, r], ["g", "k", "c", "r"]),
        "y": _operand("output", result, [n, g, k, p], ["n", "g", "k", "p"]),
    }
    _bias(draw, operands, accumulate, [g, k], ["g", "k"])
    return _spec(draw, {"n": n, "g": g, "k": k, "c": c, "p": p, "r": r}, operands, accumulate)


def _conv2d(draw: Draw) -> Spec:
    factor, accumulate, result = _numbers(draw)
    p, r, h, rows = _window(draw, "p", "r", 5)
    q, s, w, columns = _window(draw, "q", "s", 4)
    k, c = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    operands = {
        "x": _operand("input", factor, [h, w, c], [rows, columns, "c"]),
        "w": _operand("weight", factor, [k, c, r, s], ["k", "c", "r", "s"]),
        "y": _operand("output", result, [p, q, k], ["p", "q", "k"]),
    }
    _bias(draw, operands, accumulate, [k], ["k"])
    return _spec(draw, {"k": k, "c": c, "p": p, "q": q, "r": r, "s": s}, operands, accumulate)


def _matmul(draw: Draw) -> Spec:
    factor, accumulate, result = _numbers(draw)
    m, n, k = (draw(st.integers(1, 8)) for _ in range(3))
    operands = {
        "a": _operand("input", factor, [m, k], ["m", "k"]),
        "b": _operand("weight", factor, [k, n], ["k", "n"]),
        "y": _operand("output", result, *draw(st.sampled_from([([m, n], ["m", "n"]), ([n, m], ["n", "m"])]))),
    }
    shapes = [([n], ["n"]), ([m, n], ["m", "n"]), ([1], ["0"]), ([1, m], ["z", "m"]), ([n], ["n + 2*z"])]
    _bias(draw, operands, accumulate, *draw(st.sampled_from(shapes)))
    if "z" in str(operands.get("bias")):
        return _spec(draw, {"m": m, "n": n, "k": k, "z": 1}, operands, accumulate)
    return _spec(draw, {"m": m, "n": n, "k": k}, operands, accumulate)


def _odd(draw: Draw) -> Spec:
    """Axes that tie dims with any coefficients, also negative ones, also one dim on two axes."""
    factor, accumulate, result = _numbers(draw)
    dims = {"p": draw(st.integers(1, 6)), "r": draw(st.integers(1, 4)), "t": draw(st.integers(1, 3))}
    index: list[str] = []
    shape: list[int] = []
    for _ in range(draw(st.integers(1, 2))):
        terms = tuple((d, a) for d in dims if (a := draw(st.integers(-3, 3))))
        low = sum(min(a * (dims[d] - 1), 0) for d, a in terms)
        high = sum(max(a * (dims[d] - 1), 0) for d, a in terms)
        # The shape overlaps what is read, from its last index to past its first.
        size = draw(st.integers(1, high - low + 2))
        shift = draw(st.integers(-high, size - 1 - low)) if len(terms) > 1 else draw(st.integers(-low, max(-low, 0)))
        index.append(str(Affine(terms, shift)))
        shape.append(size if len(terms) > 1 else high + shift + 1)
    operands = {
        "x": _operand("input", factor, shape, index),
        "w": _operand("weight", factor, [dims["r"], dims["t"]], ["r", "t"]),
        "y": _operand("output", result, [dims["p"]], ["p"]),
    }
    _bias(draw, operands, accumulate, [dims["p"]], ["p"])
    return _spec(draw, dims, operands, accumulate)


def _max_pool(draw: Draw) -> Spec:
    kind = draw(st.sampled_from(["int8", "uint8", "int16", "float32"]))
    p, r, h, rows = _window(draw, "p", "r", 8)
    c = draw(st.integers(1, 4))
    operands = {
        "x": _operand("input", kind, [c, h], ["c", rows]),
        "y": _operand("output", kind, [c, p], ["c", "p"]),
    }
    return _spec(draw, {"c": c, "p": p, "r": r}, operands, kind, reduce="max", epilogue={"requantise": None})


def _avg_pool(draw: Draw) -> Spec:
    p, r, h, rows = _window(draw, "p", "r", 6)
    q, s, w, columns = _window(draw, "q", "s", 3)
    kind, accumulate = draw(st.sampled_from([("int8", "int32"), ("uint8", "int32"), ("float32", "float32")]))
    operands = {
        "x": _operand("input", kind, [h, w], [rows, columns]),
        "y": _operand("output", kind, [p, q], ["p", "q"]),
    }
    average = {"operand": "x", "dims": ["r", "s"], "valid": draw(st.booleans())}
    return _spec(draw, {"p": p, "q": q, "r": r, "s": s}, operands, accumulate, epilogue={"average": average})


def _add(draw: Draw) -> Spec:
    m, n = draw(st.integers(1, 8)), draw(st.integers(1, 6))
    second = draw(st.sampled_from([([m, n], ["m", "n"]), ([n], ["n"])]))
    operands = {
        "a": _operand("input", "int8", [m, n], ["m", "n"]),
        "b": _operand("input", "int8", *second),
        "y": _operand("output", "int8", [m, n], ["m", "n"]),
    }
    return _spec(draw, {"m": m, "n": n}, operands, "int32", combine="add")


def _uneven(draw: Draw) -> Spec:
    """Any number of factors, each of some dims only; output dims that no factor has; extents of 1."""
    factor, accumulate, result = _numbers(draw)
    dims = {"m": draw(st.integers(1, 5)), "n": draw(st.integers(1, 4)), "k": draw(st.integers(1, 5)), "z": 1}
    operands: Spec = {}
    for i in range(draw(st.integers(1, 3))):
        own = draw(st.lists(st.sampled_from(list(dims)), min_size=1, unique=True))
        own += ["k"] if i == 0 and "k" not in own else []
        operands[f"f{i}"] = _operand("weight" if i else "input", factor, [dims[d] for d in own], own)
    shape, index = draw(st.sampled_from([
        ([dims["m"], dims["n"]], ["m", "n"]), ([dims["n"], 1, dims["m"]], ["n", "z", "m"]),
        ([dims["m"], dims["n"]], ["z + m", "n"]), ([dims["n"], dims["m"]], ["n + z", "m + 2*z"]),
    ]))  # fmt: skip
    operands["y"] = _operand("output", result, shape, index)
    _bias(draw, operands, accumulate, [dims["n"]], ["n"])
    combine = draw(st.sampled_from(["multiply", "add"]))
    return _spec(draw, dims, operands, accumulate, combine=combine)


@st.composite
def operators(draw: Draw) -> Operator:
    """A small operator of any kind."""
    kinds = [_conv, _conv, _conv2d, _matmul, _odd, _odd, _max_pool, _avg_pool, _add, _uneven, _uneven]
    return Operator.model_validate(draw(st.sampled_from(kinds))(draw))


# Machines and nests -------------------------------------------------------------------------------------------------


@st.composite
def machines(draw: Draw) -> Machine:
    """One to three scopes deep; shared by all operands or apart; some double-buffered, some aligned."""
    memories: list[Spec] = [{"name": "dram"}]

    def scope(name: str, parent: str, holds: list[str] | None) -> None:
        memories.append({
            "name": name, "parent": parent, "capacity": "64MiB", "alignment": draw(st.sampled_from([1, 1, 4, 16, 64])),
            "double_buffered": draw(st.integers(0, 3)) == 0, **({"holds": holds} if holds else {}),
        })  # fmt: skip

    top = "dram"
    for name in draw(st.sampled_from([[], [], ["l3"], ["l3", "l2"]])):
        some = draw(st.lists(st.sampled_from(["input", "weight", "bias", "output"]), min_size=1, unique=True))
        scope(name, top, draw(st.sampled_from([None, some])))
        top = name
    if draw(st.booleans()):
        scope("l1", top, None)
    else:
        scope("inp", top, ["input"])
        scope("wgt", top, ["weight"])
        scope("acc", top, ["bias", "output"])
    return Machine.model_validate({"name": "random", "memories": memories})


@st.composite
def plans(draw: Draw) -> Plan:
    """A random operator and machine, and a random nest: any order of attach points, any chain of tiles, idle loops too."""
    operator, machine = draw(operators()), draw(machines())
    waiting = {name: [m.name for m in machine.path(name, o)] for name, o in operator.operands.items()}
    tiles, nest, steps = dict(operator.dims), list[NestEntry](), 1
    while True:
        for dim in draw(st.lists(st.sampled_from(list(tiles)), max_size=3)):
            tile = draw(st.integers(1, tiles[dim]))
            trips = -(-tiles[dim] // tile)
            if steps * trips > MOST_STEPS:
                continue
            steps, tiles[dim] = steps * trips, tile
            nest.append(Loop(dim, tile))
        left = [name for name, path in waiting.items() if path]
        if not left:
            return exactly_full(plan_of(operator, machine, nest))
        name = draw(st.sampled_from(left))
        nest.append(Attach(name, waiting[name].pop(0)))


def written(plan: Plan) -> str:
    """A plan as specs and a nest, to be run again by hand."""
    machine = plan.machine.model_dump(mode="json", exclude_defaults=True)
    operator = plan.operator.model_dump(mode="json", exclude_defaults=True)
    return f"operator: {json.dumps(operator)}\nmachine: {json.dumps(machine)}\nnest: {list(plan.nest)}"
