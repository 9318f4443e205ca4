"""Epochs over several edge lists: the rows read from each kind's table, and messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pimflow import gnn
from pimflow.errors import OptionError, PimflowError
from pimflow.gnn.kinds import heterogeneous
from pimflow.options import graph_of
from pimflow.sparse import Graph
from pimflow.sparse.host_rows import HostRows
from pimflow.sparse.sampling import sample_typed
from support.cli import Capture, assert_one_line, document, run

SAGE = Path(__file__).parents[1] / "data" / "gnn" / "hetero" / "sage-ts.onnx"
RANDOM = np.random.default_rng(0)
SIZES = {"paper": 300, "author": 200}
LISTS = {
    f"{source}__{name}__{destination}": np.stack(
        [RANDOM.integers(0, SIZES[kind], edges) for kind in (source, destination)]
    )
    for source, name, destination, edges in (
        ("paper", "cites", "paper", 2000),
        ("author", "writes", "paper", 1500),
        ("paper", "written", "author", 1500),
    )
}
FAN_OUTS = {"cites": (4, 2), "writes": (3, 0), "*": (1, 1)}


def small(**changes: Any) -> gnn.Epoch:
    keywords: dict[str, Any] = {
        "model": "rgcn",
        "kind": "paper",
        "features": {"paper": 100, "author": 33},
        "fan_outs": FAN_OUTS,
        "batch": 32,
        "batches": 2,
        "hidden": 16,
    }
    return gnn.epoch(LISTS, **(keywords | changes))


def test_each_kind_has_its_own_feature_table() -> None:
    """Drawn again by the test: the same vertices, edges and requests."""
    random = np.random.default_rng(5)
    graph = heterogeneous(graph_of(LISTS), {}, "graph")
    fan_outs = dict(zip(LISTS, ((4, 2), (3, 0), (1, 1)), strict=True))
    order = random.permutation(300)
    batches = [sample_typed(graph, "paper", order[first : first + 32], fan_outs, random) for first in (0, 32)]
    found = small(seed=5)
    assert found.loop.batch_vertices == tuple(batch.num_vertices for batch in batches)
    assert found.loop.batch_edges == tuple(batch.edges for batch in batches)
    requests = [
        (HostRows(400).requests(batch.vertices["paper"]) + HostRows(132).requests(batch.vertices["author"])).requests
        for batch in batches
    ]
    assert found["zero-copy"].requests == round(np.mean(requests))
    assert found.loop.feature_bytes == 4 * (300 * 100 + 200 * 33)
    assert (found.loop.batches, found.loop.train) == (10, 300)
    drawn = {kind.name: kind.drawn for kind in found.loop.kinds}
    assert drawn["author"] == np.mean([len(batch.vertices["author"]) for batch in batches])
    assert sum(kind.drawn for kind in found.loop.kinds) == np.mean(found.loop.batch_vertices)
    assert sum(one.drawn for one in found.loop.relations) == np.mean(found.loop.batch_edges)


def test_every_table_and_edge_list_is_a_separate_copy() -> None:
    """Two tables are gathered, copied and read one after the other; lists without drawn edges are not copied."""
    found = small()
    one = gnn.epoch(LISTS, "rgcn", kind="paper", features=100, fan_outs={"cites": (4,), "*": (0,)}, batch=32, batches=2)
    for epoch, copies in ((one, 1), (found, 4)):  # no author is known before the second hop
        assert epoch.loop.structure_us == pytest.approx(copies * 10 + 8 * np.mean(epoch.loop.batch_edges) / 12.3e3)
    launches = [epoch["zero-copy"].transfer_parts_us["launch"] for epoch in (one, found)]
    assert launches[1] == pytest.approx(2 * launches[0]), "citations read no authors"
    for row in found.rows:
        assert sum(row.transfer_parts_us.values()) == pytest.approx(row.transfer_us)
        assert sum(row.power_parts_w.values()) == pytest.approx(row.power_w)


def test_a_model_reads_every_list_and_the_features_of_every_kind() -> None:
    found = small(model=SAGE, features=None)
    assert {kind.name: kind.features for kind in found.loop.kinds} == {"paper": 6, "author": 4}
    assert found.loop.features is None
    assert found.loop.forward_us > 0
    every = small(model=SAGE, features=None, fan_outs={"*": (1024, 1024)}, batch=300, batches=1)
    assert every.loop.batch_edges == (5000,), "neighbours of a vertex are drawn once"


def test_the_command_line(tmp_path: Path, capsys: Capture) -> None:
    stored: Any = LISTS
    np.savez(tmp_path / "mag.npz", **stored)
    given = ["gnn-epoch", tmp_path / "mag.npz", "rgcn", "--kind", "paper", "--batch", "32", "--batches", "2"]
    columns = ["--features", "33", "--features", "paper=100", "--hidden", "16"]
    drawn = ["--fan-outs", "cites=4,2", "--fan-outs", "writes=3,0", "--fan-outs", "1,1"]
    made = document(capsys, *map(str, given), *columns, *drawn, "--vertices", "author=200")
    expected = small().as_json()
    assert made["placements"] == expected["placements"]
    assert [one["fan_outs"] for one in made["relations"]] == [[4, 2], [3, 0], [1, 1]]
    assert run(*given, *columns, *drawn) == 0
    shown = capsys.readouterr().out
    assert "paper" in shown
    assert "author__writes__paper" in shown
    assert run(*given, *columns, "--fan-outs", "cites=x") == 2
    assert_one_line(capsys, "'cites=x' is not numbers like 25,10 or writes=25,10")
    assert run(*given, *columns, *drawn, "--vertices", "200") == 2
    assert_one_line(capsys, "'200' is not the number of a kind, like paper=128")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": None}, "the graph has several kinds of vertices; say which are trained: --kind paper or author"),
        ({"kind": "papers"}, "unknown kind 'papers'"),
        ({"fan_outs": {"cites": (3,)}}, "'fan_outs' does not say what is drawn along author__writes__paper, "),
        (
            {"fan_outs": {"cited": (3,), "*": (3,)}},
            "'fan_outs' has 'cited', which is not a relation of the graph, or of",
        ),
        ({"fan_outs": {"cites": (3,), "*": (3, 2)}}, "gives relations different numbers of hops"),
        ({"fan_outs": {"*": ()}}, "'fan_outs' is empty"),
        ({"fan_outs": (3, 0)}, "'fan_outs[1]' is 0; it must be between 1 and 1024"),
        ({"features": {"paper": 10}}, "the graph does not state the number of features of author"),
        ({"features": {"field": 10}}, "unknown kind 'field'"),
        ({"train": 301}, "'train' is 301; the graph has 300 vertices of kind paper"),
        ({"model": SAGE}, "reads 6 features of paper, not 100; leave out --features"),
        ({"model": SAGE.with_name("none.onnx")}, "no such file"),
        ({"model": "rgcm"}, "no network and no file is called 'rgcm'; did you mean 'rgcn'? give an ONNX model"),
        ({"model": SAGE.parents[1] / "gcn-ts.onnx"}, "has no table of features called paper or x_paper"),
        ({"vertices": {"paper": 3}}, "has an edge of paper 299, but only 3 vertices of that kind"),
    ],
)
def test_invalid_arguments_are_one_line_errors(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PimflowError) as caught:
        small(**changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_networks_of_relations_need_relations() -> None:
    with pytest.raises(OptionError, match="unknown network of one edge list 'rgcn'"):
        gnn.epoch(Graph.from_edge_index(LISTS["paper__cites__paper"]), "rgcn", features=4)
