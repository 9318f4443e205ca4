"""Relational layers over typed edges, written node by node, including all edge cases of a graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from pimflow.ir import (
    Builder,
    EdgeSoftmax,
    Elementwise,
    GatherRows,
    Gemm,
    Graph,
    MatMul,
    Reshape,
    Sddmm,
    SegmentReduce,
    Spmm,
    TypedLinear,
)

Longs = npt.NDArray[np.int64]
FEATURES, HEADS, WIDTH = 6, 2, 4


@dataclass(frozen=True)
class TypedEdges:
    """Edges by destination: source, destination and type of each."""

    vertices: int
    types: int
    source: Longs
    destination: Longs
    kind: Longs

    @property
    def rowptr(self) -> Longs:
        """The position of each destination's first edge."""
        counts = np.bincount(self.destination, minlength=self.vertices)
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

    @property
    def by_type(self) -> Longs:
        """Edges sorted by type."""
        return np.argsort(self.kind, kind="stable")

    @property
    def places(self) -> Longs:
        """The position of each edge in that order."""
        places = np.empty(len(self.kind), np.int64)
        places[self.by_type] = np.arange(len(self.kind))
        return places

    @property
    def pointers(self) -> Longs:
        """The position of each type's first edge."""
        return np.concatenate([[0], np.cumsum(np.bincount(self.kind, minlength=self.types))]).astype(np.int64)


@st.composite
def typed_edges(draw: st.DrawFn) -> TypedEdges:
    """Few vertices and edges: types without edges, isolated vertices, repeated edges, one type per edge."""
    vertices, edges = draw(st.integers(1, 9)), draw(st.integers(1, 24))
    types = draw(st.sampled_from([1, 2, 3, 7, edges]))
    columns = [draw(st.lists(st.integers(0, top - 1), min_size=edges, max_size=edges)) for top in (vertices, vertices)]
    kinds = (
        list(range(edges))
        if types == edges
        else draw(st.lists(st.integers(0, types - 1), min_size=edges, max_size=edges))
    )
    return by_destination(vertices, types, np.array(columns[0]), np.array(columns[1]), np.array(kinds))


def by_destination(vertices: int, types: int, source: Longs, destination: Longs, kind: Longs) -> TypedEdges:
    """Edges sorted by destination."""
    order = np.argsort(destination, kind="stable")
    return TypedEdges(vertices, types, source[order], destination[order], kind[order])


