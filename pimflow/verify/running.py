"""Whether a model runs at all: ONNX Runtime loads it, and runs it once on inputs of its types."""

from __future__ import annotations

import re
import warnings
from collections.abc import Container, Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from types import MappingProxyType

import numpy as np

from pimflow.errors import InputDataError, ModelError
from pimflow.frontend.reading import long_model
from pimflow.ir import (
    Array,
    BatchNorm,
    Concat,
    Elementwise,
    GlobalPool,
    Graph,
    Node,
    OnnxOp,
    Pool2d,
    Reshape,
    Transpose,
)
from pimflow.ir.analysis.tensor_layout import element_bytes
from pimflow.onnxio.export import ModelContent
from pimflow.onnxio.folding import is_random
from pimflow.onnxio.pieces import runs_in_pieces
from pimflow.onnxio.runtime import return_memory
from pimflow.onnxio.session import ran_out_of_resources
from pimflow.onnxio.sparse_patterns import pattern_bytes
from pimflow.runtime.execute.original import load_original, run_original
from pimflow.runtime.execute.ort import random_inputs
from pimflow.runtime.gpu.work import node_work
from pimflow.sparse.memory import available_bytes, size_text

MAX_RUN_BYTES = 4 * 2**30
"""If the activations of a model take more memory than this at a time, it is loaded but not run."""

MAX_ADDRESSABLE_BYTES = 2**48
"""More than any machine can address: a model that needs it runs nowhere."""

MAX_RUN_MACS = 2 * 10**10
"""If a model has more multiply-accumulates than this, and no seeded data can make it fail, it is loaded but not run: a
run would take longer than everything else, and show nothing more than loading does."""

MAX_OPTIMISED_OPERANDS = 2**16
"""If the nodes of a model have more operands than this, it is run without optimisation, in pieces if possible: the
optimiser of ONNX Runtime has about a hundred passes, and each of them visits every operand."""

MAX_RUN_S = 30.0
"""Time limit of a run, in seconds."""

_TOTAL = frozenset({"Cast", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"})
"""Other operators that run on any numbers."""

_PARTIAL = frozenset({"Div", "Mod", "Pow", "BitShift"})
"""Elementwise kinds that do not run on all integers."""

_SOUND = Elementwise, BatchNorm, Pool2d, GlobalPool, Concat, Reshape, Transpose
"""Operators that run on all floats, and that ONNX Runtime's optimiser does not break: of a Pad before a MaxPool, it may
make a pool that does not run."""

_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})

_RAMP = np.linspace(-2, 1.9, 1021, dtype=np.float32)
"""Floats on which to run a model. None is 0, which NonZero would drop. The number is a prime: rows begin at others."""

_NODE_PATTERN = re.compile(r"while running (\w+) node\. Name:'([^']*)'")
_PREFIX_PATTERN = re.compile(r"^\s*Status Message:\s*(?:/\S+:\d+ .*? was false\. )?")


class UncheckedWarning(UserWarning):
    """It is unknown whether a model runs."""


def runs_if_it_loads(graph: Graph) -> bool:
    """Whether a model that ONNX Runtime loads also runs, whatever the data: it consists of sums of products, pools,
    functions of elements, and rearrangements, whose shapes fit, of floats."""
    return live_bytes(graph) <= MAX_RUN_BYTES and all(_is_sound(graph, node) for node in graph.nodes)


def _is_sound(graph: Graph, node: Node) -> bool:
    """Whether a node runs wherever its shapes fit, which the IR has checked; unknown if anything is empty."""
    values = [graph.value(name) for name in (*node.inputs, *node.outputs) if name]
    if any(value.shape is None or 0 in value.shape or value.dtype not in _FLOATS for value in values):
        return False
    return node.op.is_contraction or (isinstance(node.op, _SOUND) and node.kind != "Mod")  # which may need integers


def check_original(
    content: ModelContent, graph: Graph, seed: int, bound: Mapping[str, Array] = MappingProxyType({})
) -> bool:
    """Runs a model before it is compiled; warns if that is impossible.

    Args:
        content: a path, or a model in memory.
        graph: the model in the IR.
        seed: of the inputs.
        bound: inputs of the model that the graph lacks, because it was read for them.

    Returns:
        Whether it runs, as far as is known.

    Raises:
        ModelError: it does not run.
    """
    try:
        reason = require_running(content, graph, seed, bound)
    except ModelError as error:
        raise ModelError(error.what, "correct the model, or compile it anyway with --no-check") from error
    if reason:
        message = f"it is not known whether the model runs: {reason}; `pimflow verify` takes your own inputs"
        fix = how_to_fix(graph)
        message += f"; `{fix}` makes an input a constant" if fix else ""
        warnings.warn(message, UncheckedWarning, stacklevel=2)
    return not reason


def how_to_fix(graph: Graph) -> str:
    """The option of `compile` that makes a constant of an input that is a single integer or boolean, as such an input
    may choose what the model computes; "" if there is none."""
    values = [graph.value(name) for name in graph.inputs]
    for value in values:
        if value.shape is not None and prod(value.shape) == 1 and value.dtype.startswith(("int", "uint", "bool")):
            return f"--fix {value.name}=VALUE"
    return ""


