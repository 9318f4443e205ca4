"""Matrix products of few-bit operands, and of transposed ones."""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt

from pimflow.ir.expansion.base import CONTRIB, Writer, expands, stays
from pimflow.ir.expansion.convolution import differences
from pimflow.ir.graph import Array
from pimflow.ir.ops.contraction import FUSED_PRODUCT, PRODUCT, fused_order
from pimflow.ir.ops.elementwise import Elementwise
from pimflow.ir.ops.movement import Transpose
from pimflow.ir.ops.opaque import OnnxOp
from pimflow.ir.packed import dequantised
from pimflow.ir.refusal import Refusal

HALF_OPSET = 19
"""The first opset whose DequantizeLinear produces 16-bit floats."""

_COMPUTED = "its right-hand side of few bits is computed, PIM needs it in its banks before the run"


@expands("QLinearMatMul")
def _quantised(writer: Writer) -> Refusal | None:
    """Dequantises, multiplies and quantises."""
    a, scale, zero = (writer.operand(place) for place in range(3))
    right = quantised_weights(writer, 3, 4, 5)
    if isinstance(right, Refusal):
        return right
    if len(writer.shape(scale)) > 0 and np.prod(writer.shape(scale)) > 1:
        return Refusal("its left-hand side has a scale per row")
    left = writer.opaque("DequantizeLinear", [a, scale, zero], writer.shape(a), "float32")
    made = writer.product(PRODUCT, left, right)
    operands = [made, writer.operand(6), writer.operand(7)]
    writer.opaque("QuantizeLinear", operands, writer.shape(made), writer.dtype(writer.node.output))
    return None


@expands("MatMulInteger", unscaled=True)
def _integers(writer: Writer) -> Refusal | None:
    """Multiplies differences from zero points, exact in single precision and 16 bits; the sums are cast to integers."""
    weights, zero = writer.constant_at(1), writer.constant_at(3)
    if weights is None or (writer.has(3) and zero is None):
        return Refusal(_COMPUTED)
    if writer.has(2) and np.prod(writer.shape(writer.operand(2))) > 1:
        return Refusal("its left-hand side has a zero point per row")
    left = differences(writer, 0, 2)
    one = np.array(1, np.float32)
    right = writer.constant(weights.shape, "float32", lambda: dequantised(weights, one, zero, -1))
    made = writer.product(PRODUCT, left, right)
    writer.opaque("Cast", [made], writer.shape(made), "int32", to=6)
    return None


@expands("MatMulIntegerToFloat", domain=CONTRIB)
def _integers_to_float(writer: Writer) -> Refusal | None:
    """Operands are A, B, their scales, their zero points, and a bias."""
    a, scale, zero = writer.operand(0), writer.operand(2), writer.operand(4)
    if max(np.prod(writer.shape(name)) for name in (scale, zero)) > 1:
        return Refusal("its left-hand side has a scale or a zero point per row")
    if writer.dtype(scale) != "float32" and writer.opset < HALF_OPSET:
        return Refusal("DequantizeLinear of the model's opset cannot produce 16-bit floats")
    right = quantised_weights(writer, 1, 3, 5)
    if isinstance(right, Refusal):
        return right
    operands = [a, scale, zero] if zero else [a, scale]
    left = writer.opaque("DequantizeLinear", operands, writer.shape(a), writer.dtype(scale))
    made = writer.product(PRODUCT, left, right)
    if writer.has(6):
        writer.add(Elementwise("Add"), made, writer.operand(6))
    return None


@expands("DynamicQuantizeMatMul", domain=CONTRIB)
def _dynamic(writer: Writer) -> Refusal | None:
    """The left-hand side is rounded to 8 bits with a scale from its largest and smallest elements.

    Operands are A, B, scale and zero point of B, and a bias.
    """
    a = writer.operand(0)
    right = quantised_weights(writer, 1, 2, 3)
    if isinstance(right, Refusal):
        return right
    types: list[tuple[tuple[int, ...], str]] = [(writer.shape(a), "uint8"), ((), "float32"), ((), "uint8")]
    rounded = writer.results_of("DynamicQuantizeLinear", [a], types)
    left = writer.opaque("DequantizeLinear", rounded, writer.shape(a), "float32")
    made = writer.product(PRODUCT, left, right)
    if writer.has(4):
        writer.add(Elementwise("Add"), made, writer.operand(4))
    return None


