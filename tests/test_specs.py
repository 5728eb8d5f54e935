"""Spec files: all ready ones load, named operators mean what ONNX says, and every mistake is pointed at."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from conftest import SPECS
from hypothesis import given, seed, settings
from hypothesis import strategies as st

import planner
from planner import SpecError
from planner.spec.affine import Affine
from planner.spec.machine import parse_size

MACHINES = sorted(SPECS.glob("machines/**/*.yaml"))
OPERATORS = sorted(SPECS.glob("operators/**/*.yaml"))


@pytest.mark.parametrize("path", MACHINES, ids=lambda p: p.stem)
def test_ready_machines(path: Path) -> None:
    assert planner.load_machine(path).scopes


@pytest.mark.parametrize("path", OPERATORS, ids=lambda p: p.stem)
def test_ready_operators(path: Path) -> None:
    assert planner.load_operator(path).macs > 0


def test_networks_are_complete() -> None:
    count = {
        name: len(list(SPECS.glob(f"operators/{name}/*.yaml"))) for name in ("resnet50", "mobilenetv2", "bert-base")
    }
    assert count == {"resnet50": 24, "mobilenetv2": 31, "bert-base": 6}


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("2*p + r - 1", "2*p + r - 1"),
        ("-p", "-p"),
        ("r*3+p*2", "3*r + 2*p"),
        ("p + p", "2*p"),
        ("0", "0"),
        ("7-p", "-p + 7"),
    ],
)
def test_index(text: str, written: str) -> None:
    assert str(Affine.parse(text)) == written
    assert Affine.parse(written) == Affine.parse(text)


@pytest.mark.parametrize("text", ["p*r", "p/2", "f(p)", "p +", "1.5*p", "", "p**2", "'a'", "[p]"])
def test_what_is_no_index(text: str) -> None:
    with pytest.raises(ValueError, match="index"):
        Affine.parse(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("32KiB", 32768),
        ("2097152b", 262144),
        ("1.5 MiB", 1572864),
        (4096, 4096),
        ("4096", 4096),
        ("3B", 3),
        ("2GiB", 2**31),
    ],
)
def test_sizes(text: str | int, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize("text", ["32KB", "32k", "b", "3b", "1.3B", "-3B", "", None, True, 2.5, "32 KiB KiB", "1e3B"])
def test_what_is_no_size(text: object) -> None:
    with pytest.raises(ValueError, match="size"):
        parse_size(text)


def test_conv_dims() -> None:
    windows = {"strides": (2, 3), "pads": (1, 0, 2, 1), "dilations": (2, 1)}
    op = planner.conv2d((2, 12, 17, 19), (9, 4, 3, 2), groups=3, **windows)  # type: ignore[arg-type]
    assert op.dims == {
        "n": 2,
        "g": 3,
        "k": 3,
        "c": 4,
        "p": (17 + 3 - 5) // 2 + 1,
        "q": (19 + 1 - 2) // 3 + 1,
        "r": 3,
        "s": 2,
    }
    assert [str(i) for i in op.operands["input"].index] == ["n", "g", "c", "2*p + 2*r - 1", "3*q + s"]
    assert op.operands["weight"].shape == (3, 3, 4, 3, 2)


MACHINE = "name: m\nmemories:\n  - {name: dram}\n"
CONV = "name: c\noperator: conv2d\ninput: {shape: [1, 4, 8, 8]}\nweight: {shape: [4, 4, 3, 3]}\n"
GENERIC = """name: g
dims: {m: 4, k: 5, n: 6}
accumulate: int32
operands:
  a: {role: input, dtype: int8, shape: [4, 5], index: [m, k]}
  b: {role: weight, dtype: int8, shape: [5, 6], index: [k, n]}
  o: {role: output, dtype: int32, shape: [4, 6], index: [m, n]}
