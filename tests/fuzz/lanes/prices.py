"""Random graphs under random prices: sooner or later the search picks every plan that it can pick."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from random import Random

import pimflow.search.priced_space
from fuzz.lanes.graphs import checked, judged
from fuzz.models import any_model
from fuzz.verdict import Verdict
from pimflow.ir import Decision, Graph
from pimflow.search.joined_ways import Variation
from pimflow.search.policy import Objective
from pimflow.search.price_cache import PriceCache
from pimflow.search.pricing import Costs, Pricer


def case(seed: int, folder: Path) -> Verdict:
    """Compile a drawn or stored model under random prices."""
    return judged(lambda: _checked(seed, folder))


def _checked(seed: int, folder: Path) -> list[str]:
    prices = DrawnPrices(seed)

    def drawing(_: Objective, graph: Graph, costs: Costs, cache: PriceCache) -> Pricer:
        return DrawingPricer(graph, costs, cache, prices)

    pimflow.search.priced_space.__dict__["pricer_of"] = drawing  # this process belongs to the trial alone
    policies = ("auto", "auto", "pimflow", "md-dp", "pipeline")
    outcome, finding = checked(seed, folder, any_model(Random(seed))[1], policies)
    return [outcome, finding or ("" if prices.drawn else "the search asked for none of the random prices")]


class DrawnPrices:
    """Prices far below the host's own, drawn by seed and content; they favour and disfavour kinds of decisions.

    `drawn` counts them.
    """

    def __init__(self, seed: int) -> None:
        self.drawn = 0
        self._seed = seed
        self._favour = Random(seed)
        self._favours: dict[str, float] = {}

    def __call__(self, decisions: tuple[Decision, ...]) -> float:
        """The price of decisions."""
        self.drawn += 1
        kinds = "+".join(sorted({type(decision).__name__ for decision in decisions}))
        if kinds not in self._favours:
            self._favours[kinds] = self._favour.choice((0.05, 0.3, 1.0)) * (20 if kinds == "OnDevice" else 1)
        covered = sum(len(decision.nodes) for decision in decisions)
        share = hashlib.blake2b(f"{self._seed} {decisions}".encode(), digest_size=4).digest()
        return 1e-6 * self._favours[kinds] * covered * (1 + int.from_bytes(share, "little") / 2**32)


class DrawingPricer(Pricer):
    """Prices decisions that can be carried out at given prices, whatever they cost; their bounds are these prices."""

    def __init__(
        self, graph: Graph, costs: Costs, cache: PriceCache, prices: Callable[[tuple[Decision, ...]], float]
    ) -> None:
        super().__init__(graph, costs, cache)
        self._drawn = prices

    def least(self, decisions: tuple[Decision, ...]) -> float:
        """The price."""
        return self._drawn(decisions)

    def least_varied(self, variation: Variation) -> float:
        """The price of a variation of joined decisions."""
        return self._drawn(variation.decisions)

    def refine(self, decisions: tuple[Decision, ...], least: float) -> tuple[float | None, bool]:
        """The price."""
        return self.cost(decisions), True

    def cost(self, decisions: tuple[Decision, ...]) -> float | None:
        """The price; None if the decisions cannot be carried out."""
        return None if super().cost(decisions) is None else self._drawn(decisions)
