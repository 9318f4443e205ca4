"""Runs a graph node by node, every value by itself: no fusion, no arena, each result rounded to its own type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from pimflow.ir import Array, Graph, Node
from pimflow.runtime.execute.ort import NodeKernels, check_inputs

Execute = Callable[[Node, Sequence[Array | None]], Sequence[Array]]
"""A node's results (one for each output that has a name) from its operands; None for absent ones."""


def run_nodes(graph: Graph, inputs: Mapping[str, Array], execute: Execute | None = None) -> dict[str, Array]:
    """The graph's outputs by name.

    Args:
        graph: any graph.
        inputs: arrays by the names of the graph's inputs.
        execute: executes every node; by default ONNX Runtime.

    Raises:
        InputDataError: an input is missing, unknown, or has another shape or element type.
    """
    check_inputs(graph, inputs)
    execute = execute or NodeKernels(graph).run
    values: dict[str, Array] = {**graph.constants, **{name: np.asarray(inputs[name]) for name in graph.inputs}}
    readers = Counter(name for node in graph.nodes for name in set(node.inputs) if name)
    readers.update(graph.outputs)
    for node in graph.nodes:
        results = execute(node, [values[name] if name else None for name in node.inputs])
        values.update(zip((name for name in node.outputs if name), results, strict=True))
        readers.subtract({name for name in node.inputs if name})
        for name in (*node.inputs, *node.outputs):
            if name and readers[name] <= 0:
                values.pop(name, None)
    return {name: values[name] for name in graph.outputs}