"""


def _scope(fields: str) -> str:
    return MACHINE + "  - {" + fields + "}\n"


BAD_MACHINES = [
    ("", 1, 1, "empty"),
    ("[]", 1, 1, "no mapping"),
    ("a: [1,", 1, 7, "not valid YAML"),
    ("name: a\nname: b\n", 2, 1, "duplicate"),
    ("memories: []\n", 1, 1, "'name' is missing"),
    (MACHINE + "speed: 3\n", 4, 1, "unknown key 'speed'"),
    (_scope("name: a, parent: dram, capacityy: 3KiB"), 4, 29, "did you mean 'capacity'"),
    (_scope("name: a, parent: dram, capacity: 3KB"), 4, 39, "unit 'KB'"),
    (_scope("name: a, parent: dram, capacity: 0"), 4, 39, "greater than 0"),
    (_scope("name: a, parent: dram, capacity: lots"), 4, 39, "not a number with a unit"),
    (_scope("name: a, parent: drum, capacity: 3KiB"), 4, 5, "parent 'drum'"),
    (_scope("name: a, capacity: 3KiB"), 4, 5, "no parent"),
    (_scope("name: a, parent: dram"), 4, 5, "no capacity"),
    (_scope("name: dram, parent: dram, capacity: 1KiB"), 1, 1, "two memories are named dram"),
    (_scope("name: a, parent: dram, capacity: 3KiB, holds: [inputs]"), 4, 5, "the role is 'input'"),
    (_scope("name: a, parent: dram, capacity: 3KiB, alignment: -4"), 4, 56, "greater than 0"),
    (_scope("name: a, parent: dram, capacity: 3KiB, double_buffered: 7"), 4, 62, "boolean"),
    ("name: m\nmemories:\n  - {name: dram, capacity: 3KiB}\n", 3, 5, "takes no parent and no capacity"),
]

BAD_OPERATORS = [
    ("name: x\noperator: conv3d\n", 2, 11, "did you mean 'conv2d'"),
    (CONV + "stride: [1, 1]\n", 5, 1, "did you mean 'strides'"),
    (CONV.replace("[4, 4, 3, 3]", "[4, 3, 3, 3]"), 3, 1, "input has 4 channels"),
    (CONV.replace("[4, 4, 3, 3]", "[4, 4, 9, 3]"), 2, 1, "kernel reaches over 9"),
    (CONV.replace("[1, 4, 8, 8]", "[1, 4, 8]"), 3, 1, "NCHW has 4"),
    (CONV.replace("[1, 4, 8, 8]", "[1, 0, 8, 8]"), 3, 20, "greater than 0"),
    (CONV + "pads: [1, 1]\n", 5, 7, "pads"),
    (CONV + "groups: 3\n", 3, 1, "groups"),
    (CONV + "output: {dtype: int7}\n", 5, 17, "int8"),
    (CONV + "output: {shape: [1, 4, 5, 5]}\n", 5, 1, "disagrees with [1, 4, 6, 6]"),
    (CONV + "epilogue: {relu: maybe}\n", 5, 18, "boolean"),
    (CONV + "constraints: {tiles: {acc: {k: 0}}}\n", 5, 32, "greater than 0"),
    (CONV + "constraints: {tiles: {acc: {k: {multiple: 4}}}}\n", 5, 33, "did you mean 'multiple_of'"),
    (CONV + "constraints: {tiles: {acc: {zz: 4}}}\n", 5, 29, "no such dim"),
    (CONV + "constraints: {tiles: {acc: {k: 5}}}\n", 5, 29, "outside 1..4"),
    (GENERIC.replace("[m, k]", "[m, kk]"), 5, 3, "did you mean 'k'"),
    (GENERIC.replace("[m, k]", "[m, k*n]"), 5, 59, "multiplies two dims"),
    (GENERIC.replace("[m, k]", "[m]"), 5, 6, "one index per axis"),
    (GENERIC.replace("shape: [5, 6]", "shape: [4, 6]"), 6, 3, "reaches 0..4 but the shape has 4"),
    (GENERIC.replace("shape: [5, 6]", "shape: [6, 6]"), 6, 3, "make the shape 5"),
    (GENERIC.replace("role: weight", "role: wait"), 6, 13, "'input'"),
    (GENERIC.replace("role: output", "role: bias"), 1, 1, "exactly one operand with role output"),
    (GENERIC.replace("[m, n]", "[m, 2*n]"), 7, 3, "one dim by itself"),
    (GENERIC.replace("[4, 6], index: [m, n]", "[4, 7], index: [m, n]"), 7, 3, "make the two equal"),
    (GENERIC.replace("n: 6}", "n: 6, z: 3}"), 2, 26, "in no operand's index"),
    (GENERIC.replace("accumulate: int32", "accumulate: int7"), 3, 13, "'int8'"),
    (
        GENERIC.replace("o: {role: output, dtype: int32", "o: {role: output, dtype: int64"),
        7,
        3,
        "wider than accumulate",
    ),
    (GENERIC.replace("dtype: int8, shape: [4, 5]", "dtype: float32, shape: [4, 5]"), 5, 3, "accumulate in float"),
    (GENERIC.replace("name: g", "name: ''"), 1, 7, "at least 1 character"),
    (GENERIC.replace("m: 4", "m: 4.5"), 2, 11, "integer"),
]


@pytest.mark.parametrize(("text", "line", "column", "words"), BAD_MACHINES)
def test_bad_machines(text: str, line: int, column: int, words: str, tmp_path: Path) -> None:
    _points_at(planner.load_machine, text, line, column, words, tmp_path)


@pytest.mark.parametrize(("text", "line", "column", "words"), BAD_OPERATORS)
def test_bad_operators(text: str, line: int, column: int, words: str, tmp_path: Path) -> None:
    _points_at(planner.load_operator, text, line, column, words, tmp_path)


def _points_at(load: Any, text: str, line: int, column: int, words: str, tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    with pytest.raises(SpecError) as caught:
        load(path)
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"{path}:{line}:{column}: ")


@pytest.mark.parametrize(
    "raw", [b"\xff\xfe\x00", b"\x00\x01", b"%YAML 3", b"- " * 100_000, b"!!python/object:os.system x", b"a: *b"]
)
def test_what_is_no_text(raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes(raw)
    for load in (planner.load_machine, planner.load_operator, planner.load_plan):
        with pytest.raises(SpecError):
            load(path)


def test_aliases_without_end(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    path.write_text("\n".join(lines))
    with pytest.raises(SpecError, match="more than"):
        planner.load_machine(path)


def test_an_operand_that_no_scope_holds() -> None:
    machine = planner.Machine.model_validate(
        {
            "name": "m",
            "memories": [{"name": "dram"}, {"name": "a", "parent": "dram", "capacity": 99, "holds": ["input"]}],
        }
    )
    with pytest.raises(SpecError, match="no scope of machine m holds operand weight"):
        planner.solve(planner.matmul(2, 2, 2), machine)


def test_an_operand_on_two_branches() -> None:
    scope = {"parent": "dram", "capacity": 99}
    machine = planner.Machine.model_validate(
        {"name": "m", "memories": [{"name": "dram"}, {"name": "a", **scope}, {"name": "b", **scope}]}
    )
    with pytest.raises(SpecError, match="neither lies above the other"):
        planner.solve(planner.matmul(2, 2, 2), machine)


@pytest.mark.parametrize(
    "call",
    [
        lambda: planner.conv2d((1, 4, 8), (4, 4, 3, 3)),
        lambda: planner.conv2d((1, 4, 8, 8), (4, 3, 3, 3)),
        lambda: planner.matmul(0, 1, 1),
        lambda: planner.matmul(1, 1, 1, dtype="int7"),  # type: ignore[arg-type]
        lambda: planner.max_pool2d((1, 1, 2, 2), (3, 3)),
        lambda: planner.add(()),
        lambda: planner.dense(1, 2, -3),
    ],
)
def test_constructors_raise_spec_errors(call: Any) -> None:
    with pytest.raises(SpecError):
        call()


def _paths(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(p for key, value in items for p in _paths(value, (*path, key)))]


GENERIC_DATA = planner.conv2d((1, 4, 8, 8), (4, 2, 3, 3), pads=1, groups=2, bias=True).model_dump(mode="json")
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-9, 9),
    st.floats(),
    st.text(max_size=5),
    st.just([]),
    st.just({}),
    st.just([1, [2]]),
)


@seed(7)
@settings(max_examples=400, deadline=None, derandomize=True, database=None)
@given(st.sampled_from(_paths(GENERIC_DATA)[1:]), JUNK, st.sampled_from(["replace", "delete", "add"]))
def test_a_mutated_spec_is_a_spec_error_or_fine(path: tuple[Any, ...], junk: Any, how: str) -> None:
    from planner.spec.load import Document
    from planner.spec.operator import Operator

    data = copy.deepcopy(GENERIC_DATA)
    node: Any = data
    for part in path[:-1]:
        node = node[part]
    if how == "delete":
        del node[path[-1]]
    elif how == "replace" or not isinstance(node, dict):
        node[path[-1]] = junk
    else:
        node["extra"] = junk
    text = json.dumps(data)
    try:
        Document.parse("mutated.json", text.encode()).validate(Operator)
    except SpecError as error:
        assert str(error).startswith("mutated.json"), text
