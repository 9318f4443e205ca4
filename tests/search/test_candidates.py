"""The candidates that a policy offers: their kinds, nodes, rows and stages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimflow.errors import OptionError
from pimflow.ir import Builder, Decision, Graph, OnDevice, Parallel, Pipeline, SplitColumns, SplitK, SplitRows
from pimflow.ir.analysis import regions
from pimflow.ir.analysis.regions import node_rows, pipeline_refusal
from pimflow.options import Options
from pimflow.passes import FuseEpilogues
from pimflow.runtime.costs import CostModel
from pimflow.search import policies
from pimflow.search.bounds import Bounds
from pimflow.search.candidates import Candidate, Candidates
from pimflow.search.candidates.md_dp import MAX_COUNTS, row_counts
from pimflow.search.candidates.pieces import shifted
from pimflow.search.candidates.pipelines import cuttable, equal_stages, half_first, moved_rows, neighbours
from pimflow.search.chain import Interval, solve_chain
from pimflow.search.policy import EVERY_ROW, find_policy, policy_of
from pimflow.search.price_cache import PriceCache
from pimflow.search.pricing import Pricer, content_text
from pimflow.targets import load_target
from support.calls import count_calls
from support.costs import FakeCosts
from support.graphs import ConvNet, dense_block, fire_modules, heavy_chain, inverted_residuals, random_net


def candidates_of(graph: Graph, policy: str) -> tuple[Candidates, list[Candidate]]:
    pricer = Pricer(graph, FakeCosts(), PriceCache(None, ""))
    candidates = Candidates(graph, find_policy(policy), pricer)
    return candidates, list(candidates)


@pytest.mark.parametrize("policy", [name for name in policies() if name != "gpu"])
@pytest.mark.parametrize("graph", [inverted_residuals(), fire_modules(), random_net(2)], ids=["inverted", "fire", "r"])
def test_candidates_cover_their_positions_and_whole_units(graph: Graph, policy: str) -> None:
    candidates, offered = candidates_of(graph, policy)
    starts, stops = {unit.start for unit in candidates.scene.units}, {unit.stop for unit in candidates.scene.units}
    for one in offered:
        covered = [name for decision in one.decisions for name in decision.nodes]
        assert sorted(covered) == sorted(node.name for node in candidates.order[one.start : one.stop])
        assert one.start in starts
        assert one.stop in stops


def test_required_candidates_come_first() -> None:
    for policy in ("newton++", "pim", "auto"):
        candidates, offered = candidates_of(inverted_residuals(), policy)
        certain = [one.certain for one in offered]
        assert certain == sorted(certain, reverse=True)
        solve_chain(len(candidates.order), [Interval(one.start, one.stop, 1.0, one) for one in offered if one.certain])


def test_patterns_are_the_three_of_pimflow() -> None:
    candidates, offered = candidates_of(inverted_residuals(1), "pipeline")
    found = set()
    for one in offered:
        for decision in one.decisions:
            if isinstance(decision, Pipeline):
                kernels = [name for name in decision.run if name.startswith("conv")]
                found.add(tuple(kernels))
                assert decision.bottom_first
                assert len(decision.stage_rows) == 2
                assert abs(decision.stage_rows[0] - decision.stage_rows[1]) <= 1
                for name, device in zip(decision.run, decision.devices, strict=True):
                    assert (device == "pim") == (name in ("conv2", "conv6")), "1x1 on PIM, all else on the GPU"
    assert found == {("conv2", "conv4"), ("conv4", "conv6"), ("conv2", "conv4", "conv6")}
    assert candidates.scene.units[0].anchor.name == "conv0", "a 3x3 convolution, in no pattern"


def test_auto_offers_everything_that_pimflow_offers() -> None:
    graph = inverted_residuals()
    smaller = {one.decisions for one in candidates_of(graph, "pimflow")[1]}
    larger = {one.decisions for one in with_deeper(*candidates_of(graph, "auto"))}
    assert smaller < larger
    assert {type(one[0]) for one in larger} == {OnDevice, SplitRows, SplitColumns, SplitK, Pipeline}
    lengths = {len(one[0].run) for one in larger if isinstance(one[0], Pipeline)}
    stages = {len(one[0].stage_rows) for one in larger if isinstance(one[0], Pipeline)}
    assert max(lengths) >= 8
    assert stages == {1, 2, 3, 4, 5}
    listed = {one[0].stage_rows for one in larger if isinstance(one[0], Pipeline) and not one[0].bottom_first}
    assert {(7, 7), (5, 9), (4, 5, 5)} <= listed, "equal stages, and two with the first half as large"


def with_deeper(candidates: Candidates, offered: Iterable[Candidate]) -> list[Candidate]:
    """The candidates that the search enters if it looks at all of them."""
    found = list(offered)
    for one in found:
        found += candidates.deeper(one)
    return found


def test_pipelines_are_deepened_by_one_stage_at_a_time() -> None:
    """Long runs to the second lowest number of stages, and there also with a short first stage."""
    candidates, offered = candidates_of(inverted_residuals(2, 30), "auto")
    listed = [(one, only) for one in offered for only in one.decisions if isinstance(only, Pipeline)]
    by_length = sorted(listed, key=lambda pair: pair[0].stop - pair[0].start)

    def deeper(listed: tuple[Candidate, Pipeline], rows: tuple[int, ...], **changes: Any) -> list[tuple[int, ...]]:
        refined = replace(listed[0], decisions=(replace(listed[1], stage_rows=rows, **changes),))
        found = [decision for one in candidates.deeper(refined) for decision in one.decisions]
        return [decision.stage_rows for decision in found if isinstance(decision, Pipeline)]

    short, long = by_length[0], by_length[-1]
    assert deeper(short, (15, 15)) == [(10, 10, 10)]
    assert deeper(short, (10, 10, 10)) == [(7, 7, 8, 8)]
    assert deeper(short, (6, 6, 6, 6, 6)) == [], "five stages are the most"
    assert deeper(long, (15, 15)) == [(10, 10, 10)]
    assert deeper(long, (10, 10, 10)) == [(6, 12, 12)]
    for one in (short, long):
        on_host = ((15, 0), *((),) * (len(one[1].run) - 1))
        assert deeper(one, (14, 16)) == [], "only equal stages"
        assert deeper(one, (15, 15), bottom_first=True) == []
        assert deeper(one, (15, 15), host_rows=on_host) == []
    assert not any(list(candidates.deeper(one)) for one in offered if not isinstance(one.decisions[0], Pipeline))
    candidates.scene.exhaustive = True
    assert deeper(short, (15, 15)) == [], "every version is listed"


def feed_forward(rows: int) -> Graph:
    build = Builder()
    hidden = build.relu(build.matmul(build.input(rows, 96), 400, name="up"), name="act")
    image = build.reshape(build.matmul(hidden, 96, name="down"), 1, rows * 6, 4, 4)
    deep = build.conv(image, 64, 3, pad=1, name="conv")
    return FuseEpilogues().run(build.graph(deep)).graph


def columns_of(offered: Iterable[Candidate], node: str) -> list[int]:
    splits = [one.decisions[0] for one in offered if isinstance(one.decisions[0], SplitColumns)]
    assert all(split.followers == (("act",) if split.node == "up" else ()) for split in splits)
    return [split.gpu_columns for split in splits if split.node == node]


def test_columns_are_split_on_a_grid_of_aligned_tenths() -> None:
    candidates, offered = candidates_of(feed_forward(1), "auto")
    assert columns_of(offered, "up") == [32, 80, 128, 160, 192, 240, 288, 320, 352]
    assert columns_of(offered, "conv") == [16, 32, 48], "4 rows are few"
    assert columns_of(candidates_of(feed_forward(1), "pimflow")[1], "up") == []
    decisions: tuple[Decision, ...] = (SplitColumns("up", 160, "auto", ("act",)),)
    near = [one.decisions[0] for one in candidates.variations(Interval(0, 2, 1.0, decisions))]
    assert {split.gpu_columns for split in near if isinstance(split, SplitColumns)} == {144, 176}


def k_of(offered: Iterable[Candidate], node: str) -> list[int]:
    splits = [one.decisions for one in offered if isinstance(one.decisions[0], SplitK)]
    assert all(OnDevice("act", "gpu") in decisions for decisions in splits if "up" in decisions[0].nodes)
    return [split.gpu_k for split, *_ in splits if isinstance(split, SplitK) and split.node == node]


def test_k_is_split_on_a_grid_of_aligned_tenths() -> None:
    candidates, offered = candidates_of(feed_forward(1), "auto")
    assert k_of(offered, "up") == [16, 32, 48, 64, 80]
    assert k_of(offered, "down") == [32, 80, 128, 160, 192, 240, 288, 320, 352]
    assert k_of(offered, "conv") == [], "6 channels are few"
    assert k_of(candidates_of(feed_forward(1), "pimflow")[1], "up") == []
    decisions: tuple[Decision, ...] = (SplitK("down", 160, "auto"),)
    near = [one.decisions[0] for one in candidates.variations(Interval(2, 3, 1.0, decisions))]
    assert {split.gpu_k for split in near if isinstance(split, SplitK)} == {144, 176}


def test_convolutions_of_many_rows_are_divided_by_rows() -> None:
    assert columns_of(candidates_of(heavy_chain(), "auto")[1], "conv0") == []


def test_split_takes_fused_and_willing_followers_along() -> None:
    _, offered = candidates_of(heavy_chain(), "md-dp")
    followers = {
        (one.decisions[0].node, one.decisions[0].followers)
        for one in offered
        if isinstance(one.decisions[0], SplitRows)
    }
    assert ("conv0", ("relu1",)) in followers
    assert not any(node == "conv0" and len(names) != 1 for node, names in followers)
    assert {names for node, names in followers if node == "conv4"} == {(), ("add5",)}


def test_branches_run_concurrently_on_different_devices() -> None:
    _, offered = candidates_of(fire_modules(), "auto")
    parallel = [one.decisions[0] for one in offered if isinstance(one.decisions[0], Parallel)]
    assert parallel
    for decision in parallel:
        assert len(decision.branches) == 2
        on_pim = [
            any(isinstance(item, OnDevice) and item.device == "pim" for item in branch) for branch in decision.branches
        ]
        assert sorted(on_pim) == [False, True]


def downsampled() -> Graph:
    """A residual block with a convolution in its other branch: conv0 and conv1, conv2 in parallel, and their sum."""
    net = ConvNet("downsampled")
    x = net.input(1, 32, 8, 8)
    return net.graph(net.add(net.layer(net.layer(x, 64), 64, 3), net.layer(x, 64)))


def test_runs_go_through_branches() -> None:
    _, offered = candidates_of(downsampled(), "auto")
    runs = {one.decisions[0].run for one in offered if isinstance(one.decisions[0], Pipeline)}
    whole = ("conv0", "conv1", "conv2", "add3")
    assert runs == {whole, whole[:2], whole[1:], whole[2:]}, "conv1 and conv2 alone exchange nothing"
    _, published = candidates_of(downsampled(), "pimflow")
    assert not any(isinstance(one.decisions[0], Pipeline) for one in published)


@pytest.mark.parametrize(
    "graph", [dense_block(6), fire_modules(), *map(random_net, range(12))], ids=lambda net: net.name
)
def test_runs_are_those_that_can_be_cut_into_stages(graph: Graph) -> None:
    """All connected stretches that contain a unit, not only neighbours that read each other."""
    scene = candidates_of(graph, "auto")[0].scene
    units = scene.units
    stops = [range(start + 2, min(start + 8, len(units)) + 1) for start in range(len(units))]
    growing = [units[start:stop] for start, of_start in enumerate(stops) for stop in of_start]
    names = [[node.name for unit in run for node in unit.nodes] for run in growing]
    sound = [run for run, of_run in zip(growing, names, strict=True) if pipeline_refusal(graph, of_run) is None]
    assert sound
    assert list(cuttable(scene, growing)) == sound


def test_runs_visit_the_operands_of_a_node_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that reads all nodes before it is part of dozens of runs."""
    graph = dense_block(12)
    scene = candidates_of(graph, "auto")[0].scene
    visited, asked = count_calls(monkeypatch, regions, "_producers"), count_calls(monkeypatch, scene, "read_by")
    runs = list(cuttable(scene, neighbours(scene, 12)))
    assert sum(map(len, runs)) > 3 * len(scene.units)
    assert len(visited) <= len(graph.nodes)
    assert len(asked) <= len(scene.units)