@expands("QGemm", domain=CONTRIB)
def _gemm(writer: Writer) -> Refusal | None:
    """An 8-bit product plus integers, optionally quantised.

    Operands are A, its scale and zero point, B, its scale and zero point, the integers to add, and the scale and zero
    point of the result.

    The integers to add have the scale of the product, including alpha. Without a scale the result is in single
    precision.
    """
    a, scale, zero = (writer.operand(place) for place in range(3))
    if max(np.prod(writer.shape(name)) for name in (scale, zero)) > 1:
        return Refusal("its left-hand side has a scale or a zero point per row")
    alpha, added, a_step, b_step = writer.number("alpha", 1.0), *(writer.constant_at(place) for place in (6, 1, 4))
    if writer.has(6) and (added is None or a_step is None):
        return Refusal("the operand that it adds, or its scale, is computed")
    right = quantised_weights(writer, 3, 4, 5, transposed=bool(writer.integer("transB")), factor=alpha)
    if isinstance(right, Refusal):
        return right
    left = writer.opaque("DequantizeLinear", [a, scale, zero], writer.shape(a), "float32")
    if writer.integer("transA"):
        left = writer.add(Transpose((1, 0)), left)
    made = writer.product(PRODUCT, left, right)
    if added is not None and a_step is not None and b_step is not None:
        step = np.float32(alpha) * a_step.reshape(()) * (b_step.reshape(-1) if b_step.size > 1 else b_step.reshape(()))
        made = writer.add(Elementwise("Add"), made, _integers_added(writer, added, step.astype(np.float32)))
    if writer.has(7):
        operands = [made, writer.operand(7), writer.operand(8)]
        writer.opaque("QuantizeLinear", operands, writer.shape(made), writer.dtype(writer.node.output))
    return None


def _integers_added(writer: Writer, added: Array, step: Array) -> str:
    """Integers in single precision, with one scale or one per index of the last axis; stored as integers."""
    whole = np.broadcast_to(added, np.broadcast_shapes(added.shape, step.shape))
    op = OnnxOp("DequantizeLinear", "", (("axis", max(whole.ndim - 1, 0)),))
    return writer.constant(whole.shape, "float32", lambda: dequantised(whole, step, None, -1), (op, (whole, step)))


def quantised_weights(
    writer: Writer, at: int, scale_at: int, zero_at: int, *, transposed: bool = False, factor: float = 1.0
) -> str | Refusal:
    """8-bit constants, dequantised with one scale per column or one for all.

    Args:
        writer: writes the node.
        at, scale_at, zero_at: positions of the operands.
        transposed: whether the given constant is transposed.
        factor: factor that the scales are multiplied by.
    """
    weights, scale, zero = (writer.constant_at(place) for place in (at, scale_at, zero_at))
    if weights is None or scale is None or (writer.has(zero_at) and zero is None):
        return Refusal(_COMPUTED)
    if transposed:
        weights = np.ascontiguousarray(weights.T)
    columns = weights.shape[-1]
    if scale.size not in (1, columns) or (zero is not None and zero.size not in (1, columns)):
        return Refusal("its right-hand side has scales that are not per column")
    if factor != 1:
        scale = (scale * np.array(factor, scale.dtype)).astype(scale.dtype)
    step = scale.reshape(() if scale.size == 1 else -1)
    least = None if zero is None else zero.reshape(() if zero.size == 1 else -1)
    if least is not None:
        step, least = np.broadcast_arrays(step, least)
    op = OnnxOp("DequantizeLinear", "", (("axis", weights.ndim - 1),))
    made = partial(dequantised, weights, step, least, -1)
    return writer.constant(weights.shape, scale.dtype.name, made, (op, (weights, step, least)))


