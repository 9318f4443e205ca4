"""Multiplies weights with weights before they are multiplied with rows of edges: (x W_r) a_r = x (W_r a_r)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from pimflow.ir import Elementwise, GatherRows, Gemm, Graph, Node, OnnxOp, Refusal, Reshape, TypedLinear
from pimflow.passes.base import Pass, PassResult
from pimflow.passes.relations import Ints, RowWriter, picked, rewritten, types_of_rows, unmarked
from pimflow.records import NamedTuple, dataclass

Weights = npt.NDArray[Any]


@dataclass(frozen=True)
class ReorderLinear(Pass):
    """Turns two consecutive products of rows into one with the product of their weights (Hector's reordering).

    - A product with one matrix after a `TypedLinear`, or a dot product of every head with a vector (a product with
      constants, summed over the last dimension): a `TypedLinear` with W_r a.
    - A `TypedLinear` after a product with one matrix, or after another whose types follow from its own: a `TypedLinear`
      with W a_r. A bias b that the first adds to every row becomes b a_r, one row per type, which its rows read.

    Between the two, rows may be picked by constants and viewed. Constant weights are multiplied at compile time, in
    double precision; others by a node. The first product stays if other nodes read it.

    Args:
        leave: second products that stay as they are.
        fold: whether constant weights are multiplied at compile time. If they are trained, a node has to multiply them.
    """

    name: ClassVar[str] = "reorder-linear"

    leave: tuple[str, ...] = ()
    fold: bool = True

    def run(self, graph: Graph) -> PassResult:
        """Rewrite the graph; the notes say why products after another stay."""
        return rewritten(graph, self.leave, partial(_one_product, self.fold))


def _one_product(fold: bool, graph: Graph, node: Node) -> Graph | Refusal | None:
    second = _second(graph, node)
    return _reordered(graph, node, second._replace(fold=fold)) if isinstance(second, SecondProduct) else second


class SecondProduct(NamedTuple):
    """A product of rows with weights.

    Args:
        rows: the value whose rows are multiplied.
        weights: the operand: a matrix [N, M], or one per type [R, N, M], or one per type and head [R, H, C, D].
        transposed: whether the matrix is [M, N].
        pointers: the start of each type's rows; None for one matrix.
        heads: whether `weights` are [..., H, C], a vector for each head.
        bias: the added value; "" if there is none.
        fold: whether its weights may be multiplied with others at compile time.
    """

    rows: str
    weights: str
    transposed: bool = False
    pointers: Ints | None = None
    heads: bool = False
    bias: str = ""
    fold: bool = True


def _second(graph: Graph, node: Node) -> SecondProduct | Refusal | None:
    """A node as a product; None if it is not one, a refusal if it multiplies rows of edges in an unsupported way."""
    if isinstance(node.op, OnnxOp):
        return _dot_of_heads(graph, node)
    if isinstance(node.op, TypedLinear):
        pointers = graph.constants.get(node.inputs[2])
        if pointers is None:
            return Refusal("the types of its rows are only known at run time")
        if len(node.inputs) > 3:
            return Refusal("it already reads its rows by an index or adds a bias")
        return SecondProduct(node.inputs[0], node.inputs[1], pointers=pointers)
    if not node.op.is_matrix_product or len(graph.shape(node.inputs[0])) != 2:
        return None
    if len(graph.shape(node.inputs[1])) != 2 or not _follows_typed(graph, node.inputs[0]):
        return None
    gemm = node.op if isinstance(node.op, Gemm) else Gemm()
    if gemm.trans_a or gemm.alpha != 1.0 or gemm.beta != 1.0:
        return Refusal("its first operand is transposed, or a part is scaled")
    bias = node.inputs[2] if len(node.inputs) > 2 else ""
    return SecondProduct(node.inputs[0], node.inputs[1], transposed=gemm.trans_b, bias=bias)


def _follows_typed(graph: Graph, name: str) -> bool:
    producer = graph.producer(picked(graph, name).rows)
    return producer is not None and isinstance(producer.op, TypedLinear)


def _dot_of_heads(graph: Graph, node: Node) -> SecondProduct | None:
    """ReduceSum(rows [E, H, C] * constant [1, H, C]) over the last dimension."""
    assert isinstance(node.op, OnnxOp)
    if node.op.op_type != "ReduceSum" or node.op.domain:
        return None
    product = graph.producer(node.inputs[0])
    if product is None or not isinstance(product.op, Elementwise) or product.op.kind != "Mul":
        return None
    shape, axes = graph.shape(product.output), dict(node.op.attributes).get("axes")
    if len(node.inputs) > 1 and node.inputs[1] in graph.constants:
        axes = tuple(graph.constants[node.inputs[1]].tolist())
    if len(shape) != 3 or not isinstance(axes, tuple) or [int(axis) % 3 for axis in axes] != [2]:
        return None
    for rows, weights in (product.inputs, product.inputs[::-1]):
        vector = graph.constants.get(weights)
        if vector is not None and vector.size == shape[1] * shape[2] and vector.shape[-2:] == shape[1:]:
            return SecondProduct(rows, weights, heads=True) if _follows_typed(graph, rows) else None
    return None


def _reordered(graph: Graph, node: Node, second: SecondProduct) -> Graph | Refusal | None:
    """The graph with one product instead of two; None if no product comes before the second."""
    rows, picks = picked(graph, second.rows)
    first = graph.producer(rows)
    if first is None or not (isinstance(first.op, TypedLinear) or first.op.is_matrix_product):
        return None if second.pointers is None else Refusal("no product is before it")
    if len(graph.shape(rows)) != 2 or len(graph.shape(first.inputs[0])) != 2:
        return Refusal(f"{first.name}, before it, is not a product of rows")
    if isinstance(first.op, Gemm) and (first.op.trans_a or first.op.alpha != 1.0 or first.op.beta != 1.0):
        return Refusal(f"{first.name}, before it, is scaled or transposed")
    if isinstance(first.op, TypedLinear) and len(first.inputs) > 3:
        return Refusal(f"{first.name}, before it, already reads its rows by an index or adds a bias")
    if isinstance(first.op, TypedLinear):
        return _after_typed(graph, node, second, first, picks)
    return _write(graph, node, second, first, picks, None)


def _after_typed(graph: Graph, node: Node, second: SecondProduct, first: Node, picks: Ints | None) -> Graph | Refusal:
    pointers = graph.constants.get(first.inputs[2])
    if pointers is None:
        return Refusal(f"{first.name}, before it, has types that are only known at run time")
    if second.pointers is None:
        return _write(graph, node, second, first, picks, None)
    types = types_of_rows(pointers)
    own = types if picks is None else types[picks]
    begins = second.pointers[:-1]
    of_type = np.where(
        np.diff(second.pointers) > 0, own[np.minimum(begins, max(len(own) - 1, 0))] if len(own) else 0, 0
    )
    if not np.array_equal(np.repeat(of_type, np.diff(second.pointers)), own):
        return Refusal(f"its types do not determine those of {first.name}, before it")
    return _write(graph, node, second, first, picks, of_type)


def _write(
    graph: Graph, node: Node, second: SecondProduct, first: Node, picks: Ints | None, of_type: Ints | None
) -> Graph | Refusal:
    """Replace both products by one `TypedLinear`.

    Args:
        graph: the graph.
        node: the second product, as a node of the graph.
        second: what it multiplies.
        first: the first product.
        picks: the rows of the first that the second multiplies.
        of_type: by type of the second, the weights of the first that it uses; None if one of the two has no types.
    """
    write, made = RowWriter(graph), list[Node]()
    weights, bias = _weight_product(write, made, node, second, first, of_type), _biases(graph, second, first)
    if isinstance(weights, Refusal):
        return weights
    if isinstance(bias, Refusal):
        return bias
    rows = first.inputs[0]
    picks_last = second.pointers is None  # rows are picked where there are the fewest columns
    if not picks_last and picks is not None:
        made.append(write.node(GatherRows(), (rows, write.index("rows", picks)), f"{node.name}_rows"))
        rows = made[-1].output
    pointers = first.inputs[2] if second.pointers is None else node.inputs[2]
    made.append(write.node(TypedLinear(), (rows, weights, pointers), f"{node.name}_reordered"))
    if picks_last and picks is not None:
        made.append(write.node(GatherRows(), (made[-1].output, write.index("rows", picks)), f"{node.name}_rows"))
    if bias is not None and second.pointers is not None:
        inputs = (write.constant("bias_of_types", bias), write.index("types", types_of_rows(second.pointers)))
        products, of_rows = made[-1].output, write.node(GatherRows(), inputs, f"{node.name}_biases")
        made += [of_rows, write.node(Elementwise("Add"), (products, of_rows.output), f"{node.name}_biased")]
    if second.bias:
        made.append(write.node(Elementwise("Add"), (made[-1].output, second.bias), f"{node.name}_bias"))
    shape = graph.shape(node.output)
    if write.shape(made[-1].output) != shape:
        made.append(write.node(Reshape(shape), (made[-1].output,), f"{node.name}_view"))
    made[-1] = replace(unmarked(made[-1]), outputs=node.outputs)
    write.editor.replace_node(node.name, made)
    return write.finish()


def _biases(graph: Graph, second: SecondProduct, first: Node) -> Weights | Refusal | None:
    """The bias of the first product times each type's weights, [R, M]; None if it adds nothing."""
    name = first.inputs[2] if isinstance(first.op, Gemm) and len(first.inputs) > 2 else ""
    if not name:
        return None
    given, weights = graph.constants.get(name), graph.constants.get(second.weights)
    if given is None or weights is None or not second.fold or given.size != graph.shape(first.output)[1]:
        return Refusal(f"{first.name}, before it, adds a value that is computed, trained, or not a vector")
    rows = _multiplied(given.reshape(1, -1).astype(np.float64), _as_matrices(second, weights).astype(np.float64))
    biases: Weights = rows.reshape(len(rows), -1).astype(given.dtype)
    return biases


def _weight_product(
    write: RowWriter, made: list[Node], node: Node, second: SecondProduct, first: Node, of_type: Ints | None
) -> str | Refusal:
    """The weights of both products as one operand, [R, K, M]."""
    known = [write.graph.constants.get(name) for name in (first.inputs[1], second.weights)]
    left, right = known
    if left is None or right is None or not second.fold:
        products = [one.op for one in (node, first) if one.op.is_matrix_product and not isinstance(one.op, Gemm)]
        if second.heads or of_type is not None or not products or len(write.shape(second.weights)) > 3:
            return Refusal("its weights are computed, and are laid out for another product")
        made.append(write.node(products[0], (first.inputs[1], second.weights), f"{node.name}_weights"))
        return made[-1].output
    if isinstance(first.op, Gemm) and first.op.trans_b:
        left = left.T
    if of_type is not None:
        left = left[of_type]
    product = _multiplied(left.astype(np.float64), _as_matrices(second, right).astype(np.float64))
    return write.constant(f"{node.name}_weights", product.astype(left.dtype))


def _multiplied(left: Weights, right: Weights) -> Weights:
    """[K, N] or [R, K, N] times [N, M] or [R, N, M]; with heads [R, H, C, D], H * C = N, each head by its own."""
    if right.ndim < 4:
        plain: Weights = left @ right
        return plain
    types, heads, width, columns = right.shape
    by_head = left.reshape(*left.shape[:-1], heads, width)
    product: Weights = np.einsum("...khc,rhcd->rkhd" if left.ndim == 2 else "rkhc,rhcd->rkhd", by_head, right)
    return product.reshape(types, left.shape[-2], heads * columns)


def _as_matrices(second: SecondProduct, weights: Weights) -> Weights:
    """The second product's weights as [N, M], or [R, N, M]."""
    if second.transposed:
        transposed: Weights = weights.T
        return transposed
    if not second.heads:
        return weights
    heads, width = weights.shape[-2:]
    matrix = np.zeros((heads * width, heads), weights.dtype)
    for head, vector in enumerate(weights.reshape(heads, width)):
        matrix[head * width : (head + 1) * width, head] = vector
    return matrix
