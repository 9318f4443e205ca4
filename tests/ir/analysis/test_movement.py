"""The verdict on each kind of movement, with the bytes that are still copied."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimflow.ir import Builder, Graph, MatMul, Node, OnnxOp, Value
from pimflow.ir.analysis.movement import Movement, movement
from pimflow.ir.analysis.tensor_layout import (
    axis_order,
    dense_strides,
    is_contiguous,
    reshaped_strides,
    same_strides,
    transpose_keeps_bytes,
)
from pimflow.passes import MovementElimination
from pimflow.runtime.memory import plan_memory
from support.graphs import attention

F = 4  # bytes of a float


def annotated(graph: Graph) -> Graph:
    return MovementElimination().run(graph).graph


def last(build: Builder, *outputs: str) -> Movement:
    """The verdict on the last node, in a graph with these outputs (its own output if none are named)."""
    graph = build.graph(*(outputs or (build.nodes[-1].output,)))
    return movement(graph)[build.nodes[-1].name]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(("axis", "start", "stop", "step"), [(2, 1, 4, 1), (1, 0, 2, 1), (3, 2, 5, 1), (2, 0, 6, 2)])
def test_a_slice_is_an_offset_on_any_axis(batch: int, axis: int, start: int, stop: int, step: int) -> None:
    build = Builder()
    build.slice(build.relu(build.input(batch, 4, 6, 5)), axis, start, stop, step)
    assert last(build).free


def test_a_slice_that_leaves_out_channels_between_is_kept() -> None:
    build = Builder()
    build.slice(build.relu(build.input(1, 4, 6, 5)), 1, 0, 4, 2)
    verdict = last(build)
    assert not verdict.free
    assert verdict.bytes == 2 * (2 * 6 * 5) * F
    assert "one element in 2 of the innermost axis" in verdict.reason


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_a_concat_of_results_is_free_on_any_axis(axis: int) -> None:
    build = Builder()
    x = build.input(1, 4, 6, 5)
    build.concat(axis, build.relu(x), build.tanh(x), build.conv(x, 4))
    assert last(build).free


def test_the_same_value_twice_is_copied_once() -> None:
    build = Builder()
    a = build.relu(build.input(1, 4, 6, 5))
    build.concat(1, a, a)
    verdict = last(build)
    assert (verdict.free, verdict.copied, verdict.bytes) == (False, (1,), 2 * 4 * 6 * 5 * F)
    assert "already has another place" in verdict.reason


def test_a_value_in_two_concats_is_copied_for_the_second() -> None:
    build = Builder()
    x = build.input(1, 4, 6, 5)
    a, b, c = build.relu(x), build.tanh(x), build.conv(x, 4)
    first = build.concat(1, a, b)
    second = build.concat(1, a, c)
    verdicts = movement(build.graph(first, second))
    assert verdicts["concat3"].free
    assert (verdicts["concat4"].copied, verdicts["concat4"].bytes) == ((0,), 2 * 4 * 6 * 5 * F)
    assert "neighbours" in verdicts["concat4"].reason


def test_concats_may_share_a_value_where_one_ends_and_the_other_begins() -> None:
    """[a b] and [b c] are one region a b c; then nothing but c can follow [a b]."""
    build = Builder()
    x = build.input(1, 4, 6, 5)
    a, b, c = build.relu(x), build.tanh(x), build.conv(x, 4)
    joined = [build.concat(1, a, b), build.concat(1, b, c)]
    verdicts = movement(build.graph(*joined))
    assert all(verdict.free for verdict in verdicts.values())
    build.concat(1, a, b, a)
    assert last(build, *joined, "concat5_out").copied == (0, 1, 2)


def test_where_inputs_exclude_each_other_the_smaller_one_is_copied() -> None:
    build = Builder()
    x = build.input(1, 4, 6, 5)
    small, large = build.conv(x, 1), build.conv(x, 8)
    other = build.conv(x, 2)
    build.concat(1, other, large)
    build.concat(1, small, large, other)
    verdict = last(build, "concat3_out", "concat4_out")
    assert not verdict.free
    assert verdict.bytes < 2 * 11 * 6 * 5 * F


def test_dense_blocks_grow_one_region() -> None:
    build = Builder()
    features = [build.relu(build.input(1, 4, 6, 5))]
    for _ in range(6):
        features.append(build.conv(build.concat(1, *features) if len(features) > 1 else features[0], 3))
    graph = build.graph(build.concat(1, *features))
    assert all(verdict.free for verdict in movement(graph).values())
    plan = plan_memory(graph)
    assert len({plan.places[name].region for name in features}) == 1


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_pieces_of_one_value_are_free_only_in_their_own_order(order: tuple[int, int]) -> None:
    build = Builder()
    a = build.relu(build.input(1, 4, 6, 5))
    pieces = [build.slice(a, 2, 0, 2), build.slice(a, 2, 2, 6)]
    build.concat(2, *(pieces[index] for index in order))
    assert last(build).free == (order == (0, 1))


@pytest.mark.parametrize("below", ["value", "padding", "nothing"])
def test_regions_that_would_overlap_away_from_the_concat_are_not_joined(below: str) -> None:
    """s is below b, and q is left of s: the place below a, next to s, must be empty for q."""
    build = Builder()
    x = build.input(1, 4, 6, 5)
    a, z, b, s, q = build.relu(x), build.tanh(x), build.conv(x, 4), build.conv(x, 4), build.conv(x, 4)
    others = [build.concat(1, q, s), build.concat(2, b, s)]
    if below == "value":
        others.append(build.concat(2, a, z))
    if below == "padding":
        others.append(build.pad(a, (0, 0, 0, 0), (0, 0, 6, 0)))
    joined = build.concat(1, a, b)
    verdict = last(build, joined, *others)
    assert verdict.free == (below == "nothing")
    assert verdict.free or "neighbours" in verdict.reason


def test_halo_rows_shared_by_neighbours_are_free() -> None:
    """Stage outputs s0, s1, s2; the readers need overlapping runs of rows across them."""
    build = Builder()
    x = build.input(1, 4, 6, 5)
    stages = [build.relu(x), build.tanh(x), build.conv(x, 4)]
    first = build.concat(2, build.slice(stages[0], 2, 3, 6), stages[1])
    second = build.concat(2, build.slice(stages[1], 2, 4, 6), stages[2])
    whole = build.concat(2, *stages)
    assert all(verdict.free for verdict in movement(build.graph(first, second, whole)).values())


def test_inputs_and_constants_are_copied_into_a_concat() -> None:
    build = Builder()
    x = build.input(1, 4, 6, 5)
    build.concat(1, x, build.relu(x), build.weights(1, 2, 6, 5))
    verdict = last(build)
    assert verdict.copied == (0, 2)
    assert verdict.bytes == 2 * (4 + 2) * 6 * 5 * F
    assert "made outside" in verdict.reason
    assert "constant" in verdict.reason


def test_a_pad_is_space_reserved_around_its_input() -> None:
    build = Builder()
    a = build.relu(build.input(1, 4, 6, 5))
    build.pad(a, (0, 0, 1, 2), (0, 0, 0, 3))
    assert last(build).free
    plan = plan_memory(build.graph("pad1_out"))
    (region,) = (region for region in plan.regions if region.filled)
    assert region.shape == (1, 4, 7, 10)
    assert plan.filled_bytes == (7 * 10 - 6 * 5) * 4 * F


@pytest.mark.parametrize(("values", "free"), [((0.0, 0.0), True), ((0.0, 1.0), False), ((1.0, 1.0), True)])
def test_readers_with_different_pads_share_the_largest_margins(values: tuple[float, float], free: bool) -> None:
    build = Builder()
    a = build.relu(build.input(1, 4, 6, 5))
    one = build.pad(a, (0, 0, 1, 1), (0, 0, 1, 1), values[0])
    other = build.pad(a, (0, 0, 2, 0), (0, 0, 3, 2), values[1])
    graph = build.graph(one, other)
    verdict = movement(graph)["pad2"]
    assert verdict.free == free
    if free:
        (region,) = (region for region in plan_memory(graph).regions if region.filled)
        assert region.shape == (1, 4, 6 + 2 + 3, 5 + 1 + 2)
    else:
        assert verdict.bytes == (6 * 5 + 11 * 7) * 4 * F
        assert "holds other data" in verdict.reason


def test_a_pad_inside_a_larger_value_is_kept() -> None:
    build = Builder()
    a = build.relu(build.input(1, 4, 6, 5))
    build.pad(build.slice(a, 2, 2, 4), (0, 0, 1, 0), (0, 0, 1, 0))
    assert "holds other data" in last(build).reason


def test_a_pad_of_the_rows_at_an_edge_is_free() -> None:
    build = Builder()
    a = build.relu(build.input(1, 4, 6, 5))
    build.pad(build.slice(a, 2, 0, 4), (0, 0, 2, 0), (0, 0, 0, 0))
    assert last(build).free


def test_a_padded_value_in_a_concat_along_channels() -> None:
    """The margins of the pad must not be cells of the other operand."""
    build = Builder()
    x = build.input(1, 4, 6, 5)
    a, b = build.relu(x), build.tanh(x)
    padded = build.pad(a, (0, 1, 0, 0), (0, 1, 0, 0))
    joined = build.concat(1, a, b)
    verdicts = movement(build.graph(padded, joined))
    assert verdicts["pad2"].free
    assert not verdicts["concat3"].free


def test_a_pad_of_an_input_is_kept() -> None:
    build = Builder()
    build.pad(build.input(1, 4, 6, 5), (0, 0, 1, 1), (0, 0, 1, 1))
    verdict = last(build)
    assert verdict.bytes == (30 + 56) * 4 * F
    assert "x is made outside" in verdict.reason


@pytest.mark.parametrize(
    ("shape", "new", "free"),
    [
        ((1, 4, 1, 1), (1, 4), True),
        ((2, 4, 1, 1), (2, 4), True),
        ((1, 4, 6, 5), (1, 120), False),
        ((1, 1, 6, 5), (1, 30), True),
        ((1, 4, 6, 5), (1, 4, 30, 1), True),
        ((1, 4, 6, 5), (1, 4, 30), False),
        ((2, 8, 3, 3), (2, 2, 4, 3, 3), False),
        ((2, 6, 4), (12, 4), True),
        ((2, 6, 4), (2, 6, 2, 2), False),
        ((2, 6, 4), (2, 4, 6), True),
        ((4,), (1, 4, 1, 1), True),
        ((), (1, 1), True),
        ((0, 4), (4, 0), True),
    ],
)
def test_a_reshape_is_free_where_nhwc_storage_allows(shape: tuple[int, ...], new: tuple[int, ...], free: bool) -> None:
    build = Builder()
    build.reshape(build.relu(build.input(*shape)), *new)
    assert last(build).free == free
    if not free:
        assert last(build).bytes == 2 * int(np.prod(shape)) * F


def test_a_part_is_reshaped_as_far_as_strides_go() -> None:
    """For half of the channels of six tokens, splitting them into heads is a view, flattening them is not."""
    build = Builder()
    half = build.slice(build.relu(build.input(1, 6, 8)), 2, 0, 4)
    heads = build.reshape(half, 1, 6, 2, 2)
    build.op(MatMul(), build.transpose(heads, 0, 2, 1, 3), build.weights(1, 1, 2, 3))
    assert all(verdict.free for verdict in movement(build.graph(build.nodes[-1].output)).values())
    build.reshape(half, 6 * 4)
    assert not last(build).free


def test_a_viewed_part_is_not_spread_by_a_later_concat() -> None:
    build = Builder()
    x = build.relu(build.input(1, 6, 8))
    heads = build.transpose(build.reshape(build.slice(x, 2, 0, 4), 1, 6, 2, 2), 0, 2, 1, 3)
    product = build.op(MatMul(), heads, build.weights(1, 1, 2, 3))
    wider = build.concat(2, x, build.tanh(x))
    graph = build.graph(product, build.relu(wider))
    assert [graph.node(name).kind for name, verdict in movement(graph).items() if not verdict.free] == ["Concat"]


def test_a_reshaped_value_is_not_spread_by_a_later_concat() -> None:
    build = Builder()
    x = build.input(6, 4)
    a = build.relu(x)
    flat = build.reshape(a, 24)
    joined = build.concat(1, a, build.tanh(x))
    graph = build.graph(flat, joined)
    verdicts = movement(graph)
    assert verdicts["reshape1"].free
    assert verdicts["concat3"].copied == (0,)
    assert "another shape" in verdicts["concat3"].reason


def test_a_reshaped_value_stays_dense_inside_a_concat_too() -> None:
    build = Builder()
    x = build.input(6, 4)
    a = build.relu(x)
    flat = build.reshape(a, 24)
    rows = build.concat(0, a, build.tanh(x))
    wide = build.concat(1, rows, build.relu(build.input(12, 3)))
    verdicts = movement(build.graph(flat, wide))
    assert verdicts["concat3"].free
    assert verdicts[build.nodes[-1].name].copied == (0,)


@pytest.mark.parametrize(
    ("shape", "perm", "free"),
    [
        ((3, 1, 5), (1, 0, 2), True),
        ((3, 2, 5), (1, 0, 2), False),
        ((1, 1, 6, 5), (0, 2, 3, 1), False),
        ((1, 6, 1, 1), (0, 2, 3, 1), True),
        ((2, 3, 4, 5), (0, 1, 2, 3), True),
    ],
)
def test_a_transpose_is_free_where_it_renames_axes(shape: tuple[int, ...], perm: tuple[int, ...], free: bool) -> None:
    build = Builder()
    build.transpose(build.relu(build.input(*shape)), *perm)
    assert last(build).free == free


def test_a_channel_shuffle_is_one_copy() -> None:
    build = Builder()
    a = build.conv(build.input(1, 3, 4, 4), 6)
    groups = build.reshape(a, 1, 2, 3, 4, 4)
    swapped = build.transpose(groups, 0, 2, 1, 3, 4)
    graph = build.graph(build.conv(build.reshape(swapped, 1, 6, 4, 4), 2))
    verdicts = movement(graph)
    assert [verdicts[name].free for name in ("reshape1", "transpose2", "reshape3")] == [True, True, False]
    assert verdicts["reshape3"].bytes == 2 * 6 * 16 * F


def shuffled(build: Builder, x: str) -> str:
    """The channels of an image of 6 and 4 x 4, as two interleaved groups."""
    turned = build.transpose(build.reshape(x, 1, 2, 3, 4, 4), 0, 2, 1, 3, 4)
    return build.reshape(turned, 1, 6, 4, 4)


def rolled(build: Builder, x: str, axis: int, size: int) -> str:
    return build.concat(axis, build.slice(x, axis, 1, size), build.slice(x, axis, 0, 1))


def kept_bytes(graph: Graph) -> list[int]:
    """Bytes of the remaining copies, in the graph's order, as decided and as planned in the arena."""
    found = [verdict.bytes for verdict in movement(graph).values() if not verdict.free]
    assert found == [verdict.bytes for verdict in plan_memory(annotated(graph)).kept.values()]
    return found


