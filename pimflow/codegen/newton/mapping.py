"""`Mapping`: how a matrix problem is distributed over the PIM channels, as plain data.

A problem is a P x K source matrix times a K x N weight matrix. K is cut into chunks of a number of column I/Os
("slots"); N into tiles of one output channel per bank; the pixels of a chunk into fills of the global buffer. The
channels form groups that divide the fills among them; within a group every channel sees the same fills. The (tile,
pixel) units of a fill are divided among the channels, the same way for every fill, so that the group advances together.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pimflow.data import Limits
from pimflow.records import NamedTuple, dataclass
from pimflow.targets import PimSpec

Order = Literal["fills", "rows", "latch"]
Deal = Literal["tiles", "units"]
Some = Annotated[int, Limits(least=1)]
"""How many there are, one or more."""
Number = Annotated[int, Limits(least=0)]
"""A position, or how many there are, possibly none."""


@dataclass(frozen=True, slots=True)
class ChunkRun:
    """`count` consecutive equal chunks of K: each `columns` slots long, with `pixels` pixels in one buffer fill.

    `pitch` is the distance between two pixels in the buffer, in slots: `columns`, or less if neighbouring windows
    share data (an im2win strip: fills then never cross an output row). With `copies` > 1, the buffer holds the pixels
    of a fill that many times, once for every tile in a row.
    """

    columns: Some
    pixels: Some
    count: Some = 1
    pitch: Number = 0  # 0: `columns`
    copies: Some = 1

    @property
    def step(self) -> int:
        """Distance between two pixels in the buffer, in slots."""
        return self.pitch or self.columns

    @property
    def slots(self) -> int:
        """Slots of the buffer that one fill occupies."""
        return (self.copies * self.pixels - 1) * self.step + self.columns


class Share(NamedTuple):
    """Pixels `start` to `stop` of chunk run `run`: the work of a group of channels."""

    run: Number
    start: Number
    stop: Number


class ChannelGroup(NamedTuple):
    """Channels that listen to one global buffer, and their work, in order.

    `weight_groups` (first, stop) are the groups of a convolution, or the products of a batch with different right-hand
    sides, that they process; None for all.
    """

    channels: Some
    shares: tuple[Share, ...]
    weight_groups: tuple[Number, Number] | None = None


@dataclass(frozen=True, slots=True)
class Mapping:
    """A point in the mapping space.

    Args:
        name: the policy that chose it.
        runs: the chunks of K, in order.
        groups: channel groups and their shares of the work; together they cover every chunk's pixels exactly once.
        order: "fills": a fill, then all tiles on it (with a row activation for each); "rows": a row stays open over
            all fills; "latch": all chunks of one pixel and tile in sequence, summed in the latch, one READRES.
        deal: "units": (tile, pixel) units in tile-major order, cut into equal lengths; "tiles": whole tiles
            round-robin, leftover tiles split by pixels, then by columns of K.
        early_fill: with "rows", the next GWRITE is issued before the last READRES of the previous fill.
        acts_first: G_ACTs issued before the GWRITE, so that their waits overlap.
        fills_held: how many buffers of a channel are filled at a time.
        prefetch: with "rows" and several buffers, each is refilled as soon as its COMPs are done, while those of the
            next one run; otherwise all are filled together.
        tiles_per_row: 0: a row holds one tile, its weights repeated for every pixel of a fill (slot = column).
            Otherwise, the number of tiles side by side in a row; either COMP pairs any slot with any column, or the
            buffer holds every chunk in as many `copies` (slot = column).
        window_block: 0: K runs over (channel, kh, kw); otherwise over (block, kw, kh, channel in block), window order.
        gwrite_latency: "hidden" or "exposed" if the policy determines it, None for the target's.
        reopens_rows: whether the controller reopens rows that a refresh closed, if the timing rules leave the choice
            (`artifact`: the published controller does not, and COMPs run on closed rows).
        buffer_parts: the number of parts of each buffer; each part is filled and read like a buffer.
    """

    name: str
    runs: tuple[ChunkRun, ...]
    groups: tuple[ChannelGroup, ...]
    order: Order = "fills"
    deal: Deal = "units"
    early_fill: bool = True
    acts_first: Number = 0
    fills_held: Some = 1
    prefetch: bool = False
    tiles_per_row: Number = 0
    window_block: Number = 0
    gwrite_latency: Literal["hidden", "exposed"] | None = None
    reopens_rows: bool = False
    buffer_parts: Some = 1

    @property
    def element_order(self) -> str:
        """The order in which K runs over the elements of a window, in words."""
        return "window order" if self.window_block else "column order"

    @property
    def text(self) -> str:
        """The loop order, and the slots of K and pixels that a fill holds."""
        chunks = ", ".join(f"{run.count} x {run.columns} slots, {run.pixels} a fill" for run in self.runs)
        windows = f"window order (im2win), {self.window_block} channels a block, " if self.window_block else ""
        return f"{self.name}: order {self.order}, {windows}K in {chunks}"

    def as_json(self) -> dict[str, object]:
        """The mapping for reports and files, in plain types."""
        return {
            "name": self.name,
            "order": self.order,
            "deal": self.deal,
            "chunks": [
                {
                    "columns": run.columns,
                    "pixels_per_fill": run.pixels,
                    "count": run.count,
                    "pitch": run.step,
                    "copies": run.copies,
                }
                for run in self.runs
            ],
            "groups": [
                {
                    "channels": group.channels,
                    "pixels": sum(share.stop - share.start for share in group.shares),
                    "weight_groups": group.weight_groups,
                }
                for group in self.groups
            ],
            "early_fill": self.early_fill,
            "acts_first": self.acts_first,
            "fills_held": self.fills_held,
            "prefetch": self.prefetch,
            "tiles_per_row": self.tiles_per_row,
            "window_block": self.window_block,
            "gwrite_latency": self.gwrite_latency,
            "reopens_rows": self.reopens_rows,
            "buffer_parts": self.buffer_parts,
        }


def acts_before_fill(pim: PimSpec) -> int:
    """G_ACTs whose wait overlaps that of a GWRITE: one, or none if banks and registers are accessed in alternation."""
    return 0 if pim.timing.strict.t_mod else 1
