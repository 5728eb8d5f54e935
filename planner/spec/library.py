"""Named operators: what ONNX users write, expanded to the generic form. One class an operator, and a constructor for Python.

Adding an operator is adding a class with `operator: Literal["name"]` and `expand()`, its line in `NAMED`, and a constructor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from planner.errors import SpecError
from planner.spec.operator import (
    Average,
    Constraints,
    DType,
    Epilogue,
    Extent,
    Operator,
)

Pads = Annotated[tuple[int, int, int, int], Field(description="top, left, bottom, right, as ONNX orders them")]
Pair = tuple[Extent, Extent]


class _Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Tensor(_Spec):
    """A tensor as users give it: `layout` names its axes, in any order."""

    shape: tuple[Extent, ...]
    dtype: DType = "int8"
    layout: str | None = None


class BiasTensor(_Spec):
    """A bias: one value per output channel, in the accumulator's dtype unless said."""

    dtype: DType | None = None


class OutputTensor(_Spec):
    """The output: its shape follows from the inputs; if given it must agree."""

    dtype: DType | None = None
    shape: tuple[Extent, ...] | None = None
    layout: str | None = None


class _Named(_Spec):
    name: str = Field(min_length=1)
    output: OutputTensor = Field(default_factory=OutputTensor)
    accumulate: DType | None = None
    epilogue: Epilogue = Field(default_factory=Epilogue)
    constraints: Constraints = Field(default_factory=Constraints)


def default_accumulate(dtype: DType) -> DType:
    """int32 for integers up to 16 bits, float32 for float16, otherwise the dtype itself."""
    match dtype:
        case "int8" | "uint8" | "int16" | "uint16":
            return "int32"
        case "float16":
            return "float32"
        case _:
            return dtype


def _permuted(name: str, tensor: Tensor | OutputTensor, axes: Mapping[str, Any]) -> tuple[list[Any], str]:
    """Items of `axes` (by letter, in the default order) in the order of the tensor's layout."""
    default = "".join(axes)
    layout = tensor.layout or default
    if any(ch.isdigit() or ch.islower() for ch in layout):
        raise ValueError(f"{name}: layout {layout!r} is blocked; only an order of the axes {default} is known")
    if sorted(layout) != sorted(default):
        raise ValueError(f"{name}: layout {layout!r} is no order of the axes {default}")
    return [axes[letter] for letter in layout], layout


def _sizes(name: str, tensor: Tensor, default: str) -> dict[str, int]:
    """Sizes of a tensor by the letter of its layout."""
    if len(tensor.shape) != len(default):
        raise ValueError(
            f"{name}: shape {list(tensor.shape)} has {len(tensor.shape)} axes; {default} has {len(default)}"
        )
    _, layout = _permuted(name, tensor, dict.fromkeys(default, 0))
    return dict(zip(layout, tensor.shape, strict=True))


def _operand(
    role: str, dtype: str, name: str, tensor: Tensor | OutputTensor, axes: Mapping[str, tuple[Any, ...]]
) -> dict[str, Any]:
    """An operand whose letters may stand for several axes: `axes` maps a letter to (sizes, indices)."""
    ordered, _ = _permuted(name, tensor, axes)
    shape = [size for sizes, _ in ordered for size in sizes]
    index = [i for _, indices in ordered for i in indices]
    return {"role": role, "dtype": dtype, "shape": shape, "index": index}


def _check_output(output: OutputTensor, axes: Mapping[str, tuple[Any, ...]]) -> None:
    if output.shape is None:
        return
    ordered, layout = _permuted("output", output, axes)
    derived: list[int] = []
    for sizes, _ in ordered:
        total = 1
        for size in sizes:
            total *= size
        derived.append(total)
    if list(output.shape) != derived:
        raise ValueError(
            f"output: shape {list(output.shape)} ({layout}) disagrees with {derived}, which the inputs give"
        )


