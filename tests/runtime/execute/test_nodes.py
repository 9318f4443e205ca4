"""Graphs run node by node: every result is rounded to its own type."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from pimflow.frontend import load_model
from pimflow.ir import Array, Node
from pimflow.runtime.execute.nodes import run_nodes
from pimflow.runtime.execute.ort import NodeKernels, random_inputs, run_graph
from support.exotic_models import MODELS
from support.graphs import random_net
from support.values import assert_close

HALF = Path(__file__).parent.parent.parent / "data" / "exported" / "half.onnx"


@pytest.mark.parametrize("seed", range(3))
def test_values_are_those_of_the_whole_graph(seed: int) -> None:
    graph = random_net(seed)
    feeds = random_inputs(graph, seed)
    found = run_nodes(graph, feeds)
    for name, array in run_graph(graph, feeds).items():
        assert_close(found[name], array)


@pytest.mark.parametrize("name", ["sequence", "input", "constants"])
def test_outputs_of_all_kinds(name: str) -> None:
    graph = load_model(MODELS[name]())
    feeds = random_inputs(graph, 0)
    found, expected = run_nodes(graph, feeds), run_graph(graph, feeds)
    assert found.keys() == expected.keys()


def test_every_result_is_rounded() -> None:
    """ONNX Runtime computes whole float16 graphs in single precision."""
    graph = load_model(HALF)
    feeds = random_inputs(graph, 0)
    kernels = NodeKernels(graph)
    kinds: set[str] = set()

    def spy(node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
        results = kernels.run(node, inputs)
        kinds.update(array.dtype.name for array in results)
        return results

    found, whole = run_nodes(graph, feeds, spy), run_graph(graph, feeds)
    (name,) = graph.outputs
    assert "float16" in kinds
    assert 0 < np.abs(found[name].astype(np.float32) - whole[name].astype(np.float32)).max() < 1e-2