def random_edges(vertices: int, types: int, edges: int, seed: int = 0) -> TypedEdges:
    """Uniformly random edges."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, vertices, (2, edges))
    return by_destination(vertices, types, ends[0], ends[1], rng.integers(0, types, edges))


class Layer:
    """A graph under construction over typed edges."""

    def __init__(self, edges: TypedEdges, features: int = FEATURES) -> None:
        self.edges = edges
        self.features = features
        self.build = Builder("layer", opset=18)
        self.x = self.build.input(edges.vertices, features)
        self.rng = np.random.default_rng(0)
        self.rowptr = self.build.constant(edges.rowptr, "rowptr")

    def constant(self, array: npt.NDArray[np.generic], name: str) -> str:
        """A constant."""
        return self.build.constant(array, name)

    def weights(self, *shape: int) -> str:
        """Random weights."""
        return self.constant(self.rng.standard_normal(shape).astype(np.float32), "w")

    def rows(self, x: str, index: Longs, name: str) -> str:
        """x[index]."""
        return self.build.op(GatherRows(), x, self.constant(index.astype(np.int32), "index"), name=name)

    def typed(self, index: Longs, columns: int, name: str) -> str:
        """x[index[e]] W[type of e] for every edge e, by destination."""
        edges = self.edges
        rows = self.rows(self.x, index[edges.by_type], f"{name}_by_type")
        weights = self.weights(edges.types, self.features, columns)
        made = self.build.op(TypedLinear(), rows, weights, self.constant(edges.pointers, "types"), name=name)
        return self.rows(made, edges.places, f"{name}_of_edges")


def convolution(edges: TypedEdges) -> Graph:
    """RGCN, the fast form: messages times norms, summed."""
    layer = Layer(edges)
    messages = layer.typed(edges.source, WIDTH, "typed")
    norm = layer.constant(layer.rng.random((len(edges.kind), 1)).astype(np.float32), "norm")
    weighted = layer.build.op(Elementwise("Mul"), norm, messages, name="weighted")
    return layer.build.graph(layer.build.op(SegmentReduce(), weighted, layer.rowptr, name="sum"))


def attention(edges: TypedEdges, features: int = FEATURES) -> Graph:
    """RGAT: logits from both ends, each a product with weights after one by type; messages per head."""
    layer, count = Layer(edges, features), len(edges.kind)
    build = layer.build
    query = layer.typed(edges.destination, HEADS * WIDTH, "typed_i")
    key = layer.typed(edges.source, HEADS * WIDTH, "typed_j")
    ends = [
        build.op(MatMul(), value, layer.weights(HEADS * WIDTH, HEADS), name=name)
        for value, name in ((query, "logit_i"), (key, "logit_j"))
    ]
    logits = build.op(Elementwise("LeakyRelu", (("alpha", 0.2),)), build.op(Elementwise("Add"), *ends, name="logits"))
    shares = build.op(EdgeSoftmax(), logits, layer.rowptr, name="shares")
    shares = build.op(Reshape((count, HEADS, 1)), shares)
    heads = build.op(Reshape((count, HEADS, WIDTH)), key)
    messages = build.op(Elementwise("Mul"), shares, heads, name="messages")
    return build.graph(build.op(SegmentReduce(), messages, layer.rowptr, name="sum"))


def transformer(edges: TypedEdges) -> Graph:
    """HGT: keys and values by type, a dot product with the query of every edge's destination."""
    layer, count = Layer(edges), len(edges.kind)
    build = layer.build
    queries = build.op(MatMul(), layer.x, layer.weights(FEATURES, HEADS * WIDTH), name="query")
    query = build.op(Reshape((count, HEADS, WIDTH)), layer.rows(queries, edges.destination, "query_of_edges"))
    key, value = (
        build.op(Reshape((count, HEADS, WIDTH)), layer.typed(edges.source, HEADS * WIDTH, name))
        for name in ("key", "value")
    )
    product = build.op(Elementwise("Mul"), query, key, name="product")
    axes = layer.constant(np.array([-1]), "axes")
    logits = build.onnx("ReduceSum", product, axes, shape=(count, HEADS), name="dot", keepdims=0)
    shares = build.op(Reshape((count, HEADS, 1)), build.op(EdgeSoftmax(), logits, layer.rowptr, name="shares"))
    messages = build.op(Elementwise("Mul"), shares, value, name="messages")
    flat = build.op(Reshape((count, HEADS * WIDTH)), messages)
    return build.graph(build.op(SegmentReduce(), flat, layer.rowptr, name="sum"))


def heads(edges: TypedEdges) -> Graph:
    """HGT's values: one matrix for all vertices, then one per type and head."""
    layer = Layer(edges)
    build = layer.build
    values = build.op(MatMul(), layer.x, layer.weights(FEATURES, HEADS * WIDTH), name="value")
    rows = layer.rows(build.op(Reshape((edges.vertices, HEADS, WIDTH)), values), edges.source[edges.by_type], "rows")
    pointers = layer.constant(edges.pointers, "types")
    weights = layer.weights(edges.types, HEADS, WIDTH, WIDTH)
    typed = build.op(TypedLinear(), rows, weights, pointers, name="relation")
    return build.graph(build.op(SegmentReduce(), layer.rows(typed, edges.places, "messages"), layer.rowptr))


