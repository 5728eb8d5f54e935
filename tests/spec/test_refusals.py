"""What a spec may not say: where the complaint points, and its words. Beyond the table in tests/test_specs.py."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from conftest import SPECS, scopes
from hypothesis import given, seed, settings
from hypothesis import strategies as st

import planner
from planner import SpecError
from planner.spec.load import machine_from_dict, operator_from_dict, parse_machine, parse_operator

GENERIC = """name: g
dims: {m: 4, k: 5, n: 6}
accumulate: int32
operands:
  a: {role: input, dtype: int8, shape: [4, 5], index: [m, k]}
  b: {role: weight, dtype: int8, shape: [5, 6], index: [k, n]}
  o: {role: output, dtype: int32, shape: [4, 6], index: [m, n]}
"""
BIAS = "  c: {role: bias, dtype: int32, shape: [6], index: [n]}\n"
CONV = "name: c\noperator: conv2d\ninput: {shape: [1, 4, 8, 8]}\nweight: {shape: [4, 4, 3, 3]}\n"
DEPTH = "name: d\noperator: depthwise_conv2d\ninput: {shape: [1, 4, 8, 8]}\nweight: {shape: [4, 1, 3, 3]}\n"
POOL = "name: p\noperator: avg_pool2d\ninput: {shape: [1, 4, 8, 8]}\nkernel: [2, 2]\n"
MATMUL = "name: m\noperator: matmul\na: {shape: [2, 3]}\nb: {shape: [3, 4]}\n"
ADD = "name: a\noperator: add\na: {shape: [2, 3]}\nb: {shape: [2, 3]}\n"
MACHINE = "name: m\nmemories:\n  - {name: dram}\n  - {name: l1, parent: dram, capacity: 1KiB}\n"

OPERATORS = [
    ("operator: [conv2d]\nname: x\n", "1:11", "is no name of an operator"),
    ("operator: 3\nname: x\n", "1:11", "is no name of an operator"),
    ("name: x\noperator: Conv2D\n", "2:11", "there is no such operator"),
    (GENERIC.replace("m: 4", "4m: 4"), "2:8", "'4m' is no name for an index"),
    (GENERIC.replace("m: 4", "lambda: 4"), "2:8", "no word of Python"),
    (GENERIC.replace("  a:", "  a@b:"), "5:3", "operand@memory"),
    (GENERIC.replace("  a:", "  weight:"), "5:3", "operand weight has role input"),
    (GENERIC.replace("role: weight", "role: output"), "1:1", "exactly one operand with role output; it has b, o"),
    (GENERIC + BIAS + BIAS.replace("c:", "d:"), "9:3", "2 biases, c, d; keep one"),
    (GENERIC + BIAS + "reduce: max\n", "8:3", "a maximum takes no bias"),
    (GENERIC + BIAS.replace("[6], index: [n]", "[5], index: [k]"), "8:3", "uses reduction dim k"),
    (GENERIC + BIAS.replace("[6]", "[7]"), "8:3", "make the shape 6 or the extent of n 7"),
    (GENERIC + BIAS.replace("[n]", "[n - 1]"), "8:3", "only an input's windows may be padded: add 1"),
    (GENERIC.replace("index: [k, n]", "index: [k + 1, n]"), "6:3", "make the shape 6"),
    (GENERIC.replace("index: [m, k]", "index: [m, k + 9]"), "5:3", "nothing but padding is read"),
    (GENERIC.replace("index: [m, k]", "index: [m, k - 9]"), "5:3", "nothing but padding is read"),
    (GENERIC.replace("index: [m, n]", "index: [m, m]"), "7:3", "repeats dim m"),
    (GENERIC.replace("index: [m, n]", "index: [m, n + 1]"), "7:3", "one dim by itself"),
    (GENERIC.replace("index: [m, n]", "index: [m, 0]"), "7:3", "runs over 1 and the shape has 6"),
    (GENERIC.replace("accumulate: int32", "accumulate: int8"), "7:3", "wider than accumulate int8"),
    (GENERIC.replace("role: input, dtype: int8", "role: input, dtype: uint32"), "5:3", "accumulate in int64"),
    (GENERIC.replace("dtype: int8, shape: [4", "dtype: int64, shape: [4").replace("e: int32", "e: float32", 1), "5:3", "int64"),
    (GENERIC.replace("dtype: int32, shape: [4", "dtype: float32, shape: [4"), "7:3", "make both floats"),
    (GENERIC.replace("int32", "float32").replace("name: g", "name: g\nepilogue: {requantise: {multiplier: 1, shift: 0}}"),
     "2:12", "needs an integer accumulator"),
    (GENERIC.replace("accumulate: int32", "accumulate: int64\nepilogue: {requantise: {multiplier: 1, shift: 0}}"),
     "4:12", "too few for accumulate int64"),
    (GENERIC + "epilogue: {requantise: {multiplier: 4294967296, shift: 0}}\n", "8:37", "less than 2147483648"),
    (GENERIC + "epilogue: {requantise: {multiplier: 1, shift: 63}}\n", "8:47", "less than or equal to 62"),
    (GENERIC + "epilogue: {requantise: {multiplier: 1}}\n", "8:24", "'epilogue.requantise.shift' is missing"),
    (GENERIC + "epilogue: {clip: [5, 3]}\n", "8:12", "swap them"),
    (GENERIC + "epilogue: {clip: [0.5, 3]}\n", "8:12", "bound 0.5 and accumulate is int32"),
    (GENERIC + "epilogue: {clip: [0, .inf]}\n", "8:22", "not finite"),
    (GENERIC + "epilogue: {clip: [0, six]}\n", "8:22", "no number"),
    (GENERIC + "epilogue: {clip: [0, 1, 2]}\n", "8:18", "has 3 entries and needs at most 2"),
    (GENERIC + "epilogue: {average: {operand: aa, dims: [k]}}\n", "8:12", "did you mean 'a'"),
    (GENERIC + "epilogue: {average: {operand: a, dims: [m]}}\n", "8:12", "no such reduction dim"),
    (GENERIC + "constraints: {tiles: {a: {m: {equals: 3, multiple_of: 2}}}}\n", "8:27", "equals 3 is no multiple of 2"),
    (GENERIC + "constraints: {tiles: {a: {m: {minimum: 9}}}}\n", "8:27", "minimum 9 exceeds the extent 4"),
    (GENERIC + "constraints: {tiles: {a: {m: {minimum: 3, maximum: 2}}}}\n", "8:27", "minimum 3 exceeds maximum 2"),
    (GENERIC + "constraints: {tiles: {a: {m: {multiple_of: 7}}}}\n", "8:27", "no multiple of 7 lies in 1..4"),
    (GENERIC + "constraints: {tiles: {a: {m: {minimum: 2, equals: 1}}}}\n", "8:27", "outside 2..4"),
    (GENERIC + "constraints: {order: a@b}\n", "8:22", "should be a list, not 'a@b'"),
    (GENERIC + "constraints: {spil: false}\n", "8:15", "did you mean 'spill'"),
    (GENERIC.replace("4, 5]", "4, 5.0]"), "5:44", "integer"),
    (GENERIC.replace("[m, k]}", "[m, [k]]}"), "5:59", "neither an integer nor an expression"),
    (GENERIC.replace("name: g", "name: g\nname: h"), "2:1", "duplicate key"),
    (CONV + "strides: [2]\n", "5:10", "has 1 entries; give one for all, or 2: along height, along width"),
    (CONV + "pads: [1, 1]\n", "5:7", "give one for all, or 4: top, left, bottom, right"),
    (CONV.replace("{shape: [1, 4, 8, 8]}", "[1, 4, 8, 8]"), "3:8", "write {shape: [1, 4, 8, 8]}"),
    (CONV.replace("8]}", "8], layout: nhwc}"), "3:1", "write NHWC"),
    (CONV + "pads: [1, 1, 1, -1]\n", "5:17", "greater than or equal to 0"),
    (CONV + "bias: true\n", "5:7", "mapping of keys to values, not True"),
    (CONV + "bias: {shape: [5]}\n", "5:1", "one value per output channel"),
    (CONV + "bias: {dtype: float32}\n", "5:1", "operand bias is float32"),
    (CONV.replace("3, 3]}", "3, 3], dtype: float16}"), "4:1", "accumulate in float32"),
    (CONV.replace("8, 8]}", "8, 8], layout: NCWX}"), "3:1", "no order of the axes NCHW"),
    (CONV.replace("4, 8, 8]}", "1, 8, 8, 4], layout: NCHW4c}"), "3:1", "blocked layouts are not supported"),
    (CONV + "output: {layout: NCHW16c}\n", "5:1", "output: layout 'NCHW16c' is blocked"),
    (CONV.replace("4, 4, 3", "6, 1, 3") + "groups: 4\n", "5:1", "4 groups do not divide"),
    (DEPTH.replace("4, 1, 3", "4, 4, 3"), "4:1", "make it 1, or use conv2d with groups"),
    (DEPTH.replace("4, 1, 3", "6, 1, 3"), "4:1", "must be a multiple"),
    (POOL + "pads: [0, 0, 2, 0]\n", "5:1", "bottom is 2 and a window reaches over 2"),
    (POOL + "epilogue: {average: {operand: input, dims: [r]}}\n", "5:1", "avg_pool2d itself sets"),
    (POOL.replace("kernel", "kernel_shape"), "1:1", "'kernel' is missing"),
    (MATMUL.replace("3, 4", "5, 4"), "3:1", "a has K = 3 and b has K = 5"),
    (MATMUL.replace("[2, 3]", "[2, 3, 1]"), "3:1", "MK has 2"),
    (MATMUL.replace("3, 4]}", "3, 4], dtype: int64}"), "4:1", "accumulate in int64"),
    (ADD.replace("b: {shape: [2, 3]}", "b: {shape: [3, 2]}"), "4:1", "disagrees with [2, 3]"),
    (ADD + "output: {layout: AB}\n", "5:1", "means nothing to add"),
]  # fmt: skip

MACHINES = [
    (MACHINE.replace("{name: dram}", "{name: dram, holds: [input]}"), "3:5", "take out holds"),
    (MACHINE.replace("{name: dram}", "{name: dram, double_buffered: true}"), "3:5", "take out double_buffered"),
    (MACHINE.replace("1KiB", "1KiB, holds: []"), "4:5", "holds nothing"),
    (MACHINE.replace("1KiB", "1KiB, holds: [Weights]"), "4:5", "the role is 'weight'"),
    (MACHINE.replace("1KiB", "1KiB, holds: [bias, bias]"), "4:5", "twice"),
    (MACHINE.replace("1KiB", "1.5B"), "4:40", "not a whole number of bytes"),
    (MACHINE.replace("1KiB", "1e3"), "4:40", "neither an integer of bytes nor text"),
    (MACHINE.replace("l1", "l@1"), "4:12", "no name of a memory"),
    (MACHINE.replace("{name: dram}", "{name: dram, bytes_per_cycle: .inf}"), "3:35", "finite"),
    (MACHINE.replace("{name: dram}", "{name: dram, setup_cycles: -1}"), "3:32", "greater than or equal to 0"),
    (MACHINE.replace("{name: dram}", "dram"), "3:5", "mapping of keys to values"),
    ("name: m\nmemories: {dram: {}}\n", "2:11", "should be a list"),
    ("name: m\nmemories: []\n", "2:11", "at least 1"),
    (MACHINE + "compute: {mac_energi: 3}\n", "5:11", "did you mean 'mac_energy'"),
]


@pytest.mark.parametrize(("text", "where", "words"), OPERATORS)
def test_operators(text: str, where: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_operator(text, "spec.yaml")
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"spec.yaml:{where}: ")


@pytest.mark.parametrize(("text", "where", "words"), MACHINES)
def test_machines(text: str, where: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_machine(text, "spec.yaml")
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"spec.yaml:{where}: ")


def test_all_complaints_at_once_in_the_order_of_the_file() -> None:
    text = GENERIC.replace("shape: [4, 5]", "shape: [3, 5]").replace("shape: [5, 6]", "shape: [5, 7]")
    with pytest.raises(SpecError) as caught:
        parse_operator(text, "f")
    assert [line.split(": ")[0] for line in str(caught.value).splitlines()] == ["f:5:3", "f:6:3"]
    with pytest.raises(SpecError) as caught:
        parse_operator(GENERIC.replace("int8", "int7") + "extra: 1\n", "f")
    assert [line.split(": ")[0] for line in str(caught.value).splitlines()] == ["f:5:27", "f:6:28", "f:8:1"]


def test_a_max_over_two_operands_takes_no_padding() -> None:
    text = GENERIC.replace("index: [m, k]", "index: [m, k - 1]") + "reduce: max\ncombine: add\n"
    with pytest.raises(SpecError, match="takes no padding"):
        parse_operator(text)


@pytest.mark.parametrize(
    ("constraints", "words"),
    [
        ({"tiles": {"inp_bufer": {"m": 1}}}, "did you mean 'inp_buffer'"),
        ({"tiles": {"dram": {"m": 1}}}, "no such buffer, memory or operand"),
        ({"order": ["input@acc_buffer"]}, "no such buffer"),
        ({"order": ["input@inp_buffer", "input@inp_buffer"]}, "twice"),
    ],
)
def test_constraints_name_what_the_machine_has(constraints: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        planner.solve(planner.matmul(4, 4, 4, constraints=constraints), scopes(99, 99, 99))  # type: ignore[arg-type]


NO_WEIGHTS = """name: m
memories:
  - {name: dram}
  - {name: inp_buffer, parent: dram, capacity: 99, holds: [input]}
  - {name: acc_buffer, parent: dram, capacity: 99, holds: [output]}
