"""The user's own model, run unchanged: exotic element types, and outputs that are inputs."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from onnx import TensorProto, helper

import pimflow_zoo
from pimflow.errors import ModelError
from pimflow.frontend import load_model
from pimflow.onnxio.export import SplitModel
from pimflow.onnxio.session import open_session
from pimflow.runtime.execute.original import OriginalModel, run_original
from support.exotic_models import MODELS, W, input_as_output
from support.onnx_models import model_of


@pytest.mark.parametrize(("name", "dtype"), [("bfloat16", ml_dtypes.bfloat16), ("int4", ml_dtypes.int4)])
def test_exotic_outputs_of_the_original(name: str, dtype: npt.DTypeLike) -> None:
    x = 0.4 * np.random.default_rng(3).standard_normal((4, 16)).astype(np.float32)
    y = run_original(MODELS[name](), {"x": x})["y"]
    assert y.dtype == dtype
    assert np.abs(x @ W).max() < 7
    distance = np.abs(y.astype(np.float32) - x @ W)
    assert distance.max() <= (1 if name == "int4" else 0.05)
    assert y.astype(np.float32).std() > 1


def test_an_output_that_is_an_input_is_a_copy() -> None:
    x = np.ones((4, 16), np.float32)
    y = run_original(input_as_output(), {"x": x})["x"]
    x[:] = 7
    assert (y == 1).all()


def test_separate_constants_are_shared_and_give_the_same_values() -> None:
    model, apart = pimflow_zoo.build("mobilenet-v3-small"), pimflow_zoo.build_apart("mobilenet-v3-small")
    x = np.random.default_rng(3).standard_normal((1, 3, 224, 224)).astype(np.float32)
    assert apart.constants
    given = run_original(SplitModel.of(*apart), {"input": x}, is_once=True)
    np.testing.assert_array_equal(given["logits"], run_original(model, {"input": x}, is_once=True)["logits"])


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the models for which sessions have been opened."""
    found: list[str] = []

    def counted(model: str | bytes, options: Any, name: str) -> Any:
        found.append(name)
        return open_session(model, options, name)

    monkeypatch.setattr("pimflow.runtime.execute.original.open_session", counted)
    return found


def test_several_runs_open_one_session(opened: list[str]) -> None:
    model = OriginalModel(input_as_output())
    for fill in (1, 2):
        assert (model.run({"x": np.full((4, 16), fill, np.float32)})["x"] == fill).all()
    assert len(opened) == 1
    model.close()
    model.run({"x": np.ones((4, 16), np.float32)})
    assert len(opened) == 2


def test_a_failed_run_leaves_the_model_open(opened: list[str]) -> None:
    model = OriginalModel(input_as_output())
    with pytest.raises(ModelError):
        model.run({"x": np.ones((4, 17), np.float32)})
    assert (model.run({"x": np.ones((4, 16), np.float32)})["x"] == 1).all()
    assert len(opened) == 1


def test_a_model_in_single_precision_is_read_once(opened: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[object] = []

    def counted(*args: Any) -> Any:
        reads.append(args)
        return load_model(*args)

    monkeypatch.setattr("pimflow.runtime.execute.original.load_model", counted)
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=TensorProto.BFLOAT16),
        helper.make_node("Sigmoid", ["a"], ["b"]),  # ONNX Runtime has no kernel for it in bf16
        helper.make_node("Cast", ["b"], ["y"], to=TensorProto.FLOAT),
    ]
    model = OriginalModel(model_of(nodes, {"x": (4, 16)}, ["y"]))
    x = np.random.default_rng(3).standard_normal((4, 16)).astype(np.float32)
    for scale in (1, 2):
        np.testing.assert_allclose(model.run({"x": scale * x})["y"], 1 / (1 + np.exp(-scale * x)), rtol=0.02)
    assert len(reads) == 1


def test_every_run_of_a_reopened_model_draws_the_same_numbers() -> None:
    draw = helper.make_node("RandomNormalLike", ["x"], ["y"], seed=3.0)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    opset = [helper.make_opsetid("", 17)]
    proto = helper.make_model(helper.make_graph([draw], "draws", [x], [y]), opset_imports=opset, ir_version=8)

    def two_runs(model: OriginalModel) -> list[npt.NDArray[np.float32]]:
        return [model.run({"x": np.zeros(4, np.float32)})["y"] for _ in range(2)]

    first, second = two_runs(OriginalModel(proto, reopens=True))
    np.testing.assert_array_equal(first, second)
    first, second = two_runs(OriginalModel(proto))
    assert not np.array_equal(first, second)
