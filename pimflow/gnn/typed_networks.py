"""Graph networks over the hops of a mini-batch of a heterogeneous graph: a layer for every relation, added up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pimflow.gnn.networks import LAYERS, Ends, Network, linear
from pimflow.ir import Builder, Graph
from pimflow.records import dataclass
from pimflow.sparse import Graph as Edges
from pimflow.sparse.sampling import Heterogeneous, TypedBatch

Hop = Mapping[str, Edges]

TYPED_LAYERS: Mapping[str, str] = {"rgcn": "gcn", **{name: name for name in LAYERS}}
"""The networks that there are, by name: what runs over the edges of a relation."""


@dataclass(frozen=True)
class TypedNetwork:
    """What a network over several relations is made of.

    A vertex has the sum of what its relations bring it, each with weights of its own, as PyTorch Geometric's
    `HeteroConv` adds them; `rgcn` adds a product of the vertex itself, by kind (Schlichtkrull et al., ESWC 2018), and
    so does any network where no relation brings a kind anything.

    Args:
        network: one of `TYPED_LAYERS`, and the columns behind each layer.
        graph: what the batches are of.
        kind: of the vertices that are trained.
        features: columns of each kind's features.
    """

    network: Network
    graph: Heterogeneous
    kind: str
    features: Mapping[str, int]

    def over(self, batch: TypedBatch) -> Graph:
        """The forward pass over a batch, a layer a hop: logits of the vertices that are trained."""
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
            counts.setdefault(self.kind, len(batch.vertices[self.kind]))  # that no relation leads to: nothing was drawn
            made = {kind: self._layer(build, tables, hop, kind, count, columns) for kind, count in counts.items()}
            tables = made if not inner else {kind: build.relu(rows) for kind, rows in made.items()}
        return build.graph(tables[self.kind])

    def _destinations(self, hop: Hop, inner: Sequence[Hop]) -> dict[str, int]:
        """The vertices behind a hop by kind, where there are any: what it leads to, and what the next one reads."""
        read = {self.graph.relations[name].source: edges.num_src for one in inner for name, edges in one.items()}
        reached = {self.graph.relations[name].destination: edges.num_dst for name, edges in hop.items()}
        return {kind: count for kind, count in (read | reached).items() if count}

    def _layer(self, build: Builder, tables: Mapping[str, str], hop: Hop, kind: str, count: int, columns: int) -> str:
        """What the vertices of a kind have behind a hop."""
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
