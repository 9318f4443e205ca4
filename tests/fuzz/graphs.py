"""Random valid models in the forms of several opsets, written with ONNX's helpers, independently of the compiler."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSETS = (9, 11, 13, 17, 18, 21)
Shape = tuple[int, ...]


class _Drawing:
    """A model that grows by one node at a time; the shapes of all values are known."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.arrays = np.random.default_rng(rng.getrandbits(32))
        self.opset = rng.choice(OPSETS)
        self.shapes: dict[str, Shape] = {}
        self.inputs: list[str] = []
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[TensorProto] = []

    def input(self, *shape: int) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs.append(name)
        self.shapes[name] = shape
        return name

    def constant(self, array: Any) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def floats(self, *shape: int, scale: float = 1.0) -> str:
        return self.constant((scale * self.arrays.standard_normal(shape)).astype(np.float32))

    def integers(self, values: Sequence[int]) -> str:
        return self.constant(np.array(values, np.int64))

    def add(self, op_type: str, inputs: Sequence[str], *shapes: Shape, **attributes: Any) -> str:
        """Add a node; return its first output."""
        index = len(self.nodes)
        outputs = [f"v{index}" if number == 0 else f"v{index}_{number}" for number in range(len(shapes))]
        self.nodes.append(helper.make_node(op_type, list(inputs), outputs, f"{op_type}_{index}", **attributes))
        self.shapes.update(zip(outputs, shapes, strict=True))
        return outputs[0]

    def model(self) -> onnx.ModelProto:
        read = {name for node in self.nodes for name in node.input}
        made = [name for node in self.nodes for name in node.output]
        leaves = [name for name in made if name not in read]
        extra = [name for name in made if name in read and self.rng.random() < 0.05]
        graph = helper.make_graph(
            self.nodes,
            "drawn",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, self.shapes[name]) for name in self.inputs],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, self.shapes[name]) for name in leaves + extra],
            self.weights,
        )
        opsets = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=max(7, helper.find_min_ir_version_for(opsets)))


def drawn_model(rng: Random, most_nodes: int = 14) -> onnx.ModelProto:
    """A model of convolutions, products, windows, movements and elementwise functions, wired at random."""
    drawing = _Drawing(rng)
    channels, size = rng.choice((3, 4, 8, 16, 24)), rng.choice((5, 7, 8, 12, 14, 17))
    values = [drawing.input(rng.choice((1, 1, 1, 2, 3)), channels, size, size + rng.choice((0, 0, 1, 3)))]
    if rng.random() < 0.2:
        values.append(drawing.input(*drawing.shapes[values[0]]))
    for _ in range(rng.randint(2, most_nodes)):
        x = rng.choice(values[-4:])
        kinds = _SPATIAL if len(drawing.shapes[x]) == 4 else _FLAT
        made = rng.choice(kinds)(drawing, x, values)
        if made and math.prod(drawing.shapes[made]) <= 1 << 16:
            values.append(made)
    if not drawing.nodes:
        drawing.add("Relu", [values[0]], drawing.shapes[values[0]])
    return drawing.model()


Step = Callable[[_Drawing, str, list[str]], str]