def test_a_concat_whose_channels_are_shuffled_is_one_copy_with_it() -> None:
    build = Builder()
    left, right = build.split(build.conv(build.input(1, 3, 4, 4), 6), 1, 3, 3)
    joined = build.concat(1, left, build.conv(right, 3))
    graph = build.graph(build.conv(shuffled(build, joined), 2))
    producer = graph.producer(joined)
    assert producer is not None
    assert [name for name, verdict in movement(graph).items() if verdict.composed] == [producer.name]
    assert kept_bytes(graph) == [2 * 6 * 16 * F]
    plan = plan_memory(graph)
    assert plan.composed[joined] == producer.inputs
    assert joined not in {*plan.places, *plan.outside}


def test_a_roll_and_a_cut_into_windows_are_one_copy() -> None:
    """Shifted windows: two Concats, each of two slices of the previous one."""
    build = Builder()
    x = build.conv(build.input(1, 3, 4, 4), 6)
    both = rolled(build, rolled(build, x, 2, 4), 3, 4)
    windows = build.transpose(build.reshape(both, 1, 6, 2, 2, 2, 2), 0, 2, 4, 1, 3, 5)
    graph = build.graph(build.relu(build.reshape(windows, 4, 6, 2, 2)))
    assert kept_bytes(graph) == [2 * 6 * 16 * F]
    assert set(plan_memory(graph).composed.values()) == {("slice1_out", "slice2_out")}


