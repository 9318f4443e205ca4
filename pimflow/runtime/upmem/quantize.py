"""Features as integers: PyGim's symmetric quantisation, its error, and whether sums may overflow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from pimflow.ir import Refusal
from pimflow.records import dataclass
from pimflow.sparse import Graph
from pimflow.targets.schema.upmem import ElementType

BITS: Mapping[str, int] = {"int8": 5, "int16": 10, "int32": 20}
"""Bits of a quantised value including its sign, by element type: small sums then fit (`models/quantize.py`)."""

MIN_BITS: Mapping[str, int] = {"int8": 3, "int16": 4, "int32": 8}
"""Fewer bits than these make weighted sums useless."""

ACCUMULATOR_BITS: Mapping[str, int] = {"int8": 8, "int16": 16, "int32": 32}
WIDE_BITS = 64

_DTYPES: Mapping[str, Any] = {"int8": np.int8, "int16": np.int16, "int32": np.int32, "fp32": np.float32}


def dtype_of(element: ElementType) -> npt.DTypeLike:
    """The NumPy type of an element type."""
    dtype: npt.DTypeLike = _DTYPES[element]
    return dtype


@dataclass(frozen=True, eq=False)
class Quantized:
    """Values as `values` x `scale`; for floats, the values themselves and 1."""

    values: npt.NDArray[Any]
    scale: float


def quantized(values: npt.NDArray[Any], element: ElementType, bits: int | None = None) -> Quantized:
    """Values in an element type.

    Integers get scale = 2 max |v| / 2**bits: values are rounded to the nearest of the 2**bits steps between the
    extremes, with an error of at most scale / 2. If all values are zero, they stay zero.

    Args:
        values: real numbers.
        element: their new type.
        bits: bits of an integer; those of `BITS` if None.
    """
    if element == "fp32":
        return Quantized(values.astype(np.float32, copy=False), 1.0)
    most = float(np.max(np.abs(values), initial=0.0))
    scale = 2 * most / 2 ** (BITS[element] if bits is None else bits) or 1.0
    return Quantized(np.rint(values.astype(np.float64) / scale).astype(dtype_of(element)), scale)


Weights = npt.NDArray[Any]
"""Weights of edges [E], or of edges and heads [E, H]."""


def bits_for(graph: Graph, element: ElementType, widened: bool, weights: Weights | None = None) -> int | Refusal:
    """Bits of features, and of weights if edges have any, with which no sum over the edges overflows.

    Without weights, features have the bits of `BITS`; the result is a refusal if a vertex has too many edges for that.
    With these bits for both, products with weights would exceed the accumulator (PyGim's models have no weights). So
    features and weights get the largest number of bits that fits; the result is a refusal below `MIN_BITS`.

    Args:
        graph: the edges.
        element: the type that features and weights are quantised to.
        widened: whether sums are int64.
        weights: weights of the edges, instead of the graph's own.
    """
    weighted = graph.weight is not None or weights is not None
    return _bits(graph, element, widened, partial(largest_sum, graph, element, weights=weights), weighted=weighted)


def bits_for_any_weights(graph: Graph, element: ElementType, widened: bool) -> int | Refusal:
    """Like `bits_for`, for any weights, such as those computed at run time; `bits_for` never gives fewer bits."""
    longest = int(np.diff(graph.rowptr).max(initial=0))
    return _bits(graph, element, widened, lambda bits: longest * 4 ** (bits - 1), weighted=True)


def _bits(
    graph: Graph, element: ElementType, widened: bool, most_of: Callable[[int], int], *, weighted: bool
) -> int | Refusal:
    if element == "fp32":
        return 0
    room = 2 ** ((WIDE_BITS if widened else ACCUMULATOR_BITS[element]) - 1) - 1
    bits = BITS[element]
    while weighted and most_of(bits) > room and bits > MIN_BITS[element]:
        bits -= 1
    needed = most_of(bits)
    if needed <= room:
        return bits
    what = f"{element} sums over {graph!r} can reach {needed:.2g}, but hold only {room:.2g}"
    return Refusal(what, needed, room, "steps", "add up in int64 (dpu.accumulator, --wide), or aggregate in fp32")


def overflow(
    graph: Graph, element: ElementType, widened: bool, weights: Weights | None = None, *, computed: bool = False
) -> Refusal | None:
    """Why sums over a graph's edges may overflow their accumulator for some features; None if they cannot.

    Weights are as in `bits_for`; if they are `computed` at run time, any weights are considered.
    """
    bits = bits_for_any_weights(graph, element, widened) if computed else bits_for(graph, element, widened, weights)
    return bits if isinstance(bits, Refusal) else None


def largest_sum(graph: Graph, element: ElementType, bits: int, weights: Weights | None = None) -> int:
    """The largest sum of absolute values in any row, for features and weights with `bits` bits.

    Weights are the graph's own if none are given.
    """
    most = int(2 ** (bits - 1))
    weights = graph.weight if weights is None else weights
    if weights is None:
        return int(np.diff(graph.rowptr).max(initial=0)) * most
    largest = 0
    for head in quantized(weights, element, bits).values.reshape(len(weights), -1).T:
        sums = np.concatenate([[0], np.cumsum(np.abs(head.astype(np.int64)))])
        largest = max(largest, int(np.diff(sums[graph.rowptr]).max(initial=0)))
    return largest * most
