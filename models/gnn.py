"""Graph networks as PyTorch's exporters write them, and a graph like Cora to run them on.

ONNX has no sparse product: an aggregation is a Gather of one row per edge and a ScatterElements into rows of
destinations, with an index that is expanded to the shape of the features of all edges.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from .writer import Writer, settled

Ints = npt.NDArray[np.int64]

FEATURES, CLASSES = 1433, 7
HIDDEN = 16
HEADS, PER_HEAD = 8, 8
RELATIONS = 3
ENCODED = 32  # features after the first product of relational attention, whose matrices are copied for every edge

VERTICES, PAIRS = 2708, 5278
"""The size of Cora (Sen et al., AI Magazine 29, 2008): papers, and citations, which count in both directions."""
_WITHIN = 0.81  # share of Cora's citations that stay within a class


@dataclass(frozen=True, eq=False)
class Edges:
    """A graph: sources and destinations [2, E], the number of vertices, and the type of every edge."""

    index: Ints
    vertices: int
    types: Ints


def citations() -> Edges:
    """A random graph of Cora's size: classes that mostly cite themselves, and degrees that are skewed like Cora's.

    It is the same on every machine, because it only uses uniform numbers from numpy's generator.
    """
    rng = np.random.default_rng(0)
    classes = np.minimum((rng.random(VERTICES) * CLASSES).astype(np.int64), CLASSES - 1)
    shares = settled((1 - rng.random(VERTICES)) ** -0.5)  # a Pareto distribution: few papers are cited by many
    everyone = (np.arange(VERTICES), np.cumsum(shares))
    members = [np.flatnonzero(classes == kind) for kind in range(CLASSES)]
    groups = [(ids, np.cumsum(shares[ids])) for ids in members]
    pairs: list[tuple[int, int]] = []
    while len(pairs) < PAIRS:
        source = _drawn(everyone, rng.random())
        target = _drawn(groups[classes[source]] if rng.random() < _WITHIN else everyone, rng.random())
        if source != target:
            pairs.append((source, target))
    one_way = np.array(pairs, np.int64).T
    types = (rng.random(PAIRS) * RELATIONS).astype(np.int64)
    return Edges(np.concatenate([one_way, one_way[::-1]], axis=1), VERTICES, np.concatenate([types, types]))


def _drawn(group: tuple[Ints, npt.NDArray[np.float64]], number: float) -> int:
    """The member of a group at a position in the cumulative distribution of its shares."""
    members, sums = group
    return int(members[np.searchsorted(sums, number * sums[-1])])


class _Network:
    """A graph network under construction: x [N, F] and edge_index [2, E], in the forms of PyTorch's exporters."""

    def __init__(self, net: Writer, features: int = FEATURES) -> None:
        self.net = net
        self.x = net.value_input("x", ("num_nodes", features))
        self.edges = net.value_input("edge_index", (2, "num_edges"), TensorProto.INT64)
        self.count = net.node("Shape", "num_nodes_of_x", self.x, start=0, end=1)

    def ends(self, edges: str, name: str) -> tuple[str, str]:
        """Sources and destinations of edges [2, E]."""
        first, second = self.net.shared("first", np.int64(0)), self.net.shared("second", np.int64(1))
        source = self.net.node("Gather", f"{name}.source", edges, first, axis=0)
        return source, self.net.node("Gather", f"{name}.destination", edges, second, axis=0)

    def rows(self, x: str, index: str, name: str) -> str:
        """x[index]."""
        flat = self.net.node("Reshape", f"{name}.flat", index, self.net.integers("flat_shape", -1))
        return self.net.node("Gather", name, x, flat, axis=0)

    def scatter(
        self, values: str, index: str, sizes: tuple[int, ...], name: str, fill: float = 0.0, by: str = "add"
    ) -> str:
        """Values of edges [E, *sizes], reduced by destination."""
        column = self.net.integers(f"column_{len(sizes)}", -1, *(1,) * len(sizes))
        shape = self.net.node("Shape", f"{name}.shape", values)
        spread = self.net.node(
            "Expand", f"{name}.index", self.net.node("Reshape", f"{name}.column", index, column), shape
        )
        base = self.filled(sizes, f"{name}.base", 0.0)
        if fill:
            filler = self.net.node("Expand", f"{name}.filler", self.net.scalar("lowest", fill), shape)
            base = self.net.node("ScatterElements", f"{name}.start", base, spread, filler, axis=0, reduction="min")
        return self.net.node("ScatterElements", name, base, spread, values, axis=0, reduction=by)

    def filled(self, sizes: tuple[int, ...], name: str, value: float) -> str:
        """A value for every vertex, [N, *sizes]."""
        width = [self.net.integers(f"sizes_{'_'.join(map(str, sizes))}", *sizes)] if sizes else []
        shape = self.net.node("Concat", f"{name}.dims", self.count, *width, axis=0)
        tensor = onnx.helper.make_tensor("value", TensorProto.FLOAT, [1], [value])
        return self.net.node("ConstantOfShape", name, shape, value=tensor)

    def linear(self, x: str, inputs: int, outputs: int, name: str, *, bias: bool = True) -> str:
        """x W^T + b."""
        std = 1.0 / np.sqrt(inputs)
        weight = self.net.weight(f"{name}.weight", (outputs, inputs), std)
        biases = [self.net.weight(f"{name}.bias", (outputs,), 0.1)] if bias else []
        return self.net.node("Gemm", name, x, weight, *biases, transB=1)

    def biased(self, x: str, outputs: int, name: str) -> str:
        """x + b."""
        return self.net.node("Add", f"{name}.biased", x, self.net.weight(f"{name}.bias", (outputs,), 0.1))

    def relu(self, x: str, name: str) -> str:
        """max(x, 0)."""
        return self.net.node("Relu", f"{name}.relu", x)

    def shares(self, logits: str, destination: str, heads: int, name: str) -> str:
        """Softmax of logits [E, H] over the edges into each vertex, as [E, H, 1]."""
        lowest = float(np.finfo(np.float32).min)
        most = self.scatter(logits, destination, (heads,), f"{name}.most", lowest, "max")
        shifted = self.net.node("Sub", f"{name}.shifted", logits, self.rows(most, destination, f"{name}.rows_most"))
        powers = self.net.node("Exp", f"{name}.exp", shifted)
        sums = self.scatter(powers, destination, (heads,), f"{name}.sums")
        alpha = self.net.node("Div", f"{name}.alpha", powers, self.rows(sums, destination, f"{name}.rows_sums"))
        return self.net.node("Unsqueeze", f"{name}.alphas", alpha, self.net.integers("last_axis", -1))

    def heads(self, x: str, heads: int, size: int, name: str) -> str:
        """[..., H * C] as [..., H, C]."""
        return self.net.node("Reshape", name, x, self.net.integers(f"heads_{heads}_{size}", -1, heads, size))

    def flat(self, x: str, columns: int, name: str) -> str:
        """[..., H, C] as [..., H * C]."""
        return self.net.node("Reshape", f"{name}.flat", x, self.net.integers(f"flat_{columns}", -1, columns))

    def by_type(self, rows: str, kinds: str, weight: str, name: str, axis: int = 1) -> str:
        """Rows of edges, each times the matrix of its type, with one copy of a matrix per edge."""
        picked = self.net.node("Gather", f"{name}.matrices", weight, kinds, axis=0)
        at = self.net.integers(f"axis_{axis}", axis)
        column = self.net.node("Unsqueeze", f"{name}.row", rows, at)
        return self.net.node("Squeeze", name, self.net.node("MatMul", f"{name}.product", column, picked), at)

    def finish(self, x: str, columns: int = CLASSES) -> onnx.ModelProto:
        """The finished model, whose output is the scores of classes."""
        self.net.node("Identity", "scores", x, output="logits")
        self.net.value_output("logits", ("num_nodes", columns))
        return self.net.finish()


