"""Graphs in files: they are read back complete, whatever the element types."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pimflow.bundle.graphs import graph_of_text, graph_text, read_graph, write_graph
from pimflow.errors import OutputError, TextError
from pimflow.ir import Array, Builder, Graph
from pimflow.ir.compare import first_difference
from pimflow.ir.text.literals import element_type


def with_constants(*arrays: Array) -> Graph:
    """A graph that reads constants."""
    build = Builder("constants")
    x = build.input(1)
    for array in arrays:
        x = build.onnx("Anything", x, build.constant(array))
    return build.graph(x)


MANY = np.arange(40, dtype=np.float32)
GRAPHS = {
    "none": with_constants(),
    "small": with_constants(MANY[:3], np.array([True])),
    "large": with_constants(MANY, MANY.astype(np.int64).reshape(4, 10), MANY > 3),
    "bfloat16": with_constants(MANY, MANY.astype(element_type("bfloat16")), np.arange(90.0)),
    "text": with_constants(np.array(["a", 'b"'] * 20, object)),
}


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)
def test_graphs_survive_a_round_trip(graph: Graph, inline: bool, tmp_path: Path) -> None:
    path = tmp_path / "graph.pimir"
    write_graph(graph, path, inline=inline)
    assert first_difference(read_graph(path), graph) is None
    assert path.read_text() == graph_text(graph, inline)
    elided = " #" in path.read_text()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["graph.pimir", "graph.pimir.npz"][: 1 + elided]


def test_only_large_numbers_are_elided() -> None:
    assert " #" not in graph_text(GRAPHS["small"])
    assert " #" not in graph_text(GRAPHS["text"])
    assert graph_text(GRAPHS["large"]).count(" #") == 3
    assert graph_text(GRAPHS["bfloat16"]).count(" #") == 1  # all constants no longer than the bfloat16 one
    assert first_difference(graph_of_text(graph_text(GRAPHS["large"], inline=True)), GRAPHS["large"]) is None


@pytest.mark.parametrize(
    ("node", "message"),
    [
        (
            'OnnxOp(%x) {op_type = "If", attributes = {a = OpaqueAttribute {serialized = b"\\xff"}}}',
            "'a' cannot be",
        ),
        (
            'Pool2d(%x) {kind = "max", kernel = [1, 1], strides = [0, 1]}',
            r"strides \(0, 1\) and dilations .*below 1",
        ),
        ('Pool2d(%x) {kind = "max", kernel = [1, 1], dilations = [1, -1]}', "below 1"),
    ],
)
def test_a_text_that_no_pass_could_work_on_is_refused(node: str, message: str) -> None:
    shape = "float32[1, 1, 2, 2]"
    text = f'graph @g opset {{"" = 17}} {{ input %x : {shape} %y = {node} : {shape} @n output %y }}'
    with pytest.raises(TextError, match=f"the text is not a valid graph: .*{message}"):
        graph_of_text(text)


def test_the_same_graph_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.pimir", "b.pimir"):
        write_graph(GRAPHS["large"], tmp_path / name)
    assert (tmp_path / "a.pimir.npz").read_bytes() == (tmp_path / "b.pimir.npz").read_bytes()


def test_nothing_is_left_if_writing_fails(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot write"):
        write_graph(GRAPHS["large"], tmp_path / "file" / "graph.pimir")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_missing_folders_are_made(tmp_path: Path) -> None:
    write_graph(GRAPHS["large"], tmp_path / "a" / "b" / "graph.pimir")
    assert (tmp_path / "a" / "b" / "graph.pimir").is_file()