def test_mostly_free_movements_are_not_composed() -> None:
    build = Builder()
    x = build.relu(build.input(1, 3, 4, 5))
    graph = build.graph(build.conv(rolled(build, rolled(build, x, 2, 4), 3, 5), 2))
    assert kept_bytes(graph) == [2 * 3 * 5 * F, 2 * 3 * 4 * F]


@pytest.mark.parametrize("reader", ["a kernel", "the caller", "a Concat in place", "nobody"])
def test_a_copy_with_other_readers_stays(reader: str) -> None:
    build = Builder()
    x = build.relu(build.input(1, 3, 4, 4))
    twice = build.concat(1, x, x)
    outputs = [build.conv(x, 2)]
    if reader != "nobody":
        outputs.append(build.relu(build.slice(twice, 1, 0, 6, 2)))
    if reader == "a kernel":
        outputs.append(build.tanh(twice))
    elif reader == "a Concat in place":
        outputs.append(build.conv(build.concat(1, twice, build.conv(x, 2)), 2))
    elif reader == "the caller":
        outputs.append(twice)
    graph = build.graph(*outputs)
    assert not any(verdict.composed for verdict in movement(graph).values())
    assert kept_bytes(graph)[:2] == [2 * 3 * 16 * F, *([2 * 3 * 16 * F] if reader != "nobody" else [])]


