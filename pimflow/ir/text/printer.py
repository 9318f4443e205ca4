"""IR to text: one line per input, constant, node and output. The grammar is in `pimflow.ir.text`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pimflow.ir.graph import Array, Graph, Node
from pimflow.ir.text.literals import array_text, digest, fields_text, name_text, quote, type_text, word_text

INLINE_ELEMENTS = 16
"""Constants with more elements are elided."""


def print_graph(graph: Graph, inline_elements: int = INLINE_ELEMENTS) -> str:
    """The text form of a graph, ending in a newline. Prints broken graphs too, to show what is wrong with them.

    Args:
        graph: any graph.
        inline_elements: constants of more elements than this show their type and a content hash only.
    """
    return "".join(f"{line}\n" for line in graph_lines(graph, inline_elements))


def graph_lines(graph: Graph, inline_elements: int = INLINE_ELEMENTS) -> Iterator[str]:
    """The lines of `print_graph`, one by one, without their newlines."""
    opset = ", ".join(f"{word_text(domain)} = {version}" for domain, version in graph.opset.items())
    yield f"graph {name_text('@', graph.name)} opset {{{opset}}} {{"
    for name in graph.inputs:
        yield f"  input {name_text('%', name)} : {_type_of(graph, name)}"
    for name, array in graph.constants.items():
        yield f"  const {_constant(graph, name, array, inline_elements)}"
    for name in _stray_values(graph):
        yield f"  value {name_text('%', name)} : {_type_of(graph, name)}"
    for node in graph.nodes:
        yield f"  {node_line(graph, node)}"
    for name in graph.outputs:
        yield f"  output {name_text('%', name)}"
    yield "}"


def node_line(graph: Graph, node: Node) -> str:
    """One node's line."""
    outputs = ", ".join(_operand(name) for name in node.outputs)
    inputs = ", ".join(_operand(name) for name in node.inputs)
    types = ", ".join(_type_of(graph, name) for name in node.outputs if name)
    parts = [f"{outputs} = {type(node.op).__name__}({inputs})".lstrip(), fields_text(node.op)]
    parts += [f": {types}" if types else "", name_text("@", node.name)]
    parts.append("" if node.device is None else f"on {word_text(node.device)}")
    parts.append(fields_text(replace(node.placement, device=None)))
    parts.append("tags {" + ", ".join(f"{word_text(key)} = {quote(text)}" for key, text in node.tags) + "}")
    return " ".join(part for part in parts if part and part != "tags {}")


def _operand(name: str) -> str:
    return name_text("%", name) if name else "_"


def _type_of(graph: Graph, name: str) -> str:
    value = graph.values.get(name)
    return "missing" if value is None else type_text(value.dtype, value.shape)


def _constant(graph: Graph, name: str, array: Array, inline_elements: int) -> str:
    """One constant's text; `: type` follows only if the value's type is not the array's own."""
    own_type = type_text(array.dtype.name, array.shape)
    elements = array_text(array) if array.size <= inline_elements else None
    line = f"{name_text('%', name)} = {own_type} {elements or '#' + digest(array)}"
    value_type = _type_of(graph, name)
    return line if value_type == own_type else f"{line} : {value_type}"


def _stray_values(graph: Graph) -> Iterator[str]:
    """Values that no input, constant or node makes; a sound graph has none."""
    made = {*graph.inputs, *graph.constants, *(output for node in graph.nodes for output in node.outputs)}
    return (name for name in graph.values if name not in made)
