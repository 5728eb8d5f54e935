"""Pooling in two dimensions: max_pool2d, avg_pool2d. Input and output NCHW, or other orders of these axes."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from planner.spec.complaints import Fault, RuleError
from planner.spec.library.common import (
    Pair,
    Tensor,
    Windowed,
    build,
    default_accumulate,
    generic,
    integers,
    operand,
    output,
    sizes,
    tensor,
)
from planner.spec.operator import Average, Constraints, DType, Epilogue, Operator


class _Pool2d(Windowed, ABC):
    input: Tensor = Field(description="Layout NCHW, or another order of these axes.")
    kernel: Pair

    def _pool(self, reduce: str, epilogue: Epilogue, accumulate: DType) -> Operator:
        """Dims n c p q r s, reduced over the window r s; the result has the input's dtype unless said."""
        x = sizes("input", self.input, "NCHW")
        self._pads_within_windows()
        p, rows = self.slide(0, x["H"], self.kernel[0])
        q, columns = self.slide(1, x["W"], self.kernel[1])
        n, c = ((x["N"], "n"),), ((x["C"], "c"),)
        source = {"N": n, "C": c, "H": ((x["H"], rows),), "W": ((x["W"], columns),)}
        operands = {
            "input": operand("input", self.input.dtype, "input", self.input, source),
            "output": output(self, self.input.dtype, {"N": n, "C": c, "H": ((p, "p"),), "W": ((q, "q"),)}),
        }
        dims = {"n": x["N"], "c": x["C"], "p": p, "q": q, "r": self.kernel[0], "s": self.kernel[1]}
        return generic(self, dims, operands, accumulate, reduce=reduce, epilogue=epilogue)

    def _pads_within_windows(self) -> None:
        """As ONNX demands: a window that lies in the padding has no maximum and no mean."""
        for i, pad in enumerate(self.pads):
            reach = (self.kernel[i % 2] - 1) * self.dilations[i % 2] + 1
            if pad >= reach:
                side = ("top", "left", "bottom", "right")[i]
                why = (
                    f"pads: {side} is {pad} and a window reaches over {reach}; a pool's pads must be smaller than that"
                )
                raise RuleError(Fault(("pads",), why))


class MaxPool2d(_Pool2d):
    """Maximum over a window. Padding reads as the least value of the dtype, so that it never wins."""

    operator: Literal["max_pool2d"] = "max_pool2d"

    def expand(self) -> Operator:
        """Accumulates in the input's own dtype."""
        return self._pool("max", self.epilogue, self.accumulate or self.input.dtype)


class AvgPool2d(_Pool2d):
    """Mean over a window: of its points inside the input, or of all with `count_include_pad`."""

    operator: Literal["avg_pool2d"] = "avg_pool2d"
    count_include_pad: bool = False

    def expand(self) -> Operator:
        """Sums, then divides in the epilogue."""
        if self.epilogue.average is not None:
            why = "epilogue.average is what avg_pool2d itself sets; take it out, and use count_include_pad"
            raise RuleError(Fault(("epilogue",), why))
        average = Average(operand="input", dims=("r", "s"), valid=not self.count_include_pad)
        epilogue = self.epilogue.model_copy(update={"average": average})
        return self._pool("sum", epilogue, self.accumulate or default_accumulate(self.input.dtype))


def max_pool2d(
    input: Sequence[int],
    kernel: int | Sequence[int],
    *,
    name: str = "max_pool2d",
    strides: int | Sequence[int] = 1,
    pads: int | Sequence[int] = 0,
    dilations: int | Sequence[int] = 1,
    dtype: DType = "int8",
    output_dtype: DType | None = None,
    epilogue: Epilogue | Mapping[str, Any] | None = None,
    constraints: Constraints | Mapping[str, Any] | None = None,
) -> Operator:
    """Maximum over windows of an `input` [N, C, H, W]; `pads` one integer, or top, left, bottom, right. SpecError."""
    return build(
        MaxPool2d,
        name=name,
        input=tensor(input, dtype),
        kernel=integers(kernel, 2),
        output={"dtype": output_dtype},
        strides=integers(strides, 2),
        pads=integers(pads, 4),
        dilations=integers(dilations, 2),
        epilogue=epilogue,
        constraints=constraints,
    )


def avg_pool2d(
    input: Sequence[int],
    kernel: int | Sequence[int],
    *,
    name: str = "avg_pool2d",
    strides: int | Sequence[int] = 1,
    pads: int | Sequence[int] = 0,
    dilations: int | Sequence[int] = 1,
    count_include_pad: bool = False,
    dtype: DType = "int8",
    output_dtype: DType | None = None,
    accumulate: DType | None = None,
    epilogue: Epilogue | Mapping[str, Any] | None = None,
    constraints: Constraints | Mapping[str, Any] | None = None,
) -> Operator:
    """Mean over windows of an `input` [N, C, H, W]; `pads` one integer, or top, left, bottom, right. SpecError."""
    return build(
        AvgPool2d,
        name=name,
        input=tensor(input, dtype),
        kernel=integers(kernel, 2),
        output={"dtype": output_dtype},
        strides=integers(strides, 2),
        pads=integers(pads, 4),
        dilations=integers(dilations, 2),
        count_include_pad=count_include_pad,
        accumulate=accumulate,
        epilogue=epilogue,
        constraints=constraints,
    )
