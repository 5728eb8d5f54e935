"""Elementwise operators: add."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from planner.spec.complaints import Fault, RuleError
from planner.spec.library.common import Named, Tensor, build, default_accumulate, generic, tensor
from planner.spec.operator import Constraints, DType, Epilogue, Operator


class Add(Named):
    """Elementwise sum of two tensors of one shape. Dims i0 i1 ...: one an axis; both tensors have role input."""

    operator: Literal["add"] = "add"
    a: Tensor
    b: Tensor

    def expand(self) -> Operator:
        """The dims follow the shapes, whose axes have no letters: no layout is taken."""
        shape = self.a.shape
        for field, given in (("a", self.a), ("b", self.b), ("output", self.output)):
            if given.layout is not None:
                why = f"{field}: layout {given.layout!r} means nothing to add, which goes axis by axis; take it out"
                raise RuleError(Fault((field,), why))
            if given.shape not in (None, shape):
                why = f"{field}: shape {list(given.shape or ())} disagrees with {list(shape)}, the shape of a"
                raise RuleError(Fault((field,), f"{why}; make the two equal"))
        accumulate = self.accumulate or default_accumulate(self.a.dtype)
        dims = {f"i{axis}": size for axis, size in enumerate(shape)}
        axes = {"shape": shape, "index": tuple(dims)}
        operands = {
            "a": {"role": "input", "dtype": self.a.dtype, **axes},
            "b": {"role": "input", "dtype": self.b.dtype, **axes},
            "output": {"role": "output", "dtype": self.output.dtype or accumulate, **axes},
        }
        return generic(self, dims, operands, accumulate, combine="add")


def add(
    shape: Sequence[int],
    *,
    name: str = "add",
    dtype: DType = "int8",
    output_dtype: DType | None = None,
    accumulate: DType | None = None,
    epilogue: Epilogue | Mapping[str, Any] | None = None,
    constraints: Constraints | Mapping[str, Any] | None = None,
) -> Operator:
    """Elementwise sum of two tensors of this shape. SpecError."""
    return build(
        Add,
        name=name,
        a=tensor(shape, dtype),
        b=tensor(shape, dtype),
        output={"dtype": output_dtype},
        accumulate=accumulate,
        epilogue=epilogue,
        constraints=constraints,
    )
