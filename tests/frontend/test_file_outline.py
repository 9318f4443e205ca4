"""Model files whose large initialisers are read separately give the same graphs and errors as files parsed whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import pimflow
from pimflow.bundle import original as original_files
from pimflow.bundle.original import copy_model
from pimflow.bundle.source import model_source
from pimflow.compiled import original
from pimflow.errors import PimflowError
from pimflow.frontend import file_outline as outlines
from pimflow.frontend import load_model
from pimflow.frontend.file_outline import file_outline
from pimflow.ir import Graph
from pimflow.onnxio.export import SplitModel
from pimflow.options import Options
from pimflow.runtime.execute.original import run_original
from support.onnx_models import single

WEIGHTS = np.random.default_rng(0).standard_normal((16, 3, 3, 3)).astype(np.float32)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model file with 64 bytes of a bias and then 1,728 bytes of weights, which counts as large."""
    monkeypatch.setattr(outlines, "LARGE_FILE_BYTES", 1000)
    monkeypatch.setattr(outlines, "LARGE_DATA_BYTES", 500)
    path = tmp_path / "model.onnx"
    path.write_bytes(conv_model().SerializeToString())
    return path


def conv_model() -> onnx.ModelProto:
    model = single("Conv", (1, 3, 8, 8), [WEIGHTS, WEIGHTS[:, 0, 0, 0].copy()])
    model.graph.initializer.reverse()
    return model


def outcome(path: Path) -> Graph | str:
    try:
        return load_model(path)
    except PimflowError as error:
        return str(error)


def both_ways(path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Graph | str, Graph | str]:
    """What the model loads as with its weights read separately, and parsed whole."""
    apart = outcome(path)
    with monkeypatch.context() as patch:
        patch.setattr(outlines, "LARGE_FILE_BYTES", 1 << 30)
        return apart, outcome(path)


def assert_alike(one: Graph | str, other: Graph | str) -> None:
    if isinstance(one, str) or isinstance(other, str):
        assert isinstance(one, str)
        assert isinstance(other, str)
        return
    assert (one.nodes, one.values) == (other.nodes, other.values)
    assert list(one.constants) == list(other.constants), "model.onnx has them in this order"
    for name, array in other.constants.items():
        np.testing.assert_array_equal(one.constants[name], array)
        assert one.constants[name].flags.aligned
        assert not one.constants[name].flags.writeable


def test_large_initialisers_are_left_out_and_found(path: Path) -> None:
    found = file_outline(path)
    assert found is not None
    assert found.places.keys() == {"c0"}
    assert found.proto.ByteSize() < 500
    (array,) = found.read(path).values()
    np.testing.assert_array_equal(array, WEIGHTS)