def test_a_run_has_few_branches_at_once() -> None:
    net = ConvNet("wide")
    x = net.input(1, 32, 8, 8)
    branches = [net.layer(x, 32) for _ in range(4)]
    graph = net.graph(net.concat(1, *branches))
    _, offered = candidates_of(graph, "auto")
    runs = [one.decisions[0].run for one in offered if isinstance(one.decisions[0], Pipeline)]
    assert max(map(len, runs)) == 4, "three of the branches and their join"


def test_chosen_neighbours_in_different_branches_are_joined() -> None:
    candidates, _ = candidates_of(downsampled(), "auto")
    first = (OnDevice("conv0", "gpu"), SplitRows("conv1", 3, "auto"))
    other, behind = OnDevice("conv2", "pim", "auto"), OnDevice("add3", "gpu")
    each: list[Decision] = [*first, other, behind]
    payloads: list[tuple[Decision, ...]] = [(decision,) for decision in each]
    chosen = [Interval(place, place + 1, 1.0, payload) for place, payload in enumerate(payloads)]
    windows = [(0, 3, Parallel((first, (other,)))), (1, 3, Parallel((first[1:], (other,))))]
    joined = [(one.start, one.stop, one.decisions[0]) for one, _ in candidates.joins(chosen)]
    assert set(windows) <= set(joined)
    for start, stop, parallel in joined:
        (window,) = [window for window in windows if window[:2] == (start, stop)]
        assert isinstance(parallel, Parallel)
        changed = set(parallel.decisions) - set(window[2].decisions)
        assert len(changed) <= 1 or are_exchanged(changed), "one or two units decided differently"
    assert list(candidates.joins(chosen)) == [], "each once"
    assert list(candidates_of(downsampled(), "pimflow")[0].joins(chosen)) == []


