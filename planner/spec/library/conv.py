"""Convolutions in two dimensions, whole, grouped and depthwise."""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field

from planner.spec.complaints import Fault, RuleError
from planner.spec.library.common import (
    BiasTensor,
    Part,
    Tensor,
    Windowed,
    bias,
    build,
    default_accumulate,
    generic,
    integer,
    integers,
    operand,
    output,
    sizes,
    tensor,
)
from planner.spec.operator import Constraints, DType, Epilogue, Extent, Operator


class _Convolution(Windowed, ABC):
    input: Tensor = Field(description="Layout NCHW, or another order of these axes.")
    weight: Tensor = Field(description="Layout OIHW, or another order; I counts the channels of one group.")
    bias: BiasTensor | None = None

    def _convolve(self, source: tuple[Part, ...], taps: tuple[Part, ...], result: tuple[Part, ...]) -> Operator:
        """The generic form, from what the channels of input, weight's I, and output expand to."""
        x, w = sizes("input", self.input, "NCHW"), sizes("weight", self.weight, "OIHW")
        p, rows = self.slide(0, x["H"], w["H"])
        q, columns = self.slide(1, x["W"], w["W"])
        n = ((x["N"], "n"),)
        channels = {dim: size for size, dim in (*result, *source)}
        dims = {"n": x["N"], **channels, "p": p, "q": q, "r": w["H"], "s": w["W"]}
        source_axes = {"N": n, "C": source, "H": ((x["H"], rows),), "W": ((x["W"], columns),)}
        kernel_axes = {"O": result, "I": taps, "H": ((w["H"], "r"),), "W": ((w["W"], "s"),)}
        accumulate = self.accumulate or default_accumulate(self.input.dtype)
        operands = {
            "input": operand("input", self.input.dtype, "input", self.input, source_axes),
            "weight": operand("weight", self.weight.dtype, "weight", self.weight, kernel_axes),
            **bias(self.bias, accumulate, result),
            "output": output(self, accumulate, {"N": n, "C": result, "H": ((p, "p"),), "W": ((q, "q"),)}),
        }
        return generic(self, dims, operands, accumulate)


class Conv2d(_Convolution):
    """2-D convolution. Dims n g k c p q r s; there is no g where there is one group."""

    operator: Literal["conv2d"] = "conv2d"
    groups: Extent = 1

    def expand(self) -> Operator:
        """A grouped convolution's channels are two axes, group and channel in the group."""
        x, w = sizes("input", self.input, "NCHW"), sizes("weight", self.weight, "OIHW")
        groups, c = self.groups, w["I"]
        if x["C"] != groups * c:
            why = f"input has {x['C']} channels and weight takes {groups} x {c} = {groups * c} (groups x channels in each)"
            raise RuleError(Fault(("input",), f"{why}; make the two equal"))
        if w["O"] % groups:
            why = f"weight has {w['O']} output channels, which {groups} groups do not divide; change one of them"
            raise RuleError(Fault(("groups",), why))
        group: tuple[Part, ...] = ((groups, "g"),) if groups > 1 else ()
        return self._convolve((*group, (c, "c")), ((c, "c"),), (*group, (w["O"] // groups, "k")))


class DepthwiseConv2d(_Convolution):
    """Depthwise convolution: every channel is a group. Weight OIHW with I = 1 and O a multiple of the input's channels.

    Dims n c p q r s. With several outputs per channel: n g k p q r s, k counting the outputs of channel g.
    """

    operator: Literal["depthwise_conv2d"] = "depthwise_conv2d"

    def expand(self) -> Operator:
        """Without the axes that have one element in every depthwise convolution."""
        channels, w = sizes("input", self.input, "NCHW")["C"], sizes("weight", self.weight, "OIHW")
        if w["I"] != 1:
            why = f"weight takes {w['I']} channels (axis I) and a depthwise convolution has 1 in each group"
            raise RuleError(Fault(("weight",), f"{why}; make it 1, or use conv2d with groups"))
        if w["O"] % channels:
            why = (
                f"weight has {w['O']} output channels and input {channels}; the first must be a multiple of the second"
            )
            raise RuleError(Fault(("weight",), why))
        if w["O"] == channels:
            return self._convolve(((channels, "c"),), (), ((channels, "c"),))
        return self._convolve(((channels, "g"),), (), ((channels, "g"), (w["O"] // channels, "k")))


def conv2d(
    input: Sequence[int],
    weight: Sequence[int],
    *,
    name: str = "conv2d",
    strides: int | Sequence[int] = 1,
    pads: int | Sequence[int] = 0,
    dilations: int | Sequence[int] = 1,
    groups: int = 1,
    bias: bool = False,
    dtype: DType = "int8",
    weight_dtype: DType | None = None,
    output_dtype: DType | None = None,
    accumulate: DType | None = None,
    epilogue: Epilogue | Mapping[str, Any] | None = None,
    constraints: Constraints | Mapping[str, Any] | None = None,
) -> Operator:
    """A convolution of an `input` [N, C, H, W] with a `weight` [O, I, R, S], I being channels of one group.

    `strides` and `dilations` are one integer, or along height and width; `pads` one integer, or top, left, bottom, right.
    `dtype` is the input's, and the weight's unless said; the output's is the accumulator's unless said. SpecError.
    """
    return build(
        Conv2d,
        name=name,
        input=tensor(input, dtype),
        weight=tensor(weight, weight_dtype or dtype),
        bias={} if bias else None,
        output={"dtype": output_dtype},
        strides=integers(strides, 2),
        pads=integers(pads, 4),
        dilations=integers(dilations, 2),
        groups=integer(groups),
        accumulate=accumulate,
        epilogue=epilogue,
        constraints=constraints,
    )


def depthwise_conv2d(
    input: Sequence[int],
    weight: Sequence[int],
    *,
    name: str = "depthwise_conv2d",
    strides: int | Sequence[int] = 1,
    pads: int | Sequence[int] = 0,
    dilations: int | Sequence[int] = 1,
    bias: bool = False,
    dtype: DType = "int8",
    weight_dtype: DType | None = None,
    output_dtype: DType | None = None,
    accumulate: DType | None = None,
    epilogue: Epilogue | Mapping[str, Any] | None = None,
    constraints: Constraints | Mapping[str, Any] | None = None,
) -> Operator:
    """A convolution of each channel by itself: `input` [N, C, H, W], `weight` [C, 1, R, S], or [C * outputs, 1, R, S].

    The other arguments are those of `conv2d`. SpecError.
    """
    return build(
        DepthwiseConv2d,
        name=name,
        input=tensor(input, dtype),
        weight=tensor(weight, weight_dtype or dtype),
        bias={} if bias else None,
        output={"dtype": output_dtype},
        strides=integers(strides, 2),
        pads=integers(pads, 4),
        dilations=integers(dilations, 2),
        accumulate=accumulate,
        epilogue=epilogue,
        constraints=constraints,
    )
