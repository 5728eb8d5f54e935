"""The ready networks hold each distinct layer: against the published block structure, written out here again."""

from __future__ import annotations

import pytest
from conftest import SPECS

import planner

Layer = tuple[str, int, int, int, int, int]
"""kind, channels in, channels out, input size, kernel, stride."""


def _resnet50() -> set[Layer]:
    """He et al. 2016, table 1, with the stride on the 3x3 convolution of a stage's first block."""
    layers: set[Layer] = {("conv", 3, 64, 224, 7, 2), ("dense", 2048, 1000, 1, 1, 1)}
    channels, size = 64, 56
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            step = stride if block == 0 else 1
            layers.add(("conv", channels, width, size, 1, 1))
            layers.add(("conv", width, width, size, 3, step))
            layers.add(("conv", width, 4 * width, size // step, 1, 1))
            if block == 0:
                layers.add(("conv", channels, 4 * width, size, 1, step))
            channels, size = 4 * width, size // step
    return layers


def _mobilenetv2() -> set[Layer]:
    """Sandler et al. 2018, table 2: t, c, n, s."""
    layers: set[Layer] = {("conv", 3, 32, 224, 3, 2), ("conv", 320, 1280, 7, 1, 1), ("dense", 1280, 1000, 1, 1, 1)}
    channels, size = 32, 112
    table = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for expand, out, repeats, stride in table:
        for block in range(repeats):
            step, wide = stride if block == 0 else 1, channels * expand
            if expand > 1:
                layers.add(("conv", channels, wide, size, 1, 1))
            layers.add(("depthwise", wide, wide, size, 3, step))
            layers.add(("conv", wide, out, size // step, 1, 1))
            channels, size = out, size // step
    return layers


def _read(folder: str) -> list[Layer]:
    found: list[Layer] = []
    for path in sorted((SPECS / "operators" / folder).glob("*.yaml")):
        op = planner.load_operator(path)
        assert (op.operands["input"].dtype, op.output.dtype, op.bias_name) == ("int8", "int32", None)
        if "p" not in op.dims:
            found.append(("dense", op.dims["c"], op.dims["k"], 1, 1, 1))
            continue
        source = op.operands["input"]
        stride = dict(source.index[2].terms)["p"]
        kind = "conv" if "k" in op.dims else "depthwise"
        found.append((kind, op.dims["c"], op.output.shape[1], source.shape[2], op.dims["r"], stride))
        assert op.output.shape[2] == -(-source.shape[2] // stride)
    return found


@pytest.mark.parametrize(("folder", "layers"), [("resnet50", _resnet50()), ("mobilenetv2", _mobilenetv2())])
def test_each_distinct_layer_once(folder: str, layers: set[Layer]) -> None:
    found = _read(folder)
    assert len(found) == len(set(found))
    assert set(found) == layers
