"""The result of planning a rewrite by rows: which rows of which node are computed in which part, and where."""

from __future__ import annotations

from pimflow.ir import Node, RowPart
from pimflow.records import NamedTuple, dataclass


class PartJob(NamedTuple):
    """Rows [start, stop) of one node, computed on one device.

    `stage` is the pipeline's stage, None in a split; `suffix` distinguishes the names of a node's parts.
    """

    node: Node
    start: int
    stop: int
    part: RowPart
    device: str
    suffix: str
    stage: int | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """The parts of a region in an order in which they can be computed, and the values that leave it."""

    jobs: tuple[PartJob, ...]
    leaving: tuple[str, ...]
