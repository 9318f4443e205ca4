"""The Pareto front of time and energy of a policy's plans.

The first plans found are the cheapest ones at some price of energy in terms of time: the corners of the convex hull.
For two neighbours, the search uses the price at which both cost the same; it finds either a corner between them or none
(Aneja and Nair, Bicriteria Transportation Problem, Management Science 25, 1979). Points between two corners that are
not corners are found by `search/between.py`. All of this is with activations kept; if they do not fit, every plan found
is also priced as it fits, and the front is based on these prices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

from pimflow.errors import counted
from pimflow.ir import Graph, Plan
from pimflow.ir.plan import leaves_host
from pimflow.options import Options
from pimflow.passes import PassManager
from pimflow.records import dataclass
from pimflow.report.fitted_cost import FITTED, HEADER, FittedCost
from pimflow.report.measures import Costs, measure
from pimflow.report.records import Records, Row
from pimflow.report.summary import CUT_SHORT
from pimflow.report.tables import number, render_table, significant, wrapped
from pimflow.search.policy import ENERGY, LATENCY, Objective, policy_of, require_offered, spill_way
from pimflow.search.price_cache import PriceCache
from pimflow.search.pricing import rewrites
from pimflow.search.progress import Tell, silent
from pimflow.search.solver import gaps_between, open_cache, solve_for
from pimflow.search.weighted import Spent, WeightedPricer
from pimflow.targets import TargetRecord

_GAIN = 1e-9
"""The minimum gain of a new point over its neighbours, as a share; smaller gains are due to rounding."""
_SHOWN = 30
"""The number of points from which a table leaves some out."""


@dataclass(frozen=True)
class FrontPoint:
    """A plan with the time and energy of a run: with all activations kept, and as it fits."""

    time_us: float
    energy_mj: float
    plan: Plan
    fitted: FittedCost

    @property
    def spent(self) -> Spent:
        """Time and energy with all activations kept."""
        return Spent(self.time_us, self.energy_mj)

    @property
    def nodes_off_the_host(self) -> int:
        """The number of decisions that use a device other than the host."""
        return sum(leaves_host(decision, self.plan.host) for decision in self.plan.decisions)


def front_points(
    graph: Graph,
    options: Options,
    *,
    costs: Costs,
    prices: PriceCache | None = None,
    progress: Tell = silent,
    within_percent: float = 0.01,
) -> tuple[FrontPoint, ...]:
    """The front of a graph after the clean-up passes, the fastest plan first.

    Args:
        graph: as for `solve`.
        options: the policy, and the limits of the search; their objective is not used.
        costs: the cost model in PIM mode.
        prices: the price cache, instead of the one that the options specify.
        progress: receives the progress of the search.
        within_percent: every plan has a point that is no slower and spends at most this much more; 0 keeps all points.

    Raises:
        OptionError: the policy is unknown, or the machine does not offer it.
    """
    policy = policy_of(options)
    require_offered(policy, costs.units)
    table = open_cache(options, costs) if prices is None else prices

    shared = WeightedPricer(graph, costs, table, ENERGY)

    def best(objective: Objective) -> FrontPoint:
        chosen = replace(policy, objective=objective)
        pricer = shared.weighing(objective) if objective.mj else None
        plan = solve_for(graph, chosen, options, costs=costs, prices=table, progress=progress, pricer=pricer)
        return point_of(plan)

    def point_of(plan: Plan) -> FrontPoint:
        rewritten = PassManager(rewrites(plan, costs)).run(graph).graph
        spent = measure(rewritten, costs.serving(rewritten))
        return FrontPoint(
            spent.time_us, spent.energy_mj, plan, FittedCost.of(rewritten, costs, spill_way(options), spent)
        )

    fastest, lowest_energy = best(LATENCY), best(ENERGY)
    corners = _undominated((fastest, *_corners_between(fastest, lowest_energy, best), lowest_energy))
    progress("search: between the corners of the front")
    gaps = gaps_between(graph, policy, [corner.plan for corner in corners], options, shared)
    found = [
        point_of(plan)
        for left, right in pairwise(corners)
        for plan in gaps.between(left.plan, left.spent, right.spent, within_percent / 100)
    ]
    table.flush()
    return _undominated((*corners, *found), fitted=True)


def _corners_between(
    left: FrontPoint, right: FrontPoint, best: Callable[[Objective], FrontPoint]
) -> Iterator[FrontPoint]:
    """The corners between two points, in order."""
    saved_mj, lost_us = left.energy_mj - right.energy_mj, right.time_us - left.time_us
    if saved_mj <= 0 or lost_us <= 0:
        return
    objective = Objective("front", saved_mj, lost_us)
    found = best(objective)
    known = objective.cost(left.time_us, left.energy_mj)
    if objective.cost(found.time_us, found.energy_mj) >= known * (1 - _GAIN):
        return
    yield from _corners_between(left, found, best)
    yield found
    yield from _corners_between(found, right, best)


def _undominated(points: tuple[FrontPoint, ...], *, fitted: bool = False) -> tuple[FrontPoint, ...]:
    """The points in order of time, each with less energy than all faster ones; only those that fit, if any do."""
    costs = [(p.fitted.time_us, p.fitted.energy_mj) if fitted else (p.time_us, p.energy_mj) for p in points]
    fitting = [place for place, point in enumerate(points) if point.fitted.fits] if fitted else []
    kept: list[int] = []
    for place in sorted(fitting or range(len(points)), key=costs.__getitem__):
        if not kept or costs[place][1] < costs[kept[-1]][1]:
            kept.append(place)
    return tuple(points[place] for place in kept)


@dataclass(frozen=True, repr=False)
class Front(Records):
    """The Pareto front of plans in time and energy, a row per plan.

    Args:
        model: the name it was given by.
        model_sha256: digest of its bytes.
        machine: the machine that the plans are for.
        policy: the policy whose plans they are.
        gpu_basis: what the GPU's times are based on.
        baseline_us, baseline_energy_mj: time and energy of the host alone, with all memory channels.
        within_percent: how much more energy a point may spend than a plan that it replaces.
        points: the plans, fastest first.
    """

    model: str
    model_sha256: str
    machine: TargetRecord
    policy: str
    gpu_basis: str
    baseline_us: float
    baseline_energy_mj: float
    within_percent: float
    points: tuple[FrontPoint, ...]

    @property
    def title(self) -> str:
        """Model, machine, policy, and the number of points."""
        return f"{self.model} on {self.machine.name}, policy {self.policy}, {counted(len(self.points), 'point')}"

    def records(self) -> list[Row]:
        """A row per point."""
        return [self._row(point) for point in self.points]

    def _row(self, point: FrontPoint) -> Row:
        return {
            "time_us": point.time_us,
            "energy_mj": point.energy_mj,
            "speedup": self.baseline_us / point.time_us if point.time_us else 1.0,
            "energy_change": point.energy_mj / self.baseline_energy_mj - 1 if self.baseline_energy_mj else 0.0,
            "off_the_host": point.nodes_off_the_host,
            "complete": point.plan.complete,
            **point.fitted.figures(),
        }

    def as_json(self) -> dict[str, Any]:
        """One JSON object: the model, the machine, the host alone, and an object per point."""
        return {
            "model": self.model,
            "model_sha256": self.model_sha256,
            "target": self.machine.name,
            "machine": self.machine.as_json(),
            "policy": self.policy,
            "gpu_basis": self.gpu_basis,
            "baseline": {"time_us": self.baseline_us, "energy_mj": self.baseline_energy_mj},
            "within_percent": self.within_percent,
            "points": self.records(),
        }

    def text(self, *, verbose: bool = False) -> str:
        """The machine, and a table of the points: all of them if `verbose`, otherwise at most about `_SHOWN`, and none
        that looks like the one before."""
        about = "\n".join(f"{what:<9} {text}" for what, text in (("model", self.model), *self.machine.lines()))
        moved = any(point.fitted.differs(point.time_us) for point in self.points)
        header = ("time (us)", "energy (mJ)", "speedup", "energy", "decisions off the host", *(HEADER if moved else ()))
        shown = self.points if verbose else _spread(self.points)
        rows = [(*_cells(self._row(point)), *(point.fitted.cells() if moved else ())) for point in shown]
        rows = rows if verbose else [row for row, before in zip(rows, [(), *rows], strict=False) if row != before]
        table = render_table(header, rows, right=range(len(header)))
        notes = [FITTED] if moved else []
        notes += [f"speedups are over the {self.gpu_basis}"] if self.gpu_basis else []
        notes += [
            f"left out: plans that are not faster than one of these and save at most {self.within_percent:g} % energy"
        ]
        if len(rows) < len(self.points):
            notes += [f"points not shown, between these: {len(self.points) - len(rows):,} (-v shows them)"]
        cut_short = sum(not point.plan.complete for point in self.points)
        notes += [f"search for {cut_short} of {counted(len(self.points), 'point')}{CUT_SHORT}"] if cut_short else []
        return "\n".join([about, "", table, *(wrapped(note, "  ") for note in notes)])


def _spread(points: tuple[FrontPoint, ...]) -> list[FrontPoint]:
    """Points spread over the front, if there are many: in each of `_SHOWN` equal steps of energy the fastest one; and
    the last."""
    first_mj, last_mj = points[0].fitted.energy_mj, points[-1].fitted.energy_mj
    step_mj = (first_mj - last_mj) / _SHOWN
    if len(points) <= _SHOWN + 1 or step_mj <= 0:
        return [*points]
    steps = [int((first_mj - point.fitted.energy_mj) / step_mj) for point in points[:-1]]
    return [point for point, step, before in zip(points, steps, [-1, *steps], strict=False) if step > before] + [
        points[-1]
    ]


def _cells(row: Row) -> tuple[str, ...]:
    return (
        number(row["time_us"]),
        significant(row["energy_mj"]),
        number(row["speedup"], 3),
        f"{100 * row['energy_change']:+.1f} %",
        str(row["off_the_host"]),
    )