def gcn(net: Writer) -> onnx.ModelProto:
    """Two layers of D^-1/2 (A + I) D^-1/2 X W (Kipf and Welling, ICLR 2017), the norm computed in the model."""
    network = _Network(net)
    source, destination = network.ends(network.edges, "given")
    loops = net.node("Equal", "is_loop", source, destination)
    kept = net.node(
        "Transpose", "kept.pairs", net.node("NonZero", "kept", net.node("Not", "is_no_loop", loops)), perm=[1, 0]
    )
    kept = net.node("Squeeze", "kept.index", kept, net.integers("axis_one", 1))
    edges = net.node("Gather", "without_loops", network.edges, kept, axis=1)
    limit = net.node("Squeeze", "num_nodes", network.count)
    ids = net.node("Range", "ids", net.shared("first", np.int64(0)), limit, net.shared("second", np.int64(1)))
    row = net.node("Reshape", "ids.row", ids, net.integers("row_shape", 1, -1))
    edges = net.node("Concat", "with_loops", edges, net.node("Tile", "loops", row, net.integers("twice", 2, 1)), axis=1)
    source, destination = network.ends(edges, "all")
    size = net.node("Shape", "num_all_edges", destination)
    ones = net.node("Expand", "ones", net.scalar("one", 1.0), size)
    degree = network.scatter(ones, destination, (), "degree")
    root = net.node("Pow", "degree.root", degree, net.scalar("minus_half", -0.5))
    none = net.node("Equal", "has_no_degree", root, net.scalar("infinity", float("inf")))
    root = net.node("Where", "degree.norm", none, net.scalar("zero", 0.0), root)
    norm = net.node(
        "Mul", "norm", network.rows(root, source, "norm.source"), network.rows(root, destination, "norm.destination")
    )
    weight = net.node("Reshape", "norm.column", norm, net.integers("column_1", -1, 1))
    x, width = network.x, FEATURES
    for layer, outputs in enumerate((HIDDEN, CLASSES), start=1):
        name = f"conv{layer}"
        x = network.linear(x, width, outputs, f"{name}.lin", bias=False)
        messages = net.node("Mul", f"{name}.messages", weight, network.rows(x, source, f"{name}.rows"))
        x = network.biased(network.scatter(messages, destination, (outputs,), f"{name}.sum"), outputs, name)
        x, width = (network.relu(x, name) if layer == 1 else x), outputs
    return network.finish(x)


