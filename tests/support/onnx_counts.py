"""Parameters and operations of an ONNX model, counted from nodes and shapes: an oracle independent of pimflow."""

from __future__ import annotations

import math

import onnx
from onnx import shape_inference

Shapes = dict[str, list[int]]


def parameters(model: onnx.ModelProto) -> int:
    """Elements of trained parameters: of initializers with such names, and of LSTMs' first biases (the second are
    0)."""
    sizes: dict[str, int] = {tensor.name: math.prod(tensor.dims) for tensor in model.graph.initializer}
    named = sum(size for name, size in sizes.items() if name.endswith((".weight", ".bias")))
    return named + sum(sizes[node.input[3]] // 2 for node in model.graph.node if node.op_type == "LSTM")


def macs(model: onnx.ModelProto) -> int:
    """Multiply-accumulates in convolutions, matrix products and LSTMs."""
    shapes = shapes_of(model)
    return sum(_node_macs(node, shapes) for node in model.graph.node)


def shapes_of(model: onnx.ModelProto) -> Shapes:
    """Shapes of all values, by ONNX's own inference."""
    graph = shape_inference.infer_shapes(model, strict_mode=True, data_prop=True).graph
    values = [*graph.input, *graph.value_info, *graph.output]
    shapes = {value.name: [dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in values}
    return shapes | {tensor.name: list(tensor.dims) for tensor in graph.initializer}


def _node_macs(node: onnx.NodeProto, shapes: Shapes) -> int:
    """Weight elements times the number of output positions, rows or steps that use each."""
    if node.op_type == "Conv":
        return math.prod(shapes[node.input[1]]) * math.prod(shapes[node.output[0]][2:])
    if node.op_type == "Gemm":
        return math.prod(shapes[node.input[1]]) * shapes[node.output[0]][0]
    if node.op_type == "MatMul":
        return math.prod(shapes[node.output[0]]) * shapes[node.input[0]][-1]
    if node.op_type == "LSTM":
        return shapes[node.input[0]][0] * sum(math.prod(shapes[name]) for name in node.input[1:3])
    return 0
