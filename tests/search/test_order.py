"""The linear order: topological, neighbours together, regions found."""

from __future__ import annotations

import random

import networkx as nx
import pytest

from pimflow.ir import Elementwise, Graph, Node, Value
from pimflow.search.order import ForkJoin, branches_of, execution_order, fork_joins, units_of, unordered


def toy(wiring: dict[str, str], outputs: str = "", fused: dict[str, str] | None = None) -> Graph:
    """A graph of one-letter nodes: {"c": "ab"} is a node c that reads what a and b made; "x" is the input."""
    nodes = []
    for name, reads in wiring.items():
        node = Node(Elementwise("Sum"), tuple(f"v_{letter}" for letter in reads), (f"v_{name}",), name)
        into = (fused or {}).get(name)
        nodes.append(node.placed(fused_into=into) if into else node)
    values = {f"v_{name}": Value(f"v_{name}", (1, 4, 4, 4)) for name in ["x", *wiring]}
    ends = outputs or list(wiring)[-1]
    return Graph("toy", ("v_x",), tuple(f"v_{letter}" for letter in ends), tuple(nodes), values, {})


def names(nodes: tuple[Node, ...]) -> str:
    return "".join(node.name for node in nodes)


def test_chain_keeps_its_order() -> None:
    assert names(execution_order(toy({"a": "x", "b": "a", "c": "b"}))) == "abc"


