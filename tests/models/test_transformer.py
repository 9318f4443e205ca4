"""The encoder is BERT's in shape, its outputs vary, and they depend on every token."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from pimflow.compiler import compile
from pimflow_zoo.transformer import encoder


def outputs(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    found: np.ndarray = session.run(None, {"input": x})[0]
    return found


def test_a_layer_has_berts_parameters() -> None:
    model = encoder(layers=1, tokens=4)
    onnx.checker.check_model(model, full_check=True)
    trained = [item for item in model.graph.initializer if item.name.endswith((".weight", ".bias"))]
    assert sum(int(np.prod(item.dims)) for item in trained) == 7_087_872, "one layer of BERT base"
    assert model.SerializeToString(deterministic=True) == encoder(layers=1, tokens=4).SerializeToString(
        deterministic=True
    )


def test_every_output_depends_on_every_token() -> None:
    model = encoder(layers=1, tokens=5, features=32, heads=4, hidden=64)
    x = np.random.default_rng(0).standard_normal((1, 5, 32), np.float32)
    base = outputs(model, x)
    assert base.std() == pytest.approx(1.0, abs=0.3)
    for token in range(5):
        changed = x.copy()
        changed[0, token] += 1.0
        moved = np.abs(outputs(model, changed) - base).max(axis=(0, 2))
        assert (moved > 1e-3).all()


@pytest.mark.parametrize("tokens", [1, 6])
def test_compiled_it_computes_the_same(tokens: int) -> None:
    model = encoder(layers=1, tokens=tokens, features=64, heads=4, hidden=256)
    compiled = compile(model, policy="pim", use_cache=False)
    assert sum(node.device == "pim" for node in compiled.graph.nodes) >= 6
    assert compiled.verify(rtol=1e-4).passed
    assert compiled.verify(pim="values").passed
