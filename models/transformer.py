"""Layers of transformers, with every operation spelled out, and an encoder of any size.

Vaswani et al., "Attention is all you need", NeurIPS 2017. Weights are scaled to preserve unit variance.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import onnx

from .writer import Writer

# Biases are small: they are the part that two inputs have in common.
_BIAS = (-0.05, 0.05)
_GAIN = (0.8, 1.2)
# Added by a causal mask to the scores of later tokens; its exp is 0.
_HIDDEN = -1e9


@dataclass(frozen=True)
class Tokens:
    """A tensor [1, count, features]."""

    name: str
    count: int
    features: int


Function = Callable[[Writer, str, str], str]


# Standard deviation of scores: tokens then attend to some of the others, not to the mean of all, which carries little
# information about any.
_SHARPNESS = 2.0


def linear(net: Writer, x: str, name: str, width: int, columns: int, gain: float = 1.0, centred: bool = False) -> str:
    """x @ w + b, over the last axis, `gain` times as large as x. `centred`: insensitive to the mean of x."""
    weight = net.weight(f"{name}.weight", (width, columns), gain / math.sqrt(width), centred)
    product = net.node("MatMul", f"{name}.product", x, weight)
    return net.node("Add", name, product, net.constant(f"{name}.bias", net.uniform(_BIAS, columns)))


def layer_norm(net: Writer, x: str, name: str, features: int, epsilon: float = 1e-5, output: str | None = None) -> str:
    """Layer norm over the last axis."""
    gain = net.constant(f"{name}.weight", net.uniform(_GAIN, features))
    shift = net.constant(f"{name}.bias", net.uniform(_BIAS, features))
    return net.node("LayerNormalization", name, x, gain, shift, output=output, axis=-1, epsilon=epsilon)


def gelu(net: Writer, x: str, name: str) -> str:
    """x / 2 * (1 + erf(x / sqrt 2))."""
    scaled = net.node("Div", f"{name}.scaled", x, net.scalar("sqrt2", math.sqrt(2)))
    shifted = net.node("Add", f"{name}.shifted", net.node("Erf", f"{name}.erf", scaled), net.scalar("one", 1.0))
    return net.node("Mul", name, net.node("Mul", f"{name}.product", x, shifted), net.scalar("half", 0.5))


def gelu_tanh(net: Writer, x: str, name: str) -> str:
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))), as in GPT-2."""
    cube = net.node("Pow", f"{name}.cube", x, net.scalar("three", 3.0))
    bent = net.node("Add", f"{name}.bent", x, net.node("Mul", f"{name}.part", cube, net.scalar("bend", 0.044715)))
    tanh = net.node(
        "Tanh", f"{name}.tanh", net.node("Mul", f"{name}.inner", bent, net.scalar("slope", math.sqrt(2 / math.pi)))
    )
    halved = net.node("Mul", f"{name}.halved", x, net.scalar("half", 0.5))
    return net.node("Mul", name, halved, net.node("Add", f"{name}.shifted", tanh, net.scalar("one", 1.0)))


def feed_forward(net: Writer, x: str, name: str, features: int, hidden: int, function: Function = gelu) -> str:
    """Two linear layers with a function between."""
    up = function(net, linear(net, x, f"{name}.up", features, hidden), f"{name}.gelu")
    return linear(net, up, f"{name}.down", hidden, features, centred=True)  # Gelu's outputs have a positive mean


