"""Compares values one by one: what the rewritten graph computes from the original's own values, in single precision.

Values keep their names through all rewrites. Each value that both graphs compute is compared, and the rewritten graph
then continues from the original's: errors do not accumulate, and a (quantised) value that is rounded the other way has
no further effect. So the bound stays narrow however deep or coarse the network is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pimflow.ir import Array, Graph, Node
from pimflow.ir.graph import topological_order
from pimflow.onnxio.folding import is_random
from pimflow.onnxio.widening import NARROW, single_precision, widened
from pimflow.records import NamedTuple
from pimflow.runtime.execute.nodes import NodeRun, run_nodes
from pimflow.runtime.execute.ort import NodeKernels
from pimflow.verify.blocks import Numbers, largest_magnitude, steps_off
from pimflow.verify.outputs import DEFAULT_RTOL, compare_outputs
from pimflow.verify.reference import STEP, magnitudes, quantises

STEPPED_SHARE = 0.01
"""Share of quantised elements (one at least) that may be off by a step: rounding is that often near a half."""

TIE_RTOL = 2.0**-20
"""How near to a half an exact tie is after a few operations in single precision, relative to the largest magnitude."""

MAX_HELD_BYTES = 4 << 30
"""Limit on values of the original that are held at a time, because it computes them earlier than they are needed.
Values beyond the limit are not compared."""


class PartsCheck(NamedTuple):
    """The result of comparing parts of a model: their number, the largest relative error, and errors of wrong ones."""

    checked: int
    largest_error: float
    wrong: Mapping[str, float]


def compare_values(before: Graph, after: Graph, feeds: Mapping[str, Array]) -> tuple[dict[str, Any], PartsCheck]:
    """The original's outputs in single precision, and how far each value of the rewritten graph is from the original's.

    Args:
        before, after: the original and the rewritten graph.
        feeds: arrays by input name.
    """
    rounded = _rounded_constants(before, after, feeds)
    constant = [name for name in rounded if name in after.constants]
    made = {name: array.dtype.name for name, array in after.constants.items() if name not in before.values}
    before, after = widened(_reordered_like(before, after)), widened(after)
    wide = {name: single_precision(array) for name, array in feeds.items()}
    known = _OriginalValues(
        NodeRun(before, wide, _FixedResults(before, rounded)),
        {name for node in after.nodes for name in node.outputs if name},
    )
    forced = _ValueComparison(after, known, {name: STEP[dtype] / 2 for name, dtype in made.items() if dtype in STEP})
    for name in constant:
        array = rounded[name]
        forced.compare(name, single_precision(array), after.constants[name], STEP[array.dtype.name])
    run_nodes(after, wide, forced)
    return known.outputs(), PartsCheck(forced.checked, forced.largest, forced.wrong)


def _reordered_like(before: Graph, after: Graph) -> Graph:
    """The original, with its nodes in the order in which the rewritten graph needs their results."""
    position = {name: place for place, name in enumerate(name for node in after.nodes for name in node.outputs if name)}
    last = len(position)

    def when(node: Node) -> int:
        return min((position.get(name, last) for name in node.outputs), default=last)

    return before.replace(nodes=topological_order(sorted(before.nodes, key=when)))


def _rounded_constants(before: Graph, after: Graph, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Values of one graph that are constants in the other, or parts of its constants, computed in 16 bits.

    Both graphs then have them rounded; computed in single precision, one of them would not.
    """
    computed = {name for node in after.nodes for name in node.outputs}
    known = {*after.constants, *_without_inputs(before)} - computed
    names = {name for name in known if before.producer(name) and before.value(name).dtype in NARROW}
    needed, nodes = set(names), []
    for node in reversed(before.nodes):
        if not needed.isdisjoint(node.outputs):
            nodes.append(node)
            needed.update(node.inputs)
    inputs = tuple(name for name in before.inputs if name in needed)
    part = before.replace(nodes=nodes[::-1], inputs=inputs, outputs=tuple(sorted(names)))
    return run_nodes(part, {name: feeds[name] for name in inputs})