def test_a_graph_is_the_same_either_way(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apart, whole = both_ways(path, monkeypatch)
    assert isinstance(apart, Graph)
    assert_alike(apart, whole)


def test_large_data_next_to_a_size_are_left_alone(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = single("STFT", (1, 1024, 1), [np.array(8), np.hanning(256).astype(np.float32)])
    path.write_bytes(model.SerializeToString())
    outline = file_outline(path)
    assert outline is not None
    assert outline.places.keys() == {"c1"}
    apart, whole = both_ways(path, monkeypatch)
    assert isinstance(apart, Graph)
    assert_alike(apart, whole)


def test_everything_but_the_data_is_parsed_unchanged(path: Path) -> None:
    found = file_outline(path)
    assert found is not None
    for tensor in found.proto.graph.initializer:
        if tensor.name in found.places:
            tensor.ClearField("data_location")
            tensor.raw_data = found.read(path)[tensor.name].tobytes()
    assert found.proto == conv_model()


@pytest.mark.parametrize("cut", range(0, 2400, 67))
def test_a_truncated_file_gives_the_same_error(cut: int, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: max(len(data) - cut, 1000)])
    assert_alike(*both_ways(path, monkeypatch))


def test_damaged_bytes_give_the_same_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = path.read_bytes()
    raw = data.index(WEIGHTS.tobytes())
    places = [at for at in range(len(data)) if not raw <= at < raw + WEIGHTS.nbytes]
    rng = np.random.default_rng(1)
    for at in rng.choice(places, 60, replace=False):
        path.write_bytes(data[:at] + bytes([int(rng.integers(256))]) + data[at + 1 :])
        assert_alike(*both_ways(path, monkeypatch))


def test_tensors_of_one_name_are_parsed_whole(path: Path) -> None:
    model = conv_model()
    model.graph.initializer.append(model.graph.initializer[1])
    path.write_bytes(model.SerializeToString())
    assert file_outline(path) is None


def test_data_that_do_not_fill_their_tensor_are_parsed_whole(path: Path) -> None:
    model = conv_model()
    model.graph.initializer[1].dims[0] += 1
    path.write_bytes(model.SerializeToString())
    assert file_outline(path) is None
    assert isinstance(outcome(path), str)


def test_a_copy_has_the_models_data_files_and_no_others(path: Path, tmp_path: Path) -> None:
    model = conv_model()
    bias = numpy_helper.to_array(model.graph.initializer[0])
    onnx.external_data_helper.set_external_data(model.graph.initializer[0], "bias.bin", 0, bias.nbytes)
    model.graph.initializer[0].ClearField("raw_data")
    (tmp_path / "bias.bin").write_bytes(bias.tobytes())
    path.write_bytes(model.SerializeToString())
    copy = copy_model(str(path), tmp_path / "copy")
    assert {item.name for item in copy.parent.iterdir()} == {"bias.bin", "model.onnx"}
    np.testing.assert_array_equal(load_model(copy).constants["c1"], bias)


@pytest.mark.parametrize("is_whole", [True, False])
def test_whether_a_file_has_data_elsewhere_is_noted_when_it_is_read(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_whole: bool
) -> None:
    """The copy of a file without any is made without parsing it again; the others' data are still copied."""
    model = conv_model()
    if not is_whole:
        bias = model.graph.initializer[0]
        (tmp_path / "bias.bin").write_bytes(bias.raw_data)
        onnx.external_data_helper.set_external_data(bias, "bias.bin", 0, len(bias.raw_data))
        bias.ClearField("raw_data")
    path.write_bytes(model.SerializeToString())
    source = model_source(path)
    assert not source.is_whole
    compiled = pimflow.compile(path, check=False, use_cache=False)
    assert compiled.source.is_whole is is_whole
    parsed: list[Path] = []

    def seen(path: Path) -> outlines.FileOutline | None:
        parsed.append(path)
        return file_outline(path)

    monkeypatch.setattr(original_files, "file_outline", seen)
    out = compiled.save(tmp_path / "out")
    names = {item.name for item in (out / "original").iterdir()}
    assert names == ({"model.onnx"} if is_whole else {"model.onnx", "bias.bin"})
    assert parsed == ([] if is_whole else [path])


@pytest.mark.parametrize("is_large", [True, False])
def test_the_original_runs_with_the_arrays_that_were_read(
    path: Path, monkeypatch: pytest.MonkeyPatch, is_large: bool
) -> None:
    """ONNX Runtime would hold the weights of a file twice while it opens it."""
    ran: list[object] = []
    monkeypatch.setattr(original, "runs_if_it_loads", lambda _: False)
    monkeypatch.setattr(original, "check_original", lambda content, *_: ran.append(content))
    monkeypatch.setattr(outlines, "LARGE_FILE_BYTES", 1000 if is_large else 1 << 30)
    options = Options.of(use_cache=False)
    loaded = original.read_model(model_source(path), options)
    original.run_original(model_source(path), loaded, options)
    if not is_large:
        assert ran == [str(path)]
        return
    (content,) = ran
    assert isinstance(content, SplitModel)
    read = {id(array) for array in loaded.graph.constants.values()}
    assert {id(array) for array in content.constants.values()} <= read
    x = np.ones((1, 3, 8, 8), np.float32)
    np.testing.assert_array_equal(run_original(content, {"x": x})["y"], run_original(str(path), {"x": x})["y"])
