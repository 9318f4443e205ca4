"""Which form of relational layers to run, by price: rows by type, weights first, once per pair, edges in one kernel.

Each of these rewrites can make a layer slower: fewer rows need a gather of their own, and a product with less
arithmetic may need one more kernel. The counts behind the prices are those of the given graph. Which passes run, and
where, is decided before plans are made, with every node on the device that runs it fastest. If the target says how
large the GPU's memory is, a form that does not fit is chosen only if no form fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import TypeVar

from pimflow.ir import Graph
from pimflow.ir.analysis.content import content_of
from pimflow.options import Options
from pimflow.passes import FuseEpilogues, MovementElimination, Pass, PassRecord, PassResult
from pimflow.passes.group_products import GroupProducts
from pimflow.passes.relational import RELATIONAL, RelationalPass
from pimflow.passes.reorder_linear import ReorderLinear
from pimflow.passes.segment_gemm import SegmentGemm
from pimflow.records import NamedTuple, dataclass
from pimflow.runtime.costs import CostModel
from pimflow.runtime.memory.tiers import gigabytes
from pimflow.search.fastest import Fastest
from pimflow.search.room import Price, needed_bytes

Kind = type[RelationalPass]
T = TypeVar("T")

_LAST = GroupProducts
"""The pass that is tried only on the best forms of the others: it groups what they leave, and helps none of them."""

_MARKS: tuple[Pass, ...] = (FuseEpilogues(residual=True), MovementElimination())
"""The marking passes of the clean-up, which are run again."""


class ChosenPasses(NamedTuple):
    """The passes that produce the form (none if nothing is rewritten), and records of those that do not pay off."""

    passes: tuple[Pass, ...]
    records: tuple[PassRecord, ...] = ()


@dataclass(frozen=True)
class Form:
    """Which of the passes run, and which nodes each of them leaves as they are.

    Args:
        kinds: the passes.
        leave: the nodes that each pass leaves as they are.
        is_trained: whether weights are parameters, so that passes must compute with them in nodes.
    """

    kinds: tuple[Kind, ...]
    leave: Mapping[Kind, tuple[str, ...]] = field(default_factory=dict)
    is_trained: bool = False

    def without(self, kind: Kind, node: str) -> Form:
        """The form in which a pass leaves a node as it is."""
        return replace(self, leave={**self.leave, kind: (*self.leave.get(kind, ()), node)})

    def steps(self, graph: Graph) -> Iterator[tuple[RelationalPass, PassResult]]:
        """The passes with their results, each on the graph that the previous one produced."""
        for kind in self.kinds:
            made = self.step(kind, graph)
            result = made.run(graph)
            yield made, result
            graph = result.graph

    def step(self, kind: Kind, graph: Graph) -> RelationalPass:
        """A pass, configured to run on a graph."""
        made = kind(tuple(name for name in self.leave.get(kind, ()) if name in graph.node_by_name))
        if self.is_trained and isinstance(made, SegmentGemm | ReorderLinear):
            return replace(made, fold=False)
        return made

    def variants(self, graph: Graph, kinds: Sequence[Kind]) -> Mapping[tuple[Kind, ...], Graph]:
        """The graph that each subset of the passes produces; of subsets with the same graph only the largest."""
        found: list[tuple[tuple[Kind, ...], Graph]] = [((), graph)]
        for kind in kinds:
            made = [(chosen, before, self.step(kind, before).run(before)) for chosen, before in found]
            found = []
            for chosen, before, result in made:
                found.append(((*chosen, kind), result.graph))
                found += [(chosen, before)] if result.changed else []
        return dict(found)


def relational_form(
    graph: Graph, costs: CostModel, options: Options, kinds: Sequence[Kind] = RELATIONAL
) -> ChosenPasses:
    """The passes that rewrite relational layers into their cheapest form among those that fit into memory.

    Args:
        graph: cleaned up.
        costs: the cost model of the machine.
        options: `relations` says whether prices decide ("auto"), or every pass runs wherever it can, or none.
        kinds: the passes that may run.
    """
    if options.relations == "never" or not any(node.op.is_sparse for node in graph.nodes):
        return ChosenPasses(())
    everything = Form(tuple(kinds))
    if not any(True for _ in _sites(graph, everything)):
        return ChosenPasses(())
    if options.relations == "always":
        return ChosenPasses((*(made for made, _ in everything.steps(graph)), *_MARKS))
    fastest = Fastest.of(costs, options)
    found = _cheapest(graph, everything, once_per_graph(lambda made: _price(made, fastest)))
    return _with_records(graph, everything, found, costs)


def training_form(
    graph: Graph, price: Callable[[Graph], Price], options: Options, kinds: Sequence[Kind] = RELATIONAL
) -> tuple[Pass, ...]:
    """The passes that rewrite relational layers into the form with the cheapest training step among those that fit.

    Args:
        graph: the forward pass.
        price: the price of the training step for a forward pass (`once_per_graph`, if it takes long).
        options: `relations` has the same meaning as in `relational_form`.
        kinds: the passes that may run.
    """
    everything = Form(tuple(kinds), is_trained=True)
    if options.relations == "never" or not any(node.op.is_sparse for node in graph.nodes):
        return ()
    if not any(True for _ in _sites(graph, everything)):
        return ()
    best = everything
    if options.relations == "auto":
        best = _cheapest(graph, everything, price).best
    return tuple(made for made, _ in best.steps(graph))


def once_per_graph(compute: Callable[[Graph], T]) -> Callable[[Graph], T]:
    """A function that is computed once for all forms of a graph that are equal, as those often are that leave a node.

    Forms with the same nodes may differ in constants that passes made: they are told apart by their shapes and, where
    costs depend on elements, by these.
    """
    found: dict[object, T] = {}

    def computed(graph: Graph) -> T:
        values = (graph.value(name) for name in graph.constants)
        shapes = tuple((value.name, value.shape, value.dtype) for value in values)
        key = (graph.nodes, shapes, tuple(content_of(graph, node) for node in graph.nodes))
        if key not in found:
            found[key] = compute(graph)
        return found[key]

    return computed


class _Best(NamedTuple):
    """The best form with its price, and the prices of all subsets of the passes."""

    best: Form
    least: Price
    prices: Mapping[tuple[Kind, ...], Price]


def _cheapest(graph: Graph, everything: Form, price: Callable[[Graph], Price]) -> _Best:
    """The best subset of passes, with the nodes that each pass is better off leaving alone.

    A pass that pays off only at some of its nodes may not be in the best subset, so the best subset that contains it is
    tried as a starting point as well.
    """
    ahead = tuple(kind for kind in everything.kinds if kind is not _LAST)
    prices = {kinds: price(made) for kinds, made in everything.variants(graph, ahead).items()}
    sets = [list(prices), *([kinds for kinds in prices if kind in kinds] for kind in ahead)]
    firsts = dict.fromkeys(_lowest(group, prices) for group in sets if group)
    found = [_with_less(graph, replace(everything, kinds=kinds), prices[kinds], price, ahead) for kinds in firsts]
    best, least = min(found, key=lambda one: one[1].rank)
    loops = [kinds for kinds in prices if SegmentGemm not in kinds]  # products of loops are grouped where they are
    starts = [best, *(replace(everything, kinds=_lowest(group, prices)) for group in [loops] if group)]
    for start in starts if _LAST in everything.kinds else ():
        grouped = replace(start, kinds=(*start.kinds, _LAST))
        if grouped.kinds in prices or not any(kind is _LAST for kind, _ in _sites(graph, grouped)):
            continue
        prices[grouped.kinds] = price(_made(graph, grouped))
        grouped, cost = _with_less(graph, grouped, prices[grouped.kinds], price, (_LAST,))
        best, least = (grouped, cost) if cost.rank < least.rank else (best, least)
    return _Best(best, least, prices)


def _with_less(
    graph: Graph, best: Form, least: Price, price: Callable[[Graph], Price], kinds: Sequence[Kind]
) -> tuple[Form, Price]:
    """The form in which some passes leave the nodes that are better off unchanged, and its price.

    Leaving one node may make no difference where leaving several does, such as all products that read one gather.
    """

    def found() -> dict[tuple[Kind, str], None]:
        return {site: None for site in _sites(graph, best) if site[0] in kinds}

    sites, tried = found(), set[tuple[Kind, str]]()
    together = best
    while sites.keys() - tried:
        site = next(site for site in sites if site not in tried)
        tried.add(site)
        candidate = best.without(*site)
        cost = price(_made(graph, candidate))
        if cost.rank < least.rank:
            best, least = candidate, cost
            sites.update(found())
        if cost.rank <= least.rank:
            together = together.without(*site)
    cost = price(_made(graph, together))
    return (together, cost) if cost.rank < least.rank else (best, least)


def _lowest(group: Sequence[tuple[Kind, ...]], prices: Mapping[tuple[Kind, ...], Price]) -> tuple[Kind, ...]:
    """The subset of passes with the lowest price; of equal ones the first."""
    return min(group, key=lambda kinds: prices[kinds].rank)


def _with_records(graph: Graph, everything: Form, found: _Best, costs: CostModel) -> ChosenPasses:
    """The passes of the best form, its cost and memory next to those of the export, and the cost of passes that do not
    pay off."""
    records = []
    for kind in everything.kinds:
        others = [price for kinds, price in found.prices.items() if kind in kinds]
        if others and kind not in found.best.kinds:
            note = f"everything: {min(others).text} with it, {found.least.text} without"
            records.append(PassRecord(kind.name, 0.0, False, len(graph.nodes), (note,)))
    passes = tuple(made for made, _ in found.best.steps(graph))
    if passes:
        records.append(PassRecord(passes[0].name, 0.0, False, len(graph.nodes), (_peaks(graph, found, costs),)))
    return ChosenPasses((*passes, *_MARKS) if passes else (), tuple(records))


def _peaks(graph: Graph, found: _Best, costs: CostModel) -> str:
    """The peak use of the GPU's memory in the chosen form, and as exported."""
    made = _marked(_made(graph, found.best))
    chosen, exported = (gigabytes(needed_bytes(one, costs)) for one in (made, graph))
    return f"everything: {found.least.text}, {chosen} at the peak as chosen, {exported} as exported"


def _made(graph: Graph, form: Form) -> Graph:
    """The graph in a form."""
    for _, result in form.steps(graph):
        graph = result.graph
    return graph


def _price(graph: Graph, fastest: Fastest) -> Price:
    return Price.of(_marked(graph), fastest)


def _marked(graph: Graph) -> Graph:
    for mark in _MARKS:
        graph = mark.run(graph).graph
    return graph


def _sites(graph: Graph, form: Form) -> Iterator[tuple[Kind, str]]:
    """The nodes at which each pass applies."""
    for made, result in form.steps(graph):
        yield from ((type(made), name) for name in result.sites)
