"""What the named operators share: their fields, layouts, and the way to the generic form."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from operator import index as as_int
from typing import Annotated, Any, ClassVar, TypeVar, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from planner.errors import SpecError
from planner.spec.complaints import Fault, RuleError, faults_of, shown
from planner.spec.operator import Constraints, DType, Epilogue, Extent, Operator

Part = tuple[int, str]
"""Size and index of one axis of the generic form."""
Axes = Mapping[str, tuple[Part, ...]]
"""The letters of a layout in their default order; a letter may stand for several axes (group and channel), or for none."""


class Spec(BaseModel):
    """Base of everything that a file may hold."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Tensor(Spec):
    """A tensor: `layout` names its axes by letters, in the order they lie in memory."""

    shape: tuple[Extent, ...] = Field(min_length=1)
    dtype: DType = "int8"
    layout: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _mapping(cls, value: Any) -> Any:
        if isinstance(value, list | tuple):
            raise ValueError(f"should be a mapping; write {{shape: {shown(cast('object', value))}}}")
        return value


class BiasTensor(Spec):
    """A bias: one value per output channel, in the accumulator's dtype unless said."""

    dtype: DType | None = None
    shape: tuple[Extent, ...] | None = Field(None, description="One axis; follows from the weight, checked if given.")


class OutputTensor(Spec):
    """The output: its shape follows from the inputs, and is checked if given."""

    dtype: DType | None = None
    shape: tuple[Extent, ...] | None = None
    layout: str | None = None


class Named(Spec, ABC):
    """A named operator: what its users write, and how that expands."""

    aliases: ClassVar[Mapping[str, str]] = {}
    """Operand of the generic form -> the field it was written as, where these differ."""

    name: str = Field(min_length=1)
    output: OutputTensor = Field(default_factory=OutputTensor)
    accumulate: DType | None = Field(
        None, description="dtype of the accumulator; int32 or float32 for narrow operands."
    )
    epilogue: Epilogue = Field(default_factory=Epilogue)
    constraints: Constraints = Field(default_factory=Constraints)

    @abstractmethod
    def expand(self) -> Operator:
        """The generic form. RuleError, or pydantic's exception for a fault that only shows there."""

    def to_operator(self) -> Operator:
        """The generic form; RuleError, with paths as this operator is written."""
        try:
            return self.expand()
        except ValidationError as error:
            found = faults_of(error, Operator, None)
        raise RuleError(*(Fault(self.written(f.path), f.message) for f in found))

    def written(self, path: Sequence[str | int]) -> tuple[str | int, ...]:
        """The path in this form of a path in the generic form."""
        if len(path) >= 2 and path[0] == "operands":
            return (self.aliases.get(str(path[1]), str(path[1])),)
        return tuple(path) if path and path[0] in ("epilogue", "constraints") else ("operator",)


