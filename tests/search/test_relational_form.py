"""The chosen form of relational layers is the cheapest of all that passes can make, from counts of the graph."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest

import pimflow
from pimflow.compiled import Machine
from pimflow.frontend import load_with_graph
from pimflow.ir import Graph
from pimflow.options import Options
from pimflow.passes import CLEANUP, Pass, PassManager
from pimflow.passes.compact_materialization import CompactMaterialization
from pimflow.passes.differentiate import Differentiate
from pimflow.passes.fuse_traversal import FuseTraversal
from pimflow.passes.parameters import parameters
from pimflow.passes.relational import RELATIONAL
from pimflow.passes.reorder_linear import ReorderLinear
from pimflow.passes.scatter_products import ScatterProducts
from pimflow.passes.segment_gemm import SegmentGemm
from pimflow.runtime.costs import CostModel
from pimflow.runtime.gpu.cost import GpuCost
from pimflow.search.fastest import Fastest
from pimflow.search.relational_form import once_per_graph, relational_form, training_form
from pimflow.search.room import Price, needed_bytes
from pimflow.sparse import Graph as Adjacency
from pimflow.targets import override
from pimflow.targets.schema.memory import GIB
from support.relational import LAYERS, attention, by_destination, film, largest, random_edges

OPTIONS = Options(policy="gpu")
COSTS = Machine.of(OPTIONS).costs.host_only()
DENSE = random_edges(300, 3, 20_000)
SPARSE = random_edges(20_000, 40, 20_000)
EVERY_TYPE = by_destination(50, 64, np.arange(64) % 7, np.arange(64) % 5, np.arange(64))
EDGES = {"dense": DENSE, "sparse": SPARSE, "a type each": EVERY_TYPE}
EXPORTS = Path(__file__).parents[1] / "data" / "gnn"


def carried_out(graph: Graph, passes: tuple[Pass, ...]) -> Graph:
    return PassManager(passes).run(graph).graph


def us(graph: Graph) -> float:
    return Fastest.of(COSTS, OPTIONS).us(graph)


def forms(graph: Graph, passes: tuple[Pass, ...]) -> list[Graph]:
    """The distinct forms that all sets of passes make."""
    found = [graph]
    for made in passes:
        found += [result.graph for result in map(made.run, found) if result.changed]
    return found


MANY_FORMS = ("attentions", "film")  # hundreds each
EVERY_LAYER = [
    pytest.param(name, edges, marks=pytest.mark.long if name in MANY_FORMS and edges != "dense" else ())
    for name in LAYERS
    for edges in EDGES
]


@pytest.mark.parametrize(("name", "edges"), EVERY_LAYER)
def test_no_form_that_the_passes_make_costs_less(name: str, edges: str) -> None:
    graph = LAYERS[name](EDGES[edges])
    marks = relational_form(LAYERS["attention"](DENSE), COSTS, OPTIONS).passes[-2:]
    prices = [us(carried_out(made, marks)) for made in forms(graph, tuple(kind() for kind in RELATIONAL))]
    found = carried_out(graph, relational_form(graph, COSTS, OPTIONS).passes)
    assert us(found) <= min(prices) * (1 + 1e-12)


def test_products_of_loops_may_be_grouped_instead() -> None:
    """Converting one loop into one pass would leave the products of all others without those they are grouped with."""
    graph = largest(random_edges(50, 2, 60), *[random_edges(50, 1, 60)] * 3)
    passes = relational_form(graph, COSTS, OPTIONS).passes
    assert SegmentGemm not in map(type, passes)
    prices = [us(carried_out(made, passes[-2:])) for made in forms(graph, tuple(kind() for kind in RELATIONAL))]
    assert us(carried_out(graph, passes)) <= min(prices) * (1 + 1e-12)


def room_for(size: float) -> CostModel:
    """A machine with this many bytes of GPU memory."""
    memory = {"memory.gpu.capacity_gib": size / GIB, "memory.gpu.reserved_gib": 0.0}
    return Machine.of(Options(policy="gpu", target=override("rtx3090", memory))).costs


def test_a_form_that_does_not_fit_is_not_chosen_if_another_does() -> None:
    """With less memory, the cheapest of the forms that fit is chosen; if none fits, the cheapest of all."""
    graph = film(random_edges(400, 4, 4000))
    ample = room_for(GIB)
    marks = relational_form(graph, ample, OPTIONS).passes[-2:]
    made = [carried_out(one, marks) for one in forms(graph, tuple(kind() for kind in RELATIONAL))]
    needs, prices = [needed_bytes(one, ample) for one in made], [Fastest.of(ample, OPTIONS).us(one) for one in made]
    freest = needs[prices.index(min(prices))]
    assert min(needs) < freest
    for room in (freest, freest - 1, min(needs), min(needs) - 1):
        found = carried_out(graph, relational_form(graph, room_for(room), OPTIONS).passes)
        fits = [price for need, price in zip(needs, prices, strict=True) if need <= room]
        assert Fastest.of(ample, OPTIONS).us(found) <= min(fits or prices) * (1 + 1e-12)
        assert needed_bytes(found, ample) <= room or not fits


def test_both_peaks_are_reported() -> None:
    graph = film(random_edges(400, 4, 4000))
    *_, record = relational_form(graph, COSTS, OPTIONS).records
    assert record.name == "segment-gemm"
    match = re.fullmatch(
        r"everything: [\d.]+ us, ([\d.]+) MB at the peak as chosen, ([\d.]+) MB as exported", record.notes[0]
    )
    assert match is not None
    assert float(match[2]) == pytest.approx(needed_bytes(graph, COSTS) / 1e6, abs=5e-3)
    assert float(match[1]) > float(match[2])


def test_rewrites_that_do_not_pay_are_left_out() -> None:
    """With 512 features, reading the messages' product again costs less than another product of all of them."""
    wide = attention(DENSE, 512)
    for graph, leave in ((wide, ("logit_j",)), (attention(DENSE), ())):
        passes = relational_form(graph, COSTS, OPTIONS).passes
        (reorder,) = (made for made in passes if isinstance(made, ReorderLinear))
        assert reorder.leave == leave


