"""Files that are not models, or not ones that pimflow opens: one clear line each, never a traceback from a library."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from pimflow.errors import ModelError, PimflowError
from pimflow.frontend import load_model
from pimflow.frontend.load import load_with_graph
from pimflow.frontend.reading import load_tensor
from pimflow.onnxio.export import ModelContent, SplitModel
from pimflow.onnxio.tensors import dtype_code
from support.onnx_models import model_of, single

WEIGHTS = np.arange(4 * 3 * 9, dtype=np.float32).reshape(4, 3, 3, 3)


def conv_model() -> onnx.ModelProto:
    return single("Conv", (1, 3, 8, 8), [WEIGHTS])


def refused(source: Path | ModelContent, *words: str) -> str:
    with pytest.raises(ModelError) as caught:
        load_model(source)
    message = str(caught.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message
    return message


def refusal_of(source: Path | bytes | onnx.ModelProto) -> str | None:
    """The message of the refusal, or None if the model loads."""
    try:
        load_model(source)
    except PimflowError as error:
        return str(error)
    return None


def test_every_truncation_is_refused_or_harmless(tmp_path: Path) -> None:
    """A truncated model never raises anything but a PimflowError (a truncation may leave a smaller valid model)."""
    data = conv_model().SerializeToString()
    path = tmp_path / "cut.onnx"
    messages = []
    for length in range(0, len(data), 7):
        path.write_bytes(data[:length])
        messages.append(refusal_of(path))
    assert sum(message is None for message in messages) <= 3
    assert not any("\n" in message for message in messages if message)


def test_damaged_bytes_never_escape(capfd: pytest.CaptureFixture[str]) -> None:
    data = bytearray(conv_model().SerializeToString())
    rng = np.random.default_rng(0)
    messages = []
    for _ in range(400):
        damaged = bytearray(data)
        for position in rng.integers(0, 120, 3):
            damaged[position] = rng.integers(0, 256)
        messages.append(refusal_of(bytes(damaged)))
    assert sum(message is not None for message in messages) > 100
    assert capfd.readouterr() == ("", ""), "libraries must not print anything"
    assert not any("\n" in message for message in messages if message)


def test_a_tensor_of_overflowing_size_is_a_one_line_error(capfd: pytest.CaptureFixture[str]) -> None:
    model = single("Slice", (2, 4), [np.array([0]), np.array([1])])
    model.graph.initializer[1].dims[0] = 2**63 - 1
    model.graph.output[0].type.tensor_type.shape.dim.add(dim_param="n")
    refused(model)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "data", [b"", b"not a model at all, just text\n" * 20, b"\x00" * 64, b"PK\x03\x04" + b"\x07" * 200, b"{}"]
)
def test_not_a_model(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "some.onnx"
    path.write_bytes(data)
    refused(path, str(path))


def test_no_file_folder_and_unreadable(tmp_path: Path) -> None:
    refused(tmp_path / "missing.onnx", "no such file", "missing.onnx")
    refused(tmp_path, "folder")
    loop = tmp_path / "loop.onnx"
    loop.symlink_to(loop)
    refused(loop, "loop.onnx")


def test_versions_beyond_onnx_runtime() -> None:
    model = conv_model()
    model.ir_version = 99
    message = refused(model, "99", "IR version", "save it with ir_version", "newer onnxruntime")
    assert "/onnxruntime" not in message
    model = conv_model()
    unreleased = onnx.defs.onnx_opset_version() + 1
    model.opset_import[0].version = unreleased
    refused(model, str(unreleased))
    model.opset_import[0].version = 9999
    message = refused(model, "9999", "is the newest that this version supports", "convert it to opset")
    assert "/onnxruntime" not in message
    model.opset_import[0].version = 6
    refused(model, "opset 6", "version_converter")


@pytest.mark.parametrize(
    ("node", "complaint", "advice"),
    [
        (helper.make_node("Frobnicate", ["x"], ["y"]), "Frobnicate", "with standard ONNX operators"),
        (helper.make_node("Frobnicate", ["x"], ["y"], domain="com.acme"), "com.acme", "as a function in the file"),
        (helper.make_node("Relu", ["z"], ["y"]), "'z'", "correct the model"),
        (helper.make_node("Relu", ["x"], ["z"]), "(y)", "correct the model"),
        (helper.make_node("Relu", ["y"], ["y"]), "acyclic", "correct the model"),
    ],
)
def test_what_to_do_about_a_refusal(node: onnx.NodeProto, complaint: str, advice: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (1, 2)) for name in "xy")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.acme", 1)]
    onnx.save(helper.make_model(helper.make_graph([node], "g", [x], [y]), opset_imports=opsets, ir_version=8), path)
    assert "Load model from" not in refused(path, complaint, advice)


def test_models_that_onnx_runtime_refuses() -> None:
    refused(model_of([helper.make_node("NoSuchOp", ["x"], ["y"])], {"x": (2,)}), "NoSuchOp")
    refused(single("MatMul", (4, 3), [np.ones((4, 3), np.float32)]))
    refused(model_of([helper.make_node("Relu", ["nothing"], ["y"])], {"x": (2,)}), "nothing")
    refused(model_of([helper.make_node("Relu", ["x"], ["z"])], {"x": (2,)}), "y")
    twice = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["y"])]
    refused(model_of(twice, {"x": (2,)}), "y")
    cycle = [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])]
    refused(model_of([*cycle, helper.make_node("Relu", ["b"], ["y"])], {"x": (2,)}))
    gradient = helper.make_node("Gradient", ["x"], ["y"], domain="ai.onnx.preview.training", xs=["x"], y="y")
    refused(model_of([gradient], {"x": (2,)}, domains={"ai.onnx.preview.training": 1}), "Gradient")


def test_a_model_without_outputs() -> None:
    model = conv_model()
    del model.graph.output[:]
    refused(model, "has no outputs")


def test_weights_that_do_not_fill_their_shape() -> None:
    model = conv_model()
    model.graph.initializer[0].raw_data = model.graph.initializer[0].raw_data[:-4]
    refused(model, "ONNX Runtime refuses")  # its new versions name the tensor


def with_external(tmp_path: Path, location: str, **entries: object) -> Path:
    """A model file whose weights refer to `location`."""
    model = conv_model()
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    folder = tmp_path / "model"
    folder.mkdir(exist_ok=True)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("change", ["fewer bytes", "more rows", "no data", "no type"])
def test_large_weights_that_do_not_fill_their_shape(change: str, tmp_path: Path) -> None:
    """The checker does not see these: the model is checked in outline."""
    model = single("MatMul", (4, 512), [np.ones((512, 512), np.float32)])
    (weights,) = model.graph.initializer
    if change == "fewer bytes":
        weights.raw_data = weights.raw_data[:-400]
    elif change == "more rows":
        weights.dims[0] += 1
    elif change == "no data":
        weights.ClearField("raw_data")
    else:
        weights.data_type = onnx.TensorProto.UNDEFINED
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    refused(path)


def test_external_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = with_external(tmp_path, "weights.bin", offset=8, length=WEIGHTS.nbytes)
    (path.parent / "weights.bin").write_bytes(b"12345678" + WEIGHTS.tobytes() + b"more")
    graph = load_model(path)
    (array,) = graph.constants.values()
    np.testing.assert_array_equal(array, WEIGHTS)
    assert isinstance(array, np.memmap), "mapped, not read"
    monkeypatch.chdir(path.parent)
    assert load_model("model.onnx").nodes == graph.nodes


def test_external_data_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = with_external(tmp_path, "weights.bin")
    (path.parent / "weights.bin").write_bytes(WEIGHTS.tobytes())
    monkeypatch.setattr(os, "access", lambda place, mode: Path(place).name != "weights.bin")
    refused(path, "'c0'", "weights.bin cannot be read", "permissions")


def test_external_data_in_a_folder_below(tmp_path: Path) -> None:
    path = with_external(tmp_path, "data/weights.bin")
    (path.parent / "data").mkdir()
    (path.parent / "data" / "weights.bin").write_bytes(WEIGHTS.tobytes())
    np.testing.assert_array_equal(load_model(path).constants["c0"], WEIGHTS)


def test_external_data_that_is_missing_or_too_short(tmp_path: Path) -> None:
    path = with_external(tmp_path, "weights.bin", length=WEIGHTS.nbytes)
    refused(path, "weights.bin", "does not exist")
    (path.parent / "weights.bin").write_bytes(WEIGHTS.tobytes()[:-1])
    refused(path, "weights.bin", "not in")
    path = with_external(tmp_path, "weights.bin")
    refused(path, "c0")
    path = with_external(tmp_path, "weights.bin", offset="many")
    refused(path, "not a number")
    path = with_external(tmp_path, "weights.bin", offset=-4, length=WEIGHTS.nbytes)
    refused(path)


@pytest.mark.parametrize(
    "location", ["../secret.bin", "a/../../secret.bin", "/etc/hostname", "C:\\secret.bin", "..\\secret.bin", "", "."]
)
def test_external_data_outside_the_folder(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret.bin").write_bytes(WEIGHTS.tobytes())
    path = with_external(tmp_path, location)
    (path.parent / "a").mkdir()
    refused(
        path, "c0", "does not exist or is not a file" if location == "." else "not a file inside the model's folder"
    )


def test_external_data_behind_a_link_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "secret.bin").write_bytes(WEIGHTS.tobytes())
    path = with_external(tmp_path, "weights.bin")
    (path.parent / "weights.bin").symlink_to(tmp_path / "secret.bin")
    refused(path, "outside")
    (path.parent / "up").symlink_to(tmp_path)
    refused(with_external(tmp_path, "up/secret.bin"), "outside")


def test_external_data_may_lie_in_the_folder_that_the_models_link_points_to(tmp_path: Path) -> None:
    """As Hugging Face's cache keeps models: links in a folder of their names, files in one of their hashes."""
    path = with_external(tmp_path, "weights.bin")
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    (blobs / "b").write_bytes(WEIGHTS.tobytes())
    path.rename(blobs / "a")
    path.symlink_to(blobs / "a")
    (path.parent / "weights.bin").symlink_to(blobs / "b")
    np.testing.assert_array_equal(load_model(path).constants["c0"], WEIGHTS)
    (path.parent / "weights.bin").unlink()
    (path.parent / "weights.bin").symlink_to(tmp_path / "secret.bin")
    (tmp_path / "secret.bin").write_bytes(WEIGHTS.tobytes())
    refused(path, "outside")


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "int4", "float32"])
def test_linked_external_data_without_a_length_is_read(dtype: str, tmp_path: Path) -> None:
    """It is as long as the tensor, whatever comes after it."""
    code = dtype_code(dtype)
    values = numpy_helper.to_array(helper.make_tensor("w", code, (3,), [1, 2, 3]))
    tensor = numpy_helper.from_array(values, "w")
    (tmp_path / "data").write_bytes(b"1234" + tensor.raw_data + b"other tensors")
    (tmp_path / "w.bin").symlink_to("data")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": "w.bin", "offset": "4"}.items():
        tensor.external_data.add(key=key, value=value)
    np.testing.assert_array_equal(load_tensor(tensor, tmp_path / "model.onnx"), values)


