"""Runs graphs in ONNX Runtime: the oracle for every rewrite, and the kernels of the arena executor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pimflow.errors import InputDataError, ModelError
from pimflow.ir import Array, Graph, Node, Op, Value
from pimflow.ir.analysis.integer_ranges import QUANTISED, IntegerRange, integer_ranges
from pimflow.onnxio.folding import is_random
from pimflow.onnxio.npz import read_npz
from pimflow.onnxio.session import GraphSession
from pimflow.onnxio.tensors import numpy_dtype
from pimflow.runtime.execute.segments import SegmentedRun
from pimflow.runtime.execute.sparse_values import SPARSE_VALUES

Signature = tuple[Op, tuple[tuple[Any, ...], ...], int]


class OrtRunner:
    """A graph with its session, to be run many times. numpy runs the sparse ops, ONNX Runtime everything between them.

    Args:
        graph: any graph.
        fetch: values to return in addition to the graph's outputs (any node's results).
        threads: number of threads per operator.
        optimise: whether ONNX Runtime may fuse and fold; otherwise it runs the graph node by node as written.
        fuse_quantised: whether it may compute the nodes between (de)quantisations in 8 bits.

    Raises:
        ModelError: ONNX Runtime refuses the graph.
    """

    def __init__(
        self,
        graph: Graph,
        fetch: Sequence[str] = (),
        *,
        threads: int = 2,
        optimise: bool = True,
        fuse_quantised: bool = True,
    ) -> None:
        self.graph = graph
        extra = [name for name in dict.fromkeys(fetch) if name not in graph.outputs]
        produced = {name for node in graph.nodes for name in node.outputs}
        unknown = [name for name in extra if name not in produced]
        if unknown:
            raise ModelError(f"graph {graph.name!r} computes no value {unknown[0]!r}")
        whole = graph.replace(outputs=(*graph.outputs, *extra))
        kind = SegmentedRun if any(node.op.is_sparse for node in graph.nodes) else GraphSession
        self._session: SegmentedRun | GraphSession = kind(whole, threads, optimise, fuse_quantised)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs (and fetched values) by name; see `operands`.

        Raises:
            InputDataError: an input is missing, unknown, or has another shape or element type.
            ModelError: ONNX Runtime fails.
        """
        check_inputs(self.graph, inputs)
        return self._session.run(operands(self.graph, inputs))


