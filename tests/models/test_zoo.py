"""The zoo against published figures; as test models, their outputs must depend on the input."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import pimflow_zoo
from pimflow_zoo.builder import Net
from pimflow_zoo.gpt import gpt_2
from pimflow_zoo.writer import MIN_APART_BYTES
from support.onnx_counts import macs, parameters, shapes_of

NAMES = pimflow_zoo.names()
# Models that every run of the tests builds and runs; the others with `-m long`.
SMALL = tuple(name for name in NAMES if pimflow_zoo.entry(name).parameters < 13_000_000)
EVERY = [pytest.param(name, marks=() if name in SMALL else pytest.mark.long) for name in NAMES]
TOKENS = (3, 32, 64, 128)

# torchvision.models, the metadata of the weights (their tables in the documentation show two decimals of these): number
# of parameters, and billions of multiply-accumulates, called GFLOPS there. Running statistics are not parameters.
TORCHVISION = {
    "mobilenet-v2": (3_504_872, 0.301),
    "mobilenet-v3-large": (5_483_032, 0.217),
    "mobilenet-v3-small": (2_542_856, 0.057),
    "efficientnet-b0": (5_288_548, 0.386),
    "efficientnet-b6": (43_040_704, 19.068),
    "mnasnet-0.5": (2_218_512, 0.104),
    "mnasnet-1.0": (4_383_312, 0.314),
    "mnasnet-1.3": (6_282_256, 0.526),
    "resnet-18": (11_689_512, 1.814),
    "resnet-34": (21_797_672, 3.664),
    "resnet-50": (25_557_032, 4.089),
    "resnext-50": (25_028_904, 4.23),
    "regnet-x-400mf": (5_495_976, 0.414),
    "regnet-y-400mf": (4_344_144, 0.402),
    "vgg-16": (138_357_544, 15.47),
    "squeezenet-1.0": (1_248_424, 0.819),
    "squeezenet-1.1": (1_235_496, 0.349),
    "shufflenet-v2": (2_278_604, 0.145),
    "densenet-121": (7_978_856, 2.834),
    "googlenet": (6_624_904, 1.498),
    # With its auxiliary classifier, which inference does not use: 1x1 to 128, 5x5 to 768 and a linear layer.
    "inception-v3": (27_161_264 - (768 * 128 + 2 * 128 + 128 * 768 * 25 + 2 * 768 + 769 * 1000), 5.713),
    "convnext-tiny": (28_589_128, 4.456),
    "vit-b-16": (86_567_656, 17.564),
    "ssdlite-320": (3_440_060, 0.583),
}
# Hugging Face: parameters of BertModel (bert-base-uncased, bert-large-uncased) and of GPT2LMHeadModel (gpt2). Keras:
# the summary of the example "Bidirectional LSTM on IMDB". The toy: PIMFlow's artifact.
PARAMETERS = {
    "toy": 5_706,
    **{f"bert-base-{tokens}": 109_482_240 for tokens in TOKENS},
    **{f"bert-large-{tokens}": 335_141_888 for tokens in TOKENS},
    "gpt-2": 124_439_808,
    "lstm-classifier": 2_757_761,
}


@cache
def skeleton(name: str) -> onnx.ModelProto:
    built: onnx.ModelProto = pimflow_zoo.skeleton(name)
    return built


@pytest.fixture(scope="module", params=EVERY)
def built(request: pytest.FixtureRequest) -> onnx.ModelProto:
    """One model at a time, because the largest take more than a gigabyte."""
    model: onnx.ModelProto = pimflow_zoo.build(request.param)
    return model


def encoder_macs(layers: int, features: int, tokens: int) -> int:
    """Kaplan et al., "Scaling laws for neural language models" (2020), table 1: 12 d^2 and 2 n d a layer and token."""
    return layers * tokens * (12 * features**2 + 2 * tokens * features)


@pytest.mark.parametrize("name", NAMES)
def test_figures_match_the_graph(name: str) -> None:
    entry = pimflow_zoo.entry(name)
    model = skeleton(name)
    assert model.graph.name == name
    assert (entry.parameters, entry.macs) == (parameters(model), macs(model))
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    text = f"{shape[1]} tokens" if len(shape) == 2 else "x".join(map(str, shape[1:]))
    assert (shape[0], entry.input) == (1, text)


@pytest.mark.parametrize("name", NAMES)
def test_every_model_has_published_figures(name: str) -> None:
    entry = pimflow_zoo.entry(name)
    if name in TORCHVISION:
        count, giga = TORCHVISION[name]
        assert (entry.parameters, round(entry.macs / 1e9, 3)) == (count, giga)
    else:
        assert entry.parameters == PARAMETERS[name]


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(("name", "layers", "features"), [("bert-base", 12, 768), ("bert-large", 24, 1024)])
def test_bert_multiplies_as_often_as_its_formula_says(name: str, layers: int, features: int, tokens: int) -> None:
    pooler = features**2
    assert pimflow_zoo.entry(f"{name}-{tokens}").macs == encoder_macs(layers, features, tokens) + pooler


def test_bert_base_has_the_published_operations() -> None:
    """Sun et al., "MobileBERT" (ACL 2020), table 4: 22.5 billion at 128 tokens, two per multiply-accumulate."""
    assert 2 * pimflow_zoo.entry("bert-base-128").macs == pytest.approx(22.5e9, rel=0.01)


def test_gpt_2_has_the_published_operations() -> None:
    """Karpathy, nanoGPT, transformer_sizing.ipynb: 291,648,307,200 operations forward at 1,024 tokens."""
    assert 2 * macs(gpt_2(Net("gpt-2", 0, weights=False), tokens=1024)) == 291_648_307_200


def test_the_lstms_macs_follow_from_its_layers() -> None:
    """Two layers of two directions with four gates over 128 inputs and 64 states, 200 words; and one weight a state."""
    assert pimflow_zoo.entry("lstm-classifier").macs == 200 * 2 * 2 * 4 * 64 * (128 + 64) + 128


@pytest.mark.parametrize("name", NAMES)
def test_node_and_value_names_are_unique(name: str) -> None:
    graph = skeleton(name).graph
    nodes = [node.name for node in graph.node]
    made = [output for node in graph.node for output in node.output]
    stored = [tensor.name for tensor in graph.initializer]
    assert all(nodes)
    assert len(set(nodes)) == len(nodes)
    assert len({*made, *stored, graph.input[0].name}) == len(made) + len(stored) + 1
    assert {used for node in graph.node for used in node.input} >= set(stored)


def test_every_model_is_valid_onnx(built: onnx.ModelProto) -> None:
    onnx.checker.check_model(built)
    assert built.ir_version <= 10
    assert built.opset_import[0].version <= 20


def test_a_skeleton_is_the_model_without_its_weights(built: onnx.ModelProto) -> None:
    bare = skeleton(built.graph.name)
    assert list(built.graph.node) == list(bare.graph.node)
    assert list(built.graph.output) == list(bare.graph.output)
    kinds, bare_kinds = ([(t.name, t.data_type, list(t.dims)) for t in m.graph.initializer] for m in (built, bare))
    assert kinds == bare_kinds
    held, whole = (sum(len(tensor.raw_data) for tensor in m.graph.initializer) for m in (bare, built))
    assert held < max(2_000_000, whole / 50)  # one value per channel, and values that shapes depend on
    assert all(len(tensor.raw_data) >= 4 * math.prod(tensor.dims) for tensor in built.graph.initializer)


def run(model: onnx.ModelProto, inputs: list[np.ndarray]) -> np.ndarray:
    """The values of the last output, for each input."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    name = model.graph.input[0].name
    return np.stack([session.run(None, {name: values})[-1].ravel() for values in inputs])