def loop(edges: TypedEdges, reduces: Sequence[str] = ("sum",)) -> Graph:
    """RGCN as a loop over types: the mean over the edges of each and a product, summed, plus a product of the vertices.

    With several reductions, types use them in turn.
    """
    layer = Layer(edges)
    build = layer.build
    total = build.op(MatMul(), layer.x, layer.weights(FEATURES, WIDTH), name="root")
    for kind in range(edges.types):
        chosen = edges.kind == kind
        counts = np.bincount(edges.destination[chosen], minlength=edges.vertices)
        rowptr = layer.constant(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), "rowptr")
        col = layer.constant(edges.source[chosen].astype(np.int32), "col")
        scale = layer.constant((1 / np.maximum(counts, 1)).astype(np.float32), "scale")
        weight = layer.constant(layer.rng.random(int(chosen.sum())).astype(np.float32), "weight") if kind % 2 else ""
        mean = build.op(Spmm(reduces[kind % len(reduces)]), layer.x, rowptr, col, weight, scale, name=f"mean_{kind}")
        product = build.op(MatMul(), mean, layer.weights(FEATURES, WIDTH), name=f"product_{kind}")
        total = build.op(Elementwise("Add"), total, product, name=f"add_{kind}")
    return build.graph(total)


def matrices(edges: TypedEdges) -> Graph:
    """One copy of a matrix per edge, as exporters write the fast form."""
    layer, count = Layer(edges), len(edges.kind)
    build = layer.build
    rows = build.op(Reshape((count, 1, FEATURES)), layer.rows(layer.x, edges.source, "rows"))
    picked = layer.rows(layer.weights(edges.types, FEATURES, WIDTH), edges.kind, "picked")
    product = build.op(MatMul(), rows, picked, name="product")
    flat = build.op(Reshape((count, WIDTH)), product)
    return build.graph(build.op(SegmentReduce(), flat, layer.rowptr, name="sum"))


@dataclass(frozen=True)
class Part:
    """The edges of one type: where those into each destination begin, their sources, and their number."""

    rowptr: Longs
    col: Longs

    @property
    def counts(self) -> npt.NDArray[np.float32]:
        """Edges into each destination, at least one, as a column."""
        return np.maximum(np.diff(self.rowptr), 1).astype(np.float32)[:, None]


def parts(edges: TypedEdges) -> list[Part]:
    """The edges of each type."""
    found = []
    for kind in range(edges.types):
        chosen = edges.kind == kind
        counts = np.bincount(edges.destination[chosen], minlength=edges.vertices)
        found.append(Part(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), edges.source[chosen]))
    return found


def film(edges: TypedEdges, reduce: str = "sum") -> Graph:
    """FiLM: for every type relu(gamma[d] * x[s] W + beta[d]), and the mean over its edges; plus a vertex product."""
    layer = Layer(edges)
    build, rest = layer.build, WIDTH
    total = build.op(MatMul(), layer.x, layer.weights(FEATURES, WIDTH), name="skip")
    for kind, part in enumerate(parts(edges)):
        rowptr = layer.constant(part.rowptr, "rowptr")
        rows = build.op(MatMul(), layer.x, layer.weights(FEATURES, WIDTH), name=f"rows_{kind}")
        film = build.op(
            Gemm(trans_b=True), layer.x, layer.weights(2 * rest, FEATURES), layer.weights(2 * rest), name=f"film_{kind}"
        )
        beta, gamma = build.split(film, 1, rest, rest, name=f"split_{kind}")
        col = layer.constant(part.col.astype(np.int32), "col")
        ends = build.op(Sddmm("mul"), rows, gamma, rowptr, col, name=f"ends_{kind}")
        at = np.repeat(np.arange(edges.vertices), np.diff(part.rowptr))
        added = build.op(Elementwise("Add"), ends, layer.rows(beta, at, f"beta_{kind}"), name=f"added_{kind}")
        made = build.op(SegmentReduce(reduce), build.relu(added, name=f"act_{kind}"), rowptr, name=f"sum_{kind}")
        if reduce == "sum":
            made = build.op(Elementwise("Div"), made, layer.constant(part.counts, "counts"), name=f"mean_{kind}")
        total = build.op(Elementwise("Add"), total, made, name=f"add_{kind}")
    return build.graph(total)


