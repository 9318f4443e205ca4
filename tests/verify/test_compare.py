"""`verify`: bounds that follow the precision, and errors that they still detect."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import pimflow
from pimflow.compiled import CompiledModel
from pimflow.errors import CommandOrderError, ModelError
from pimflow.ir import Slice
from pimflow.passes.md_dp_split import MdDpSplit
from pimflow.runtime.execute import original, ort
from pimflow.runtime.gpu.window_order import convolve
from pimflow.runtime.memory import plan_memory
from pimflow.targets import load_target, override
from pimflow.verify import compare, evidence
from support.exotic_models import MODELS
from support.int8 import needs_exact_bytes
from support.onnx_models import model_of
from support.opaque_models import opaque_model
from support.quantised_models import qdq_model

HALF = Path(__file__).parent.parent / "data" / "exported" / "half.onnx"
MODES: tuple[Mapping[str, Any], ...] = ({}, {"arena": True}, {"pim": "values"}, {"pim": "values", "operand": "fp32"})


@pytest.mark.parametrize("name", MODELS)
def test_outputs_other_than_floats(name: str) -> None:
    compiled = pimflow.compile(MODELS[name](), policy="pim", use_cache=False)
    for options in ({}, {"arena": True}, {"pim": "values", "operand": "fp32"}):
        result = compiled.verify(**options, seed=1)
        assert result.passed, result
    still = {"constants": "output copy, flat is"}.get(name, "")
    notes = [note for note in result.notes if "two different inputs" in note]
    assert len(notes) == bool(still)
    assert all(note.startswith(still) for note in notes)


@pytest.mark.parametrize("options", [{"arena": True}, {"pim": "values"}])
def test_a_wrong_declared_size_is_named(options: Mapping[str, Any]) -> None:
    model = model_of([helper.make_node("NonZero", ["x"], ["y"])], {"x": (2, 8)}, dtype=TensorProto.INT64)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.INT64, (2, 5)))
    compiled = pimflow.compile(model, use_cache=False)
    with pytest.raises(ModelError, match=r"'y' is declared as int64\[2, 5\], but is int64\[2, 1\d\]; correct"):
        compiled.verify(**options)


@pytest.mark.parametrize("options", [{}, {"arena": True}, {"pim": "values"}])
def test_given_inputs_are_used_if_none_can_be_drawn(options: Mapping[str, Any]) -> None:
    model = model_of([helper.make_node("ConcatFromSequence", ["x"], ["y"], axis=0)], {"x": ()})
    given = helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, (2, 8)))
    model.graph.input[0].type.CopyFrom(given)
    for objective in ("latency", "throughput"):
        compiled = pimflow.compile(model, objective=objective, check=False, use_cache=False)
        sequence: Any = [np.ones((2, 8), np.float32), np.zeros((2, 8), np.float32)]
        result = compiled.verify(inputs={"x": sequence}, **options)
        assert result.passed, result.text()


@pytest.fixture(scope="module")
def half() -> CompiledModel:
    target = override(load_target("pimflow"), pim_channels=1)
    return pimflow.compile(HALF, policy="md-dp", target=target, use_cache=False)


@pytest.mark.parametrize("options", MODES)
def test_a_model_of_16_bit_numbers_passes_by_its_own_precision(half: CompiledModel, options: Mapping[str, Any]) -> None:
    result = half.verify(**options)
    assert result.passed, result.text()
    assert result.output_std > 0.1
    assert result.rtol < 5e-3
    if options:
        assert 1e-4 < result.max_rel_err < result.rtol
        assert any("float16" in note and "the bound follows" in note for note in result.notes)


@pytest.mark.parametrize("way", ["im2win", "im2col", "direct"])
def test_16_bit_convolutions_of_the_gpus_own_algorithms(way: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums in another order are rounded differently, by a step or by none; results in the wrong row are seen."""
    random = np.random.default_rng(1)
    weights = {name: (random.standard_normal((8, 8, 3, 3)) / 6).astype(np.float16) for name in ("w1", "w2")}
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["first"], pads=[1] * 4),
        helper.make_node("Relu", ["first"], ["bent"]),
        helper.make_node("Conv", ["bent", "w2"], ["y"], pads=[1] * 4),
    ]
    model = model_of(nodes, {"x": (1, 8, 20, 20)}, ["y"], weights, 17, TensorProto.FLOAT16)
    compiled = pimflow.compile(model, policy="gpu", target="rtx3090", convolutions=way, check=False, use_cache=False)
    for seed in range(12):
        result = compiled.verify(pim="values", seed=seed)
        assert result.passed, result.text()
        assert result.rtol < 5e-3
    monkeypatch.setattr("pimflow.runtime.gpu.backend.convolve", lambda *given: np.roll(convolve(*given), 1, 2))
    assert not compiled.verify(pim="values").passed


