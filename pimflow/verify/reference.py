"""What a compiled graph computes in the machine's own precision, without any program: the judge of programs.

A node on a unit is the node as ONNX Runtime computes it in single precision, from operands that are rounded as the unit
rounds them. What is left between that and the unit's program is the order in which products are added up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from pimflow.codegen.backend import Backend
from pimflow.ir import Array, Graph, Node, OnnxOp, Refusal
from pimflow.onnxio.session import GraphSession
from pimflow.onnxio.tensors import numpy_dtype
from pimflow.onnxio.widening import ACCURACY, EIGHT_BITS, NARROW, single_precision, widened
from pimflow.runtime.execute.ort import NodeKernels, single_node_graph
from pimflow.runtime.execute.unit_nodes import UnitExecutor
from pimflow.verify.blocks import finite_pair, largest_error, largest_magnitude, parts

JITTER = 0.1
"""Share of the errors allowed of a node that its result is moved by at random, to see what that does to the outputs."""


FLIPPED = 1e-4
"""Share of quantised elements (one at least) that fall on the other side of a rounding, to see what that does."""

_FEW_BITS = frozenset({"int8", "uint8", "int16", "uint16"})
_QUANTISES = re.compile("^(Dynamic)?Quant|^QLinear|^QGemm")

SUMS_RTOL = 2e-5
"""What two orders of adding up in single precision may differ by, over the largest magnitude of a product's result."""

STEP: Mapping[str, float] = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
"""One step of a type's digits, where two errors fall on different sides of it."""

OPERAND_STEP: Mapping[str, float] = {"fp16": STEP["float16"], "bf16": STEP["bfloat16"]}
"""The same of what units multiply."""

_LEAST_STEP: Mapping[str, float] = {"float16": 2.0**-24}
"""The step of a type's smallest numbers, where it is of any size."""


class Overflow(NamedTuple):
    """A node whose finite operands or results leave the range of a type."""

    node: str
    dtype: str
    magnitude: float

    @property
    def text(self) -> str:
        """In one line."""
        limit = "65504" if self.dtype in ("fp16", "float16") else "3.39e38"
        return (
            f"{self.dtype} overflows in {self.node!r}: values reach {self.magnitude:.3g}, {self.dtype} ends at {limit}"
        )


FP16_NORMAL = 2.0**-14
"""The smallest number that has all of fp16's digits."""


class Underflow(NamedTuple):
    """A node whose operands or results are so small that fp16 has few digits left for them."""

    node: str
    magnitude: float

    @property
    def text(self) -> str:
        """In one line."""
        return (
            f"fp16 loses digits in {self.node!r}: values reach {self.magnitude:.3g}, fp16's normal numbers begin at "
            f"{FP16_NORMAL:.3g}"
        )


