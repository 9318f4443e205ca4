"""LSTM, GRU and RNN: a product of all inputs, then a product and a pointwise kernel a step.

That is how libraries run them (Appleyard et al., Optimizing Performance of Recurrent Neural Networks on GPUs, 2016):
every direction by itself, the products of all gates in one. Weights are read anew in every step.
"""

from __future__ import annotations

from collections.abc import Mapping

from pimflow.ir import OnnxOp
from pimflow.runtime.gpu.kept.rules import CONTRIB, asks, bytes_at, integer, odd, shape_of
from pimflow.runtime.gpu.work import GpuWork, KernelSequence, MatrixWork, Operands, StreamWork

# Products of one step, as numbers of gates: a GRU that resets the state before it is multiplied needs two.
_GATES: Mapping[str, tuple[int, ...]] = {"LSTM": (4,), "DynamicQuantizeLSTM": (4,), "RNN": (1,), "GRU": (2, 1)}
# A sigmoid or hyperbolic tangent and the sum of three terms for every gate; then the state.
_PER_GATE, _PER_STATE = 8, 10


@asks("LSTM", "GRU", "RNN")
@asks("DynamicQuantizeLSTM", domain=CONTRIB)
def _recurrent(op: OnnxOp, operands: Operands) -> KernelSequence:
    source, weights, recurrence = (shape_of(operands, position) or () for position in range(3))
    if any(len(shape) != 3 for shape in (source, weights, recurrence)):
        return odd(operands)
    steps, batch, entries = source
    directions, hidden = max(weights[0], 1), integer(op, "hidden_size", recurrence[-1])
    products = (3,) if integer(op, "linear_before_reset") else _GATES[op.op_type]
    gates, width = sum(products), operands.element_bytes
    results = batch * gates * hidden * width  # bytes of all gates in one step
    entering = MatrixWork(
        steps * batch,
        gates * hidden,
        entries,
        1,
        bytes_at(operands, 0) + bytes_at(operands, 1) // directions + steps * results,
    )
    kernels: list[tuple[GpuWork, int]] = [(entering, directions)]
    for part in products:
        share = part / gates
        moved = round(share * (bytes_at(operands, 2) // directions + results)) + batch * hidden * width
        states = round(share * 2 * results) + 2 * batch * hidden * width
        operations = batch * hidden * (part * _PER_GATE + _PER_STATE)
        kernels.append((MatrixWork(batch, part * hidden, hidden, 1, moved), steps * directions))
        kernels.append((StreamWork(operations, states), steps * directions))
    lengths = shape_of(operands, 4) is not None
    return KernelSequence(tuple(kernels), "lengths of its sequences are data: all steps are counted" if lengths else "")