def check_compiled(path: Path, graph: Graph, seed: int) -> bool:
    """Runs a model that was written from a compiled graph.

    Returns:
        Whether it runs, as far as is known.

    Raises:
        ModelError: it does not run.
    """
    try:
        return not require_running(str(path), graph, seed)
    except ModelError as error:
        raise ModelError(
            f"the compiled model does not run: {error.what}", "report this bug in pimflow; --no-check skips this run"
        ) from error


def require_running(
    content: ModelContent, graph: Graph, seed: int, bound: Mapping[str, Array] = MappingProxyType({})
) -> str:
    """Loads a model, and runs it once: on values of a range if all inputs are floats, or else on seeded inputs.

    Random indices, sizes and flags are a guess: if a node that reads such data fails, that does not count against the
    model. The same holds for a run that takes too much time or memory. A model that reads no such data and has fixed
    shapes is checked by loading it; it is also run if that is quick.

    Args:
        content: a path, or a model in memory.
        graph: the same model, or one with the same inputs: determines valid inputs.
        seed: of the inputs.
        bound: inputs of the model that the graph lacks.

    Returns:
        Why the check is inconclusive; "" if the model runs.

    Raises:
        ModelError: ONNX Runtime refuses the model, fails at a node for which data make no difference, or the
            model needs more memory than any machine can have.
    """
    needed = live_bytes(graph)
    if needed > MAX_ADDRESSABLE_BYTES:
        raise ModelError(f"the model cannot run: its activations take {needed / 2**40:.3g} TiB at a time")
    if needed > MAX_RUN_BYTES:
        load_original(content)
        return f"its activations take {needed / 2**30:.3g} GiB at a time"
    if _macs(graph) > MAX_RUN_MACS and _runs_on_any_data(graph):
        load_original(content)
        return ""
    try:
        feeds = {**bound, **_inputs(graph, seed)}
    except InputDataError as error:
        load_original(content)
        return error.what
    operands = sum(len(node.inputs) for node in graph.nodes)
    refusal = _run(content, feeds) if operands <= MAX_OPTIMISED_OPERANDS else _refusal_in_pieces(content, feeds)
    return_memory(len(graph.nodes), graph.constant_bytes)
    if refusal is None:
        return ""
    complaint = _with_operands(refusal.what, graph)
    if ran_out_of_resources(refusal) or _may_depend_on_data(refusal.what, graph):
        return complaint
    raise ModelError(complaint) from refusal


def _inputs(graph: Graph, seed: int) -> dict[str, Array]:
    """Inputs to run a model on: those of a range in turn if all are floats, as importing `numpy.random` takes 10 ms.

    Raises:
        InputDataError: no input can be made.
    """
    values = [graph.value(name) for name in graph.inputs]
    if any(value.shape is None or value.dtype not in _FLOATS for value in values):
        return random_inputs(graph, seed)
    return {value.name: np.resize(_RAMP, value.shape or ()).astype(value.dtype) for value in values}


def _run(content: ModelContent, feeds: Mapping[str, Array]) -> ModelError | None:
    """Runs a model optimised, as its users do; if that fails, runs it as written, with its own names of nodes."""
    optimised = _refusal(content, feeds, optimise=True)
    if optimised is None or ran_out_of_resources(optimised):
        return optimised
    return _refusal(content, feeds, optimise=False) or ModelError(
        f"{optimised.what} (the model runs as written, but not with the optimisations of ONNX Runtime)"
    )


def _refusal(content: ModelContent, feeds: Mapping[str, Array], *, optimise: bool) -> ModelError | None:
    try:
        run_original(content, feeds, optimise=optimise, is_once=True, limit_s=MAX_RUN_S)
    except ModelError as error:
        return error
    return None


def _refusal_in_pieces(content: ModelContent, feeds: Mapping[str, Array]) -> ModelError | None:
    """Why a model of very many nodes does not run as written: asks about the whole if the pieces do not all run."""
    try:
        if runs_in_pieces(long_model(content), feeds, MAX_RUN_S):
            return None
    except ModelError as error:
        return error
    return _refusal(content, feeds, optimise=False)


def _with_operands(complaint: str, graph: Graph) -> str:
    """ONNX Runtime's message about a run, with the node's name and operands, and without positions in its source."""
    place = _NODE_PATTERN.search(complaint)
    if place is None:
        return complaint
    kind, name = place.groups()
    nodes = _possible_nodes(graph, kind, name)
    why = _PREFIX_PATTERN.sub("", complaint[place.end() :]).strip()
    if len(nodes) != 1:
        return f"node {name!r} ({kind}) cannot run: {why}"
    reads = ", ".join(f"{value.name!r} {value.type_text}" for value in graph.in_values(nodes[0]) if value is not None)
    return f"node {nodes[0].name!r} ({kind}) cannot run: {why}; it reads {reads}"


