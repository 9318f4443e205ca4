"""Scatters of edge values into rows of destinations, as the sparse ops that they are."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pimflow.frontend.recovery.edges import EdgeValues
from pimflow.frontend.recovery.scene import Ints, Rows, Scene, Segments
from pimflow.frontend.structure import along_rows, compact, is_uniform
from pimflow.ir import Elementwise, GatherRows, Node, Refusal, Reshape, SegmentReduce, Spmm, TypedLinear
from pimflow.ir.ops.sparse import Reduction

REDUCTIONS = {"add": "sum", "max": "max", "min": "min"}
"""ONNX's names of reductions, and ours."""


class Weight(NamedTuple):
    """What messages are multiplied by: [E] or [E, H], known, or the name of a value that has these rows."""

    array: npt.NDArray[Any] | None
    name: str
    per_head: bool


class Typed(NamedTuple):
    """Weights picked by the type of every edge: w[types[e]]."""

    weights: str
    types: Ints


class Messages(NamedTuple):
    """weights * x[source] (times matrices picked by type) for every edge, in the exporter's order."""

    rows: Rows
    weights: tuple[Weight, ...] = ()
    typed: Typed | None = None


class Aggregations:
    """Writes scatters as sparse ops."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._edges = EdgeValues(scene)

    def recover(self, node: Node) -> Refusal | None:
        """Writes a sparse op in place of a ScatterElements, or says why there is none."""
        found = self._reduction(node)
        if isinstance(found, Refusal):
            return found
        op, segments = found
        base, updates = node.inputs[0], node.inputs[2]
        computed = base not in self._scene.known
        made = self._aggregate(op, updates, segments, node)
        if computed:
            made = self._scene.write(Elementwise("Add"), base, made, like=f"{node.name}/start")
        self._scene.finish(node, made)
        return None

    def _reduction(self, node: Node) -> tuple[Reduction, Segments] | Refusal:
        """How a scatter reduces, and which edges."""
        scene, attributes = self._scene, self._scene.node_attributes(node)
        reduction, shape = attributes.get("reduction", "none"), scene.shape(node.output)
        kind = REDUCTIONS.get(reduction)
        if kind is None:
            does = "keeps one of several updates" if reduction == "none" else f"reduces by {reduction}"
            return Refusal(f"{node.name}: it {does}")
        if not shape or attributes.get("axis", 0) % len(shape):
            return Refusal(f"{node.name}: it does not scatter along the first axis")
        if node.inputs[1] not in scene.known:
            return Refusal(f"{node.name}: its index is computed when the model runs")
        index = scene.row_vector(node.inputs[1])
        if index is None or scene.shape(node.inputs[1])[1:] != shape[1:]:
            return Refusal(f"{node.name}: its index differs between columns")
        if node.inputs[0] not in scene.known and kind != "sum":
            return Refusal(f"{node.name}: its {kind} starts from values that are computed when the model runs")
        segments = scene.segments(index, shape[0])
        op = self._started(Reduction(kind), node.inputs[0], segments)
        return (op, segments) if op is not None else Refusal(f"{node.name}: what it starts from differs between rows")

    def _started(self, op: Reduction, base: str, segments: Segments) -> Reduction | None:
        """The reduction with what its rows start from; a computed base is added behind."""
        array = self._scene.known.get(base)
        if array is None:
            return op
        small = compact(array)
        by_row = len(small) == segments.rows and segments.rows > 1
        touched = small[segments.counts > 0] if by_row else small
        empty = small[segments.counts == 0] if by_row else small
        if (touched.size and not is_uniform(touched)) or (empty.size and not is_uniform(empty)):
            return None
        last = float(empty.reshape(-1)[0]) if empty.size else 0.0
        first = float(touched.reshape(-1)[0]) if touched.size else last
        return Reduction(op.reduce, first, last if empty.size else first)

    def _aggregate(self, op: Reduction, updates: str, segments: Segments, node: Node) -> str:
        fields = (op.reduce, op.start, op.empty)
        messages = self._messages(updates)
        if messages is None or len(self._scene.shape(messages.rows.x)) < 2:
            ordered = self._edges.ordered(updates, segments)
            return self._scene.write(SegmentReduce(*fields), ordered, segments.rowptr, like=node.name)
        x, col = messages.rows.x, self._scene.sources(messages.rows.index, segments)
        if messages.typed is not None:
            x, col = self._by_type(messages, messages.typed, segments, node)
        operands = [x, segments.rowptr, col]
        if messages.weights:
            operands.append(self._weight(messages.weights, segments, node))
        return self._scene.write(Spmm(*fields), *operands, like=node.name)

    # ---- what is scattered

    def _messages(self, name: str) -> Messages | None:
        scene = self._scene
        name = scene.peel(name)
        rows = scene.rows(name)
        if rows is not None:
            return Messages(rows)
        node = scene.maker(name)
        if node is None:
            return None
        if node.kind in ("Squeeze", "Reshape"):
            return self._typed(node)
        if node.kind not in ("Mul", "Div") or len(node.inputs) != 2:
            return None
        pairs = [(node.inputs[0], node.inputs[1])] + ([(node.inputs[1], node.inputs[0])] if node.kind == "Mul" else [])
        for messages, weights in pairs:
            weight = self._as_weight(weights, scene.shape(name), inverse=node.kind == "Div")
            found = None if weight is None else self._messages(messages)
            if weight is not None and found is not None and scene.shape(messages) == scene.shape(name):
                return found._replace(weights=(*found.weights, weight))
        return None

    def _as_weight(self, name: str, shape: tuple[int, ...], *, inverse: bool) -> Weight | None:
        """A factor of messages of a shape that is one number an edge, or one a head."""
        scene = self._scene
        own = scene.shape(name)
        if len(own) != len(shape) or own[0] != shape[0]:
            return None
        array = scene.known.get(name)
        if array is not None:
            return _known_weight(array, shape, inverse)
        ones = all(size == 1 for size in own[1:])
        per_head = not ones and len(own) == 3 and own[1] == shape[1] and own[2] == 1
        return None if inverse or not (ones or per_head) else Weight(None, name, per_head)

    def _typed(self, node: Node) -> Messages | None:
        """x[source] times a matrix picked by type, as a batch of vectors: [E, 1, K] @ [E, K, N], squeezed."""
        scene = self._scene
        product = scene.maker(scene.peel(node.inputs[0]))
        if product is None or not scene.is_product(product) or len(product.inputs) != 2:
            return None
        vectors, picked = (scene.maker(scene.peel(name)) for name in product.inputs)
        if vectors is None or vectors.kind not in ("Unsqueeze", "Reshape") or picked is None:
            return None
        rows, typed = scene.rows(vectors.inputs[0]), self._pick(picked)
        if rows is None or typed is None:
            return None
        edges, depth = len(rows.index), scene.shape(rows.x)[-1]
        made = (edges, scene.shape(typed.weights)[2])
        fits = len(scene.shape(rows.x)) == 2 and scene.shape(vectors.output) == (edges, 1, depth)
        return Messages(rows, (), typed) if fits and scene.shape(node.output) == made else None

    def _pick(self, node: Node) -> Typed | None:
        scene = self._scene
        if node.kind not in ("Gather", "GatherND") or len(scene.shape(node.inputs[0])) != 3:
            return None
        index, attributes = scene.known.get(node.inputs[1]), scene.node_attributes(node)
        if index is None or attributes.get("axis", 0) not in (0, -3) or attributes.get("batch_dims", 0):
            return None
        column = node.kind == "GatherND" and index.shape[1:] == (1,)
        types = along_rows(index) if column or (node.kind == "Gather" and index.ndim == 1) else None
        return None if types is None or (types.size and types.min() < 0) else Typed(node.inputs[0], types)

    # ---- operands

    def _weight(self, weights: tuple[Weight, ...], segments: Segments, node: Node) -> str:
        """All weights of an edge as one operand, [E] or [E, H]."""
        scene = self._scene
        arrays = [weight for weight in weights if weight.array is not None]
        names = [self._computed_weight(weight, segments, node) for weight in weights if weight.array is None]
        if arrays:
            per_head = any(weight.per_head for weight in (*arrays, *(item for item in weights if item.array is None)))
            product = _product([weight.array for weight in arrays if weight.array is not None], per_head)
            names.append(scene.arranged("weight", product, segments))
        ranks = {len(scene.shape(name)) for name in names}
        if len(ranks) > 1:
            names = [self._column(name, node) if len(scene.shape(name)) == 1 else name for name in names]
        total = names[0]
        for name in names[1:]:
            total = scene.write(Elementwise("Mul"), total, name, like=f"{node.name}/weight")
        return total

    def _column(self, name: str, node: Node) -> str:
        edges = self._scene.shape(name)[0]
        return self._scene.write(Reshape((edges, 1)), name, like=f"{node.name}/weight")

    def _computed_weight(self, weight: Weight, segments: Segments, node: Node) -> str:
        scene = self._scene
        ordered = self._edges.ordered(weight.name, segments)
        shape = scene.shape(ordered)
        target = shape[:2] if weight.per_head else shape[:1]
        return ordered if shape == target else scene.write(Reshape(target), ordered, like=f"{node.name}/weight")

    def _by_type(self, messages: Messages, typed: Typed, segments: Segments, node: Node) -> tuple[str, str]:
        """x W_r once for every pair of a source and a type that occurs, and the pair of every edge in CSR order.

        That is sum over r of A_r X W_r with as few rows as there are (compact materialisation, as in Hector).
        """
        scene = self._scene
        sources, kinds = scene.shape(messages.rows.x)[0], scene.shape(typed.weights)[0]
        pairs = typed.types.astype(np.int64) * sources + messages.rows.index
        unique, pair_of_edge = np.unique(pairs, return_inverse=True)
        picked = scene.constant("pair_sources", (unique % sources).astype(np.int32))
        bounds = np.searchsorted(unique, np.arange(kinds + 1, dtype=np.int64) * sources)
        pointers = scene.constant("pair_types", bounds.astype(np.int64))
        rows = scene.write(GatherRows(), messages.rows.x, picked, like=f"{node.name}/pairs")
        made = scene.write(TypedLinear(), rows, typed.weights, pointers, like=f"{node.name}/typed")
        return made, scene.sources(pair_of_edge.reshape(-1), segments)


def _known_weight(array: npt.NDArray[Any], shape: tuple[int, ...], inverse: bool) -> Weight | None:
    vector: Ints | None = along_rows(array)
    if vector is not None:
        return Weight(1 / vector if inverse else vector, "", per_head=False)
    by_head = np.broadcast_to(array, shape)[:, :, :1] if len(shape) == 3 and array.shape[2] == 1 else None
    if by_head is None:
        return None
    return Weight(1 / by_head[:, :, 0] if inverse else by_head[:, :, 0], "", per_head=True)


def _product(arrays: list[npt.NDArray[Any]], per_head: bool) -> npt.NDArray[Any]:
    """All factors of every edge: [E, H] if any is."""
    if any(array.ndim == 2 for array in arrays):
        arrays = [array[:, None] if array.ndim == 1 else array for array in arrays]
    product = arrays[0]
    for array in arrays[1:]:
        product = product * array
    return product
