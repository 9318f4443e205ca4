"""Which constants of a model are its parameters, as training sees them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from pimflow.ir import (
    BatchNorm,
    Conv2d,
    Elementwise,
    GatherPairs,
    Gemm,
    Graph,
    Node,
    OnnxOp,
    Sddmm,
    TypedLinear,
    TypedSpmm,
)
from pimflow.ir.gradients import INITIAL_STATES, TRAINED_INPUTS
from pimflow.onnxio.captures import capture_count, passed_on
from pimflow.passes.plain_constants import with_plain_constants
from pimflow.passes.trainable import (
    combines_learnt,
    is_float_in_range,
    is_trainable,
    is_unmasked,
    multiplies_weights,
    picks_rows,
    stored,
)


def parameters(graph: Graph, model: Graph | None = None, given: Collection[str] = ()) -> tuple[str, ...]:
    """The constants that are trained, in the order in which nodes read them.

    Args:
        graph: the graph to train.
        model: the same graph before constants were folded: a constant that was not computed from a parameter (zeros to
            add to) is not trained.
        given: constants of the model that are data; so is what was computed from them alone.

    Returns:
        names of constants.

    Float constants of more than one element, none of them huge or not finite, are trained if they are an operand of a
    contraction, the scale or shift of a norm, a table for lookups of rows, what the body of a Loop, a Scan or an If
    reads from the surrounding graph, what a Loop carries unchanged, or, unless they are a mask, an operand of another
    elementwise op on a computed value; or if only movements bring them there. Those of one element are trained where
    they cannot be a setting: as weights and biases of contractions, scales and shifts of batch norms, slopes of PRelu.

    Constants whose elements are all equal are data, not parameters, where weights multiply them (ones for vertices
    without features, the zeros with which a recurrent cell begins), as the initial state of a recurrent operator, in a
    norm whose result is scaled later, and, if they are zeros, where they are a mask of what a Softmax reads or
    something is subtracted from them.
    """
    found: dict[str, None] = {}
    model = None if model is None else with_plain_constants(model)
    data = {node.inputs[0] for node in graph.nodes if _multiplies_uniform(graph, node)}
    for node in graph.nodes:
        of_several = is_unmasked if node.op.onnx_name in _SCALED or _has_bodies(node) else is_trainable
        for position in _trained_positions(graph, node):
            is_trained = is_float_in_range if _may_be_single(graph, node, position) else of_several
            for name in _sources(graph, node.inputs[position]):
                if name in data or not is_trained(graph, name):
                    continue
                if model is None or _is_made_of_parameters(model, name, is_trained, given):
                    found[name] = None
    return tuple(found)


def _is_made_of_parameters(
    model: Graph, name: str, is_trained: Callable[[Graph, str], bool], given: Collection[str]
) -> bool:
    """Whether a constant that may be the result of folding was computed from the elements of a trainable constant."""
    waiting, seen = [name], {name}
    while waiting:
        current = waiting.pop()
        producer = model.producer(current)
        if current in given:
            continue
        if producer is None and (current not in model.values or is_trained(model, current)):
            return True
        reads = () if producer is None or producer.kind in ("Shape", "Size") else producer.inputs
        waiting += [read for read in reads if read and read not in seen]
        seen.update(waiting)
    return False


_SCALED = frozenset({"Add", "Sub", "Mul", "PRelu", "Sum"})


def _trained_positions(graph: Graph, node: Node) -> Iterator[int]:
    """The positions of a node's inputs that are parameters if they are constants."""
    op, count = node.op, len(node.inputs)
    if isinstance(op, (BatchNorm,)):
        yield from (1, 2)
    elif isinstance(op, OnnxOp) and (trained := TRAINED_INPUTS.get((op.domain, op.op_type))) is not None:
        states = INITIAL_STATES.get((op.domain, op.op_type), ())
        yield from (place for place in trained if place < count)
        yield from (place for place in states if place < count and not _is_uniform(graph, node.inputs[place]))
    elif _is_scaled_later(graph, node):
        return
    elif op.is_contraction or isinstance(op, (Conv2d, Gemm, TypedLinear, TypedSpmm)) or multiplies_weights(op):
        yield from range(min(count, 3))
        yield from range(4, count if isinstance(op, TypedLinear) else 0)  # a bias by type
    elif picks_rows(op):
        yield 0
    elif isinstance(op, OnnxOp) and _has_bodies(node):
        own = count - capture_count(node)
        yield from range(own, count)
        yield from (place for place in (passed_on(op) if node.kind == "Loop" else ()) if 1 < place < own)
    elif op.is_sparse:
        yield from range(2 if isinstance(op, GatherPairs | Sddmm) else 1)  # weights of edges belong to the graph
    elif _reads_learnt(graph, node):
        yield from (place for place in range(count) if not _is_zero(graph, node, place))