def test_a_pass_that_never_pays_reports_its_cost() -> None:
    """A product of all 512 features by type, and another for two logits, because queries have other readers."""
    graph = attention(DENSE, 512)
    graph = graph.replace(outputs=(*graph.outputs, graph.node("typed_i").output))
    chosen = relational_form(graph, COSTS, OPTIONS)
    assert ReorderLinear not in map(type, chosen.passes)
    (record,) = (record for record in chosen.records if record.name == "reorder-linear")
    assert record.notes[0].startswith("everything: ")
    assert " us with it, " in record.notes[0]


def test_options_can_force_forms() -> None:
    graph = LAYERS["attention"](SPARSE)
    always = relational_form(graph, COSTS, Options(policy="gpu", relations="always"))
    assert [type(made) for made in always.passes[: len(RELATIONAL)]] == list(RELATIONAL)
    assert relational_form(graph, COSTS, Options(policy="gpu", relations="never")).passes == ()
    only = relational_form(graph, COSTS, Options(policy="gpu", relations="always"), (ReorderLinear,))
    assert [type(made) for made in only.passes[:-2]] == [ReorderLinear]
    assert relational_form(LAYERS["convolution"](SPARSE), COSTS, OPTIONS, (SegmentGemm,)).passes == ()


def step_us(graph: Graph) -> float:
    return us(carried_out(graph, (Differentiate(),)))


@pytest.mark.parametrize("name", ["attention", "loop", "heads"])
def test_no_form_of_a_training_step_that_the_passes_make_costs_less(name: str) -> None:
    graph = LAYERS[name](DENSE)
    weights = (SegmentGemm(fold=False), ReorderLinear(fold=False))
    trained = forms(graph, (*weights, CompactMaterialization(), FuseTraversal(), ScatterProducts()))
    found = carried_out(graph, training_form(graph, lambda form: Price(False, step_us(form)), Options()))
    assert step_us(found) <= min(map(step_us, trained)) * (1 + 1e-12)
    elements = [sum(one.constants[item].size for item in parameters(one)) for one in (graph, found)]
    assert elements[0] == elements[1], "the parameters are the same"


def test_equal_forms_are_priced_once() -> None:
    """A form that leaves the only node of a pass is the form without the pass."""
    graph = LAYERS["attention"](random_edges(50, 3, 400))
    priced: dict[bool, list[Graph]] = {True: [], False: []}

    def price(made: Graph, once: bool) -> Price:
        priced[once].append(made)
        return Price(False, float(len(made.nodes)))

    chosen = {
        once: training_form(
            graph, once_per_graph(partial(price, once=True)) if once else partial(price, once=False), Options()
        )
        for once in priced
    }
    assert chosen[True] == chosen[False]
    assert len(priced[True]) == len({made.nodes for made in priced[False]}) < len(priced[False])


