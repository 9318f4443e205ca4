"""Graph networks over the hops of a mini-batch of a heterogeneous graph: the sum of one layer per relation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pimflow.gnn.networks import LAYERS, Ends, Network, linear
from pimflow.ir import Builder, Graph
from pimflow.records import dataclass
from pimflow.sparse import Graph as Edges
from pimflow.sparse.sampling import Heterogeneous, TypedBatch

Hop = Mapping[str, Edges]

TYPED_LAYERS: Mapping[str, str] = {"rgcn": "gcn", **{name: name for name in LAYERS}}
"""The layer that each network runs over the edges of a relation, by network name."""


@dataclass(frozen=True)
class TypedNetwork:
    """A network over several relations.

    A vertex receives the sum over its relations, each with its own weights, as in PyTorch Geometric's `HeteroConv`.
    `rgcn` adds a product of the vertex itself, with weights per kind (Schlichtkrull et al., ESWC 2018); so does any
    network for a kind that no relation leads to.

    Args:
        network: one of `TYPED_LAYERS`, and the columns after each layer.
        graph: the graph that the batches are drawn from.
        kind: of the vertices that are trained.
        features: columns of each kind's features.
    """

    network: Network
    graph: Heterogeneous
    kind: str
    features: Mapping[str, int]

    def over(self, batch: TypedBatch) -> Graph:
        """The forward pass over a batch, one layer per hop: logits of the vertices that are trained."""
        build = Builder(self.network.kind)
        tables = {
            kind: build.input(len(vertices), self.features[kind], name=f"x_{kind}")
            for kind, vertices in batch.vertices.items()
            if len(vertices)
        }
        for number, hop in enumerate(batch.hops):
            inner = batch.hops[number + 1 : number + 2]
            columns = self.network.hidden if inner else self.network.classes
            counts = self._destinations(hop, inner)
            counts.setdefault(self.kind, len(batch.vertices[self.kind]))  # if no relation leads to it, none were drawn
            made = {kind: self._layer(build, tables, hop, kind, count, columns) for kind, count in counts.items()}
            tables = made if not inner else {kind: build.relu(rows) for kind, rows in made.items()}
        return build.graph(tables[self.kind])

    def _destinations(self, hop: Hop, inner: Sequence[Hop]) -> dict[str, int]:
        """The number of vertices after a hop, by kind, if any: its destinations, and the sources of the next hop."""
        read = {self.graph.relations[name].source: edges.num_src for one in inner for name, edges in one.items()}
        reached = {self.graph.relations[name].destination: edges.num_dst for name, edges in hop.items()}
        return {kind: count for kind, count in (read | reached).items() if count}

    def _layer(self, build: Builder, tables: Mapping[str, str], hop: Hop, kind: str, count: int, columns: int) -> str:
        """The features of the vertices of a kind after a hop."""
        own = build.slice(tables[kind], 0, 0, count)
        layer = LAYERS[TYPED_LAYERS[self.network.kind]]
        terms = [
            layer(build, Ends(tables[self.graph.relations[name].source], own), edges, self.network, columns)
            for name, edges in hop.items()
            if self.graph.relations[name].destination == kind and edges.num_edges
        ]
        if self.network.kind == "rgcn" or not terms:
            terms.append(linear(build, own, columns))
        total, *rest = terms
        for term in rest:
            total = build.add(total, term)
        return total