def _possible_nodes(graph: Graph, kind: str, name: str) -> list[Node]:
    """The nodes that a message may refer to: the node of that name, or all nodes of that kind."""
    named = [node for node in graph.nodes if name and node.name == name]
    return named or [node for node in graph.nodes if node.kind == kind]


def require_room(graph: Graph, arena_bytes: int = 0) -> None:
    """Refuses to run a graph whose activations exceed the free memory.

    Args:
        graph: the graph to run.
        arena_bytes: size of its arena, 0 for none: a node's results are computed outside it and copied.

    Raises:
        InputDataError: says how much is needed, and how much there is.
    """
    largest = max((_bytes(graph, filter(None, node.outputs)) for node in graph.nodes), default=0)
    needed, room = max(live_bytes(graph), arena_bytes + largest if arena_bytes else 0), available_bytes()
    if needed > room:
        raise InputDataError(
            f"running {graph.name!r} takes {size_text(needed)}, but {size_text(room)} of memory is free",
            "use a machine with more memory, or smaller sizes",
        )


def live_bytes(graph: Graph) -> int:
    """The peak bytes of activations, in the graph's order; values of unknown shape do not count.

    Sparse ops count with their ONNX pattern.
    """
    last = {name: index for index, node in enumerate(graph.nodes) for name in node.inputs}
    last |= dict.fromkeys(graph.outputs, len(graph.nodes))
    ending: dict[int, list[str]] = {}
    for name, index in last.items():
        if name and name not in graph.constants:
            ending.setdefault(index, []).append(name)
    live = most = _bytes(graph, graph.inputs)
    for index, node in enumerate(graph.nodes):
        made = [name for name in node.outputs if name]
        live += _bytes(graph, made)
        most = max(most, live + (pattern_bytes(graph, node) if node.op.is_sparse else 0))
        live -= _bytes(graph, ending.get(index, ())) + _bytes(graph, (name for name in made if name not in last))
    return most


def _bytes(graph: Graph, names: Iterable[str]) -> int:
    return sum(graph.value(name).elements * (element_bytes(graph.value(name).dtype) or 8) for name in names)


def _may_depend_on_data(complaint: str, graph: Graph) -> bool:
    """Whether a run may have failed because of its random data."""
    place = _NODE_PATTERN.search(complaint)
    if place is None:
        return False
    kind, name = place.groups()
    return _may_fail_on_data(graph, _possible_nodes(graph, kind, name) or graph.nodes)


def _macs(graph: Graph) -> int:
    """Multiply-accumulates of convolutions and dense products."""
    works = (node_work(graph, node, element_bytes=0) for node in graph.nodes if node.op.is_contraction)
    return sum(work.macs for work in works if work is not None)


def _runs_on_any_data(graph: Graph) -> bool:
    """Whether every node runs on all data that `random_inputs` makes."""
    return not _may_fail_on_data(graph, [node for node in graph.nodes if not _is_total(graph, node)])


def _may_fail_on_data(graph: Graph, nodes: Sequence[Node]) -> bool:
    """Whether one of some nodes may run on some data and fail on others."""
    of_data = _of_data(graph)
    return any(_reads_deciding_data(graph, node, of_data) for node in nodes)


def _of_data(graph: Graph) -> set[str]:
    """The values that depend on the model's data: not on constants and static shapes alone, as many sizes do."""
    found = set(graph.inputs)
    for node in graph.nodes:
        varies = is_random(node.op) or (isinstance(node.op, OnnxOp) and node.op.has_bodies)
        if varies or (not found.isdisjoint(node.inputs) and not _is_static_size(graph, node)):
            found.update(node.outputs)
    return found


def _is_total(graph: Graph, node: Node) -> bool:
    """Whether a node runs on all data that `random_inputs` makes: movements, most arithmetic, and rows of a table by
    indices that are drawn from its range."""
    values = [graph.value(name) for name in (*node.inputs, *node.outputs) if name]
    if any(value.shape is None or value.dtype == "object" for value in values):
        return False
    if isinstance(node.op, Elementwise):
        return node.op.kind not in _PARTIAL
    if isinstance(node.op, OnnxOp):
        return node.kind in _TOTAL or (node.kind == "Gather" and node.inputs[1] in graph.inputs)
    return node.op.is_movement or node.op.is_contraction


def _is_static_size(graph: Graph, node: Node) -> bool:
    return node.kind in ("Shape", "Size") and graph.value(node.inputs[0]).shape is not None


def _reads_deciding_data(graph: Graph, node: Node, of_data: Container[str]) -> bool:
    """Whether a node may run on some data and fail on others: indices, sizes, texts, and values computed from them."""
    if isinstance(node.op, OnnxOp) and node.op.has_bodies:
        return True
    values = [graph.value(name) for name in node.inputs if name in of_data]
    if any(value.shape is None or "float" not in value.dtype or "(" in value.dtype for value in values):
        return True
    behind = [value for value in values if value.name != node.inputs[0]]  # a Resize's scales, a Range's bounds
    return isinstance(node.op, OnnxOp) and any(len(value.shape or ()) <= 1 for value in behind)
