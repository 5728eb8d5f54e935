"""A compiler that calls the planner: TVM's Relax, where each conv2d becomes a kernel planned for the machine.

    pip install 'scope-planner[tvm]'
    python examples/relax_conv2d.py [MACHINE.yaml]

`LegalizeOps` turns operators into kernels and asks `planned_conv2d` for those of `relax.nn.conv2d`: it reads shapes and
attributes off the call, solves, and hands the emitted TVMScript back. All else is TVM as usual.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.script import ir as I
from tvm.script import relax as R

import planner

SPECS = Path(__file__).resolve().parent.parent / "specs"


@I.ir_module
class Network:
    """Two convolutions with a ReLU between them; the second one is strided."""

    @R.function
    def main(
        x: R.Tensor((1, 16, 56, 56), "float32"),  # noqa: N805
        w1: R.Tensor((32, 16, 3, 3), "float32"),
        w2: R.Tensor((32, 32, 3, 3), "float32"),
    ) -> R.Tensor((1, 32, 28, 28), "float32"):
        with R.dataflow():
            a = R.nn.conv2d(x, w1, padding=[1, 1, 1, 1])
            b = R.nn.relu(a)
            c = R.nn.conv2d(b, w2, strides=[2, 2], padding=[1, 1, 1, 1])
            R.output(c)
        return c


class Planned:
    """Legalizes conv2d for one machine, and remembers the plans."""

    def __init__(self, machine: planner.Machine) -> None:
        self.machine = machine
        self.plans: list[planner.Plan] = []

    def conv2d(self, builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
        """The call of a planned kernel in place of a call of `relax.nn.conv2d`."""
        data, weight = (argument.ty for argument in call.args)
        operator = planner.conv2d(
            [int(n) for n in data.shape],
            [int(n) for n in weight.shape],
            name=f"planned_conv2d_{len(self.plans)}",
            strides=[int(n) for n in call.attrs.strides],
            pads=[int(n) for n in call.attrs.padding],
            dilations=[int(n) for n in call.attrs.dilation],
            groups=int(call.attrs.groups),
            dtype=str(data.dtype).removeprefix("T."),
        )
        plan = planner.solve(operator, self.machine)
        self.plans.append(plan)
        (kernel,) = tvm.script.from_source(plan.emit("tvmscript")).functions.values()
        function = builder.add_func(kernel, operator.name)
        return relax.call_tir(function, list(call.args), out_ty=call.ty)


def compiled(module: Any) -> Any:
    """A virtual machine that runs a module on the CPU."""
    return relax.VirtualMachine(tvm.compile(module, target="llvm"), tvm.cpu())


def main() -> None:
    """Compile with and without the planner, and compare."""
    machine = planner.load_machine(sys.argv[1] if len(sys.argv) > 1 else SPECS / "machines" / "three-scopes-32k.yaml")
    planned = Planned(machine)
    module = relax.transform.LegalizeOps({"relax.nn.conv2d": planned.conv2d})(Network)
    for plan in planned.plans:
        print(f"{plan.operator.name}: {plan.status}, {plan.total_traffic_bytes} B of traffic")
    random = np.random.default_rng(0)
    shapes = [(1, 16, 56, 56), (32, 16, 3, 3), (32, 32, 3, 3)]
    inputs = [tvm.runtime.tensor(random.uniform(-1, 1, shape).astype("float32")) for shape in shapes]
    ours = compiled(module)["main"](*inputs).numpy()
    theirs = compiled(relax.transform.LegalizeOps()(Network))["main"](*inputs).numpy()
    different = int((~np.isclose(ours, theirs, rtol=1e-5, atol=1e-5 * np.abs(theirs).max())).sum())
    print(f"{different} of {theirs.size} outputs differ from TVM's own")
    raise SystemExit(different > 0)


if __name__ == "__main__":
    main()