def attentions(edges: TypedEdges, stack: str = "", *, projected: bool = False) -> Graph:
    """GAT for every type, sources of even types from one table, of odd types from another; their sum, or a stack.

    Args:
        edges: the edges.
        stack: the op that adds up the stack; "" for none.
        projected: whether all types share one product of each table (as in HAN), instead of having products of their
            own (as in a `HeteroConv` of GAT).
    """
    layer = Layer(edges)
    build, terms, products = layer.build, list[str](), dict[str, str]()
    tables = [layer.x, build.input(edges.vertices, FEATURES, name="y")]

    def product_of(table: str, name: str) -> str:
        if not projected or table not in products:
            products[table] = build.op(MatMul(), table, layer.weights(FEATURES, HEADS * WIDTH), name=name)
        return products[table]

    for kind, part in enumerate(parts(edges)):
        rowptr, col = layer.constant(part.rowptr, "rowptr"), layer.constant(part.col.astype(np.int32), "col")
        ends = []
        for name, table in (("source", tables[kind % 2]), ("destination", layer.x)):
            heads = build.reshape(product_of(table, f"{name}_{kind}"), edges.vertices, HEADS, WIDTH)
            product = build.mul(heads, layer.weights(1, HEADS, WIDTH), name=f"{name}_product_{kind}")
            axes = layer.constant(np.array([-1]), "axes")
            shape = (edges.vertices, HEADS)
            logit = build.onnx("ReduceSum", product, axes, shape=shape, name=f"{name}_logit_{kind}", keepdims=0)
            ends.append((heads, logit))
        (rows, source), (_, destination) = ends
        logits = build.op(Sddmm("add"), source, destination, rowptr, col, name=f"ends_{kind}")
        shares = build.op(
            EdgeSoftmax(), build.elementwise("LeakyRelu", logits, alpha=0.2), rowptr, name=f"shares_{kind}"
        )
        total = build.op(Spmm(), rows, rowptr, col, shares, name=f"sum_{kind}")
        made = build.add(build.reshape(total, edges.vertices, HEADS * WIDTH), layer.weights(HEADS * WIDTH))
        terms.append(build.reshape(made, 1, edges.vertices, HEADS * WIDTH))
    whole = build.concat(0, *terms, name="stack") if len(terms) > 1 else terms[0]
    if not stack:
        return build.graph(whole)
    out = (edges.vertices, HEADS * WIDTH)
    return build.graph(
        build.onnx(stack, whole, layer.constant(np.array([0]), "axes"), shape=out, name="total", keepdims=0)
    )


def largest(*kinds: TypedEdges, pairing: str = "Add") -> Graph:
    """GraphSAGE for every type, and the maximum over types: products of sums over edges, and of the vertex itself.

    Args:
        kinds: edges among each kind of vertices; each kind has a separate layer.
        pairing: how both products are joined.
    """
    layer = Layer(kinds[0])
    build, outputs, axes = layer.build, list[str](), layer.constant(np.array([0]), "axes")
    for index, edges in enumerate(kinds):
        x, terms = build.input(edges.vertices, FEATURES, name=f"x{index}"), list[str]()
        for kind, part in enumerate(parts(edges)):
            col = layer.constant(part.col.astype(np.int32), "col")
            total = build.op(Spmm(), x, layer.constant(part.rowptr, "rowptr"), col, name=f"sum_{index}_{kind}")
            weights = (layer.weights(WIDTH, FEATURES), layer.weights(WIDTH))
            brought = build.op(Gemm(trans_b=True), total, *weights, name=f"brought_{index}_{kind}")
            own = build.op(MatMul(), x, layer.weights(FEATURES, WIDTH), name=f"own_{index}_{kind}")
            both = build.op(Elementwise(pairing), brought, own, name=f"both_{index}_{kind}")
            terms.append(build.reshape(both, 1, edges.vertices, WIDTH))
        whole = build.concat(0, *terms, name=f"stack_{index}") if len(terms) > 1 else terms[0]
        shape = (edges.vertices, WIDTH)
        outputs.append(build.onnx("ReduceMax", whole, axes, shape=shape, name=f"largest_{index}", keepdims=0))
    return build.graph(*outputs)


LAYERS = {
    "convolution": convolution,
    "attention": attention,
    "transformer": transformer,
    "heads": heads,
    "loop": loop,
    "matrices": matrices,
    "film": film,
    "attentions": attentions,
}