def inputs_of(name: str) -> list[np.ndarray]:
    """Two pairs of inputs: images of pixels around 0 and of positive ones; or texts."""
    rng = np.random.default_rng(0)
    shape = shapes_of(skeleton(name))[skeleton(name).graph.input[0].name]
    if len(shape) == 2:
        return [rng.integers(0, 20_000, shape) for _ in range(4)]
    images = [rng.standard_normal(shape, dtype=np.float32) for _ in range(2)]
    return images + [rng.random(shape, dtype=np.float32) for _ in range(2)]


# A SqueezeNet's output depends only on the spatial mean of the last convolution, after a Relu, and in random images all
# pixels are independent; Inception v3 averages over nine times more of them.
ALIKE = {"squeezenet-1.0": 0.97, "squeezenet-1.1": 0.97, "inception-v3": 0.92, "resnet-34": 0.9}
# A DenseNet passes the brightness of positive images on to every layer.
BRIGHT = {"densenet-121": 0.005}


def test_outputs_depend_on_the_input(built: onnx.ModelProto) -> None:
    name = built.graph.name
    out = run(built, inputs_of(name))
    assert np.isfinite(out).all()
    for first, second, least in ((0, 1, 0.05), (2, 3, BRIGHT.get(name, 0.05))):
        assert np.abs(out[first] - out[second]).max() > least * np.abs(out[second]).max()
    if out.shape[1] == 1 or name == "ssdlite-320":  # values between 0 and 1
        return
    spread = out[:2].std(axis=1)
    assert np.all(spread > 0.5)
    assert np.all(spread < 2.0)
    assert np.corrcoef(out[0], out[1])[0, 1] < ALIKE.get(name, 0.85)