def are_exchanged(changed: Iterable[Decision]) -> bool:
    """Whether two units are decided, one whole on each device."""
    return sorted(item.device for item in changed if isinstance(item, OnDevice)) == ["gpu", "pim"]


def test_chosen_neighbours_are_joined_where_one_does_not_wait_for_all_of_another() -> None:
    candidates, _ = candidates_of(downsampled(), "auto")
    branch, other, behind = (OnDevice("conv0", "gpu"),), (OnDevice("conv2", "pim", "auto"),), OnDevice("add3", "gpu")
    run = SplitRows("conv1", 3, "auto")
    payloads: list[tuple[Decision, ...]] = [branch, (run,), (*other, behind)]
    chosen = [
        Interval(at, stop, 1.0, payload) for at, stop, payload in zip((0, 1, 2), (1, 2, 4), payloads, strict=True)
    ]
    joined = {one.decisions[0] for one, _ in candidates.joins(chosen)}
    assert Parallel(((run, *other, behind),)) in joined, "the sum waits for both, conv2 does not wait for conv1"
    chain, _ = candidates_of(heavy_chain(), "auto")
    alone: list[tuple[Decision, ...]] = [(OnDevice(node.name, "pim", "auto"),) for node in chain.order]
    assert list(chain.joins([Interval(at, at + 1, 1.0, payload) for at, payload in enumerate(alone)])) == []


