"""Picks of a model: the positions of its largest elements, signs, elements above a threshold, the boxes that remain.

If two scores are closer than rounding moves them, a different pick is just as correct, and everything that depends on
it changes. So if outputs that depend on picks are off, both models run with the original's picks: then these outputs
are compared like others, and so are the operands of every pick. The picks themselves are checked by running the
compiled model's node on the operands of the original's node: it must pick the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pimflow.errors import PimflowError
from pimflow.ir import Array, Graph, Node
from pimflow.onnxio.widening import NARROW
from pimflow.runtime.execute.nodes import Execute, run_nodes
from pimflow.runtime.execute.ort import NodeKernels, random_inputs
from pimflow.verify.evidence import Evidence
from pimflow.verify.outputs import OutputCheck, compare_outputs
from pimflow.verify.reference import UnitReference

Outputs = Mapping[str, Any]

_FLOATS = NARROW | {"float32", "float64"}
_BYTES = frozenset({"int8", "uint8"})

_STEPS = frozenset(
    {"Binarizer", "Ceil", "Floor", "Round", "Sign", "ThresholdedRelu", "TreeEnsemble", "TreeEnsembleRegressor"}
)
"""Kinds of nodes whose results are floats that jump where their operand changes only a little."""


def shared_picks(graph: Graph, original: Graph) -> frozenset[str]:
    """The first results of the nodes in both graphs that pick by computed numbers.

    They produce flags or positions from floats or from bytes, or are steps; sums of bytes have 32 bits.
    """
    made = {node.outputs[0] for node in original.nodes if node.outputs and _is_pick(original, node)}
    return frozenset(node.outputs[0] for node in graph.nodes if node.outputs and node.outputs[0] in made)


def _is_pick(graph: Graph, node: Node) -> bool:
    operands = {graph.value(name).dtype for name in graph.activations(node)}
    results = {graph.value(name).dtype for name in node.outputs if name}
    of_floats = bool(operands & _FLOATS) and (node.kind in _STEPS or bool(results & {"bool", "int32", "int64"}))
    of_bytes = bool(operands & _BYTES) and bool(results & {"bool", "int64"})
    return (of_floats or of_bytes) and node.kind not in ("Shape", "Size")


def dependent_outputs(graph: Graph, picks: frozenset[str]) -> frozenset[str]:
    """The graph's outputs that depend on a pick."""
    dependent = set(picks)
    for node in graph.nodes:
        if not dependent.isdisjoint((*node.inputs, *node.outputs)):
            dependent.update(filter(None, node.outputs))
    return frozenset(dependent & set(graph.outputs))


class PickRecorder:
    """Executes nodes, and records the operands of picks; if picks are given, continues from these.

    Args:
        picks: the picks, named by their first result.
        execute: executes nodes.
        given: picks of another run.
    """

    def __init__(self, picks: frozenset[str], execute: Execute, given: PickRecorder | None = None) -> None:
        self.operands: dict[str, tuple[Array | None, ...]] = {}
        self.results: dict[str, tuple[Array, ...]] = {}
        self.wrong: set[str] = set()
        self._picks = picks
        self._execute = execute
        self._given = given

    def run(self, node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
        """The node's results, or the given picks."""
        name = node.outputs[0] if node.outputs else ""
        if name not in self._picks:
            return self._execute(node, inputs)
        self.operands[name] = tuple(None if array is None else np.array(array) for array in inputs)  # an arena's may go
        if self._given is None:
            self.results[name] = tuple(self._execute(node, inputs))
            return self.results[name]
        again = self._execute(node, self._given.operands[name])
        if not all(map(np.array_equal, again, self._given.results[name])):
            self.wrong.add(name)
        return self._given.results[name]

    def with_operands(self, outputs: Outputs) -> dict[str, Any]:
        """Outputs, together with the operands of picks that are computed numbers."""
        beside = {
            f"operand {place} of the pick {name!r}": array
            for name, operands in self.operands.items()
            for place, array in enumerate(operands)
            if array is not None and array.dtype.name in _FLOATS | _BYTES
        }
        return {**outputs, **beside}


Run = Callable[[Callable[[Execute], PickRecorder]], "tuple[Outputs, Any]"]
"""Runs the compiled model in the same way as before, with a wrapper around the function that executes host nodes."""


def check_with_picks(
    evidence: Evidence,
    checks: Sequence[OutputCheck],
    run: Run,
    reference: UnitReference,
    signal: Mapping[str, float],
    seed: int,
) -> tuple[tuple[OutputCheck, ...], tuple[str, ...]]:
    """Checks of outputs; if all failures are due to different picks, compared with the original's picks instead.

    Args:
        evidence: of the model with its own picks.
        checks: of its outputs, some of which are off.
        run: runs the compiled model.
        reference: executes nodes of units in their precision.
        signal: how much other inputs change each output.
        seed: of the inputs; the next one draws others.

    Returns:
        The checks, and a note.
    """
    graph, before, feeds = evidence.graph, evidence.original_graph, evidence.feeds
    picks = shared_picks(graph, before)
    off = {check.name for check in checks if not check.passed}
    if not off & dependent_outputs(graph, picks):
        return tuple(checks), ()
    first = PickRecorder(picks, NodeKernels(before).run)
    expected = first.with_operands(run_nodes(before, feeds, first.run))
    forced: list[PickRecorder] = []

    def wrap(execute: Execute) -> PickRecorder:
        forced.append(PickRecorder(picks, execute, first))
        return forced[-1]

    def in_precision(reference: UnitReference) -> dict[str, Any]:
        picking = wrap(reference)
        return picking.with_operands(run_nodes(graph, feeds, picking.run))

    outputs, _ = run(wrap)
    actual = forced[0].with_operands(outputs)
    same_picks = Evidence(evidence.original, graph, evidence.bound, feeds, expected)
    if evidence.values is None:
        same_picks.agree("node by node", in_precision(UnitReference(graph, {}, None)))
    same_picks.in_precision(actual, reference, in_precision)
    found = same_picks.checks(actual, {**_signal(before, expected, picks, seed), **signal})
    if forced[0].wrong or not all(
        check.passed for check in found if check.name in off or check.name not in graph.outputs
    ):
        return tuple(checks), ()
    names = ", ".join(sorted(off))
    note = f"output {names} depends on picks that rounding changed: compared with the original's picks in both models"
    own = {check.name: check for check in found}
    return tuple(own[check.name] if check.name in off else check for check in checks), (note,)


def _signal(graph: Graph, expected: Outputs, picks: frozenset[str], seed: int) -> dict[str, float]:
    """How much other random inputs change the operands of picks; empty if random inputs are invalid."""
    try:
        picking = PickRecorder(picks, NodeKernels(graph).run)
        other = picking.with_operands(run_nodes(graph, random_inputs(graph, seed + 1), picking.run))
    except PimflowError:  # random data are not valid inputs of this model
        return {}
    return {check.name: check.max_rel_err for check in compare_outputs(expected, other, 0.0)}
