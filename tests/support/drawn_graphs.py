"""Graphs drawn by hypothesis."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from pimflow.ir import Builder, Graph


@st.composite
def moving_graphs(draw: st.DrawFn) -> Graph:
    """Graphs of convolutions, activations and adds with every kind of movement between them, of any rank."""
    build = Builder(seed=draw(st.integers(0, 99)))
    height, width = draw(st.integers(3, 6)), draw(st.integers(2, 5))
    values = [build.input(draw(st.integers(1, 2)), draw(st.integers(1, 4)), height, width)]
    values.append(build.tanh(values[0]))
    for _ in range(draw(st.integers(2, 12))):
        values.append(_drawn_node(draw, build, values))
    read = {name for node in build.nodes for name in node.inputs}
    unread = [name for name in values if name not in read]
    extra = draw(st.lists(st.sampled_from(values[1:]), max_size=2))
    return build.graph(*dict.fromkeys(unread + extra))


KERNELS = ("conv", "tanh", "add", "pool")
MOVEMENTS = ("slice", "slice", "concat", "concat", "pad", "pad", "reshape", "transpose", "identity", "split")


def _drawn_node(draw: st.DrawFn, build: Builder, values: list[str]) -> str:
    x = draw(st.sampled_from(values[-6:]))
    kind = draw(st.sampled_from((*KERNELS, *MOVEMENTS)))
    if kind in MOVEMENTS:
        return _drawn_movement(draw, build, kind, x, values)
    shape = build.shape(x)
    if kind == "conv" and len(shape) == 4:
        return build.conv(x, draw(st.integers(1, 4)), 1 if min(shape[2:]) < 3 else draw(st.sampled_from([1, 3])), pad=1)
    if kind == "pool" and len(shape) == 4 and min(shape[2:]) >= 2:
        return build.average_pool(x, 2)
    if kind == "add":
        return build.add(x, draw(st.sampled_from([name for name in values if build.shape(name) == shape])))
    return build.tanh(x)


def _drawn_movement(draw: st.DrawFn, build: Builder, kind: str, x: str, values: list[str]) -> str:
    shape = build.shape(x)
    rank = len(shape)
    if kind == "slice":
        axis = draw(st.integers(0, rank - 1))
        start = draw(st.integers(0, shape[axis] - 1))
        stop = draw(st.integers(start + 1, shape[axis]))
        return build.slice(x, axis, start, stop, draw(st.sampled_from([1, 1, 1, 2])))
    if kind == "concat":
        return _drawn_concat(draw, build, values, x)
    if kind == "pad" and sum(shape) < 40:
        widths = st.lists(st.integers(0, 2), min_size=rank, max_size=rank).map(tuple)
        return build.pad(x, draw(widths), draw(widths), draw(st.sampled_from([0.0, 0.0, 0.0, 1.5])))
    if kind == "reshape":
        return build.reshape(x, *draw(st.sampled_from(_shapes_like(shape))))
    if kind == "transpose":
        return build.transpose(x, *draw(st.permutations(range(rank))))
    if kind == "split" and max(shape) >= 2:
        axis = shape.index(max(shape))
        first = draw(st.integers(1, shape[axis] - 1))
        return draw(st.sampled_from(build.split(x, axis, first, shape[axis] - first)))
    return build.onnx("Identity", x)


def _drawn_concat(draw: st.DrawFn, build: Builder, values: list[str], x: str) -> str:
    shape = build.shape(x)
    axis = draw(st.integers(0, len(shape) - 1))

    def fits(name: str) -> bool:
        other = build.shape(name)
        return len(other) == len(shape) and all(i == axis or other[i] == shape[i] for i in range(len(shape)))

    choices = [name for name in values if fits(name)]
    others = draw(st.lists(st.sampled_from(choices), min_size=1, max_size=2))
    return build.concat(axis, *draw(st.permutations([x, *others])))


def _shapes_like(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    count = math.prod(shape)
    n, rest = shape[0], count // shape[0]
    shapes = [(count,), (n, rest), (1, *shape), (n, rest, 1, 1), (n, 1, rest), (1, count, 1, 1)]
    if len(shape) == 4:
        shapes += [(n, shape[1], shape[2] * shape[3]), (n, shape[1], shape[2] * shape[3], 1), (n, 1, *shape[1:])]
    return shapes