@pytest.mark.parametrize("fused", [False, True])
def test_attention_reads_and_writes_its_heads_with_strides(fused: bool) -> None:
    graph = attention(fused=fused)
    assert all(verdict.free for verdict in movement(graph).values())
    assert movement(annotated(graph)) == movement(graph)
    assert not plan_memory(annotated(graph)).kept


def test_a_transposed_view_is_kept_for_a_reader_that_needs_its_order() -> None:
    build = Builder()
    turned = build.transpose(build.relu(build.input(2, 4, 6)), 0, 2, 1)
    product = build.op(MatMul(), turned, build.weights(4, 3))
    assert movement(build.graph(product))["transpose1"].free
    assert not movement(build.graph(product, build.tanh(turned)))["transpose1"].free
    assert not movement(build.graph(product, turned))["transpose1"].free


def test_a_product_reads_the_transpose_of_whatever_it_reads_in_order() -> None:
    """Such as probabilities [texts, heads, rows, keys], for the gradient of the values of attention."""
    build = Builder()
    shares, values = build.relu(build.input(2, 3, 4, 5)), build.relu(build.input(2, 3, 4, 6))
    turned = build.transpose(shares, 0, 1, 3, 2)
    product = build.op(MatMul(), turned, values)
    assert movement(build.graph(product))["transpose2"].free
    assert not movement(build.graph(product, build.tanh(turned)))["transpose2"].free
    moved = build.transpose(values, 2, 1, 0, 3)
    assert not movement(build.graph(build.op(MatMul(), moved, build.weights(6, 2))))["transpose5"].free


