"""Folds per-channel scale and shift after a convolution or matrix product into its weights and bias.

    s * (W x + b) + t  =  (s W) x + (s b + t),    s and t constant per output channel

A batch norm is s = scale / sqrt(variance + epsilon), t = bias - s * mean. Caffe2's exports write it as Mul and Add.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from pimflow.ir import Array, BatchNorm, Elementwise, Graph, GraphEditor, Node, Packed
from pimflow.ir.ops.contraction import Contraction
from pimflow.ir.packed import PER_AXIS_OPSET
from pimflow.passes.base import Pass, PassResult
from pimflow.records import dataclass

Vector = npt.NDArray[np.float64]
_HALF = np.finfo(np.float16)


@dataclass(frozen=True, slots=True)
class _Affine:
    """y = scale * x + shift per channel (shape [C]), in double precision; `last` is the value that holds the result."""

    scale: Vector
    shift: Vector
    last: str
    steps: tuple[str, ...] = ()


@dataclass(frozen=True)
class FoldBatchNorm(Pass):
    """Folds batch norms, and Mul, Add, Sub and Div by constants per channel, into the contraction before them.

    Weights must be constants, and nothing else may read the values in between. Shared weights are scaled separately for
    each of their users. Quantised weights stay quantised, with other scales, or nothing is folded into them. A product
    without a bias becomes one with a bias, if there is such an op. A batch norm that cannot be folded absorbs the steps
    after it.
    """

    name: ClassVar[str] = "fold-batch-norm"

    def run(self, graph: Graph) -> PassResult:
        chains: dict[str, _Affine] = {}  # by name of the matrix node
        ends: dict[str, Node] = {}  # the value at the end of a chain -> its matrix node
        notes: list[str] = []
        for node in graph.nodes:
            if isinstance(node.op, BatchNorm | Elementwise) and _extend(graph, node, chains, ends, notes):
                continue
            if _takes_affine(graph, node):
                ends[node.output] = node
        if not chains:
            return PassResult(graph, False, tuple(notes))
        editor = GraphEditor(graph)
        for name, affine in chains.items():
            editor.replace_node(name, [_folded(editor, graph.node(name), affine)])
            for step in affine.steps:
                editor.replace_node(step, ())
        return PassResult(editor.finish(), True, tuple(notes))


def _takes_affine(graph: Graph, node: Node) -> bool:
    if isinstance(node.op, BatchNorm):
        return all(name in graph.constants for name in node.inputs[1:3])
    if not isinstance(node.op, Contraction):
        return False
    weights, rank = graph.constants.get(node.inputs[1]), len(graph.value(node.output).shape or ())
    if weights is None or weights.dtype.kind != "f" or weights.ndim != rank or node.op.with_bias(rank) is None:
        return False
    return all(not name or name in graph.constants for name in node.inputs[2:])


def _extend(graph: Graph, node: Node, chains: dict[str, _Affine], ends: dict[str, Node], notes: list[str]) -> bool:
    """Extend the chain that ends in an input of `node`, if the node is a foldable step per channel."""
    source = next((name for name in node.inputs if name in ends), None)
    step = _step(graph, node, source) if source is not None else None
    if source is None or step is None:
        if isinstance(node.op, BatchNorm):
            producer = graph.producer(node.inputs[0])
            notes.append(f"{node.name}: {producer.name if producer else 'a graph input'} cannot absorb it")
        return False
    if len(graph.users(source)) != 1 or source in graph.outputs:
        notes.append(f"{node.name}: other nodes also read {source!r}")
        return False
    root = ends[source]
    scale, shift = step
    old = chains.get(root.name)
    if old is not None:
        extended = _Affine(old.scale * scale, old.shift * scale + shift, node.output, (*old.steps, node.name))
    else:
        extended = _Affine(scale, shift, node.output, (node.name,))
    objection = _objection(graph, root, extended.scale)
    if objection:
        notes.append(f"{node.name}: {objection}")
        return False
    chains[root.name] = extended
    del ends[source]
    ends[node.output] = root
    return True


def _objection(graph: Graph, root: Node, factors: Vector) -> str:
    """Why the columns of a contraction's weights may not be scaled by these factors; "" if they may."""
    if not isinstance(root.op, Contraction):
        return ""
    name = root.inputs[1]
    if _leaves_range(graph.constants[name], root.op.channel_axis, np.abs(factors)):
        return f"it would take the weights of {root.name} out of the range of 16-bit numbers"
    if graph.packed_form(name) is None:
        return ""
    producer, opset = graph.producer(root.inputs[0]), graph.opset.get("", 0)
    if opset < PER_AXIS_OPSET and producer is not None and producer.kind == "DequantizeLinear":
        return f"ONNX Runtime would quantise the bias of {root.name} per axis, which opset {opset} lacks"
    if np.any(factors != 1) and _packed(graph, root, factors) is None:
        return f"the weights of {root.name} could not stay quantised"
    return ""


def _packed(graph: Graph, node: Node, factors: Vector) -> Packed | None:
    """The quantised weights of a contraction with their columns scaled; None if they are not quantised or cannot stay
    so."""
    assert isinstance(node.op, Contraction)
    packed, rank = graph.packed_form(node.inputs[1]), graph.constants[node.inputs[1]].ndim
    return None if packed is None else packed.scaled(node.op.channel_axis % rank, factors)


