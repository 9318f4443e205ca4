"""Runs a graph with sparse ops: numpy runs these, and an ONNX Runtime session each segment of nodes between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from pimflow.ir import Graph, Node
from pimflow.onnxio.session import GraphSession
from pimflow.runtime.execute.sparse_values import SPARSE_VALUES


class SegmentedRun:
    """The sessions of a graph's segments, created once; values are released after their last reader.

    Args:
        graph: any graph.
        threads, optimise, fuse_quantised: as for `GraphSession`, for every segment.

    Raises:
        ModelError: ONNX Runtime refuses a segment.
    """

    def __init__(self, graph: Graph, threads: int = 2, optimise: bool = True, fuse_quantised: bool = False) -> None:
        self.graph = graph
        segments = [tuple(nodes) for _, nodes in groupby(graph.nodes, key=lambda node: node.op.is_sparse)]
        self._last_read = {
            name: step for step, nodes in enumerate(segments) for node in nodes for name in node.inputs if name
        }
        self._steps = [
            nodes if nodes[0].op.is_sparse else _session(self._segment(step, nodes), threads, optimise, fuse_quantised)
            for step, nodes in enumerate(segments)
        ]

    def _segment(self, step: int, nodes: Sequence[Node]) -> Graph:
        """A segment as a graph; its outputs are the values that other segments read."""
        written = [name for node in nodes for name in node.outputs if name]
        read = dict.fromkeys(name for node in nodes for name in node.inputs if name)
        outputs = [name for name in written if name in self.graph.outputs or self._last_read.get(name, -1) > step]
        names = {*written, *read}
        return self.graph.replace(
            inputs=[name for name in read if name not in written and name not in self.graph.constants],
            outputs=outputs,
            nodes=nodes,
            values={name: value for name, value in self.graph.values.items() if name in names},
            constants={name: array for name, array in self.graph.constants.items() if name in read},
        )

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs by name.

        Raises:
            ModelError: ONNX Runtime fails.
        """
        values: dict[str, Any] = dict(feeds)
        for step, part in enumerate(self._steps):
            if isinstance(part, GraphSession):
                read = (item.name for item in part.session.get_inputs())
                values |= part.run({name: values[name] for name in read})
            else:
                for node in part or ():
                    values[node.output] = self._computed(node, values)
            for name in [name for name in values if self._last_read.get(name) == step]:
                if name not in self.graph.outputs:
                    del values[name]
        return {name: values.get(name, self.graph.constants.get(name)) for name in self.graph.outputs}

    def _computed(self, node: Node, values: Mapping[str, Any]) -> Any:
        constants = self.graph.constants
        operands = [None if not name else constants.get(name, values.get(name)) for name in node.inputs]
        return SPARSE_VALUES.of(node.op)(node.op, operands)


def _session(graph: Graph, threads: int, optimise: bool, fuse_quantised: bool) -> GraphSession | None:
    """A session for a segment; None if nothing reads its values."""
    return GraphSession(graph, threads, optimise, fuse_quantised) if graph.outputs else None
