"""The nodes that an operator consists of, in a graph that is being edited."""

from __future__ import annotations

from dataclasses import replace

from pimflow.ir import GraphEditor, Node
from pimflow.ir.expansion import Expansion


def write_out(editor: GraphEditor, expansion: Expansion) -> list[Node]:
    """The nodes that an operator is written out as, over values and constants that are added to the graph.

    They have the same names as in the expansion, and no placement.
    """
    inside = expansion.graph
    names = {"": "", **{name: name for name in (*inside.inputs, *inside.outputs)}}
    names |= {name: name for name in inside.constants if editor.graph.is_constant(name)}
    for name, array in inside.constants.items():
        if name not in names:
            names[name] = editor.new_constant(name, array, inside.packed_form(name))
    made: list[Node] = []
    for node in inside.nodes:
        for output in node.outputs:
            if output not in names:
                value = inside.value(output)
                names[output] = editor.new_value(output, value.shape, value.dtype)
        inputs, outputs = (tuple(names[name] for name in group) for group in (node.inputs, node.outputs))
        made.append(replace(node, inputs=inputs, outputs=outputs))
    return made