def test_the_operands_of_a_node_are_walked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A join of many branches waits for one after the other: walking its operands each time would be quadratic."""
    walked: list[str] = []
    producer = Graph.producer

    def counted(graph: Graph, value: str) -> Node | None:
        walked.append(value)
        return producer(graph, value)

    monkeypatch.setattr(Graph, "producer", counted)
    assert names(execution_order(toy({"a": "x", "b": "a", "c": "a", "d": "a", "j": "bcd"}))) == "abcdj"
    assert sorted(walked) == ["v_a", "v_a", "v_a", "v_b", "v_c", "v_d", "v_x"]


def test_branches_come_one_after_the_other() -> None:
    graph = toy({"a": "x", "b": "a", "c": "a", "d": "b", "e": "c", "j": "de"})
    assert names(execution_order(graph)) == "abdcej"


def test_skip_branch_with_a_node_is_a_branch_like_any_other() -> None:
    graph = toy({"a": "x", "s": "a", "b": "a", "c": "b", "j": "cs", "z": "j"})
    assert names(execution_order(graph)) == "abcsjz"  # one whole branch after the other, in operand order


def test_fused_node_comes_right_after_its_producer() -> None:
    wiring = {"a": "x", "b": "a", "c": "b", "s": "a", "j": "cs", "r": "j"}
    assert names(execution_order(toy(wiring))) == "abcsjr"  # the last operand's branch comes last
    fused = toy(wiring, fused={"j": "c", "r": "c"})
    assert names(execution_order(fused)) == "asbcjr"
    assert [names(unit.nodes) for unit in units_of(execution_order(fused))] == ["a", "s", "b", "cjr"]
    through = toy(wiring, fused={"j": "c", "r": "j"})
    assert [names(unit.nodes) for unit in units_of(execution_order(through))] == ["a", "s", "b", "cjr"]


def test_swish_is_one_unit() -> None:
    graph = toy({"c": "x", "s": "c", "m": "cs", "z": "m"}, fused={"s": "c", "m": "c"})
    assert [names(unit.nodes) for unit in units_of(execution_order(graph))] == ["csm", "z"]


def test_fusions_that_exclude_each_other_still_give_an_order() -> None:
    # p must follow a, q must follow d; p reads what depends on d, and q reads what depends on a
    graph = toy({"a": "x", "b": "a", "d": "x", "e": "d", "p": "ae", "q": "db"}, "pq", fused={"p": "a", "q": "d"})
    order = names(execution_order(graph))
    assert sorted(order) == sorted("abdepq")
    for before, after in ("a", "b"), ("d", "e"), ("a", "p"), ("e", "p"), ("d", "q"), ("b", "q"):
        assert order.index(before) < order.index(after)


def test_random_graphs_are_ordered_topologically_and_completely() -> None:
    for seed in range(30):
        rng = random.Random(seed)
        wiring: dict[str, str] = {}
        fused = {}
        for letter in "abcdefghijklmnop":
            before = ["x", *wiring]
            wiring[letter] = "".join(dict.fromkeys(rng.choice(before) for _ in range(rng.randint(1, 3))))
            if wiring[letter][0] != "x" and rng.random() < 0.4:
                fused[letter] = wiring[letter][0]
        graph = toy(wiring, fused=fused)
        order = names(execution_order(graph))
        assert sorted(order) == sorted(wiring)
        for letter, reads in wiring.items():
            assert all(source == "x" or order.index(source) < order.index(letter) for source in reads)
        assert [node.name for unit in units_of(execution_order(graph)) for node in unit.nodes] == list(order)


def test_regions_of_random_graphs_touch_nothing_but_their_fork_and_join() -> None:
    found = 0
    for seed in range(60):
        rng = random.Random(seed)
        wiring: dict[str, str] = {}
        for letter in "abcdefghijkl":
            near = ["x", *wiring][-4:]
            wiring[letter] = "".join(dict.fromkeys(rng.choice(near) for _ in range(rng.randint(1, 2))))
        ends = [letter for letter in wiring if not any(letter in reads for reads in wiring.values())]
        order = names(execution_order(toy(wiring, "".join(ends))))
        for region in fork_joins(toy(wiring, "".join(ends)), tuple(execution_order(toy(wiring, "".join(ends))))):
            found += 1
            inside = set(order[region.start : region.stop])
            fork = order[region.start - 1] if region.start else "x"
            join = order[region.stop : region.stop + 1]
            assert all(set(wiring[letter]) <= inside | {fork} for letter in inside)
            assert all(not inside & set(wiring[letter]) for letter in wiring if letter not in inside | {join})
    assert found > 30


def reached(start: str, steps: dict[str, set[str]], without: str = "") -> set[str]:
    found, stack = {start} - {without}, [start] if start != without else []
    while stack:
        fresh = steps.get(stack.pop(), set()) - found - {without}
        found |= fresh
        stack += fresh
    return found


def nearest(node: str, start: str, steps: dict[str, set[str]]) -> str:
    """The immediate dominator by its definition: of the nodes on every path to the node, the last one."""
    cuts = {other for other in steps if other != node and node not in reached(start, steps, without=other)}
    return next(cut for cut in cuts if all(cut not in reached(start, steps, without=other) for other in cuts - {cut}))


def test_fork_joins_are_those_of_the_definition() -> None:
    found = 0
    for seed in range(60):
        rng = random.Random(seed)
        wiring: dict[str, str] = {}
        for letter in "abcdefghijkl":
            near = ["x", *wiring][-rng.randint(2, 5) :]
            wiring[letter] = "".join(dict.fromkeys(rng.choice(near) for _ in range(rng.randint(1, 3))))
        read = {letter for reads in wiring.values() for letter in reads}
        ends = [letter for letter in wiring if letter not in read or rng.random() < 0.05]
        graph = toy(wiring, "".join(ends))
        order = "x" + names(execution_order(graph)) + "!"
        forward: dict[str, set[str]] = {letter: set() for letter in order}
        for letter, reads in [*wiring.items(), ("!", "".join(ends))]:
            for source in reads:
                forward[source].add(letter)
        backward = {letter: {other for other in order if letter in forward[other]} for letter in order}
        expected = set()
        for fork in order[:-1]:
            join = nearest(fork, "!", backward)
            if len(forward[fork]) > 1 and nearest(join, "x", forward) == fork:
                expected.add(ForkJoin(order.index(fork), order.index(join) - 1))
        expected = {region for region in expected if region.stop - region.start > 1}
        assert set(fork_joins(graph, execution_order(graph))) == expected
        found += len(expected)
    assert found > 60


def test_branches_are_the_connected_components() -> None:
    graph = toy({"f": "x", "a": "f", "b": "x", "c": "x", "d": "bc", "e": "a", "g": "c"}, outputs="deg")
    by_name = {node.name: node for node in graph.nodes}
    assert [names(branch) for branch in branches_of(graph, tuple(by_name[letter] for letter in "fbcadeg"))] == [
        "fae",
        "bcdg",
    ]


def test_fork_joins_are_found_inner_first() -> None:
    graph = toy({"f": "x", "a": "f", "g": "f", "b": "g", "c": "g", "h": "bc", "j": "ah", "z": "j"})
    order = execution_order(graph)
    assert names(order) == "fagbchjz"
    assert fork_joins(graph, order) == (ForkJoin(3, 5), ForkJoin(1, 6))
    assert [names(branch) for branch in branches_of(graph, order[1:6])] == ["a", "gbch"]


def test_skip_without_a_second_branch_has_one_branch() -> None:
    graph = toy({"f": "x", "a": "f", "b": "a", "j": "fb"})
    order = execution_order(graph)
    assert fork_joins(graph, order) == (ForkJoin(1, 3),)
    assert [names(branch) for branch in branches_of(graph, order[1:3])] == ["ab"]


def test_branches_over_the_graphs_own_inputs_and_outputs() -> None:
    graph = toy({"a": "x", "b": "x"}, outputs="ab")
    assert fork_joins(graph, execution_order(graph)) == (ForkJoin(0, 2),)
    leak = toy({"f": "x", "a": "f", "b": "f", "j": "ab"}, outputs="ja")
    assert fork_joins(leak, execution_order(leak)) == (ForkJoin(1, 4),), "a's result leaves before j: they end together"


def test_long_chain_is_linear() -> None:
    nodes = [Node(Elementwise("Relu"), ("v_x",), ("v0",), "n0")]
    nodes += [Node(Elementwise("Relu"), (f"v{index - 1}",), (f"v{index}",), f"n{index}") for index in range(1, 5000)]
    values = {name: Value(name, (1, 4)) for name in ["v_x", *(f"v{index}" for index in range(5000))]}
    graph = Graph("long", ("v_x",), ("v4999",), tuple(nodes), values, {})
    assert execution_order(graph) == graph.nodes
    assert fork_joins(graph, graph.nodes) == ()
    assert len(units_of(graph.nodes)) == 5000


def fork_joins_by_networkx(order: tuple[Node, ...], ends: tuple[str, ...]) -> list[ForkJoin]:
    """Fork-joins of `toy` graphs from networkx's dominators and post-dominators."""
    last = len(order)
    producers = {node.output: index for index, node in enumerate(order)}
    flow = nx.DiGraph([(producers.get(name, -1), index) for index, node in enumerate(order) for name in node.inputs])
    flow.add_edges_from((index, last) for index in range(last) if index not in flow or not flow.out_degree(index))
    flow.add_edges_from((producers[name], last) for name in ends)
    dominator = nx.immediate_dominators(flow, -1)
    post = nx.immediate_dominators(flow.reverse(), last)
    found = [
        ForkJoin(fork + 1, post[fork])
        for fork in range(-1, last)
        if flow.out_degree(fork) > 1 and dominator[post[fork]] == fork and post[fork] - fork > 2
    ]
    return sorted(found, key=lambda region: (region.stop - region.start, region.start))


