"""A PIM channel that executes one command at a time, in plain Python: the oracle of `runtime.newton.values`.

It implements the documented meaning of the commands, and shares only their definition with the vectorised interpreter.
The source is a matrix of pixels by K that the test makes itself.
"""

from __future__ import annotations

import numpy as np

from pimflow.codegen.newton.commands import CommandStream, Comp, GAct, GWrite


def run_stream(
    stream: CommandStream,
    source: np.ndarray,
    banks: np.ndarray,
    result: np.ndarray,
    *,
    bank_groups: int,
    buffers: int,
    buffer_slots: int,
    half: bool = False,
) -> None:
    """Execute a stream: `source` [pixels, K], `banks` [rows, banks, columns, lanes], `result` [pixels, channels]."""
    _, bank_count, _, lanes = banks.shape
    per_group = bank_count // bank_groups
    buffer = np.zeros((buffers, buffer_slots * lanes), np.float32)
    open_row = [-1] * bank_groups
    latch = np.zeros(bank_count, np.float16 if half else np.float32)
    for command, variables in stream.expand():
        if isinstance(command, GWrite):
            pixel, k = command.pixel.at(variables), command.k.at(variables)
            buffer[command.buffer] = 0
            for index in range(command.copies * command.pixels):
                start, row = index * command.pitch, source[pixel + index % command.pixels]
                buffer[command.buffer, start : start + command.k_count] = row[k : k + command.k_count]
        elif isinstance(command, GAct):
            open_row[command.group] = command.row.at(variables)
        elif isinstance(command, Comp):
            column, slot = command.column.at(variables), command.slot.at(variables)
            vector = buffer[command.buffer, slot * lanes : (slot + 1) * lanes]
            for bank in range(bank_count):
                weights = banks[open_row[bank // per_group], bank, column]
                latch[bank] = latch[bank] + np.float32(vector @ weights)
        else:
            pixel, channel = command.pixel.at(variables), command.channel.at(variables)
            old = result[pixel, channel : channel + bank_count]
            result[pixel, channel : channel + bank_count] = old + latch if command.add else latch
            latch[:] = 0
