"""The cost of a candidate if energy counts: a weighted sum of its time and its energy, both cached by content.

Energies add up as times do: each node spends its own, and static power is drawn over the makespan, which is the sum of
the regions' makespans. So the cheapest cover by energy is the plan whose whole run spends least.
"""

from __future__ import annotations

import math

from pimflow.ir import Decision, Graph
from pimflow.records import dataclass
from pimflow.search.policy import Objective
from pimflow.search.price_cache import PriceCache, key_of
from pimflow.search.pricing import Costs, Pricer


@dataclass(frozen=True)
class Spent:
    """The time and the energy of a run, static power included."""

    time_us: float
    energy_mj: float


class WeightedPricer(Pricer):
    """Prices decisions over nodes of one graph by an objective, each content once, whatever the objective."""

    def __init__(self, graph: Graph, costs: Costs, prices: PriceCache, objective: Objective) -> None:
        super().__init__(graph, costs, prices)
        self._objective = objective
        self._energies = key_of(repr(sorted(costs.target.values.items())))

    def least(self, decisions: tuple[Decision, ...]) -> float:
        """A lower bound on the cost of the decisions, by arithmetic and by what has been priced so far."""
        least = self.least_spent(decisions)
        return math.inf if least is None else self._objective.cost(least.time_us, least.energy_mj)

    def least_spent(self, decisions: tuple[Decision, ...]) -> Spent | None:
        """Lower bounds on the time and energy of the decisions so far; None if they cannot be carried out."""
        time_us = self._bounds.lower_bound_us(decisions)
        if math.isinf(time_us):
            return None
        return Spent(time_us, self._bounds.least_mj(decisions) + self.costs.static_energy_mj(time_us))

    def refine_spent(self, decisions: tuple[Decision, ...], known: Spent) -> tuple[Spent | None, bool]:
        """Time and energy, refined from `known`, and whether they are exact (None: the decisions cannot be carried
        out)."""
        self._bounds.tighten(decisions)
        least = self.least_spent(decisions)
        return (self.spent(decisions), True) if least == known else (least, False)

    def refine(self, decisions: tuple[Decision, ...], least: float) -> tuple[float | None, bool]:
        """The cost of the decisions, refined from `least`, and whether it is the price (None: they cannot be carried
        out)."""
        known = self.least(decisions)
        if known <= least:
            self._bounds.tighten(decisions)
            known = self.least(decisions)
        return (self.cost(decisions), True) if known <= least else (known, False)

    def cost(self, decisions: tuple[Decision, ...]) -> float | None:
        """The cost of the decisions; None if they cannot be carried out."""
        spent = self.spent(decisions)
        return None if spent is None else self._objective.cost(spent.time_us, spent.energy_mj)

    def spent(self, decisions: tuple[Decision, ...]) -> Spent | None:
        """Time and energy from the start of the first decision to the end of the last; None if they cannot be carried
        out."""
        text = self.content_text(decisions)
        key, energy_key = key_of(text), key_of(f"energy by {self._energies} of\n{text}")
        if key not in self._prices or energy_key not in self._prices:
            rewritten = self._rewritten(decisions)
            timeline = None if rewritten is None else self._timeline(rewritten)
            self._prices.put(key, None if timeline is None else timeline.makespan_us)
            self._prices.put(energy_key, None if timeline is None else timeline.total_energy_mj)
        time_us, energy_mj = self._prices.get(key), self._prices.get(energy_key)
        return None if time_us is None or energy_mj is None else Spent(time_us, energy_mj)

    def time_us(self, decisions: tuple[Decision, ...]) -> float:
        """The time of decisions that can be carried out."""
        spent = self.spent(decisions)
        assert spent is not None, "the decisions have been priced"
        return spent.time_us


def pricer_of(objective: Objective, graph: Graph, costs: Costs, prices: PriceCache) -> Pricer:
    """The pricer for an objective: one that counts only time does not compute energies."""
    return WeightedPricer(graph, costs, prices, objective) if objective.mj else Pricer(graph, costs, prices)
