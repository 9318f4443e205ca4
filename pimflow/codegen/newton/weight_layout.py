"""The location of every weight element: channel, bank, row and column, including replicas."""

from __future__ import annotations

import numpy as np

from pimflow.codegen.newton.im2col import Geometry
from pimflow.ir import Array
from pimflow.records import dataclass
from pimflow.targets import PimSpec


@dataclass(frozen=True, slots=True)
class RowBlock:
    """`runs` x `count` rows of one channel, arranged alike: row `row + run * run_rows + i` holds, in bank b, weights of
    output channel `(tile + i * tile_stride + u) * banks + b` for every u below `tiles`.

    Of K it holds the slots `slot + run * run_slots + j` for j in `columns`; slot j of tile u is in row column
    `u * tile_pitch + copy * pitch + j`, for every copy in `copies`.
    """

    row: int
    count: int
    tile: int
    tile_stride: int
    tiles: int
    slot: int
    columns: tuple[int, int]  # first and stop within the chunk
    copies: tuple[int, int]  # first, stop
    pitch: int
    tile_pitch: int
    runs: int = 1
    run_rows: int = 0
    run_slots: int = 0

    @property
    def elements_per_bank(self) -> int:
        """Weight slots in one bank, including replicas."""
        copies = self.tiles * (self.copies[1] - self.copies[0])
        return self.runs * self.count * copies * (self.columns[1] - self.columns[0])


@dataclass(frozen=True, slots=True)
class WeightLayout:
    """Row blocks of every channel, for the first of its weight groups (first, stop); each following group is
    `group_rows` rows further on. All fields are indexed by channel.
    """

    blocks: tuple[tuple[RowBlock, ...], ...]
    group_rows: tuple[int, ...]
    weight_groups: tuple[tuple[int, int], ...]

    def rows(self, channel: int) -> int:
        """Rows that a channel's banks use."""
        first, stop = self.weight_groups[channel]
        return (stop - first) * self.group_rows[channel]

    @property
    def most_rows(self) -> int:
        """Rows used in the fullest channel."""
        return max((self.rows(channel) for channel in range(len(self.blocks))), default=0)

    def slots_written(self, channel: int) -> int:
        """Column I/Os to write the weights into each bank of a channel, including replicas."""
        first, stop = self.weight_groups[channel]
        return (stop - first) * sum(block.elements_per_bank for block in self.blocks[channel])

    def bytes_written(self, channel: int, pim: PimSpec) -> int:
        """Bytes to be moved into a channel to write the weights, including replicas and bank padding."""
        return self.slots_written(channel) * pim.multipliers * pim.element_bytes * pim.banks

    def replication(self, shape: Geometry) -> float:
        """The number of copies of a weight, averaged over all channels."""
        stored = sum(self.slots_written(channel) for channel in range(len(self.blocks)))
        return stored / (shape.groups * shape.slots * shape.tiles)

    def fill_banks(self, channel: int, matrix: Array, shape: Geometry, pim: PimSpec) -> Array:
        """The rows of a channel's banks, [rows, banks, columns, multipliers], for weights [groups, K, N]."""
        first, stop = self.weight_groups[channel]
        groups = stop - first
        padded = np.zeros((groups, shape.slots * pim.multipliers, shape.tiles * pim.banks), matrix.dtype)
        padded[:, : shape.depth, : shape.columns] = matrix[first:stop]
        tiled = padded.reshape(groups, shape.slots, pim.multipliers, shape.tiles, pim.banks)
        tiled = tiled.transpose(0, 3, 4, 1, 2)  # group, tile, bank, slot, multiplier
        stored = self.group_rows[channel]
        banks = np.zeros((groups, stored, pim.banks, pim.columns, pim.multipliers), matrix.dtype)
        for block in self.blocks[channel]:
            _fill_block(banks, tiled, block)
        return banks.reshape(groups * stored, pim.banks, pim.columns, pim.multipliers)


def _fill_block(banks: Array, tiled: Array, block: RowBlock) -> None:
    first, stop = block.columns
    for run in range(block.runs):
        slot, row = block.slot + run * block.run_slots, block.row + run * block.run_rows
        rows = slice(row, row + block.count)
        for unit in range(block.tiles):
            start = block.tile + unit
            tiles = slice(start, start + (block.count - 1) * block.tile_stride + 1, max(block.tile_stride, 1))
            part = tiled[:, tiles, :, slot + first : slot + stop]
            for copy in range(*block.copies):
                column = unit * block.tile_pitch + copy * block.pitch
                banks[:, rows, :, column + first : column + stop] = part