def attention(net: Writer, x: Tokens, name: str, heads: int, packed: bool = False, causal: bool = False) -> str:
    """Multi-head self-attention. `packed`: query, key and value are one product. `causal`: no token sees later ones."""
    parts = ("query", "key", "value")
    gain = math.sqrt(_SHARPNESS)
    if packed:
        whole = linear(net, x.name, f"{name}.qkv", x.features, 3 * x.features, gain)
        sizes = net.integers(f"{name}.sizes", *[x.features] * 3)
        values = net.node_of_many(
            "Split", f"{name}.split", (whole, sizes), [f"{name}.{part}" for part in parts], axis=2
        )
    else:
        values = [linear(net, x.name, f"{name}.{part}", x.features, x.features, gain) for part in parts]
    query, key, value = (
        _heads(net, replace(x, name=part), heads, last)
        for part, last in zip(values, ([1, 3], [3, 1], [1, 3]), strict=True)
    )
    width = net.scalar("head_width", math.sqrt(x.features / heads))
    scores = net.node("Div", f"{name}.scores", net.node("MatMul", f"{name}.dots", query, key), width)
    if causal:
        hidden = np.triu(np.full((x.count, x.count), _HIDDEN, np.float32), 1)
        scores = net.node("Add", f"{name}.masked", scores, net.shared("causal_mask", hidden))
    mixed = net.node("MatMul", f"{name}.mixed", net.node("Softmax", f"{name}.shares", scores, axis=-1), value)
    together = net.node("Transpose", f"{name}.together", mixed, perm=[0, 2, 1, 3])
    joined = net.node("Reshape", f"{name}.joined", together, net.integers("tokens", 1, x.count, x.features))
    return linear(net, joined, f"{name}.out", x.features, x.features)


def post_norm_layer(net: Writer, x: Tokens, name: str, heads: int, hidden: int, epsilon: float = 1e-5) -> Tokens:
    """An encoder layer of BERT: norms after the sums."""
    attended = net.node("Add", f"{name}.residual1", attention(net, x, f"{name}.attention", heads), x.name)
    attended = layer_norm(net, attended, f"{name}.norm1", x.features, epsilon)
    down = feed_forward(net, attended, name, x.features, hidden)
    out = layer_norm(net, net.node("Add", f"{name}.residual2", down, attended), f"{name}.norm2", x.features, epsilon)
    return replace(x, name=out)


def pre_norm_layer(
    net: Writer,
    x: Tokens,
    name: str,
    heads: int,
    epsilon: float = 1e-5,
    causal: bool = False,
    function: Function = gelu,
) -> Tokens:
    """A layer of ViT or GPT-2: norms before the branches, and a hidden layer four times as wide."""
    normed = replace(x, name=layer_norm(net, x.name, f"{name}.norm1", x.features, epsilon))
    attended = attention(net, normed, f"{name}.attention", heads, packed=True, causal=causal)
    attended = net.node("Add", f"{name}.residual1", attended, x.name)
    normed_again = layer_norm(net, attended, f"{name}.norm2", x.features, epsilon)
    down = feed_forward(net, normed_again, name, x.features, 4 * x.features, function)
    return replace(x, name=net.node("Add", f"{name}.residual2", down, attended))


def encoder(
    layers: int = 2, tokens: int = 64, features: int = 768, heads: int = 12, hidden: int = 3072, seed: int = 1
) -> onnx.ModelProto:
    """Encoder layers over embedded tokens: `input` and `output` are float32 [1, tokens, features].

    The defaults are two of the twelve layers of BERT base. The same arguments give the same bytes.
    """
    net = Writer(f"encoder-{layers}x{tokens}", seed)
    shape = (1, tokens, features)
    x = Tokens(net.value_input("input", shape), tokens, features)
    for index in range(layers):
        x = post_norm_layer(net, x, f"layer{index}", heads, hidden)
    net.node("Identity", "output", x.name)
    net.value_output("output", shape)
    return net.finish()


def _heads(net: Writer, x: Tokens, heads: int, last: list[int]) -> str:
    """[1, count, features] as [1, heads, ...], with the axes `last` of [1, count, heads, width] at the end."""
    shape = net.integers("heads", 1, x.count, heads, x.features // heads)
    apart = net.node("Reshape", f"{x.name}.apart", x.name, shape)
    return net.node("Transpose", f"{x.name}.heads", apart, perm=[0, 2, *last])
