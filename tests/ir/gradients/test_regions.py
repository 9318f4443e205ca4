"""Gradients of averages over cells of regions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pimflow.errors import ModelError
from pimflow.ir import Builder, Graph
from pimflow.passes.differentiate import Differentiate, training_step
from support.gradients import check_gradients

REGIONS = np.array([[0.7, 1.2, 5.1, 4.3], [-4, -3, 2.2, 3.1], [3.3, 2.1, 3.4, 2.3], [5, 4, 9.5, 8.2]])
"""Inside the map, over its first corner, smaller than an element, and over its last corner."""


def regions(opset: int = 16, **given: Any) -> Graph:
    build = Builder(opset=opset)
    images = build.constant(np.array([1, 0, 0, 1], np.int64))
    operands = (build.input(2, 3, 5, 6, dtype="float64"), build.constant(REGIONS), images)
    return build.graph(build.onnx("RoiAlign", *operands, shape=(4, 3, 2, 3), output_height=2, output_width=3, **given))


@pytest.mark.parametrize(
    "given", [{}, {"spatial_scale": 0.75}, {"coordinate_transformation_mode": "output_half_pixel"}]
)
def test_cells_of_regions(given: dict[str, Any]) -> None:
    check_gradients(regions(sampling_ratio=2, **given))


@pytest.mark.parametrize(("reason", "given"), [("of maxima", {"mode": "max"}), ("number of samples", {})])
def test_missing_rules(reason: str, given: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=reason):
        training_step(regions(**given), Differentiate(inputs=True))