@expands("MatMulNBits", domain=CONTRIB)
def _packed(writer: Writer) -> Refusal | None:
    """Packed weights of `bits` bits in blocks along K; each block has a scale and may have a zero point."""
    depth, columns = writer.integer("K"), writer.integer("N")
    packed, scales, zeros = (writer.constant_at(place) for place in (1, 2, 3))
    bits, block = writer.integer("bits", 4), writer.integer("block_size", 32)
    if packed is None or scales is None or (writer.has(3) and zeros is None):
        return Refusal(_COMPUTED)
    if writer.has(4):
        return Refusal("its blocks are selected by an index")
    if bits not in (2, 4, 8) or packed.dtype != np.uint8:
        return Refusal(f"its weights are packed as {bits} bits each")
    blocks = -(-depth // block)

    def weights() -> Array:
        elements = _unpacked(packed.reshape(columns, blocks, -1), bits)[:, :, :block].astype(np.float32)
        least: npt.NDArray[np.float32] = np.array(1 << (bits - 1), np.float32)
        if zeros is not None and zeros.dtype == np.uint8:
            least = _unpacked(zeros.reshape(columns, -1), bits)[:, :blocks].astype(np.float32)[:, :, None]
        elif zeros is not None:
            least = zeros.reshape(columns, blocks, 1).astype(np.float32)
        wide = (elements - least) * scales.reshape(columns, blocks, 1).astype(np.float32)
        return np.asarray(wide.reshape(columns, -1)[:, :depth].T.astype(scales.dtype))

    made = writer.product(PRODUCT, writer.operand(0), writer.constant((depth, columns), scales.dtype.name, weights))
    if writer.has(5):
        writer.add(Elementwise("Add"), made, writer.operand(5))
    return None


def _unpacked(array: Array, bits: int) -> Array:
    """Unpacks few-bit elements from bytes along the last axis, lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = (array.astype(np.uint8)[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return np.asarray(parts).reshape(*array.shape[:-1], -1)


@expands(FUSED_PRODUCT, domain=CONTRIB)
def _fused(writer: Writer) -> Refusal | None:
    """alpha times a product of operands that may be transposed, or have their first axis after the other batch axes."""
    operands = []
    for position, side in enumerate("AB"):
        transposed, batch_inside = (bool(writer.integer(f"trans{part}{side}")) for part in ("", "Batch"))
        rank = len(writer.shape(writer.operand(position)))
        order = fused_order(rank, transposed=transposed, batch_inside=batch_inside)
        operands.append(_permuted(writer, position, order))
    made = writer.product(PRODUCT, *operands)
    alpha = writer.number("alpha", 1.0)
    if alpha != 1:
        dtype = writer.dtype(made)
        writer.add(Elementwise("Mul"), made, writer.constant((), dtype, lambda: np.array(alpha, dtype)))
    return None


def _permuted(writer: Writer, position: int, order: tuple[int, ...]) -> str:
    """An operand with its axes in another order; a constant remains a constant."""
    name, array = writer.operand(position), writer.constant_at(position)
    if order == tuple(range(len(order))):
        return name
    if array is None:
        return writer.add(Transpose(order), name)
    whole = array
    return writer.constant(tuple(whole.shape[axis] for axis in order), whole.dtype.name, lambda: whole.transpose(order))


stays("its 4-bit weights are indices into a table of bitsandbytes", "MatMulBnb4", domain=CONTRIB)
stays("its operands are 8-bit floats, which units do not multiply", "GemmFloat8", domain=CONTRIB)
stays("its sums of 16-bit integers are too large for units to add exactly", "MatMulInteger16", domain=CONTRIB)
stays("its operands are stored in the order of NVIDIA's tensor cores", "QOrderedMatMul", domain=CONTRIB)
stays("its activation is unknown", "FusedGemm", "FusedMatMulActivation", domain=CONTRIB)
stays("its product is fused with its Gelu into one kernel", "GemmFastGelu", domain=CONTRIB)
stays("it is superseded by FusedMatMul, which is supported", "TransposeMatMul", domain=CONTRIB)