"""
TWO_BRANCHES = NO_WEIGHTS.replace("[input]", "[input, weight]").replace("[output]", "[output, weight]")
ALL = NO_WEIGHTS.replace("[input]", "[input, weight]")


@pytest.mark.parametrize(
    ("operator", "machine", "where", "words"),
    [
        (CONV, NO_WEIGHTS, "conv.yaml:4:1", "no scope of machine m holds operand weight"),
        (GENERIC, NO_WEIGHTS, "conv.yaml:6:3", "no scope of machine m holds operand b"),
        (CONV, TWO_BRANCHES, "machine.yaml:5:52", "is held by inp_buffer and by acc_buffer"),
        (CONV + "constraints:\n  tiles:\n    inp_bufer: {c: 4}\n", ALL, "conv.yaml:7:5", "did you mean 'inp_buffer'"),
        (CONV + "constraints:\n  order: [input@inp_buffer, output@acc]\n", ALL, "conv.yaml:6:29", "no such buffer"),
    ],
)
def test_complaints_that_need_both_files_have_a_place(operator: str, machine: str, where: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        planner.solve(parse_operator(operator, "conv.yaml"), parse_machine(machine, "machine.yaml"))
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"{where}: ")


def test_where_a_spec_was_written_is_no_part_of_it() -> None:
    assert parse_operator(CONV, "a.yaml") == parse_operator("\n" + CONV, "b.yaml")
    assert parse_machine(ALL, "a.yaml") == machine_from_dict(parse_machine(ALL).model_dump())


STAIRS = "a:\n" + "".join(" " * i + "b:\n" for i in range(1, 400))


@pytest.mark.parametrize(
    "raw",
    [
        "[" * 100_000,
        "- " * 50_000,
        "a: &a [*a]",
        "x" * 300_000,
        "{" * 60,
        "1: a\n'1': b\n",
        STAIRS,
        "\ud800",
        "a: !!set {b}",
    ],
    ids=["brackets", "dashes", "alias of itself", "long", "braces", "one key twice", "stairs", "surrogate", "set"],
)
def test_texts_without_sense(raw: str) -> None:
    for parse in (parse_machine, parse_operator):
        with pytest.raises(SpecError):
            parse(raw)


def test_files_that_are_none(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent.yaml", "/dev/zero", "a\0b"):
        for load in (planner.load_machine, planner.load_operator):
            with pytest.raises(SpecError):
                load(path)


def test_a_byte_order_mark_is_no_content() -> None:
    assert parse_operator("\ufeff" + GENERIC).dims["m"] == 4


@pytest.mark.parametrize(
    "call",
    [
        lambda: planner.conv2d(None, (1, 1, 1, 1)),  # type: ignore[arg-type]
        lambda: planner.conv2d(5, "ab"),  # type: ignore[arg-type]
        lambda: planner.conv2d((1, 4, 8, 8), (4, 4, 3, 3), pads=True),
        lambda: planner.conv2d((1, 4, 8, 8), (4, 4, 3, 3), groups="a"),  # type: ignore[arg-type]
        lambda: planner.conv2d((1, 4, 8, 8), (4, 4, 3, 3), constraints=5),  # type: ignore[arg-type]
        lambda: planner.matmul(2.5, 1, 1),  # type: ignore[arg-type]
        lambda: planner.add(3),  # type: ignore[arg-type]
        lambda: operator_from_dict([]),  # type: ignore[arg-type]
        lambda: machine_from_dict({"name": "m"}),
    ],
)
def test_python_callers_get_spec_errors_without_place(call: Any) -> None:
    with pytest.raises(SpecError) as caught:
        call()
    assert caught.value.location is None


FILES = [
    SPECS / "machines" / "shared-l2.yaml",
    SPECS / "operators" / "forum-conv2d.yaml",
    SPECS / "operators" / "cases" / "08-pinned-tile.yaml",
    SPECS / "operators" / "cases" / "20-max-pool-k3s2.yaml",
]
JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6), st.just([]), st.just({}), st.just([[1]])
)


def _paths(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(p for key, value in items for p in _paths(value, (*path, key)))]


def _plain(path: Path) -> Any:
    from ruamel.yaml import YAML

    return YAML(typ="safe", pure=True).load(path.read_text())


@seed(3)
@settings(max_examples=400, deadline=None, derandomize=True, database=None)
@given(st.sampled_from(FILES), st.data(), JUNK, st.sampled_from(["replace", "delete", "add"]))
def test_a_mutated_file_is_a_spec_error_or_fine(path: Path, data: Any, junk: Any, how: str) -> None:
    spec = copy.deepcopy(_plain(path))
    *outer, last = data.draw(st.sampled_from(_paths(spec)[1:]))
    node = spec
    for part in outer:
        node = node[part]
    if how == "delete":
        del node[last]
    elif how == "add" and isinstance(node, dict):
        node[data.draw(st.text(max_size=5))] = junk
    else:
        node[last] = junk
    parse, build = (
        (parse_machine, machine_from_dict) if "machines" in str(path) else (parse_operator, operator_from_dict)
    )
    for load, given_as in ((parse, json.dumps(spec)), (build, spec)):
        try:
            load(given_as)  # type: ignore[operator]
        except SpecError as error:
            assert str(error)