@pytest.fixture(scope="module")
def quantised() -> CompiledModel:
    return pimflow.compile(qdq_model(), policy="pim", use_cache=False)


@needs_exact_bytes
@pytest.mark.parametrize("options", MODES)
def test_a_quantised_model_passes_by_its_own_precision(quantised: CompiledModel, options: Mapping[str, Any]) -> None:
    result = quantised.verify(**options)
    assert result.passed, result.text()
    assert result.output_std > 0.05
    assert result.values is not None
    assert result.values.checked > 15
    assert result.values.largest_error < 1e-5
    assert result.rtol < 0.5
    assert not any("two different inputs" in note for note in result.notes)
    if "pim" in options:
        assert result.programs is not None
        assert result.programs.checked == len(quantised.programs) == 4


@pytest.mark.parametrize("options", MODES)
def test_one_wrong_weight_of_a_quantised_model_is_detected(
    quantised: CompiledModel, options: Mapping[str, Any]
) -> None:
    for name in ("one", "two", "three", "fc"):
        assert not one_weight_off(quantised, name).verify(**options).passed, name


def test_a_shifted_row_of_a_quantised_model_is_detected(quantised: CompiledModel) -> None:
    assert not one_row_shifted(quantised, "two").verify().passed


def test_a_wrong_program_of_a_quantised_model_is_detected(quantised: CompiledModel) -> None:
    assert_wrong_programs_show(quantised, {"pim": "values"})


