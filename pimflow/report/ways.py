"""The ways that a device may run a node (layouts and orders of elements of convolutions), with the time of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pimflow.codegen.answers import Way
from pimflow.ir import Graph, Node
from pimflow.records import dataclass
from pimflow.report.measures import Costs


@dataclass(frozen=True)
class DeviceWay:
    """One of several ways to run a device's parts of a node.

    Args:
        device: the device.
        way: "library", "im2col", "im2win" or "direct" on a GPU; "column order" or "window order" on PIM.
        time_us: total time of all parts of the node there that have a choice; a part that lacks this way counts with
            the one that it uses.
        taken: whether any of them runs this way.
    """

    device: str
    way: str
    time_us: float
    taken: bool


def device_ways(graph: Graph, parts: Iterable[Node], device: str, costs: Costs) -> Iterator[DeviceWay]:
    """The ways to run the parts of a node on a device.

    Args:
        graph: placed.
        parts: the parts of the node on the device.
        device: the device.
        costs: of the machine.
    """
    found = [ways for part in parts if part.op.is_contraction and (ways := costs.ways(graph, part))]
    for name in dict.fromkeys(way.name for ways in found for way in ways):
        of_name = [next((way for way in ways if way.name == name), _taken(ways)) for ways in found]
        taken = any(way.is_taken for way in of_name if way.name == name)
        yield DeviceWay(device, name, sum(way.time_us for way in of_name), taken)


def _taken(ways: Sequence[Way]) -> Way:
    return next(way for way in ways if way.is_taken)


def ways_text(ways: Sequence[DeviceWay]) -> str:
    """The ways in use, and the time of each way."""
    taken = " and ".join(way.way for way in ways if way.taken)
    return f"by {taken} ({', '.join(f'{way.way} {way.time_us:.2f} us' for way in ways)})"
