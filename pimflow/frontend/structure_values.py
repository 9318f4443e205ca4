"""Tracks and evaluates the values of a model that depend on a bound graph, and releases those no longer needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from pimflow.frontend.structure import compact, evaluate_structure, held_bytes, is_uniform, memory_of
from pimflow.ir import Array, Gemm, Graph, Node, OnnxOp, Refusal, Value
from pimflow.ir.ops.contraction import PRODUCT
from pimflow.ir.text.literals import digest
from pimflow.onnxio.folding import FOLD_LIMIT_BYTES, evaluate

LARGE_BYTES = 1 << 20
"""Larger arrays are released if only structure reads them."""

CONTENT_BYTES = 1 << 24
"""Arrays up to this size are identified by their elements, larger ones by their memory."""

_PRODUCTS = frozenset({Gemm().onnx_name, PRODUCT.onnx_name, "Einsum"})

_EXPANDING = frozenset({"Expand", "Range", "Tile"})
"""Operators whose results may have one row per edge although their operands do not."""


class StructureValues:
    """Evaluates values that depend only on bound inputs and constants.

    A gather from weights by such a value (a matrix per edge, by type) is not evaluated: its size would be weights x
    edges. Nor is a gather of a matrix per vertex by type, which follows from the numbers of vertices alone.

    With `learnt_apart`, neither are products of such a value and other floats (a layer that reads the degrees of
    vertices), nor lookups by it in a table of floats: what they read besides is trained.

    Args:
        graph: the graph that is walked.
        known: arrays of known values; results are not added to it, but released ones are removed from it.
        bound: inputs whose elements are known; released ones are removed from it, too.
        learnt_apart: whether to leave what weights are multiplied with, or looked up by, to the model.
    """

    def __init__(
        self, graph: Graph, known: dict[str, Array], bound: dict[str, Array], *, learnt_apart: bool = False
    ) -> None:
        self.names = set(bound)
        self._learnt_apart = learnt_apart
        self._bound = bound
        self._graph = graph
        self._known = known
        self._unread = Counter(name for node in graph.nodes for name in set(node.inputs)) if bound else Counter()
        self._unread.update(graph.outputs)
        self._evaluated: dict[tuple[object, ...], tuple[Sequence[Array | None], Array]] = {}
        self._done: set[str] = set()

    def concerns(self, node: Node) -> bool:
        """Whether a node reads structural values, and not only their shapes."""
        return not self.names.isdisjoint(node.inputs) and node.kind not in ("Shape", "Size")

    def evaluate(self, node: Node, values: Mapping[str, Value]) -> list[Array] | Refusal | None:
        """The node's results; None if they also depend on values known only when the model runs."""
        op = node.op
        if not isinstance(op, OnnxOp) or not all(name in self._known for name in node.inputs if name):
            return None
        if self._picks_weights(node, 2) or (self._learnt_apart and self._multiplies_weights(node)):
            return None
        arrays = [self._known[name] if name else None for name in node.inputs]
        result = None if op.domain else self._cached(op, arrays)
        results: list[Array] | Refusal | None = [result] if result is not None else None
        if results is None and not self.is_large(node):
            results = evaluate(node, self._graph, values, self._known)
        if isinstance(results, list):
            self.names.update(name for name in node.outputs if name)
        return results

    def expanded(self, node: Node) -> list[Array] | None:
        """The result of a node that expands small operands, as a view of any size; None without a bound graph."""
        op = node.op
        if not self.names or not isinstance(op, OnnxOp) or op.domain or op.op_type not in _EXPANDING:
            return None
        if not all(name in self._known for name in node.inputs if name):
            return None
        result = self._cached(op, [self._known[name] if name else None for name in node.inputs])
        return None if result is None else [result]

    def as_views(self, node: Node, arrays: list[Array]) -> list[Array]:
        """Results with large uniform arrays (ones for every edge, which each layer makes anew) replaced by views.

        These, and large ranges (the ids of all vertices), count as structure from then on, so that results computed
        from them are views as well. No effect without a bound graph.
        """
        if not self.names:
            return arrays
        for position, (name, array) in enumerate(zip(node.outputs, arrays, strict=True)):
            uniform = array.nbytes > LARGE_BYTES and is_uniform(array)
            if uniform and held_bytes(array) > array.itemsize:
                arrays[position] = _as_view(array)
            if name and (uniform or (node.kind == "Range" and array.nbytes > LARGE_BYTES)):
                self.names.add(name)
        return arrays

    def _cached(self, op: OnnxOp, arrays: Sequence[Array | None]) -> Array | None:
        """The result of an operator, cached by its operands: every layer computes the norm of a graph."""
        key = (op, *(None if array is None else _content_key(array) for array in arrays))
        if key not in self._evaluated:
            result = evaluate_structure(op.op_type, arrays, dict(op.attributes))
            if result is None:
                return None
            self._evaluated[key] = (arrays, result)  # operands stay alive, so their identities stay unique
        return self._evaluated[key][1]

    def is_large(self, node: Node) -> bool:
        """Whether the structural operands of a node are too large to pass to ONNX Runtime."""
        read = [name for name in node.inputs if name in self.names and name in self._known]
        return sum(self._known[name].nbytes for name in read) > FOLD_LIMIT_BYTES

    def copies_matrices(self, node: Node) -> bool:
        """Whether a node gathers more matrices than its table has, by an index that does not depend on edges."""
        if not self.names or not all(name in self._known for name in node.inputs) or not self._picks_weights(node, 3):
            return False
        return self._known[node.inputs[1]].size > len(self._known[node.inputs[0]])

    def _picks_weights(self, node: Node, rank: int) -> bool:
        if node.kind not in ("Gather", "GatherND", "GatherElements"):
            return False
        table = self._known[node.inputs[0]]
        return node.inputs[0] not in self.names and table.ndim >= rank and table.dtype.kind == "f"

    def _multiplies_weights(self, node: Node) -> bool:
        """Whether a node multiplies structural values by several floats that are not."""
        others = [name for name in node.inputs[:2] if name not in self.names]
        arrays = [self._known[name] for name in others if name]
        return node.kind in _PRODUCTS and any(array.dtype.kind == "f" and array.size > 1 for array in arrays)

    def release_read(self, node: Node) -> None:
        """Marks the values whose readers have all been evaluated, and releases large ones."""
        if self.names.isdisjoint(node.inputs) or not self._is_done(node):
            return
        for name in set(node.inputs) & self.names:
            self._unread[name] -= 1
            if self._unread[name] or held_bytes(self._known[name]) <= LARGE_BYTES:
                continue
            self._done.add(name)
            if self._known[name].dtype.kind != "f":
                self._release_views(self._known[name])

    def _release_views(self, array: Array) -> None:
        """Releases an edge list, the largest kind of array, with all its views; norms are kept for later layers."""
        views = {name for name in self.names & set(self._known) if np.may_share_memory(self._known[name], array)}
        if not views <= self._done:
            return
        released = [self._known.pop(name) for name in views]
        for name in views & set(self._bound):
            del self._bound[name]
        self._done -= views
        remaining = [
            key
            for key, (read, _) in self._evaluated.items()
            if not any(view is item for view in released for item in read)
        ]
        self._evaluated = {key: self._evaluated[key] for key in remaining}

    def release(self) -> None:
        """Releases large arrays that have no readers left."""
        self._evaluated.clear()
        for name in self._done:
            del self._known[name]

    def _is_done(self, node: Node) -> bool:
        """Whether a node's results are or were known, so that it does not run."""
        return all(name in self._known or name in self.names for name in node.outputs if name)


def _as_view(array: Array) -> Array:
    return np.broadcast_to(array.reshape(-1)[:1].copy().reshape(()), array.shape)


def _content_key(array: Array) -> object:
    """A key that is equal for equal small arrays, and for views of the same memory."""
    small = compact(array)
    if small.nbytes <= CONTENT_BYTES:
        return array.shape, digest(small)
    return memory_of(array)
