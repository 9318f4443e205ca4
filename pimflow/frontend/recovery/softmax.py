"""Recovery of softmax over the edges into each destination from its exported form: scatters of maxima and of sums."""

from __future__ import annotations

import numpy as np

from pimflow.frontend.recovery.rewriter import SCATTERS, Rewriter, Rows, Segments
from pimflow.frontend.structure import compact, is_uniform
from pimflow.ir import EdgeSoftmax, Node
from pimflow.records import NamedTuple


class Softmax(NamedTuple):
    """A softmax found: the op, and the logits in the exporter's order."""

    op: EdgeSoftmax
    logits: str


def match_softmax(rewriter: Rewriter, node: Node, segments: Segments) -> Softmax | None:
    """exp(e - m[d]) / (s[d] + eps), with m the maxima and s the sums of the same edges by destination; else None."""
    if node.kind != "Div":
        return None
    powers = rewriter.peel(node.inputs[0])
    exp = rewriter.producer(powers)
    shifted = rewriter.producer(rewriter.peel(exp.inputs[0])) if exp is not None and exp.kind == "Exp" else None
    if shifted is None or shifted.kind != "Sub":
        return None
    logits = rewriter.peel(shifted.inputs[0])
    floor = _floor(rewriter, shifted.inputs[1], logits, segments)
    eps = _eps(rewriter, node.inputs[1], powers, segments)
    return None if floor is None or eps is None else Softmax(EdgeSoftmax(floor, eps), logits)


def destinations_of(rewriter: Rewriter, node: Node) -> Rows | None:
    """The rows of sums by destination that a division reads, as the last step of a softmax does; else None."""
    if node.kind != "Div":
        return None
    return rewriter.rows(_without_addend(rewriter, node.inputs[1])[0])


def match_scatter(rewriter: Rewriter, name: str, reduction: str, updates: str, segments: Segments) -> Node | None:
    """The node that makes a value by reducing these updates by destination; None if it is made otherwise."""
    node = rewriter.producer(rewriter.peel(name))
    if node is None or node.kind not in SCATTERS or node.inputs[1] not in rewriter.known:
        return None
    where = rewriter.destinations(node)
    fits = rewriter.node_attributes(node).get("reduction", "none") == reduction and where is not None and not where.axis
    if not fits or where is None or rewriter.shape(node.output)[:1] != (segments.rows,):
        return None
    return node if rewriter.key(where.index) == segments.key and rewriter.peel(node.inputs[2]) == updates else None


def _value_of_destinations(rewriter: Rewriter, name: str, segments: Segments) -> str | None:
    """The value whose rows are read at the destination of every edge."""
    rows = rewriter.rows(name)
    return rows.x if rows is not None and rewriter.key(rows.index) == segments.key else None


def _floor(rewriter: Rewriter, name: str, logits: str, segments: Segments) -> float | None:
    """The initial value of the subtracted maxima."""
    maxima = _value_of_destinations(rewriter, name, segments)
    node = None if maxima is None else match_scatter(rewriter, maxima, "max", logits, segments)
    if node is None:
        return None
    base = rewriter.peel(node.inputs[0])
    filler = rewriter.producer(base)
    if filler is not None:  # the smallest of all logits is scattered first: no row's maximum is smaller
        bound = rewriter.peel(filler.inputs[2]) if len(filler.inputs) > 2 else ""
        least = match_scatter(rewriter, base, "max", bound, segments)
        if least is None or not _is_minimum(rewriter, least.inputs[2], logits):
            return None
        base = rewriter.peel(least.inputs[0])
    return _start_of_rows(rewriter, base, segments)


def _start_of_rows(rewriter: Rewriter, name: str, segments: Segments) -> float | None:
    """The value that all rows with edges have in a known array; None if they differ."""
    array = rewriter.known.get(name)
    if array is None:
        return None
    small = compact(array)
    touched = small if len(small) != segments.rows else small[segments.counts > 0]
    if not touched.size:
        return float("-inf")
    if not is_uniform(touched):
        return None
    start = float(touched.reshape(-1)[0])
    return float("-inf") if start <= float(np.finfo(np.float32).min) else start


def _is_minimum(rewriter: Rewriter, name: str, logits: str) -> bool:
    """Whether a value is the smallest of all logits, possibly expanded or with zeros added."""
    node = rewriter.producer(rewriter.peel(name))
    while node is not None and node.kind in ("Expand", "Add", "Reshape", "Unsqueeze", "Identity"):
        if node.kind == "Add":
            terms = [term for term in node.inputs if not _is_zero(rewriter, term)]
            if len(terms) != 1:
                return False
            node = rewriter.producer(terms[0])
        else:
            node = rewriter.producer(node.inputs[0])
    if node is None or node.kind != "ReduceMin" or rewriter.peel(node.inputs[0]) != logits:
        return False
    return rewriter.value(node.output).elements == 1


def _is_zero(rewriter: Rewriter, name: str) -> bool:
    array = rewriter.known.get(name)
    return array is not None and is_uniform(array) and not compact(array).any()


def _eps(rewriter: Rewriter, name: str, powers: str, segments: Segments) -> float | None:
    """The number added to the sums, before or after their rows are read at the destinations."""
    name, before = _without_addend(rewriter, name)
    sums = _value_of_destinations(rewriter, name, segments)
    if sums is None:
        return None
    sums, after = _without_addend(rewriter, sums)
    node = match_scatter(rewriter, sums, "add", powers, segments)
    return before + after if node is not None and _is_zero(rewriter, node.inputs[0]) else None


def _without_addend(rewriter: Rewriter, name: str) -> tuple[str, float]:
    """A value without a known number that is added to it, and that number."""
    node = rewriter.producer(rewriter.peel(name))
    if node is None or node.kind != "Add":
        return name, 0.0
    for term, other in (node.inputs, node.inputs[::-1]):
        array = rewriter.known.get(term)
        if array is not None and is_uniform(array):
            return other, float(compact(array).reshape(-1)[0])
    return name, 0.0
