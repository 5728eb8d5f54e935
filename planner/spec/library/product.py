"""Products of matrices: matmul, batch_matmul, dense."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from planner.spec.complaints import Fault, RuleError
from planner.spec.library.common import (
    Axes,
    BiasTensor,
    Named,
    Tensor,
    bias,
    build,
    default_accumulate,
    generic,
    operand,
    output,
    sizes,
    tensor,
)
from planner.spec.operator import Constraints, DType, Epilogue, Operator


def _product(spec: Named, a: Tensor, b: Tensor, letters: tuple[str, str, str], given: BiasTensor | None) -> Operator:
    """The generic form of fields `a` and `b` (or whatever they are called), from the letters of the three layouts."""
    fields = [spec.aliases.get(name, name) for name in ("input", "weight")]
    left, right = sizes(fields[0], a, letters[0]), sizes(fields[1], b, letters[1])
    for letter in left:
        if letter in right and left[letter] != right[letter]:
            why = f"{fields[0]} has {letter} = {left[letter]} and {fields[1]} has {letter} = {right[letter]}"
            raise RuleError(Fault((fields[0],), f"{why}; make the two equal"))
    extents = left | right
    axes: list[Axes] = [{x: ((extents[x], x.lower()),) for x in order} for order in letters]
    accumulate = spec.accumulate or default_accumulate(a.dtype)
    operands = {
        "input": operand("input", a.dtype, fields[0], a, axes[0]),
        "weight": operand("weight", b.dtype, fields[1], b, axes[1]),
        **bias(given, accumulate, axes[2][letters[2][-1]]),
        "output": output(spec, accumulate, axes[2]),
    }
    reduced = [x for x in letters[0] if x not in letters[2]]
    dims = {x.lower(): extents[x] for x in (*letters[2], *reduced)}
    return generic(spec, dims, operands, accumulate)


class Matmul(Named):
    """[M, K] x [K, N] -> [M, N], bias [N]. Dims m n k; `a` is the operand input of the generic form, `b` its weight."""

    aliases: ClassVar[Mapping[str, str]] = {"input": "a", "weight": "b"}
    operator: Literal["matmul"] = "matmul"
    a: Tensor = Field(description="Layout MK, or KM if it is transposed.")
    b: Tensor = Field(description="Layout KN, or NK if it is transposed.")
    bias: BiasTensor | None = None

    def expand(self) -> Operator:
        """Output layout MN, or NM."""
        return _product(self, self.a, self.b, ("MK", "KN", "MN"), self.bias)


class BatchMatmul(Named):
    """[B, M, K] x [B, K, N] -> [B, M, N]. Dims b m n k; `a` is the operand input of the generic form, `b` its weight."""

    aliases: ClassVar[Mapping[str, str]] = {"input": "a", "weight": "b"}
    operator: Literal["batch_matmul"] = "batch_matmul"
    a: Tensor = Field(description="Layout BMK, or another order of these axes.")
    b: Tensor = Field(description="Layout BKN, or another order of these axes.")

    def expand(self) -> Operator:
        """Output layout BMN, or another order of these axes."""
        return _product(self, self.a, self.b, ("BMK", "BKN", "BMN"), None)


class Dense(Named):
    """A fully connected layer: [N, C] by weight [K, C] -> [N, K], bias [K]. Dims n k c, as in a convolution."""

    operator: Literal["dense"] = "dense"
    input: Tensor = Field(description="Layout NC, or CN.")
    weight: Tensor = Field(description="Layout KC (one row per output feature), or CK.")
    bias: BiasTensor | None = None

    def expand(self) -> Operator:
        """Output layout NK, or KN."""
        return _product(self, self.input, self.weight, ("NC", "KC", "NK"), self.bias)


def matmul(
    m: int,
    n: int,
    k: int,
    *,
    name: str = "matmul",
    bias: bool = False,
    dtype: DType = "int8",
    weight_dtype: DType | None = None,
    output_dtype: DType | None = None,
    accumulate: DType | None = None,
    epilogue: Epilogue | Mapping[str, Any] | None = None,
    constraints: Constraints | Mapping[str, Any] | None = None,
) -> Operator:
    """[m, k] x [k, n] -> [m, n]. SpecError."""
    return _build(
        Matmul, ("a", (m, k), dtype), ("b", (k, n), weight_dtype or dtype),
        name=name, bias={} if bias else None, output={"dtype": output_dtype},
        accumulate=accumulate, epilogue=epilogue, constraints=constraints,
    )  # fmt: skip


def batch_matmul(
    batch: int,
    m: int,
    n: int,
    k: int,
    *,
    name: str = "batch_matmul",
    dtype: DType = "int8",
    weight_dtype: DType | None = None,
    output_dtype: DType | None = None,
    accumulate: DType | None = None,
    epilogue: Epilogue | Mapping[str, Any] | None = None,
    constraints: Constraints | Mapping[str, Any] | None = None,
) -> Operator:
    """[batch, m, k] x [batch, k, n] -> [batch, m, n]. SpecError."""
    return _build(
        BatchMatmul, ("a", (batch, m, k), dtype), ("b", (batch, k, n), weight_dtype or dtype),
        name=name, output={"dtype": output_dtype},
        accumulate=accumulate, epilogue=epilogue, constraints=constraints,
    )  # fmt: skip


def dense(
    batch: int,
    in_features: int,
    out_features: int,
    *,
    name: str = "dense",
    bias: bool = False,
    dtype: DType = "int8",
    weight_dtype: DType | None = None,
    output_dtype: DType | None = None,
    accumulate: DType | None = None,
    epilogue: Epilogue | Mapping[str, Any] | None = None,
    constraints: Constraints | Mapping[str, Any] | None = None,
) -> Operator:
    """A fully connected layer: [batch, in_features] by weight [out_features, in_features]. SpecError."""
    return _build(
        Dense, ("input", (batch, in_features), dtype), ("weight", (out_features, in_features), weight_dtype or dtype),
        name=name, bias={} if bias else None, output={"dtype": output_dtype},
        accumulate=accumulate, epilogue=epilogue, constraints=constraints,
    )  # fmt: skip


def _build(model: type[Named], *factors: tuple[str, Sequence[int], DType], **fields: Any) -> Operator:
    return build(model, **{field: tensor(shape, dtype) for field, shape, dtype in factors}, **fields)
