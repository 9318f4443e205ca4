"""Graph networks over the hops of a mini-batch, as DGL's blocks have them: a bipartite graph a layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from pimflow.ir import Builder, EdgeSoftmax, Gemm, Graph, Sddmm, Spmm
from pimflow.sparse import Graph as Edges
from pimflow.sparse.sampling import Batch


@dataclass(frozen=True)
class Network:
    """What a network is made of.

    Args:
        kind: one of `LAYERS`.
        features, hidden, classes: columns that it reads, has between layers, and writes.
        heads: of attention, for `gat`: hidden layers have so many times `hidden` columns.
    """

    kind: str
    features: int
    hidden: int
    classes: int
    heads: int = 4

    def over(self, batch: Batch) -> Graph:
        """The forward pass over a batch, a layer a hop: logits of the vertices that are trained."""
        build = Builder(self.kind)
        x = build.input(len(batch.vertices), self.features, name="x")
        for number, hop in enumerate(batch.hops, 1):
            last = number == len(batch.hops)
            x = LAYERS[self.kind](build, x, hop, self, self.classes if last else self.hidden)
            x = x if last else build.relu(x)
        return build.graph(x)


Layer = Callable[[Builder, str, Edges, Network, int], str]


def _sage(build: Builder, x: str, hop: Edges, network: Network, columns: int) -> str:
    """GraphSAGE with means (Hamilton et al., NeurIPS 2017): W1 x + W2 mean(neighbours) + b."""
    own, mean = _destinations(build, x, hop), _mean(build, x, hop)
    return build.add(_linear(build, own, columns), _linear(build, mean, columns))


def _gcn(build: Builder, x: str, hop: Edges, network: Network, columns: int) -> str:
    """A convolution over means, whichever of product and mean is first makes fewer columns of it."""
    narrow = columns < build.shape(x)[1]
    if narrow:
        return _mean(build, _linear(build, x, columns), hop)
    return _linear(build, _mean(build, x, hop), columns)


def _gat(build: Builder, x: str, hop: Edges, network: Network, columns: int) -> str:
    """Attention (Velickovic et al., ICLR 2018): heads of `columns` each, beside one another or, of classes, one."""
    heads = 1 if columns == network.classes else network.heads
    rows = build.shape(x)[0]
    wide = build.reshape(_linear(build, x, heads * columns), rows, heads, columns)
    ends = []
    for _ in range(2):
        weighed = build.mul(wide, _weights(build, 1, heads, columns))
        axes = build.constant(np.array([2], np.int64), "axes")
        ends.append(build.onnx("ReduceSum", weighed, axes, shape=(rows, heads), keepdims=0))
    rowptr, col = _rows(build, hop)
    scores = build.op(Sddmm("add"), ends[0], _destinations(build, ends[1], hop), rowptr, col)
    shares = build.op(EdgeSoftmax(), build.elementwise("LeakyRelu", scores, alpha=0.2), rowptr)
    summed = build.op(Spmm(), wide, rowptr, col, shares)
    return build.reshape(summed, hop.num_dst, heads * columns)


LAYERS: Mapping[str, Layer] = {"sage": _sage, "gcn": _gcn, "gat": _gat}
"""The networks that there are, by name: a layer of each."""


def _linear(build: Builder, x: str, columns: int) -> str:
    """x W + b."""
    return build.op(Gemm(), x, _weights(build, build.shape(x)[1], columns), _weights(build, columns))


def _weights(build: Builder, *shape: int) -> str:
    """A constant that takes no memory, whatever its size: it is priced, not computed with."""
    return build.constant(np.broadcast_to(np.float32(1), shape), "weight")


def _rows(build: Builder, hop: Edges) -> tuple[str, str]:
    return build.constant(hop.rowptr, "rowptr"), build.constant(hop.col, "col")


def _mean(build: Builder, x: str, hop: Edges) -> str:
    scale = 1 / np.maximum(np.diff(hop.rowptr), 1)
    rowptr, col = _rows(build, hop)
    return build.op(Spmm(), x, rowptr, col, "", build.constant(scale.astype(np.float32), "row_scale"))


def _destinations(build: Builder, x: str, hop: Edges) -> str:
    """The first rows are the destinations': a view."""
    return build.slice(x, 0, 0, hop.num_dst)
