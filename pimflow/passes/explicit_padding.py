"""Explicit padding: if a library pads opposite sides equally, the rest of a convolution's padding becomes a Pad.

    y = conv(x, pads = (1, 0, 0, 0))   becomes   p = pad(x, above = 1)
                                                 y = conv(p)

When a map is divided, its first rows are padded only above, its last ones only below. cuDNN's convolutions have one
pad_h and one pad_w. Movement elimination reserves space for the Pad around its input if it can.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pimflow.ir import Graph, GraphEditor, Node, Pad, Placement
from pimflow.ir.analysis.padding import pad_before, uneven_padding
from pimflow.passes.base import Pass, PassResult
from pimflow.records import dataclass


@dataclass(frozen=True)
class ExplicitPadding(Pass):
    """After placement, inserts a Pad before every convolution whose padding its device does not support.

    Args:
        devices: the devices whose convolutions pad opposite sides equally.
    """

    name: ClassVar[str] = "explicit-padding"
    required: ClassVar[bool] = True

    devices: tuple[str, ...] = ("gpu",)

    def run(self, graph: Graph) -> PassResult:
        """Insert the Pads; verdicts on Pads that turn out not to be needed are dropped."""
        editor = GraphEditor(graph)
        for node in graph.nodes:
            if node.device in self.devices and any(uneven_padding(node.op)):
                editor.replace_node(node.name, self._padded(editor, node))
            elif node.placement.padding is not None and node.device is not None:
                editor.replace_node(node.name, [node.placed(padding=None)])
        return PassResult(editor.finish(), True) if editor.changed else PassResult(graph, False)

    def _padded(self, editor: GraphEditor, conv: Node) -> Sequence[Node]:
        old = conv.placement
        origin = old.origin or conv.name
        placement = Placement(old.device, old.region, old.stage, old.choice, origin=origin, movement=old.padding)
        pad = Node(Pad((), ()), (), (), editor.new_node_name(f"pad_{conv.inputs[0]}"), placement)
        return pad_before(editor, conv.placed(padding=None), uneven_padding(conv.op), pad)
