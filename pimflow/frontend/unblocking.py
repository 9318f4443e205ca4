"""Undoes the blocked channel layout that ONNX Runtime's optimiser uses for one CPU (its level "all").

Blocked channels are padded to whole blocks. The readers reveal the padding: weights that are 0, or a ReorderOutput that
drops it. It is removed again, so that the result is the original model before optimisation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from pimflow.ir import Array, Attributes, Graph, GraphEditor, Node, OnnxOp
from pimflow.onnxio.blocks import BLOCKED, channel_block, plain_weights

CONTRIB = "com.microsoft"
_MIN_OPSET = 11
"""The first opset in which Pad, Slice and Resize read their sizes as operands."""

_POOLS = frozenset({"MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"})
_SUPPORTED = frozenset({"Conv", "ReorderInput", "ReorderOutput", "Upsample", *_POOLS})
_ELEMENTWISE = frozenset(
    {
        "Add",
        "Clip",
        "Div",
        "Elu",
        "Erf",
        "Exp",
        "Gelu",
        "HardSigmoid",
        "HardSwish",
        "Identity",
        "LeakyRelu",
        "Max",
        "Min",
        "Mish",
        "Mul",
        "Neg",
        "QuickGelu",
        "Relu",
        "Selu",
        "Sigmoid",
        "Softplus",
        "Sub",
        "Sum",
        "Tanh",
    }
)
"""Elementwise operators, which do not depend on the layout."""


_PLAIN = ("", "Relu", "Sigmoid", "Tanh")
"""Activations without parameters."""


def unblocked(graph: Graph) -> Graph | None:
    """The graph without blocked channels; None if it has none, or contains unsupported uses of them.

    Args:
        graph: a graph of opaque nodes, with all shapes known.
    """
    if not any(_is_blocked(node) for node in graph.nodes) or graph.opset.get("", 0) < _MIN_OPSET:
        return None
    block = channel_block()
    blocked = _blocked_values(graph)
    if not block or blocked is None:
        return None
    return _Rewrite(graph, block, _extents(graph, blocked, block)).run()


def _is_blocked(node: Node) -> bool:
    return isinstance(node.op, OnnxOp) and node.op.domain == BLOCKED


def _kind(node: Node) -> str:
    return node.op.op_type if isinstance(node.op, OnnxOp) else ""


def _attributes(node: Node) -> dict[str, object]:
    assert isinstance(node.op, OnnxOp)
    return dict(node.op.attributes)


def _blocked_values(graph: Graph) -> frozenset[str] | None:
    """The values with blocked channels; None if a node that does not support blocks reads or writes some."""
    blocked: set[str] = set()
    for node in graph.nodes:
        reads = [name for name in node.inputs if name in blocked]
        if _is_blocked(node):
            known = _kind(node) in _SUPPORTED and all(
                graph.value(name).shape is not None for name in graph.activations(node)
            )
            weights = _kind(node) != "Conv" or all(graph.is_constant(name) for name in node.inputs[1:3] if name)
            if not known or not weights:
                return None
        elif reads and not _is_layout_independent(graph, node, blocked):
            return None
        if reads or (_is_blocked(node) and _kind(node) != "ReorderOutput"):
            blocked.update([] if _is_blocked(node) and _kind(node) == "ReorderOutput" else node.outputs)
    return None if blocked.intersection(graph.outputs) else frozenset(blocked)


def _is_layout_independent(graph: Graph, node: Node, blocked: set[str]) -> bool:
    """Whether a plain ONNX node computes the same on values with blocked channels as on others."""
    concat = _kind(node) == "Concat" and _attributes(node).get("axis") == 1
    sizes = [name for name in node.inputs if name and name not in blocked and len(graph.value(name).shape or ()) > 0]
    return (concat or _kind(node) in _ELEMENTWISE) and not sizes


def _is_depthwise(graph: Graph, node: Node) -> bool:
    out, inner = graph.shape(node.inputs[1])[:2]
    return inner == 1 and _attributes(node).get("group", 1) == out


class _Classes:
    """Equivalence classes of values with equal numbers of channels, each with the number needed."""

    def __init__(self) -> None:
        self._parents: dict[str, str] = {}
        self.needed: defaultdict[str, int] = defaultdict(int)

    def of(self, name: str) -> str:
        while name in self._parents:
            name = self._parents[name]
        return name

    def join(self, names: Sequence[str]) -> None:
        first, *others = {self.of(name): None for name in names}
        for other in others:
            self._parents[other] = first
            self.needed[first] = max(self.needed[first], self.needed.pop(other, 0))

    def need(self, name: str, channels: int) -> None:
        root = self.of(name)
        self.needed[root] = max(self.needed[root], channels)


def _extents(graph: Graph, blocked: frozenset[str], block: int) -> Mapping[str, int]:
    """For every blocked value, the number of channels without padding: as many as any reader needs."""
    classes = _Classes()
    for node in graph.nodes:
        kind, reads = _kind(node), [name for name in node.inputs if name in blocked]
        writes = [name for name in node.outputs if name in blocked]
        if not reads and not writes:
            continue
        if kind == "ReorderInput":
            last = _attributes(node).get("channels_last")
            classes.need(node.output, graph.shape(node.inputs[0])[-1 if last else 1])
        elif kind == "ReorderOutput":
            classes.need(reads[0], _channels(node))
        elif kind == "Concat":
            for name in (*reads, *writes):
                classes.need(name, graph.shape(name)[1])
        elif kind == "Conv" and _is_blocked(node) and not _is_depthwise(graph, node):
            _need_of_convolution(graph, node, classes, block, blocked)
        else:
            classes.join([*reads, *writes])
    return {name: classes.needed[classes.of(name)] for name in blocked}


def _channels(node: Node) -> int:
    channels = _attributes(node).get("channels")
    assert isinstance(channels, int)
    return channels


def _need_of_convolution(graph: Graph, node: Node, classes: _Classes, block: int, blocked: frozenset[str]) -> None:
    """Records the channels that a convolution needs: of its input, up to the last with nonzero weights; with groups,
    all of its input and output."""
    weights = plain_weights(graph.constants[node.inputs[1]], block)
    if _attributes(node).get("group", 1) != 1:
        classes.need(node.output, weights.shape[0])
        classes.need(node.inputs[0], graph.shape(node.inputs[0])[1])
    elif node.inputs[0] in blocked:
        columns = np.flatnonzero(weights.any(axis=(0, 2, 3)))
        classes.need(node.inputs[0], int(columns[-1]) + 1 if columns.size else 1)
    if len(node.inputs) > 3 and node.inputs[3]:
        classes.join([node.inputs[3], node.output])


class _Rewrite:
    """Replaces nodes for blocked channels by plain ones."""

    def __init__(self, graph: Graph, block: int, extents: Mapping[str, int]) -> None:
        self.graph = graph
        self.block = block
        self.extents = extents
        self.editor = GraphEditor(graph)

    def run(self) -> Graph:
        """The new graph; shapes of values that were blocked have to be inferred again."""
        for node in self.graph.nodes:
            if _is_blocked(node):
                kind = _kind(node)
                write = {"Conv": self._conv, "ReorderInput": self._reorder_input, "ReorderOutput": self._reorder_output}
                self.editor.replace_node(node.name, write.get(kind, self._window)(node))
        graph = self.editor.finish()
        values = {
            name: replace(value, shape=None) if name in self.extents else value for name, value in graph.values.items()
        }
        domains = {domain: version for domain, version in graph.opset.items() if domain != BLOCKED}
        return replace(graph, values=values, opset={CONTRIB: 1, **domains})

    def _constant(self, node: Node, array: Array) -> str:
        return self.editor.new_constant(f"{node.output}_constant", array)

    def _conv(self, node: Node) -> list[Node]:
        given = plain_weights(self.graph.constants[node.inputs[1]], self.block)
        rows, columns = self.extents[node.output] or given.shape[0], self.extents.get(node.inputs[0], given.shape[1])
        attributes = _attributes(node)
        if _is_depthwise(self.graph, node):
            columns, attributes["group"] = 1, rows
        elif attributes.get("group", 1) != 1:
            columns = given.shape[1]
        inputs = [node.inputs[0], self._constant(node, np.ascontiguousarray(given[:rows, :columns]))]
        if len(node.inputs) > 2:
            bias = self.graph.constants.get(node.inputs[2])
            inputs += ["" if bias is None else self._constant(node, bias[:rows]), *node.inputs[3:]]
        if self._is_scaling(node):
            return self._scaled(node, rows)
        fused = bool(attributes.get("activation")) or len(inputs) > 3
        if not fused:
            attributes = {name: value for name, value in attributes.items() if not name.startswith("activation")}
        return [self._node(node, "FusedConv" if fused else "Conv", inputs, attributes, CONTRIB if fused else "")]

    def _is_scaling(self, node: Node) -> bool:
        """Whether a convolution was a BatchNormalization before optimisation: one factor and one addend per channel."""
        attributes = _attributes(node)
        moved = attributes.get("strides", (1, 1)) != (1, 1) or any(_sizes(attributes.get("pads", ())))
        alone = len(node.inputs) == 3 and bool(node.inputs[2]) and attributes.get("activation", "") in _PLAIN
        point = self.graph.shape(node.inputs[1])[1:] == (1, 1, 1)
        return point and _is_depthwise(self.graph, node) and alone and not moved

    def _scaled(self, node: Node, rows: int) -> list[Node]:
        """The BatchNormalization, with a mean of 0 and a variance of 1, and the activation after it."""
        factors, bias = (self.graph.constants[name].reshape(-1)[:rows] for name in node.inputs[1:3])
        arrays = (factors, bias, np.zeros_like(bias), np.ones_like(bias))
        inputs = [node.inputs[0], *(self._constant(node, np.ascontiguousarray(array)) for array in arrays)]
        activation = _attributes(node).get("activation", "")
        norm = self._node(node, "BatchNormalization", inputs, {"epsilon": 0.0})
        if not isinstance(activation, str) or not activation:
            return [norm]
        between = self.editor.new_value(f"{node.output}_scaled", None, self.graph.value(node.output).dtype)
        norm = replace(norm, outputs=(between,), name=self.editor.new_node_name(f"{node.name}_scaled"))
        return [norm, self._node(node, activation, [between])]

    def _reorder_input(self, node: Node) -> list[Node]:
        """Moves channels that come last to the front; additional channels that weights need are zeros."""
        source, made = node.inputs[0], []
        channels = self.graph.shape(source)[1]
        if _attributes(node).get("channels_last"):
            channels = self.graph.shape(source)[-1]
            channels_first = self.editor.new_value(f"{node.output}_turned", None, self.graph.value(source).dtype)
            op = OnnxOp("Transpose", "", (("perm", (0, 3, 1, 2)),))
            made.append(Node(op, (source,), (channels_first,), self.editor.new_node_name(f"{node.name}_turned")))
            source = channels_first
        missing = self.extents[node.output] - channels
        if missing:
            pads = self._constant(node, np.array([0, 0, 0, 0, 0, missing, 0, 0], np.int64))
            return [*made, self._node(node, "Pad", [source, pads])]
        return [*made, self._node(node, "Identity", [source])]

    def _reorder_output(self, node: Node) -> list[Node]:
        """The channels without padding, moved to the end if required."""
        source, made = node.inputs[0], []
        last = bool(_attributes(node).get("channels_last"))
        whole = self.extents[source] == _channels(node)
        if whole:
            return [self._to_channels_last(node, source) if last else self._node(node, "Identity", [source])]
        bounds = [self._constant(node, np.array([bound], np.int64)) for bound in (0, _channels(node), 1)]
        if not last:
            return [self._node(node, "Slice", [source, *bounds])]
        cut = self.editor.new_value(f"{node.output}_cut", None, self.graph.value(source).dtype)
        made.append(Node(OnnxOp("Slice"), (source, *bounds), (cut,), self.editor.new_node_name(f"{node.name}_cut")))
        return [*made, self._to_channels_last(node, cut)]

    def _to_channels_last(self, node: Node, source: str) -> Node:
        return self._node(node, "Transpose", [source], {"perm": (0, 2, 3, 1)})

    def _window(self, node: Node) -> list[Node]:
        """Plain forms of pools, and of upsampling by whole numbers."""
        attributes = _attributes(node)
        if _kind(node) != "Upsample":
            plain = {name: value for name, value in attributes.items() if not _is_default(name, value)}
            return [self._node(node, _kind(node), node.inputs, plain)]
        scales = attributes.pop("scales")
        assert isinstance(scales, tuple)
        if attributes.get("mode", "nearest") == "nearest":
            attributes["nearest_mode"] = "floor"
        return [
            self._node(
                node, "Resize", [node.inputs[0], "", self._constant(node, np.array(scales, np.float32))], attributes
            )
        ]

    def _node(
        self,
        node: Node,
        op_type: str,
        inputs: Sequence[str],
        attributes: Mapping[str, object] | None = None,
        domain: str = "",
    ) -> Node:
        """A plain node with the outputs of a given node."""
        sorted_attributes: Attributes = tuple(sorted((attributes or {}).items()))  # type: ignore[arg-type]
        return replace(node, op=OnnxOp(op_type, domain, sorted_attributes), inputs=tuple(inputs))


def _sizes(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else ()


def _is_default(name: str, value: object) -> bool:
    """Whether an attribute has its default value, and may be unknown to older pools."""
    if name == "dilations":
        return isinstance(value, tuple) and set(value) <= {1}
    return name in ("storage_order", "ceil_mode") and not value