def _window(name: str, size: int, kernel: int, stride: int, dilation: int, before: int, after: int) -> int:
    """Output size along one axis; ValueError if the kernel does not fit."""
    reach = (kernel - 1) * dilation + 1
    room = size + before + after - reach
    if before < 0 or after < 0:
        raise ValueError(f"pads along {name} are {before} and {after}; they must not be negative")
    if room < 0:
        raise ValueError(
            f"along {name} the kernel reaches over {reach} and the padded input has {size + before + after}"
        )
    return room // stride + 1


def _index(out: str, window: str, stride: int, dilation: int, pad: int) -> str:
    text = f"{stride}*{out} + {dilation}*{window}" if dilation != 1 else f"{stride}*{out} + {window}"
    text = text.removeprefix("1*")
    return f"{text} - {pad}" if pad else text


class Conv2d(_Named):
    """2-D convolution. Input NCHW, weight OIHW (I counts channels in the group), output NCHW, or other orders of these axes."""

    operator: Literal["conv2d"] = "conv2d"
    input: Tensor
    weight: Tensor
    bias: BiasTensor | None = None
    strides: Pair = (1, 1)
    pads: Pads = (0, 0, 0, 0)
    dilations: Pair = (1, 1)
    groups: Extent = 1

    def expand(self) -> Operator:
        """Dims n g k c p q r s; no g where there is one group; no k (no c) where a group has one output (input) channel."""
        x, w = _sizes("input", self.input, "NCHW"), _sizes("weight", self.weight, "OIHW")
        groups, outputs = self.groups, w["O"]
        if x["C"] != groups * w["I"]:
            raise ValueError(
                f"input has {x['C']} channels; weight takes {w['I']} per group and there are {groups} groups, "
                f"{groups * w['I']} in all; make them equal"
            )
        if outputs % groups:
            raise ValueError(f"weight has {outputs} output channels, which {groups} groups do not divide")
        p = _window("H", x["H"], w["H"], self.strides[0], self.dilations[0], self.pads[0], self.pads[2])
        q = _window("W", x["W"], w["W"], self.strides[1], self.dilations[1], self.pads[1], self.pads[3])
        k, c = outputs // groups, w["I"]
        dims = {"n": x["N"], "g": groups, "k": k, "c": c, "p": p, "q": q, "r": w["H"], "s": w["W"]}
        if groups == 1:
            del dims["g"]
        group = ((groups,), ("g",)) if groups > 1 else ((), ())
        rows = _index("p", "r", self.strides[0], self.dilations[0], self.pads[0])
        columns = _index("q", "s", self.strides[1], self.dilations[1], self.pads[1])
        channels = (group[0] + (c,), group[1] + ("c",))
        outs = (group[0] + (k,), group[1] + ("k",))
        produced = {"N": ((x["N"],), ("n",)), "C": outs, "H": ((p,), ("p",)), "W": ((q,), ("q",))}
        _check_output(self.output, produced)
        accumulate = self.accumulate or default_accumulate(self.input.dtype)
        source = {"N": ((x["N"],), ("n",)), "C": channels, "H": ((x["H"],), (rows,)), "W": ((x["W"],), (columns,))}
        kernel = {"O": outs, "I": ((c,), ("c",)), "H": ((w["H"],), ("r",)), "W": ((w["W"],), ("s",))}
        operands = {
            "input": _operand("input", self.input.dtype, "input", self.input, source),
            "weight": _operand("weight", self.weight.dtype, "weight", self.weight, kernel),
        }
        if self.bias is not None:
            operands["bias"] = {
                "role": "bias",
                "dtype": self.bias.dtype or accumulate,
                "shape": outs[0],
                "index": outs[1],
            }
        operands["output"] = _operand("output", self.output.dtype or accumulate, "output", self.output, produced)
        return _generic(self, dims, operands, accumulate)


class DepthwiseConv2d(_Named):
    """Depthwise convolution: every channel is a group. Weight OIHW with I = 1; O a multiple of the input's channels."""

    operator: Literal["depthwise_conv2d"] = "depthwise_conv2d"
    input: Tensor
    weight: Tensor
    bias: BiasTensor | None = None
    strides: Pair = (1, 1)
    pads: Pads = (0, 0, 0, 0)
    dilations: Pair = (1, 1)

    def expand(self) -> Operator:
        """As a convolution with as many groups as channels."""
        channels = _sizes("input", self.input, "NCHW")["C"]
        fields = {name: getattr(self, name) for name in type(self).model_fields if name != "operator"}
        return Conv2d(**fields, groups=channels).expand()


