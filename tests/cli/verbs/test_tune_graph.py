"""`pimflow tune-graph`: from a file to a ranking."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pimflow.codegen.upmem.strategy import Strategy
from support.cli import Capture, assert_one_line, document, run
from support.upmem.graphs import skewed


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    file = tmp_path / "graph.npz"
    np.savez(file, edge_index=skewed(400, 6000).edge_index(), num_nodes=400)
    return file


def test_the_ranking_has_the_promised_keys(graph: Path, capsys: Capture) -> None:
    item = document(capsys, "tune-graph", graph, "--features", 64)
    best, *others = item["ranking"]
    assert best["strategy"] == item["best"]
    assert best["exact"]
    strategies = [row["strategy"] for row in item["ranking"] if row["strategy"] != "cpu"]
    assert [str(Strategy.parse(strategy)) for strategy in strategies] == strategies
    assert item["best"] == "cpu"
    assert [row["total_us"] for row in others] == sorted(row["total_us"] for row in others)
    for row in item["ranking"]:
        stages = (row["load_us"], row["kernel_us"], row["retrieve_us"], row["merge_us"])
        assert row["total_us"] == pytest.approx(sum(stages))
    assert "load" in item["why"] or "kernel" in item["why"] or "merge" in item["why"]


def test_the_element_type_matters(graph: Path, capsys: Capture) -> None:
    times = [
        min(
            row["total_us"]
            for row in document(capsys, "tune-graph", graph, "--features", 64, "--dtype", element)["ranking"]
            if row["exact"] and row["strategy"] != "cpu"
        )
        for element in ("int16", "int32", "fp32")
    ]
    assert times == sorted(times)
    assert len(set(times)) == 3


def test_weights_from_run_time_are_part_of_loading(graph: Path, capsys: Capture) -> None:
    once, every = (document(capsys, "tune-graph", graph, "--features", 64, *given) for given in ((), ("--heads", "4")))
    assert (every["heads"], every["computed"]) == (4, True)
    assert (once["heads"], once["computed"]) == (1, False)
    least = [min(row["load_us"] for row in item["ranking"] if row["strategy"] != "cpu") for item in (once, every)]
    assert least[1] > least[0]


def test_the_table_names_the_winner(graph: Path, capsys: Capture) -> None:
    assert run("tune-graph", graph, "--features", 32) == 0
    text = capsys.readouterr().out
    (best,) = (line for line in text.splitlines() if line.startswith("best: "))
    assert text.splitlines()[4].split("  ")[0] in best


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--features", "0"), "0"),
        (("--features", "8", "--target", "pimflow"), "no UPMEM modules"),
        (("--features", "8", "--dtype", "int4"), "int4"),
        (("--features", "8", "--heads", "3"), "heads is 3"),
        (("--features", "8", "--dtype", "fp32", "--wide"), "int64"),
    ],
)
def test_invalid_requests_are_one_line_errors(
    graph: Path, capsys: Capture, arguments: tuple[str, ...], says: str
) -> None:
    assert run("tune-graph", graph, *arguments) == 2
    assert says in assert_one_line(capsys)


def test_a_graph_that_fits_no_strategy_stays_on_the_host(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "wide.npz"
    np.savez(file, edge_index=np.array([[0, 1], [1, 0]]), num_nodes=2_000_000)
    item = document(capsys, "tune-graph", file, "--features", 4096)
    assert [row["strategy"] for row in item["ranking"]] == ["cpu"]
    assert "bytes of" in item["why"]
    assert run("tune-graph", file, "--features", 4096) == 0
