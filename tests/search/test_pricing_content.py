"""Prices are cached by content: two constants of equal shape that change a unit's work have different prices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from pimflow.codegen.work import MatmulProblem
from pimflow.ir import Builder, Decision, Graph, MatMul, Node, OnDevice, Op, Refusal, SplitRows
from pimflow.runtime.costs import CostModel
from pimflow.runtime.gpu.measured import MeasuredTable, read_table, table_text
from pimflow.runtime.gpu.profiling import profile_model
from pimflow.runtime.newton.backend import NewtonBackend, NewtonWork
from pimflow.runtime.newton.cost import PimCost
from pimflow.search.price_cache import PriceCache
from pimflow.search.pricing import Pricer, content_text
from pimflow.targets import load_target
from support.pruned import Pruned, PrunedWork, pruned_products

DECISIONS: list[Decision] = [
    OnDevice("product", "gpu"),
    OnDevice("product", "pim", "newton++"),
    SplitRows("product", 24, "newton++"),
]


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    with pruned_products():
        yield


def product(op: Op, rows_kept: int, name: str = "w") -> Graph:
    """[64, 2048] @ [2048, 512], with all but the first rows of the weights zero."""
    weights = np.zeros((2048, 512), np.float32)
    weights[:rows_kept] = 1.0
    build = Builder()
    return build.graph(build.op(op, build.input(64, 2048), build.constant(weights, name), name="product"))


class PruningPim(NewtonBackend):
    """A PIM that also skips rows of zeros."""

    def cost(self, work: NewtonWork, choice: str) -> PimCost | Refusal:
        assert isinstance(work, PrunedWork)
        return self.search.choose(MatmulProblem(work.m, work.rows_kept, work.n), choice)


def cost_model(measured: MeasuredTable | None = None) -> CostModel:
    target = load_target("pimflow")
    return CostModel(target, measured=measured, units={"pim": PruningPim("pim", target.pim)})


def text(graph: Graph, decision: Decision) -> str:
    return content_text(graph, frozenset(graph.outputs), (decision,))


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda decision: type(decision).__name__)
def test_the_key_distinguishes_contents_only(decision: Decision) -> None:
    sparse, dense = product(Pruned(), 100), product(Pruned(), 2000)
    assert text(sparse, decision) != text(dense, decision)
    assert text(sparse, decision) == text(product(Pruned(), 100, name="v"), decision), "an equal array elsewhere"
    assert text(product(MatMul(), 100), decision) == text(product(MatMul(), 2000), decision), "zeros cost it the same"


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda decision: type(decision).__name__)
def test_one_table_and_one_cost_model_price_both_graphs_right(decision: Decision, tmp_path: Path) -> None:
    graphs = [product(Pruned(), rows) for rows in (100, 2000)]
    alone = [Pricer(graph, cost_model(), PriceCache(None, "")).cost((decision,)) for graph in graphs]
    costs, table = cost_model(), PriceCache(tmp_path, "shared")
    together = [Pricer(graph, costs, table).cost((decision,)) for graph in graphs]
    assert together == alone
    assert together[0] is not None
    assert together[1] is not None
    assert together[0] < together[1]
    table.flush()
    again = [Pricer(graph, costs, PriceCache(tmp_path, "shared")) for graph in graphs]
    assert [pricer.cost((decision,)) for pricer in again] == alone
    assert [pricer.built for pricer in again] == [0, 0], "both are found in the table"


class CountingTimer:
    """A timer whose every kernel takes a microsecond more than the previous one."""

    dtype, machine, versions = "float32", "none", "0"

    def __init__(self) -> None:
        self.timed = 0

    def time_us(self, graph: Graph, node: Node, warmup: int, repeats: int) -> Sequence[float]:
        self.timed += 1
        return [float(self.timed)]


def two_products() -> Graph:
    """The same product with dense weights after one with sparse weights, and then with the sparse ones again."""
    build = Builder()
    x = build.input(8, 16)
    sparse, dense = np.zeros((16, 16), np.float32), np.ones((16, 16), np.float32)
    sparse[0] = 1.0
    for weights, name in ((sparse, "first"), (dense, "second"), (sparse.copy(), "third")):
        x = build.op(Pruned(), x, build.constant(weights), name=name)
    return build.graph(x)


def test_kernels_are_measured_and_looked_up_by_content(tmp_path: Path) -> None:
    graph = two_products()
    rows = profile_model(graph, "cpu", timer=CountingTimer())
    assert [row.time_us for row in rows] == [1.0, 2.0]
    (tmp_path / "kernels.csv").write_text(table_text(rows))
    assert read_table(tmp_path / "kernels.csv") == rows
    measured = cost_model(MeasuredTable(rows)).host_only()
    assert [measured.node_cost(graph, node).time_us for node in graph.nodes] == pytest.approx([1.0, 2.0, 1.0])
