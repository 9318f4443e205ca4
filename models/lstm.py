"""A text classifier: two bidirectional LSTMs, as in Keras' example "Bidirectional LSTM on IMDB" (Chollet, 2020)."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import TensorProto

from .writer import Writer

_VOCABULARY = 20000
_FEATURES = 128
_HIDDEN = 64
_TOKENS = 200


def lstm_classifier(net: Writer) -> onnx.ModelProto:
    """A text of 200 words; `probability` [1, 1] is that of a good review."""
    words = net.value_input("input_ids", (1, _TOKENS), TensorProto.INT64)
    table = net.weight("embedding.weight", (_VOCABULARY, _FEATURES), 1.0)
    x = net.node("Transpose", "steps", net.node("Gather", "embedding", table, words), perm=[1, 0, 2])
    every, _ = _lstm(net, x, "lstm1", _FEATURES)
    turned = net.node("Transpose", "lstm1.turned", every, perm=[0, 2, 1, 3])
    both = net.node("Reshape", "lstm1.both", turned, net.integers("lstm1.shape", _TOKENS, 1, 2 * _HIDDEN))
    _, last = _lstm(net, both, "lstm2", 2 * _HIDDEN)
    turned = net.node("Transpose", "lstm2.turned", last, perm=[1, 0, 2])
    flat = net.node("Reshape", "lstm2.both", turned, net.integers("lstm2.shape", 1, 2 * _HIDDEN))
    weight = net.weight("dense.weight", (2 * _HIDDEN, 1), 6.0 / math.sqrt(_HIDDEN))
    score = net.node("Gemm", "dense", flat, weight, net.constant("dense.bias", np.zeros(1)))
    net.node("Sigmoid", "probability", score)
    net.value_output("probability", (1, 1))
    return net.finish()


def _lstm(net: Writer, x: str, name: str, features: int) -> tuple[str, str]:
    """A bidirectional LSTM; its outputs at every step [T, 2, 1, H], and at each direction's last step [2, 1, H]."""
    gates = 4 * _HIDDEN
    # ONNX has a second bias, for the recurrent product, which Keras lacks: it is zero and not counted as a parameter.
    biases = np.concatenate([net.uniform((-0.2, 0.2), 2 * gates).reshape(2, gates), np.zeros((2, gates))], axis=1)
    inputs = (
        x,
        net.weight(f"{name}.input.weight", (2, gates, features), 1 / math.sqrt(features)),
        net.weight(f"{name}.recurrent.weight", (2, gates, _HIDDEN), 1 / math.sqrt(_HIDDEN)),
        net.constant(f"{name}.biases", biases),
    )
    every, last = net.node_of_many(
        "LSTM", name, inputs, [f"{name}.every", f"{name}.last"], hidden_size=_HIDDEN, direction="bidirectional"
    )
    return every, last
