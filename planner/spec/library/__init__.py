"""Named operators: what ONNX users write, expanded to the generic form.

Each has a pydantic class, whose fields are the keys of its files, and a constructor for Python. Adding an operator is
adding a class with `operator: Literal["name"]` and `expand()`, a constructor beside it, and its line here.
"""

from __future__ import annotations

from planner.spec.library.common import Named, checked
from planner.spec.library.conv import Conv2d, DepthwiseConv2d, conv2d, depthwise_conv2d
from planner.spec.library.elementwise import Add, add
from planner.spec.library.pool import AvgPool2d, MaxPool2d, avg_pool2d, max_pool2d
from planner.spec.library.product import BatchMatmul, Dense, Matmul, batch_matmul, dense, matmul

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

__all__ = [
    "NAMED",
    "Named",
    "add",
    "avg_pool2d",
    "batch_matmul",
    "checked",
    "conv2d",
    "dense",
    "depthwise_conv2d",
    "matmul",
    "max_pool2d",
]
