"""Conversions are found by operator, may come from outside the package, and run once per node."""

from __future__ import annotations

import onnx
import pytest
from onnx import helper

from pimflow.frontend import load_model
from pimflow.frontend.convert import Site, converts
from pimflow.ir import Elementwise, OnnxOp
from pimflow.ir.registry import scratch_registrations
from support.onnx_models import model_of


def fast_gelu_model() -> onnx.ModelProto:
    nodes = [
        helper.make_node("FastGelu", ["x"], ["a"], domain="com.microsoft"),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    return model_of(nodes, {"x": (2, 3)}, domains={"com.microsoft": 1})


def test_an_operator_of_another_domain_is_converted_once() -> None:
    seen: list[str] = []
    with scratch_registrations():

        @converts("FastGelu", domain="com.microsoft")
        def _fast_gelu(site: Site) -> Elementwise:
            seen.append(site.node.output)
            return Elementwise("Sigmoid")

        graph = load_model(fast_gelu_model())
    assert [node.op for node in graph.nodes] == [Elementwise("Sigmoid"), Elementwise("Relu")]
    assert seen == ["a"]


def test_without_a_conversion_it_stays_opaque() -> None:
    graph = load_model(fast_gelu_model())
    assert graph.nodes[0].op == OnnxOp("FastGelu", "com.microsoft")


def test_an_operator_has_one_conversion() -> None:
    with pytest.raises(ValueError, match=r"\('', 'Conv'\) is registered already"):
        converts("Conv")(lambda site: None)