@pytest.mark.parametrize("seed", range(20))
def test_independent_nodes_match_networkx(seed: int) -> None:
    rng = random.Random(seed)
    letters = "abcdefghijklmnop"
    wiring = {
        letter: "".join({rng.choice(f"x{letters[max(0, index - 6) : index]}") for _ in range(rng.randint(1, 2))})
        for index, letter in enumerate(letters)
    }
    graph = toy(wiring, outputs=letters)
    order = execution_order(graph)
    flow = nx.DiGraph([(source, letter) for letter, reads in wiring.items() for source in reads])
    before = [{other for other in letters if nx.has_path(flow, other, node.name)} for node in order]
    expected = {
        (at, behind)
        for behind in range(len(order))
        for at in range(max(0, behind - 4), behind)
        if order[at].name not in before[behind]
    }
    assert sorted(unordered(graph, order, 5)) == sorted(expected)
    assert expected


@pytest.mark.parametrize("seed", range(40))
def test_fork_joins_and_branches_match_networkx(seed: int) -> None:
    rng = random.Random(seed)
    letters = "abcdefghijklmnopqrst"[: rng.randint(2, 20)]
    wiring = {
        letter: "".join({rng.choice(f"x{letters[max(0, index - 4) : index]}") for _ in range(rng.randint(1, 3))})
        for index, letter in enumerate(letters)
    }
    graph = toy(wiring, outputs="".join({rng.choice(letters), letters[-1]}))
    order = execution_order(graph)
    assert list(fork_joins(graph, order)) == fork_joins_by_networkx(order, graph.outputs)
    some = tuple(node for node in order if rng.random() < 0.7)
    producers = {node.output: node.name for node in some}
    links = nx.Graph([(producers[name], node.name) for node in some for name in node.inputs if name in producers])
    links.add_nodes_from(node.name for node in some)
    assert {frozenset(node.name for node in group) for group in branches_of(graph, some)} == {
        frozenset(group) for group in nx.connected_components(links)
    }
