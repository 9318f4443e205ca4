"""Parts with the copies around them."""

from __future__ import annotations

from pimflow.ir import Elementwise, Node
from pimflow.search.part_prices import FREE, Part, PlacedPart
from pimflow.search.part_steps import Steps, least_makespan_us, with_copies

LOAD, STORE = PlacedPart("link", Part(2.0)), PlacedPart("link", Part(3.0))
NODES = [Node(Elementwise("Relu"), (f"x{at}",), (f"y{at}",), f"n{at}") for at in range(3)]


def epilogue_of_a_unit() -> Steps:
    """A node of the host, one of a unit behind a link, and one that is fused into the latter and reads both."""
    parts = [Part(5.0), Part(7.0, before=(LOAD,), after=(STORE,)), FREE]
    written = [(at, node, None) for at, node in enumerate(NODES)]
    return Steps(["gpu", "cpu", "cpu"], parts, [(), (), (0, 1)], written, [0, 1, 1], complete=True)


def test_copies_are_parts_between_what_is_read_and_what_reads() -> None:
    steps = with_copies(epilogue_of_a_unit())
    assert steps.devices == ["gpu", "link", "cpu", "link", "cpu"]
    assert [part.us for part in steps.parts] == [5, 2, 7, 3, 0]
    assert steps.reads == [[], [], [1], [2], [0, 3]]
    assert [(at, node.name) for at, node, _ in steps.written] == [(0, "n0"), (1, "n1"), (2, "n1"), (3, "n1"), (4, "n2")]
    assert least_makespan_us(steps) == 12


def test_a_kernel_waits_for_operands_of_its_epilogue_before_its_copies() -> None:
    assert epilogue_of_a_unit().epilogue_reads() == {1: [0]}
    assert with_copies(epilogue_of_a_unit()).epilogue_reads() == {1: [0]}, "part 1 is the first copy"


def test_without_copies_nothing_changes() -> None:
    steps = Steps(["gpu"], [Part(1.0)], [()], [(0, NODES[0], None)], [0], complete=True)
    assert with_copies(steps) is steps
