"""Runs a graph node by node with separate values: no fusion, no arena, each result rounded to its own type."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from pimflow.ir import Array, Graph, Node
from pimflow.runtime.execute.ort import NodeKernels, operands

Execute = Callable[[Node, Sequence[Array | None]], Sequence[Array]]
"""A node's results (one for each output that has a name) from its operands; None for absent ones."""


def run_nodes(graph: Graph, inputs: Mapping[str, Array], execute: Execute | None = None) -> dict[str, Array]:
    """The graph's outputs by name. Arguments and errors as for `NodeRun`."""
    run = NodeRun(graph, inputs, execute)
    for _ in run.steps():
        pass
    return run.outputs()


class NodeRun:
    """A run that can be stepped, alongside another. `values` holds the constants and the values of pending reads.

    Args:
        graph: any graph.
        inputs: arrays by the names of the graph's inputs.
        execute: executes every node; by default ONNX Runtime.

    Raises:
        InputDataError: an input is missing, unknown, or has another shape or element type.
    """

    def __init__(self, graph: Graph, inputs: Mapping[str, Array], execute: Execute | None = None) -> None:
        self.graph = graph
        self.values: dict[str, Array] = {**graph.constants, **operands(graph, inputs)}
        self._execute = execute or NodeKernels(graph).run

    def steps(self) -> Iterator[Node]:
        """Executes one node per step; its results are available until the next step."""
        readers = Counter(name for node in self.graph.nodes for name in set(node.inputs) if name)
        readers.update(self.graph.outputs)
        for node in self.graph.nodes:
            results = self._execute(node, [self.values[name] if name else None for name in node.inputs])
            self.values.update(zip((name for name in node.outputs if name), results, strict=True))
            del results
            yield node
            readers.subtract({name for name in node.inputs if name})
            for name in (*node.inputs, *node.outputs):
                if name and readers[name] <= 0:
                    self.values.pop(name, None)

    def outputs(self) -> dict[str, Array]:
        """The graph's outputs by name, after the last step."""
        return {name: self.values[name] for name in self.graph.outputs}