def _without_inputs(graph: Graph) -> set[str]:
    """Results that follow from constants alone, and are the same in every run."""
    known: set[str] = set()
    for node in graph.nodes:
        if not is_random(node.op) and all(name in known or name in graph.constants for name in node.inputs if name):
            known.update(filter(None, node.outputs))
    return known


class _FixedResults:
    """Executes nodes; the results of some are given, in any type."""

    def __init__(self, graph: Graph, known: Mapping[str, Array]) -> None:
        self._known = {name: single_precision(array) for name, array in known.items()}
        self._kernels = NodeKernels(graph)

    def __call__(self, node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
        names = (name for name in node.outputs if name)
        made = zip(names, self._kernels.run(node, inputs), strict=True)
        return [self._known.get(name, array) for name, array in made]


class _OriginalValues:
    """The named values of the original; it runs only as far as needed, so that few values are held at a time."""

    def __init__(self, run: NodeRun, names: set[str]) -> None:
        self._run = run
        self._steps = run.steps()
        self._wanted = names & {name for node in run.graph.nodes for name in node.outputs}
        self._held: dict[str, Any] = {}
        self._bytes = 0

    def take(self, name: str) -> Any | None:
        """A value, released by this call; None if there is no such value, or there was no room for it."""
        if name not in self._wanted:
            return None
        while name not in self._held:
            node = next(self._steps, None)
            if node is None:
                return None
            self._hold(node, name)
        self._wanted.remove(name)
        self._bytes -= _bytes(self._held[name])
        return self._held.pop(name)

    def _hold(self, node: Node, sought: str) -> None:
        for name in self._wanted.intersection(node.outputs):
            item = self._run.values[name]
            if name == sought or self._bytes + _bytes(item) <= MAX_HELD_BYTES:
                self._held[name] = item
                self._bytes += _bytes(item)

    def outputs(self) -> dict[str, Any]:
        """The original's outputs, after running it to its end."""
        for _ in self._steps:
            pass
        return self._run.outputs()


def _bytes(item: Any) -> int:
    return int(getattr(item, "nbytes", 0))


class _ValueComparison:
    """Executes nodes, compares their results with known values, and continues from the latter.

    Args:
        graph: the graph whose nodes are run.
        known: the known values.
        rounding: for constants of the rewritten graph alone, the relative rounding error of their elements.
    """

    def __init__(self, graph: Graph, known: _OriginalValues, rounding: Mapping[str, float]) -> None:
        self.checked = 0
        self.largest = 0.0
        self.wrong: dict[str, float] = {}
        self._known = known
        self._rounding = rounding
        self._kernels = NodeKernels(graph)
        self._moved: dict[str, Array] = {}
        self._last_read = {name: node.name for node in graph.nodes for name in node.inputs}

    def __call__(self, node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
        names = [name for name in node.outputs if name]
        made = dict(zip(names, self._kernels.run(node, inputs), strict=True))
        moved = self._moved_results(node, inputs, made)
        for name in names:
            known = self._known.take(name)
            if known is not None:
                effect = _effect(made[name], moved[name], known) if name in moved else 0.0
                unrounded = _unrounded(node, inputs) if quantises(node) else None
                self.compare(name, known, made[name], DEFAULT_RTOL + effect, quantises(node), unrounded)
                made[name] = known
            elif name in moved:
                self._moved[name] = moved[name]
        for name in node.inputs:
            if self._last_read[name] == node.name:
                self._moved.pop(name, None)
        return list(made.values())

    def _moved_results(
        self, node: Node, inputs: Sequence[Array | None], made: Mapping[str, Array]
    ) -> Mapping[str, Array]:
        """A node's results if weights that were rounded once more move every product as far as they may.

        That is the rounding error times the sum of the magnitudes of the product's summands. What is moved by it but
        not compared itself, such as some rows of a product, moves its readers.

        Returns:
            By output; empty if no operand is rounded or moved.
        """
        moved = [self._moved.get(name, array) for name, array in zip(node.inputs, inputs, strict=True)]
        share = max((self._rounding.get(name, 0.0) for name in node.inputs), default=0.0)
        still = all(other is array for other, array in zip(moved, inputs, strict=True))
        if still and not (share and node.op.is_contraction):
            return {}
        run = self._kernels.run
        if not node.op.is_contraction:
            results = dict(zip(made, run(node, moved), strict=True))
            return {name: array for name, array in results.items() if _is_float(array)}
        sizes = [magnitudes(array) for array in inputs]
        wider = [_reach(*each) for each in zip(sizes, inputs, moved, strict=True)]
        summed = run(node, sizes)
        sums: list[Numbers] = [*made.values(), *summed, *(summed if still else run(node, wider))]
        result, least, most = sums
        return {node.output: result + (most - least) + share * least}

    def compare(
        self,
        name: str,
        expected: Any,
        actual: Any,
        rtol: float,
        stepped: bool = False,
        unrounded: tuple[Array, float] | None = None,
    ) -> None:
        """Records the error of a value, and whether it is too large.

        Args:
            name: its name.
            expected, actual: the original's value, and the rewritten graph's.
            rtol: its bound.
            stepped: whether it was quantised, so that elements may be off by a step.
            unrounded: what was quantised, and the scale; None if it is not known.
        """
        self.checked += 1
        (check,) = compare_outputs({name: expected}, {name: actual}, rtol)
        if stepped and are_steps(expected, actual, unrounded):
            return
        self.largest = max(self.largest, check.max_rel_err)
        if not check.passed:
            self.wrong[name] = check.max_rel_err


def _reach(size: Numbers | None, array: Numbers | None, moved: Numbers | None) -> Array | None:
    """The magnitudes of an operand, with how far its elements are moved added."""
    if size is None or array is None or moved is None or moved is array:
        return size
    return np.asarray(size + np.abs(moved - array))


def _effect(made: Numbers, moved: Numbers, expected: Any) -> float:
    """How far a result is moved, relative to the largest magnitude expected."""
    largest = largest_magnitude(expected)
    return largest_magnitude(moved - made) / largest if largest else 0.0


def _is_float(item: Any) -> bool:
    return isinstance(item, np.ndarray) and item.dtype.kind == "f"


def _unrounded(node: Node, inputs: Sequence[Array | None]) -> tuple[Array, float] | None:
    """What a QuantizeLinear rounds, and its scale, if that is a single one."""
    if node.kind != "QuantizeLinear" or inputs[0] is None or inputs[1] is None or inputs[1].size != 1:
        return None
    return inputs[0], float(inputs[1].reshape(-1)[0])


def are_steps(expected: Any, actual: Any, unrounded: tuple[Array, float] | None) -> bool:
    """Whether elements are off by one step at most, and only a few of them but for those that lie at a half.

    Where the scales of operands and result have a ratio of a power of two, any share of the sums is an exact tie, and
    the order of multiplication and division decides it.
    """
    if not isinstance(expected, np.ndarray) or expected.dtype.kind not in "iu" or expected.shape != actual.shape:
        return False
    largest, total = steps_off(expected, actual)
    if largest > 1:
        return False
    few = max(1, STEPPED_SHARE * expected.size)
    return total <= few or (unrounded is not None and total - _ties(expected, actual, *unrounded) <= few)


def _ties(expected: Array, actual: Array, unrounded: Array, scale: float) -> int:
    """How many of the elements that differ lie at a half before rounding, but for the rounding of a few operations."""
    error = TIE_RTOL * largest_magnitude(unrounded) / scale
    differing = np.flatnonzero(np.ravel(expected) != np.ravel(actual))
    steps = np.ravel(unrounded)[differing].astype(np.float64) / scale
    return int(np.count_nonzero(np.abs(steps - np.floor(steps) - 0.5) <= error))
