"""Generated graphs: sizes, degrees and communities as requested, and the same for the same seed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pimflow.errors import GraphDataError
from pimflow.sparse import DATA_SETS, Graph, forms, generate, in_degrees, like, out_degrees, statistics_of

MAKERS: dict[str, Callable[[int], Graph]] = {
    "like": lambda seed: like("pubmed", seed=seed),
    "blocks": lambda seed: generate.block_model(500, 3000, 10, 0.2, seed=seed),
    "R-MAT": lambda seed: generate.rmat(9, 3000, seed),
    "power law": lambda seed: generate.power_law(500, 3000, 60, seed),
    "streets": lambda seed: generate.road_grid(20, 20, seed=seed),
    "uniform": lambda seed: generate.uniform(500, 3000, seed),
}


@pytest.mark.parametrize("name", MAKERS)
def test_a_seed_makes_one_graph(name: str) -> None:
    make = MAKERS[name]
    assert make(0).sha256 == make(0).sha256 != make(1).sha256


@pytest.mark.parametrize("name", DATA_SETS)
def test_published_sizes_of_data_sets(name: str) -> None:
    known, share = DATA_SETS[name], 1.0 if name == "pubmed" else 20_000 / DATA_SETS[name].vertices
    graph = like(name, share, keep="density")
    assert graph.num_dst == pytest.approx(known.vertices * share, abs=1)
    assert graph.num_edges == pytest.approx(known.edges * share**2, rel=1e-3)
    assert in_degrees(graph).max() == pytest.approx(known.max_degree * share, rel=0.25)
    np.testing.assert_array_equal(in_degrees(graph), out_degrees(graph))


def test_edges_per_vertex_are_kept_unless_density_is() -> None:
    small = like("pubmed", 0.5)
    assert statistics_of(small).mean_degree == pytest.approx(88_648 / 19_717, rel=1e-3)
    assert like("pubmed", 0.5, keep="density").num_edges == pytest.approx(small.num_edges / 2, rel=1e-3)


def test_blocks_keep_all_but_a_share_of_the_edges() -> None:
    graph = generate.block_model(10_000, 200_000, 100, 0.1, in_order=True)
    src, dst = graph.edge_index()
    assert np.mean(src // 100 == dst // 100) == pytest.approx(0.9 + 0.1 / 100, abs=0.005)
    assert in_degrees(graph).std() < 5
    skewed = generate.block_model(10_000, 200_000, 100, 0.1, max_degree=900)
    assert in_degrees(skewed).max() == pytest.approx(900, rel=0.25)


def test_rmat_fills_quadrants_as_specified() -> None:
    src, dst = generate.rmat(10, 100_000, quadrants=(0.5, 0.1, 0.15, 0.25)).edge_index()
    shares = [np.mean((src >= 512) == low, where=(dst >= 512) == right) for low in (0, 1) for right in (0, 1)]
    assert shares == pytest.approx([0.5 / 0.65, 0.1 / 0.35, 0.15 / 0.65, 0.25 / 0.35], abs=0.01)


def test_power_law_graphs_have_hubs_and_road_grids_none() -> None:
    hubs = generate.power_law(20_000, 100_000, 2000)
    assert in_degrees(hubs).max() == pytest.approx(2000, rel=0.1)
    assert out_degrees(hubs).max() == pytest.approx(2000, rel=0.1)
    streets = generate.road_grid(50, 40, 0.0)
    assert streets.num_edges == 2 * (49 * 40 + 50 * 39)
    assert np.bincount(in_degrees(streets)).tolist()[2:] == [4, 2 * (48 + 38), 48 * 38]


def test_unknown_names_and_impossible_sizes_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GraphDataError, match="no data set is called 'redit'; did you mean 'reddit'"):
        like("redit")
    monkeypatch.setattr(forms, "available_bytes", lambda: 1 << 20)
    makers: list[Callable[[], Graph]] = [
        lambda: like("reddit"),
        lambda: generate.rmat(20, 10**8),
        lambda: generate.uniform(10, 10**8),
    ]
    for make in makers:
        with pytest.raises(GraphDataError, match=r"of memory is free"):
            make()
