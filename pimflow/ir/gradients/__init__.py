"""The gradient of every op, a family a file: what a training step computes backward."""

from pimflow.ir.gradients import (
    contraction,
    elementwise,
    indexing,
    movement,
    normalization,
    reduction,
    sparse,
    window,
)
from pimflow.ir.gradients.tape import (
    GRADIENTS,
    ONNX_GRADIENTS,
    TRAINING_FORMS,
    Gradients,
    Rule,
    Tape,
    differentiates,
    is_float,
)

__all__ = [
    "GRADIENTS",
    "ONNX_GRADIENTS",
    "TRAINING_FORMS",
    "Gradients",
    "Rule",
    "Tape",
    "contraction",
    "differentiates",
    "elementwise",
    "indexing",
    "is_float",
    "movement",
    "normalization",
    "reduction",
    "sparse",
    "window",
]