def test_split_units_are_joined_with_one_whole_and_the_others_mostly_on_the_host() -> None:
    candidates, _ = candidates_of(downsampled(), "auto")
    behind = OnDevice("add3", "gpu")
    divided = (SplitRows("conv0", 3, "auto"), SplitRows("conv1", 5, "auto"), SplitColumns("conv2", 16, "newton++"))
    payloads: list[tuple[Decision, ...]] = [(decision,) for decision in (*divided, behind)]
    chosen = [Interval(place, place + 1, 1.0, payload) for place, payload in enumerate(payloads)]
    joined = {one.decisions[0] for one, _ in candidates.joins(chosen) if one.start == 0}
    most = (SplitRows("conv0", 7, "auto"), SplitRows("conv1", 7, "auto"), SplitColumns("conv2", 48, "newton++"))
    whole = [OnDevice(item.node, "pim", item.choice) for item in divided]
    moved = [tuple(whole[at] if at == one else most[at] for at in range(3)) for one in range(3)]
    assert {Parallel((items[:2], items[2:])) for items in moved} <= joined


def test_concurrent_splits_are_also_tried_as_whole_units_per_device() -> None:
    candidates, _ = candidates_of(downsampled(), "auto")
    first, second, third = SplitRows("conv0", 3, "auto"), SplitRows("conv1", 5, "auto"), SplitRows("conv2", 2, "auto")
    parallel = Parallel(((first, second), (third,)))
    near = {one.decisions[0] for one in candidates.variations(Interval(0, 3, 1.0, (parallel,)))}
    pim = {name: OnDevice(name, "pim", "auto") for name in ("conv0", "conv1", "conv2")}
    gpu = {name: OnDevice(name, "gpu") for name in pim}
    expected = {
        Parallel(((pim["conv0"], gpu["conv1"]), (third,))),
        Parallel(((gpu["conv0"], pim["conv1"]), (third,))),
        Parallel(((pim["conv0"], second), (gpu["conv2"],))),
        Parallel(((gpu["conv0"], second), (pim["conv2"],))),
        Parallel(((first, pim["conv1"]), (gpu["conv2"],))),
        Parallel(((first, gpu["conv1"]), (pim["conv2"],))),
    }
    exchanged = {
        one for one in near if isinstance(one, Parallel) and are_exchanged(set(one.decisions) - set(parallel.decisions))
    }
    assert exchanged == expected


def test_parts_of_joined_stretches_are_decided_as_if_alone() -> None:
    candidates, _ = candidates_of(downsampled(), "auto")
    branch = (SplitRows("conv0", 3, "auto"), OnDevice("conv1", "gpu"))
    other = OnDevice("conv2", "pim", "auto")
    run = Pipeline(("conv0", "conv1"), ("pim", "gpu"), (4, 4), "auto")
    alone = OnDevice("conv0", "pim", "auto"), SplitColumns("conv1", 16, "auto")
    found: dict[tuple[int, int], tuple[Decision, ...]] = {
        (0, 1): alone[:1],
        (1, 2): alone[1:],
        (0, 2): (run,),
        (2, 3): (other,),
        (0, 3): (OnDevice("conv0", "gpu"), OnDevice("conv1", "gpu"), OnDevice("conv2", "gpu")),
    }

    def around(parallel: Parallel) -> list[Decision]:
        chosen = Interval[tuple[Decision, ...]](0, 3, 1.0, (parallel,))
        return [one.decisions[0] for one in candidates.pieces(chosen, lambda start, stop: found.get((start, stop), ()))]

    assert [one.branches for one in around(Parallel((branch, (other,)))) if isinstance(one, Parallel)] == [
        ((alone[0], branch[1]), (other,)),
        ((run,), (other,)),
        ((branch[0], alone[1]), (other,)),
    ], "conv2 is already decided so, and both branches are no stretch of one"
    assert around(Parallel(((run,), (other,)))) == [Parallel((alone, (other,)))], "a pipeline in two"
    found[0, 1] = ()
    assert around(Parallel(((run,), (other,)))) == [], "its first part is unknown"


