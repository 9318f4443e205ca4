"""A model that has run is not run again, as long as nothing that its run depends on has changed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import pimflow
from pimflow.ir import Graph
from pimflow.onnxio.session import GraphSession, open_session
from pimflow.search.run_cache import RunCache
from support.onnx_models import model_of as build_model


def model_of(weight: float) -> onnx.ModelProto:
    """A model with a Softmax, so that loading it does not show that it runs."""
    weights = np.random.default_rng(0).standard_normal((4, 3, 1, 1)).astype(np.float32) + np.float32(weight)
    nodes = [helper.make_node("Conv", ["x", "w"], ["z"]), helper.make_node("Softmax", ["z"], ["y"])]
    return build_model(nodes, {"x": (1, 3, 8, 8)}, constants={"w": weights})


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The models that were run, in order."""
    seen: list[object] = []

    def recorded(model: str | bytes, *arguments: Any) -> Any:
        seen.append(model)
        return open_session(model, *arguments)

    monkeypatch.setattr("pimflow.runtime.execute.original.open_session", recorded)
    return seen


def test_the_original_and_the_compiled_model_run_once(tmp_path: Path, runs: list[object]) -> None:
    for name in ("one", "two"):
        pimflow.compile(model_of(0)).save(tmp_path / name)
    assert len(runs) == 2
    pimflow.compile(model_of(0), seed=7).save(tmp_path / "three")
    assert len(runs) == 4
    pimflow.compile(model_of(1)).save(tmp_path / "four")
    assert len(runs) == 6


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models that were checked by ONNX Runtime, in order."""
    seen: list[str] = []

    class Told(GraphSession):
        def __init__(self, graph: Graph, threads: int = 2, optimise: bool = True, fuse_quantised: bool = True) -> None:
            seen.append(graph.name)
            super().__init__(graph, threads, optimise, fuse_quantised)

    monkeypatch.setattr("pimflow.frontend.load.GraphSession", Told)
    return seen


def test_a_file_that_ran_is_not_checked_again(tmp_path: Path, checked: list[str]) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model_of(2), path)
    for _ in range(2):
        pimflow.compile(path)
    assert len(checked) == 1
    pimflow.compile(path, use_cache=False)
    assert len(checked) == 2
    onnx.save(model_of(3), path)
    pimflow.compile(path)
    assert len(checked) == 3


def test_a_file_is_checked_again_with_other_shapes(tmp_path: Path, checked: list[str]) -> None:
    path, model = tmp_path / "model.onnx", model_of(4)
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "rows"
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    onnx.save(model, path)
    for rows in (8, 8, 9):
        pimflow.compile(path, shapes={"rows": rows})
    assert len(checked) == 2


def test_models_that_were_not_run_are_checked_again(tmp_path: Path, checked: list[str]) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model_of(5), path)
    for _ in range(2):
        pimflow.compile(path, check=False)
    assert len(checked) == 2


def test_without_the_cache_everything_runs(tmp_path: Path, runs: list[object]) -> None:
    for name in ("one", "two"):
        pimflow.compile(model_of(0), use_cache=False).save(tmp_path / name)
    assert len(runs) == 4


def test_external_weights_are_not_covered_by_the_models_digest(tmp_path: Path, runs: list[object]) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model_of(0), path, save_as_external_data=True, size_threshold=0, location="weights")
    for _ in range(2):
        pimflow.compile(path)
    assert len(runs) == 2


def test_another_onnx_runtime_version_reuses_nothing(tmp_path: Path) -> None:
    RunCache(tmp_path, "1").put("model", 1)
    assert RunCache(tmp_path, "1").has("model", 1)
    assert not RunCache(tmp_path, "1").has("model", 2)
    assert not RunCache(None, "1").has("model", 1)
    assert not RunCache(tmp_path, "0").has("model", 1)
