"""GPT-2 with 124 M parameters (Radford et al., 2019), as in Hugging Face's GPT2LMHeadModel, without a cache."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from .transformer import Tokens, gelu_tanh, layer_norm, pre_norm_layer
from .writer import Writer

_VOCABULARY = 50257
_POSITIONS = 1024
_FEATURES = 768
_HEADS = 12
_LAYERS = 12


def gpt_2(net: Writer, tokens: int = 64) -> onnx.ModelProto:
    """All tokens of a text at once; `logits` [1, tokens, 50257] predict the token after each."""
    words = net.value_input("input_ids", (1, tokens), TensorProto.INT64)
    # The standard deviation at which the logits, which are products with the same weights, have one near 1.
    table = net.weight("embedding.word.weight", (_VOCABULARY, _FEATURES), _FEATURES**-0.5)
    positions = net.constant("position_ids", np.arange(tokens, dtype=np.int64)[None])
    places = net.weight("embedding.position.weight", (_POSITIONS, _FEATURES), 0.2 * _FEATURES**-0.5)
    word, place = (
        net.node("Gather", f"embedding.{name}", weight, ids)
        for name, weight, ids in (("word", table, words), ("position", places, positions))
    )
    x = Tokens(net.node("Add", "embedding", word, place), tokens, _FEATURES)
    for index in range(_LAYERS):
        x = pre_norm_layer(net, x, f"layer{index}", _HEADS, causal=True, function=gelu_tanh)
    normed = layer_norm(net, x.name, "norm", _FEATURES)
    flat = net.node("Reshape", "flat", normed, net.integers("flat.shape", tokens, _FEATURES))
    scores = net.node("Gemm", "head", flat, table, transB=1)  # the weights are shared with the embedding
    net.node("Reshape", "logits", scores, net.integers("logits.shape", 1, tokens, _VOCABULARY))
    net.value_output("logits", (1, tokens, _VOCABULARY))
    return net.finish()
