"""Inputs on which tools of this kind have failed in public, each with its right value. Numbers are those of specs/*/cases."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import SPECS, machine, one_scope, scopes

import planner
from planner import Machine, Operator, Plan, SpecError
from planner.emit import emit
from planner.spec.machine import parse_size


def _case(name: str) -> Operator:
    return planner.load_operator(SPECS / "operators" / "cases" / f"{name}.yaml")


def _proved(operator: Operator, on: Machine, **options: object) -> Plan:
    plan = planner.solve(operator, on, **options)  # type: ignore[arg-type]
    assert plan.status == "optimal"
    plan.verify()
    return plan


@pytest.mark.parametrize("height", [45, 46, 48])
def test_01_buffers_follow_their_tiles(height: int) -> None:
    operator = _case(f"01-depthwise-{height}")
    plan = _proved(operator, machine("three-scopes-4k"))
    whole = 8 * height * 48
    # Read once where a tile keeps whole rows; 24 bytes of halo rows at most per cut and channel.
    assert whole + 8 * 9 + 4 * whole <= plan.total_traffic_bytes < 1.05 * (whole + 72 + 4 * whole)


def test_02_the_last_byte_decides() -> None:
    plan = _proved(_case("02-depthwise-double-buffered"), machine("cases/8000b-double-buffered"))
    assert plan.total_traffic_bytes == 20624
    assert max(b.offset_bytes + b.size_bytes for b in plan.buffers) <= 8000
    assert all(b.copies == 2 for b in plan.buffers)


def test_03_weight_bytes() -> None:
    operator = _case("03-depthwise-1d")
    assert np.prod(operator.operands["weight"].shape) == 10240 * 4
    plan = _proved(operator, machine("three-scopes-4k"))
    assert plan.traffic["weight"].read_bytes == 10240 * 4


def test_04_the_reduction_is_split() -> None:
    operator, on = _case("04-split-the-reduction"), machine("cases/36700b")
    assert _proved(operator, on, tiles="divisors").total_traffic_bytes == 2484736
    assert _proved(operator, on).total_traffic_bytes <= 2484736


@pytest.mark.parametrize("scope", ["25600b", "16000b"])
def test_05_exactly_full_is_full_enough(scope: str) -> None:
    assert _proved(_case("05-exactly-full"), machine(f"cases/{scope}")).total_traffic_bytes == 25600


def test_05_one_byte_less_than_everything() -> None:
    everything = planner.matmul(4, 4, 4)
    assert _proved(everything, one_scope(16 + 16 + 64)).transfers == 3
    assert _proved(everything, one_scope(16 + 16 + 63)).transfers > 3


def test_06_the_budget_is_not_halved() -> None:
    operator, on = _case("06-array-blocks"), machine("cases/06-gemmini")
    blocks = {"scratchpad": {"m": 128, "n": 128, "k": 512}, "accumulator": {"m": 128, "n": 128}}
    demands = {"tiles": {place: dict(tile) for place, tile in blocks.items()}}
    plan = _proved(operator.model_copy(update={"constraints": planner.Constraints.model_validate(demands)}), on)
    # 8 x 8 blocks of 16 x 16 accumulators fill the accumulator exactly; 8 x 32 blocks of each factor fit beside each other.
    assert plan.buffer("output", "accumulator").size_bytes == 64 * 1024
    assert plan.buffer("input", "scratchpad").size_bytes == plan.buffer("weight", "scratchpad").size_bytes == 128 * 512
    assert _proved(operator, on).total_traffic_bytes <= plan.total_traffic_bytes


def test_07_sizes_do_not_wrap() -> None:
    assert machine("cases/07-large").scopes[0].capacity == 1638400 * 1024
    assert parse_size("512 MiB") == 2**29
    assert parse_size("4GiB") == 2**32
    assert parse_size("2097152b") == 2**18
    # 669141632 B in one tile, 5353133056 bits: int8 factors and an int32 result.
    operator = planner.matmul(8192, 6720, 30106)
    plan = planner.solve(operator, machine("cases/07-large"))
    assert (plan.status, plan.transfers) == ("optimal", 3)
    assert sum(b.size_bytes for b in plan.buffers) == 669141632
    whole = planner.Constraints.model_validate({"tiles": {"*": dict(operator.dims)}})
    pinned = operator.model_copy(update={"constraints": whole})
    assert planner.solve(pinned, one_scope(669141632)).status == "optimal"
    plan = planner.solve(pinned, one_scope(669141631))
    assert [(s.needed_bytes, s.capacity_bytes) for s in plan.shortages] == [(669141632, 669141631)]


def test_08_a_pinned_tile_that_is_too_large() -> None:
    plan = planner.solve(_case("08-pinned-tile"), machine("cases/65536b"))
    assert plan.status == "infeasible"
    (short,) = plan.shortages
    assert (short.needed_bytes, short.capacity_bytes) == (69792, 65536)
    from planner.report import plan_text

    assert "4256 B too much" in plan_text(plan)


@pytest.mark.parametrize("name", ["09-matmul-36x1x288", "09-batch-matmul"])
def test_09_sizes_that_do_not_divide(name: str) -> None:
    plan = _proved(_case(name), machine("cases/65536b"))
    assert max(b.offset_bytes + b.size_bytes for b in plan.buffers) <= 65536


def test_10_the_right_scope_is_named() -> None:
    on = scopes(1024, 2, 3)
    plan = planner.solve(planner.conv2d((1, 8, 8, 8), (8, 8, 3, 3)), on)
    assert plan.status == "infeasible"
    (short,) = plan.shortages
    assert (short.memory, short.needed_bytes, short.capacity_bytes) == ("acc_buffer", 4, 3)
    assert "4 B" in short.remedy


def test_11_weights_that_fit_are_loaded_once() -> None:
    operator = _case("11-weights-fit")
    plan = _proved(operator, machine("cases/11-weights-fit"))
    assert plan.traffic["weight"].read_bytes == 147456


def test_12_one_tile() -> None:
    plan = _proved(_case("12-one-tile"), machine("cases/30000b"))
    assert plan.total_traffic_bytes == 75 + 54 + 8
    assert plan.transfers == 3


def test_13_a_dilated_window() -> None:
    operator = _case("13-dilation")
    rows, columns = operator.operands["input"].index[2:]
    tile = {**operator.dims, "p": 16, "q": 2}
    assert (rows.points(tile), columns.points(tile)) == (20, 6)
    _proved(operator, machine("three-scopes-4k"))


def test_14_stride_3_and_one_sided_padding() -> None:
    operator = _case("14-stride-3-pad-left")
    assert (operator.dims["p"], operator.dims["q"]) == (23, 5)
    _proved(operator, machine("three-scopes-4k"))


def test_15_skipped_pixels_are_not_fetched() -> None:
    operator = _case("15-strided-1x1")
    kept = 512 * 14 * 14 * 2
    assert _proved(operator, one_scope(16 << 20)).traffic["input"].read_bytes == kept
    plan = _proved(operator, machine("shared-l1-mcu"))
    whole = [plan.buffer("input", "l1").shape[axis] for axis in (2, 3)]
    assert max(whole) <= 14  # pixels between are not even held
    assert plan.traffic["input"].read_bytes % kept == 0


def test_16_padding_from_the_absolute_position() -> None:
    operator = _case("16-first-layer")
    tiles = {"inp_buffer": {"p": 37, "q": 50}, "acc_buffer": {"p": 9, "q": 11}}
    demands = planner.Constraints.model_validate({"tiles": tiles, "order": ["input@inp_buffer", "output@acc_buffer"]})
    _proved(operator.model_copy(update={"constraints": demands}), scopes(64 << 10, 16 << 10, 64 << 10))


def test_17_tails_are_clamped_at_every_level() -> None:
    operator = planner.conv2d((1, 2, 18, 18), (2, 2, 3, 3))
    tiles = {"inp_buffer": {"p": 10}, "acc_buffer": {"p": 4}}
    demands = planner.Constraints.model_validate({"tiles": tiles, "order": ["input@inp_buffer", "output@acc_buffer"]})
    _proved(operator.model_copy(update={"constraints": demands}), scopes(4096, 4096, 4096))


@pytest.mark.parametrize("name", ["18-matmul-16x104", "19-matmul-64x128x200", "19-matmul-k80"])
@pytest.mark.parametrize("on", ["three-scopes-4k", "shared-l1-mcu"])
def test_18_19_every_output_once(name: str, on: str) -> None:
    _proved(_case(name), machine(on))


def test_18_columns_in_tiles_of_8() -> None:
    demands = planner.Constraints.model_validate({"tiles": {"*": {"n": 8}}})
    operator = _case("18-matmul-16x104").model_copy(update={"constraints": demands})
    assert _proved(operator, machine("three-scopes-4k")).traffic["output"].written_bytes == 16 * 104 * 4


def test_19_a_reduction_of_48_and_32() -> None:
    demands = planner.Constraints.model_validate({"tiles": {"*": {"k": 48}}})
    _proved(_case("19-matmul-k80").model_copy(update={"constraints": demands}), machine("three-scopes-4k"))


@pytest.mark.parametrize("name", ["20-max-pool-k3s2", "20-max-pool-k2s3"])
@pytest.mark.parametrize("on", ["three-scopes-4k", "shared-l2"])
def test_20_max_pools(name: str, on: str) -> None:
    _proved(_case(name), machine(on))


@pytest.mark.parametrize("dtype", ["int8", "int16", "float32"])
def test_21_typed_buffers_at_byte_offsets(dtype: str) -> None:
    operator = planner.conv2d((1, 3, 9, 9), (5, 3, 3, 3), pads=1, bias=True, dtype=dtype)  # type: ignore[arg-type]
    plan = _proved(operator, one_scope(1000, alignment=4))
    assert len({b.offset_bytes for b in plan.buffers}) == 4
    _proved(operator, one_scope(1200, alignment=64))


def test_23_run_twice() -> None:
    plan = _proved(_case("23-channels-29-and-3"), machine("three-scopes-4k"))
    names: dict[str, object] = {"__name__": "kernel"}
    exec(compile(emit(plan, "python"), "kernel.py", "exec"), names)
    kernel = names["case_23_channels_29_and_3"]
    rng = np.random.default_rng(1)
    x = rng.integers(-128, 127, (1, 8, 12, 12), np.int8)
    w = rng.integers(-128, 127, (32, 8, 3, 3), np.int8)
    first, second = kernel(x, w), kernel(x, w)  # type: ignore[operator]
    assert (first == second).all()


def test_26_a_pin_is_obeyed() -> None:
    plan = _proved(_case("26-pinned-window"), machine("three-scopes-4k"))
    for operand in ("input", "weight", "output"):
        memory = {"input": "inp_buffer", "weight": "wgt_buffer", "output": "acc_buffer"}[operand]
        assert plan.buffer(operand, memory)
    assert plan.buffer("weight", "wgt_buffer").shape[2:] == (1, 1)
    assert {e.dim for e in plan.nest if hasattr(e, "dim")} >= {"r", "s"}  # type: ignore[union-attr]


def test_26_or_refused() -> None:
    demands = {
        "tiles": {"inp_buffer": {"c": 4}, "wgt_buffer": {"c": 2}},
        "order": ["weight@wgt_buffer", "input@inp_buffer"],
    }
    operator = _case("26-pinned-window").model_copy(update={"constraints": planner.Constraints.model_validate(demands)})
    plan = planner.solve(operator, machine("three-scopes-4k"))
    assert plan.status == "infeasible"
    assert len(plan.conflicts) == 3


def test_27_huge_products() -> None:
    plan = planner.solve(_case("27-huge"), machine("forum"), time_limit_s=4)
    assert plan.status in ("optimal", "feasible")
    assert plan.objective.value is not None and plan.objective.bound is not None
    assert 3 * 10**12 < plan.objective.bound <= plan.objective.value < 2**60
    plan.check()


def test_28_workers_and_runs_do_not_change_the_plan() -> None:
    operator = planner.conv2d((1, 64, 14, 14), (64, 64, 3, 3), pads=1)
    for on in (machine("three-scopes-4k"), machine("shared-l2")):
        texts = {planner.solve(operator, on, workers=w).to_json() for w in (1, 2, 1, 8)}
        assert len(texts) == 1


def test_29_at_the_time_limit_the_best_plan_with_its_bound() -> None:
    plan = planner.solve(_case("27-huge"), machine("forum"), time_limit_s=1e-6)
    assert plan.status == "feasible"
    assert plan.gap is not None and 0 < plan.gap < 1
    plan.check()


@pytest.mark.parametrize("layout", ["NCHW16c", "NHWC4c"])
def test_25_blocked_layouts_are_refused_by_name(layout: str, tmp_path: Path) -> None:
    path = tmp_path / "conv.yaml"
    path.write_text(
        f"name: x\noperator: conv2d\ninput: {{shape: [1, 8, 8, 8], layout: {layout}}}\nweight: {{shape: [8, 8, 3, 3]}}\n"
    )
    with pytest.raises(SpecError, match="input: layout") as caught:
        planner.load_operator(path)
    assert caught.value.location is not None
    assert caught.value.location.line == 3