def test_joined_stretches_are_cut_in_two_at_every_unit() -> None:
    candidates, _ = candidates_of(downsampled(), "auto")
    rows, left, right = SplitRows("conv0", 3, "auto"), OnDevice("conv1", "gpu"), OnDevice("conv2", "pim", "auto")
    run = Pipeline(("conv0", "conv1"), ("pim", "gpu"), (4, 4), "auto")
    rest = SplitRows("conv1", 5, "auto")
    found: dict[tuple[int, int], tuple[Decision, ...]] = {(1, 2): (rest,)}

    def cut(parallel: Parallel) -> list[Candidate]:
        chosen = Interval[tuple[Decision, ...]](0, 3, 1.0, (parallel,))
        return list(candidates.cuts(chosen, lambda start, stop: found.get((start, stop), ())))

    whole = Parallel(((rows, left), (right,)))
    assert cut(whole) == [
        Candidate(1, 3, (Parallel(((left,), (right,))),)),
        Candidate(0, 2, (Parallel(((rows, left),)),)),
    ], "a single decision is a candidate anyway"
    assert cut(whole) == [], "each once"
    across = Parallel(((run,), (right,)))
    assert cut(across) == [Candidate(1, 3, (Parallel(((rest,), (right,))),))], "a pipeline across both, as if alone"
    on_host = Parallel(((OnDevice("conv0", "pim", "auto"), left), (OnDevice("conv2", "gpu"),)))
    assert [one.stop for one in cut(on_host)] == [2], "conv1 and conv2 stay on the host"
    found.clear()
    assert cut(Parallel(((run,), (OnDevice("conv2", "pim", "newton++"),)))) == [], "the rest is unknown"


def test_joined_stretches_and_their_neighbours_exchange_units() -> None:
    candidates, _ = candidates_of(downsampled(), "auto")
    host = [OnDevice(f"conv{place}", "gpu") for place in range(3)]
    unit = [OnDevice(f"conv{place}", "pim", "auto") for place in range(3)]
    chosen: list[Interval[tuple[Decision, ...]]] = [
        Interval(0, 2, 1.0, (Parallel(((unit[0], host[1]),)),)),
        Interval(2, 3, 1.0, (unit[2],)),
    ]
    assert list(shifted(candidates.scene, chosen, lambda *_: ())) == [
        Candidate(1, 3, (Parallel(((one,), (other,))),))
        for one, other in ((host[1], unit[2]), (unit[1], unit[2]), (host[1], host[2]))
    ], "conv2 does not wait for conv1; also with one of them on another device"
    apart: list[Interval[tuple[Decision, ...]]] = [Interval(0, 1, 1.0, (unit[0],)), Interval(1, 3, 1.0, (host[1],))]
    assert list(shifted(candidates.scene, apart, lambda *_: ())) == [], "nothing is joined"


def test_what_is_decided_for_one_block_is_tried_for_those_like_it() -> None:
    """Three residual blocks: two with the same nodes, behind different ones, and one of another width."""
    net = ConvNet("blocks")
    x = net.layer(net.input(1, 16, 8, 8), 32)
    for channels in (32, 32, 64):
        x = net.layer(x, channels, 3) if channels == 64 else x
        x = net.add(net.layer(net.layer(x, channels), channels, 3), net.layer(x, channels))
    graph = net.graph(x)
    candidates, _ = candidates_of(graph, "auto")
    one, another = ([node.name for node in candidates.order[start : start + 3]] for start in (1, 5))

    def joined(names: list[str]) -> tuple[Decision, ...]:
        first, second, beside = names
        both = (SplitRows(first, 3, "auto"), OnDevice(second, "gpu"))
        return (Parallel((both, (OnDevice(beside, "pim", "auto"),))),)

    cover: list[Interval[tuple[Decision, ...]]] = [
        Interval(at, at + 1, 1.0, (OnDevice(node.name, "pim", "auto"),)) for at, node in enumerate(candidates.order)
    ]
    cover[1:4] = [Interval(1, 4, 1.0, joined(one))]
    (found,) = candidates.repeated(cover)
    assert found == Candidate(5, 8, joined(another))
    costs = [Pricer(graph, FakeCosts(), PriceCache(None, "")).cost(joined(names)) for names in (one, another)]
    assert costs[0] == costs[1]
    assert costs[0] is not None
    assert list(candidates.repeated(cover)) == [], "each once"


def test_a_pipeline_in_a_branch_is_restaged_or_comes_apart() -> None:
    candidates, _ = candidates_of(downsampled(), "auto")
    run = Pipeline(("conv0", "conv1"), ("pim", "gpu"), (4, 4), "auto")
    apart, other = (OnDevice("conv0", "pim", "auto"), OnDevice("conv1", "gpu")), OnDevice("conv2", "pim", "auto")
    chosen = Interval[tuple[Decision, ...]](0, 3, 1.0, (Parallel(((run,), (other,))),))
    offered = list(candidates.rearranged([chosen], lambda *_: ()))
    found = [one.decisions[0].branches for one in offered if isinstance(one.decisions[0], Parallel)]
    assert (apart, (other,)) in found
    assert (apart, (OnDevice("conv2", "gpu"),)) in found, "without the pipeline, conv2 is better off elsewhere"
    assert ((replace(run, stage_rows=(3, 3, 2)),), (other,)) in found
    assert ((replace(run, stage_rows=(2, 2, 2, 2)),), (other,)) in found
    assert len(found) == len(offered) > 4
    for branches in found:
        assert [name for branch in branches for item in branch for name in item.nodes] == ["conv0", "conv1", "conv2"]
    assert list(candidates.rearranged([chosen], lambda *_: ())) == [], "each once"
    bottom_first = Parallel(((replace(run, choice="", bottom_first=True),), (other,)))
    assert list(candidates.rearranged([replace(chosen, payload=(bottom_first,))], lambda *_: ())) == []