class Matmul(_Named):
    """[M, K] x [K, N] -> [M, N], bias [N]. `a` is the input, `b` the weight."""

    operator: Literal["matmul"] = "matmul"
    a: Tensor
    b: Tensor
    bias: BiasTensor | None = None

    def expand(self) -> Operator:
        """Dims m n k."""
        a, b = _sizes("a", self.a, "MK"), _sizes("b", self.b, "KN")
        if a["K"] != b["K"]:
            raise ValueError(f"a has K = {a['K']} and b has K = {b['K']}; make them equal")
        return _product(self, self.a, self.b, {"m": a["M"], "n": b["N"], "k": a["K"]})


class BatchMatmul(_Named):
    """[B, M, K] x [B, K, N] -> [B, M, N]."""

    operator: Literal["batch_matmul"] = "batch_matmul"
    a: Tensor
    b: Tensor

    def expand(self) -> Operator:
        """Dims b m n k."""
        a, b = _sizes("a", self.a, "BMK"), _sizes("b", self.b, "BKN")
        if (a["B"], a["K"]) != (b["B"], b["K"]):
            raise ValueError(f"a has B, K = {a['B']}, {a['K']} and b has {b['B']}, {b['K']}; make them equal")
        return _product(self, self.a, self.b, {"b": a["B"], "m": a["M"], "n": b["N"], "k": a["K"]})


def _product(spec: Matmul | BatchMatmul, a: Tensor, b: Tensor, dims: dict[str, int]) -> Operator:
    axes: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {d.upper(): ((n,), (d,)) for d, n in dims.items()}
    pick = {letters: {x: axes[x] for x in letters if x in axes} for letters in ("BMK", "BKN", "BMN")}
    _check_output(spec.output, pick["BMN"])
    accumulate = spec.accumulate or default_accumulate(a.dtype)
    operands = {
        "input": _operand("input", a.dtype, "a", a, pick["BMK"]),
        "weight": _operand("weight", b.dtype, "b", b, pick["BKN"]),
    }
    bias = getattr(spec, "bias", None)
    if bias is not None:
        operands["bias"] = {"role": "bias", "dtype": bias.dtype or accumulate, "shape": [dims["n"]], "index": ["n"]}
    operands["output"] = _operand("output", spec.output.dtype or accumulate, "output", spec.output, pick["BMN"])
    return _generic(spec, dims, operands, accumulate)


class Dense(_Named):
    """A fully connected layer: input NC, weight OI, output NO."""

    operator: Literal["dense"] = "dense"
    input: Tensor
    weight: Tensor
    bias: BiasTensor | None = None

    def expand(self) -> Operator:
        """Dims n k c, as in a convolution."""
        x, w = _sizes("input", self.input, "NC"), _sizes("weight", self.weight, "OI")
        if x["C"] != w["I"]:
            raise ValueError(f"input has {x['C']} features and weight takes {w['I']}; make them equal")
        n, c, k = ((x["N"],), ("n",)), ((x["C"],), ("c",)), ((w["O"],), ("k",))
        produced = {"N": n, "O": k}
        _check_output(self.output, produced)
        accumulate = self.accumulate or default_accumulate(self.input.dtype)
        operands = {
            "input": _operand("input", self.input.dtype, "input", self.input, {"N": n, "C": c}),
            "weight": _operand("weight", self.weight.dtype, "weight", self.weight, {"O": k, "I": c}),
        }
        if self.bias is not None:
            operands["bias"] = {"role": "bias", "dtype": self.bias.dtype or accumulate, "shape": k[0], "index": k[1]}
        operands["output"] = _operand("output", self.output.dtype or accumulate, "output", self.output, produced)
        return _generic(self, {"n": x["N"], "k": w["O"], "c": x["C"]}, operands, accumulate)


