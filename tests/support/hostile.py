"""A model whose names contain text that a terminal or a browser would obey."""

from __future__ import annotations

import onnx

import pimflow_zoo

NAMES = (
    "<script>document.title='owned'</script>",
    "</script><script>document.title='owned'</script>",
    "<!--<script>",
    "\"' onmouseover=\"document.title='owned'\" x='",
    "a\u2028b\u2029\x07\x1b[31m",
    "<img src=http://example.invalid/x onerror=document.title='owned'>",
    "layer" * 2_000,
    "</style></svg></title></template><b>",
    "two\r\nlines\tand\x7f more \u202e",
)


def hostile_model() -> onnx.ModelProto:
    """The toy model with its nodes and values renamed."""
    model: onnx.ModelProto = pimflow_zoo.build("toy")
    renamed: dict[str, str] = {}
    for index, node in enumerate(model.graph.node):
        node.name = NAMES[index % len(NAMES)] + ("" if index < len(NAMES) else str(index))
        for place, output in enumerate(node.output):
            renamed[output] = f"{NAMES[index % len(NAMES)]}{index}"
            node.output[place] = renamed[output]
        for place, value in enumerate(node.input):
            node.input[place] = renamed.get(value, value)
    for info in (*model.graph.output, *model.graph.value_info):
        info.name = renamed.get(info.name, info.name)
    onnx.checker.check_model(model)
    return model