def sage(net: Writer) -> onnx.ModelProto:
    """Two layers of GraphSAGE with the mean of neighbours (Hamilton et al., NeurIPS 2017)."""
    network = _Network(net)
    source, destination = network.ends(network.edges, "given")
    ones = net.node("Expand", "ones", net.scalar("one", 1.0), net.node("Shape", "num_all_edges", destination))
    count = net.node("Max", "count", network.scatter(ones, destination, (), "degree"), net.scalar("one", 1.0))
    column = net.node("Reshape", "count.column", count, net.integers("column_1", -1, 1))
    x, width = network.x, FEATURES
    for layer, outputs in enumerate((HIDDEN, CLASSES), start=1):
        name = f"conv{layer}"
        total = network.scatter(network.rows(x, source, f"{name}.rows"), destination, (width,), f"{name}.sum")
        spread = net.node("Expand", f"{name}.count", column, net.node("Shape", f"{name}.shape", total))
        mean = net.node("Div", f"{name}.mean", total, spread)
        own = network.linear(x, width, outputs, f"{name}.lin_r", bias=False)
        x = net.node("Add", name, network.linear(mean, width, outputs, f"{name}.lin_l"), own)
        x, width = (network.relu(x, name) if layer == 1 else x), outputs
    return network.finish(x)