def test_the_detector_gives_probabilities_and_boxes_inside_the_image() -> None:
    model = pimflow_zoo.build("ssdlite-320")
    scores = run(model, inputs_of("ssdlite-320")).reshape(4, 3234, 91)
    np.testing.assert_allclose(scores.sum(axis=2), 1.0, rtol=1e-5)
    assert scores.std() > 0.01
    del model.graph.output[1:]
    boxes = run(model, inputs_of("ssdlite-320")).reshape(4, 3234, 4)
    assert boxes.min() >= 0.0
    assert boxes.max() <= 320.0
    assert np.all(boxes[..., 2:] >= boxes[..., :2])
    assert len(np.unique(boxes[0].round())) > 300


def test_mobilenet_v2_has_the_published_shape() -> None:
    model = skeleton("mobilenet-v2")
    weights = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    convolutions = [node for node in model.graph.node if node.op_type == "Conv"]
    assert [weights[node.input[1]] for node in convolutions[:4]] == [
        (32, 3, 3, 3),
        (32, 1, 3, 3),
        (16, 32, 1, 1),
        (96, 16, 1, 1),
    ]
    assert weights[convolutions[-1].input[1]] == (1280, 320, 1, 1)
    assert sum(node.op_type == "Add" for node in model.graph.node) == 10


CONVOLUTIONS = {"toy": 3, "mobilenet-v2": 52, "resnet-50": 53, "vgg-16": 13, "mnasnet-1.0": 52, "efficientnet-b0": 81}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_the_number_of_convolutions_is_the_published_one(name: str) -> None:
    assert sum(node.op_type == "Conv" for node in skeleton(name).graph.node) == CONVOLUTIONS[name]


def test_resnet_50_strides_in_its_3x3_convolutions() -> None:
    nodes = [node for node in skeleton("resnet-50").graph.node if node.op_type == "Conv"]
    strided = [node for node in nodes if _attribute(node, "strides") == [2, 2]]
    by_kernel = [_attribute(node, "kernel_shape") for node in strided]
    assert by_kernel.count([3, 3]) == 3
    assert by_kernel.count([1, 1]) == 3  # the shortcuts
    assert by_kernel.count([7, 7]) == 1


def _attribute(node: onnx.NodeProto, name: str) -> list[int]:
    return list(onnx.helper.get_node_attr_value(node, name))


