"""Equal random numbers in two models: every node that draws without a seed gets one, from the name of its result.

Without a seed, ONNX Runtime picks one per process and adds a node's position in the graph, so a rewritten graph draws
different numbers. The comparison is therefore of a variant of the model: the same, with seeds.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import replace

import onnx
from onnx import helper

from pimflow.ir import Graph, Node, OnnxOp
from pimflow.onnxio.export import ModelContent, SplitModel
from pimflow.onnxio.folding import RANDOM_OPERATORS

_SEED = "seed"


def unseeded_nodes(graph: Graph) -> tuple[str, ...]:
    """The nodes of a graph that draw numbers without a seed."""
    return tuple(node.name for node in graph.nodes if _draws(node))


def seeded(graph: Graph) -> Graph:
    """The graph with a seed for each of these nodes."""
    return graph.replace(nodes=tuple(_seeded(node) if _draws(node) else node for node in graph.nodes))


def seeded_original(original: ModelContent) -> ModelContent:
    """The original model, with the same seeds that the graph gets."""
    if isinstance(original, SplitModel):
        return original._replace(proto=_seeded_proto(original.proto))
    if isinstance(original, onnx.ModelProto):
        return _seeded_proto(original)
    model = onnx.ModelProto.FromString(original) if isinstance(original, bytes) else onnx.load(str(original))
    return _seeded_proto(model)


def _draws(node: Node) -> bool:
    op = node.op
    return isinstance(op, OnnxOp) and _draws_unseeded(op.domain, op.op_type, (name for name, _ in op.attributes))


def _draws_unseeded(domain: str, op_type: str, attributes: Iterable[str]) -> bool:
    return domain in ("", "ai.onnx") and op_type in RANDOM_OPERATORS and _SEED not in attributes


def _seeded(node: Node) -> Node:
    assert isinstance(node.op, OnnxOp)
    attributes = tuple(sorted((*node.op.attributes, (_SEED, _seed(node.outputs[0])))))
    return replace(node, op=replace(node.op, attributes=attributes))


def _seeded_proto(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for node in copy.graph.node:
        if _draws_unseeded(node.domain, node.op_type, (attribute.name for attribute in node.attribute)):
            node.attribute.append(helper.make_attribute(_SEED, _seed(node.output[0])))
    return copy


def _seed(name: str) -> float:
    """An integer seed that a 32-bit float represents exactly."""
    return float(zlib.crc32(name.encode()) % 2**20)
