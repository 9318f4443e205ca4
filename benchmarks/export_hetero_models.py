"""Exports small heterogeneous GNNs of PyTorch Geometric to tests/data/gnn/hetero.

    pip install torch==2.13.0 torch_geometric==2.8.1 onnx onnxscript numpy
    python benchmarks/export_hetero_models.py

The files are inputs of tests/frontend/test_relation_binding.py; only this script needs PyTorch. Weights are seeded.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import onnx
import torch
import torch_geometric.nn as gnn
from export_gnn_models import FOLDER
from export_torch_models import without_origin
from torch import Tensor, nn

FEATURES = {"paper": 6, "author": 4}
VERTICES = {"paper": 20, "author": 15}
RELATIONS = {
    "cites": ("paper", "cites", "paper"),
    "writes": ("author", "writes", "paper"),
    "written": ("paper", "written", "author"),
}
HIDDEN, CLASSES = 8, 3


class Flat(nn.Module):
    """Wraps a network over dicts as one over tensors: features by kind of vertex, then one edge list per relation."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x_paper: Tensor, x_author: Tensor, cites: Tensor, writes: Tensor, written: Tensor) -> Tensor:
        edges = dict(zip(RELATIONS.values(), (cites, writes, written), strict=True))
        out: Tensor = self.inner({"paper": x_paper, "author": x_author}, edges)["paper"]
        return out


class Sage(nn.Module):
    """A homogeneous network that `to_hetero` converts."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = gnn.SAGEConv((-1, -1), HIDDEN), gnn.SAGEConv((-1, -1), CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.last(self.first(x, edge_index).relu(), edge_index)


class Attention(nn.Module):
    """The sum of one attention layer per relation."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {name: (FEATURES[name[0]], FEATURES[name[2]]) for name in RELATIONS.values()}
        self.layer = gnn.HeteroConv(
            {name: gnn.GATConv(size, 4, heads=2, add_self_loops=False) for name, size in sizes.items()}
        )

    def forward(self, x: dict[str, Tensor], edges: dict[tuple[str, str, str], Tensor]) -> Any:
        return self.layer(x, edges)


def by_index(layer: gnn.HeteroLinear, rows: Tensor, types: Tensor) -> Tensor:
    """HeteroLinear by index, as no exporter accepts its loop over row ranges with data-dependent bounds."""
    out = torch.bmm(rows.unsqueeze(1), layer.weight[types]).squeeze(1)
    return out if layer.bias is None else out + layer.bias[types]


def exportable(*, dynamo: bool) -> ExitStack:
    """A context in which HGTConv can be exported."""
    patches = ExitStack()
    patches.enter_context(patch.object(gnn.HeteroLinear, "forward", by_index))
    if not dynamo:  # traced sizes are tensors: `cumsum += N` in HGTConv would change offsets that were returned before
        patches.enter_context(patch.object(Tensor, "__iadd__", Tensor.__add__))
    return patches


def transformer() -> nn.Module:
    """A heterogeneous graph transformer, with a separate prior for every relation and head."""
    layer = gnn.HGTConv(FEATURES, HIDDEN, (list(VERTICES), list(RELATIONS.values())), heads=2)
    for prior in layer.p_rel.values():
        nn.init.uniform_(prior)
    return layer


def networks() -> Iterator[tuple[str, nn.Module]]:
    """Networks over dicts, by name."""
    kinds = (list(VERTICES), list(RELATIONS.values()))
    first = (gnn.to_hetero(Sage(), kinds), Attention())
    yield from zip(("sage-ts", "gat-dynamo"), first, strict=True)
    yield "hgt-ts", transformer()
    yield "hgt-dynamo", transformer()


def main() -> None:
    """Write all networks."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    features = [torch.randn(count, FEATURES[kind]) for kind, count in VERTICES.items()]
    ends = [[torch.randint(0, VERTICES[kind], (30,)) for kind in name[::2]] for name in RELATIONS.values()]
    inputs = (*features, *map(torch.stack, ends))
    names = [*(f"x_{kind}" for kind in VERTICES), *RELATIONS]
    sizes = [{0: f"num_{kind}"} for kind in VERTICES] + [{1: f"num_{name}"} for name in RELATIONS]
    (FOLDER / "hetero").mkdir(exist_ok=True)
    for name, inner in networks():
        model, path = Flat(inner).eval(), FOLDER / "hetero" / f"{name}.onnx"
        model(*inputs)  # initialises lazy parameters, whose sizes depend on the data
        options: dict[str, Any] = {"dynamic_axes": dict(zip(names, sizes, strict=True)), "opset_version": 17}
        dynamo = name.endswith("dynamo")
        if dynamo:
            dims = tuple({axis: torch.export.Dim(size) for axis, size in entry.items()} for entry in sizes)
            options = {"dynamic_shapes": dims, "opset_version": 20, "external_data": False, "verbose": False}
        with exportable(dynamo=dynamo):
            torch.onnx.export(model, inputs, path, dynamo=dynamo, input_names=names, output_names=["out"], **options)
        onnx.save(without_origin(onnx.load(path)), path)
        print(f"{path.stat().st_size:8,} {path.name}")


if __name__ == "__main__":
    main()