def gin(net: Writer) -> onnx.ModelProto:
    """Two layers of GIN with two-layer perceptrons (Xu et al., ICLR 2019)."""
    network = _Network(net)
    source, destination = network.ends(network.edges, "given")
    x, width = network.x, FEATURES
    for layer, outputs in enumerate((HIDDEN, CLASSES), start=1):
        name = f"conv{layer}"
        total = network.scatter(network.rows(x, source, f"{name}.rows"), destination, (width,), f"{name}.sum")
        x = net.node("Add", name, total, net.node("Mul", f"{name}.own", x, net.scalar("one", 1.0)))
        x = network.relu(network.linear(x, width, HIDDEN, f"{name}.nn.0"), f"{name}.nn")
        x = network.linear(x, HIDDEN, outputs, f"{name}.nn.2")
        x, width = (network.relu(x, name) if layer == 1 else x), outputs
    return network.finish(x)


def gat(net: Writer) -> onnx.ModelProto:
    """Graph attention: one layer with eight heads and one with a single head (Velickovic et al., ICLR 2018)."""
    network = _Network(net)
    source, destination = network.ends(network.edges, "given")
    x, width = network.x, FEATURES
    for layer, (heads, size) in enumerate(((HEADS, PER_HEAD), (1, CLASSES)), start=1):
        name = f"conv{layer}"
        x = network.linear(x, width, heads * size, f"{name}.lin", bias=False)
        x = net.node("Reshape", f"{name}.heads", x, net.integers(f"heads_{heads}_{size}", -1, heads, size))
        ends = []
        for index, end in ((source, "src"), (destination, "dst")):
            attention = net.weight(f"{name}.att_{end}.weight", (1, heads, size), 1.0)
            product = net.node("Mul", f"{name}.mul_{end}", x, attention)
            score = net.node("ReduceSum", f"{name}.score_{end}", product, net.integers("last_axis", -1), keepdims=0)
            ends.append(network.rows(score, index, f"{name}.rows_{end}"))
        logits = net.node("LeakyRelu", f"{name}.logits", net.node("Add", f"{name}.ends", *ends), alpha=0.2)
        weights = network.shares(logits, destination, heads, name)
        messages = net.node("Mul", f"{name}.messages", weights, network.rows(x, source, f"{name}.rows"))
        x = network.scatter(messages, destination, (heads, size), f"{name}.sum")
        x = net.node("Reshape", f"{name}.flat", x, net.integers(f"flat_{heads * size}", -1, heads * size))
        x = network.biased(x, heads * size, name)
        x, width = (network.relu(x, name) if layer == 1 else x), heads * size
    return network.finish(x)


def rgcn(net: Writer) -> onnx.ModelProto:
    """Two layers of R-GCN, a loop over three relations (Schlichtkrull et al., ESWC 2018)."""
    network = _Network(net)
    kinds = net.value_input("edge_type", ("num_edges",), TensorProto.INT64)
    ends = [_of_relation(network, kinds, relation) for relation in range(RELATIONS)]
    x, width = network.x, FEATURES
    for layer, outputs in enumerate((HIDDEN, CLASSES), start=1):
        name = f"conv{layer}"
        total = network.filled((outputs,), f"{name}.zeros", 0.0)
        for relation, (source, destination, count) in enumerate(ends):
            part = f"{name}.{relation}"
            summed = network.scatter(network.rows(x, source, f"{part}.rows"), destination, (width,), f"{part}.sum")
            spread = net.node("Expand", f"{part}.count", count, net.node("Shape", f"{part}.shape", summed))
            mean = net.node("Div", f"{part}.mean", summed, spread)
            weight = net.weight(f"{part}.weight", (width, outputs), 1.0 / np.sqrt(width))
            total = net.node("Add", f"{part}.total", total, net.node("MatMul", f"{part}.product", mean, weight))
        x = net.node("Add", name, total, network.linear(x, width, outputs, f"{name}.root"))
        x, width = (network.relu(x, name) if layer == 1 else x), outputs
    return network.finish(x)