def _conv(d: _Drawing, x: str, values: list[str]) -> str:
    n, c, h, w = d.shapes[x]
    kh, kw = (d.rng.choice((1, 1, 3, 3, 5)) for _ in range(2))
    stride, dilation = d.rng.choice(((1, 1), (1, 1), (2, 1), (1, 2)))
    groups = d.rng.choice([1, 1, 1, c, *([2] if c % 2 == 0 else [])])
    out = groups * d.rng.choice((1, 2, 3)) if groups > 1 else d.rng.choice((4, 8, 17, 32))
    pads = [d.rng.choice((0, k // 2 * dilation, d.rng.randint(0, k))) for k in (kh, kw, kh, kw)]
    oh = (h + pads[0] + pads[2] - dilation * (kh - 1) - 1) // stride + 1
    ow = (w + pads[1] + pads[3] - dilation * (kw - 1) - 1) // stride + 1
    if oh < 1 or ow < 1:
        return ""
    inputs = [x, d.floats(out, c // groups, kh, kw, scale=(c // groups * kh * kw) ** -0.5)]
    inputs += [d.floats(out)] if d.rng.random() < 0.6 else []
    return d.add("Conv", inputs, (n, out, oh, ow), group=groups, strides=[stride] * 2, dilations=[dilation] * 2,
                 pads=pads)  # fmt: skip


def _conv_transpose(d: _Drawing, x: str, values: list[str]) -> str:
    n, c, h, w = d.shapes[x]
    out, k, stride = d.rng.choice((2, 4, 8)), d.rng.choice((1, 2, 3)), d.rng.choice((1, 2))
    weights = d.floats(c, out, k, k, scale=(c * k * k) ** -0.5)
    return d.add("ConvTranspose", [x, weights], (n, out, (h - 1) * stride + k, (w - 1) * stride + k),
                 strides=[stride] * 2)  # fmt: skip


def _conv_of_other_rank(d: _Drawing, x: str, values: list[str]) -> str:
    """A convolution over one dimension or three, transposed or not."""
    n, c, h, w = d.shapes[x]
    sizes = d.rng.choice(((c, h * w), (1, c, h, w)))
    channels, *spatial = sizes
    x = d.add("Reshape", [x, d.integers([n, *sizes])], (n, *sizes))
    kernel = [min(size, d.rng.choice((1, 2, 3))) for size in spatial]
    out, stride, turned = d.rng.choice((2, 4, 8)), d.rng.choice((1, 2)), d.rng.random() < 0.3
    weights = d.floats(*((channels, out) if turned else (out, channels)), *kernel, scale=channels**-0.5)
    made = [
        (size - 1) * stride + k if turned else (size - k) // stride + 1 for size, k in zip(spatial, kernel, strict=True)
    ]
    if math.prod(made) * out > 1 << 16:
        return x
    kind = "ConvTranspose" if turned else "Conv"
    return d.add(kind, [x, weights], (n, out, *made), strides=[stride] * len(spatial))


def _recurrent(d: _Drawing, x: str, values: list[str]) -> str:
    """A recurrent layer with rows as steps, and several results."""
    if len(d.shapes[x]) != 2 or d.shapes[x][1] > 512:
        return ""
    (steps, depth), hidden, directions = d.shapes[x], d.rng.choice((3, 8, 16)), d.rng.choice((1, 2))
    kind, gates = d.rng.choice((("LSTM", 4), ("GRU", 3), ("RNN", 1)))
    x = d.add("Reshape", [x, d.integers([steps, 1, depth])], (steps, 1, depth))
    inputs = [x, *(d.floats(directions, gates * hidden, size, scale=size**-0.5) for size in (depth, hidden))]
    inputs += [d.floats(directions, 2 * gates * hidden)] if d.rng.random() < 0.6 else []
    direction = "bidirectional" if directions == 2 else d.rng.choice(("forward", "reverse"))
    return d.add(kind, inputs, (steps, directions, 1, hidden), (directions, 1, hidden), hidden_size=hidden,
                 direction=direction)  # fmt: skip


def _pool(d: _Drawing, x: str, values: list[str]) -> str:
    n, c, h, w = d.shapes[x]
    k, stride = d.rng.choice((2, 3)), d.rng.choice((1, 2))
    if min(h, w) < k:
        return ""
    more: dict[str, Any] = {}
    kind = d.rng.choice(("MaxPool", "AveragePool"))
    pad = d.rng.choice((0, 1)) if k > 2 else 0
    if kind == "AveragePool":
        more["count_include_pad"] = d.rng.choice((0, 1))
    oh, ow = ((size + 2 * pad - k) // stride + 1 for size in (h, w))
    return d.add(kind, [x], (n, c, oh, ow), kernel_shape=[k, k], strides=[stride] * 2, pads=[pad] * 4, **more)


def _global_pool(d: _Drawing, x: str, values: list[str]) -> str:
    n, c, _, _ = d.shapes[x]
    return d.add(d.rng.choice(("GlobalAveragePool", "GlobalMaxPool")), [x], (n, c, 1, 1))


def _squeeze_excite(d: _Drawing, x: str, values: list[str]) -> str:
    n, c, _, _ = d.shapes[x]
    pooled = d.add("GlobalAveragePool", [x], (n, c, 1, 1))
    gate = d.add("Conv", [pooled, d.floats(c, c, 1, 1, scale=c**-0.5)], (n, c, 1, 1))
    gate = d.add("Sigmoid", [gate], (n, c, 1, 1))
    return d.add("Mul", [x, gate], d.shapes[x])


def _batch_norm(d: _Drawing, x: str, values: list[str]) -> str:
    c = d.shapes[x][1]
    variance = d.constant((0.5 + d.arrays.random(c)).astype(np.float32))
    return d.add("BatchNormalization", [x, d.floats(c), d.floats(c), d.floats(c), variance], d.shapes[x])


def _activation(d: _Drawing, x: str, values: list[str]) -> str:
    kinds = ["Relu", "Sigmoid", "Tanh", "LeakyRelu", "Elu", "Selu", "HardSigmoid", "Softplus", "Softsign", "Abs", "Neg",
             "ThresholdedRelu", "Erf", "Identity", *(["HardSwish"] if d.opset >= 14 else [])]  # fmt: skip
    kinds += ["Gelu"] if d.opset >= 20 else []
    return d.add(d.rng.choice(kinds), [x], d.shapes[x])


def _clip(d: _Drawing, x: str, values: list[str]) -> str:
    low, high = d.rng.choice(((0.0, 6.0), (-1.0, 1.0)))
    if d.opset < 11:
        return d.add("Clip", [x], d.shapes[x], min=low, max=high)
    bounds = [d.constant(np.array(bound, np.float32)) for bound in (low, high)]
    return d.add("Clip", [x, *bounds], d.shapes[x])


def _swish(d: _Drawing, x: str, values: list[str]) -> str:
    return d.add("Mul", [x, d.add("Sigmoid", [x], d.shapes[x])], d.shapes[x])


def _binary(d: _Drawing, x: str, values: list[str]) -> str:
    shape = d.shapes[x]
    others = [name for name in values if d.shapes[name] == shape]
    if d.rng.random() < 0.3:
        kept = [size if d.rng.random() < 0.5 else 1 for size in shape][d.rng.randint(0, len(shape) - 1) :]
        others = [d.floats(*kept)]
    operands = [x, d.rng.choice(others)]
    d.rng.shuffle(operands)
    return d.add(d.rng.choice(("Add", "Add", "Sub", "Mul", "Max")), operands, shape)


def _concat(d: _Drawing, x: str, values: list[str]) -> str:
    shape, axis = d.shapes[x], d.rng.randrange(len(d.shapes[x]))
    rest = (*shape[:axis], *shape[axis + 1 :])
    alike = [name for name in values if (*d.shapes[name][:axis], *d.shapes[name][axis + 1 :]) == rest
             and len(d.shapes[name]) == len(shape)]  # fmt: skip
    parts = [x, *d.rng.choices(alike, k=d.rng.randint(1, 2))]
    total = sum(d.shapes[name][axis] for name in parts)
    return d.add("Concat", parts, (*shape[:axis], total, *shape[axis + 1 :]), axis=axis)


def _slice(d: _Drawing, x: str, values: list[str]) -> str:
    shape, axis = d.shapes[x], d.rng.randrange(len(d.shapes[x]))
    start = d.rng.randrange(shape[axis])
    stop = d.rng.randint(start + 1, shape[axis])
    result = (*shape[:axis], stop - start, *shape[axis + 1 :])
    if d.opset < 10:
        return d.add("Slice", [x], result, axes=[axis], starts=[start], ends=[stop])
    return d.add("Slice", [x, *(d.integers([number]) for number in (start, stop, axis))], result)


def _pad(d: _Drawing, x: str, values: list[str]) -> str:
    shape = d.shapes[x]
    widths = [d.rng.choice((0, 0, 1, 2)) for _ in range(2 * len(shape))]
    result = tuple(size + widths[i] + widths[i + len(shape)] for i, size in enumerate(shape))
    if d.opset < 11:
        return d.add("Pad", [x], result, pads=widths)
    return d.add("Pad", [x, d.integers(widths)], result)


def _split(d: _Drawing, x: str, values: list[str]) -> str:
    shape, axis = d.shapes[x], d.rng.randrange(len(d.shapes[x]))
    if shape[axis] < 2:
        return ""
    first = d.rng.randrange(1, shape[axis])
    sizes = [first, shape[axis] - first]
    shapes = [(*shape[:axis], size, *shape[axis + 1 :]) for size in sizes]
    if d.opset < 13:
        made = d.add("Split", [x], *shapes, axis=axis, split=sizes)
    else:
        made = d.add("Split", [x, d.integers(sizes)], *shapes, axis=axis)
    values.append(f"{made}_1")
    return made


def _transpose(d: _Drawing, x: str, values: list[str]) -> str:
    perm = list(range(len(d.shapes[x])))
    d.rng.shuffle(perm)
    return d.add("Transpose", [x], tuple(d.shapes[x][axis] for axis in perm), perm=perm)


def _flatten(d: _Drawing, x: str, values: list[str]) -> str:
    shape = d.shapes[x]
    if d.rng.random() < 0.5:
        return d.add("Flatten", [x], (shape[0], math.prod(shape[1:])))
    return d.add("Reshape", [x, d.integers([shape[0], -1])], (shape[0], math.prod(shape[1:])))


def _gemm(d: _Drawing, x: str, values: list[str]) -> str:
    shape, out = d.shapes[x], d.rng.choice((5, 16, 33))
    depth = shape[-1]
    if depth > 4096:
        return ""
    if len(shape) != 2 or d.rng.random() < 0.3:
        return d.add("MatMul", [x, d.floats(depth, out, scale=depth**-0.5)], (*shape[:-1], out))
    turned = d.rng.random() < 0.5
    weights = d.floats(*((out, depth) if turned else (depth, out)), scale=depth**-0.5)
    bias = d.rng.choice([[], [d.floats(out)], [d.floats(1, out)], [d.floats(1)], [d.floats(shape[0], 1)]])
    if not bias and d.opset < 11:
        bias = [d.floats(out)]
    return d.add("Gemm", [x, weights, *bias], (shape[0], out), transB=int(turned), alpha=d.rng.choice((1.0, 0.5)))


def _reduce(d: _Drawing, x: str, values: list[str]) -> str:
    shape, axis = d.shapes[x], d.rng.randrange(len(d.shapes[x]))
    result = (*shape[:axis], 1, *shape[axis + 1 :])
    if d.opset < 18:
        return d.add("ReduceMean", [x], result, axes=[axis])
    return d.add("ReduceMean", [x, d.integers([axis])], result)


def _softmax(d: _Drawing, x: str, values: list[str]) -> str:
    return d.add("Softmax", [x], d.shapes[x], axis=len(d.shapes[x]) - 1)


def _resize(d: _Drawing, x: str, values: list[str]) -> str:
    n, c, h, w = d.shapes[x]
    scales = d.constant(np.array([1, 1, 2, 2], np.float32))
    if d.opset < 10:
        return d.add("Upsample", [x, scales], (n, c, 2 * h, 2 * w), mode="nearest")
    inputs = [x, scales] if d.opset < 11 else [x, d.constant(np.zeros(0, np.float32)), scales]
    more = {} if d.opset < 11 else {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return d.add("Resize", inputs, (n, c, 2 * h, 2 * w), mode="nearest", **more)


_ANY: tuple[Step, ...] = (_activation, _activation, _clip, _swish, _binary, _binary, _concat, _slice, _pad, _split,
                          _transpose, _reduce, _softmax)  # fmt: skip
_SPATIAL: tuple[Step, ...] = (*[_conv] * 12, _conv_transpose, _conv_of_other_rank, _pool, _pool, _global_pool,
                              _squeeze_excite, _batch_norm, _batch_norm, _flatten, _resize, *_ANY)  # fmt: skip
_FLAT: tuple[Step, ...] = (*[_gemm] * 8, _recurrent, _recurrent, *_ANY)
