"""The user's own model, run unchanged: exotic element types, and outputs that are inputs."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import pimflow_zoo
from pimflow.onnxio.export import SplitModel
from pimflow.runtime.execute.original import run_original
from support.exotic_models import MODELS, W, input_as_output


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
