"""Explicit padding: the Pad that a convolution needs because libraries pad opposite sides alike, and what it costs.

    y = conv(x, pads = (2, 0, 1, 0))   is   y = conv(pad(x, above = 1), pads = (1, 0, 1, 0))

Parts of a convolution pad one side only. Their Pad costs nothing if the buffer of the convolution's input, which may be
made anywhere in the graph, has room for rows of zeros above and below. Whether it has depends on everything placed
around that input, so it is decided once, for all convolutions of a graph, before any of them is split: then none
occupies space that another's rows, or a free movement, needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pimflow.ir.analysis.movement import Places, place
from pimflow.ir.analysis.movement_walk import OUTSIDE
from pimflow.ir.editor import GraphEditor
from pimflow.ir.graph import Graph, Node
from pimflow.ir.ops.base import Op
from pimflow.ir.ops.contraction import Conv2d
from pimflow.ir.ops.movement import Pad
from pimflow.ir.ops.window import Pads
from pimflow.ir.placement import MovementVerdict

Verdicts = Mapping[str, MovementVerdict]
"""Verdicts on Pads, by the name of the convolution."""

_NONE: Pads = (0, 0, 0, 0)


def uneven_padding(op: Op) -> Pads:
    """How much more a convolution pads above, left, below and right than on the opposite side; zeros for other ops."""
    if not isinstance(op, Conv2d):
        return _NONE
    above, left, below, right = op.pads
    rows, columns = min(above, below), min(left, right)
    return (above - rows, left - columns, below - rows, right - columns)


def pad_before(editor: GraphEditor, conv: Node, pads: Pads, pad: Node) -> list[Node]:
    """A Pad, and the convolution that reads its result.

    Args:
        editor: the graph's editor; the padded value is added to it.
        conv: a convolution that pads at least `pads`.
        pads: cells that the Pad adds above, left, below and right of its input.
        pad: a node with the name and placement of the Pad.
    """
    assert isinstance(conv.op, Conv2d)
    above, left, below, right = pads
    value = editor.value(conv.inputs[0])
    assert value.shape is not None
    n, c, h, w = value.shape
    padded = editor.new_value(f"{value.name}_padded", (n, c, h + above + below, w + left + right), value.dtype)
    op = Pad((0, 0, above, left), (0, 0, below, right))
    top, start, bottom, end = conv.op.pads
    rest = (top - above, start - left, bottom - below, end - right)
    return [
        replace(pad, op=op, inputs=(value.name,), outputs=(padded,)),
        replace(conv, op=replace(conv.op, pads=rest), inputs=(padded, *conv.inputs[1:])),
    ]


def padding_verdicts(graph: Graph) -> Verdicts:
    """The verdicts on the Pads of all convolutions that may come to need one: the largest that a part may need.

    Args:
        graph: the graph, with the verdicts that hold for it in its movement nodes' placements.
    """
    candidates = [node for node in graph.nodes if any(_largest_pad(graph, node))]
    refused = {node.name: _outside(node) for node in candidates if _reads_an_input(graph, node)}
    candidates = [node for node in candidates if node.name not in refused]
    while True:
        fresh = _refused(graph, candidates)
        if not fresh:
            return {**refused, **{node.name: MovementVerdict(True, _FREE) for node in candidates}}
        refused |= fresh
        candidates = [node for node in candidates if node.name not in refused]


def _reads_an_input(graph: Graph, node: Node) -> bool:
    """Whether a convolution pads an input of the graph, as the first one usually does."""
    return graph.producer(node.inputs[0]) is None and not graph.is_constant(node.inputs[0])


def _outside(node: Node) -> MovementVerdict:
    return MovementVerdict(False, f"{node.inputs[0]} {OUTSIDE}")


_FREE = "space reserved around its input, filled beforehand"
_TAKEN = MovementVerdict(False, "other values lie where its zeros would be")


def _largest_pad(graph: Graph, node: Node) -> Pads:
    """The largest Pad that a part of a node may need: all padded rows, and columns that are padded unevenly."""
    if not isinstance(node.op, Conv2d) or node.device is not None or graph.value(node.inputs[0]).shape is None:
        return _NONE
    _, left, _, right = uneven_padding(node.op)
    return (node.op.pads[0], left, node.op.pads[2], right)


def _refused(graph: Graph, convolutions: Sequence[Node]) -> Verdicts:
    """Verdicts on the convolutions that cannot have their Pad if all these ask for one; empty if each can."""
    editor = GraphEditor(graph)
    names = {node.name: editor.new_node_name(f"{node.name}_pad") for node in convolutions}
    for node in convolutions:
        pad = Node(Pad((), ()), (), (), names[node.name])
        editor.replace_node(node.name, pad_before(editor, node, _largest_pad(graph, node), pad))
    places = place(editor.finish())
    verdicts = {name: places.movements[pad].verdict for name, pad in names.items()}
    refused = {name: verdict for name, verdict in verdicts.items() if not verdict.free}
    return {**_conflicting(graph, places, convolutions), **refused}


def _conflicting(graph: Graph, places: Places, convolutions: Sequence[Node]) -> Verdicts:
    """Verdicts on the convolutions with Pads that change the verdict on a movement in the space of their input."""
    disturbed = [node for node in graph.nodes if _is_disturbed(places, node)]
    crowded = {
        id(places.spaces[name]) for node in disturbed for name in (*node.inputs, *node.outputs) if name in places.spaces
    }
    near = [node.name for node in convolutions if id(places.spaces.get(node.inputs[0])) in crowded]
    if disturbed and not near:
        near = [node.name for node in convolutions]
    return dict.fromkeys(near, _TAKEN)


def _is_disturbed(places: Places, node: Node) -> bool:
    decided, actual = places.movements.get(node.name), places.actual.get(node.name)
    return decided is not None and actual is not None and (decided.free, decided.copied) != (actual.free, actual.copied)
