"""LSTM, GRU and RNN: one product for all inputs, then a product and a pointwise kernel per step.

Libraries run them in this way (Appleyard et al., Optimizing Performance of Recurrent Neural Networks on GPUs, 2016):
each direction separately, the products of all gates in one kernel. Weights are read again in every step.
"""

from __future__ import annotations

from collections.abc import Mapping

from pimflow.ir import OnnxOp, Shape
from pimflow.ir.ops.opaque import PREPARED
from pimflow.runtime.gpu.kept.rules import CONTRIB, asks, bytes_at, integer, invalid_operands, shape_of
from pimflow.runtime.gpu.work import GpuWork, KernelSequence, MatrixWork, Operands, StreamWork

# Products of one step, as numbers of gates: a GRU that resets the state before multiplying it needs two products.
_GATES: Mapping[str, tuple[int, ...]] = {"LSTM": (4,), "DynamicQuantizeLSTM": (4,), "RNN": (1,), "GRU": (2, 1)}
# A sigmoid or hyperbolic tangent and the sum of three terms for each gate; then the state.
_PER_GATE, _PER_STATE = 8, 10


@asks("LSTM", "GRU", "RNN")
@asks("DynamicQuantizeLSTM", domain=CONTRIB)
def _recurrent(op: OnnxOp, operands: Operands) -> KernelSequence:
    source, weights, recurrence = (shape_of(operands, position) or () for position in range(3))
    if any(len(shape) != 3 for shape in (source, weights, recurrence)):
        return invalid_operands(operands)
    steps, batch, entries = _steps_first(op, source)
    directions, hidden = max(weights[0], 1), integer(op, "hidden_size", recurrence[-1])
    gates = sum(_products(op)) * hidden
    moved = steps * batch * gates * operands.element_bytes
    entering = MatrixWork(
        steps * batch, gates, entries, 1, bytes_at(operands, 0) + bytes_at(operands, 1) // directions + moved
    )
    return _sequence([(entering, directions)], op, operands, (steps, batch), recurrence)


@asks("LSTM", "GRU", "RNN", domain=PREPARED)
def _prepared(op: OnnxOp, operands: Operands) -> KernelSequence:
    """The steps alone; the product for all inputs is already computed."""
    source, recurrence = (shape_of(operands, position) or () for position in (0, 2))
    if any(len(shape) != 3 for shape in (source, recurrence)):
        return invalid_operands(operands)
    steps, batch, _ = _steps_first(op, source)
    return _sequence([], op, operands, (steps, batch), recurrence)


def _steps_first(op: OnnxOp, shape: Shape) -> Shape:
    return (shape[1], shape[0], *shape[2:]) if integer(op, "layout") else shape


def _products(op: OnnxOp) -> tuple[int, ...]:
    return (3,) if integer(op, "linear_before_reset") else _GATES[op.op_type]


def _sequence(
    before: list[tuple[GpuWork, int]], op: OnnxOp, operands: Operands, sizes: tuple[int, int], recurrence: Shape
) -> KernelSequence:
    """The kernels before the steps, and those of all steps in all directions; `sizes` is (steps, batch)."""
    (steps, batch), products = sizes, _products(op)
    directions, hidden = max(recurrence[0], 1), integer(op, "hidden_size", recurrence[-1])
    gates, width = sum(products), operands.element_bytes
    results = batch * gates * hidden * width  # bytes of all gates in one step
    kernels = before
    for part in products:
        share = part / gates
        moved = round(share * (bytes_at(operands, 2) // directions + results)) + batch * hidden * width
        states = round(share * 2 * results) + 2 * batch * hidden * width
        operations = batch * hidden * (part * _PER_GATE + _PER_STATE)
        kernels.append((MatrixWork(batch, part * hidden, hidden, 1, moved), steps * directions))
        kernels.append((StreamWork(operations, states), steps * directions))
    lengths = shape_of(operands, 4) is not None
    return KernelSequence(
        tuple(kernels), "its sequence lengths depend on data: all steps are counted" if lengths else ""
    )
