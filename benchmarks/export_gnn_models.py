"""Exports small GNNs of PyTorch Geometric to tests/data/gnn, with both of PyTorch's exporters.

    pip install torch==2.13.0 torch_geometric==2.8.0 onnx onnxscript numpy
    python benchmarks/export_gnn_models.py [NAME ...]

The files are inputs of tests/frontend/recovery/test_recover.py; only this script needs PyTorch. Weights are seeded.
"""

from __future__ import annotations

import argparse
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import torch
import torch_geometric.nn as gnn
from export_torch_models import without_origin
from torch import Tensor, nn
from torch_geometric.utils import scatter, softmax

FOLDER = Path(__file__).parent.parent / "tests" / "data" / "gnn"
VERTICES, EDGES, RELATIONS, GRAPHS = 64, 256, 3, 4
FEATURES, HIDDEN, CLASSES = 12, 16, 5


class Layers(nn.Module):
    """Graph layers with ReLU between them; `extra` (weights or types of the edges) goes to all of them."""

    def __init__(self, *layers: nn.Module, norm: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norm = nn.BatchNorm1d(HIDDEN) if norm else None

    def forward(self, x: Tensor, edge_index: Tensor, extra: Tensor | None = None) -> Tensor:
        given = () if extra is None else (extra,)
        for index, layer in enumerate(self.layers):
            x = layer(x, edge_index, *given)
            if index < len(self.layers) - 1:
                x = torch.relu(x if self.norm is None else self.norm(x))
        return x


class EdgeAttributes(nn.Module):
    """Attention that reads features of the edges."""

    def __init__(self, layer: Callable[..., nn.Module], **options: Any) -> None:
        super().__init__()
        self.layer = layer(FEATURES, 4, heads=2, edge_dim=3, **options)

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        return torch.log_softmax(self.layer(x, edge_index, edge_attr), -1)


class Pooled(nn.Module):
    """One number for every graph of a batch; the assignment of vertices to graphs stays an input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = gnn.GraphConv(FEATURES, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        return gnn.global_mean_pool(self.layer(x, edge_index), batch, GRAPHS)


class Added(nn.Module):
    """A sum over edges in both directions, written with PyTorch's own operations."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, HIDDEN), nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        both = torch.cat([edge_index, edge_index.flip(0)], 1)
        h = self.first(x)
        return self.last(torch.relu(torch.zeros_like(h).index_add(0, both[1], h[both[0]])))


class TypedAttention(nn.Module):
    """Keys and values by type of edge, as in a heterogeneous graph transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(FEATURES, HIDDEN)
        self.key, self.value = (nn.Parameter(torch.randn(RELATIONS, FEATURES, HIDDEN) / 4) for _ in range(2))

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:
        source, target = edge_index[0], edge_index[1]
        rows = x[source].unsqueeze(1)
        key, value = (torch.bmm(rows, w[edge_type]).view(-1, 4, HIDDEN // 4) for w in (self.key, self.value))
        logits = (self.query(x)[target].view(-1, 4, HIDDEN // 4) * key).sum(-1)
        share = softmax(logits, target, num_nodes=x.size(0)).unsqueeze(-1)
        return scatter((share * value).view(-1, HIDDEN), target, 0, dim_size=x.size(0))


def mlp(i: int, o: int) -> nn.Module:
    """The MLP that GIN applies to a sum."""
    return nn.Sequential(nn.Linear(i, o), nn.ReLU(), nn.Linear(o, o))


def two(layer: Callable[..., nn.Module], **options: Any) -> Callable[[], nn.Module]:
    """Two layers of a kind."""
    return lambda: Layers(layer(FEATURES, HIDDEN, **options), layer(HIDDEN, CLASSES, **options))


def attention(layer: Callable[..., nn.Module], **options: Any) -> Callable[[], nn.Module]:
    """A layer with four heads and one with a single head."""
    return lambda: Layers(layer(FEATURES, 4, heads=4, **options), layer(HIDDEN, CLASSES, heads=1, **options))


def edge_convolution() -> nn.Module:
    """An MLP over both ends of every edge."""
    return Layers(gnn.EdgeConv(mlp(2 * FEATURES, CLASSES), aggr="mean"))


def gine() -> nn.Module:
    """GIN that adds features of the edges."""
    return Layers(*(gnn.GINEConv(mlp(i, o), edge_dim=3) for i, o in ((FEATURES, HIDDEN), (HIDDEN, CLASSES))))


def gin() -> nn.Module:
    """Two layers of GIN with batch norm."""
    return Layers(gnn.GINConv(mlp(FEATURES, HIDDEN)), gnn.GINConv(mlp(HIDDEN, CLASSES), train_eps=True), norm=True)


@dataclass(frozen=True)
class Export:
    """A network, its additional edge inputs, and how it is exported."""

    build: Callable[[], nn.Module]
    opset: int
    dynamo: bool = False
    extra: str = ""
    static: bool = False


gcn, sage = two(gnn.GCNConv), two(gnn.SAGEConv)
weighted, rgcn = two(gnn.GraphConv), two(gnn.RGCNConv, num_relations=RELATIONS)
EXPORTS = {
    "gcn-ts": Export(gcn, 17),
    "gcn-ts-16": Export(gcn, 16),
    "gcn-dynamo": Export(gcn, 20, dynamo=True),
    "gcn-dynamo-18": Export(gcn, 18, dynamo=True),
    "gcn-static-ts": Export(gcn, 17, static=True),
    "gcn-static-dynamo": Export(gcn, 20, dynamo=True, static=True),
    "gcn-prenorm-ts": Export(two(gnn.GCNConv, normalize=False), 17, extra="edge_weight"),
    "gcn-prenorm-dynamo": Export(two(gnn.GCNConv, normalize=False), 20, dynamo=True, extra="edge_weight"),
    "gcn-weighted-ts": Export(gcn, 17, extra="edge_weight"),
    "gcn-weighted-dynamo": Export(gcn, 20, dynamo=True, extra="edge_weight"),
    "gin-ts": Export(gin, 17),
    "gin-dynamo": Export(gin, 20, dynamo=True),
    "sage-sum-ts": Export(two(gnn.SAGEConv, aggr="sum"), 17),
    "sage-sum-dynamo": Export(two(gnn.SAGEConv, aggr="sum"), 20, dynamo=True),
    "sage-mean-ts": Export(sage, 17),
    "sage-mean-dynamo": Export(sage, 20, dynamo=True),
    "sage-mean-static-dynamo": Export(sage, 18, dynamo=True, static=True),
    "sage-max-dynamo": Export(two(gnn.SAGEConv, aggr="max"), 20, dynamo=True),
    "gat-ts": Export(attention(gnn.GATConv), 17),
    "gat-dynamo": Export(attention(gnn.GATConv, add_self_loops=False), 20, dynamo=True),
    "gatv2-ts": Export(attention(gnn.GATv2Conv), 17),
    "gatv2-dynamo": Export(attention(gnn.GATv2Conv, add_self_loops=False), 20, dynamo=True),
    "gat-edges-ts": Export(lambda: EdgeAttributes(gnn.GATConv, add_self_loops=False), 17, extra="edge_attr"),
    "transformer-ts": Export(attention(gnn.TransformerConv), 17),
    "transformer-dynamo": Export(attention(gnn.TransformerConv), 20, dynamo=True),
    "transformer-edges-dynamo": Export(lambda: EdgeAttributes(gnn.TransformerConv), 20, dynamo=True, extra="edge_attr"),
    "graphconv-ts": Export(weighted, 17),
    "graphconv-weighted-dynamo": Export(weighted, 20, dynamo=True, extra="edge_weight"),
    "sgc-ts": Export(lambda: Layers(gnn.SGConv(FEATURES, CLASSES, K=2)), 17),
    "sgc-dynamo": Export(lambda: Layers(gnn.SGConv(FEATURES, CLASSES, K=2)), 19, dynamo=True),
    "tag-ts": Export(lambda: Layers(gnn.TAGConv(FEATURES, CLASSES, K=2)), 17),
    "tag-dynamo": Export(lambda: Layers(gnn.TAGConv(FEATURES, CLASSES, K=2)), 20, dynamo=True),
    "rgcn-ts": Export(rgcn, 17, extra="edge_type"),
    "rgcn-fast-sum-ts": Export(two(gnn.FastRGCNConv, num_relations=RELATIONS, aggr="sum"), 17, extra="edge_type"),
    "rgcn-fast-mean-ts": Export(two(gnn.FastRGCNConv, num_relations=RELATIONS), 17, extra="edge_type"),
    "rgcn-fast-mean-dynamo": Export(two(gnn.FastRGCNConv, num_relations=RELATIONS), 20, dynamo=True, extra="edge_type"),
    "added-dynamo": Export(Added, 20, dynamo=True),
    "appnp-ts": Export(lambda: Layers(gnn.GCNConv(FEATURES, CLASSES), gnn.APPNP(3, 0.1)), 17),
    "arma-ts": Export(lambda: Layers(gnn.ARMAConv(FEATURES, CLASSES, num_stacks=2, num_layers=2)), 17),
    "cheb-weighted-ts": Export(lambda: Layers(gnn.ChebConv(FEATURES, CLASSES, K=3)), 17, extra="edge_weight"),
    "edgeconv-ts": Export(edge_convolution, 17),
    "film-ts": Export(lambda: Layers(gnn.FiLMConv(FEATURES, CLASSES)), 17),
    "film-typed-ts": Export(lambda: Layers(gnn.FiLMConv(FEATURES, 8, RELATIONS)), 17, extra="edge_type"),
    "rgcn-fast-blocks-ts": Export(
        lambda: Layers(gnn.FastRGCNConv(FEATURES, 8, RELATIONS, num_blocks=4)), 17, extra="edge_type"
    ),
    "gine-edges-ts": Export(gine, 17, extra="edge_attr"),
    "pool-mean-ts": Export(Pooled, 17, extra="batch"),
    "rgat-ts": Export(lambda: Layers(gnn.RGATConv(FEATURES, 8, RELATIONS, heads=2)), 17, extra="edge_type"),
    "rgat-within-ts": Export(
        lambda: Layers(gnn.RGATConv(FEATURES, 8, RELATIONS, heads=2, attention_mechanism="within-relation")),
        17,
        extra="edge_type",
    ),
    "sage-min-ts": Export(lambda: Layers(gnn.SAGEConv(FEATURES, CLASSES, aggr="min")), 17),
    "typed-attention-ts": Export(TypedAttention, 17, extra="edge_type"),
}


def inputs_of(export: Export) -> dict[str, Tensor]:
    """Random inputs of the sizes that a static export keeps."""
    extras = {
        "edge_weight": torch.rand(EDGES),
        "edge_type": torch.randint(0, RELATIONS, (EDGES,)),
        "edge_attr": torch.randn(EDGES, 3),
        "batch": torch.arange(VERTICES) % GRAPHS,
    }
    given = {"x": torch.randn(VERTICES, FEATURES), "edge_index": torch.randint(0, VERTICES, (2, EDGES))}
    return given | ({export.extra: extras[export.extra]} if export.extra else {})


def write(name: str, export: Export) -> Path:
    """Export one network."""
    torch.manual_seed(zlib.crc32(name.encode()))
    path = FOLDER / f"{name}.onnx"
    model, inputs = export.build().eval(), inputs_of(export)
    extra = "num_nodes" if export.extra == "batch" else "num_edges"
    sizes = {"x": {0: "num_nodes"}, "edge_index": {1: "num_edges"}, export.extra: {0: extra}}
    axes = {key: {} if export.static else sizes[key] for key in inputs}
    options: dict[str, Any] = {"input_names": list(inputs), "output_names": ["out"]}
    if export.dynamo:
        named = tuple({axis: torch.export.Dim(size) for axis, size in entry.items()} for entry in axes.values())
        options |= {"dynamic_shapes": None if export.static else named}
        options |= {"external_data": False, "verbose": False}
    else:
        rows = {} if export.extra == "batch" else {"out": {0: "num_nodes"}}
        options["dynamic_axes"] = {} if export.static else axes | rows
    torch.onnx.export(model, tuple(inputs.values()), path, opset_version=export.opset, dynamo=export.dynamo, **options)
    onnx.save(without_origin(onnx.load(path)), path)
    return path


def main() -> None:
    """Write all networks, or those named."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description="export small GNNs to tests/data/gnn")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(EXPORTS)}")
    FOLDER.mkdir(exist_ok=True)
    for name in parser.parse_args().names or EXPORTS:
        path = write(name, EXPORTS[name])
        print(f"{path.stat().st_size:8,} {path.name}")


if __name__ == "__main__":
    main()
