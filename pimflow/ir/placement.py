"""`Placement`: where and when a node runs, and what became of it on the way there, as typed fields."""

from __future__ import annotations

from pimflow.records import dataclass

ALL_CHANNELS = "all-channels"
"""What the host is asked for where it has those memory channels too that units hold while they are in use."""


@dataclass(frozen=True, slots=True)
class MovementVerdict:
    """What is decided of a Slice, Pad, Concat or view: whether it moves bytes, and why (not).

    `copied` are the input positions of a Concat that are copied though the others are written in place. What is
    `composed` moves nothing itself: copies alone read it, and they read what it reads.
    """

    free: bool
    reason: str = ""
    copied: tuple[int, ...] = ()
    composed: bool = False


@dataclass(frozen=True, slots=True)
class NarrowOperands:
    """Of a product: both operands are whole numbers of few bits, each with its scale.

    Args:
        dtype: what a unit has to multiply, whatever sign it has: "int8".
        step: the scale of the left-hand side; what it holds are whole numbers times this.
    """

    dtype: str
    step: float


@dataclass(frozen=True, slots=True)
class Placement:
    """Where and when one node runs. All fields are None while nothing is decided.

    Args:
        device: a device of the target.
        region: index of the plan's decision that the node belongs to; the devices meet at the end of each.
        stage: the pipeline's stage.
        choice: what the device's backend was asked for (a mapping policy, a strategy); of the host's, `ALL_CHANNELS`.
        origin: the node of the cleaned-up graph that the node was made from.
        fused_into: the node whose kernel computes this one in its epilogue.
        movement: the verdict on a node that only moves elements.
        padding: of a convolution until its padding is settled: the verdict on the Pad that it or a part of it may need.
        narrow: of a product whose operands the model keeps in few bits, where a unit of the machine multiplies those.
        access: of a node that reads rows of a table: how they come from the host's memory, where the table lies.
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
