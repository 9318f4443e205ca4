"""`pimflow.gnn` as users call it."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse

from pimflow import gnn
from pimflow.errors import InputDataError, OptionError, TargetError
from support.upmem.graphs import skewed, uniform


def test_a_graph_is_tuned_and_aggregated() -> None:
    graph = skewed(600, 5000)
    tuning = gnn.tune(graph, features=64, dtype="int32", baselines=True, backward=True)
    assert tuning.best == "cpu", "for small graphs the transfer to the modules does not pay"
    assert not tuning.on_pim
    assert tuning.rows[0].exact
    assert str(tuning.strategy) == next(row.strategy for row in tuning.rows if row.strategy != "cpu")
    assert tuning.rows[0].strategy in tuning.text()
    assert tuning.backward is not None
    for row in tuning.rows:
        assert row.total_us == pytest.approx(row.load_us + row.kernel_us + row.retrieve_us + row.merge_us)
    x = np.random.default_rng(0).normal(size=(600, 64)).astype(np.float32)
    matrix = scipy.sparse.csr_matrix((np.ones(5000), graph.col, graph.rowptr), (600, 600))
    expected = matrix @ x.astype(np.float64)
    whole = gnn.aggregate(graph, x, tuning.strategy)
    assert np.abs(whole.values - expected).max() < 1e-4 * np.abs(expected).max()
    assert np.abs(whole.values - expected).max() > 0
    single = gnn.aggregate(graph, x, "2x16 csr row nnz", dtype="fp32")
    np.testing.assert_allclose(single.values, expected, atol=1e-5 * np.abs(expected).max())
    assert single.cost.kernel_us > whole.cost.kernel_us


def test_gradients_are_aggregated_over_the_transpose() -> None:
    graph = skewed(500, 4000)
    tuning = gnn.tune(graph, 32, backward=True)
    reverse = gnn.tune(graph.transposed(), 32)
    assert tuning.backward is not None
    assert tuning.backward.rows == reverse.ranking.rows
    assert tuning.backward.rows != tuning.ranking.rows


@pytest.mark.parametrize(
    ("given", "error", "says"),
    [
        ({"features": 0}, OptionError, "features is 0"),
        ({"features": True}, OptionError, "features is True"),
        ({"features": 2.5}, OptionError, "features is 2.5"),
        ({"features": 8, "dtype": "int64"}, OptionError, "unknown dtype 'int64'"),
        ({"features": 8, "dtype": "fp32", "wide": True}, OptionError, "fp32 cannot be accumulated"),
        ({"features": 8, "heads": 3}, OptionError, "heads is 3"),
        ({"features": 8, "heads": -1}, OptionError, "heads is -1"),
        ({"features": 8, "target": "pimflow"}, TargetError, "no UPMEM modules"),
    ],
)
def test_invalid_requests_are_one_line_errors(given: dict[str, object], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        gnn.tune(uniform(50, 100), **given)  # type: ignore[arg-type]


def test_features_that_do_not_fit_are_refused() -> None:
    graph = uniform(50, 100)
    with pytest.raises(InputDataError, match="the graph has 50 sources"):
        gnn.aggregate(graph, np.zeros((49, 4)))
    with pytest.raises(InputDataError, match="not all finite"):
        gnn.aggregate(graph, np.full((50, 4), np.nan))
    with pytest.raises(OptionError, match="unknown strategy"):
        gnn.aggregate(graph, np.zeros((50, 4)), "fastest")
    star = gnn.Graph.from_csr([0, 5000], np.zeros(5000, np.int32), 1)
    with pytest.raises(InputDataError, match="can reach"):
        gnn.aggregate(star, np.ones((1, 4)), "1x1 csr row row")
    wide = gnn.aggregate(star, np.ones((1, 4)), "1x1 csr row row", wide=True)
    assert wide.values == pytest.approx(5000)


def test_weights_of_several_heads_are_loaded_for_every_call() -> None:
    graph, draw = skewed(300, 2000), np.random.default_rng(0)
    x, weights = draw.normal(size=(300, 8)).astype(np.float32), draw.random((2000, 2)).astype(np.float32)
    found = gnn.aggregate(graph, x, "2x2 csr row nnz", dtype="fp32", weights=weights)
    for head in range(2):
        matrix = scipy.sparse.csr_matrix((weights[:, head], graph.col, graph.rowptr), (300, 300))
        expected = matrix @ x[:, 4 * head : 4 * head + 4].astype(np.float64)
        np.testing.assert_allclose(found.values[:, 4 * head : 4 * head + 4], expected, atol=1e-5)
    assert found.cost.weights_us > 0
    assert gnn.aggregate(graph, x, "2x2 csr row nnz", dtype="fp32").cost.weights_us == 0
    assert gnn.tune(graph, 8, heads=2).ranking.best.cost.weights_us > 0
    for wrong in (weights[:-1], weights[:, None], np.zeros((2000, 3)), weights * np.nan):
        with pytest.raises(InputDataError, match="weights"):
            gnn.aggregate(graph, x, weights=wrong)
