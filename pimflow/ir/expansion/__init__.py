"""Expansion of ONNX operators that contain a product into nodes, one of which is the product; one family per file."""

from pimflow.ir.expansion import attention, convolution, einsum, product, recurrent
from pimflow.ir.expansion.base import (
    EXPANSIONS,
    LARGEST_BYTE,
    Expansion,
    Writer,
    expand,
    expands,
    is_expandable,
    sums_integers,
    why_whole,
)

__all__ = [
    "EXPANSIONS",
    "LARGEST_BYTE",
    "Expansion",
    "Writer",
    "attention",
    "convolution",
    "einsum",
    "expand",
    "expands",
    "is_expandable",
    "product",
    "recurrent",
    "sums_integers",
    "why_whole",
]
