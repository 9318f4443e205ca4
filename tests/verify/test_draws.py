"""Models that draw random numbers: compared with the same seeds in both, and wrong ones are still detected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import pimflow
from pimflow.runtime.execute.original import run_original
from pimflow.verify.draws import seeded_original
from support.onnx_models import model_of

SHAPE = (4, 64)


def drawing_model(**attributes: Any) -> onnx.ModelProto:
    """(x + noise) w, and the part of it that a mask leaves."""
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["noise"], "noise_of_x", **attributes),
        helper.make_node("Add", ["x", "noise"], ["noisy"]),
        helper.make_node("MatMul", ["noisy", "w"], ["product"], "product"),
        helper.make_node("RandomUniform", [], ["mask"], "mask", shape=SHAPE, low=0.5, high=1.5, **attributes),
        helper.make_node("Mul", ["product", "mask"], ["y"]),
    ]
    weights = np.random.default_rng(1).standard_normal((64, 64)).astype(np.float32)
    return model_of(nodes, {"x": SHAPE}, constants={"w": weights})


def output(model: object) -> np.ndarray:
    x = np.ones(SHAPE, np.float32)
    (found,) = run_original(model, {"x": x}).values()  # type: ignore[arg-type]
    return np.asarray(found)


@pytest.mark.parametrize("way", [{}, {"arena": True}, {"pim": "values"}])
def test_random_models_are_verified_with_the_same_seeds(way: dict[str, object]) -> None:
    compiled = pimflow.compile(drawing_model(), policy="pim", use_cache=False)
    found = compiled.verify(**way)  # type: ignore[arg-type]
    assert found.passed
    assert found.rtol < 0.01
    assert found.output_std > 1
    assert any("noise_of_x, mask" in note for note in found.notes)


def test_another_model_with_the_same_seeds_is_not_the_same() -> None:
    compiled = pimflow.compile(drawing_model(), policy="pim", use_cache=False)
    other = drawing_model()
    other.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.eye(64, dtype=np.float32), "w"))
    wrong = pimflow.compile(other, policy="pim", use_cache=False)
    object.__setattr__(wrong, "source", compiled.source)
    assert not wrong.verify().passed


def test_seeds_are_given_to_models_in_any_form_and_stay_where_they_are(tmp_path: Path) -> None:
    model = drawing_model()
    path = tmp_path / "drawing.onnx"
    onnx.save(drawing_model(), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    first = output(seeded_original(model))
    for form in (model, model.SerializeToString(), str(path)):
        np.testing.assert_array_equal(output(seeded_original(form)), first)
    own = drawing_model(seed=3.0)
    assert seeded_original(own) == own
    assert model.graph.node[0].attribute == drawing_model().graph.node[0].attribute, "the user's model is not changed"


@pytest.mark.parametrize("way", [{}, {"arena": True}, {"pim": "values"}])
def test_nodes_with_one_seed_draw_the_same_numbers(way: dict[str, object]) -> None:
    """As in ONNX Runtime, where every node has a generator of its own: their difference is zero."""
    draws = [helper.make_node("RandomNormalLike", ["x"], [name], name, seed=5.0) for name in ("one", "other")]
    nodes = [
        *draws,
        helper.make_node("Sub", ["one", "other"], ["zero"]),
        helper.make_node("Add", ["x", "zero"], ["same"]),
        helper.make_node("MatMul", ["same", "w"], ["y"], "product"),
    ]
    weights = np.random.default_rng(1).standard_normal((64, 64)).astype(np.float32)
    model = model_of(nodes, {"x": SHAPE}, constants={"w": weights})
    compiled = pimflow.compile(model, policy="pim", use_cache=False)
    assert any(node.op.onnx_name == "RandomNormalLike" for node in compiled.graph.nodes)
    assert compiled.verify(**way).passed  # type: ignore[arg-type]
    x = np.random.default_rng(2).standard_normal(SHAPE).astype(np.float32)
    np.testing.assert_allclose(compiled.run({"x": x})["y"], x @ weights, rtol=0, atol=1e-4)


def test_every_inference_in_flight_draws_the_same_numbers() -> None:
    compiled = pimflow.compile(drawing_model(), objective="throughput", use_cache=False)
    found = compiled.verify()
    assert found.in_flight is not None
    assert found.in_flight.checked > 1
    assert found.passed, found.text()
