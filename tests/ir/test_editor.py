"""The editor: replacements, renames and fresh names, in linear time."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pimflow.errors import GraphError
from pimflow.ir import Graph, GraphEditor, Value
from support.vector_graphs import assert_sound, graph_of, identity, op


def meaning(graph: Graph) -> tuple[object, ...]:
    """The computation of each output, as a term over inputs and constants; copies do not count."""
    terms: dict[str, object] = {name: name for name in graph.inputs}
    terms |= {name: tuple(array.tolist()) for name, array in graph.constants.items()}
    for node in graph.nodes:
        read = tuple(terms[name] if name else None for name in node.inputs)
        for index, name in enumerate(node.outputs):
            terms[name] = read[0] if node.kind == "Identity" else (node.kind, index, read)
    return tuple(terms[name] for name in graph.outputs)


def test_without_edits_nothing_changes() -> None:
    graph = graph_of([op("A", ["x"], "a"), op("B", ["a"], "b")], ["b"])
    editor = GraphEditor(graph)
    assert not editor.changed
    again = editor.finish()
    assert again.nodes == graph.nodes
    assert all(new is old for new, old in zip(again.nodes, graph.nodes, strict=True))


def test_a_node_is_replaced_by_several_in_its_place() -> None:
    graph = graph_of([op("A", ["x"], "a"), op("B", ["a"], "b"), op("C", ["b"], "c")], ["c"])
    editor = GraphEditor(graph)
    middle = editor.new_value("b", (4,), "float32")
    assert middle == "b_1"
    editor.replace_node("n_b", [op("B1", ["a"], middle), op("B2", [middle], "b")])
    edited = editor.finish()
    assert_sound(edited)
    assert [node.kind for node in edited.nodes] == ["A", "B1", "B2", "C"]
    assert editor.changed


def test_replacements_out_of_order_are_sorted() -> None:
    graph = graph_of([op("A", ["x"], "a"), op("B", ["x"], "b")], ["a"])
    editor = GraphEditor(graph)
    editor.replace_node("n_a", [op("A", ["b"], "a")])  # reads the output of a later node
    edited = editor.finish()
    assert_sound(edited)
    assert [node.kind for node in edited.nodes] == ["B", "A"]


def test_unused_values_and_constants_are_removed() -> None:
    constants = {"w": np.ones(4, np.float32), "v": np.zeros(4, np.float32)}
    graph = graph_of([op("A", ["x", "w"], "a"), op("B", ["a", "v"], "b")], ["a"], constants=constants)
    editor = GraphEditor(graph)
    editor.replace_node("n_b", [])
    editor.new_constant("unused", np.ones(2, np.float32))
    edited = editor.finish()
    assert_sound(edited)
    assert set(edited.constants) == {"w"}
    assert set(edited.values) == {"x", "w", "a"}


def test_a_value_becomes_a_constant() -> None:
    graph = graph_of([op("A", ["x"], "a"), op("B", ["a"], "b")], ["b"])
    editor = GraphEditor(graph)
    editor.set_constant("a", np.ones((2, 2), np.float16))
    editor.replace_node("n_a", [])
    edited = editor.finish()
    assert_sound(edited)
    assert edited.value("a") == Value("a", (2, 2), "float16")


def test_an_unknown_node_cannot_be_replaced() -> None:
    editor = GraphEditor(graph_of([op("A", ["x"], "a")], ["a"]))
    with pytest.raises(GraphError, match="no node 'a'"):
        editor.replace_node("a", [])


def test_fresh_names_are_fresh_and_reproducible() -> None:
    graph = graph_of([op("A", ["x"], "a"), op("B", ["a"], "a_1")], ["a_1"])

    def names() -> list[str]:
        editor = GraphEditor(graph)
        made = [editor.new_value("a", (4,), "float32") for _ in range(3)]
        made += [editor.new_constant(base, np.ones(1, np.float32)) for base in ("new", "new", "")]
        return [*made, *(editor.new_node_name("n_a") for _ in range(2))]

    assert names() == names()
    assert names()[:3] == ["a_2", "a_3", "a_4"]
    assert names()[3] == "new"
    assert all(names())
    assert len(set(names())) == len(names())


def test_renames_are_chained() -> None:
    graph = graph_of([identity("x", "a"), identity("a", "b"), op("C", ["b", "a"], "c")], ["c"])
    editor = GraphEditor(graph)
    for made, source in (("b", "a"), ("a", "x")):
        editor.rename_uses(made, source)
        editor.replace_node(f"n_{made}", [])
    edited = editor.finish()
    assert_sound(edited)
    assert edited.node("n_c").inputs == ("x", "x")


def test_renames_in_a_circle_are_an_error() -> None:
    editor = GraphEditor(graph_of([op("A", ["x"], "a"), op("B", ["a"], "b")], ["b"]))
    editor.rename_uses("a", "b")
    editor.rename_uses("b", "a")
    with pytest.raises(GraphError, match="circle"):
        editor.finish()


def test_a_node_is_inserted_after_a_value() -> None:
    graph = graph_of([op("A", ["x"], "a"), op("B", ["a"], "b"), op("C", ["a"], "c")], ["b", "c"])
    editor = GraphEditor(graph)
    behind = editor.new_value("a", (4,), "float32")
    editor.replace_node("n_a", [graph.node("n_a"), op("New", ["a"], behind)])
    editor.rename_uses("a", behind)
    edited = editor.finish()
    assert_sound(edited)
    assert meaning(edited) == tuple((kind, 0, (("New", 0, (("A", 0, ("x",)),)),)) for kind in "BC")


def test_two_nodes_are_inserted_after_a_value_in_turn() -> None:
    graph = graph_of([op("A", ["x"], "a"), op("B", ["a"], "b")], ["b"])
    editor = GraphEditor(graph)
    first, second = (editor.new_value("a", (4,), "float32") for _ in range(2))
    editor.replace_node("n_a", [graph.node("n_a"), op("F", ["a"], first), op("G", [first], second)])
    editor.rename_uses("a", first)
    editor.rename_uses(first, second)
    edited = editor.finish()
    assert_sound(edited)
    assert [node.kind for node in edited.nodes] == ["A", "F", "G", "B"]
    assert meaning(edited) == (("B", 0, (("G", 0, (("F", 0, (("A", 0, ("x",)),)),)),)),)


def test_a_remaining_copy_reads_its_renamed_input() -> None:
    graph = graph_of([op("A", ["x"], "a"), identity("a", "b"), identity("b", "c"), op("D", ["c"], "d")], ["d", "c"])
    editor = GraphEditor(graph)
    editor.rename_uses("b", "a")
    editor.replace_node("n_b", [])
    editor.rename_uses("c", "b")  # n_c keeps its use
    edited = editor.finish()
    assert_sound(edited)
    assert meaning(edited) == meaning(graph)


def removed(graph: Graph, *names: str) -> Graph:
    """The graph without these copies."""
    editor = GraphEditor(graph)
    for name in names:
        node = graph.node(name)
        editor.rename_uses(node.output, node.inputs[0])
        editor.replace_node(name, [])
    return editor.finish()


def test_the_producer_takes_over_an_outputs_name() -> None:
    graph = graph_of([op("A", ["x"], "a"), op("B", ["a"], "b"), identity("a", "y")], ["y", "b"])
    edited = removed(graph, "n_y")
    assert_sound(edited)
    assert edited.outputs == ("y", "b")
    assert meaning(edited) == meaning(graph)
    assert len(edited.nodes) == 2


@pytest.mark.parametrize("outputs", [["y", "z"], ["z", "y", "z"], ["y", "a"], ["a", "y", "z"]])
def test_two_outputs_of_one_value_keep_both_names(outputs: list[str]) -> None:
    graph = graph_of([op("A", ["x"], "a"), identity("a", "y"), identity("a", "z")], outputs)
    edited = removed(graph, "n_y", "n_z")
    assert_sound(edited)
    assert edited.outputs == tuple(outputs)
    assert meaning(edited) == meaning(graph)
    assert len(edited.nodes) == len(set(outputs))


def test_an_output_that_is_an_input_or_a_constant_is_copied() -> None:
    graph = graph_of([identity("x", "y"), identity("w", "z")], ["y", "z"], constants={"w": np.ones(4, np.float32)})
    edited = removed(graph, "n_y", "n_z")
    assert_sound(edited)
    assert meaning(edited) == meaning(graph)
    assert [node.kind for node in edited.nodes] == ["Identity"] * 2


def test_a_node_is_inserted_after_an_output() -> None:
    graph = graph_of([op("A", ["x"], "y"), op("B", ["y"], "b")], ["y", "b"])
    editor = GraphEditor(graph)
    behind = editor.new_value("y", (4,), "float32")
    editor.replace_node("n_y", [graph.node("n_y"), op("New", ["y"], behind)])
    editor.rename_uses("y", behind)
    edited = editor.finish()
    assert_sound(edited)
    new = ("New", 0, (("A", 0, ("x",)),))
    assert meaning(edited) == (new, ("B", 0, (new,)))


def test_a_node_is_inserted_after_a_constant_output() -> None:
    graph = graph_of([op("B", ["w"], "b")], ["w", "b"], constants={"w": np.ones(1, np.float32)})
    editor = GraphEditor(graph)
    behind = editor.new_value("w", (1,), "float32")
    editor.replace_node("n_b", [op("New", ["w"], behind), graph.node("n_b")])
    editor.rename_uses("w", behind)
    edited = editor.finish()
    assert_sound(edited)
    assert meaning(edited)[0] == ("New", 0, ((1.0,),))


def test_an_output_that_is_an_input_cannot_be_renamed() -> None:
    graph = graph_of([op("A", ["x"], "a")], ["x", "a"])
    editor = GraphEditor(graph)
    editor.rename_uses("x", "a")
    with pytest.raises(GraphError, match="'x' is an input too"):
        editor.finish()


@st.composite
def graphs_with_copies(draw: st.DrawFn) -> Graph:
    made = ["x", "w"]
    nodes = []
    for index in range(draw(st.integers(1, 9))):
        name = f"v{index}"
        if draw(st.booleans()):
            nodes.append(identity(draw(st.sampled_from(made)), name))
        else:
            nodes.append(op(f"K{index}", draw(st.lists(st.sampled_from(made), min_size=1, max_size=3)), name))
        made.append(name)
    outputs = draw(st.lists(st.sampled_from(made[2:]), min_size=1, max_size=4))
    return graph_of(nodes, outputs, constants={"w": np.ones(2, np.float32)})


@settings(max_examples=200)
@given(graphs_with_copies(), st.data())
def test_removing_and_adding_copies_changes_nothing_but_copies(graph: Graph, data: st.DataObject) -> None:
    editor = GraphEditor(graph)
    for node in graph.nodes:
        choice = data.draw(st.sampled_from(["keep", "remove", "add"]))
        if choice == "remove" and node.kind == "Identity":
            editor.rename_uses(node.output, node.inputs[0])
            editor.replace_node(node.name, [])
        elif choice == "add":
            behind = editor.new_value(node.output, (4,), "float32")
            editor.replace_node(node.name, [node, identity(node.output, behind, editor.new_node_name(node.name))])
            editor.rename_uses(node.output, behind)
    edited = editor.finish()
    assert_sound(edited)
    assert edited.outputs == graph.outputs
    assert meaning(edited) == meaning(graph)


class CountedName(str):
    """A name that counts hash lookups of all such names."""

    __slots__ = ()
    lookups = 0

    def __hash__(self) -> int:
        CountedName.lookups += 1
        return super().__hash__()


def test_long_chains_of_renames_are_followed_once() -> None:
    count = 2_000
    values = [CountedName(name) for name in ("x", *(f"v{index}" for index in range(count)))]
    copies = [identity(source, made) for source, made in pairwise(values)]
    readers = [op("K", [value], f"k{index}") for index, value in enumerate(values[1:])]
    graph = graph_of([*copies, *readers], [f"k{index}" for index in range(count)])
    editor = GraphEditor(graph)
    CountedName.lookups = 0
    for node in copies:
        editor.rename_uses(node.output, node.inputs[0])
        editor.replace_node(node.name, [])
    edited = editor.finish()
    assert all(node.inputs == ("x",) for node in edited.nodes)
    assert 0 < CountedName.lookups < 40 * count
