"""Checks of gradients against central differences in float64, by ONNX Runtime where it has such kernels, otherwise by
ONNX's reference evaluator with convolutions implemented here."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from pimflow.ir import Array, Graph, Node, OnnxOp
from pimflow.ir.verify import verify_graph
from pimflow.onnxio.export import to_onnx
from pimflow.passes.differentiate import Differentiate, TrainingStep, training_step
from pimflow.passes.parameters import parameters
from support.recurrences import RECURRENCES
from support.values import run_in_ort

Floats = npt.NDArray[np.float64]

STEP = 1e-5
"""Step of the differences; their error is of the order of the step, plus rounding divided by it."""


class Erf(OpRun):
    """ONNX's own implementation rounds to float32."""

    def _run(self, x: Floats) -> tuple[Floats]:
        return (np.vectorize(math.erf, otypes=[x.dtype])(x),)


class Gelu(OpRun):
    """Likewise."""

    def _run(self, x: Floats, approximate: str = "none") -> tuple[Floats]:
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        share = np.tanh(inner) if approximate == "tanh" else np.vectorize(math.erf)(x / math.sqrt(2))
        return (0.5 * x * (1 + share),)


def taps(kernel: tuple[int, ...], strides: Any, dilations: Any, outputs: tuple[int, ...]) -> Iterator[tuple[Any, Any]]:
    """For every tap of a kernel, the part of a padded map that it reads; both as indices after images and channels."""
    for place in itertools.product(*map(range, kernel)):
        starts = [index * dilation for index, dilation in zip(place, dilations, strict=True)]
        seen = [
            slice(start, start + (count - 1) * stride + 1, stride)
            for start, count, stride in zip(starts, outputs, strides, strict=True)
        ]
        yield (slice(None), slice(None), *place), (slice(None), slice(None), *seen)


def groups_of(groups: int, x: Floats, w: Floats, made: Floats) -> Iterator[tuple[Floats, Floats, Floats]]:
    """Channels of the input and the result, and filters, by group; views of the arrays, so that additions are kept."""
    return zip(np.split(x, groups, 1), np.split(w, groups), np.split(made, groups, 1), strict=True)


