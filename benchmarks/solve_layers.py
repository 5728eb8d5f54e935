"""Time of the whole `planner.solve()` call, proof included, on the layers of ResNet-50 and MobileNetV2.

    python benchmarks/solve_layers.py [MACHINE ...] [--workers N] [--every N]

Machines are names under specs/machines; by default three-scopes-32k and shared-l2. Prints one line a layer and the median and
the worst per machine; peak memory of the process at the end.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from pathlib import Path

import planner

SPECS = Path(__file__).resolve().parent.parent / "specs"


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("machines", nargs="*", default=["three-scopes-32k", "shared-l2"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--every", type=int, default=1, help="Take each N-th layer only.")
    arguments = parser.parse_args()
    layers = [p for net in ("resnet50", "mobilenetv2") for p in sorted((SPECS / "operators" / net).glob("*.yaml"))]
    # The first solve imports the solver: not part of any layer's time.
    planner.solve(planner.matmul(2, 2, 2), planner.load_machine(SPECS / "machines" / "forum.yaml"))
    for name in arguments.machines:
        machine = planner.load_machine(SPECS / "machines" / f"{name}.yaml")
        times: list[float] = []
        print(f"{name}: {len(layers[:: arguments.every])} layers, ragged tiles, {arguments.workers} workers")
        for path in layers[:: arguments.every]:
            operator = planner.load_operator(path)
            started = time.perf_counter()
            plan = planner.solve(operator, machine, workers=arguments.workers)
            times.append(time.perf_counter() - started)
            ties = "" if plan.ties_proved else "  fewest transfers not proved"
            print(
                f"  {times[-1]:6.2f} s  {plan.status} {plan.objective.value:>9} B {plan.transfers:>6}  {operator.name}{ties}"
            )
        print(f"  median {statistics.median(times):.2f} s, worst {max(times):.2f} s")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
