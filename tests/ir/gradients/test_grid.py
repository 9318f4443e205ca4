"""Gradients of GridSample, with respect to the map and the sampling positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pimflow.errors import ModelError
from pimflow.ir import Builder, Graph
from pimflow.passes.differentiate import Differentiate, training_step
from support.gradients import check_gradients


def sampled(dtype: str = "float64", opset: int = 20, **given: Any) -> Graph:
    """Two images of three channels, sampled inside the map, at its border and outside."""
    build = Builder(opset=opset)
    x, grid = build.input(2, 3, 4, 5, name="x", dtype=dtype), build.input(2, 3, 2, 2, name="grid", dtype=dtype)
    return build.graph(build.onnx("GridSample", x, grid, shape=(2, 3, 3, 2), **given))


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_fractional_positions(align: int, padding: str, mode: str) -> None:
    """Positions up to three times as far as the map's ends: some are reflected at both."""
    graph = sampled(mode=mode, padding_mode=padding, align_corners=align)
    check_gradients(graph)
    places = np.random.default_rng(2).uniform(-5.0, 5.0, graph.shape("grid"))
    check_gradients(graph, {"grid": places})


def volume(mode: str, **given: Any) -> Graph:
    """Two images of two channels over three axes, sampled at six positions each."""
    build = Builder(opset=20)
    x = build.input(2, 2, 3, 4, 5, name="x", dtype="float64")
    grid = build.input(2, 1, 3, 2, 3, name="grid", dtype="float64")
    return build.graph(build.onnx("GridSample", x, grid, shape=(2, 2, 1, 3, 2), mode=mode, **given))


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_positions_in_a_volume(align: int, padding: str, mode: str) -> None:
    graph = volume(mode, padding_mode=padding, align_corners=align)
    check_gradients(graph)
    places = np.random.default_rng(3).uniform(-3.0, 3.0, graph.shape("grid"))
    check_gradients(graph, {"grid": places})


@pytest.mark.parametrize(("align", "padding"), [(0, "zeros"), (1, "border"), (0, "reflection")])
def test_cubics_in_a_volume(align: int, padding: str) -> None:
    """Places read 64 elements each. The differences are of the map's and the places' own: ONNX Runtime lacks this mode,
    and so does PyTorch."""
    graph = volume("cubic", padding_mode=padding, align_corners=align)
    places = np.random.default_rng(3).uniform(-1.5, 1.5, graph.shape("grid"))
    check_gradients(graph, {"grid": places})


def test_unknown_modes() -> None:
    with pytest.raises(ModelError, match="GridSample of mode 'lanczos'"):
        training_step(volume("lanczos"), Differentiate(inputs=True))


def test_constant_positions_need_no_gradient() -> None:
    build = Builder(opset=16)
    x = build.input(1, 2, 4, 4, dtype="float64")
    places = np.random.default_rng(0).uniform(-1.2, 1.2, (1, 3, 3, 2))
    check_gradients(build.graph(build.onnx("GridSample", x, build.constant(places), shape=(1, 2, 3, 3))))
