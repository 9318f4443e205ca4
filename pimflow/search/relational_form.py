"""In which form relational layers run, by price: rows by type, weights first, once a pair, edges in one kernel.

Each of these rewrites can make a layer slower: fewer rows cost a gather of their own, and a product with less
arithmetic may be a kernel more. The counts that prices follow from are those of the graph at hand. Which passes run,
and where, is settled before plans are made, with every node on the device that runs it fastest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, product
from typing import NamedTuple

from pimflow.ir import GatherRows, Graph
from pimflow.options import Options
from pimflow.passes import (
    CompactMaterialization,
    FuseEpilogues,
    FuseTraversal,
    MovementElimination,
    Pass,
    PassRecord,
    ReorderLinear,
    SegmentGemm,
)
from pimflow.runtime.costs import CostModel
from pimflow.search.fastest import Fastest

RelationalPass = SegmentGemm | ReorderLinear | CompactMaterialization | FuseTraversal
Kind = type[RelationalPass]
RELATIONAL: tuple[Kind, ...] = (SegmentGemm, ReorderLinear, CompactMaterialization, FuseTraversal)
"""The passes on relational layers, in the order in which they help one another."""

_MARKS: tuple[Pass, ...] = (FuseEpilogues(residual=True), MovementElimination())
"""What the clean-up marked, marked again."""


class Chosen(NamedTuple):
    """The passes that make the form, none where nothing is rewritten, and records of those that do not pay."""

    passes: tuple[Pass, ...]
    records: tuple[PassRecord, ...] = ()


@dataclass(frozen=True)
class Form:
    """Which of the passes run, and what each leaves as it is."""

    kinds: tuple[Kind, ...]
    leave: Mapping[Kind, tuple[str, ...]] = field(default_factory=dict)

    def without(self, kind: Kind, node: str) -> Form:
        """The form in which a pass leaves a node as it is."""
        return Form(self.kinds, {**self.leave, kind: (*self.leave.get(kind, ()), node)})

    def steps(self, graph: Graph) -> Iterator[tuple[RelationalPass, Graph]]:
        """The passes, and what each makes of what the one before made."""
        for kind in self.kinds:
            made = kind(tuple(name for name in self.leave.get(kind, ()) if name in graph.node_by_name))
            graph = made.run(graph).graph
            yield made, graph


def relational_form(graph: Graph, costs: CostModel, options: Options, kinds: Sequence[Kind] = RELATIONAL) -> Chosen:
    """The passes that bring relational layers into the form in which they cost least.

    Args:
        graph: cleaned up.
        costs: of the machine.
        options: `relations` says whether prices decide ("auto"), or every pass runs wherever it can, or none.
        kinds: the passes that may run.
    """
    if options.relations == "never" or not any(node.op.is_sparse for node in graph.nodes):
        return Chosen(())
    everything = Form(tuple(kinds))
    if not any(True for _ in _sites(graph, everything)):
        return Chosen(())
    if options.relations == "always":
        return Chosen((*(made for made, _ in everything.steps(graph)), *_MARKS))
    return _cheapest(graph, kinds, Fastest.of(costs, options))


def _cheapest(graph: Graph, kinds: Sequence[Kind], fastest: Fastest) -> Chosen:
    """The best set of passes, and then of each the nodes that had better stay as they are."""
    forms = [Form(tuple(compress(kinds, chosen))) for chosen in product((True, False), repeat=len(kinds))]
    prices = [_price(graph, form, fastest) for form in forms]
    least = min(prices)
    best = forms[prices.index(least)]
    for kind, name in tuple(_sites(graph, best)):
        candidate = best.without(kind, name)
        price = _price(graph, candidate, fastest)
        if price < least:
            best, least = candidate, price
    records = []
    for kind in kinds:
        others = [price for form, price in zip(forms, prices, strict=True) if kind in form.kinds]
        if kind not in best.kinds:
            note = f"everything: {min(others):.2f} us with it, {least:.2f} us without"
            records.append(PassRecord(kind.name, 0.0, False, len(graph.nodes), (note,)))
    passes = tuple(made for made, _ in best.steps(graph))
    return Chosen((*passes, *_MARKS) if passes else (), tuple(records))


def _price(graph: Graph, form: Form, fastest: Fastest) -> float:
    for _, made in form.steps(graph):
        graph = made
    for mark in _MARKS:
        graph = mark.run(graph).graph
    return fastest.us(graph)


def _sites(graph: Graph, form: Form) -> Iterator[tuple[Kind, str]]:
    """The nodes that each pass changes, but for what only moves with them."""
    for made, after in form.steps(graph):
        for node in graph.nodes:
            moves = node.op.is_movement or isinstance(node.op, GatherRows)
            if not moves and after.node_by_name.get(node.name) != node:
                yield type(made), node.name
        graph = after