def test_batch_norm_statistics_matter() -> None:
    model = pimflow_zoo.build("mobilenet-v2")
    arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            scale, shift, mean, variance = (arrays[name] for name in node.input[1:])
            assert np.all(variance > 0)
            assert variance.std() > 0
            assert scale.std() > 0
            assert shift.std() > 0
            if "stem" not in node.name:
                assert np.abs(mean / np.sqrt(variance)).mean() > 0.01


LARGE = tuple(name for name in NAMES if name not in SMALL)


@pytest.mark.parametrize("names", [SMALL, pytest.param(LARGE, marks=pytest.mark.long)], ids=["small", "large"])
def test_bytes_are_the_same_everywhere(names: Sequence[str]) -> None:
    """On any Python, numpy and processor: results that libraries sum up in their own order are rounded."""
    assert {name: digest(name) for name in names} == {name: pimflow_zoo.SHA256[name] for name in names}


def test_every_digest_is_known() -> None:
    assert {*pimflow_zoo.names(), *pimflow_zoo.networks()} == pimflow_zoo.SHA256.keys()


def digest(name: str) -> str:
    return hashlib.sha256(pimflow_zoo.build(name).SerializeToString(deterministic=True)).hexdigest()


@pytest.mark.parametrize("name", ["mobilenet-v2", "lstm-classifier"])
def test_separate_large_constants_are_those_of_the_model(name: str) -> None:
    whole, (model, apart) = pimflow_zoo.build(name), pimflow_zoo.build_apart(name)
    assert apart
    for tensor in model.graph.initializer:
        if tensor.name in apart:
            assert apart[tensor.name].nbytes >= MIN_APART_BYTES
            tensor.raw_data = apart[tensor.name].tobytes()
            tensor.ClearField("data_location")
    assert model == whole


def test_export_writes_the_built_model(tmp_path: object) -> None:
    path = f"{tmp_path}/toy.onnx"
    pimflow_zoo.export("toy", path)
    assert onnx.load(path) == pimflow_zoo.build("toy")


@pytest.mark.parametrize("alias", ["mobilenetv2", "mobilenet_v2", "MobileNet-V2", "MOBILENET V2"])
def test_case_and_separators_do_not_matter(alias: str) -> None:
    assert pimflow_zoo.entry(alias).name == "mobilenet-v2"


def test_an_unknown_name_lists_the_models() -> None:
    with pytest.raises(pimflow_zoo.UnknownModel, match="did you mean resnet-18"):
        pimflow_zoo.build("resnet-17")
    with pytest.raises(LookupError, match="it has toy, mobilenet-v2"):
        pimflow_zoo.describe("zzz")


def test_the_page_has_the_figures() -> None:
    page = (Path(__file__).parents[2] / "docs" / "zoo.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    entries = [pimflow_zoo.entry(name) for name in NAMES]
    figures = [f"| `{e.name}` | {e.input} | {e.parameters:,} | {e.macs:,} |" for e in entries]
    assert [row[: row.rindex("|", 0, -1) + 1] for row in rows] == figures


def test_the_pages_count_and_name_all_networks() -> None:
    root, graph_networks = Path(__file__).parents[2], pimflow_zoo.networks()
    count = len(NAMES) + len(graph_networks)
    for name in ("README.md", "CHANGELOG.md", "docs/index.md"):
        assert re.findall(r"(\d+) networks", (root / name).read_text()) == [str(count)], name
    page = (root / "docs" / "zoo.md").read_text()
    assert [name for name in graph_networks if f"`{name}`" not in page] == []
    assert f"the other {len(NAMES)}." in page


def test_describe_is_one_line_with_the_figures() -> None:
    assert pimflow_zoo.describe("mobilenet-v2") == "3x224x224, 3.5 M parameters, 300.8 M MACs"
    assert pimflow_zoo.describe("bert-large-3") == "3 tokens, 335.1 M parameters, 907.5 M MACs"
    assert all("\n" not in pimflow_zoo.describe(name) for name in NAMES)