def _leaves_range(weights: Array, axis: int, factors: Vector) -> bool:
    """Whether weights within the range of 16-bit floats leave it once their columns, along an axis, are scaled.

    Units store them in 16 bits, where 0.05 times the 1e-6 that a LayerScale starts with (Touvron et al., Going deeper
    with Image Transformers, 2021) loses all its digits. The tensor as a whole counts: single columns, for example dead
    ones, may vanish.
    """
    largest = _magnitude(weights)
    if not _in_range(largest) or all(_in_range(largest * factor) for factor in (factors.min(), factors.max())):
        return False
    columns = zip(np.moveaxis(weights, axis, 0), factors, strict=True)
    scaled = max(_magnitude(column) * factor for column, factor in columns)
    return scaled > 0 and not _in_range(scaled)


def _magnitude(array: Array) -> float:
    return max(float(array.max(initial=0)), -float(array.min(initial=0)))


def _in_range(magnitude: float) -> bool:
    return bool(_HALF.tiny <= magnitude <= _HALF.max)


def _step(graph: Graph, node: Node, source: str) -> tuple[Vector, Vector] | None:
    """The step as (scale, shift), each of shape [C]; None if the node is not such a step."""
    shape = graph.value(source).shape
    if shape is None or graph.value(node.output).shape != shape:
        return None
    channels = shape[1]
    if isinstance(node.op, BatchNorm):
        return _batch_norm_step(graph, node, node.op, channels)
    if len(node.inputs) != 2 or not isinstance(node.op, Elementwise):
        return None
    other = node.inputs[1] if node.inputs[0] == source else node.inputs[0]
    vector = _per_channel(graph.constants.get(other), len(shape), channels)
    if vector is None:
        return None
    one, zero = np.ones(channels), np.zeros(channels)
    first = node.inputs[0] == source
    steps = {"Mul": (vector, zero), "Add": (one, vector)}
    if first:
        steps |= {"Sub": (one, -vector)}
    else:
        steps |= {"Sub": (-one, vector)}
    if first and np.all(vector != 0):
        steps |= {"Div": (1 / vector, zero)}
    return steps.get(node.op.kind)


def _batch_norm_step(graph: Graph, node: Node, op: BatchNorm, channels: int) -> tuple[Vector, Vector] | None:
    arrays = [graph.constants.get(name) for name in node.inputs[1:5]]
    if any(array is None or array.shape != (channels,) for array in arrays):
        return None
    scale, bias, mean, variance = (np.asarray(array, np.float64) for array in arrays)
    factor = scale / np.sqrt(variance + op.epsilon)
    return factor, bias - factor * mean


def _per_channel(array: Array | None, rank: int, channels: int) -> Vector | None:
    """A constant that varies only along axis 1 of a tensor of that rank, as a vector [C]."""
    if array is None or array.ndim > rank or array.dtype.kind != "f":
        return None
    dims = (1,) * (rank - array.ndim) + array.shape
    if any(dim != 1 for axis, dim in enumerate(dims) if axis != 1) or dims[1] not in (1, channels):
        return None
    return np.broadcast_to(array.astype(np.float64).reshape(-1), (channels,))


def _folded(editor: GraphEditor, node: Node, affine: _Affine) -> Node:
    """The node with the affine map in its weights and bias, whose output is the map's last value."""
    if isinstance(node.op, BatchNorm):
        return _folded_norm(editor, node, affine)
    assert isinstance(node.op, Contraction)
    weights = editor.graph.constants[node.inputs[1]]
    broadcast_shape = [1] * weights.ndim
    broadcast_shape[node.op.channel_axis] = -1
    scaled = node.inputs[1]
    if np.any(affine.scale != 1):
        packed = _packed(editor.graph, node, affine.scale)
        array = packed.array if packed else _scaled(weights, affine.scale.reshape(broadcast_shape))
        scaled = editor.new_constant(f"{node.inputs[1]}_folded", array, packed)
    bias = _bias(editor.graph, node, node.op) * affine.scale + affine.shift
    name = editor.new_constant(f"{node.name}_bias", bias.astype(weights.dtype))
    op = node.op.with_bias(weights.ndim)
    assert op is not None, "`_takes_affine` has checked it"
    return replace(node, op=op, inputs=(node.inputs[0], scaled, name), outputs=(affine.last,))


def _scaled(weights: Array, scale: Vector) -> Array:
    """The product in double precision, rounded to the type of the weights, without copies of all weights in between."""
    made = np.empty(weights.shape, weights.dtype)
    return np.multiply(weights, scale, out=made, dtype=np.float64, casting="unsafe")


def _folded_norm(editor: GraphEditor, node: Node, affine: _Affine) -> Node:
    scale, bias = (editor.graph.constants[name] for name in node.inputs[1:3])
    arrays = scale.astype(np.float64) * affine.scale, bias.astype(np.float64) * affine.scale + affine.shift
    names = [
        editor.new_constant(f"{node.name}_{what}", array.astype(scale.dtype))
        for what, array in zip(("scale", "bias"), arrays, strict=True)
    ]
    return replace(node, inputs=(node.inputs[0], *names, *node.inputs[3:]), outputs=(affine.last,))


def _bias(graph: Graph, node: Node, op: Contraction) -> Vector:
    """The effective bias: shape [C], [M, C] for a Gemm with rows of biases, or a zero."""
    if len(node.inputs) < 3 or not node.inputs[2]:
        return np.zeros(1)
    return np.asarray(graph.constants[node.inputs[2]], np.float64) * op.bias_factor
