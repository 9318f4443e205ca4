"""The user's own model, run as it is: exotic element types, and outputs that are inputs."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

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