class _Pool2d(_Named):
    input: Tensor
    kernel: Pair
    strides: Pair = (1, 1)
    pads: Pads = (0, 0, 0, 0)
    dilations: Pair = (1, 1)

    def _pool(self, reduce: str, epilogue: Epilogue, accumulate: DType, result: DType) -> Operator:
        """Dims n c p q r s; reduction over the window r s."""
        x = _sizes("input", self.input, "NCHW")
        p = _window("H", x["H"], self.kernel[0], self.strides[0], self.dilations[0], self.pads[0], self.pads[2])
        q = _window("W", x["W"], self.kernel[1], self.strides[1], self.dilations[1], self.pads[1], self.pads[3])
        rows = _index("p", "r", self.strides[0], self.dilations[0], self.pads[0])
        columns = _index("q", "s", self.strides[1], self.dilations[1], self.pads[1])
        n, c = ((x["N"],), ("n",)), ((x["C"],), ("c",))
        produced = {"N": n, "C": c, "H": ((p,), ("p",)), "W": ((q,), ("q",))}
        _check_output(self.output, produced)
        source = {"N": n, "C": c, "H": ((x["H"],), (rows,)), "W": ((x["W"],), (columns,))}
        operands = {
            "input": _operand("input", self.input.dtype, "input", self.input, source),
            "output": _operand("output", self.output.dtype or result, "output", self.output, produced),
        }
        dims = {"n": x["N"], "c": x["C"], "p": p, "q": q, "r": self.kernel[0], "s": self.kernel[1]}
        spec = self.model_copy(update={"epilogue": epilogue})
        return _generic(spec, dims, operands, accumulate, reduce=reduce)


class MaxPool2d(_Pool2d):
    """Maximum over a window; padding never wins. Input and output NCHW."""

    operator: Literal["max_pool2d"] = "max_pool2d"

    def expand(self) -> Operator:
        """Accumulates in the input's own dtype."""
        accumulate = self.accumulate or self.input.dtype
        return self._pool("max", self.epilogue, accumulate, accumulate)


class AvgPool2d(_Pool2d):
    """Mean over a window, of the points inside the input unless `count_include_pad`. Input and output NCHW."""

    operator: Literal["avg_pool2d"] = "avg_pool2d"
    count_include_pad: bool = False

    def expand(self) -> Operator:
        """Sums, then divides in the epilogue; the result has the input's dtype unless said."""
        average = Average(operand="input", dims=("r", "s"), valid=not self.count_include_pad)
        accumulate = self.accumulate or default_accumulate(self.input.dtype)
        return self._pool("sum", self.epilogue.model_copy(update={"average": average}), accumulate, self.input.dtype)


class Add(_Named):
    """Elementwise sum of two tensors of one shape, of up to 8 axes."""

    operator: Literal["add"] = "add"
    a: Tensor
    b: Tensor

    def expand(self) -> Operator:
        """Dims i0 i1 ...: one an axis."""
        if self.a.shape != self.b.shape:
            raise ValueError(f"a has shape {list(self.a.shape)} and b {list(self.b.shape)}; make them equal")
        if any(t.layout for t in (self.a, self.b, self.output)):
            raise ValueError("add takes no layout: its tensors have one shape, axis by axis")
        if self.output.shape is not None and self.output.shape != self.a.shape:
            raise ValueError(
                f"output: shape {list(self.output.shape)} disagrees with {list(self.a.shape)}, the inputs' shape"
            )
        accumulate = self.accumulate or default_accumulate(self.a.dtype)
        dims = {f"i{axis}": size for axis, size in enumerate(self.a.shape)}
        operands = {
            name: {"role": role, "dtype": dtype, "shape": self.a.shape, "index": tuple(dims)}
            for name, role, dtype in (
                ("a", "input", self.a.dtype),
                ("b", "input", self.b.dtype),
                ("output", "output", self.output.dtype or accumulate),
            )
        }
        return _generic(self, dims, operands, accumulate, combine="add")


def _generic(
    spec: _Named,
    dims: Mapping[str, int],
    operands: Mapping[str, Any],
    accumulate: DType,
    *,
    combine: str = "multiply",
    reduce: str = "sum",
) -> Operator:
    return Operator.model_validate(
        {
            "name": spec.name,
            "dims": dims,
            "operands": operands,
            "accumulate": accumulate,
            "combine": combine,
            "reduce": reduce,
            "epilogue": spec.epilogue,
            "constraints": spec.constraints,
        }
    )


