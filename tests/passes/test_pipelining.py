"""Pipelines: values, halos, dependencies, refusals; and random graphs under random plans."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimflow.errors import PlanError
from pimflow.ir import (
    Builder,
    Concat,
    Conv2d,
    Decision,
    Elementwise,
    Gemm,
    Graph,
    MatMul,
    Node,
    OnDevice,
    Pipeline,
    Pool2d,
    Slice,
    SplitRows,
)
from pimflow.ir.analysis.regions import node_rows, pipeline_refusal
from pimflow.passes import Pipelining, why_not
from pimflow.passes.apply_plan import passes_of
from pimflow.passes.rowwise.parts import Layout
from support.passes import applied
from support.values import assert_same_values


def pipeline(run: Sequence[str], devices: str, rows: Sequence[int], bottom_first: bool = False) -> Pipeline:
    named = tuple("pim" if device == "p" else "gpu" for device in devices)
    return Pipeline(tuple(run), named, tuple(rows), "newton++", bottom_first)


def divided(
    run: Sequence[str], devices: str, rows: Sequence[int], host_rows: Sequence[Sequence[int] | None]
) -> Pipeline:
    counts = tuple(tuple(of_node or ()) for of_node in host_rows)
    return replace(pipeline(run, devices, rows), host_rows=counts)


def ancestors(graph: Graph, node: Node) -> list[Node]:
    """All nodes that a node waits for, directly or indirectly."""
    found: dict[str, Node] = {}
    waiting = [node]
    while waiting:
        for name in waiting.pop().inputs:
            producer = graph.producer(name)
            if producer is not None and producer.name not in found:
                found[producer.name] = producer
                waiting.append(producer)
    return list(found.values())


def assert_stages_wait_for_no_later_stage(graph: Graph) -> None:
    for node in graph.nodes:
        stage = node.placement.stage
        if stage is None:
            continue
        for other in ancestors(graph, node):
            later = other.placement.region == node.placement.region and (other.placement.stage or 0) > stage
            assert not later, f"{node.name} waits for {other.name}"


def assert_nothing_is_computed_twice(before: Graph, after: Graph) -> None:
    rows: dict[str, int] = {}
    for node in after.nodes:
        if node.placement.origin and not isinstance(node.op, Slice | Concat):
            rows[node.placement.origin] = rows.get(node.placement.origin, 0) + after.shape(node.output)[-2]
    for origin, made in rows.items():
        assert made <= before.shape(before.node(origin).output)[-2], f"{origin} computes rows twice"


def mobile_block(batch: int = 1, rows: int = 14, stride: int = 1) -> Graph:
    """1x1 -> clip -> depthwise -> clip -> 1x1, and a residual Add if the stride allows it."""
    build = Builder()
    x = build.input(batch, 4, rows, 6)
    out = build.clip(build.conv(x, 8, name="expand"), name="clip1")
    out = build.clip(build.depthwise(out, 3, stride, name="dw"), name="clip2")
    out = build.conv(out, 4, name="project")
    return build.graph(build.add(out, x, name="add") if stride == 1 else out)


BLOCK = ("expand", "clip1", "dw", "clip2", "project")
PATTERNS = [
    (BLOCK[:4], "pggg"),  # 1x1 -> depthwise, PIM first
    (BLOCK[2:], "ggp"),  # depthwise -> 1x1, GPU first
    (BLOCK, "pgggp"),  # 1x1 -> depthwise -> 1x1
]


@pytest.mark.parametrize(("run", "devices"), PATTERNS)
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("bottom_first", [False, True])
@pytest.mark.parametrize("batch", [1, 2])
def test_the_published_patterns(run: Sequence[str], devices: str, stride: int, bottom_first: bool, batch: int) -> None:
    graph = mobile_block(batch, 17, stride)
    rows = graph.shape(graph.node(run[-1]).output)[2]
    decision = pipeline(run, devices, (rows - rows // 2, rows // 2), bottom_first)
    assert pipeline_refusal(graph, run) is None
    names = [node.name for node in graph.nodes]
    first = names.index(run[0])
    before = [OnDevice(name, "gpu") for name in names[:first]]
    after = [OnDevice(name, "gpu") for name in names[first + len(run) :]]
    rewritten = applied(graph, *before, decision, *after)
    assert_same_values(graph, rewritten)
    assert_stages_wait_for_no_later_stage(rewritten)
    assert_nothing_is_computed_twice(graph, rewritten)
    made = [node for node in rewritten.nodes if node.placement.origin == run[0] and not isinstance(node.op, Slice)]
    assert [node.placement.stage for node in made] == [0, 1]
    assert {node.device for node in made} == {"pim" if devices[0] == "p" else "gpu"}


def test_rows_of_every_stage() -> None:
    graph = mobile_block(rows=14)
    rewritten = applied(graph, pipeline((*BLOCK, "add"), "pgggpg", (5, 6, 3)))
    rows = {name: [graph_rows(rewritten, f"{name}_s{stage}") for stage in range(3)] for name in (*BLOCK, "add")}
    assert rows["add"] == rows["project"] == rows["clip2"] == rows["dw"] == [5, 6, 3]
    assert rows["clip1"] == rows["expand"] == [6, 6, 2], "one row of halo, computed by the earlier stage"
    assert_same_values(graph, rewritten)


def test_rows_of_every_stage_bottom_first() -> None:
    graph = mobile_block(rows=14)
    rewritten = applied(graph, pipeline((*BLOCK, "add"), "pgggpg", (5, 6, 3), bottom_first=True))
    assert [graph_rows(rewritten, f"expand_s{stage}") for stage in range(3)] == [6, 6, 2]
    # The first stage computes the bottom rows.
    source = rewritten.producer(rewritten.node("expand_s0").inputs[0])
    assert source is not None
    assert source.op == Slice(2, 8, 14)
    assert_same_values(graph, rewritten)


def graph_rows(graph: Graph, name: str) -> int:
    return graph.shape(graph.node(name).output)[2]


def test_stages_of_pointwise_nodes_are_independent() -> None:
    build = Builder()
    x = build.conv(build.input(1, 4, 9, 5), 4, name="a")
    graph = build.graph(build.conv(build.relu(x, name="b"), 4, name="c"))
    rewritten = applied(graph, pipeline("abc", "pgp", (3, 3, 3)))
    for stage in range(3):
        waits = {node.name for node in ancestors(rewritten, rewritten.node(f"c_s{stage}"))}
        assert {name for name in waits if not name.startswith("slice")} == {f"a_s{stage}", f"b_s{stage}"}
    assert sum(isinstance(node.op, Concat) for node in rewritten.nodes) == 1


def test_only_the_parts_that_hold_the_rows_are_joined() -> None:
    build = Builder()
    x = build.conv(build.input(1, 4, 20, 5), 4, name="a")
    graph = build.graph(build.depthwise(x, name="b"))
    rewritten = applied(graph, pipeline("ab", "pg", (5, 5, 5, 5)))
    waits = {node.name for node in ancestors(rewritten, rewritten.node("b_s3")) if node.placement.origin == "a"}
    assert {name for name in waits if not name.startswith("slice")} == {"a_s2", "a_s3"}
    assert_same_values(graph, rewritten)


def test_values_that_leave_in_the_middle_are_whole_again() -> None:
    build = Builder()
    x = build.clip(build.conv(build.input(1, 4, 9, 5), 4, name="a"), name="b")
    last = build.conv(x, 3, 1, 2, name="c")  # leaves the last row of b unread
    graph = build.graph(last, build.global_average(x, name="pooled"))
    rewritten = applied(graph, pipeline("abc", "pgg", (2, 3)), OnDevice("pooled", "gpu"))
    assert_same_values(graph, rewritten)
    assert_same_values(graph, applied(graph, pipeline("abc", "pgg", (2, 3), True), OnDevice("pooled", "gpu")))
    assert_stages_wait_for_no_later_stage(rewritten)


def test_rows_that_nobody_reads_are_not_made() -> None:
    build = Builder()
    x = build.conv(build.input(1, 4, 12, 5), 4, name="a")
    graph = build.graph(build.conv(x, 3, 1, 3, name="b"))  # reads rows 0, 3, 6, 9
    rewritten = applied(graph, pipeline("ab", "pg", (2, 2)))
    assert [graph_rows(rewritten, f"a_s{stage}") for stage in range(2)] == [4, 6]
    assert_same_values(graph, rewritten)


def test_a_node_that_an_early_stage_completes_has_no_later_part() -> None:
    build = Builder()
    x = build.conv(build.input(1, 4, 6, 6), 4, name="a")
    graph = build.graph(build.conv(x, 4, 7, 1, 3, name="b"))
    rewritten = applied(graph, pipeline("ab", "pg", (3, 3)))
    assert [node.name for node in rewritten.nodes if node.placement.origin == "a"] == ["a_s0"]
    assert_same_values(graph, rewritten)


def test_residuals_and_pools_inside_the_run() -> None:
    build = Builder()
    x = build.input(2, 4, 19, 9)
    a = build.relu(build.conv(x, 4, 3, 1, 1, name="a"), name="b")
    c = build.conv(build.relu(build.conv(a, 4, 3, 1, 1, name="c"), name="d"), 4, 1, name="e")
    f = build.add(c, a, name="f")
    g = build.op(Pool2d("max", (3, 3), (2, 2), (1, 1, 1, 1)), f, name="g")
    h = build.concat(1, g, build.sigmoid(g, name="s"), name="h")
    graph = build.graph(build.conv(h, 4, 3, 2, (1, 0, 0, 1), name="i"))
    run = ("a", "b", "c", "d", "e", "f", "g", "s", "h", "i")
    assert pipeline_refusal(graph, run) is None
    for bottom_first in (False, True):
        rewritten = applied(graph, pipeline(run, "pgpgpgggg" + "p", (1, 3, 1), bottom_first))
        assert_same_values(graph, rewritten)
        assert_stages_wait_for_no_later_stage(rewritten)
        assert_nothing_is_computed_twice(graph, rewritten)


def test_matrices_can_be_pipelined() -> None:
    build = Builder()
    x = build.input(2, 7, 4)
    out = build.add(build.matmul(x, 8, name="up"), build.weights(8), name="bias")
    out = build.op(Elementwise("Tanh"), out, name="act")
    graph = build.graph(build.matmul(out, 4, name="down"))
    rewritten = applied(graph, pipeline(("up", "bias", "act", "down"), "pggp", (3, 4)))
    assert_same_values(graph, rewritten)
    build = Builder()
    out = build.gemm(build.input(9, 4), 6, (9, 6), name="up")
    graph = build.graph(build.gemm(out, 3, (3,), name="down"))
    assert_same_values(graph, applied(graph, pipeline(("up", "down"), "gp", (4, 5), True)))


def test_fusion_tags_point_to_the_stages_own_part() -> None:
    graph = mobile_block()
    clip = graph.node("clip1").placed(fused_into="expand")
    graph = graph.replace(nodes=[clip if node.name == "clip1" else node for node in graph.nodes])
    rewritten = applied(graph, pipeline(BLOCK, "pgggp", (7, 7)), OnDevice("add", "gpu"))
    assert [rewritten.node(f"clip1_s{k}").placement.fused_into for k in range(2)] == ["expand_s0", "expand_s1"]
    assert rewritten.node("expand_s0").placement.choice == "newton++"
    assert rewritten.node("dw_s0").placement.choice is None


def test_any_kernel_of_a_run_may_leave_the_host() -> None:
    graph = mobile_block()
    rewritten = applied(
        graph, pipeline(("expand", "clip1"), "gp", (7, 7)), *(OnDevice(name, "gpu") for name in (*BLOCK[2:], "add"))
    )
    halves = [node for node in rewritten.nodes if node.placement.origin == "clip1" and node.op.is_elementwise]
    assert [node.device for node in halves] == ["pim", "pim"]
    assert_same_values(graph, rewritten)


@pytest.mark.parametrize("devices", ["pgg", "gpg", "ggp", "pgp"])
def test_branches_are_cut_into_stages_together(devices: str) -> None:
    build = Builder()
    x = build.input(2, 4, 12, 5)
    main = build.conv(build.conv(x, 8, 3, 2, 1, name="first"), 8, 3, 1, 1, name="second")
    other = build.conv(x, 8, 1, 2, name="other")
    graph = build.graph(build.relu(build.add(main, other, name="sum"), name="last"))
    run = ("first", "second", "other", "sum")
    assert pipeline_refusal(graph, run) is None
    rewritten = applied(graph, pipeline(run, devices + "g", (2, 1, 3)), OnDevice("last", "gpu"))
    assert_same_values(graph, rewritten)
    assert_stages_wait_for_no_later_stage(rewritten)
    assert_nothing_is_computed_twice(graph, rewritten)
    stages = [node.placement.stage for node in rewritten.nodes if node.placement.origin == "other"]
    assert set(stages) == {0, 1, 2}


@pytest.mark.parametrize(
    ("decision", "message"),
    [
        (pipeline(("expand",), "p", (7, 7)), "two nodes"),
        (pipeline(("expand", "clip1"), "pg", (14,)), "two stages"),
        (divided(("expand", "clip1"), "pg", (14,), (None, None)), "two stages"),
        (divided(("expand",), "p", (14,), ([7],)), "two nodes"),
        (divided(("expand", "clip1"), "pg", (14,), ([7],)), "host_rows has 1 entries for 2 nodes"),
        (divided(("expand", "clip1"), "pg", (14,), (None, [7])), "clip1: its rows are divided, but"),
        (divided(("expand", "clip1"), "pg", (7, 7), ([7], None)), "expand: host_rows has 1 entries for 2 stages"),
        (divided(BLOCK, "pgggp", (7, 7), ([9, 0], None, None, None, None)), "expand: 9 rows on the host of the 8 that"),
        (divided(BLOCK, "pgggp", (7, 7), ([-1, 0], None, None, None, None)), "expand: -1 rows on the host of the 8"),
        (pipeline(("expand", "clip1"), "p", (7, 7)), "1 devices for 2 nodes"),
        (pipeline(("expand", "clip1"), "pg", (7, 6)), "do not add up to the 14 rows"),
        (pipeline(("expand", "clip1"), "pg", (0, 14)), "do not add up to the 14 rows"),
        (pipeline(("expand", "dw"), "pg", (7, 7)), "expand: is not read within the run"),
    ],
)
def test_impossible_pipelines_are_refused(decision: Pipeline, message: str) -> None:
    refusal = why_not(mobile_block(), decision)
    assert refusal is not None
    assert message in refusal.reason


def two_windows() -> Graph:
    """3x3 -> relu, fused -> 3x3."""
    build = Builder()
    first = build.conv(build.input(1, 4, 14, 6), 8, 3, 1, 1, name="first")
    graph = build.graph(build.conv(build.relu(first, name="act"), 8, 3, 1, 1, name="second"))
    fused = [node.placed(fused_into="first") if node.name == "act" else node for node in graph.nodes]
    return graph.replace(nodes=fused)


TWO_WINDOWS = ("first", "act", "second")


def test_divided_neighbours_wait_only_for_the_rows_that_they_read() -> None:
    graph = two_windows()
    rewritten = applied(graph, divided(TWO_WINDOWS, "pgp", (14,), ([8], None, [7])))
    assert_same_values(graph, rewritten)
    parts = {node.name: node for node in rewritten.nodes if node.op.is_contraction or node.op.is_elementwise}
    assert {name: (node.device, graph_rows(rewritten, name)) for name, node in parts.items()} == {
        "first_s0_gpu": ("gpu", 8),
        "first_s0_pim": ("pim", 6),
        "act_s0_gpu": ("gpu", 8),
        "act_s0_pim": ("gpu", 6),
        "second_s0_gpu": ("gpu", 7),
        "second_s0_pim": ("pim", 7),
    }
    assert {name: node.placement.fused_into for name, node in parts.items() if node.op.is_elementwise} == {
        "act_s0_gpu": "first_s0_gpu",
        "act_s0_pim": "first_s0_pim",
    }
    waits = {name: {node.name for node in ancestors(rewritten, node)} & set(parts) for name, node in parts.items()}
    assert waits["second_s0_gpu"] == {"first_s0_gpu", "act_s0_gpu"}, "rows 0 to 7 are the host's"
    assert waits["second_s0_pim"] == set(parts) - {"second_s0_gpu", "second_s0_pim"}, "row 6 is the host's"


def test_a_divided_node_may_be_whole_on_either_device_in_a_stage() -> None:
    graph = two_windows()
    rewritten = applied(graph, divided(TWO_WINDOWS, "pgp", (5, 5, 4), ([6, 2, 0], None, [0, 5, 1])))
    assert_same_values(graph, rewritten)
    convolutions = [node for node in rewritten.nodes if node.op.is_contraction]
    assert {node.name: (node.device, graph_rows(rewritten, node.name)) for node in convolutions} == {
        "first_s0": ("gpu", 6),
        "second_s0": ("pim", 5),
        "first_s1_gpu": ("gpu", 2),
        "first_s1_pim": ("pim", 3),
        "second_s1": ("gpu", 5),
        "first_s2": ("pim", 3),
        "second_s2_gpu": ("gpu", 1),
        "second_s2_pim": ("pim", 3),
    }


def test_runs_that_cannot_be_pipelined() -> None:
    build = Builder()
    a = build.conv(build.input(1, 4, 8, 8), 4, name="a")
    gate = build.sigmoid(build.global_average(a, name="pooled"), name="gate")
    c = build.mul(a, gate, name="c")
    d = build.op(MatMul(), c, a, name="d")
    graph = build.graph(d)
    for run, reason in [
        (("a", "c"), "from outside"),
        (("a", "pooled", "gate", "c"), "GlobalAveragePool"),
        (("a", "d"), "reads a whole"),
        (("a",), "two nodes"),
    ]:
        refusal = pipeline_refusal(graph, run)
        assert refusal is not None
        assert reason in refusal.reason
    with pytest.raises(PlanError, match="makes later"):
        applied(
            graph,
            pipeline(("a", "c"), "pg", (4, 4)),
            OnDevice("pooled", "gpu"),
            OnDevice("gate", "gpu"),
            OnDevice("d", "gpu"),
        )


ACTIVATIONS = ("LeakyRelu", "Abs")  # none saturates or cancels an Add, so outputs keep varying


def random_graph(draw: random.Random) -> Graph:
    """A chain with residuals, side inputs and channel concats; sizes stay odd and small."""
    build = Builder(seed=draw.randrange(100))
    x = build.input(draw.choice([1, 1, 2]), 4, draw.randint(9, 25), draw.randint(7, 10))
    gate = build.input(build.shape(x)[0], 4, 1, 1, name="gate")
    made = [x]
    for _ in range(draw.randint(2, 8)):
        if draw.random() < 0.2:  # a branch: continue from an earlier value
            made.append(made.pop(draw.randrange(len(made))))
        made.append(_random_op(build, draw, made, gate))
    read = {name for node in build.nodes for name in node.inputs}
    return build.graph(*(name for name in made if name not in read or (name != x and draw.random() < 0.1)))


def _random_window(build: Builder, draw: random.Random, kind: str, x: str) -> str:
    _, channels, height, width = build.shape(x)
    kernel = draw.randint(1, 7), draw.randint(1, 3)
    strides, dilation = (draw.randint(1, 3), draw.randint(1, 2)), draw.randint(1, 2)
    top, left, bottom, right = (draw.randint(0, min(kernel[axis % 2], 4) - 1) for axis in range(4))
    pads = top, left, bottom, right
    if kind == "pool" and dilation > 1:  # a dilated window may contain padding only, whose maximum is NaN or -inf
        pads = (0, 0, 0, 0)
    spare = height + pads[0] + pads[2] - dilation * (kernel[0] - 1), width + pads[1] + pads[3] - 2 * (kernel[1] - 1)
    if min(spare) < 1:
        return build.elementwise(draw.choice(ACTIVATIONS), x)
    if kind == "pool":
        average = draw.random() < 0.5
        op = Pool2d(
            "average" if average else "max", kernel, strides, pads, (1, 1) if average else (dilation, 1),
            draw.random() < 0.3, average and draw.random() < 0.5,
        )  # fmt: skip
        return build.op(op, x)
    if kind == "depthwise":
        return build.conv(x, channels, kernel, strides, pads, dilation, channels)
    return build.conv(x, 4, kernel, strides, pads, dilation, draw.choice([1, 1, 2, 4]) if channels % 4 == 0 else 1)


def _random_op(build: Builder, draw: random.Random, made: list[str], gate: str) -> str:
    x = made[-1]
    _, channels, height, width = build.shape(x)
    kind = draw.choice(["conv", "conv", "depthwise", "pool", "act", "add", "mul", "concat", "constant"])
    if kind in ("conv", "depthwise", "pool"):
        return _random_window(build, draw, kind, x)
    same = [name for name in made if build.shape(name) == build.shape(x)]
    if kind == "add":
        return build.add(x, draw.choice(same))
    if kind == "concat":
        return build.concat(1, x, draw.choice(same))
    if kind == "mul" and channels == 4:
        return build.mul(x, gate)
    if kind == "constant":
        return build.add(x, build.weights(*draw.choice([(height, width), (channels, 1, 1), (height, 1), ()])))
    return build.elementwise(draw.choice(ACTIVATIONS), x)


def random_decisions(graph: Graph, draw: random.Random) -> list[Decision]:
    """Pipelines and splits wherever possible, at random; the rest runs on the GPU."""
    decisions: list[Decision] = []
    nodes, index = list(graph.nodes), 0
    while index < len(nodes):
        choice = _random_pipeline(graph, nodes[index:], draw) or _random_split(graph, nodes[index:], draw)
        decision = (
            choice if choice is not None and why_not(graph, choice) is None else OnDevice(nodes[index].name, "gpu")
        )
        decisions.append(decision)
        index += len(decision.nodes)
    return decisions


def _random_pipeline(graph: Graph, nodes: list[Node], draw: random.Random) -> Pipeline | None:
    run = nodes[: draw.randint(2, 6)]
    if len(run) < 2 or draw.random() < 0.3 or pipeline_refusal(graph, [node.name for node in run]) is not None:
        return None
    rows = graph.shape(run[-1].output)[2]
    cuts = sorted(draw.sample(range(1, rows), min(draw.randint(1, 3), rows - 1)))
    stages = [stop - start for start, stop in zip([0, *cuts], [*cuts, rows], strict=True)]
    devices = "".join(draw.choice("gp") if isinstance(node.op, Conv2d | Gemm | MatMul) else "g" for node in run)
    whole = pipeline([node.name for node in run], devices, stages, draw.random() < 0.5)
    return _randomly_divided(graph, whole, draw) if draw.random() < 0.5 else whole


def _randomly_divided(graph: Graph, whole: Pipeline, draw: random.Random) -> Pipeline:
    """The pipeline with some of its nodes split; sometimes with a single stage."""
    if draw.random() < 0.3:
        whole = replace(whole, stage_rows=(sum(whole.stage_rows),))
    some = [device == "pim" and draw.random() < 0.7 for device in whole.devices]
    none = tuple((0,) * len(whole.stage_rows) if is_divided else () for is_divided in some)
    (cut,) = passes_of(replace(whole, host_rows=none), "gpu")
    layout = cut.layout(graph) if isinstance(cut, Pipelining) else None
    if not isinstance(layout, Layout):
        return whole
    made = {(job.node.name, job.stage): job.stop - job.start for job in layout.jobs}
    stages = range(len(whole.stage_rows))
    counts = (
        [draw.randint(0, made.get((name, stage), 0)) for stage in stages] if is_divided else ()
        for name, is_divided in zip(whole.run, some, strict=True)
    )
    return replace(whole, host_rows=tuple(map(tuple, counts)))


def _random_split(graph: Graph, nodes: list[Node], draw: random.Random) -> SplitRows | None:
    if not nodes[0].op.is_contraction or node_rows(graph, nodes[0]) < 2:
        return None
    followers: list[str] = []
    for node in nodes[1 : 1 + draw.randint(0, 4)]:
        if why_not(graph, SplitRows(nodes[0].name, 1, "auto", (*followers, node.name))) is not None:
            break
        followers.append(node.name)
    rows = draw.randrange(1, graph.shape(nodes[0].output)[2])
    return SplitRows(nodes[0].name, rows, "auto", tuple(followers))


@settings(max_examples=250)
@given(st.integers(0, 2**32))
def test_random_graphs_under_random_plans(seed: int) -> None:
    draw = random.Random(seed)
    graph = random_graph(draw)
    rewritten = applied(graph, *random_decisions(graph, draw))
    assert_same_values(graph, rewritten)
    assert_stages_wait_for_no_later_stage(rewritten)
    assert_nothing_is_computed_twice(graph, rewritten)


def test_a_part_with_other_rows_than_its_producers_part_is_not_fused() -> None:
    build = Builder()
    a = build.conv(build.input(1, 4, 9, 5), 4, name="a")
    graph = build.graph(build.add(build.relu(a, name="b"), build.depthwise(a, name="c"), name="d"))
    tagged = [node.placed(fused_into="a") if node.name == "b" else node for node in graph.nodes]
    rewritten = applied(graph.replace(nodes=tagged), pipeline("abcd", "pggg", (4, 5)))
    # The halo of c makes a's stages 5 and 4 rows, but b's 4 and 5.
    assert [rewritten.node(f"b_s{stage}").placement.fused_into for stage in range(2)] == [None, None]
