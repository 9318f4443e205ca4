"""Cached plans and bounds of earlier runs, so that no search is repeated.

A plan is cached by everything that it depends on: graph, policy, cost model and code. It is cached only if no time
budget cut its search short. A bound does not depend on a policy.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TypeVar
from weakref import WeakKeyDictionary

from pimflow.data import decode, encode_json
from pimflow.errors import DataError
from pimflow.ir import Graph, OnDevice, Plan
from pimflow.search.makespan_bound import MakespanBound
from pimflow.search.policy import Policy
from pimflow.search.price_cache import PriceCache, key_of
from pimflow.search.pricing import content_text

Record = TypeVar("Record", Plan, MakespanBound)


class PlanCache:
    """The cached plans and bounds of one cost model.

    Args:
        folder: where the file is; None caches nothing.
        scope: everything that plans depend on besides graph and policy, as text.
    """

    def __init__(self, folder: Path | None, scope: str) -> None:
        self._table = PriceCache(folder, f"plans\n{scope}")

    def plan_of(self, graph: Graph, policy: Policy, host: str) -> Plan | None:
        """The cached plan; None if there is none, or if it does not cover exactly these nodes."""
        plan = self._read(Plan, graph, policy, host)
        if plan is None:
            return None
        covered = sorted(name for decision in plan.decisions for name in decision.nodes)
        return plan if covered == sorted(node.name for node in graph.nodes) else None

    def put(self, graph: Graph, policy: Policy, plan: Plan) -> None:
        """Cache a plan, and write it to disk."""
        self._write(replace(plan, search_seconds=0.0), graph, policy, plan.host)

    def bound_of(self, graph: Graph, host: str) -> MakespanBound | None:
        """The cached bound; None if there is none."""
        return self._read(MakespanBound, graph, None, host)

    def put_bound(self, graph: Graph, host: str, bound: MakespanBound) -> None:
        """Cache a bound, and write it to disk."""
        self._write(bound, graph, None, host)

    def _read(self, form: type[Record], graph: Graph, policy: Policy | None, host: str) -> Record | None:
        """The decoded record; None if there is none, or if it has another form."""
        if self._table.path is None:
            return None
        text = self._table.texts.get(_key(graph, policy, host))
        if text is None:
            return None
        try:
            return decode(form, json.loads(text), tagged=True)
        except (ValueError, DataError):
            return None

    def _write(self, record: Plan | MakespanBound, graph: Graph, policy: Policy | None, host: str) -> None:
        if self._table.path is None:
            return
        self._table.put_text(_key(graph, policy, host), encode_json(record, tagged=True))
        self._table.flush()


def _key(graph: Graph, policy: Policy | None, host: str) -> str:
    """The key of a graph including its names, because decisions and bottlenecks refer to nodes by name; without a
    policy, the key of a bound."""
    return key_of(f"{'bound' if policy is None else policy}\n{_digest(graph, host)}")


def _digest(graph: Graph, host: str) -> str:
    """A digest of the content and the names of the nodes. Asked for up to four times in a run: to read and to write a
    plan and a bound."""
    known = _DIGESTS.get(graph)
    if known is None or known[0] != host:
        everything = tuple(OnDevice(node.name, host) for node in graph.nodes)
        content = content_text(graph, frozenset(graph.outputs), everything)
        names = json.dumps([node.name for node in graph.nodes])
        known = _DIGESTS[graph] = (host, key_of(f"{names}\n{content}"))
    return known[1]


_DIGESTS: WeakKeyDictionary[Graph, tuple[str, str]] = WeakKeyDictionary()
"""The digests of graphs that plans or bounds were asked for, with the host that they are for."""
