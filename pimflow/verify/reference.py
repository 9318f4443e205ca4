"""The results of a compiled graph in the machine's own precision without any program: the reference for programs.

The reference for a node on a unit is the node as ONNX Runtime computes it in single precision, from operands rounded
like the unit rounds them. The remaining difference from the unit's program is the order of additions.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from pimflow.codegen.backend import Backend
from pimflow.ir import Array, Graph, Node, OnnxOp, Refusal
from pimflow.onnxio.session import GraphSession
from pimflow.onnxio.tensors import numpy_dtype
from pimflow.onnxio.widening import ACCURACY, EIGHT_BITS, NARROW, single_precision, widened
from pimflow.records import NamedTuple
from pimflow.runtime.execute.ort import NodeKernels, single_node_graph
from pimflow.runtime.execute.unit_nodes import UnitExecutor
from pimflow.verify.blocks import finite_pair, largest_error, largest_magnitude, parts

JITTER = 0.1
"""Share of a node's allowed error by which its result is moved at random, to see the effect on the outputs."""


FLIPPED = 1e-4
"""Share of quantised elements (one at least) that are rounded the other way, to see the effect on the outputs."""

_FEW_BITS = frozenset({"int8", "uint8", "int16", "uint16"})
_QUANTISES = re.compile("^(Dynamic)?Quant|^QLinear|^QGemm")

SUMS_RTOL = 2e-5
"""Difference between two orders of addition in single precision, relative to the largest magnitude of the product."""

STEP: Mapping[str, float] = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
"""One unit in the last place of a type, relative to the value: the difference if two errors round differently."""

OPERAND_STEP: Mapping[str, float] = {"fp16": STEP["float16"], "bf16": STEP["bfloat16"]}
"""The same for the types that units multiply."""

_MIN_STEP: Mapping[str, float] = {"float16": 2.0**-24}
"""The step of a type's smallest numbers, if it matters."""


class Overflow(NamedTuple):
    """A node whose finite operands or results leave the range of a type."""

    node: str
    dtype: str
    magnitude: float

    @property
    def text(self) -> str:
        """The overflow in one line."""
        limit = "65504" if self.dtype in ("fp16", "float16") else "3.39e38"
        return (
            f"{self.dtype} overflows in {self.node!r}: values reach {self.magnitude:.3g}, {self.dtype} ends at {limit}"
        )


FP16_NORMAL = 2.0**-14
"""The smallest number with full precision in fp16."""


class Underflow(NamedTuple):
    """A node whose operands or results are so small that fp16 represents them with few digits."""

    node: str
    magnitude: float

    @property
    def text(self) -> str:
        """The underflow in one line."""
        return (
            f"fp16 loses digits in {self.node!r}: values reach {self.magnitude:.3g}, fp16's normal numbers begin at "
            f"{FP16_NORMAL:.3g}"
        )


