"""Operator and machine in, a proved `Plan` out.

The objective and its tie-break are stages, the second with the first held at its optimum. Each stage alternates between the
model (a lower bound) and the exact count of what it chose, until the two agree (`exact.Knowledge`).

- `traffic` needs the outermost buffers only: the inner ones move nothing from the backing store, and fit with their
  smallest tiles. Where the user's rules reach inner buffers, all take part.
- `ties` involves all buffers. On a machine one scope deep it is solved like the first stage. On a deeper one the buffers of
  each depth are first solved on their own: their bounds add up to one for all, and the inner ones' tiles are settled while
  the outer ones are searched above them. Where the plan meets the bound, it is proved the best of its equals.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Literal

from planner.errors import InternalError, SpecError
from planner.plan import Objective, Plan, Shortage, Statistics
from planner.spec.machine import Machine
from planner.spec.operator import Operator
from planner.spec.validate import check_against
from planner.tiling.exact import Knowledge, buffer_costs, compulsory_traffic, stage_costs
from planner.tiling.infeasible import conflicts, shortages, smallest_tiles
from planner.tiling.model import LARGEST, Choice, Model, Outcome, Settings, Stage
from planner.tiling.problem import Problem, build_problem, initial_values
from planner.tiling.realise import realise

LEAST_S = 0.005
"""Less time than this is not worth building a model for."""
TIE_EFFORT, TIE_ROUNDS = 4.0, 20
"""Deterministic seconds of one solve, and rounds of model and exact count, that a part of the tie-break may take. Past
them the best plan found stands and says that it is not proved the best of its equals."""
DEEP_EFFORT, OUTER_ROUNDS, INNER_ROUNDS, JOINT_ROUNDS = 0.2, 2, 4, 6
"""The same on machines more than one scope deep: for the buffers of one depth alone, and for all together."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a solve has come: the best value so far (None until there is one) and the proved bound."""

    elapsed_s: float
    value: int | None
    bound: int


def solve(
    operator: Operator,
    machine: Machine,
    *,
    objective: str = "traffic",
    tiles: Literal["ragged", "divisors"] = "ragged",
    time_limit_s: float | None = None,
    workers: int | None = None,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
) -> Plan:
    """The cheapest plan, with proof.

    `tiles`: every integer tile size, or dividing ones only. `time_limit_s`: wall seconds, after which the best plan so far
    comes back as `feasible` with its bound, or an empty one as `unknown`. `workers`: threads for independent parts; the plan
    does not depend on it. `seed`: of the solver's search. `progress` is called with each better plan.

    Raises SpecError if operator, machine or an argument is wrong; InternalError if the planner is.
    """
    _check_kind(operator, Operator, "operator")
    _check_kind(machine, Machine, "machine")
    _check_arguments(objective, tiles, time_limit_s, workers)
    if not 0 <= seed < 2**31:
        raise SpecError(f"seed {seed} is out of range; give 0 to {2**31 - 1}")
    check_against(operator, machine)
    started = time.monotonic()
    problem = build_problem(operator, machine, divisors=tiles == "divisors")
    short = shortages(problem)
    if short:
        return _infeasible(problem, objective, short, ())
    search = Search(problem, started, time_limit_s, seed, workers or 1, progress)
    plan = search.run(objective)
    return replace(plan, statistics=Statistics(time.monotonic() - started, search.calls, search.known.size))


def _check_kind(given: object, kind: type, name: str) -> None:
    if not isinstance(given, kind):
        raise SpecError(f"{name} is a {type(given).__name__}; make one by load_{name}(path) or {name}_from_dict(data)")


def _check_arguments(objective: str, tiles: str, time_limit_s: float | None, workers: int | None) -> None:
    if objective != "traffic":
        raise SpecError(f"objective {objective!r} is not known; use traffic")
    if tiles not in ("ragged", "divisors"):
        raise SpecError(f"tiles {tiles!r} is not known; use ragged or divisors")
    if time_limit_s is not None and not time_limit_s > 0:
        raise SpecError(f"time limit {time_limit_s} s leaves no time; give a positive number of seconds")
    if workers is not None and workers < 1:
        raise SpecError(f"workers {workers} leaves nobody to work; give 1 or more")


def _infeasible(problem: Problem, objective: str, short: tuple[Shortage, ...], conflict: tuple[str, ...]) -> Plan:
    return Plan(
        "infeasible",
        Objective(objective, None, None),
        problem.operator,
        problem.machine,
        shortages=short,
        conflicts=conflict,
    )


