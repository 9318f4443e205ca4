"""Graph networks over the hops of a mini-batch, as in DGL's blocks: one bipartite graph per layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from pimflow.ir import Builder, EdgeSoftmax, Gemm, Graph, Sddmm, Spmm
from pimflow.records import NamedTuple, dataclass
from pimflow.sparse import Graph as Edges
from pimflow.sparse.sampling import Batch


@dataclass(frozen=True)
class Network:
    """The parameters of a network.

    Args:
        kind: one of `LAYERS`.
        features, hidden, classes: number of columns that it reads, has between layers, and writes.
        heads: of attention, for `gat`: hidden layers have `heads` times `hidden` columns.
    """

    kind: str
    features: int
    hidden: int
    classes: int
    heads: int = 4

    def over(self, batch: Batch) -> Graph:
        """The forward pass over a batch, one layer per hop: logits of the vertices that are trained."""
        build = Builder(self.kind)
        x = build.input(len(batch.vertices), self.features, name="x")
        for number, hop in enumerate(batch.hops, 1):
            last = number == len(batch.hops)
            x = LAYERS[self.kind](build, Ends(x), hop, self, self.classes if last else self.hidden)
            x = x if last else build.relu(x)
        return build.graph(x)


Layer = Callable[[Builder, "Ends", Edges, Network, int], str]


class Ends(NamedTuple):
    """The features of the vertices at both ends of edges.

    Args:
        sources: rows of all sources.
        destinations: rows of all destinations; "" if these are the first rows of the sources.
    """

    sources: str
    destinations: str = ""


def _sage(build: Builder, x: Ends, hop: Edges, network: Network, columns: int) -> str:
    """GraphSAGE with means (Hamilton et al., NeurIPS 2017): W1 x + W2 mean(neighbours) + b."""
    own, mean = x.destinations or _destinations(build, x.sources, hop), _mean(build, x.sources, hop)
    return build.add(linear(build, own, columns), linear(build, mean, columns))


def _gcn(build: Builder, x: Ends, hop: Edges, network: Network, columns: int) -> str:
    """A convolution over means; product and mean are in the order that gives the mean fewer columns."""
    narrow = columns < build.shape(x.sources)[1]
    if narrow:
        return _mean(build, linear(build, x.sources, columns), hop)
    return linear(build, _mean(build, x.sources, hop), columns)


def _gat(build: Builder, x: Ends, hop: Edges, network: Network, columns: int) -> str:
    """Attention (Velickovic et al., ICLR 2018): concatenated heads of `columns` each; a single head for the classes."""
    heads = 1 if columns == network.classes else network.heads
    wide = _heads(build, x.sources, heads, columns)
    scores = _scores(build, wide)
    own = _scores(build, _heads(build, x.destinations, heads, columns) if x.destinations else wide)
    rowptr, col = _rows(build, hop)
    both = build.op(Sddmm("add"), scores, own if x.destinations else _destinations(build, own, hop), rowptr, col)
    shares = build.op(EdgeSoftmax(), build.elementwise("LeakyRelu", both, alpha=0.2), rowptr)
    summed = build.op(Spmm(), wide, rowptr, col, shares)
    return build.reshape(summed, hop.num_dst, heads * columns)


def _heads(build: Builder, x: str, heads: int, columns: int) -> str:
    return build.reshape(linear(build, x, heads * columns), build.shape(x)[0], heads, columns)


def _scores(build: Builder, wide: str) -> str:
    """One number per row and head: its product with a vector."""
    rows, heads, columns = build.shape(wide)
    weighed = build.mul(wide, _weights(build, 1, heads, columns))
    axes = build.constant(np.array([2], np.int64), "axes")
    return build.onnx("ReduceSum", weighed, axes, shape=(rows, heads), keepdims=0)


LAYERS: Mapping[str, Layer] = {"sage": _sage, "gcn": _gcn, "gat": _gat}
"""The layers of the networks, by name."""


def linear(build: Builder, x: str, columns: int) -> str:
    """x W + b."""
    return build.op(Gemm(), x, _weights(build, build.shape(x)[1], columns), _weights(build, columns))


def _weights(build: Builder, *shape: int) -> str:
    """A constant that takes no memory, whatever its size: it is priced, never computed with."""
    return build.constant(np.broadcast_to(np.float32(1), shape), "weight")


def _rows(build: Builder, hop: Edges) -> tuple[str, str]:
    return build.constant(hop.rowptr, "rowptr"), build.constant(hop.col, "col")


def _mean(build: Builder, x: str, hop: Edges) -> str:
    scale = 1 / np.maximum(np.diff(hop.rowptr), 1)
    rowptr, col = _rows(build, hop)
    return build.op(Spmm(), x, rowptr, col, "", build.constant(scale.astype(np.float32), "row_scale"))


def _destinations(build: Builder, x: str, hop: Edges) -> str:
    """The rows of the destinations, a view of the first rows."""
    return build.slice(x, 0, 0, hop.num_dst)
