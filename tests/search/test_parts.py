"""Parts of nodes as graphs of their own."""

from __future__ import annotations

import numpy as np
from onnx import helper

from pimflow.frontend import load_model
from pimflow.search.parts import extract_columns
from support.onnx_models import model_of


def test_columns_of_a_product_with_a_scalar_bias() -> None:
    constants = {"w": np.ones((8, 6), np.float32), "c": np.float32(0.5)}
    graph = load_model(model_of([helper.make_node("Gemm", ["x", "w", "c"], ["y"])], {"x": (4, 8)}, constants=constants))
    (node,) = graph.nodes
    part = extract_columns(graph, node, 2)
    assert [part.shape(name) for name in (*part.nodes[0].inputs, part.nodes[0].output)] == [(4, 8), (8, 2), (), (4, 2)]