def test_a_pipeline_that_the_host_makes_alone_is_not_merged() -> None:
    """A variation may leave nothing for another device: even if that is the cheapest, there is nothing to share."""
    candidates, offered = candidates_of(inverted_residuals(2), "auto")
    top_first = [one for one in offered if isinstance(one.decisions[0], Pipeline) and not one.decisions[0].bottom_first]
    first, second = (next(one for one in top_first if (one.start, one.stop) == place) for place in ((0, 4), (4, 7)))
    pipeline = first.decisions[0]
    assert isinstance(pipeline, Pipeline)
    merged = []
    for devices in (pipeline.devices, ("gpu",) * len(pipeline.devices)):
        before = Interval[tuple[Decision, ...]](0, 4, 1.0, (replace(pipeline, devices=devices),))
        found = list(candidates.merges([before, Interval(4, 7, 1.0, second.decisions)]))
        merged.append({(one.start, one.stop) for one in found})
    assert (0, 7) in merged[0]
    assert merged[1] == set(), "and the second one has been offered before"


def test_a_pipeline_is_cut_where_its_parts_need_not_wait_for_each_other() -> None:
    """conv2 waits for neither conv0 nor conv1; conv1 waits for conv0."""
    left = Pipeline(("conv0", "conv1"), ("pim", "gpu"), (4, 4), "auto")
    whole = Pipeline(("conv0", "conv1", "conv2"), ("pim", "gpu", "pim"), (4, 4), "auto")
    alone = [OnDevice(f"conv{place}", "pim", "auto") for place in range(3)]
    found: dict[tuple[int, int], tuple[Decision, ...]] = {
        **{(place, place + 1): (alone[place],) for place in range(3)},
        (0, 2): (left,),
    }

    def cut(policy: str, stop: int, run: Pipeline) -> list[Candidate]:
        chosen = Interval[tuple[Decision, ...]](0, stop, 1.0, (run,))
        cutter, _ = candidates_of(downsampled(), policy)
        return list(cutter.cuts(chosen, lambda start, stop: found.get((start, stop), ())))

    behind = Candidate(0, 3, (Parallel(((left,), (alone[2],))),))
    assert cut("auto", 3, whole) == [behind], "conv1 and conv2 are unknown"
    found[1, 3] = alone[1], alone[2]
    assert cut("auto", 3, whole) == [Candidate(0, 3, (Parallel((tuple(alone[:2]), (alone[2],))),)), behind]
    assert cut("auto", 2, left) == [], "its parts wait for each other"
    assert cut("pimflow", 3, whole) == [], "a policy that joins nothing"


def test_units_in_branches_are_decided_again() -> None:
    candidates, _ = candidates_of(downsampled(), "auto")
    parallel = Parallel(((SplitRows("conv1", 3, "auto"),), (OnDevice("conv2", "gpu"),)))
    near = {one.decisions[0] for one in candidates.variations(Interval(1, 3, 1.0, (parallel,)))}
    anew = [set(one.decisions) - set(parallel.decisions) for one in near if isinstance(one, Parallel)]
    exchanged = [decisions for decisions in anew if len(decisions) > 1]
    assert exchanged == [{OnDevice("conv1", "gpu"), OnDevice("conv2", "pim", "auto")}], "conv2 is on the host as it is"
    assert len(anew) == len(near)
    found = {item for one in near if isinstance(one, Parallel) for item in one.decisions} - set(parallel.decisions)
    assert {item.gpu_rows for item in found if isinstance(item, SplitRows) and item.node == "conv1"} == {1, 2, 4, 5, 7}
    assert {item.gpu_rows for item in found if isinstance(item, SplitRows) and item.node == "conv2"} == {2, 4, 6}
    assert {item.gpu_columns for item in found if isinstance(item, SplitColumns)} == {16, 32, 48}
    placed = {(item.node, item.device) for item in found if isinstance(item, OnDevice)}
    assert placed == {("conv1", "gpu"), ("conv1", "pim"), ("conv2", "pim")}


