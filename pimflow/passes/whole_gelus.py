"""Gelu spelled out around Erf, as exporters write it below opset 20, as the one operator that the framework runs.

Run node by node, its step would save four results of the size of its input, and the framework saves two. The form with
tanh stays: transformers computes it node by node.
"""

from __future__ import annotations

import math

from pimflow.ir import Elementwise, Graph, GraphEditor, Node

_NEAR = 1e-3
"""The relative error of constants in half precision, and then some."""


def with_whole_gelus(graph: Graph) -> Graph:
    """The graph with every x / 2 (1 + erf(x / sqrt 2)) as one Gelu; itself if it has none.

    The factors may be in any order; what they compute on the way must have no other reader.
    """
    editor = GraphEditor(graph)
    for node in graph.nodes:
        found = _spelled(graph, node) if node.op == Elementwise("Erf") else None
        if found is None:
            continue
        x, steps = found
        if graph.value(steps[-1].output).shape != graph.value(x).shape:  # a number with more dimensions adds some
            continue
        for step in steps[:-1]:
            editor.replace_node(step.name, ())
        last = steps[-1]
        editor.replace_node(last.name, (Node(Elementwise("Gelu"), (x,), last.outputs, last.name, last.placement),))
    return editor.finish() if editor.changed else graph


def _spelled(graph: Graph, erf: Node) -> tuple[str, list[Node]] | None:
    """The input and the nodes of the Gelu around an Erf; the last node makes its result."""
    root, shifted = graph.producer(erf.inputs[0]), _only_reader(graph, erf)
    if root is None or shifted is None or _only_reader(graph, root) is not erf:
        return None
    x, factor = _scaled(graph, root)
    one = _number(graph, _other(shifted, erf.output))
    if shifted.op != Elementwise("Add") or not _is_near(one, 1.0) or not _is_near(factor, math.sqrt(0.5)):
        return None
    steps, scale, has_x = [root, erf, shifted], 1.0, False
    while not (has_x and _is_near(scale, 0.5)):
        value = steps[-1]
        reader = _only_reader(graph, value)
        if reader is None:
            return None
        source, factor = _scaled(graph, reader)
        if source == value.output:
            scale *= factor
        elif reader.op == Elementwise("Mul") and not has_x:
            part = _other(reader, value.output)
            made = graph.producer(part)
            if part != x:  # x may be halved first
                source, factor = ("", 0.0) if made is None else _scaled(graph, made)
                if made is None or source != x or _only_reader(graph, made) is not reader:
                    return None
                steps.append(made)
                scale *= factor
            has_x = True
        else:
            return None
        steps.append(reader)
    return x, steps


def _scaled(graph: Graph, node: Node) -> tuple[str, float]:
    """The value that a node multiplies by a number, and the number; "" and 0 for any other node."""
    if node.op == Elementwise("Div"):
        number = _number(graph, node.inputs[1])
        return (node.inputs[0], 1 / number) if number else ("", 0.0)
    if node.op == Elementwise("Mul"):
        for read, factor in (node.inputs, node.inputs[::-1]):
            number = _number(graph, factor)
            if number is not None:
                return read, number
    return "", 0.0


def _number(graph: Graph, name: str) -> float | None:
    array = graph.constants.get(name)
    return float(array.reshape(())) if array is not None and array.size == 1 else None


def _is_near(number: float | None, wanted: float) -> bool:
    return number is not None and math.isclose(number, wanted, rel_tol=_NEAR)


def _other(node: Node, name: str) -> str:
    return next((read for read in node.inputs if read != name), name)


def _only_reader(graph: Graph, node: Node) -> Node | None:
    """The only node that reads a node's output; None if there are others, or it is an output of the graph."""
    readers = graph.users(node.output)
    return readers[0] if len(readers) == 1 and node.output not in graph.outputs else None
