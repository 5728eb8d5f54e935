"""The kernel's tree: what it prints as, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from conftest import scopes
from hand_plans import plan_of

import planner
from planner.errors import InternalError
from planner.nest.ir import Compute, For, Kernel, Load, Tile, Visit, When
from planner.nest.lower import lower
from planner.plan import Attach, Loop


def kernel() -> Kernel:
    """A matmul whose reduction is split above its output, with a bias that is attached below."""
    nest = [
        Loop("m", 4), Attach("input", "inp_buffer"), Loop("k", 3), Attach("output", "acc_buffer"),
        Loop("n", 2), Attach("bias", "acc_buffer"), Loop("m", 2), Attach("weight", "wgt_buffer"),
    ]  # fmt: skip
    plan = plan_of(planner.matmul(6, 4, 8, bias=True), scopes(1024, 1024, 1024), nest)
    plan.verify()
    return lower(plan)


def test_it_reads_as_a_nest() -> None:
    assert (
        str(kernel())
        == """\
for m_0 in m of all step 4
  visit input@inp_buffer
    load input@inp_buffer
    for k_0 in k of all step 3
      visit output@acc_buffer
        load output@acc_buffer if not first of k_0
        for n_0 in n of all step 2
          visit bias@acc_buffer
            load bias@acc_buffer if first of k_0
            init output@acc_buffer from bias@acc_buffer if first of k_0
            for m_1 in m of m_0 step 2
              visit weight@wgt_buffer
                load weight@wgt_buffer
                compute output@acc_buffer from input@inp_buffer, weight@wgt_buffer
        finish output@acc_buffer if last of k_0
        store output@acc_buffer, final if last of k_0"""
    )


def test_a_buffer_knows_its_place() -> None:
    bias = kernel().buffer("bias@acc_buffer")
    assert (bias.parent, bias.outer, bias.shape, bias.slot_bytes) == ("dram", None, (2,), 4)


def _outer(change: Callable[[For], For]) -> Kernel:
    made = kernel()
    (loop,) = made.body
    assert isinstance(loop, For)
    return replace(made, body=(change(loop),))


BROKEN: dict[str, tuple[Callable[[], Kernel], str]] = {
    "a loop over no dim": (lambda: _outer(lambda f: replace(f, dim="zz")), "over zz"),
    "a step of none": (lambda: _outer(lambda f: replace(f, tile=0)), "steps of 0"),
    "a loop inside itself": (lambda: _outer(lambda f: replace(f, body=(f,))), "inside of another"),
    "a loop of another dim's range": (lambda: _outer(lambda f: replace(f, body=(replace(f, var="n_0", dim="n", outer="m_0"),))),
                                      "no loop over n"),
    "a loop that is not around": (lambda: _outer(lambda f: replace(f, outer="m_7")), "m_7 is no loop"),
    "a buffer that is dead": (lambda: replace(kernel(), body=(Load("input@inp_buffer", When("always")),)), "outside"),
    "a factor that is dead": (
        lambda: replace(kernel(), body=(Compute("output@acc_buffer", (), Tile(())),)), "outside of its visits"
    ),
    "a buffer not declared": (lambda: replace(kernel(), body=(Visit("x@y", Tile(()), ()),)), "declared 0 times"),
    "a tile of no dims": (lambda: replace(kernel(), body=(Visit("input@inp_buffer", Tile(()), ()),)), "every dim once"),
    "a condition on no loop": (
        lambda: replace(kernel(), body=(
            Visit("input@inp_buffer", Tile((("m", None), ("n", None), ("k", None))), (
                Load("input@inp_buffer", When("first", ("k_0",))),
            )),
        )), "in a condition"
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
def test_it_refuses(kind: str) -> None:
    make, words = BROKEN[kind]
    with pytest.raises(InternalError, match=words):
        make().verify()
