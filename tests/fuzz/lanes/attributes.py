"""Operators with one attribute at an extreme value: libraries below Python crash on what they do not check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

from fuzz.apart import apart
from fuzz.verdict import Verdict
from pimflow.cli import main
from pimflow.ir import Array
from support.onnx_models import model_of

CONTRIB = "com.microsoft"
_INTEGERS = (-1, 0, 1, 3, 63, -(2**31), 2**31 - 1, 2**31, 2**40, -(2**63), 2**63 - 1)
_FLOATS = (float("nan"), float("inf"), -1.0, 0.0, 3e38)
_TEXTS = ("", "nonsense", "x" * 10_000)
_RANDOM = np.random.default_rng(0)


def _floats(*shape: int) -> Array:
    return _RANDOM.standard_normal(shape).astype(np.float32)


def _bytes(*shape: int) -> Array:
    return _RANDOM.integers(0, 200, shape).astype(np.uint8)


class _Operator(NamedTuple):
    """An operator that ONNX Runtime runs on a CPU: its operands, the first of which is an input; None: absent."""

    operands: Sequence[Array | None]
    attributes: Mapping[str, Any]
    results: int = 1


_STEP: tuple[Array, Array] = (np.array(0.1, np.float32), np.array(3, np.uint8))
_SIX = np.array(6, np.int32)
_OWN: Mapping[str, _Operator] = {
    "Attention": _Operator([_floats(2, 6, 16), _floats(16, 48), _floats(48)], {"num_heads": 4}),
    "CDist": _Operator([_floats(4, 8), _floats(3, 8)], {"metric": "euclidean"}),
    "DequantizeLinear": _Operator([_bytes(4, 8), *_STEP], {"axis": 1}),
    "FusedConv": _Operator([_floats(1, 4, 9, 9), _floats(8, 4, 3, 3)], {"activation": "Relu", "group": 1}),
    "FusedGemm": _Operator([_floats(4, 8), _floats(8, 6), _floats(6)], {"activation": "Relu"}),
    "FusedMatMul": _Operator([_floats(4, 8), _floats(8, 6)], {"alpha": 0.5}),
    "GatherBlockQuantized": _Operator(
        [_bytes(8, 16), np.array([0, 1], np.int64), _floats(8, 1)],
        {"gather_axis": 0, "quantize_axis": 1, "block_size": 16, "bits": 8},
    ),
    "GroupQueryAttention": _Operator(
        [_floats(1, 6, 64), _floats(1, 6, 32), _floats(1, 6, 32), None, None, np.array([5], np.int32), _SIX],
        {"num_heads": 4, "kv_num_heads": 2},
        3,
    ),
    "MatMulNBits": _Operator(
        [_floats(2, 64), _bytes(16, 2, 16), _floats(16, 2)], {"K": 64, "N": 16, "bits": 4, "block_size": 32}
    ),
    "MultiHeadAttention": _Operator([_floats(2, 6, 16), _floats(2, 6, 16), _floats(2, 6, 16)], {"num_heads": 4}),
    "QLinearGlobalAveragePool": _Operator([_bytes(1, 4, 6, 6), *_STEP, *_STEP], {"channels_last": 0}),
    "QLinearLeakyRelu": _Operator([_bytes(4, 8), *_STEP, *_STEP], {"alpha": 0.1}),
    "QLinearSoftmax": _Operator([_bytes(4, 8), *_STEP, *_STEP], {"axis": -1, "opset": 13}),
    "QuantizeLinear": _Operator([_floats(4, 8), *_STEP], {"axis": 1}),
    "RotaryEmbedding": _Operator([_floats(1, 4, 16), np.zeros(1, np.int64), _floats(8, 8), _floats(8, 8)], {}),
    "SkipLayerNormalization": _Operator([_floats(2, 4, 8), _floats(2, 4, 8), _floats(8)], {}),
    "WordConvEmbedding": _Operator(
        [np.ones((2, 5), np.int32), _floats(6, 1, 2, 3), _floats(6), _floats(10, 3)],
        {"embedding_size": 6, "conv_window_size": 2, "char_embedding_size": 3},
    ),
}


def case(seed: int, folder: Path) -> Verdict:
    """Compile an operator with one attribute changed: no crash, no traceback."""
    rng = Random(seed)
    name, model = rng.choice(_models())
    given = onnx.ModelProto.FromString(model)
    changed = _changed(given, rng)
    if not changed:
        return Verdict("has no attributes")
    path = folder / "operator.onnx"
    path.write_bytes(given.SerializeToString())
    ended = apart(lambda: main(["compile", str(path), "-o", str(folder / "out"), "--policy", "gpu", "--no-cache"]))
    if ended.complaint:
        return Verdict("fails badly", f"{name}, {changed}: {ended.complaint}")
    return Verdict("refused" if ended.code == 2 else "compiled")


@cache
def _models() -> tuple[tuple[str, bytes], ...]:
    return tuple((kind, _model(kind, operator).SerializeToString()) for kind, operator in _OWN.items())


def _model(kind: str, operator: _Operator) -> onnx.ModelProto:
    names = ["" if array is None else f"i{place}" for place, array in enumerate(operator.operands)]
    outputs = [f"o{place}" for place in range(operator.results)]
    node = helper.make_node(kind, names, outputs, "n", domain=CONTRIB, **operator.attributes)
    constants = {f"i{place}": array for place, array in enumerate(operator.operands) if place and array is not None}
    first = operator.operands[0]
    assert first is not None
    dtype = helper.np_dtype_to_tensor_dtype(first.dtype)
    model = model_of([node], {"i0": first.shape}, outputs, constants, domains={CONTRIB: 1}, dtype=dtype)
    for info in model.graph.output:
        info.type.tensor_type.elem_type = TensorProto.UNDEFINED
        info.ClearField("type")
    return model


@cache
def _attributes() -> Mapping[tuple[str, str], Mapping[str, str]]:
    """The types of the attributes of all operators, by domain and op_type."""
    return {
        (schema.domain, schema.name): {
            name: str(kept.type).rpartition(".")[2] for name, kept in schema.attributes.items()
        }
        for schema in get_all_operator_schema()
    }


def _changed(model: onnx.ModelProto, rng: Random) -> str:
    """Set one attribute of one node; return which one, "" if there is none."""
    nodes = [node for node in model.graph.node if _attributes().get((node.domain, node.op_type))]
    if not nodes:
        return ""
    node = rng.choice(nodes)
    known = _attributes()[node.domain, node.op_type]
    name = rng.choice(sorted(known))
    before = {attribute.name: attribute for attribute in node.attribute}.get(name, AttributeProto())
    value = _extreme(known[name], max(1, len(before.ints), len(before.floats)), rng)
    if value is None:
        return ""
    kept = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])
    return f"{name} = {str(value)[:60]}"


def _extreme(kind: str, length: int, rng: Random) -> Any:
    """A value of a type; if it has several elements, one or all are extreme, or there is one too many."""
    choices: Mapping[str, tuple[Any, ...]] = {"INT": _INTEGERS, "FLOAT": _FLOATS, "STRING": _TEXTS}
    if kind in choices:
        return rng.choice(choices[kind])
    if kind not in ("INTS", "FLOATS"):
        return None
    values = choices[kind.removesuffix("S")]
    return [rng.choice(values)] * (length + rng.choice((0, 0, 1)))
