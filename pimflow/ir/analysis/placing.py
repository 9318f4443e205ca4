"""Which nodes may leave the host at all."""

from __future__ import annotations

from pimflow.ir.expansion import is_expandable
from pimflow.ir.graph import Node
from pimflow.ir.refusal import Refusal


def bound_to_host(node: Node) -> Refusal | None:
    """Why only the host can run a node, or None if other units may. Whether a unit can is decided by its backend.

    Only a kernel of its own that computes one value, or the product taken out of such a kernel, can leave the host.
    """
    if node.placement.fused_into is not None:
        return Refusal(f"{node.kind} is fused into {node.placement.fused_into}")
    if node.op.is_movement:
        return Refusal(f"{node.kind} only moves data")
    if node.placement.access is not None:
        return Refusal(f"{node.kind} brings rows from the host's memory")
    if sum(map(bool, node.outputs)) != 1 and not is_expandable(node.op):
        return Refusal(f"{node.kind} produces several values")
    return None