def _of_relation(network: _Network, kinds: str, relation: int) -> tuple[str, str, str]:
    """Sources and destinations of the edges of one type, and as a column the in-degree of each vertex (at least 1)."""
    net, name = network.net, f"relation{relation}"
    chosen = net.node("Equal", f"{name}.mask", kinds, net.shared(f"type_{relation}", np.int64(relation)))
    pairs = net.node("Transpose", f"{name}.pairs", net.node("NonZero", f"{name}.nonzero", chosen), perm=[1, 0])
    index = net.node("Squeeze", f"{name}.index", pairs, net.integers("axis_one", 1))
    edges = net.node("Gather", f"{name}.edges", network.edges, index, axis=1)
    source, destination = network.ends(edges, name)
    ones = net.node("Expand", f"{name}.ones", net.scalar("one", 1.0), net.node("Shape", f"{name}.size", destination))
    count = net.node(
        "Max", f"{name}.count", network.scatter(ones, destination, (), f"{name}.degree"), net.scalar("one", 1.0)
    )
    return source, destination, net.node("Reshape", f"{name}.column", count, net.integers("column_1", -1, 1))


def rgat(net: Writer) -> onnx.ModelProto:
    """Relational graph attention across all relations (Busbridge et al., 2019), as in PyTorch Geometric's RGATConv.

    A linear layer first reduces words to few features; then follow a layer with four heads and one with a single head.
    """
    network = _Network(net)
    kinds = net.value_input("edge_type", ("num_edges",), TensorProto.INT64)
    x, width = network.relu(network.linear(network.x, FEATURES, ENCODED, "encoder"), "encoder"), ENCODED
    for layer, (heads, size) in enumerate(((4, PER_HEAD), (1, CLASSES)), start=1):
        name = f"conv{layer}"
        x = _attended(network, x, kinds, width, (heads, size), RELATIONS, name)
        x, width = (network.relu(x, name) if layer == 1 else x), heads * size
    return network.finish(x)


def _attended(
    network: _Network, x: str, kinds: str, width: int, heads: tuple[int, int], relations: int, name: str
) -> str:
    """A layer of RGAT: both ends times the weights of the edge's type, a logit for each, messages from the sources."""
    net, columns = network.net, heads[0] * heads[1]
    source, destination = network.ends(network.edges, name)
    weight = net.weight(f"{name}.weight", (relations, width, columns), 1.0 / np.sqrt(width))
    ends, logits = [], []
    for index, end in ((destination, "q"), (source, "k")):
        made = network.by_type(network.rows(x, index, f"{name}.rows_{end}"), kinds, weight, f"{name}.typed_{end}")
        attention = net.weight(f"{name}.{end}.weight", (columns, heads[0]), 1.0 / np.sqrt(columns))
        logits.append(net.node("MatMul", f"{name}.score_{end}", made, attention))
        ends.append(made)
    score = net.node("LeakyRelu", f"{name}.logits", net.node("Add", f"{name}.ends", *logits), alpha=0.2)
    shares = network.shares(score, destination, heads[0], name)
    values = network.heads(ends[1], *heads, f"{name}.heads")
    messages = net.node("Mul", f"{name}.messages", shares, values)
    summed = network.flat(network.scatter(messages, destination, heads, f"{name}.sum"), columns, name)
    return network.biased(summed, columns, name)


