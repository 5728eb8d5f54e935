"""Operator and machine in, a proved `Plan` out.

The objective and its tie-breaks are stages, each minimised with the earlier ones held at their optimum: traffic, then
transfers, then total footprint. Every stage alternates between the model (a lower bound) and the exact count of what it
chose, until the two agree (`exact.learn`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from planner.errors import InternalError
from planner.tiling.exact import Knowledge, buffer_costs, stage_costs
from planner.tiling.model import Choice, Model, Outcome, Settings, Stage
from planner.tiling.problem import Problem, initial_values


@dataclass
class Search:
    """What is known so far about a problem: values and cuts grow as chains are studied."""

    problem: Problem
    settings: Settings
    known: Knowledge = field(init=False)
    calls: int = 0
    log: list = field(default_factory=list)

    def __post_init__(self) -> None:
        self.known = Knowledge(initial_values(self.problem))

    def minimise(
        self, stage: Stage, buffers: Sequence[int], limits: Mapping[Stage, int], at_least: int = 0, hint: Choice | None = None
    ) -> Outcome:
        """The exact optimum of a stage over a subset of the buffers."""
        best: Outcome | None = None
        limits = dict(limits)
        while True:
            t0 = time.time()
            model = Model(self.problem, self.known.values, buffers, limits, self.known.box_cuts)
            t1 = time.time()
            outcome = model.minimise(stage, self.settings, at_least=at_least, hint=hint)
            self.calls += 1
            self.log.append((stage, len(buffers), outcome.status, outcome.value, round(t1 - t0, 3), round(time.time() - t1, 3), len(self.known.box_cuts)))
            if outcome.choice is None:
                if best is not None and outcome.status == "infeasible":
                    return Outcome("optimal", best.value, best.value, best.choice)
                return outcome
            assert outcome.value is not None
            at_least = max(at_least, outcome.bound or 0)
            costs = stage_costs(self.problem, buffer_costs(self.problem, outcome.choice.tiles))
            if all(costs[s] <= limit for s, limit in limits.items()) and (best is None or costs[stage] < best.value):
                best = Outcome("feasible", costs[stage], at_least, outcome.choice)
                hint = None
                if best.value <= at_least:
                    return Outcome("optimal", best.value, best.value, best.choice)
                limits[stage] = costs[stage] - 1
            if not self.known.learn(self.problem, outcome.choice):
                raise InternalError(f"model and exact count disagree on {stage}, and no factor tells why")