Named = Conv2d | DepthwiseConv2d | Matmul | BatchMatmul | Dense | MaxPool2d | AvgPool2d | Add
NAMED: dict[str, type[Named]] = {
    "conv2d": Conv2d,
    "depthwise_conv2d": DepthwiseConv2d,
    "matmul": Matmul,
    "batch_matmul": BatchMatmul,
    "dense": Dense,
    "max_pool2d": MaxPool2d,
    "avg_pool2d": AvgPool2d,
    "add": Add,
}
_Model = TypeVar("_Model", bound=BaseModel)


def checked(model: type[_Model], fields: Mapping[str, Any]) -> _Model:
    """Validate fields given from Python; SpecError instead of pydantic's own exception."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise SpecError(_sentences(error)) from None


def _sentences(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(str(part) for part in e['loc'])}: {e['msg']}".removeprefix(": ").replace("Value error, ", "")
        for e in error.errors(include_url=False)
    )


def _build(model: type[Named], fields: Mapping[str, Any]) -> Operator:
    spec = checked(model, {k: v for k, v in fields.items() if v is not None})
    try:
        return spec.expand()
    except ValidationError as error:
        raise SpecError(_sentences(error)) from None
    except ValueError as error:
        raise SpecError(str(error)) from None


def _tensor(shape: Sequence[int], dtype: str, layout: str | None = None) -> dict[str, Any]:
    return {"shape": tuple(shape), "dtype": dtype, "layout": layout}


def _four(pads: int | Sequence[int]) -> tuple[int, ...]:
    return (pads,) * 4 if isinstance(pads, int) else tuple(pads)


def conv2d(
    input: Sequence[int],
    weight: Sequence[int],
    *,
    name: str = "conv2d",
    strides: Sequence[int] = (1, 1),
    pads: int | Sequence[int] = 0,
    dilations: Sequence[int] = (1, 1),
    groups: int = 1,
    bias: bool = False,
    dtype: DType = "int8",
    output_dtype: DType | None = None,
    accumulate: DType | None = None,
    epilogue: Epilogue | None = None,
    constraints: Constraints | None = None,
) -> Operator:
    """A convolution of an NCHW `input` shape with an OIHW `weight` shape; `pads` all round, or top, left, bottom, right."""
    fields = {"input": _tensor(input, dtype), "weight": _tensor(weight, dtype), "groups": groups}
    windows = {"strides": tuple(strides), "pads": _four(pads), "dilations": tuple(dilations)}
    return _build(Conv2d, fields | windows | _common(name, bias, output_dtype, accumulate, epilogue, constraints))


def depthwise_conv2d(
    input: Sequence[int],
    weight: Sequence[int],
    *,
    name: str = "depthwise_conv2d",
    strides: Sequence[int] = (1, 1),
    pads: int | Sequence[int] = 0,
    dilations: Sequence[int] = (1, 1),
    bias: bool = False,
    dtype: DType = "int8",
    output_dtype: DType | None = None,
    accumulate: DType | None = None,
    epilogue: Epilogue | None = None,
    constraints: Constraints | None = None,
) -> Operator:
    """A convolution of each channel by itself: NCHW `input`, `weight` [C, 1, R, S]."""
    fields = {"input": _tensor(input, dtype), "weight": _tensor(weight, dtype)}
    windows = {"strides": tuple(strides), "pads": _four(pads), "dilations": tuple(dilations)}
    return _build(
        DepthwiseConv2d, fields | windows | _common(name, bias, output_dtype, accumulate, epilogue, constraints)
    )


def matmul(
    m: int,
    n: int,
    k: int,
    *,
    name: str = "matmul",
    bias: bool = False,
    dtype: DType = "int8",
    output_dtype: DType | None = None,
    accumulate: DType | None = None,
    epilogue: Epilogue | None = None,
    constraints: Constraints | None = None,
) -> Operator:
    """[m, k] x [k, n] -> [m, n]."""
    fields = {"a": _tensor((m, k), dtype), "b": _tensor((k, n), dtype)}
    return _build(Matmul, fields | _common(name, bias, output_dtype, accumulate, epilogue, constraints))


def batch_matmul(
    batch: int,
    m: int,
    n: int,
    k: int,
    *,
    name: str = "batch_matmul",
    dtype: DType = "int8",
    output_dtype: DType | None = None,
    accumulate: DType | None = None,
    epilogue: Epilogue | None = None,
    constraints: Constraints | None = None,
) -> Operator:
    """[batch, m, k] x [batch, k, n] -> [batch, m, n]."""
    fields = {"a": _tensor((batch, m, k), dtype), "b": _tensor((batch, k, n), dtype)}
    return _build(BatchMatmul, fields | _common(name, False, output_dtype, accumulate, epilogue, constraints))


def dense(
    batch: int,
    in_features: int,
    out_features: int,
    *,
    name: str = "dense",
    bias: bool = False,
    dtype: DType = "int8",
    output_dtype: DType | None = None,
    accumulate: DType | None = None,
    epilogue: Epilogue | None = None,
    constraints: Constraints | None = None,
) -> Operator:
    """A fully connected layer: [batch, in_features] by weight [out_features, in_features]."""
    fields = {"input": _tensor((batch, in_features), dtype), "weight": _tensor((out_features, in_features), dtype)}
    return _build(Dense, fields | _common(name, bias, output_dtype, accumulate, epilogue, constraints))


def max_pool2d(
    input: Sequence[int],
    kernel: Sequence[int],
    *,
    name: str = "max_pool2d",
    strides: Sequence[int] = (1, 1),
    pads: int | Sequence[int] = 0,
    dilations: Sequence[int] = (1, 1),
    dtype: DType = "int8",
    output_dtype: DType | None = None,
    epilogue: Epilogue | None = None,
    constraints: Constraints | None = None,
) -> Operator:
    """Maximum over windows of an NCHW `input`."""
    fields = {"input": _tensor(input, dtype), "kernel": tuple(kernel)}
    windows = {"strides": tuple(strides), "pads": _four(pads), "dilations": tuple(dilations)}
    return _build(MaxPool2d, fields | windows | _common(name, False, output_dtype, None, epilogue, constraints))


def avg_pool2d(
    input: Sequence[int],
    kernel: Sequence[int],
    *,
    name: str = "avg_pool2d",
    strides: Sequence[int] = (1, 1),
    pads: int | Sequence[int] = 0,
    count_include_pad: bool = False,
    dtype: DType = "int8",
    output_dtype: DType | None = None,
    accumulate: DType | None = None,
    epilogue: Epilogue | None = None,
    constraints: Constraints | None = None,
) -> Operator:
    """Mean over windows of an NCHW `input`."""
    fields: dict[str, Any] = {"input": _tensor(input, dtype), "kernel": tuple(kernel)}
    windows = {"strides": tuple(strides), "pads": _four(pads), "count_include_pad": count_include_pad}
    return _build(AvgPool2d, fields | windows | _common(name, False, output_dtype, accumulate, epilogue, constraints))


def add(
    shape: Sequence[int],
    *,
    name: str = "add",
    dtype: DType = "int8",
    output_dtype: DType | None = None,
    accumulate: DType | None = None,
    epilogue: Epilogue | None = None,
    constraints: Constraints | None = None,
) -> Operator:
    """Elementwise sum of two tensors of this shape."""
    fields = {"a": _tensor(shape, dtype), "b": _tensor(shape, dtype)}
    return _build(Add, fields | _common(name, False, output_dtype, accumulate, epilogue, constraints))


def _common(
    name: str,
    bias: bool,
    output_dtype: DType | None,
    accumulate: DType | None,
    epilogue: Epilogue | None,
    constraints: Constraints | None,
) -> dict[str, Any]:
    return {
        "name": name,
        "bias": {} if bias else None,
        "output": {"dtype": output_dtype},
        "accumulate": accumulate,
        "epilogue": epilogue,
        "constraints": constraints,
    }
