"""`Placement`: where and when a node runs, and what passes decided about it, as typed fields."""

from __future__ import annotations

from pimflow.records import dataclass

ALL_CHANNELS = "all-channels"
"""The choice for the host when it also has the memory channels that units hold while they are in use."""


@dataclass(frozen=True, slots=True)
class MovementVerdict:
    """The decision on a Slice, Pad, Concat or view: whether it moves bytes, and why or why not.

    `copied` are the input positions of a Concat that are copied although the others are written in place. A `composed`
    node moves nothing itself: only copies read its result, and they read its inputs instead.
    """

    free: bool
    reason: str = ""
    copied: tuple[int, ...] = ()
    composed: bool = False


@dataclass(frozen=True, slots=True)
class NarrowOperands:
    """The operands of a product: both are integers of few bits, each with its scale.

    Args:
        dtype: the type that a unit has to multiply, signed or unsigned: "int8".
        step: the scale of the left-hand side: its elements are integers times this.
    """

    dtype: str
    step: float


@dataclass(frozen=True, slots=True)
class Placement:
    """Where and when one node runs. A field is None until it is decided.

    Args:
        device: a device of the target.
        region: index of the plan's decision that the node belongs to; the devices synchronise at the end of each.
        stage: the pipeline's stage.
        choice: the option requested of the device's backend (a mapping policy, a strategy); for the host,
            `ALL_CHANNELS`.
        origin: the node of the cleaned-up graph that the node was made from.
        fused_into: the node whose kernel computes this one in its epilogue.
        movement: the verdict on a node that only moves elements.
        padding: for a convolution whose padding is not settled yet, the verdict on the Pad that it or a part may need.
        narrow: for a product, its operands if the model stores them in few bits that a unit of the machine can
            multiply.
        access: for a node that reads rows of a table in the host's memory, how they are brought from there.
    """

    device: str | None = None
    region: int | None = None
    stage: int | None = None
    choice: str | None = None
    origin: str | None = None
    fused_into: str | None = None
    movement: MovementVerdict | None = None
    padding: MovementVerdict | None = None
    narrow: NarrowOperands | None = None
    access: str | None = None


UNPLACED = Placement()
