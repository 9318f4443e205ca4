"""Plans of earlier runs: what was searched through once is not searched through again.

A plan is kept by all that it depends on: graph, policy, cost model and code. It is kept only if its search was not cut
short by a time budget.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from pimflow.data import decode, encode
from pimflow.errors import DataError
from pimflow.ir import Graph, OnDevice, Plan
from pimflow.search.policy import Policy
from pimflow.search.price_cache import PriceCache, key_of
from pimflow.search.pricing import content_text


class KeptPlans:
    """The plans of one cost model.

    Args:
        folder: where the file is; None keeps nothing.
        scope: all that plans depend on beside graph and policy, as text.
    """

    def __init__(self, folder: Path | None, scope: str) -> None:
        self._table = PriceCache(folder, f"plans\n{scope}")

    def plan_of(self, graph: Graph, policy: Policy, host: str) -> Plan | None:
        """The plan that `keep` was given; None if there is none, or none for these nodes."""
        text = self._table.texts.get(_key(graph, policy, host))
        if text is None:
            return None
        try:
            plan: Plan = decode(Plan, json.loads(text), tagged=True)
        except (ValueError, DataError):
            return None
        covered = sorted(name for decision in plan.decisions for name in decision.nodes)
        return plan if covered == sorted(node.name for node in graph.nodes) else None

    def keep(self, graph: Graph, policy: Policy, plan: Plan) -> None:
        """Keeps a plan, and writes it to disk."""
        if self._table.path is None:
            return
        text = json.dumps(encode(replace(plan, search_seconds=0.0), tagged=True), separators=(",", ":"))
        self._table.put_text(_key(graph, policy, plan.host), text)
        self._table.flush()


def _key(graph: Graph, policy: Policy, host: str) -> str:
    """Of a graph with its names, which decisions name nodes by."""
    everything = tuple(OnDevice(node.name, host) for node in graph.nodes)
    content = content_text(graph, frozenset(graph.outputs), everything)
    names = json.dumps([node.name for node in graph.nodes])
    return key_of(f"{policy}\n{names}\n{content}")
