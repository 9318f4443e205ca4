"""Compiled models that are copied, sent to another process, used in another folder, or outlive their original."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import pytest

import pimflow
from pimflow.errors import ModelError

INPUTS = {"input": np.random.default_rng(1).standard_normal((1, 3, 16, 16)).astype(np.float32)}


def changed(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model with other weights."""
    other = onnx.ModelProto()
    other.CopyFrom(model)
    for tensor in other.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        if array.dtype == np.float32:
            tensor.CopyFrom(onnx.numpy_helper.from_array(array * np.float32(1.5), tensor.name))
    return other


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pimflow.CompiledModel:
    """A model compiled from a relative path in the current folder."""
    monkeypatch.chdir(tmp_path)
    onnx.save(pimflow.zoo_model("toy"), "toy.onnx")
    return pimflow.compile("toy.onnx", policy="md-dp", use_cache=False)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda item: pickle.loads(pickle.dumps(item))])
def test_a_compiled_model_can_be_copied_and_pickled(copied: Any, saved: pimflow.CompiledModel, tmp_path: Path) -> None:
    expected = saved.run(INPUTS)["logits"]  # makes a session of ONNX Runtime, which cannot be pickled
    other = copied(saved)
    assert (other.plan, other.report, other.source) == (saved.plan, saved.report, saved.source)
    np.testing.assert_array_equal(other.run(INPUTS)["logits"], expected)
    assert other.verify(pim="values").passed
    assert other.timeline == saved.timeline
    other.save(tmp_path / "other")
    saved.save(tmp_path / "saved")
    assert not [path.name for path in (tmp_path / "saved").iterdir() if differs(path, tmp_path / "other" / path.name)]


def differs(a: Path, b: Path) -> bool:
    return a.is_file() and a.read_bytes() != b.read_bytes()


def test_graphs_and_what_holds_them_can_be_copied_and_pickled() -> None:
    for result in (pimflow.inspect("zoo:toy"), pimflow.opt("zoo:toy", "cleanup")):
        for other in (copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
            assert repr(other) == repr(result)
            assert other.graph.nodes == result.graph.nodes
            assert other.graph.values == result.graph.values
            with pytest.raises(TypeError):  # still read-only
                other.graph.values["x"] = None  # type: ignore[index]


def test_a_relative_path_stays_that_of_the_same_file(
    saved: pimflow.CompiledModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved.save("out")
    loaded = pimflow.load("out")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for compiled in (saved, loaded, pickle.loads(pickle.dumps(loaded))):
        assert compiled.verify().passed
        assert len(pimflow.explain(compiled, "conv2")) > 1
    assert pimflow.load(saved.save("again")).verify().passed
    assert saved.source.text == "toy.onnx"  # as it was given


def test_a_file_that_has_changed_is_not_taken_for_the_original(saved: pimflow.CompiledModel) -> None:
    onnx.save(changed(pimflow.zoo_model("toy")), "toy.onnx")
    for call in (saved.verify, lambda: saved.save("out"), lambda: pimflow.explain(saved, "conv2")):
        with pytest.raises(ModelError, match=r"toy\.onnx was changed since it was compiled; compile it again"):
            call()
    assert not Path("out").exists()
    onnx.save(pimflow.zoo_model("toy"), "toy.onnx")  # the same bytes again, at another time
    assert saved.verify().passed


def test_a_file_that_is_gone_is_named(saved: pimflow.CompiledModel) -> None:
    Path("toy.onnx").unlink()
    for call in (saved.verify, lambda: saved.save("out")):
        with pytest.raises(ModelError, match=r"toy\.onnx, from which the model was compiled, cannot be read: No such"):
            call()
    assert saved.run(INPUTS)["logits"].shape == (1, 10)


def test_a_model_in_memory_that_has_changed_is_not_taken_for_the_original(tmp_path: Path) -> None:
    model = pimflow.zoo_model("toy")
    compiled = pimflow.compile(model, policy="gpu", use_cache=False)
    model.CopyFrom(changed(model))
    for call in (compiled.verify, lambda: compiled.save(tmp_path / "out")):
        with pytest.raises(ModelError, match="toy was changed since it was compiled; compile it again"):
            call()