def operands(graph: Graph, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A caller's values for a graph's inputs, in the form that ONNX Runtime expects.

    Arrays for tensors, lists of arrays for sequences; an optional input that is absent may be None or missing.

    Raises:
        InputDataError: an input is missing, unknown, or has another shape or element type.
    """
    check_inputs(graph, inputs)
    return {name: _operand(graph.value(name), inputs.get(name)) for name in graph.inputs}


def read_inputs(graph: Graph, path: str | Path) -> dict[str, Any]:
    """A graph's inputs from an .npz file, by name: for sequences also as elements `NAME[0]`, `NAME[1]` and so on.

    An array with the name of a sequence has the elements along its first axis; one without any is an empty sequence.

    Raises:
        InputDataError: it is not an npz file, or a sequence is given twice or in part.
    """
    arrays: dict[str, Any] = read_npz(path)
    for name in graph.inputs:
        if "seq(" not in graph.value(name).dtype:
            continue
        elements = {key: arrays.pop(key) for key in list(arrays) if _is_element(key, name) and key not in graph.inputs}
        names = [f"{name}[{place}]" for place in range(len(elements))]
        if elements and name in arrays:
            raise InputDataError(f"{path} has both {name!r} and {next(iter(elements))!r}", "leave out one of them")
        missing = next((key for key in names if key not in elements), None)
        if missing is not None:
            raise InputDataError(
                f"{path} has {max(elements, key=_place)!r}, but not {missing!r}", "number elements from 0"
            )
        if elements:
            arrays[name] = [elements[key] for key in names]
        elif name in arrays and np.ndim(arrays[name]):
            arrays[name] = list(arrays[name])
    return arrays


_MAX_DIGITS = 9
"""The maximum length of an element's number: Python refuses to read thousands of digits."""


def _is_element(key: str, name: str) -> bool:
    """Whether a name in a file is that of an element of a sequence: NAME[0], NAME[1], .."""
    place = _place(key)
    return place >= 0 and key == f"{name}[{place}]"


def _place(key: str) -> int:
    """The number at the end of NAME[number]; -1 if there is none."""
    digits = key.removesuffix("]").rpartition("[")[2]
    return int(digits) if digits.isdecimal() and digits.isascii() and len(digits) <= _MAX_DIGITS else -1


def _operand(value: Value, item: Any) -> Any:
    if item is None or isinstance(item, dict):
        return item
    if "seq(" in value.dtype:
        return [_operand(Value(value.name, None, ""), element) for element in item]
    return np.asarray(item)


def check_inputs(graph: Graph, inputs: Mapping[str, Any]) -> None:
    """Checks that data matches a graph's inputs.

    Raises:
        InputDataError: an input is missing, unknown, or has another shape or element type.
    """
    known = ", ".join(graph.inputs)
    for name in inputs:
        if name not in graph.inputs:
            raise InputDataError(f"{name!r} is not an input of {graph.name!r}", f"its inputs are {known}")
    for name in graph.inputs:
        value, given = graph.value(name), inputs.get(name)
        if given is None and value.dtype.startswith("optional("):
            continue
        if given is None:
            raise InputDataError(f"the input {name!r} of {graph.name!r} is missing", f"its inputs are {known}")
        if value.dtype.startswith("seq(") and not isinstance(given, (list, tuple)):
            kind = type(given).__name__
            raise InputDataError(f"the input {name!r} is of type {kind}, but the model takes a list ({value.dtype})")
        if value.shape is None:
            continue
        array = np.asarray(given)
        if value.shape != array.shape or not _same_type(value.dtype, array):
            raise InputDataError(
                f"the input {name!r} is {array.dtype.name}{list(array.shape)}, but "
                f"the model takes {value.dtype}{list(value.shape)}"
            )


def _same_type(dtype: str, array: Array) -> bool:
    return array.dtype.name == dtype or (dtype == "object" and array.dtype.kind in "OU")


def run_graph(
    graph: Graph,
    inputs: Mapping[str, Any],
    fetch: Sequence[str] | None = None,
    *,
    threads: int = 2,
    fuse_quantised: bool = True,
) -> dict[str, Array]:
    """Runs a graph once.

    Args:
        graph: any graph.
        inputs: arrays by input name.
        fetch: the values to return, of any node; None for the graph's outputs.
        threads: number of threads per operator.
        fuse_quantised: whether ONNX Runtime may compute the nodes between (de)quantisations in 8 bits.

    Raises:
        InputDataError: the inputs do not match the graph.
        ModelError: ONNX Runtime refuses the graph or fails.
    """
    names = graph.outputs if fetch is None else tuple(fetch)
    results = OrtRunner(graph, names, threads=threads, fuse_quantised=fuse_quantised).run(inputs)
    return {name: results[name] for name in names}


def random_inputs(graph: Graph, seed: int) -> dict[str, Array]:
    """Random values for each input, of its type, from a seed.

    Floats are standard normal, booleans either value, text a digit. Integers that become indices are drawn from the
    valid range (token ids from the whole vocabulary), other integers of at most 8 bits from their full range, and the
    rest, which may be masks, counts or sizes, are 0 or 1; divisors are not 0.

    Raises:
        InputDataError: an input has a type for which random data makes no sense (sequences).
    """
    rng = np.random.default_rng(seed)
    ranges = integer_ranges(graph)
    return {name: _random(graph.value(name), ranges.get(name), rng) for name in graph.inputs}


def _random(value: Value, integers: IntegerRange | None, rng: np.random.Generator) -> Array:
    if value.shape is None:
        raise InputDataError(
            f"cannot generate random data for the input {value.name!r} of type {value.dtype or 'unknown'}",
            "give your own inputs",
        )
    if value.dtype == "object":
        return rng.integers(0, 10, value.shape).astype(str).astype(object)
    if value.dtype == "bool":
        return rng.integers(0, 2, value.shape).astype(np.bool_)
    if value.dtype.startswith(("int", "uint")):
        every = _every_integer(value.dtype)
        least, most = every if integers is None else every.intersection(integers)
        if value.dtype not in QUANTISED and (integers is None or integers.most > _MOST_INDICES):
            least = max(least, 0)
            most = least + 1
        return rng.integers(least, most, value.shape, np.int64, endpoint=True).astype(numpy_dtype(value.dtype))
    return rng.standard_normal(value.shape).astype(np.float32).astype(value.dtype)


_MOST_INDICES = 2**40
"""More than any table has: a higher end of a range stands for none."""


def _every_integer(dtype: str) -> IntegerRange:
    bits = int(dtype.removeprefix("u").removeprefix("int"))
    if dtype.startswith("u"):
        return IntegerRange(0, min(2**bits, 2**63) - 1)
    return IntegerRange(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


class NodeKernels:
    """Single-node sessions for a graph's nodes, created on first use and cached.

    Nodes with equal ops, input types and the very same constants share a session. Constants are part of the session, so
    that ONNX Runtime can pack them once. A node that draws random numbers has a new session each time: it draws those
    that the whole model would draw in its first run, with the seed that it has.

    Args:
        graph: the graph whose nodes are run.
        threads: number of threads per operator.
    """

    def __init__(self, graph: Graph, *, threads: int = 1) -> None:
        self.graph = graph
        self.threads = threads
        self._sessions: dict[Signature, GraphSession] = {}

    @property
    def count(self) -> int:
        """The number of sessions created so far."""
        return len(self._sessions)

    def run(self, node: Node, inputs: Sequence[Array | None]) -> list[Array]:
        """The node's results (one for each output that has a name).

        Args:
            node: a node of the graph.
            inputs: one for each of the node's inputs; None for absent ones; for constants an array or None.

        Raises:
            ModelError: ONNX Runtime refuses the node or fails.
        """
        if node.op.is_sparse:
            return [SPARSE_VALUES.of(node.op)(node.op, self._with_constants(node, inputs))]
        session = self._session(node)
        feeds = {
            f"i{index}": array
            for index, (name, array) in enumerate(zip(node.inputs, inputs, strict=True))
            if name and name not in self.graph.constants and array is not None
        }
        results = session.run(feeds)
        return [results[f"o{index}"] for index, name in enumerate(node.outputs) if name]

    def _with_constants(self, node: Node, inputs: Sequence[Array | None]) -> list[Array | None]:
        pairs = zip(node.inputs, inputs, strict=True)
        return [self.graph.constants.get(name) if array is None else array for name, array in pairs]

    def _session(self, node: Node) -> GraphSession:
        if is_random(node.op):
            return GraphSession(single_node_graph(self.graph, node), self.threads)
        key = (node.op, tuple(self._input_key(name) for name in node.inputs), len(node.outputs))
        if key not in self._sessions:
            self._sessions[key] = GraphSession(single_node_graph(self.graph, node), self.threads)
        return self._sessions[key]

    def _input_key(self, name: str) -> tuple[Any, ...]:
        if not name:
            return ()
        if name in self.graph.constants:
            return (name,)
        value = self.graph.value(name)
        return (value.shape, value.dtype)


def single_node_graph(graph: Graph, node: Node) -> Graph:
    """A graph of one node, with inputs i0, i1, .. and outputs o0, o1, ..; constants stay constants."""
    inputs = tuple(f"i{index}" if name else "" for index, name in enumerate(node.inputs))
    outputs = tuple(f"o{index}" if name else "" for index, name in enumerate(node.outputs))
    pairs = [*zip(inputs, node.inputs, strict=True), *zip(outputs, node.outputs, strict=True)]
    values = {new: Value(new, graph.value(old).shape, graph.value(old).dtype) for new, old in pairs if new}
    constants = {
        new: graph.constants[old] for new, old in zip(inputs, node.inputs, strict=True) if old in graph.constants
    }
    return Graph(
        name=node.name,
        inputs=tuple(name for name in inputs if name and name not in constants),
        outputs=tuple(name for name in outputs if name),
        nodes=(Node(node.op, inputs, outputs, node.name),),
        values=values,
        constants=constants,
        opset=graph.opset,
    )
