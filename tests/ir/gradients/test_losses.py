"""Gradients of ONNX's loss operators."""

from __future__ import annotations

import numpy as np
import pytest

from pimflow.errors import ModelError
from pimflow.ir import Builder, OnnxOp
from pimflow.ir.ops.opaque import Attributes
from pimflow.passes.differentiate import Differentiate, training_step
from support.gradients import check_gradients


@pytest.mark.parametrize("kind", ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("ignored", [None, 2])
@pytest.mark.parametrize("weighed", [False, True])
def test_losses_of_classes(kind: str, reduction: str, ignored: int | None, weighed: bool) -> None:
    build = Builder()
    x, classes = build.input(3, 4, 2, dtype="float64"), build.constant(np.array([[0, 2], [2, 1], [3, 3]]))
    weights = [build.constant(np.array([0.5, 2.0, 1.0, 0.25]))] if weighed else []
    given: Attributes = () if ignored is None else (("ignore_index", ignored),)
    op = OnnxOp(kind, "", (*given, ("reduction", reduction)))
    made = build.node(op, (x, classes, *weights), [((3, 2) if reduction == "none" else (), "float64")])
    check_gradients(build.graph(*made))


def test_log_probabilities_with_other_readers() -> None:
    build = Builder()
    x, classes = build.input(3, 4), build.constant(np.array([0, 2, 1]))
    made = [((), "float32"), ((3, 4), "float32")]
    loss, logs = build.node(OnnxOp("SoftmaxCrossEntropyLoss", "", ()), (x, classes), made)
    with pytest.raises(ModelError, match="its logarithms are read too; export LogSoftmax and the loss apart"):
        training_step(build.graph(loss, logs), Differentiate(inputs=True))