@pytest.mark.parametrize(("kernels", "passes"), [(0.03, True), (3e-4, True), (1.5e-4, False)])
def test_the_originals_error_under_other_kernels_is_measured(
    kernels: float, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiled model's outputs, but none of its values, are off by 5e-4: as much as kernels in another order may
    cause, or more."""

    def moved(outputs: Mapping[str, Any], share: float) -> dict[str, Any]:
        return {name: array + np.float32(share * np.abs(array).max()) for name, array in outputs.items()}

    def run_original(*args: Any, optimise: bool = True, **options: Any) -> dict[str, Any]:
        return moved(original.run_original(*args, **options), 0.0 if optimise else kernels)

    monkeypatch.setattr(evidence, "run_original", run_original)
    monkeypatch.setattr(compare, "run_graph", lambda *args: moved(ort.run_graph(*args), 5e-4))
    result = pimflow.compile("zoo:toy", policy="gpu", use_cache=False).verify()
    assert result.passed == passes, result.text()
    assert result.values is not None
    assert result.values.largest_error < 1e-5
    assert result.rtol == pytest.approx(2 * kernels, rel=0.05)
    assert sum("without ONNX Runtime's optimisations" in note for note in result.notes) == 1
    assert sum("rounding may move it by 6% of that: agreement" in note for note in result.notes) == (kernels == 0.03)


def one_weight_off(compiled: CompiledModel, node: str) -> CompiledModel:
    """The model with one element of the node's weights off by four of their standard deviations."""
    graph = compiled.graph
    name = graph.node(node).inputs[1]
    array = np.array(graph.constants[name])
    array.flat[array.size // 2] += 4 * array.astype(np.float32).std()
    return replace(compiled, graph=graph.replace(constants={**graph.constants, name: array}))


def one_row_shifted(compiled: CompiledModel, node: str) -> CompiledModel:
    """The model with a node split by rows, whose second part reads them one row too early."""
    divided = pimflow.opt(compiled.graph, [MdDpSplit(node, 3, "newton++")]).graph
    nodes = list(divided.nodes)
    where = next(i for i, node in enumerate(nodes) if isinstance(node.op, Slice) and node.op.start)
    op = nodes[where].op
    assert isinstance(op, Slice)
    nodes[where] = replace(nodes[where], op=replace(op, start=op.start - 1, stop=op.stop - 1))
    return replace(compiled, graph=divided.replace(nodes=nodes))


def assert_wrong_programs_show(compiled: CompiledModel, options: Mapping[str, Any]) -> None:
    """Assert that an error shows if any program reads its first results one pixel late, or with another buffer slot."""
    unit = compiled.machine.costs.units["pim"]
    for node, program in compiled.programs.items():
        text = json.dumps(unit.encode(program), separators=(",", ":"))
        field = '"type":"ReadRes","pixel"' if program.result.pixels > 1 else '"slot"'
        broken = text.replace(f'{field}:{{"type":"Affine","base":0', f'{field}:{{"type":"Affine","base":1', 1)
        assert broken != text
        programs = {**compiled.programs, node: unit.decode(json.loads(broken))}
        try:
            result = replace(compiled, programs=programs).verify(**options)
        except CommandOrderError:  # an address outside of the memory
            continue
        assert not result.passed
        assert result.programs is not None
        assert list(result.programs.wrong) == [node]


@pytest.mark.parametrize("options", MODES)
def test_a_wrong_weight_is_detected_whatever_the_bound(half: CompiledModel, options: Mapping[str, Any]) -> None:
    for node in half.graph.nodes:
        if node.op.is_contraction:
            assert not one_weight_off(half, node.name).verify(**options).passed, node.name


@pytest.mark.parametrize("options", MODES)
def test_weight_errors_below_the_units_rounding_are_detected(options: Mapping[str, Any]) -> None:
    """Bounds that follow the precision of units are measured on the graph, so a wrong graph has wide bounds."""
    compiled = pimflow.compile(product(1.0), policy="pim", use_cache=False)
    (node,) = (node for node in compiled.graph.nodes if node.device == "pim")
    weights = compiled.graph.constants[node.inputs[1]]
    constants = {**compiled.graph.constants, node.inputs[1]: weights * np.float32(1.001)}
    assert compiled.verify(**options).passed
    assert not replace(compiled, graph=compiled.graph.replace(constants=constants)).verify(**options).passed


@pytest.mark.parametrize("options", MODES[:2])
def test_a_shifted_row_is_detected(half: CompiledModel, options: Mapping[str, Any]) -> None:
    assert not one_row_shifted(half, "/body/body.0/body.0.0/Conv").verify(**options).passed


@pytest.mark.parametrize("options", MODES[2:])
def test_a_wrong_program_is_detected(half: CompiledModel, options: Mapping[str, Any]) -> None:
    assert_wrong_programs_show(half, options)


def test_overlapping_values_are_detected(half: CompiledModel) -> None:
    memory = plan_memory(half.graph)
    one, other = half.graph.node("/Add").inputs
    places = {**memory.places, one: replace(memory.places[one], offset=memory.places[other].offset)}
    broken = replace(half)
    broken.__dict__["memory"] = replace(memory, places=places)
    assert not broken.verify(arena=True).passed


def product(scale: float, dtype: int = TensorProto.FLOAT) -> onnx.ModelProto:
    """A product of the input with a scale, which is removed again after it."""
    rng = np.random.default_rng(0)
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    arrays = {
        "a": np.array(scale, kind),
        "b": np.array(1 / scale, kind),
        "w": rng.standard_normal((64, 32)).astype(kind),
    }
    nodes = [
        helper.make_node("Mul", ["x", "a"], ["m"], "scale"),
        helper.make_node("MatMul", ["m", "w"], ["p"], "product"),
        helper.make_node("Mul", ["p", "b"], ["y"], "back"),
    ]
    return model_of(nodes, {"x": (8, 64)}, ["y"], arrays, dtype=dtype)


def test_an_overflow_of_the_operands_is_named() -> None:
    compiled = pimflow.compile(product(1e5), policy="pim", use_cache=False)
    assert compiled.verify().passed
    assert compiled.verify(pim="values", operand="fp32").passed
    result = compiled.verify(pim="values")
    assert not result.passed
    assert any(note.startswith("fp16 overflows in 'product': values reach") for note in result.notes), result.notes


@pytest.mark.filterwarnings("error")
def test_sums_of_opposite_infinities_cause_no_warning() -> None:
    """The depth of the product takes several fills, whose infinite sums have opposite signs."""
    half = np.abs(np.random.default_rng(0).standard_normal((1024, 32))).astype(np.float32)
    nodes = [
        helper.make_node("Abs", ["x"], ["m"]),
        helper.make_node("Mul", ["m", "a"], ["s"]),
        helper.make_node("MatMul", ["s", "w"], ["y"], "product"),
    ]
    arrays = {"a": np.array(1e6, np.float32), "w": np.concatenate([half, -half])}
    compiled = pimflow.compile(model_of(nodes, {"x": (8, 2048)}, ["y"], arrays), policy="pim", use_cache=False)
    result = compiled.verify(pim="values")
    assert any(note.startswith("fp16 overflows in 'product'") for note in result.notes), result.notes


def test_vanishing_operands_do_not_pass() -> None:
    """Values below 6e-8 are 0 in fp16: both the program and its reference give 0."""
    compiled = pimflow.compile(product(1e-9), policy="pim", use_cache=False)
    assert compiled.verify(pim="values", operand="fp32").passed
    result = compiled.verify(pim="values")
    assert result.programs is not None
    assert not result.programs.wrong
    assert not result.passed, result.text()
    assert any(note.startswith("fp16 loses digits in 'product': values reach") for note in result.notes), result.notes


def test_averaged_outputs_are_bounded_by_inputs_of_another_scale() -> None:
    """The mean over a large map of random numbers differs between draws by less than the rounding of bf16."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Abs", ["c"], ["a"]),
        helper.make_node("GlobalAveragePool", ["a"], ["y"]),
    ]
    weights = np.random.default_rng(1).standard_normal((4, 2, 3, 3)).astype(np.float32)
    model = model_of(nodes, {"x": (1, 2, 384, 384)}, ["y"], {"w": weights})
    compiled = pimflow.compile(model, policy="pim", target="aim-gddr6", use_cache=False)
    result = compiled.verify(pim="values")
    assert result.passed, result.text()
    assert result.rtol < 5e-3


@pytest.mark.parametrize("options", MODES)
def test_rounding_that_kernels_may_do_is_measured(options: Mapping[str, Any]) -> None:
    """MatMulNBits may round its left-hand side to 8 bits, whereas units compute the exact product."""
    rng = np.random.default_rng(0)
    constants: dict[str, Any] = {
        "b": rng.integers(0, 256, (48, 2, 16)).astype(np.uint8),
        "scales": rng.uniform(0.01, 0.03, 96).astype(np.float32),
    }
    sizes: dict[str, Any] = {"K": 64, "N": 48, "bits": 4, "block_size": 32, "accuracy_level": 4}
    model = opaque_model("MatMulNBits", {"x": (2, 5, 64)}, constants, domain="com.microsoft", **sizes)
    compiled = pimflow.compile(model, policy="pim", use_cache=False)
    (node,) = compiled.graph.nodes
    result = compiled.verify(**options)
    assert result.passed, result.text()
    assert result.max_rel_err > 1e-3, "ONNX Runtime rounds"
    weights = compiled.graph.constants[node.inputs[1]] * np.float32(1.001)
    wrong = compiled.graph.replace(constants={**compiled.graph.constants, node.inputs[1]: weights})
    assert not replace(compiled, graph=wrong).verify(**options).passed


@pytest.mark.parametrize("target", ["pimflow", "aim-gddr6", "hbm-pim"])
def test_outputs_that_hardly_depend_on_the_input_may_be_rounded(target: str) -> None:
    """Probabilities always add up to 1, whatever the input. Weights off by as much as units round are detected."""
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["c"], "conv"),
        helper.make_node("Softmax", ["c"], ["s"], axis=1),
        helper.make_node("ReduceSum", ["s"], ["r"], axes=[1], keepdims=1),
        helper.make_node("Upsample", ["r", "sizes"], ["u"]),
        helper.make_node("Conv", ["u", "w"], ["y"], "last"),
    ]
    rng = np.random.default_rng(1)
    arrays = {
        "v": rng.standard_normal((4, 3, 1, 1)).astype(np.float32),
        "w": rng.standard_normal((4, 1, 3, 3)).astype(np.float32),
        "sizes": np.array([1, 1, 2, 2], np.float32),
    }
    model = model_of(nodes, {"x": (1, 3, 16, 16)}, ["y"], arrays, opset=9)
    compiled = pimflow.compile(model, policy="pim", target=target, use_cache=False)
    result = compiled.verify(pim="values", arena=True)
    assert result.passed, result.text()
    assert result.max_rel_err > 1e-4
    weights = compiled.graph.constants["w"] * np.float32(1.001)
    wrong = compiled.graph.replace(constants={**compiled.graph.constants, "w": weights})
    assert not replace(compiled, graph=wrong).verify(pim="values", arena=True).passed


def test_a_given_bound_applies_end_to_end(half: CompiledModel) -> None:
    assert half.verify(arena=True, rtol=1e-2).passed
    assert not half.verify(arena=True, rtol=1e-4).passed