@given(st.integers(1, 300), st.sampled_from([Fraction(1, 10), Fraction(1, 3), Fraction(1, 20), Fraction(1, 2)]))
@settings(max_examples=50)
def test_row_counts_are_the_grid_rounded_up(rows: int, step: Fraction) -> None:
    wanted = sorted(
        {-(-rows * k * step.numerator // step.denominator) for k in range(1, 100) if k * step < 1} - {0, rows}
    )
    assert list(row_counts(rows, step)) == wanted
    assert row_counts(rows, Fraction(0)) == tuple(range(1, rows))


@given(st.integers(1, 60), st.integers(2, 6))
@settings(max_examples=50)
def test_stages_make_up_the_rows(rows: int, stages: int) -> None:
    options = equal_stages(rows, stages)
    assert bool(options) == (rows >= stages)
    for option in options:
        assert (len(option), sum(option)) == (stages, rows)
        assert max(option) - min(option) <= 1
        for other in moved_rows(option):
            assert (len(other), sum(other)) == (stages, rows)
            assert min(other) >= 1
            assert sorted(abs(a - b) for a, b in zip(option, other, strict=True))[:-2] == [0] * (stages - 2)
    for first, *others in half_first(rows, stages):
        assert first + sum(others) == rows
        assert max(others) - min(others) <= 1
        assert abs(2 * first - min(others)) <= 2
        assert min(first, *others) > 0
    assert half_first(rows, stages) or rows < 3 * stages


def test_content_distinguishes_different_costs() -> None:
    def text(build: ConvNet, output: str, gpu_rows: int = 7, choice: str = "auto") -> str:
        return content_text(build.graph(output), frozenset([output]), (SplitRows("conv0", gpu_rows, choice),))

    def one(channels: int = 32, kernel: int = 1, size: int = 14, reader: bool = False) -> tuple[ConvNet, str]:
        build = ConvNet()
        value = build.layer(build.input(1, 16, size, size), channels, kernel)
        return build, build.relu(value) if reader else value

    base = text(*one())
    assert text(*one()) == base
    assert text(*one(reader=True)) == base, "only that the result leaves matters, not its readers"
    different = [
        text(*one(channels=48)),
        text(*one(kernel=3)),
        text(*one(size=28)),
        text(*one(), gpu_rows=8),
        text(*one(), choice="newton++"),
    ]
    assert len({base, *different}) == 6


def test_content_distinguishes_decisions_in_every_field() -> None:
    graph = inverted_residuals(1)
    run = ("conv2", "relu3", "conv4")
    pipeline = Pipeline(run, ("pim", "gpu", "gpu"), (7, 7), "newton++")
    decisions: list[Decision] = [
        OnDevice("conv2", "gpu"),
        OnDevice("conv2", "pim", "newton++"),
        OnDevice("conv2", "pim", "auto"),
        SplitRows("conv2", 7, "auto"),
        SplitRows("conv2", 7, "auto", ("relu3",)),
        SplitRows("conv2", 8, "auto", ("relu3",)),
        SplitRows("conv2", 7, "newton++", ("relu3",)),
        pipeline,
        replace(pipeline, devices=("gpu", "gpu", "pim")),
        replace(pipeline, stage_rows=(8, 6)),
        replace(pipeline, stage_rows=(6, 8)),
        replace(pipeline, choice="auto"),
        replace(pipeline, bottom_first=True),
        replace(pipeline, host_rows=((4, 0), (), ())),
        replace(pipeline, host_rows=((0, 4), (), ())),
        Parallel(((OnDevice("conv2", "gpu"),), (OnDevice("conv4", "pim", "auto"),))),
        Parallel(((OnDevice("conv2", "gpu"),), (OnDevice("conv4", "gpu"),))),
    ]
    texts = {content_text(graph, frozenset(graph.outputs), (decision,)) for decision in decisions}
    assert len(texts) == len(decisions)


def test_content_distinguishes_fused_and_outgoing_values() -> None:
    def text(graph: Graph) -> str:
        pair = (OnDevice("conv0", "pim", "auto"), OnDevice("relu1", "gpu"))
        return content_text(graph, frozenset(graph.outputs), pair)

    def graph(fused: bool, both_leave: bool) -> Graph:
        build = ConvNet()
        made = build.layer(build.input(1, 16, 14, 14), 32)
        after = build.fused_relu(made) if fused else build.relu(made)
        return build.graph(made, after) if both_leave else build.graph(after)

    assert len({text(graph(fused, leave)) for fused in (True, False) for leave in (True, False)}) == 4


def test_variations_are_one_step_away() -> None:
    candidates, _ = candidates_of(inverted_residuals(1), "auto")
    run = ("conv2", "relu3", "conv4")
    chosen = Pipeline(run, ("pim", "gpu", "gpu"), (7, 7), "auto")
    around = [one.decisions[0] for one in candidates.variations(Interval(2, 5, 1.0, (chosen,)))]
    assert all(isinstance(one, Pipeline) and one.run == run and one != chosen for one in around)
    stages = {one.stage_rows for one in around if isinstance(one, Pipeline)}
    assert {(6, 8), (8, 6), (5, 9), (9, 5), (11, 3), (3, 11), (3, 4, 7), (7, 3, 4)} <= stages
    devices = {one.devices for one in around if isinstance(one, Pipeline)}
    assert devices == {("pim", "gpu", "gpu"), ("gpu", "gpu", "gpu")}, "a depthwise convolution never goes to PIM"
    published, _ = candidates_of(inverted_residuals(1), "pimflow")
    assert list(published.variations(Interval(2, 5, 1.0, (chosen,)))) == []


def test_policy_options() -> None:
    auto = policy_of(Options(policy="auto", grid=25, stages=(3, 2, 3)))
    assert {space.split for space in auto.spaces} == {Fraction(1, 4)}
    assert {space.stages for space in auto.spaces} == {(2, 3)}
    assert policy_of(Options(policy="newton++", grid=25, stages=(4,))).spaces[0].split is None
    assert policy_of(Options(policy="md-dp", grid=10)) == find_policy("md-dp")
    with pytest.raises(OptionError, match=r"did you mean 'pipeline'\? choose one of gpu"):
        find_policy("pipelines")


def test_for_very_many_rows_only_some_counts_are_tried() -> None:
    assert row_counts(1024, EVERY_ROW) == tuple(range(1, 1024))
    counts = row_counts(10**9, EVERY_ROW)
    assert len(counts) == MAX_COUNTS
    assert {later - earlier for earlier, later in pairwise(counts)} <= {976562, 976563}


def test_variations_change_one_nodes_rows_in_one_stage() -> None:
    candidates, _ = candidates_of(inverted_residuals(1), "auto")
    run = ("conv2", "relu3", "conv4")

    def around(chosen: Pipeline) -> set[tuple[tuple[int, ...], ...]]:
        found = [one.decisions[0] for one in candidates.variations(Interval(2, 5, 1.0, (chosen,)))]
        return {one.host_rows for one in found if isinstance(one, Pipeline) and one.stage_rows == chosen.stage_rows}

    whole = around(Pipeline(run, ("pim", "gpu", "gpu"), (7, 7), "auto"))
    assert whole - {()} == {
        *(((count, 0), (), ()) for count in (1, 2, 4, 6, 8)),
        *(((0, count), (), ()) for count in (1, 2, 3, 4, 6)),
    }, "stages make 8 and 6 rows: quarters of them, and a few"
    divided = around(Pipeline(run, ("pim", "gpu", "gpu"), (7, 7), "auto", host_rows=((3, 6), (), ())))
    assert ((3, 0), (), ()) in divided
    assert {counts[0][0] for counts in divided if counts[0][1] == 6} == {1, 2, 4, 5, 7}
    one_stage = around(Pipeline(run, ("pim", "gpu", "gpu"), (14,), "auto", host_rows=((1,), (), ())))
    assert one_stage == {((count,), (), ()) for count in (2, 3, 5)}, "in one stage a node is split"


def test_neighbours_of_a_plan_are_probed_where_devices_wait() -> None:
    """A shorter first stage; rows split in halves at both ends of the run; each once."""
    candidates, _ = candidates_of(heavy_chain(), "auto")
    run = tuple(node.name for node in candidates.order)
    able = [place for place, unit in enumerate(candidates.order) if unit.op.is_contraction]
    devices = tuple("pim" if place in able[::2] else "gpu" for place in range(len(run)))

    def probed(chosen: Pipeline) -> list[Pipeline]:
        found = [one.decisions[0] for one in candidates.probes(Interval(0, len(run), 1.0, (chosen,)))]
        return [one for one in found if isinstance(one, Pipeline)]

    rows = sum(equal_stages(node_rows(candidates.scene.graph, candidates.order[-1]), 3)[-1])
    stages = (9, (rows - 9) // 2, rows - 9 - (rows - 9) // 2)
    candidates.scene.divided_runs = False
    (shorter,) = probed(Pipeline(run, devices, stages, "auto"))
    assert shorter.stage_rows == (7, stages[1] + 1, stages[2] + 1)
    assert probed(Pipeline(run, devices, stages, "auto")) == []
    assert probed(Pipeline(run, devices, (1, rows - 1), "auto")) == [], "no stage is empty"
    assert probed(Pipeline(run, devices, stages, "auto", bottom_first=True)) == []
    candidates.scene.divided_runs = True
    halves = probed(Pipeline(run, devices, stages, "auto"))
    assert {place for one in halves for place, counts in enumerate(one.host_rows) if counts} == {able[0], able[-1]}
    assert all(len(one.stage_rows) == 3 and one.stage_rows == stages for one in halves)
    assert len(halves) == 4, "two nodes, two stages"
    published, _ = candidates_of(heavy_chain(), "pimflow")
    assert list(published.probes(Interval(0, len(run), 1.0, (Pipeline(run, devices, stages, "auto"),)))) == []


def test_adjacent_units_are_split_to_balance_both_devices() -> None:
    net, costs = ConvNet(), CostModel(load_target("pimflow"))
    graph = net.graph(net.layer(net.layer(net.input(1, 64, 40, 56), 128, 3), 128, 3))
    offered = Candidates(graph, find_policy("auto"), Pricer(graph, costs, PriceCache(None, "")))
    (pair,) = (one.decisions[0] for one in offered if getattr(one.decisions[0], "stage_rows", ()) == (40,))
    assert isinstance(pair, Pipeline)
    bounds = Bounds(graph, costs)
    for name, (count,) in zip(pair.run, pair.host_rows, strict=True):
        longer = {rows: max(bounds.shares_us(graph.node(name), rows, "pim", "auto")) for rows in range(1, 40)}
        assert longer[count] == min(longer.values())
        assert 1 < count < 39
