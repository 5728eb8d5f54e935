"""Named operators against plain formulas: the ONNX output size, and every element that ONNX says an output reads."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

import planner
from planner import Operator, SpecError
from planner.spec.library import NAMED
from planner.spec.load import operator_from_dict

WINDOWS = [
    # size, kernel, stride, dilation, before, after
    (8, 3, 1, 1, 1, 1), (9, 3, 2, 1, 0, 1), (7, 1, 3, 1, 1, 0), (12, 3, 2, 2, 2, 2), (5, 5, 1, 1, 0, 0), (11, 2, 3, 3, 0, 2),
]  # fmt: skip


def _outputs(size: int, kernel: int, stride: int, dilation: int, before: int, after: int) -> list[list[int]]:
    """For each output, the input positions that its window covers, by sliding it until it leaves the padded input."""
    found, start = [], -before
    while start + (kernel - 1) * dilation < size + after:
        found.append([start + tap * dilation for tap in range(kernel)])
        start += stride
    return found


def _reads(operator: Operator, operand: str, axis: int, out: str, window: str) -> list[list[int]]:
    index = operator.operands[operand].index[axis]
    zero = dict.fromkeys(operator.dims, 0)
    return [
        [
            index.offset + sum(a * (zero | {out: p, window: r})[d] for d, a in index.terms)
            for r in range(operator.dims[window])
        ]
        for p in range(operator.dims[out])
    ]


@pytest.mark.parametrize(("rows", "columns"), list(product(WINDOWS, WINDOWS[:3])))
@pytest.mark.parametrize("kind", ["conv2d", "depthwise_conv2d", "max_pool2d", "avg_pool2d"])
def test_windows(kind: str, rows: tuple[int, ...], columns: tuple[int, ...]) -> None:
    (h, r, *_), (w, s, *_) = rows, columns
    windows: dict[str, Any] = {
        "strides": (rows[2], columns[2]),
        "dilations": (rows[3], columns[3]),
        "pads": (rows[4], columns[4], rows[5], columns[5]),
    }
    match kind:
        case "conv2d":
            op = planner.conv2d((2, 4, h, w), (6, 4, r, s), **windows)
        case "depthwise_conv2d":
            op = planner.depthwise_conv2d((2, 4, h, w), (4, 1, r, s), **windows)
        case _:
            if any(pad >= reach for pad, reach in zip(windows["pads"], _reaches(rows, columns), strict=True)):
                with pytest.raises(SpecError, match="pads must be smaller"):
                    getattr(planner, kind)((2, 4, h, w), (r, s), **windows)
                return
            op = getattr(planner, kind)((2, 4, h, w), (r, s), **windows)
    assert _reads(op, "input", 2, "p", "r") == _outputs(*rows)
    assert _reads(op, "input", 3, "q", "s") == _outputs(*columns)
    assert op.output.shape == (2, 6 if kind == "conv2d" else 4, len(_outputs(*rows)), len(_outputs(*columns)))


def _reaches(rows: tuple[int, ...], columns: tuple[int, ...]) -> list[int]:
    return [(rows[1] - 1) * rows[3] + 1, (columns[1] - 1) * columns[3] + 1] * 2


def _written(operator: Operator) -> dict[str, tuple[tuple[int, ...], str]]:
    return {n: (o.shape, " ".join(str(i) for i in o.index)) for n, o in operator.operands.items()}


FORMS: list[tuple[Operator, dict[str, int], dict[str, tuple[tuple[int, ...], str]]]] = [
    (
        planner.conv2d((2, 16, 5, 6), (8, 16, 1, 1), bias=True),
        {"n": 2, "k": 8, "c": 16, "p": 5, "q": 6, "r": 1, "s": 1},
        {
            "input": ((2, 16, 5, 6), "n c p + r q + s"),
            "weight": ((8, 16, 1, 1), "k c r s"),
            "bias": ((8,), "k"),
            "output": ((2, 8, 5, 6), "n k p q"),
        },
    ),
    (
        planner.conv2d((1, 6, 3, 3), (9, 2, 3, 3), groups=3, bias=True, pads=1),
        {"n": 1, "g": 3, "k": 3, "c": 2, "p": 3, "q": 3, "r": 3, "s": 3},
        {
            "input": ((1, 3, 2, 3, 3), "n g c p + r - 1 q + s - 1"),
            "weight": ((3, 3, 2, 3, 3), "g k c r s"),
            "bias": ((3, 3), "g k"),
            "output": ((1, 3, 3, 3, 3), "n g k p q"),
        },
    ),
    (
        planner.depthwise_conv2d((1, 5, 4, 4), (5, 1, 3, 3), bias=True),
        {"n": 1, "c": 5, "p": 2, "q": 2, "r": 3, "s": 3},
        {
            "input": ((1, 5, 4, 4), "n c p + r q + s"),
            "weight": ((5, 3, 3), "c r s"),
            "bias": ((5,), "c"),
            "output": ((1, 5, 2, 2), "n c p q"),
        },
    ),
    (
        planner.depthwise_conv2d((1, 5, 4, 4), (10, 1, 3, 3)),
        {"n": 1, "g": 5, "k": 2, "p": 2, "q": 2, "r": 3, "s": 3},
        {
            "input": ((1, 5, 4, 4), "n g p + r q + s"),
            "weight": ((5, 2, 3, 3), "g k r s"),
            "output": ((1, 5, 2, 2, 2), "n g k p q"),
        },
    ),
    (
        planner.matmul(3, 4, 5, bias=True),
        {"m": 3, "n": 4, "k": 5},
        {"input": ((3, 5), "m k"), "weight": ((5, 4), "k n"), "bias": ((4,), "n"), "output": ((3, 4), "m n")},
    ),
    (
        planner.batch_matmul(2, 3, 4, 5),
        {"b": 2, "m": 3, "n": 4, "k": 5},
        {"input": ((2, 3, 5), "b m k"), "weight": ((2, 5, 4), "b k n"), "output": ((2, 3, 4), "b m n")},
    ),
    (
        planner.dense(2, 7, 3, bias=True),
        {"n": 2, "k": 3, "c": 7},
        {"input": ((2, 7), "n c"), "weight": ((3, 7), "k c"), "bias": ((3,), "k"), "output": ((2, 3), "n k")},
    ),
    (
        planner.add((2, 3, 4)),
        {"i0": 2, "i1": 3, "i2": 4},
        {"a": ((2, 3, 4), "i0 i1 i2"), "b": ((2, 3, 4), "i0 i1 i2"), "output": ((2, 3, 4), "i0 i1 i2")},
    ),
]


@pytest.mark.parametrize(("operator", "dims", "operands"), FORMS, ids=lambda v: getattr(v, "name", ""))
def test_generic_forms(operator: Operator, dims: dict[str, int], operands: dict[str, Any]) -> None:
    assert operator.dims == dims
    assert list(operator.dims) == list(dims)
    assert _written(operator) == operands


def test_layouts_permute_the_axes() -> None:
    data = {
        "name": "nhwc", "operator": "conv2d", "groups": 2,
        "input": {"shape": [1, 8, 9, 4], "layout": "NHWC"},
        "weight": {"shape": [3, 2, 2, 6], "layout": "HWIO"},
        "output": {"layout": "NHWC", "shape": [1, 6, 8, 6]},
    }  # fmt: skip
    assert _written(operator_from_dict(data)) == {
        "input": ((1, 8, 9, 2, 2), "n p + r q + s g c"),
        "weight": ((3, 2, 2, 2, 3), "r s c g k"),
        "output": ((1, 6, 8, 2, 3), "n p q g k"),
    }


@pytest.mark.parametrize(
    ("dtype", "accumulate"),
    [("int8", "int32"), ("uint16", "int32"), ("int32", "int32"), ("uint32", "uint32"), ("int64", "int64"),
     ("float16", "float32"), ("float32", "float32"), ("float64", "float64")],
)  # fmt: skip
def test_accumulators(dtype: Any, accumulate: str) -> None:
    op = planner.matmul(2, 2, 2, dtype=dtype, bias=True)
    assert (op.accumulate, op.output.dtype, op.operands["bias"].dtype) == (accumulate,) * 3


@pytest.mark.parametrize(
    ("dtype", "lowest"), [("int8", -128), ("uint8", 0), ("int16", -(2**15)), ("float32", float("-inf"))]
)
def test_padding_never_wins_a_maximum(dtype: Any, lowest: float) -> None:
    assert planner.max_pool2d((1, 1, 4, 4), 2, dtype=dtype).padding_value == lowest
    assert planner.avg_pool2d((1, 1, 4, 4), 2, dtype=dtype).padding_value == 0


def test_an_average_counts_what_it_is_told_to() -> None:
    for include in (False, True):
        average = planner.avg_pool2d((1, 1, 4, 4), 3, pads=1, count_include_pad=include).epilogue.average
        assert average is not None
        assert average.valid is not include


def test_files_and_python_agree() -> None:
    data = {
        "name": "c", "operator": "conv2d", "input": {"shape": [1, 4, 8, 8]}, "weight": {"shape": [6, 2, 3, 3]},
        "bias": {}, "output": {"dtype": "int8"}, "strides": [2, 1], "pads": [1, 0, 1, 0], "groups": 2,
        "epilogue": {"relu": True},
    }  # fmt: skip
    called = planner.conv2d(
        (1, 4, 8, 8), (6, 2, 3, 3), name="c", bias=True, output_dtype="int8", strides=(2, 1), pads=(1, 0, 1, 0),
        groups=2, epilogue={"relu": True},  # type: ignore[arg-type]
    )  # fmt: skip
    assert operator_from_dict(data) == called


def test_products_do_not_wrap() -> None:
    assert planner.matmul(10**6, 10**6, 10**6).macs == 10**18
    assert planner.batch_matmul(10**6, 10**6, 10**6, 10**6).macs == 10**24


def test_the_schema_tells_operators_apart() -> None:
    from planner.spec.load import operator_schema

    schema = operator_schema()
    assert set(schema["discriminator"]["mapping"]) == {"generic", *NAMED}
    for name, model in NAMED.items():
        definition = schema["$defs"][model.__name__]
        assert definition["properties"]["operator"]["const"] == name
        assert "operator" in definition["required"]