class UnitReference:
    """Executes the nodes of a graph, those of units in the units' precision.

    Args:
        graph: the graph whose nodes are run.
        units: backends by device.
        operand: the element type that units multiply; None for each one's own.
        jitter_seed: moves the results of products at random, by up to `JITTER` of their bounds, and `FLIPPED` of those
            that are quantised by a step; None leaves them.
        sums_rtol: the bound of products on the host, over their largest magnitude.
    """

    def __init__(
        self,
        graph: Graph,
        units: Mapping[str, Backend[Any, Any]],
        operand: str | None,
        jitter_seed: int | None = None,
        sums_rtol: float = SUMS_RTOL,
    ) -> None:
        self.graph = graph
        self.units = units
        self.operand = operand
        self.sums_rtol = sums_rtol
        self.overflow: Overflow | None = None
        self.underflow: Underflow | None = None
        self._kernels = NodeKernels(graph)
        self._random = None if jitter_seed is None else np.random.default_rng(jitter_seed)

    def __call__(self, node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
        """The node's results."""
        unit = self.units.get(node.device or "")
        results = self._kernels.run(node, inputs) if unit is None else [self.on_unit(node, inputs, unit)]
        self._watch(node, inputs, results)
        if self._random is None:
            return results
        if quantises(node):
            return [_stepped(array, self._random) for array in results]
        if unit is None and not node.op.is_contraction:
            return results
        sizes = [magnitudes(array) for array in inputs]
        summed = self._kernels.run(node, sizes) if unit is None else [self.on_unit(node, sizes, unit)]
        errors = [self.allowed(node, largest_magnitude(array)) for array in results]
        return [_moved(*each, self._random) for each in zip(results, summed, errors, strict=True)]

    def allowed(self, node: Node, largest: float) -> float:
        """Largest error of a node whose result is at most so large: of sums, and on a unit of rounding to its own type.

        What is too small for all digits of a type is off by whole steps of it, however small it is.
        """
        unit = self.units.get(node.device or "")
        if unit is None:
            return self.sums_rtol * largest
        operand, dtype = unit.operand_of(node, self.operand), self.graph.value(node.output).dtype
        work = Refusal("") if node.op.is_sparse else unit.work(self.graph, node)
        least = 0.0 if isinstance(work, Refusal) else unit.least_error(work, operand)
        return (unit.tolerance(operand) + STEP.get(dtype, 0.0)) * largest + least + _LEAST_STEP.get(dtype, 0.0)

    def on_unit(self, node: Node, inputs: Sequence[Array | None], unit: Backend[Any, Any]) -> Array:
        """The result of a node on a unit, from operands that are rounded as the unit does."""
        operand = unit.operand_of(node, self.operand)
        rounded = unit.rounded(inputs, operand)
        for given, used in zip(inputs, rounded, strict=True):
            if given is not None and used is not None and used is not given:
                self._note(node, operand, given, used)
                self._note_small(node, operand, given)
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
        self._note_small(node, operand, result)
        with np.errstate(over="ignore"):
            cast: Array = result.astype(numpy_dtype(self.graph.value(node.output).dtype))
        return cast

    def _watch(self, node: Node, inputs: Sequence[Array | None], results: Sequence[Array]) -> None:
        """Keeps the first node that makes infinities of finite operands."""
        dtype = self.graph.out_values(node)[0].dtype  # the first result may be absent
        if self.overflow is not None or dtype not in NARROW:
            return
        if not all(map(_is_finite, results)) and all(map(_is_finite, inputs)):
            self.overflow = Overflow(node.name, dtype, float("inf"))

    def _note(self, node: Node, operand: str, given: Array, used: Array) -> None:
        """Keeps the first operand that is finite and does not stay so."""
        if self.overflow is None and not _is_finite(used) and _is_finite(given):
            self.overflow = Overflow(node.name, operand, float(np.abs(given.astype(np.float64)).max()))

    def _note_small(self, node: Node, operand: str, array: Array) -> None:
        """Keeps the first node with values, not all of them 0, that fp16 has few digits for."""
        if self.underflow is None and operand == "fp16":
            magnitude = largest_magnitude(array)
            if 0 < magnitude < FP16_NORMAL:
                self.underflow = Underflow(node.name, magnitude)


def quantises(node: Node) -> bool:
    """Whether a node rounds to integers of few bits, what it makes or what it multiplies."""
    if not isinstance(node.op, OnnxOp):
        return False
    return _QUANTISES.search(node.op.op_type) is not None or dict(node.op.attributes).get(ACCURACY) == EIGHT_BITS


def _moved(array: Array, sizes: Array, error: float, random: np.random.Generator) -> Array:
    """The array with each element moved as the sizes of its own summands let it.

    The element with the largest ones moves by up to `JITTER` of the bound. One that is made of small ones only, as the
    power of a quiet band whose logarithm comes next, is as precise in any order, and stays as positive.

    Args:
        array: sums.
        sizes: the same sums, of absolute values.
        error: the bound.
        random: draws.
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
    """Absolute values of real numbers; what is no number counts or says where things are."""
    return np.abs(array) if isinstance(array, np.ndarray) and array.dtype.kind in "fV" else array


def _stepped(array: Array, random: np.random.Generator) -> Array:
    """The array with a few of its elements one step off, if it is of few bits."""
    if array.dtype.name not in _FEW_BITS or not array.size:
        return array
    moved = array.flatten()
    places = random.integers(0, moved.size, max(1, round(FLIPPED * moved.size)))
    limits = np.iinfo(array.dtype.name)
    stepped = moved[places].astype(np.int64) + random.choice((-1, 1), places.size)
    moved[places] = stepped.clip(limits.min, limits.max).astype(array.dtype)
    return moved.reshape(array.shape)


class CheckedUnits(UnitExecutor):
    """Executes units' programs by value, and compares each node with the reference on the very same operands."""

    def __init__(self, reference: UnitReference, programs: Mapping[str, Any], progress: Any) -> None:
        super().__init__(reference.graph, programs, reference.units, reference.operand, progress)
        self.reference = reference
        self.checked = 0
        self.largest = 0.0
        self.wrong: dict[str, float] = {}

    def __call__(self, node: Node, inputs: Sequence[Array | None]) -> Sequence[Array]:
        """The node's one result, by its program."""
        (result,) = super().__call__(node, inputs)
        expected = self.reference.on_unit(node, inputs, self.units[node.device or ""])
        error, relative = _errors(result, expected)
        self.checked += 1
        self.largest = max(self.largest, relative)
        if not error <= self.reference.allowed(node, largest_magnitude(expected)):
            self.wrong[node.name] = relative
        return [result]


def _errors(actual: Array, expected: Array) -> tuple[float, float]:
    """As `largest_error`; infinite where NaN or infinity stands in other places."""
    finite = finite_pair(expected, actual)
    return (float("inf"), float("inf")) if finite is None else largest_error(*finite)


def _is_finite(array: Array | None) -> bool:
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fV":
        return True  # sequences, integers
    return bool(np.isfinite(array).all())