@pytest.mark.parametrize(("perm", "free"), [((1, 0, 2), True), ((0, 2, 1), False)])
def test_a_product_writes_its_rows_where_a_transpose_wants_them(perm: tuple[int, ...], free: bool) -> None:
    """Rows of matrices are permuted, but not the elements of rows."""
    build = Builder()
    product = build.matmul(build.relu(build.input(2, 3, 5)), 8)
    turned = build.tanh(build.transpose(product, *perm))
    transpose = build.nodes[-2].name
    assert movement(build.graph(turned))[transpose].free == free
    assert not movement(build.graph(turned, product))[transpose].free, "as the caller reads it in order"


def test_identity_and_split_are_free() -> None:
    build = Builder()
    a = build.onnx("Identity", build.relu(build.input(1, 6, 4, 4)))
    parts = build.split(a, 1, 2, 3, 1)
    graph = build.graph(*parts)
    assert all(verdict.free for verdict in movement(graph).values())
    places = plan_memory(graph).places
    assert [places[name].offset - places[a].offset for name in parts] == [0, 2 * F, 5 * F]


def test_shapes_that_are_not_static_are_kept() -> None:
    value = Value("x", None, "float32")
    nodes = (Node(OnnxOp("Identity"), ("x",), ("y",), "n"),)
    graph = Graph("g", ("x",), ("y",), nodes, {"x": value, "y": Value("y", None)}, {})
    assert movement(graph)["n"] == Movement(False, 0, "its shape or element type is not static")