@dataclass
class Search:
    """One solve: its problem, its limits, and what has been learnt about the problem so far."""

    problem: Problem
    started: float
    time_limit_s: float | None
    seed: int
    workers: int
    progress: Callable[[Progress], None] | None
    calls: int = 0
    known: Knowledge = field(init=False)

    def __post_init__(self) -> None:
        self.known = Knowledge(initial_values(self.problem))

    def run(self, objective: str) -> Plan:
        """All stages, then the plan."""
        everything = tuple(b.index for b in self.problem.buffers)
        outermost = tuple(b.index for b in self.problem.buffers if b.outer is None)
        first = everything if self._rules_reach_inwards() else outermost
        huge = self.problem.operator.macs >= LARGEST >> 8
        # Without a limit on the traffic, the products of a huge operator would not fit into the solver's integers.
        start = self._first_plan(first) if huge else None
        best = self._minimise("traffic", first, {}, self._settings(0.8), start=start)
        if best.status == "infeasible":
            return _infeasible(self.problem, objective, (), conflicts(self.problem))
        if best.value is None or best.bound is None or best.choice is None:
            return self._without_solver(objective, max(best.bound or 0, compulsory_traffic(self.problem)), everything)
        ties = self._break_ties(best.value, everything, outermost, best.choice)
        choice = ties.choice or self._complete(best.choice)
        # Where time ran out, breaking ties may have come upon a plan that moves less.
        traffic = stage_costs(self.problem, buffer_costs(self.problem, choice.tiles))["traffic"]
        bound = best.bound if traffic == best.bound else max(best.bound, compulsory_traffic(self.problem))
        cost = Objective(objective, traffic, bound)
        status = "optimal" if traffic == bound else "feasible"
        return realise(
            self.problem, choice.tiles, status, cost, ties_proved=ties.status == "optimal" and traffic == best.value
        )

    def _rules_reach_inwards(self) -> bool:
        """Whether inner buffers may be unable to take their smallest tiles below all others."""
        problem = self.problem
        inner = [b for b in problem.buffers if b.outer is not None]
        ruled = any(problem.allowed[b.index, d] is not None for b in problem.buffers for d in problem.extents)
        return bool(inner) and (ruled or bool(problem.order) or any(not b.may_spill for b in inner))

    def _first_plan(self, buffers: Sequence[int]) -> Choice | None:
        """A plan without the solver, where the user demands nothing: one tile for all buffers, grown while it fits."""
        problem = self.problem
        ruled = any(problem.allowed[b.index, d] is not None for b in problem.buffers for d in problem.extents)
        if ruled or problem.order or not all(b.may_spill for b in problem.buffers):
            return None
        tile = smallest_tiles(problem)
        grown = not problem.divisors
        while grown:
            grown = False
            for dim, extent in problem.extents.items():
                trial = {b: {**t, dim: min(2 * t[dim], extent)} for b, t in tile.items()}
                if trial != tile and not shortages(problem, trial):
                    tile, grown = trial, True
        return Choice({b: tile[b] for b in buffers}, {})

    def _without_solver(self, objective: str, bound: int, everything: Sequence[int]) -> Plan:
        """What there is to say when time has run out before the solver found anything."""
        choice = self._first_plan(everything)
        if choice is None:
            return Plan("unknown", Objective(objective, None, bound), self.problem.operator, self.problem.machine)
        traffic = stage_costs(self.problem, buffer_costs(self.problem, choice.tiles))["traffic"]
        cost = Objective(objective, traffic, min(bound, traffic))
        status = "optimal" if traffic == cost.bound else "feasible"
        return realise(self.problem, choice.tiles, status, cost, ties_proved=False)

    def _break_ties(self, traffic: int, everything: Sequence[int], outermost: Sequence[int], choice: Choice) -> Outcome:
        """Fewest transfers, then the smallest footprint, at this traffic."""
        limits: dict[Stage, int] = {"traffic": traffic}
        settings = self._settings(1.0)
        whole = self._complete(choice)
        if stage_costs(self.problem, buffer_costs(self.problem, whole.tiles))["ties"] > LARGEST:
            return Outcome("feasible", None, None, whole)  # beyond what the solver can count
        if len(outermost) == len(everything):
            effort = replace(settings, effort=TIE_EFFORT)
            return self._minimise("ties", everything, limits, effort, start=choice, rounds=TIE_ROUNDS)
        effort = replace(settings, effort=DEEP_EFFORT)
        deeper = sorted({b.depth for b in self.problem.buffers} - {0})
        with ThreadPoolExecutor(self.workers) as pool:
            parts = [pool.submit(self._depth_alone, depth, effort) for depth in deeper]
            outer = self._minimise("ties", outermost, limits, effort, rounds=OUTER_ROUNDS)
            inner = [part.result() for part in parts]
        bound = sum(part.bound or 0 for part in (outer, *inner))
        best = self._settle(outer.choice or choice, inner, everything, limits, effort, bound)
        # What was proved holds with some tiles settled only; for all plans the sum of the bounds does.
        return replace(best, status="optimal" if best.value == bound else "feasible")

    def _settle(
        self,
        outer: Choice,
        inner: Sequence[Outcome],
        everything: Sequence[int],
        limits: Mapping[Stage, int],
        effort: Settings,
        bound: int,
    ) -> Outcome:
        """Settle the inner buffers as they would be on their own and search the outer ones above them; where that fits
        no plan of this traffic, settle the outer ones and search the inner ones below."""
        outermost = {b.index for b in self.problem.buffers if b.outer is None}
        above = {b: t for b, t in outer.tiles.items() if b in outermost}
        below = {b: t for part in inner if part.choice for b, t in part.choice.tiles.items()}
        start = None if self._rules_reach_inwards() else self._complete(Choice(above, {}))
        for fixed in (below, above):
            found = self._minimise(
                "ties", everything, limits, effort, at_least=bound, rounds=JOINT_ROUNDS, fixed=fixed, start=start
            )
            if found.choice is not None and (start is None or found.choice is not start):
                return found
        return Outcome("feasible", None, bound, start)

    def _depth_alone(self, depth: int, settings: Settings) -> Outcome:
        """The least that the buffers at one depth add to the ties, whatever lies above them."""
        buffers = [b.index for b in self.problem.buffers if b.depth == depth]
        # Each part learns for itself: what one thread learns must not depend on how far another has come.
        alone = replace(self, calls=0, progress=None)
        return alone._minimise("ties", buffers, {}, settings, rounds=INNER_ROUNDS)

    def _complete(self, choice: Choice) -> Choice:
        """Give buffers that have no tiles yet their smallest ones."""
        tiles = {**smallest_tiles(self.problem), **choice.tiles}
        return Choice(tiles, {})

    def _settings(self, share: float) -> Settings:
        """The remaining time, or a share of the whole limit, whichever is less."""
        if self.time_limit_s is None:
            return Settings(seed=self.seed)
        left = self.time_limit_s - (time.monotonic() - self.started)
        return Settings(time_limit_s=min(left, share * self.time_limit_s), seed=self.seed)

    def _minimise(
        self,
        stage: Stage,
        buffers: Sequence[int],
        limits: Mapping[Stage, int],
        settings: Settings,
        *,
        at_least: int = 0,
        hint: Choice | None = None,
        rounds: int | None = None,
        fixed: Mapping[int, Mapping[str, int]] | None = None,
        start: Choice | None = None,
    ) -> Outcome:
        """The exact optimum of a stage over a subset of the buffers, or the best found within the settings."""
        limits = dict(limits)
        began = time.monotonic()
        best: tuple[int, Choice] | None = None
        if start is not None:
            best = (stage_costs(self.problem, buffer_costs(self.problem, start.tiles))[stage], start)
            limits[stage] = best[0] - 1
            hint = start
        while True:
            if (left := self._rest(settings, began)).time_limit_s is not None and left.time_limit_s <= LEAST_S:
                return _stopped(best, at_least)
            model = Model(self.problem, self.known.values, buffers, limits, self.known.box_cuts, fixed)
            outcome = model.minimise(stage, left, at_least=at_least, hint=hint, progress=self._watch(stage, best))
            self.calls += 1
            rounds = None if rounds is None else rounds - 1
            if outcome.choice is None or outcome.bound is None:
                if outcome.status == "infeasible":
                    return _proved(best) if best else outcome
                return _stopped(best, max(at_least, outcome.bound or 0))
            at_least = max(at_least, outcome.bound)
            costs = stage_costs(self.problem, buffer_costs(self.problem, outcome.choice.tiles))
            if all(costs[s] <= limit for s, limit in limits.items()):
                best = (costs[stage], outcome.choice)
                limits[stage] = costs[stage] - 1
                hint = None
                if best[0] <= at_least:
                    return _proved(best)
            if not self.known.learn(self.problem, outcome.choice) and outcome.status == "optimal":
                raise InternalError(f"model and exact count disagree on {stage}, and no factor tells why")
            if rounds == 0 or outcome.status == "feasible":
                return _stopped(best, at_least)

    def _rest(self, settings: Settings, began: float) -> Settings:
        if settings.time_limit_s is None:
            return settings
        return replace(settings, time_limit_s=settings.time_limit_s - (time.monotonic() - began))

    def _watch(self, stage: Stage, best: tuple[int, Choice] | None) -> Callable[[int | None, int], None] | None:
        report = self.progress
        if report is None or stage != "traffic":
            return None
        return lambda value, bound: report(Progress(time.monotonic() - self.started, best[0] if best else value, bound))


def _proved(best: tuple[int, Choice]) -> Outcome:
    return Outcome("optimal", best[0], best[0], best[1])


def _stopped(best: tuple[int, Choice] | None, bound: int) -> Outcome:
    if best is None:
        return Outcome("unknown", None, bound, None)
    return Outcome("optimal" if best[0] <= bound else "feasible", best[0], min(bound, best[0]), best[1])
