"""The GPU work of operators that the compiler keeps unchanged: one file per family, rules by domain and name."""

from pimflow.runtime.gpu.kept import attention, bodies, convolution, einsum, product, recurrent
from pimflow.runtime.gpu.kept.rules import KEPT, asks, is_convolution, multiplies

__all__ = [
    "KEPT",
    "asks",
    "attention",
    "bodies",
    "convolution",
    "einsum",
    "is_convolution",
    "multiplies",
    "product",
    "recurrent",
]