def test_graphs_of_other_edges_are_not_equal() -> None:
    graphs = [LAYERS["attention"](random_edges(50, 3, 400, seed)) for seed in (0, 0, 1)]
    assert graphs[0].nodes == graphs[2].nodes
    computed: list[Graph] = []
    once = once_per_graph(computed.append)
    for graph in graphs:
        once(graph)
    assert computed == [graphs[0], graphs[2]]


def test_a_pass_that_pays_at_one_node_alone_is_found() -> None:
    """Of RGAT's two products of weights, one should come first in a training step; the cheapest set has neither."""
    edges = np.random.default_rng(0).integers(0, [[300], [300], [3]], (3, 4000))
    adjacency = Adjacency.from_edge_index(edges[:2], 300, None, edges[2])
    graph = load_with_graph(onnx.load(EXPORTS / "rgat-ts.onnx"), {}, adjacency).graph
    graph = carried_out(graph, CLEANUP)
    found = step_us(carried_out(graph, training_form(graph, lambda form: Price(False, step_us(form)), Options())))
    first = SegmentGemm(fold=False)
    behind = (CompactMaterialization(), FuseTraversal())
    nodes = ReorderLinear(fold=False).run(carried_out(graph, (first,))).sites
    assert len(nodes) > 1
    prices = {node: step_us(carried_out(graph, (first, ReorderLinear((node,), fold=False), *behind))) for node in nodes}
    without = min(
        step_us(carried_out(graph, (first, *behind))), step_us(carried_out(graph, (first, *behind, ScatterProducts())))
    )
    assert found <= min(prices.values()) < without


def test_operations_and_bytes_match_an_enumeration_of_edges() -> None:
    """Every edge enumerated in plain Python: attention in its first form, and in its last."""
    features, columns, heads, element, edges = 6, 8, 2, 2, DENSE
    count, types = len(edges.kind), edges.types
    pairs: dict[str, set[tuple[int, int]]] = {"i": set(), "j": set()}
    for source, destination, kind in zip(edges.source, edges.destination, edges.kind, strict=True):
        pairs["i"].add((int(destination), int(kind)))
        pairs["j"].add((int(source), int(kind)))
    rows = {end: len(found) for end, found in pairs.items()}
    first = products(LAYERS["attention"](edges))
    assert first["typed_i"].flops == first["typed_j"].flops == sum(2 * features * columns for _ in range(count))
    assert first["logit_i"].flops == 2 * count * columns * heads
    pointers = 8 * (types + 1)
    assert first["typed_i"].bytes == element * (count * (features + columns) + types * features * columns) + pointers
    last = products(
        carried_out(LAYERS["attention"](edges), tuple(kind() for kind in RELATIONAL if kind is not ScatterProducts))
    )
    assert last["typed_j"].flops == 2 * rows["j"] * features * columns
    assert last["logit_i_reordered"].flops == 2 * rows["i"] * features * heads
    assert last["logit_j_reordered"].flops == 2 * rows["j"] * features * heads
    moved, index = rows["i"] * heads + types * features * heads, 4 * rows["i"]
    sectors = {destination // 2 for destination, _ in pairs["i"]}  # of 32 bytes, each with two rows of 12
    assert last["logit_i_reordered"].bytes == 32 * len(sectors) + element * moved + index + pointers
    assert "typed_i" not in last
    assert last["logits"].flops == count * heads, "one kernel over edges"


def products(graph: Graph) -> dict[str, GpuCost]:
    costs = {node.name: COSTS.node_cost(graph, node).detail for node in graph.nodes}
    return {name: cost for name, cost in costs.items() if isinstance(cost, GpuCost)}


@pytest.mark.parametrize(
    "name", ["rgat-ts", "rgcn-ts", "rgcn-fast-mean-ts", "typed-attention-ts", "film-typed-ts", "rgcn-fast-blocks-ts"]
)
def test_exports_keep_their_values_in_every_form(name: str) -> None:
    rng = np.random.default_rng(3)
    adjacency = Adjacency.from_edge_index(rng.integers(0, 60, (2, 900)), 60, None, rng.integers(0, 3, 900))
    times = {}
    for relations in ("never", "always", "auto"):
        compiled = pimflow.compile(
            EXPORTS / f"{name}.onnx", graph=adjacency, policy="gpu", relations=relations, use_cache=False
        )
        assert compiled.verify(rtol=1e-5).passed
        times[relations] = compiled.report.result.time_us
    assert times["auto"] <= min(times.values())
    assert times["auto"] < times["never"]
