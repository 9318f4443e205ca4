"""Values that are known before a model runs, and values that differ between runs."""

from __future__ import annotations

import pytest
from onnx import TensorProto, helper

from pimflow.ir import OnnxOp, OpaqueAttribute
from pimflow.onnxio.folding import is_random


def branch(kind: str, depth: int) -> OpaqueAttribute:
    """A body with a node of a kind, nested in `depth` Ifs."""
    node = helper.make_node(kind, [], ["y"], shape=[2])
    for _ in range(depth):
        body = helper.make_graph([node], "body", [], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2])])
        node = helper.make_node("If", ["flag"], ["y"], then_branch=body)
    return OpaqueAttribute(node.attribute[0].SerializeToString())


@pytest.mark.parametrize("depth", [1, 2])
def test_random_ops_in_bodies_are_found(depth: int) -> None:
    assert is_random(OnnxOp("If", "", (("then_branch", branch("RandomUniform", depth)),)))
    assert not is_random(OnnxOp("If", "", (("then_branch", branch("ConstantOfShape", depth)),)))