def test_external_data_of_a_model_that_is_no_file(tmp_path: Path) -> None:
    path = with_external(tmp_path, "weights.bin")
    (path.parent / "weights.bin").write_bytes(WEIGHTS.tobytes())
    refused(path.read_bytes(), "path")
    refused(onnx.load(path, load_external_data=False), "path")


def test_external_data_of_attributes_is_guarded_too(tmp_path: Path) -> None:
    """A Constant's tensor, and one inside a subgraph, can be as external as an initialiser's."""
    for place in ("attribute", "subgraph"):
        tensor = numpy_helper.from_array(np.ones(3, np.float32), "t")
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="../secret.bin")
        node = helper.make_node("Constant", [], ["c"], value=tensor)
        if place == "subgraph":
            inner = helper.make_graph([node], "inner", [], [helper.make_tensor_value_info("c", 1, (3,))])
            node = helper.make_node("If", ["x"], ["c"], then_branch=inner, else_branch=inner)
        model = model_of([node], {"x": ()}, ["c"])
        model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.BOOL
        path = tmp_path / "model.onnx"
        path.write_bytes(model.SerializeToString())
        refused(path, "secret.bin")


@pytest.mark.parametrize(
    ("location", "entries"),
    [
        ("data.bin", {"offset": " 0 "}),
        ("data.bin", {"offset": "0_0"}),
        ("data.bin", {"offset": "٠"}),
        ("data.bin", {"length": "9" * 5000}),
        ("data\0.bin", {}),
        ("d" * 300, {}),
    ],
)
def test_malformed_external_data(location: str, entries: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(WEIGHTS.tobytes())
    refused(with_external(tmp_path, location, **entries), "external data of tensor")


def test_external_data_with_an_invalid_shape(tmp_path: Path) -> None:
    (tmp_path / "data.bin").write_bytes(WEIGHTS.tobytes())
    path = with_external(tmp_path, "data.bin")
    model = onnx.load(path, load_external_data=False)
    for dims in ((-4, -3, 3, 3), (1 << 62, 4, 3, 3)):
        model.graph.initializer[0].dims[:] = dims
        path.write_bytes(model.SerializeToString())
        refused(path)


def test_a_file_that_never_ends_is_not_read(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo.onnx"
    os.mkfifo(fifo)
    for path in (fifo, Path("/dev/zero"), tmp_path / "nul\0.onnx", tmp_path / ("long" * 100)):
        refused(path, "cannot be read")


def apart(model: onnx.ModelProto) -> SplitModel:
    """The model with its initialisers stored separately."""
    light = onnx.ModelProto()
    light.CopyFrom(model)
    for tensor in light.graph.initializer:
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
    return SplitModel.of(light, {item.name: numpy_helper.to_array(item) for item in model.graph.initializer})


def test_separate_weights_are_read_as_if_embedded() -> None:
    whole, split = load_model(conv_model()), load_model(apart(conv_model()))
    assert (split.nodes, split.values) == (whole.nodes, whole.values)
    assert list(split.constants) == list(whole.constants)
    assert all(np.array_equal(split.constants[name], array) for name, array in whole.constants.items())
    assert not load_with_graph(apart(conv_model()), None, None).has_external_data


def test_a_faulty_model_with_separate_weights_is_refused() -> None:
    model = apart(conv_model())
    model.proto.graph.node[0].op_type = "Konv"
    assert "Konv" in refused(model)
