"""Gelu that an exporter spelled out becomes one operator, in training."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pimflow.ir import Builder
from pimflow.passes.whole_gelus import with_whole_gelus
from support.passes import kinds
from support.values import assert_same_values


class Spelled(Builder):
    """Builds x / 2 (1 + erf(x / sqrt 2))."""

    def number(self, value: float) -> str:
        return self.constant(np.array(value, np.float32))

    def shifted(self, x: str, root: float = math.sqrt(2), one: float = 1.0) -> str:
        return self.add(self.elementwise("Erf", self.elementwise("Div", x, self.number(root))), self.number(one))


@pytest.mark.parametrize("form", ["times x first", "half first", "x halved", "constants first"])
def test_the_forms_that_exporters_write(form: str) -> None:
    build = Spelled(opset=20)
    x = build.relu(build.input(2, 8))
    if form == "constants first":
        scaled = build.mul(build.number(math.sqrt(0.5)), x)
        made = build.mul(build.number(0.5), build.mul(x, build.add(build.number(1), build.elementwise("Erf", scaled))))
    elif form == "times x first":
        made = build.mul(build.mul(x, build.shifted(x)), build.number(0.5))
    elif form == "half first":
        made = build.mul(x, build.mul(build.shifted(x), build.number(0.5)))
    else:
        made = build.mul(build.elementwise("Div", x, build.number(2)), build.shifted(x))
    graph = build.graph(build.sigmoid(made))
    whole = with_whole_gelus(graph)
    assert kinds(whole) == ["Relu", "Gelu", "Sigmoid"]
    assert_same_values(graph, whole)


@pytest.mark.parametrize(
    "twist",
    ["another root", "another shift", "another factor", "another value", "x twice", "read", "an output", "bare"],
)
def test_what_only_looks_like_it_stays(twist: str) -> None:
    build = Spelled(opset=20)
    x = build.relu(build.input(2, 8))
    root = 1.0 if twist == "another root" else math.sqrt(2)
    shifted = build.shifted(x, root, 0.0 if twist == "another shift" else 1.0)
    product = build.mul(build.sigmoid(x) if twist == "another value" else x, shifted)
    if twist == "x twice":
        product = build.mul(product, x)
    made = product if twist == "bare" else build.mul(product, build.number(0.25 if twist == "another factor" else 0.5))
    others = {"read": [build.relu(shifted)], "an output": [shifted]}.get(twist, [])
    graph = build.graph(made, *others)
    assert with_whole_gelus(graph) is graph


def test_a_number_that_adds_a_dimension_stays() -> None:
    build = Spelled(opset=20)
    x = build.relu(build.input(2, 8))
    half = build.constant(np.full((1, 1, 1), 0.5, np.float32))
    graph = build.graph(build.mul(build.mul(x, build.shifted(x)), half))
    assert with_whole_gelus(graph) is graph