class UnitReference:
    """Executes the nodes of a graph; those on units in the units' precision.

    Args:
        graph: the graph whose nodes are run.
        units: backends by device.
        operand: the element type that units multiply; None for the unit's own.
        jitter_seed: moves the results of products at random by up to `JITTER` of their bounds, and a share `FLIPPED` of
            quantised elements by a step; None leaves them unchanged.
        sums_rtol: the bound for products on the host, relative to their largest magnitude.
        by_host: the nodes that the host computes by an algorithm of its own; ONNX Runtime adds and rounds differently.
    """

    def __init__(
        self,
        graph: Graph,
        units: Mapping[str, Backend[Any, Any]],
        operand: str | None,
        jitter_seed: int | None = None,
        sums_rtol: float = SUMS_RTOL,
        by_host: Collection[str] = (),
    ) -> None:
        self.graph = graph
        self.units = units
        self.operand = operand
        self.sums_rtol = sums_rtol
        self.by_host = by_host
        self.overflow: Overflow | None = None
        self.underflow: Underflow | None = None
        self._kernels = NodeKernels(graph)
        self._random = None if jitter_seed is None else np.random.default_rng(jitter_seed)

    def __call__(self, node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
        """The node's results."""
        unit = self.units.get(node.device or "")
        results = self._kernels.run(node, inputs) if unit is None else [self.on_unit(node, inputs, unit)]
        self._note_infinity(node, inputs, results)
        if self._random is None:
            return results
        if quantises(node):
            return [_with_steps(array, self._random) for array in results]
        if unit is None and not node.op.is_contraction:
            return results
        sizes = [magnitudes(array) for array in inputs]
        summed = self._kernels.run(node, sizes) if unit is None else [self.on_unit(node, sizes, unit)]
        errors = [self.allowed(node, largest_magnitude(array)) for array in results]
        return [_jittered(*each, self._random) for each in zip(results, summed, errors, strict=True)]

    def allowed(self, node: Node, largest: float) -> float:
        """The largest error of a node with a result up to `largest`: of sums and, on a unit, of rounding to its type.

        Values too small for full precision in the type are off by whole steps, however small they are.
        """
        unit, dtype = self.units.get(node.device or ""), self.graph.value(node.output).dtype
        if unit is None:
            return (self.sums_rtol + (STEP.get(dtype, 0.0) if node.name in self.by_host else 0.0)) * largest
        operand = unit.operand_of(node, self.operand)
        work = Refusal("") if node.op.is_sparse else unit.work(self.graph, node)
        least = 0.0 if isinstance(work, Refusal) else unit.absolute_tolerance(work, operand)
        return (unit.tolerance(operand) + STEP.get(dtype, 0.0)) * largest + least + _MIN_STEP.get(dtype, 0.0)

    def on_unit(self, node: Node, inputs: Sequence[Array | None], unit: Backend[Any, Any]) -> Array:
        """The result of a node on a unit, from operands rounded like the unit rounds them."""
        operand = unit.operand_of(node, self.operand)
        rounded = unit.rounded(inputs, operand)
        for given, used in zip(inputs, rounded, strict=True):
            if given is not None and used is not None and used is not given:
                self._note_overflow(node, operand, given, used)
                self._note_underflow(node, operand, given)
        if node.op.is_sparse:
            (result,) = self._kernels.run(node, rounded)
            return result
        alone = widened(single_node_graph(self.graph, node))
        feeds = {
            f"i{index}": single_precision(array)
            for index, (name, array) in enumerate(zip(node.inputs, rounded, strict=True))
            if name and array is not None
        }
        constants = {name: feeds[name] for name in alone.constants}
        session = GraphSession(replace(alone, constants=constants), threads=1)
        (result,) = session.run({name: feeds[name] for name in alone.inputs}).values()
        self._note_underflow(node, operand, result)
        with np.errstate(over="ignore"):
            cast: Array = result.astype(numpy_dtype(self.graph.value(node.output).dtype))
        return cast

    def _note_infinity(self, node: Node, inputs: Sequence[Array | None], results: Sequence[Array]) -> None:
        """Records the first node that turns finite operands into infinities."""
        dtype = self.graph.out_values(node)[0].dtype  # the first result may be absent
        if self.overflow is not None or dtype not in NARROW:
            return
        if not all(map(_is_finite, results)) and all(map(_is_finite, inputs)):
            self.overflow = Overflow(node.name, dtype, float("inf"))

    def _note_overflow(self, node: Node, operand: str, given: Array, used: Array) -> None:
        """Records the first operand that is finite and becomes infinite."""
        if self.overflow is None and not _is_finite(used) and _is_finite(given):
            self.overflow = Overflow(node.name, operand, float(np.abs(given.astype(np.float64)).max()))

    def _note_underflow(self, node: Node, operand: str, array: Array) -> None:
        """Records the first node with only small values, at least one not 0, that fp16 represents with few digits."""
        if self.underflow is None and operand == "fp16":
            magnitude = largest_magnitude(array)
            if 0 < magnitude < FP16_NORMAL:
                self.underflow = Underflow(node.name, magnitude)


def quantises(node: Node) -> bool:
    """Whether a node rounds its results or its operands to narrow integers."""
    if not isinstance(node.op, OnnxOp):
        return False
    return _QUANTISES.search(node.op.op_type) is not None or dict(node.op.attributes).get(ACCURACY) == EIGHT_BITS


def _jittered(array: Array, sizes: Array, error: float, random: np.random.Generator) -> Array:
    """The array with each element moved in proportion to the magnitude of its summands.

    The element with the largest summands moves by up to `JITTER` of the bound. An element with small summands only,
    such as the power of a quiet band before a logarithm, has the same relative precision in any order, and stays
    positive.

    Args:
        array: sums.
        sizes: the same sums, of absolute values.
        error: the bound.
        random: the random generator.
    """
    scale = JITTER * error / max(largest_magnitude(sizes), float(np.finfo(np.float32).tiny))
    sums, shares = np.ravel(array), np.ravel(sizes)
    moved, is_finite = np.empty(array.size, array.dtype), True
    with np.errstate(over="ignore", invalid="ignore"):
        for part in parts(array.size):
            wide, share = (each[part].astype(np.float32) for each in (sums, shares))
            step = scale * np.abs(share) * random.uniform(-1, 1, wide.shape).astype(np.float32)
            is_finite = is_finite and bool(np.isfinite(step).all())
            moved[part] = (wide + step).astype(array.dtype)
    return moved.reshape(array.shape) if is_finite else array


def magnitudes(array: Array | None) -> Array | None:
    """Absolute values of real numbers; other types, such as counts and indices, are unchanged."""
    return np.asarray(np.abs(array)) if isinstance(array, np.ndarray) and array.dtype.kind in "fV" else array


def _with_steps(array: Array, random: np.random.Generator) -> Array:
    """The array with a few of its elements off by one step, if it has a narrow integer type."""
    if array.dtype.name not in _FEW_BITS or not array.size:
        return array
    moved = array.flatten()
    places = random.integers(0, moved.size, max(1, round(FLIPPED * moved.size)))
    limits = np.iinfo(array.dtype.name)
    stepped = moved[places].astype(np.int64) + random.choice((-1, 1), places.size)
    moved[places] = stepped.clip(limits.min, limits.max).astype(array.dtype)
    return moved.reshape(array.shape)


class CheckedUnits(UnitExecutor):
    """Executes units' programs by value, and compares each node with the reference on the same operands."""

    def __init__(self, reference: UnitReference, programs: Mapping[str, Any], progress: Any) -> None:
        super().__init__(reference.graph, programs, reference.units, reference.operand, progress)
        self.reference = reference
        self.checked = 0
        self.largest = 0.0
        self.wrong: dict[str, float] = {}

    def __call__(self, node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
        """The node's single result, computed by its program."""
        (result,) = super().__call__(node, inputs)
        expected = self.reference.on_unit(node, inputs, self.units[node.device or ""])
        error, relative = _errors(result, expected)
        self.checked += 1
        self.largest = max(self.largest, relative)
        if not error <= self.reference.allowed(node, largest_magnitude(expected)):
            self.wrong[node.name] = relative
        return [result]


def _errors(actual: Array, expected: Array) -> tuple[float, float]:
    """Like `largest_error`; infinite if NaN or infinity are not in the same places."""
    finite = finite_pair(expected, actual)
    return (float("inf"), float("inf")) if finite is None else largest_error(*finite)


def _is_finite(array: Array | None) -> bool:
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fV":
        return True  # sequences, integers
    return bool(np.isfinite(array).all())
