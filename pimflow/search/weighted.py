"""The cost of a candidate if energy counts: a weighted sum of its time and its energy, both cached by content.

Energies add up as times do: each node spends its own, and static power is drawn over the makespan, which is the sum of
the regions' makespans. So the cheapest cover by energy is the plan whose whole run spends least.
"""

from __future__ import annotations

import math
from copy import copy

from pimflow.ir import Decision, Graph
from pimflow.records import dataclass
from pimflow.search.joined_ways import Variation
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
        self._listed: dict[tuple[Decision, ...], Spent | None] = {}
        self._exact: dict[tuple[Decision, ...], Spent] = {}

    def weighing(self, objective: Objective) -> WeightedPricer:
        """A pricer by another objective; both share what either computes, so a search continues from the other's
        bounds."""
        other = copy(self)
        other._objective = objective
        return other

    def least(self, decisions: tuple[Decision, ...]) -> float:
        """A lower bound on the cost of the decisions before anything is laid out."""
        if len(decisions) > 1:
            return self._weighted(self.least_spent(decisions))
        if decisions not in self._listed:
            time_us = super().least(decisions)
            self._listed[decisions] = self._with_static(time_us, self._bounds.listed_mj(decisions[0]))
        return self._weighted(self._listed[decisions])

    def least_varied(self, variation: Variation) -> float:
        """`least` for a variation of joined decisions."""
        return self.least(variation.decisions)

    def least_spent(self, decisions: tuple[Decision, ...]) -> Spent | None:
        """Lower bounds on the time and energy of the decisions so far; None if they cannot be carried out."""
        return self._with_static(self._bounds.lower_bound_us(decisions), self._bounds.least_mj(decisions))

    def refine_spent(self, decisions: tuple[Decision, ...], known: Spent) -> tuple[Spent | None, bool]:
        """Time and energy, refined from `known`, and whether they are exact (None: the decisions cannot be carried
        out)."""
        self._bounds.tighten(decisions)
        least = self.least_spent(decisions)
        return (self.spent(decisions), True) if least == known else (least, False)

    def refine(self, decisions: tuple[Decision, ...], least: float) -> tuple[float | None, bool]:
        """The cost of the decisions, refined from `least`, and whether it is the price (None: they cannot be carried
        out)."""
        spent = self._exact.get(decisions)
        if spent is not None:
            return self._weighted(spent), True
        known = self._weighted(self.least_spent(decisions))
        if known > least:
            return known, False
        spent = self._from_parts(decisions)
        if spent is not None:
            self._exact[decisions] = spent
            self._keep_spent(self.content_text(decisions), spent)
            return self._weighted(spent), True
        self._bounds.tighten(decisions)
        known = self._weighted(self.least_spent(decisions))
        return (self.cost(decisions), True) if known <= least else (known, False)

    def cost(self, decisions: tuple[Decision, ...]) -> float | None:
        """The cost of the decisions; None if they cannot be carried out."""
        spent = self.spent(decisions)
        return None if spent is None else self._weighted(spent)

    def spent(self, decisions: tuple[Decision, ...]) -> Spent | None:
        """Time and energy from the start of the first decision to the end of the last; None if they cannot be carried
        out."""
        text = self.content_text(decisions)
        key, energy_key = self._keys(text)
        if key not in self._prices or energy_key not in self._prices:
            self._keep_spent(text, self._from_parts(decisions) or self._carried_out(decisions))
        time_us, energy_mj = self._prices.get(key), self._prices.get(energy_key)
        return None if time_us is None or energy_mj is None else Spent(time_us, energy_mj)

    def _keys(self, text: str) -> tuple[str, str]:
        """The keys of the time and of the energy of decisions with this content."""
        return key_of(text), key_of(f"energy by {self._energies} of\n{text}")

    def _keep_spent(self, text: str, spent: Spent | None) -> None:
        key, energy_key = self._keys(text)
        self._prices.put(key, None if spent is None else spent.time_us)
        self._prices.put(energy_key, None if spent is None else spent.energy_mj)

    def _from_parts(self, decisions: tuple[Decision, ...]) -> Spent | None:
        """Time and energy if they follow from the parts; None if the decisions have to be, or cannot be, carried
        out."""
        time_us = self._bounds.time_from_parts_us(decisions)
        return None if time_us is None else self._with_static(time_us, self._bounds.least_mj(decisions))

    def _carried_out(self, decisions: tuple[Decision, ...]) -> Spent | None:
        rewritten = self._rewritten(decisions)
        timeline = None if rewritten is None else self._timeline(rewritten)
        return None if timeline is None else Spent(timeline.makespan_us, timeline.total_energy_mj)

    def _with_static(self, time_us: float, energy_mj: float) -> Spent | None:
        """A time, and an energy together with the static energy over that time; None for an infinite time."""
        return Spent(time_us, energy_mj + self.costs.static_energy_mj(time_us)) if math.isfinite(time_us) else None

    def _weighted(self, spent: Spent | None) -> float:
        """The cost by the objective; infinite for decisions that cannot be carried out."""
        return math.inf if spent is None else self._objective.cost(spent.time_us, spent.energy_mj)

    def time_us(self, decisions: tuple[Decision, ...]) -> float:
        """The time of decisions that can be carried out."""
        spent = self.spent(decisions)
        assert spent is not None, "the decisions have been priced"
        return spent.time_us


def pricer_of(objective: Objective, graph: Graph, costs: Costs, prices: PriceCache) -> Pricer:
    """The pricer for an objective: one that counts only time does not compute energies."""
    return WeightedPricer(graph, costs, prices, objective) if objective.mj else Pricer(graph, costs, prices)
