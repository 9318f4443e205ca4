"""If, Loop and Scan: the kernels of their bodies, multiplied by the number of iterations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pimflow.errors import PimflowError
from pimflow.frontend.body import Body, read_body
from pimflow.ir import Array, OnnxOp, OpaqueAttribute, Value
from pimflow.onnxio.captures import CAPTURES, graph_attribute, passes_condition_on
from pimflow.runtime.gpu.kept.rules import asks, incomplete, integer, integers
from pimflow.runtime.gpu.work import GpuWork, KernelSequence, NodeWork, Operands, StreamWork, gpu_work

_Carried = tuple[slice, slice]
"""The inputs of a body that are carried between iterations, and the outputs that carry them."""
_NONE = (slice(0, 0), slice(0, 0))

_NO_LIMIT = 2**31 - 1
"""A Loop's limit from which on it stands for none: exporters of `while` write the highest number of 32 or 64 bits."""


@asks("If")
def _if(op: OnnxOp, operands: Operands) -> NodeWork:
    """The larger of the two branches."""
    branches = [_kernels(op, name, operands, [], _NONE) for name in ("then_branch", "else_branch")]
    larger = max(branches, key=_size)
    unknown = "which branch runs depends on data: the larger is counted"
    return KernelSequence(larger.kernels, _joined_reasons(unknown, *(branch.unknown for branch in branches)))


@asks("Loop")
def _loop(op: OnnxOp, operands: Operands) -> NodeWork:
    own = _own(op, operands)
    trips, unknown = _trips(op, operands)
    states = [Value("", (), "int64"), Value("", (), "bool"), *own[2:]]
    carried = (slice(2, len(states)), slice(1, len(states) - 1))
    return _repeated(_kernels(op, "body", operands, states, carried), trips, unknown)


def _trips(op: OnnxOp, operands: Operands) -> tuple[int, str]:
    """How often a Loop's body runs, and what is uncertain about it."""
    limit, condition = operands.constants.get(0), operands.constants.get(1)
    trips = _NO_LIMIT if limit is None else max(0, int(limit.reshape(-1)[0]))
    if trips == 0 or (condition is not None and not condition.all()):
        return 0, ""
    if trips >= _NO_LIMIT:
        return 1, "the number of iterations depends on data: one is counted"
    goes_on = operands.given[1] is None or condition is not None
    if goes_on and passes_condition_on(op):
        return trips, ""
    return trips, f"the number of iterations depends on data: {trips} are counted"


@asks("Scan")
def _scan(op: OnnxOp, operands: Operands) -> NodeWork:
    """The body runs once for each element of the scanned inputs along the axis."""
    own, scanned = _own(op, operands), integer(op, "num_scan_inputs")
    axes = integers(op, "scan_input_axes") or (0,) * scanned
    states, sequences = list(own[: len(own) - scanned]), own[len(own) - scanned :]
    carried = (slice(0, len(states)), slice(0, len(states)))
    trips = 0
    for axis, sequence in zip(axes, sequences, strict=False):
        if sequence is None or sequence.shape is None:
            return incomplete(StreamWork(0, operands.bytes), "the number of iterations depends on data")
        shape = list(sequence.shape)
        trips = shape.pop(axis)
        states.append(Value("", tuple(shape), sequence.dtype))
    return _repeated(_kernels(op, "body", operands, states, carried), trips, "")


def _own(op: OnnxOp, operands: Operands) -> Sequence[Value | None]:
    """The operands without those that the bodies capture."""
    return operands.given[: len(operands.given) - integer(op, CAPTURES)]


def _kernels(
    op: OnnxOp, name: str, operands: Operands, inputs: Sequence[Value | None], carried: _Carried
) -> KernelSequence:
    """The kernels of one iteration of a body, each with its number of executions."""
    if not isinstance(dict(op.attributes).get(name), OpaqueAttribute):  # a table of kernels has only its digest
        return KernelSequence((), "its body is not available")
    first = len(_own(op, operands))
    captured: list[tuple[Value | None, Array | None]] = [
        (value, operands.constants.get(position)) for position, value in enumerate(operands.given[first:], start=first)
    ]
    try:
        body = read_body(graph_attribute(op, name), inputs, captured, operands.opset)
    except PimflowError as error:
        return KernelSequence((), f"its body cannot be read ({error.what})")
    return _of_body(body, operands.element_bytes, carried)


def _of_body(body: Body, element_bytes: int, carried: _Carried) -> KernelSequence:
    graph = body.graph
    counts: Counter[GpuWork] = Counter()
    entering, leaving = graph.inputs[carried[0]], graph.outputs[carried[1]]
    grows = any(graph.value(old).shape != graph.value(new).shape for old, new in zip(entering, leaving, strict=False))
    unknown = ["sizes change from one iteration to the next: those of the first are counted"] * grows
    for node in graph.nodes:
        if all(name in body.known for name in node.outputs if name):
            continue  # computed once, from constants
        inputs, outputs = graph.in_values(node), graph.out_values(node)
        constants = {
            position: graph.constants[node.inputs[position]]
            for position in node.op.content_positions(len(node.inputs))
            if node.inputs[position] in graph.constants
        }
        work = gpu_work(node.op, inputs, outputs, element_bytes, constants, graph.opset)
        for kernel, times in work.kernels if isinstance(work, KernelSequence) else ((work, 1),):
            if kernel is not None:
                counts[kernel] += times
        if isinstance(work, KernelSequence) and work.unknown:
            unknown.append(f"{node.kind} in its body: {work.unknown}")
    return KernelSequence(tuple(counts.items()), _joined_reasons(*unknown))


def _repeated(body: KernelSequence, trips: int, unknown: str) -> KernelSequence:
    kernels = tuple((work, times * trips) for work, times in body.kernels)
    return KernelSequence(kernels, _joined_reasons(unknown, body.unknown))


def _size(sequence: KernelSequence) -> tuple[int, int]:
    return sequence.macs, sum(work.bytes * times for work, times in sequence.kernels)


def _joined_reasons(*reasons: str) -> str:
    return "; ".join(dict.fromkeys(reason for reason in reasons if reason))
