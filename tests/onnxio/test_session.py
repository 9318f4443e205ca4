"""Sessions of ONNX Runtime: the options that they are opened with."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import pimflow
from pimflow.errors import ModelError
from pimflow.frontend import load_model
from pimflow.ir import Value
from pimflow.onnxio.session import GraphSession, open_session, refuse, session_options
from pimflow.onnxio.tensors import numpy_dtype
from support.int8 import needs_exact_bytes, needs_signed_weights
from support.onnx_models import model_of


@pytest.mark.parametrize("optimise", [True, False])
def test_idle_threads_sleep(optimise: bool) -> None:
    options = session_options(optimise=optimise)
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert options.intra_op_num_threads == 2


@pytest.mark.parametrize(
    ("source", "target"), [(TensorProto.FLOAT, TensorProto.DOUBLE), (TensorProto.FLOAT16, TensorProto.FLOAT16)]
)
def test_a_cast_between_a_transpose_and_a_product(source: int, target: int) -> None:
    """If ONNX Runtime may fuse them, it crashes the process (1.23 to 1.32); in fp16 it creates such a Cast itself."""
    weights = np.ones((4, 8), helper.tensor_dtype_to_np_dtype(target))
    nodes = [helper.make_node("Transpose", ["x"], ["turned"], perm=[1, 0, 2])]
    nodes += [helper.make_node("Cast", ["turned"], ["cast"], to=target)] if target != source else []
    nodes += [helper.make_node("MatMul", [nodes[-1].output[0], "w"], ["y"])]
    model = model_of(nodes, {"x": (2, 3, 4)}, constants={"w": weights}, dtype=source)
    model.graph.output[0].type.tensor_type.elem_type = target
    session = open_session(model.SerializeToString(), session_options(), "a model")
    x = np.ones((2, 3, 4), helper.tensor_dtype_to_np_dtype(source))
    (result,) = session.run(None, {"x": x})
    np.testing.assert_array_equal(result, np.full((3, 2, 8), 4, result.dtype))


OF_A_LAMBDA = """[ONNXRuntimeError] : 1 : FAIL : Exception during initialization: /onnxruntime_src/text/a.cc:235
onnxruntime::Locale::Locale(const std::string&)::<lambda()> Failed to construct locale"""
OF_BFLOAT16 = """[ONNXRuntimeError] : 10 : INVALID_GRAPH : This is an invalid model. Type Error: Type 'tensor(bfloat16)'
of input parameter (x) of operator (Conv) in node (c) is invalid."""

OF_TWO_TYPES = """[ONNXRuntimeError] : 1 : FAIL : Type Error: Type parameter (T) of Optype (Conv) bound to different
types (tensor(bfloat16) and tensor(float) in node (c)."""


@pytest.mark.parametrize(
    ("said", "text", "hint"),
    [
        (OF_TWO_TYPES, "(tensor(bfloat16) and tensor(float) in node (c)", "give Conv operands of one element type"),
        (OF_A_LAMBDA, "'m': Exception during initialization: Failed to construct locale", ""),
        (OF_BFLOAT16, "of input parameter (x) of operator (Conv) in node (c) is invalid", "opset 22"),
    ],
)
def test_a_refusal_omits_source_locations_and_gives_a_hint(said: str, text: str, hint: str) -> None:
    with pytest.raises(ModelError) as caught:
        refuse("m", RuntimeError(said))
    assert caught.value.what.endswith(text)
    assert hint in caught.value.hint
    assert "/onnxruntime" not in str(caught.value)


def test_ops_without_a_16_bit_kernel_run_in_32_bits() -> None:
    nodes = [
        helper.make_node("EyeLike", ["x"], ["eye"], dtype=TensorProto.FLOAT16),
        helper.make_node("Add", ["eye", "half"], ["y"]),
    ]
    model = model_of(nodes, {"x": (2, 2)}, constants={"half": np.array(0.5, np.float16)})
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    compiled = pimflow.compile(model, use_cache=False)
    result = compiled.run({"x": np.zeros((2, 2), np.float32)})["y"]
    assert result.dtype == np.float16
    np.testing.assert_array_equal(result, [[1.5, 0.5], [0.5, 1.5]])
    assert compiled.verify().passed


@pytest.mark.parametrize("dtype", ["int4", "uint4"])
@pytest.mark.parametrize("shape", [(3,), (2, 3), (4, 2), (), (0, 3)])
@pytest.mark.parametrize(("opset", "domain"), [(11, "com.microsoft"), (21, "")])
def test_four_bit_inputs_and_outputs(dtype: str, shape: tuple[int, ...], opset: int, domain: str) -> None:
    """ONNX Runtime packs two into a byte, numpy does not; they may be inputs or outputs of a node."""
    kind = getattr(TensorProto, dtype.upper())
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "step", "zero"], ["wide"], domain=domain),
        helper.make_node("QuantizeLinear", ["given", "step", "zero"], ["made"], domain=domain),
    ]
    constants = [
        helper.make_tensor("step", TensorProto.FLOAT, (), [0.5]),
        helper.make_tensor("zero", kind, (), [1]),
    ]
    kinds = {"x": kind, "given": TensorProto.FLOAT, "wide": TensorProto.FLOAT, "made": kind}
    infos = [helper.make_tensor_value_info(name, each, shape) for name, each in kinds.items()]
    graph = helper.make_graph(nodes, "test", infos[:2], infos[2:], constants)
    opsets = [helper.make_opsetid("", opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    session = GraphSession(load_model(helper.make_model(graph, opset_imports=opsets, ir_version=10)))
    numbers = (np.arange(np.prod(shape, dtype=int)) % 7).reshape(shape)
    halves = ((numbers - 1) / 2).astype(np.float32)
    results = session.run({"x": numbers.astype(numpy_dtype(dtype)), "given": halves})
    assert np.array_equal(results["wide"], halves)
    assert results["made"].dtype.name == dtype
    assert np.array_equal(results["made"].astype(int), numbers)


@needs_exact_bytes
@pytest.mark.parametrize("kind", ["MatMulInteger", pytest.param("ConvInteger", marks=needs_signed_weights)])
def test_sums_of_products_of_bytes_are_exact(kind: str) -> None:
    """Two products of 255 by 127 are beyond 16 bits, to which some CPUs clip them."""
    shape, weights = ((1, 64), (64, 32)) if kind == "MatMulInteger" else ((1, 64, 1, 1), (32, 64, 1, 1))
    node = helper.make_node(kind, ["x", "w"], ["y"])
    constant = np.full(weights, 127, np.int8)
    model = model_of([node], {"x": shape}, constants={"w": constant}, dtype=TensorProto.UINT8)
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.INT32
    session = open_session(model.SerializeToString(), session_options(), "a model")
    (result,) = session.run(None, {"x": np.full(shape, 255, np.uint8)})
    np.testing.assert_array_equal(result, 64 * 255 * 127)


@pytest.mark.parametrize("optimise", [True, False])
def test_signed_activations_have_a_kernel(optimise: bool) -> None:
    """On CPUs without VNNI, ONNX Runtime 1.32 gives QLinearConv unsigned weights when sums of bytes are to be exact;
    there is no such kernel for signed activations."""
    names = ["x", "step", "zero", "w", "step", "zero", "wide", "zero"]
    rng = np.random.default_rng(0)
    weights = rng.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8)
    constants = {"step": np.float32(0.1), "wide": np.float32(8), "zero": np.int8(0), "w": weights}
    model = model_of(
        [helper.make_node("QLinearConv", names, ["y"])],
        {"x": (1, 3, 6, 6)},
        constants={name: np.asarray(array) for name, array in constants.items()},
        dtype=TensorProto.INT8,
    )
    session = open_session(model.SerializeToString(), session_options(optimise=optimise), "a model")
    x = rng.integers(-100, 100, (1, 3, 6, 6)).astype(np.int8)
    (result,) = session.run(None, {"x": x})
    windows = np.lib.stride_tricks.sliding_window_view(x[0].astype(int), (3, 3), axis=(1, 2))
    sums = np.einsum("cijhw,ochw->oij", windows, weights.astype(int))
    assert np.abs(result[0] - sums * 0.01 / 8).max() <= 0.501
    assert result.std() > 10


def test_large_constants_that_nothing_reads() -> None:
    """ONNX Runtime drops them, and refuses to replace what it has dropped."""
    graph = load_model(model_of([helper.make_node("Relu", ["x"], ["y"])], {"x": (2,)}))
    spare = np.ones(8192, np.float32)
    values = {**graph.values, "spare": Value("spare", spare.shape, "float32")}
    session = GraphSession(graph.replace(values=values, constants={"spare": spare}), optimise=False)
    np.testing.assert_array_equal(session.run({"x": np.array([-1, 1], np.float32)})["y"], [0, 1])