def _may_be_single(graph: Graph, node: Node, position: int) -> bool:
    """Whether an operand is one element that, as a constant, is a parameter, and no setting such as a factor."""
    op, name = node.op, node.inputs[position]
    if not name or graph.value(name).elements != 1:
        return False
    if op.onnx_name == "PRelu":
        return position == 1
    if op.onnx_name == "Add":
        return _is_bias_of_one(graph, node, position)
    if op.is_contraction or isinstance(op, BatchNorm):
        return True
    if multiplies_weights(op) and not op.onnx_name.endswith("Normalization"):  # ones are where groups are scaled
        return True
    return isinstance(op, OnnxOp) and TRAINED_INPUTS.get((op.domain, op.op_type)) is not None


def _is_bias_of_one(graph: Graph, node: Node, position: int) -> bool:
    """Whether an Add's operand is a vector of one element that is added to a product of one column."""
    if graph.shape(node.inputs[position]) != (1,):
        return False
    product = graph.producer(node.inputs[1 - position])
    return product is not None and product.op.is_contraction and graph.shape(product.output)[-1:] == (1,)


def _is_uniform(graph: Graph, name: str) -> bool:
    """Whether a value is a constant all of whose elements are equal."""
    array = graph.constants.get(name)
    if array is None or not array.size:
        return False
    elements = stored(array)
    return bool((elements == elements.flat[0]).all())


def _multiplies_uniform(graph: Graph, node: Node) -> bool:
    """Whether a node multiplies a uniform constant by weights."""
    if not node.op.is_contraction or len(node.inputs) < 2 or not _is_uniform(graph, node.inputs[0]):
        return False
    return any(is_trainable(graph, name) for name in _sources(graph, node.inputs[1]))


def _is_scaled_later(graph: Graph, node: Node) -> bool:
    """Whether a norm leaves scale and shift to the nodes behind it, as exporters write the norm of groups of channels:
    its own are ones and zeros, one for each group."""
    if node.kind != "InstanceNormalization" or not all(_is_uniform(graph, name) for name in node.inputs[1:3]):
        return False
    scale, shift = (graph.constants[name].flat[0] for name in node.inputs[1:3])
    readers = graph.users(node.output)
    while len(readers) == 1 and readers[0].op.is_movement:
        readers = graph.users(readers[0].output)
    scaled = len(readers) == 1 and readers[0].kind == "Mul" and any(map(graph.is_constant, readers[0].inputs))
    return bool(scaled and scale == 1 and shift == 0)


def _is_zero(graph: Graph, node: Node, position: int) -> bool:
    """Whether an operand of an elementwise op is zeros that are no parameter: a mask that masks nothing, for the rows
    and columns that a Softmax reads, or what something is subtracted from."""
    name = node.inputs[position]
    rows_and_columns = [size for size in graph.value(name).shape or () if size > 1]
    masks = node.kind == "Add" and [reader.kind for reader in graph.users(node.output)] == ["Softmax"]
    if not (masks and len(rows_and_columns) > 1) and not (node.kind == "Sub" and position == 0):
        return False
    return _is_uniform(graph, name) and not stored(graph.constants[name]).any()


def _has_bodies(node: Node) -> bool:
    return isinstance(node.op, OnnxOp) and node.op.has_bodies


def _reads_learnt(graph: Graph, node: Node) -> bool:
    """Whether an elementwise op reads parameters: constants next to computed values, or two that it combines."""
    if node.op.onnx_name in _SCALED and not all(map(graph.is_constant, node.inputs)):
        return True
    return combines_learnt(node.op, [{name} if is_unmasked(graph, name) else set() for name in node.inputs])


def _sources(graph: Graph, name: str) -> Iterator[str]:
    """The constants that reach a value through movements and through sums of constants."""
    if not name or graph.is_constant(name):
        yield name
        return
    producer = graph.producer(name)
    if producer is not None and _is_sum_of_constants(graph, producer):
        for source in producer.inputs:
            yield from _sources(graph, source)
    elif producer is not None and (producer.op.is_movement or producer.kind in ("Cast", "Expand")):
        for source in producer.inputs[: 1 if isinstance(producer.op, OnnxOp) else None]:
            yield from _sources(graph, source)


def _is_sum_of_constants(graph: Graph, node: Node) -> bool:
    """Whether a node is a sum of constants, as of weights multiplied with the same rows; clean-up folds all others."""
    producers = (graph.producer(name) for name in node.inputs if name and not graph.is_constant(name))
    added = isinstance(node.op, Elementwise) and node.op.kind == "Add"
    return added and all(producer is not None and _is_sum_of_constants(graph, producer) for producer in producers)