def _all_or_each(times: int, each: str) -> Callable[[Any], Any]:
    """A validator: one integer stands for all; a list has to have as many as there are."""

    def validate(value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            return (value,) * times
        if isinstance(value, list | tuple) and (count := len(cast("Sequence[Any]", value))) != times:
            raise ValueError(f"has {count} entries; give one for all, or {times}: {each}")
        return cast("Any", value)

    return validate


Pads = Annotated[
    tuple[
        Annotated[int, Field(strict=True, ge=0)],
        Annotated[int, Field(strict=True, ge=0)],
        Annotated[int, Field(strict=True, ge=0)],
        Annotated[int, Field(strict=True, ge=0)],
    ],
    BeforeValidator(
        _all_or_each(4, "top, left, bottom, right"), json_schema_input_type=int | tuple[int, int, int, int]
    ),
    Field(description="top, left, bottom, right, as ONNX orders them; or one for all"),
]
Pair = Annotated[
    tuple[Extent, Extent],
    BeforeValidator(_all_or_each(2, "along height, along width"), json_schema_input_type=int | tuple[int, int]),
    Field(description="along height, along width; or one for both"),
]


class Windowed(Named, ABC):
    """An operator whose windows slide over height and width."""

    strides: Pair = (1, 1)
    pads: Pads = (0, 0, 0, 0)
    dilations: Pair = (1, 1)

    def slide(self, axis: int, size: int, kernel: int) -> tuple[int, str]:
        """Output size and input index along height (axis 0) or width (1). RuleError if the kernel does not fit."""
        stride, dilation = self.strides[axis], self.dilations[axis]
        before, after = self.pads[axis], self.pads[axis + 2]
        reach, padded = (kernel - 1) * dilation + 1, size + before + after
        along = ("height", "width")[axis]
        if padded < reach:
            why = f"along the {along} the kernel reaches over {reach} and the padded input has {padded}; add pads"
            raise RuleError(Fault(("operator",), why))
        out, window = (("p", "r"), ("q", "s"))[axis]
        scaled = [name if a == 1 else f"{a}*{name}" for a, name in ((stride, out), (dilation, window))]
        index = " + ".join(scaled) + (f" - {before}" if before else "")
        return (padded - reach) // stride + 1, index


def default_accumulate(dtype: DType) -> DType:
    """int32 for integers up to 16 bits, float32 for float16, otherwise the dtype itself."""
    match dtype:
        case "int8" | "uint8" | "int16" | "uint16":
            return "int32"
        case "float16":
            return "float32"
        case _:
            return dtype


def layout_of(field: str, tensor: Tensor | OutputTensor, letters: str) -> str:
    """The order of a tensor's axes. RuleError if it is not an order of the letters."""
    layout = tensor.layout or letters
    if sorted(layout) != sorted(letters) and sorted(layout.upper()) == sorted(letters):
        raise RuleError(Fault((field,), f"{field}: layout {layout!r} is no order of the axes; write {layout.upper()}"))
    if any(ch.isdigit() or ch.islower() for ch in layout):
        why = f"{field}: layout {layout!r} is blocked, and blocked layouts are not supported; use an order of {letters}"
        raise RuleError(Fault((field,), why))
    if sorted(layout) != sorted(letters):
        raise RuleError(Fault((field,), f"{field}: layout {layout!r} is no order of the axes {letters}"))
    return layout


def sizes(field: str, tensor: Tensor, letters: str) -> dict[str, int]:
    """Sizes of a tensor by the letters of its layout. RuleError if they are not as many."""
    layout = layout_of(field, tensor, letters)
    if len(tensor.shape) != len(layout):
        why = f"{field}: shape {list(tensor.shape)} has {len(tensor.shape)} axes; {layout} has {len(layout)}"
        raise RuleError(Fault((field,), f"{why}; give one size per axis"))
    return dict(zip(layout, tensor.shape, strict=True))


def operand(role: str, dtype: DType, field: str, tensor: Tensor | OutputTensor, axes: Axes) -> dict[str, Any]:
    """An operand of the generic form, its axes in the order of the tensor's layout."""
    parts = [part for letter in layout_of(field, tensor, "".join(axes)) for part in axes[letter]]
    # A tensor of which every letter stands for nothing would have no axis at all.
    parts = parts or [(1, "0")]
    return {"role": role, "dtype": dtype, "shape": [size for size, _ in parts], "index": [index for _, index in parts]}


def output(spec: Named, dtype: DType, axes: Axes) -> dict[str, Any]:
    """The output operand. RuleError if a shape is given and disagrees."""
    given = spec.output
    layout = layout_of("output", given, "".join(axes))
    derived = [prod(size for size, _ in axes[letter]) for letter in layout]
    if given.shape is not None and list(given.shape) != derived:
        why = f"output: shape {list(given.shape)} ({layout}) disagrees with {derived}, which the inputs give"
        raise RuleError(Fault(("output",), f"{why}; leave it out or correct it"))
    return operand("output", given.dtype or dtype, "output", given, axes)


def bias(given: BiasTensor | None, accumulate: DType, parts: Sequence[Part]) -> dict[str, Any]:
    """The bias operand by its name, over the axes of the output's channels; nothing if there is no bias."""
    if given is None:
        return {}
    size = prod(n for n, _ in parts)
    if given.shape is not None and given.shape != (size,):
        why = f"bias: shape {list(given.shape)} disagrees with [{size}], one value per output channel"
        raise RuleError(Fault(("bias",), f"{why}; leave it out or correct it"))
    shape, index = [n for n, _ in parts], [i for _, i in parts]
    return {"bias": {"role": "bias", "dtype": given.dtype or accumulate, "shape": shape, "index": index}}


def generic(
    spec: Named,
    dims: Mapping[str, int],
    operands: Mapping[str, Any],
    accumulate: DType,
    *,
    combine: str = "multiply",
    reduce: str = "sum",
    epilogue: Epilogue | None = None,
) -> Operator:
    """The generic operator; pydantic's exception if a rule of the generic form is broken."""
    return Operator.model_validate(
        {
            "name": spec.name,
            "dims": dims,
            "operands": operands,
            "accumulate": accumulate,
            "combine": combine,
            "reduce": reduce,
            "epilogue": epilogue or spec.epilogue,
            "constraints": spec.constraints,
        }
    )


_Model = TypeVar("_Model", bound=BaseModel)


def checked(model: type[_Model], fields: Mapping[str, Any]) -> _Model:
    """Validate fields given from Python; SpecError instead of pydantic's own exception."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise SpecError("\n".join(f.message for f in faults_of(error, model, fields))) from None


def build(model: type[Named], **fields: Any) -> Operator:
    """The operator that fields given from Python describe; a field of None counts as left out. SpecError."""
    spec = checked(model, {k: v for k, v in fields.items() if v is not None})
    try:
        return spec.to_operator()
    except RuleError as faults:
        raise SpecError(str(faults)) from None


def integer(value: Any) -> Any:
    """An integer of any kind, numpy's too, as a plain one; anything else is left for the checks to refuse."""
    try:
        return value if isinstance(value, bool) else as_int(value)
    except TypeError:
        return value


def integers(values: Any, times: int = 1) -> Any:
    """Integers of any kind as a tuple of plain ones; a single one `times` over."""
    single = integer(values)
    if isinstance(single, int) and not isinstance(single, bool):
        return (single,) * times
    if isinstance(values, Iterable) and not isinstance(values, str | Mapping):
        return tuple(integer(v) for v in cast("Iterable[Any]", values))
    return cast("Any", values)


def tensor(shape: Any, dtype: Any) -> dict[str, Any]:
    """A tensor's fields from its shape."""
    return {"shape": integers(shape) if not isinstance(shape, int) else shape, "dtype": dtype}