def test_annotation_carries_verdicts_through_tags() -> None:
    build = Builder()
    x = build.input(1, 4, 6, 5)
    a = build.relu(x)
    joined = build.concat(1, a, x, a)
    graph = build.graph(build.reshape(joined, 1, 360), build.slice(joined, 2, 0, 1))
    once = annotated(graph)
    assert {node.name: node.placement.movement is not None for node in once.nodes} == {
        "relu0": False, "concat1": True, "reshape2": True, "slice3": True
    }  # fmt: skip
    assert movement(once) == movement(graph)
    assert movement(annotated(once)) == movement(graph)


def test_annotation_drops_outdated_verdicts() -> None:
    """The copies that read a composed value have been removed, so the value must be written again."""
    build = Builder()
    x = build.conv(build.input(1, 3, 4, 4), 3)
    joined = build.concat(1, x, x)
    once = annotated(build.graph(build.relu(shuffled(build, joined))))
    assert any(verdict.composed for verdict in movement(once).values())
    kept = [node for node in once.nodes if node.kind not in ("Reshape", "Transpose")]
    (relu,) = (node for node in kept if node.kind == "Relu")
    direct = once.replace(nodes=[replace(node, inputs=(joined,)) if node is relu else node for node in kept])
    assert [(verdict.composed, verdict.copied) for verdict in movement(annotated(direct)).values()] == [(False, (1,))]


shapes = st.lists(st.integers(1, 4), min_size=1, max_size=5).map(tuple)


def in_memory(array: np.ndarray) -> list[int]:
    """The elements in memory order."""
    elements: list[int] = array.transpose(axis_order(array.ndim)).ravel().tolist()
    return elements


@given(shapes, st.randoms(use_true_random=False))
@settings(max_examples=300)
def test_keeping_bytes_means_the_same_order_in_memory(shape: tuple[int, ...], random: Random) -> None:
    count = int(np.prod(shape))
    array = np.arange(count).reshape(shape)
    for new in _factorings(count):
        strides = reshaped_strides(shape, dense_strides(shape), new)
        kept = strides is not None and same_strides(new, strides, dense_strides(new))
        assert kept == (in_memory(array) == in_memory(array.reshape(new)))
    perm = list(range(len(shape)))
    random.shuffle(perm)
    assert transpose_keeps_bytes(shape, perm) == (in_memory(array) == in_memory(array.transpose(perm)))


def _factorings(count: int) -> list[tuple[int, ...]]:
    divisors = [d for d in range(1, count + 1) if count % d == 0]
    pairs = [(a, count // a) for a in divisors]
    quads = [(1, a, b // c, c) for a, b in pairs for c in divisors if b % c == 0]
    return [(count,), *pairs, *quads, *((a, b, 1) for a, b in pairs)][:60]


@given(shapes, st.data())
@settings(max_examples=100)
def test_contiguity_matches_numpy(shape: tuple[int, ...], data: st.DataObject) -> None:
    extents = tuple(dim + data.draw(st.sampled_from([0, 0, 1])) for dim in shape)
    addresses = np.arange(int(np.prod(extents))).reshape([extents[axis] for axis in axis_order(len(extents))])
    box = addresses[tuple(slice(0, shape[axis]) for axis in axis_order(len(shape)))].ravel()
    assert is_contiguous(shape, extents) == bool((np.diff(box) == 1).all())
    strides = dense_strides(extents)
    index = tuple(dim - 1 for dim in shape)
    in_order = tuple(index[axis] for axis in axis_order(len(shape)))
    assert addresses[in_order] == sum(i * s for i, s in zip(index, strides, strict=True))
