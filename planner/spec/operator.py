"""The operator in its generic form: a perfectly nested loop over named dims, and operands with affine indices.

    accumulator[index of output] = reduce(combine(inputs and weights))      over all dims
    output = epilogue(accumulator)                                          once per element

The named operators (conv2d, matmul, ...) in `library` are shorthands that expand to this form.
"""

from __future__ import annotations

from math import isfinite
from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
    model_validator,
)

from planner.spec.affine import Affine
from planner.spec.complaints import Fault, RuleError, shown
from planner.spec.origin import Written

DType = Literal["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "float16", "float32", "float64"]
Role = Literal["input", "weight", "bias", "output"]

DTYPE_BYTES: dict[DType, int] = {
    "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8,
    "float16": 2, "float32": 4, "float64": 8,
}  # fmt: skip


def _parse_index(value: object) -> Affine:
    if isinstance(value, Affine):
        return value
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"index {value!r} is neither an integer nor an expression such as '2*p + r - 1'")
    return Affine.parse(value)


Index = Annotated[
    Affine,
    BeforeValidator(_parse_index),
    PlainSerializer(str, return_type=str),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "integer"}], "examples": ["2*p + r - 1"]}),
]
Extent = Annotated[int, Field(strict=True, gt=0)]


class _Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Operand(_Spec):
    """A tensor: one affine index per axis of its shape. An index outside `[0, size)` reads the padding value."""

    role: Role
    dtype: DType
    shape: tuple[Extent, ...] = Field(min_length=1)
    index: tuple[Index, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _one_index_per_axis(self) -> Self:
        if len(self.shape) != len(self.index):
            why = f"shape has {len(self.shape)} axes and index has {len(self.index)}; give one index per axis"
            raise RuleError(Fault((), why, at_key=False))
        return self

    @property
    def element_bytes(self) -> int:
        return DTYPE_BYTES[self.dtype]

    @property
    def dims(self) -> frozenset[str]:
        """The dims that its index depends on."""
        return frozenset(dim for axis in self.index for dim in axis.dims)


class Requantise(_Spec):
    """`((acc * multiplier + (1 << (shift - 1))) >> shift) + zero_point`, in 64 bits: rounds half up; shift 0 adds nothing."""

    multiplier: int = Field(strict=True, ge=-(2**31), lt=2**31)
    shift: int = Field(strict=True, ge=0, le=62)
    zero_point: int = Field(0, strict=True, ge=-(2**31), lt=2**31)


class Average(_Spec):
    """Divide the sum by a count of points, halves away from zero for integers.

    With `valid` set, the count is the number of points of the window over `dims` that lie inside `operand`; otherwise it
    is the whole window, padding included.
    """

    operand: str
    dims: tuple[str, ...]
    valid: bool = False


def _bound(value: object) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{shown(value)} is no number")
    if (isinstance(value, float) and not isfinite(value)) or abs(value) > 2**1000:
        raise ValueError(f"{shown(value)} is not finite; leave clip out, or write the dtype's own limit")
    return value


Bound = Annotated[int | float, BeforeValidator(_bound)]


class Epilogue(_Spec):
    """What is done to a finished accumulator element before it is stored, in this order, then saturated to the dtype."""

    average: Average | None = None
    requantise: Requantise | None = None
    relu: bool = False
    clip: tuple[Bound, Bound] | None = None


class TileRule(_Spec):
    """What a user demands of one tile size."""

    equals: Extent | None = None
    multiple_of: Extent | None = None
    minimum: Extent | None = None
    maximum: Extent | None = None


def _tile_rule(value: object) -> object:
    return {"equals": value} if isinstance(value, int) and not isinstance(value, bool) else value


class Constraints(_Spec):
    """Demands on the plan; each is obeyed, or the plan is refused.

    `tiles` maps a place to dims to rules. A place is `operand@memory` (one buffer), a memory or an operand (all of its
    buffers), or `*` (every buffer); a rule is an integer (that tile size exactly) or a `TileRule`. `order` lists
    buffers as `operand@memory`, outermost first: these keep this order; buffers not listed may stand anywhere.
    `spill: false` forbids partial sums to leave any scope and come back.
    """

    tiles: dict[
        str, dict[str, Annotated[TileRule, BeforeValidator(_tile_rule, json_schema_input_type=int | TileRule)]]
    ] = Field(default_factory=dict)
    order: tuple[str, ...] = ()
    spill: bool = True


class Operator(Written):
    """An operator in the generic form."""

    name: str = Field(min_length=1)
    operator: Literal["generic"] = "generic"
    dims: dict[str, Extent] = Field(min_length=1, description="Extent of each dim of the loop nest.")
    operands: dict[str, Operand] = Field(min_length=2)
    accumulate: DType = Field(description="dtype of the accumulator.")
    combine: Literal["multiply", "add"] = Field("multiply", description="How one point's inputs and weights combine.")
    reduce: Literal["sum", "max"] = Field("sum", description="How points of one output element reduce.")
    epilogue: Epilogue = Field(default_factory=Epilogue)
    constraints: Constraints = Field(default_factory=Constraints)

    # The checks that need more than one field live in `validate.py`, one function a rule.
    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        from planner.spec.validate import check_operator

        check_operator(self)
        return self

    @property
    def output_name(self) -> str:
        return next(name for name, o in self.operands.items() if o.role == "output")

    @property
    def output(self) -> Operand:
        return self.operands[self.output_name]

    @property
    def bias_name(self) -> str | None:
        return next((name for name, o in self.operands.items() if o.role == "bias"), None)

    @property
    def factors(self) -> dict[str, Operand]:
        """The inputs and weights, which the compute step reads."""
        return {name: o for name, o in self.operands.items() if o.role in ("input", "weight")}

    @property
    def reduction_dims(self) -> frozenset[str]:
        """Dims that the output's index lacks."""
        return frozenset(self.dims) - self.output.dims

    @property
    def macs(self) -> int:
        """Points of the whole iteration space."""
        product = 1
        for extent in self.dims.values():
            product *= extent
        return product

    @property
    def padding_value(self) -> int | float:
        """What an input reads outside its shape: zero, or the least value of the dtype where a maximum is taken."""
        if self.reduce == "sum":
            return 0
        dtype = next(iter(self.factors.values())).dtype
        if dtype.startswith("float"):
            return float("-inf")
        bits = 8 * DTYPE_BYTES[dtype]
        return 0 if dtype.startswith("u") else -(1 << (bits - 1))

    def margins(self, operand_name: str) -> list[tuple[int, int]]:
        """How many indices before and behind the shape are read, along each axis of an operand: its padding."""
        operand = self.operands[operand_name]
        reaches = [index.reach(self.dims) for index in operand.index]
        return [
            (max(-low, 0), max(high - size + 1, 0)) for (low, high), size in zip(reaches, operand.shape, strict=True)
        ]

    def buffer_element_bytes(self, operand_name: str) -> int:
        """Bytes of one element in an on-chip buffer: output buffers hold accumulator elements."""
        operand = self.operands[operand_name]
        return DTYPE_BYTES[self.accumulate] if operand.role == "output" else operand.element_bytes
