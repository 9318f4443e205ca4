"""Operators that stay ONNX's own, written out as nodes with one product among them: a family a file."""

from pimflow.ir.expansion import attention, convolution, einsum, product, recurrent
from pimflow.ir.expansion.base import EXPANSIONS, Expansion, Writer, expand, expands, is_expandable, why_whole

__all__ = [
    "EXPANSIONS",
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
    "why_whole",
]
