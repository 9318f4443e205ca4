"""What is refused before a library below Python looks at it: there, such models end the whole process.

Limits of attributes are those beyond which ONNX's shape inference or ONNX Runtime's kernels crash (SIGSEGV, SIGFPE,
SIGABRT) or allocate without end: they read them before they check them. They were found by setting every attribute of
every operator that has a test in the onnx package, and of 61 of ONNX Runtime's own that run on a CPU (its kernels for
channels in blocks among them), to extreme values, one at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

import onnx
from onnx import AttributeProto

from pimflow.errors import ModelError
from pimflow.frontend.functions import FunctionKey, all_nodes, function_key
from pimflow.ir import Array, Node, OnnxOp, Value
from pimflow.onnxio.captures import subgraphs

MOST_NODES = 200_000
"""Of a model, with functions written out: a few functions that each call another twice are more."""

DEEPEST_CALLS = 100
"""Of functions in functions."""


class _Range(NamedTuple):
    least: int
    most: int


_AXIS = _Range(-64, 63)
_COUNT = _Range(1, 2**16)

_LIMITS: Mapping[str, _Range] = {
    "axis": _AXIS,
    "batch_axis": _AXIS,
    "time_axis": _AXIS,
    "batch_dims": _Range(0, 63),
    "blocksize": _COUNT,
    "group": _Range(1, 2**31 - 1),
    "num_heads": _Range(0, 2**16),
    "q_num_heads": _COUNT,
    "kv_num_heads": _COUNT,
    "max_skip_count": _Range(0, 2**16),
    "max_gram_length": _Range(1, 2**16),
}
"""By attribute, whatever the operator."""


def screen(proto: onnx.ModelProto) -> None:
    """Checks names and attributes of all nodes, in subgraphs and functions too.

    Raises:
        ModelError: two nodes of a graph have one name, an attribute is out of range, or functions have no end.
    """
    _screen(proto.graph.node, "graph")
    for function in proto.functions:
        _screen(function.node, f"function {function.name!r}")
    _check_calls(proto)


def _screen(nodes: Iterable[onnx.NodeProto], where: str) -> None:
    nodes = list(nodes)
    _check_names(nodes, where)
    for node in nodes:
        for attribute in node.attribute:
            _check_attribute(node, attribute)
        if node.op_type == "TfIdfVectorizer":
            _check_vectoriser(node)
        for body in subgraphs(node.attribute):
            _screen(body.node, f"subgraph {body.name!r}")


def _check_calls(proto: onnx.ModelProto) -> None:
    """Refuses functions that call themselves, and those that call others so often that nobody can write it out."""
    functions = {function_key(function): function for function in proto.functions}
    sizes: dict[FunctionKey, int] = {}

    def size(nodes: Iterable[onnx.NodeProto], within: tuple[FunctionKey, ...]) -> int:
        return sum(1 + called(function_key(node), within) for node in all_nodes(nodes))

    def called(key: FunctionKey, within: tuple[FunctionKey, ...]) -> int:
        if key not in functions:
            return 0
        if key in within:
            raise ModelError(f"the function {key[1]!r} calls itself", "ONNX has no recursion")
        if len(within) >= DEEPEST_CALLS:
            raise ModelError(f"calls of functions are nested deeper than {DEEPEST_CALLS}")
        if key not in sizes:
            sizes[key] = size(functions[key].node, (*within, key))
        return sizes[key]

    total = size(proto.graph.node, ())
    if total > MOST_NODES:
        raise ModelError(f"with its functions written out the model has {total} nodes; {MOST_NODES} is the most")


def _check_names(nodes: Iterable[onnx.NodeProto], where: str) -> None:
    counts = Counter(node.name for node in nodes if node.name)
    for name, count in counts.items():
        if count > 1:
            kinds = ", ".join(node.op_type for node in nodes if node.name == name)
            raise ModelError(f"{where}: {count} nodes ({kinds}) are named {name!r}", "give every node its own name")


def _check_attribute(node: onnx.NodeProto, attribute: onnx.AttributeProto) -> None:
    limits = _LIMITS.get(attribute.name)
    if limits is None or attribute.type != AttributeProto.INT or limits.least <= attribute.i <= limits.most:
        return
    raise ModelError(
        f"node {_label(node)}: the attribute {attribute.name!r} is {attribute.i}; "
        f"it must be between {limits.least} and {limits.most}"
    )


def _check_vectoriser(node: onnx.NodeProto) -> None:
    """TfIdfVectorizer finds the n-grams of `pool_*` by `ngram_counts`, and their columns by `ngram_indexes`."""
    lists = {attribute.name: attribute for attribute in node.attribute}
    indexes = list(lists["ngram_indexes"].ints) if "ngram_indexes" in lists else []
    counts = list(lists["ngram_counts"].ints) if "ngram_counts" in lists else []
    pool = next((lists[name] for name in ("pool_int64s", "pool_strings") if name in lists), AttributeProto())
    size = max(len(pool.ints), len(pool.strings))
    bounds = [*counts, size]
    ordered = all(0 <= start <= stop for start, stop in pairwise(bounds))
    grams = sum((stop - start) // length for length, (start, stop) in enumerate(pairwise(bounds), 1))
    if not ordered or grams != len(indexes) or min(indexes, default=0) < 0:
        raise ModelError(
            f"node {_label(node)}: 'ngram_counts' {counts} cut a pool of {size} into {grams} n-grams, "
            f"and there are {len(indexes)} 'ngram_indexes'"
        )


def _label(node: onnx.NodeProto) -> str:
    return f"{node.name or next(iter(node.output), '')!r} ({node.op_type})"


def screen_constants(node: Node, known: Mapping[str, Array]) -> None:
    """Checks the sizes that a node is given as constants.

    Raises:
        ModelError: one is out of range.
    """
    if not isinstance(node.op, OnnxOp) or (node.op.domain, node.op.op_type) != ("", "STFT"):
        return
    for what, name in zip(("frame_step", "", "frame_length"), node.inputs[1:], strict=False):
        array = known.get(name) if what else None
        if array is not None and (array.size != 1 or int(array.reshape(-1)[0]) < 1):
            raise ModelError(f"node {node.name!r} (STFT): {what} is {array.tolist()}; it must be 1 or more")


_CONVOLUTIONS: Mapping[str, tuple[int, int]] = {"Conv": (1, 2), "ConvTranspose": (1, 2), "QLinearConv": (3, 8)}
"""Where convolutions read their weights and their bias."""


def unfit_bias(node: Node, values: Mapping[str, Value]) -> str | None:
    """Why a convolution would read past the end of its bias, or leave some of it; None where it does not.

    Kernels of ONNX Runtime up to 1.23 do not look at the size of the bias.
    """
    if not isinstance(node.op, OnnxOp) or node.op.domain or node.op.op_type not in _CONVOLUTIONS:
        return None
    of_weights, of_bias = _CONVOLUTIONS[node.op.op_type]
    if len(node.inputs) <= of_bias or not node.inputs[of_bias]:
        return None
    weights, bias = values[node.inputs[of_weights]].shape, values[node.inputs[of_bias]].shape
    if weights is None or len(weights) < 3 or bias is None:
        return None
    channels = weights[0]
    if node.op.op_type == "ConvTranspose":
        group = dict(node.op.attributes).get("group", 1)
        channels = weights[1] * group if isinstance(group, int) else weights[1]
    if bias == (channels,):
        return None
    return f"bias {bias} does not have one element for each of {channels} channels"