class Conv(OpRun):
    """ONNX's own implementation fails for some groups and strides."""

    def _run(self, x: Floats, w: Floats, b: Floats | None = None, **given: Any) -> tuple[Floats]:
        axes = w.ndim - 2
        strides, dilations = (given.get(name) or (1,) * axes for name in ("strides", "dilations"))
        pads, groups = given.get("pads") or (0,) * 2 * axes, given.get("group") or 1
        if given.get("auto_pad") == "SAME_UPPER":
            sizes = zip(x.shape[2:], strides, w.shape[2:], strict=True)
            totals = [max(0, (-(-size // stride) - 1) * stride + kernel - size) for size, stride, kernel in sizes]
            pads = (*(total // 2 for total in totals), *(total - total // 2 for total in totals))
        padded = np.pad(x, ((0, 0), (0, 0), *((pads[axis], pads[axis + axes]) for axis in range(axes))))
        outputs = tuple(
            (padded.shape[2 + axis] - (w.shape[2 + axis] - 1) * dilations[axis] - 1) // strides[axis] + 1
            for axis in range(axes)
        )
        made = np.zeros((len(x), len(w), *outputs))
        for place, seen in taps(w.shape[2:], strides, dilations, outputs):
            for left, right, out in groups_of(groups, padded, w, made):
                out[:] += np.einsum("nc...,oc->no...", left[seen], right[place])
        return (made if b is None else made + b.reshape(-1, *(1,) * axes),)


class ConvTranspose(OpRun):
    """ONNX's own implementation ignores groups."""

    def _run(self, x: Floats, w: Floats, b: Floats | None = None, **given: Any) -> tuple[Floats]:
        axes = w.ndim - 2
        strides, dilations = (given.get(name) or (1,) * axes for name in ("strides", "dilations"))
        extra = given.get("output_padding") or (0,) * axes
        pads, groups = given.get("pads") or (0,) * 2 * axes, given.get("group") or 1
        whole = tuple(
            (x.shape[2 + axis] - 1) * strides[axis] + (w.shape[2 + axis] - 1) * dilations[axis] + 1 + extra[axis]
            for axis in range(axes)
        )
        made = np.zeros((len(x), w.shape[1] * groups, *whole))
        for place, seen in taps(w.shape[2:], strides, dilations, x.shape[2:]):
            for left, right, out in groups_of(groups, x, w, made):
                out[seen] += np.einsum("no...,oc->nc...", left, right[place])
        for axis in range(axes):
            made = made.take(range(pads[axis], whole[axis] - pads[axis + axes]), axis=2 + axis)
        return (made if b is None else made + b.reshape(-1, *(1,) * axes),)


class BatchNormalization(OpRun):
    """ONNX's own implementation mixes in the batch's statistics for opsets below 14."""

    def _run(self, x: Floats, *vectors: Floats, epsilon: float = 1e-5, **given: Any) -> tuple[Floats]:
        scale, shift, mean, variance = (vector.reshape(-1, *(1,) * (x.ndim - 2)) for vector in vectors)
        return (scale * (x - mean) / np.sqrt(variance + epsilon) + shift,)


class DeformConv(OpRun):
    """ONNX's own implementation, up to 1.19, adds to uninitialised memory. Over two axes."""

    def _run(
        self, x: Floats, w: Floats, offsets: Floats, b: Floats | None = None, masks: Floats | None = None, **given: Any
    ) -> tuple[Floats]:
        strides, dilations = (given.get(name) or (1, 1) for name in ("strides", "dilations"))
        pads, groups, parts = given.get("pads") or (0, 0), given.get("group") or 1, given.get("offset_group") or 1
        kernel, outputs, maps = w.shape[2:], offsets.shape[2:], np.split(x, parts, 1)
        moves = offsets.reshape(len(x), parts, *kernel, 2, *outputs)
        shares = np.ones(moves.shape[:4] + outputs) if masks is None else masks.reshape(moves.shape[:4] + outputs)
        made = np.zeros((len(x), len(w), *outputs))
        for place in np.ndindex(*kernel):
            begins = [
                index * strides[axis] + place[axis] * dilations[axis] - pads[axis]
                for axis, index in enumerate(np.indices(outputs))
            ]
            by_image = moves[:, :, place[0], place[1]]
            by_share = shares[:, :, place[0], place[1]]
            read = np.concatenate(
                [
                    np.stack(
                        [
                            between(image, *(begins + by_image[at, part])) * by_share[at, part]
                            for at, image in enumerate(images)
                        ]
                    )
                    for part, images in enumerate(maps)
                ],
                axis=1,
            )
            for left, right, out in groups_of(groups, read, w[:, :, place[0], place[1]], made):
                out[:] += np.einsum("nc...,oc->no...", left, right)
        return (made if b is None else made + b.reshape(-1, 1, 1),)


def between(maps: Floats, down: Floats, across: Floats) -> Floats:
    """Bilinear interpolation of maps [C, H, W] at fractional positions; 0 outside."""
    wide = np.pad(maps, ((0, 0), (1, 1), (1, 1)))
    total = np.zeros((len(maps), *down.shape))
    for below in itertools.product((0, 1), repeat=2):
        elements = [np.floor(at) + step for at, step in zip((down, across), below, strict=True)]
        weight = np.prod([1 - np.abs(at - one) for at, one in zip((down, across), elements, strict=True)], axis=0)
        row, column = (
            np.clip(one + 1, 0, size - 1).astype(int) for one, size in zip(elements, wide.shape[1:], strict=True)
        )
        total += weight * wide[:, row, column]
    return total


class GlobalLpPool(OpRun):
    """ONNX has no implementation."""

    def _run(self, x: Floats, p: int = 2) -> tuple[Floats]:
        return ((np.abs(x) ** p).sum(axis=tuple(range(2, x.ndim)), keepdims=True) ** (1 / p),)


class MeanVarianceNormalization(OpRun):
    """ONNX's own implementation adds a float32 constant."""

    def _run(self, x: Floats, axes: tuple[int, ...] = (0, 2, 3)) -> tuple[Floats]:
        deviation = x.std(axis=tuple(axes), keepdims=True)
        return ((x - x.mean(axis=tuple(axes), keepdims=True)) / (deviation + 1e-9),)


class GridSample(OpRun):
    """By cubics, over any number of axes; ONNX's own implementation rounds weights to float32."""

    def _run(
        self, x: Floats, grid: Floats, align_corners: int = 0, mode: str = "", padding_mode: str = "zeros"
    ) -> tuple[Floats]:
        axes, made = x.ndim - 2, []
        for image, places in zip(x, grid.reshape(len(x), -1, axes)[..., ::-1], strict=True):
            read = [
                cubic_taps(places[:, axis], size, align_corners, padding_mode)
                for axis, size in enumerate(image.shape[1:])
            ]
            total = np.zeros((len(image), len(places)))
            for taps in itertools.product(*(zip(*pair, strict=True) for pair in read)):
                elements = (slice(None), *(element for element, _ in taps))
                total += image[elements] * math.prod(weight for _, weight in taps)
            made.append(total.reshape(len(image), *grid.shape[1:-1]))
        return (np.stack(made),)


def cubic_taps(places: Floats, size: int, align_corners: int, padding: str) -> tuple[list[Any], list[Floats]]:
    """The four elements read at each place, from coordinates in -1 .. 1, and their weights, 0 if they are outside."""
    at = (places + 1) * (size - 1) / 2 if align_corners else ((places + 1) * size - 1) / 2
    elements, weights = [], []
    for step in (-1, 0, 1, 2):
        element = np.floor(at) + step
        apart = np.abs(at - element)
        near = 1.25 * apart**3 - 2.25 * apart**2 + 1
        far = -0.75 * (apart**3 - 5 * apart**2 + 8 * apart - 4)
        if padding == "reflection":
            first, period = (0.0, 2.0 * (size - 1)) if align_corners else (-0.5, 2.0 * size)
            beyond = np.mod(element - first, period)
            element = first + np.minimum(beyond, period - beyond)
        inside = (element >= 0) & (element < size)
        elements.append(element.clip(0, size - 1).astype(int))
        weights.append(np.where(inside | (padding != "zeros"), np.where(apart < 1, near, far), 0))
    return elements, weights


class CumProd(OpRun):
    """Versions of onnx before opset 26 have no implementation."""

    def _run(self, x: Floats, axis: Any, exclusive: int = 0, reverse: int = 0) -> tuple[Floats]:
        lines = np.moveaxis(x, int(axis), 0)[:: -1 if reverse else 1]
        factors = np.concatenate([np.ones_like(lines[:1]), lines[:-1]]) if exclusive else lines
        made: Floats = np.cumprod(factors, axis=0)[:: -1 if reverse else 1]
        return (np.moveaxis(made, 0, int(axis)),)


_NOT_BY_ONNX_RUNTIME = {"STFT", *(kind.__name__ for kind in RECURRENCES)}
"""Version 1.23 reads uninitialised memory in STFT of a complex signal; missing kernels show up only at run time."""


def _is_cubic_volume(graph: Graph, node: Node) -> bool:
    """ONNX Runtime refuses it only when it runs."""
    return (
        node.kind == "GridSample"
        and isinstance(node.op, OnnxOp)
        and ("mode", "cubic") in node.op.attributes
        and len(graph.shape(node.output)) > 4
    )


def evaluator(graph: Graph) -> Callable[[Mapping[str, Array]], dict[str, Any]]:
    """A function that computes the outputs of a graph."""
    model, names = to_onnx(graph), list(graph.outputs)
    own: list[type[OpRun]] = [Erf, Gelu, Conv, ConvTranspose, BatchNormalization, DeformConv, GlobalLpPool]
    own += [MeanVarianceNormalization, CumProd, *RECURRENCES]
    cubic = any(_is_cubic_volume(graph, node) for node in graph.nodes)
    if cubic or any(node.kind in _NOT_BY_ONNX_RUNTIME for node in graph.nodes):
        runs = ReferenceEvaluator(model, new_ops=[*own, GridSample] if cubic else own)
        return lambda inputs: dict(zip(names, runs.run(names, dict(inputs)), strict=True))
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    except Exception as error:  # its class is private, and differs between versions
        if not any(
            reason in str(error)
            for reason in ("NOT_IMPLEMENTED", "Type Error", "not a registered", "max supported", "under development")
        ):
            raise
        reference = ReferenceEvaluator(model, new_ops=own)
        return lambda inputs: dict(zip(names, reference.run(names, dict(inputs)), strict=True))
    return lambda inputs: dict(zip(names, session.run(names, dict(inputs)), strict=True))


def random_floats(graph: Graph, seed: int) -> dict[str, Array]:
    """Float64 values for all float inputs of a graph, none of them near 0."""
    rng = np.random.default_rng(seed)
    return {
        name: np.asarray(rng.uniform(0.2, 0.9, graph.shape(name)) * rng.choice((-1, 1), graph.shape(name)))
        for name in graph.inputs
        if graph.value(name).dtype == "float64"
    }


def check_gradients(
    graph: Graph, inputs: Mapping[str, Array] | None = None, *, rtol: float = 1e-6, frozen_statistics: bool = False
) -> TrainingStep:
    """Assert that the gradient of each float input, along a random direction, equals the difference of the loss.

    Args:
        graph: of float64.
        inputs: values of inputs; random by default.
        rtol: relative error allowed.
        frozen_statistics: as for `Differentiate`.
    """
    wanted = tuple(name for name in graph.inputs if graph.value(name).dtype == "float64")
    step = training_step(graph, Differentiate(wrt=wanted, frozen_statistics=frozen_statistics))
    verify_graph(step.graph)
    rng = np.random.default_rng(1)
    given = {**random_floats(graph, 0), **(inputs or {})}
    missing = [name for name in step.graph.inputs if name not in given]
    given |= {name: np.asarray(rng.standard_normal(step.graph.shape(name))) for name in missing}
    run = evaluator(step.graph)
    made = run(given)
    for name, gradient in step.gradients.items():
        along = STEP * np.asarray(rng.standard_normal(graph.shape(name)))
        direction, base = along / STEP, np.asarray(given[name], np.float64)
        ahead, behind = (
            float(run({**given, name: np.asarray(moved)})[step.loss]) for moved in (base + along, base - along)
        )
        expected, actual = (ahead - behind) / (2 * STEP), float((made[gradient] * direction).sum())
        scale = max(float(np.abs(made[gradient] * direction).sum()), abs(expected), 1e-3)
        assert abs(actual - expected) <= rtol * scale, f"{name}: gradient {actual}, difference {expected}"
    return step


def with_inputs(given: Graph) -> Graph:
    """The graph with parameters as inputs, so that their gradients are also checked."""
    names = parameters(given)
    return given.replace(
        inputs=[*given.inputs, *names],
        constants={name: array for name, array in given.constants.items() if name not in names},
    )


def doubled(graph: Graph) -> Graph:
    """The same graph in float64."""
    floats, code = ("float32", "float16"), {"to": 11}
    return graph.replace(
        nodes=[
            replace(node, op=replace(node.op, attributes=tuple(sorted({**dict(node.op.attributes), **code}.items()))))
            if isinstance(node.op, OnnxOp) and node.kind == "Cast" and graph.value(node.output).dtype in floats
            else node
            for node in graph.nodes
        ],
        values={
            name: replace(value, dtype="float64") if value.dtype in floats else value
            for name, value in graph.values.items()
        },
        constants={
            name: array.astype(np.float64) if array.dtype.name in floats else array
            for name, array in graph.constants.items()
        },
    )


def run_by_reference(graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs by ONNX's reference evaluator."""
    names = list(graph.outputs)
    return dict(zip(names, ReferenceEvaluator(to_onnx(graph)).run(names, dict(inputs)), strict=True))


def check_training_form(
    graph: Graph,
    inputs: Mapping[str, Array] | None = None,
    run: Callable[[Graph, Mapping[str, Array]], dict[str, Array]] = run_in_ort,
) -> TrainingStep:
    """Assert that the loss of a step is that of the model as it runs elsewhere: expansions for training keep the
    values.

    Args:
        graph: of float32.
        inputs: values of inputs; random by default.
        run: runs the model.
    """
    rng = np.random.default_rng(2)
    step = training_step(graph, Differentiate(inputs=True))
    verify_graph(step.graph)
    given: dict[str, Array] = {
        name: rng.standard_normal(step.graph.shape(name)).astype(np.float32) for name in step.graph.inputs
    }
    given |= inputs or {}
    model = run(graph, {name: given[name] for name in graph.inputs})
    terms = [np.asarray(model[name] * np.asarray(given[f"{name}.gradient"], np.float64)) for name in graph.outputs]
    expected, scale = sum(float(term.sum()) for term in terms), sum(float(np.abs(term).sum()) for term in terms)
    assert abs(float(run_in_ort(step.graph, given)[step.loss]) - expected) <= 1e-5 * scale
    return step