def hgt(net: Writer) -> onnx.ModelProto:
    """Two layers of a heterogeneous graph transformer (Hu et al., WWW 2020), with papers as the only type of vertex.

    It follows PyTorch Geometric's HGTConv; the matrix of its relation is gathered for every edge.
    """
    network = _Network(net)
    kinds = net.value_input("edge_type", ("num_edges",), TensorProto.INT64)
    x = network.relu(network.linear(network.x, FEATURES, ENCODED, "encoder"), "encoder")
    for layer in (1, 2):
        name = f"conv{layer}"
        out = _transformed(network, x, kinds, ENCODED, (4, ENCODED // 4), RELATIONS, name)
        out = network.linear(_gelu(net, out, name), ENCODED, ENCODED, f"{name}.out")
        skip = net.node("Sigmoid", f"{name}.skip", net.weight(f"{name}.skip.weight", (1,), 1.0))
        left = net.node("Sub", f"{name}.rest", net.scalar("one", 1.0), skip)
        kept = net.node("Mul", f"{name}.kept", x, left)
        x = net.node("Add", name, net.node("Mul", f"{name}.new", out, skip), kept)
    return network.finish(network.linear(x, ENCODED, CLASSES, "classes"))


def _transformed(
    network: _Network, x: str, kinds: str, width: int, heads: tuple[int, int], relations: int, name: str
) -> str:
    """Attention of HGT: keys and values times a matrix per relation and head, with a prior for each."""
    net, columns = network.net, heads[0] * heads[1]
    source, destination = network.ends(network.edges, name)
    lines = {end: network.linear(x, width, columns, f"{name}.{end}") for end in ("k", "q", "v")}
    split = {end: network.heads(line, *heads, f"{name}.heads_{end}") for end, line in lines.items()}
    typed = {}
    for end in ("k", "v"):
        weight = net.weight(
            f"{name}.{end}_rel.weight", (relations, heads[0], heads[1], heads[1]), 1.0 / np.sqrt(heads[1])
        )
        rows = network.rows(split[end], source, f"{name}.rows_{end}")
        typed[end] = network.by_type(rows, kinds, weight, f"{name}.typed_{end}", axis=2)
    query = network.rows(split["q"], destination, f"{name}.rows_q")
    product = net.node("Mul", f"{name}.mul", query, typed["k"])
    dot = net.node("ReduceSum", f"{name}.dot", product, net.integers("last_axis", -1), keepdims=0)
    prior = net.node("Gather", f"{name}.priors", net.weight(f"{name}.p_rel.weight", (relations, heads[0]), 1.0), kinds)
    root = net.scalar(f"root_{heads[1]}", float(np.sqrt(heads[1])))
    logits = net.node("Div", f"{name}.logits", net.node("Mul", f"{name}.weighed", dot, prior), root)
    messages = net.node("Mul", f"{name}.messages", network.shares(logits, destination, heads[0], name), typed["v"])
    return network.flat(network.scatter(messages, destination, heads, f"{name}.sum"), columns, name)


def _gelu(net: Writer, x: str, name: str) -> str:
    """x (1 + erf(x / sqrt(2))) / 2."""
    erf = net.node("Erf", f"{name}.erf", net.node("Div", f"{name}.over", x, net.scalar("root_two", float(np.sqrt(2)))))
    half = net.node("Mul", f"{name}.half", x, net.scalar("half", 0.5))
    return net.node("Mul", f"{name}.gelu", half, net.node("Add", f"{name}.above", erf, net.scalar("one", 1.0)))


def relational_layer(net: Writer, kind: str, columns: int, relations: int, heads: int = 1) -> onnx.ModelProto:
    """A single layer with equally many input and output features: "rgcn" in its fast form, "rgat" or "hgt"."""
    network = _Network(net, columns)
    kinds = net.value_input("edge_type", ("num_edges",), TensorProto.INT64)
    if kind != "rgcn":
        layer = _attended if kind == "rgat" else _transformed
        split = (heads, columns // heads)
        return network.finish(layer(network, network.x, kinds, columns, split, relations, "conv"), columns)
    source, destination = network.ends(network.edges, "conv")
    weight = net.weight("conv.weight", (relations, columns, columns), 1.0 / np.sqrt(columns))
    messages = network.by_type(network.rows(network.x, source, "conv.rows"), kinds, weight, "conv.typed")
    summed = network.scatter(messages, destination, (columns,), "conv.sum")
    own = network.linear(network.x, columns, columns, "conv.root")
    return network.finish(net.node("Add", "conv", summed, own), columns)
