"""BERT base and large (Devlin et al., NAACL 2019): embeddings, encoder and pooler, as in Hugging Face's BertModel.

One sequence, with no token masked; all tokens belong to the first segment.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from .transformer import Tokens, layer_norm, linear, post_norm_layer
from .writer import Writer

_VOCABULARY = 30522
_POSITIONS = 512
_SEGMENTS = 2
_EPSILON = 1e-12


def bert_base(net: Writer, tokens: int) -> onnx.ModelProto:
    """12 layers of 768 features and 12 heads."""
    return _bert(net, tokens, layers=12, features=768, heads=12)


def bert_large(net: Writer, tokens: int) -> onnx.ModelProto:
    """24 layers of 1024 features and 16 heads."""
    return _bert(net, tokens, layers=24, features=1024, heads=16)


def _bert(net: Writer, tokens: int, layers: int, features: int, heads: int) -> onnx.ModelProto:
    x = _embedded(net, tokens, features)
    for index in range(layers):
        x = post_norm_layer(net, x, f"layer{index}", heads, 4 * features, _EPSILON)
    net.node("Identity", "last_hidden_state", x.name)
    net.value_output("last_hidden_state", (1, tokens, features))
    first = net.node("Gather", "pooler.first", x.name, net.constant("first", np.int64(0)), axis=1)
    net.node("Tanh", "pooler", linear(net, first, "pooler.linear", features, features), output="pooled")
    net.value_output("pooled", (1, features))
    return net.finish()


def _embedded(net: Writer, tokens: int, features: int) -> Tokens:
    """The sum of word, segment and position embeddings."""
    words = net.value_input("input_ids", (1, tokens), TensorProto.INT64)
    segments = net.constant("token_type_ids", np.zeros((1, tokens), np.int64))
    positions = net.constant("position_ids", np.arange(tokens, dtype=np.int64)[None])
    parts = [
        net.node("Gather", f"embedding.{name}", net.weight(f"embedding.{name}.weight", (rows, features), std), ids)
        for name, rows, std, ids in (
            ("word", _VOCABULARY, 1.0, words),
            ("segment", _SEGMENTS, 0.2, segments),
            ("position", _POSITIONS, 0.2, positions),
        )
    ]
    total = net.node("Add", "embedding.typed", parts[0], parts[1])
    total = net.node("Add", "embedding.placed", total, parts[2])
    return Tokens(layer_norm(net, total, "embedding.norm", features, _EPSILON), tokens, features)
