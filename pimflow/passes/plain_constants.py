"""Constants that nodes make, as constants of the graph."""

from __future__ import annotations

from pimflow.ir import Graph, GraphEditor, Refusal
from pimflow.onnxio.folding import FOLD_LIMIT_BYTES, evaluate


def with_plain_constants(model: Graph) -> Graph:
    """A model whose Constant nodes are turned into constants: some exporters (Paddle's) write all weights that way."""
    editor = GraphEditor(model)
    for node in model.nodes:
        arrays = evaluate(node, model, model.values, {}, FOLD_LIMIT_BYTES) if node.kind == "Constant" else None
        if arrays is not None and not isinstance(arrays, Refusal):
            editor.set_constant(node.outputs[0], arrays[0])
            editor.replace_node(node.name, ())
    return editor.finish() if editor.changed else model
