"""What a model picks: the places of the largest elements, what is above a threshold, the boxes that remain.

Where two scores are closer than roundings move them, another pick is as right, and all that follows from it is another
result. So where outputs are off, and picks are behind them, both models run with the original's picks: then outputs are
compared as others are, and so is what every pick is made from. Picks themselves are checked by giving the compiled
model's node what the original's node reads: it has to pick the same.
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


def picks_of(graph: Graph, original: Graph) -> frozenset[str]:
    """The first results of those nodes of both graphs that pick by numbers that are computed.

    They make flags or places of floats, or of bytes; sums of bytes are of 32 bits.
    """
    made = {node.outputs[0] for node in original.nodes if node.outputs and _picks(original, node)}
    return frozenset(node.outputs[0] for node in graph.nodes if node.outputs and node.outputs[0] in made)


def _picks(graph: Graph, node: Node) -> bool:
    read = {graph.value(name).dtype for name in graph.activations(node)}
    results = {graph.value(name).dtype for name in node.outputs if name}
    of_floats = bool(read & _FLOATS) and bool(results & {"bool", "int32", "int64"})
    of_bytes = bool(read & _BYTES) and bool(results & {"bool", "int64"})
    return (of_floats or of_bytes) and node.kind not in ("Shape", "Size")


def behind(graph: Graph, picks: frozenset[str]) -> frozenset[str]:
    """The graph's outputs that depend on a pick."""
    moved = set(picks)
    for node in graph.nodes:
        if not moved.isdisjoint(node.inputs):
            moved.update(filter(None, node.outputs))
    return frozenset(moved & set(graph.outputs))


class Picking:
    """Executes nodes, and notes what picks are made from; where they are given, goes on from these.

    Args:
        picks: by their first result.
        execute: executes nodes.
        given: picks of another run.
    """

    def __init__(self, picks: frozenset[str], execute: Execute, given: Picking | None = None) -> None:
        self.read: dict[str, tuple[Array | None, ...]] = {}
        self.made: dict[str, tuple[Array, ...]] = {}
        self.wrong: set[str] = set()
        self._picks = picks
        self._execute = execute
        self._given = given

    def run(self, node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
        """The node's results, or the picks that are given."""
        name = node.outputs[0] if node.outputs else ""
        if name not in self._picks:
            return self._execute(node, inputs)
        self.read[name] = tuple(None if array is None else np.array(array) for array in inputs)  # an arena's may go
        if self._given is None:
            self.made[name] = tuple(self._execute(node, inputs))
            return self.made[name]
        again = self._execute(node, self._given.read[name])
        if not all(map(np.array_equal, again, self._given.made[name])):
            self.wrong.add(name)
        return self._given.made[name]

    def with_read(self, outputs: Outputs) -> dict[str, Any]:
        """Outputs, and beside them what picks were made from: numbers that are computed."""
        beside = {
            f"what {name!r} is picked from, operand {place}": array
            for name, operands in self.read.items()
            for place, array in enumerate(operands)
            if array is not None and array.dtype.name in _FLOATS | _BYTES
        }
        return {**outputs, **beside}


Run = Callable[[Callable[[Execute], Picking]], "tuple[Outputs, Any]"]
"""Runs the compiled model as it was run, with something around what executes nodes of the host."""


def with_picks(
    evidence: Evidence,
    checks: Sequence[OutputCheck],
    run: Run,
    reference: UnitReference,
    signal: Mapping[str, float],
    seed: int,
) -> tuple[tuple[OutputCheck, ...], tuple[str, ...]]:
    """Checks of outputs where those that are off for other picks alone are compared with the original's picks.

    Args:
        evidence: of the model, as it picks by itself.
        checks: of its outputs, some of which are off.
        run: runs the compiled model.
        reference: what nodes of units compute, in their precision.
        signal: how much other inputs change each output.
        seed: of the inputs; the next one draws others.

    Returns:
        The checks, and a note.
    """
    graph, before, feeds = evidence.graph, evidence.before, evidence.feeds
    picks = picks_of(graph, before)
    off = {check.name for check in checks if not check.passed}
    if not off & behind(graph, picks):
        return tuple(checks), ()
    first = Picking(picks, NodeKernels(before).run)
    expected = first.with_read(run_nodes(before, feeds, first.run))
    forced: list[Picking] = []

    def around(execute: Execute) -> Picking:
        forced.append(Picking(picks, execute, first))
        return forced[-1]

    def in_precision(reference: UnitReference) -> dict[str, Any]:
        picking = around(reference)
        return picking.with_read(run_nodes(graph, feeds, picking.run))

    outputs, _ = run(around)
    actual = forced[0].with_read(outputs)
    alike = Evidence(evidence.original, graph, evidence.bound, feeds, expected)
    if evidence.values is None:
        alike.agree("node by node", in_precision(UnitReference(graph, {}, None)))
    alike.in_precision(actual, reference, in_precision)
    found = alike.checks(actual, {**_signal(before, expected, picks, seed), **signal})
    if forced[0].wrong or not all(
        check.passed for check in found if check.name in off or check.name not in graph.outputs
    ):
        return tuple(checks), ()
    names = ", ".join(sorted(off))
    note = f"output {names} follows other picks than the original's, which roundings explain: compared with equal ones"
    own = {check.name: check for check in found}
    return tuple(own[check.name] if check.name in off else check for check in checks), (note,)


def _signal(graph: Graph, expected: Outputs, picks: frozenset[str], seed: int) -> dict[str, float]:
    """How much other random inputs change what is picked from; nothing where there are none."""
    try:
        picking = Picking(picks, NodeKernels(graph).run)
        other = picking.with_read(run_nodes(graph, random_inputs(graph, seed + 1), picking.run))
    except PimflowError:  # random data are no inputs of this model
        return {}
    return {check.name: check.max_rel_err for check in compare_outputs(expected, other, 0.0)}
