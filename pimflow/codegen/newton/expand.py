"""Expands loop nests into flat arrays of commands for vectorised interpreters, one bounded piece at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from pimflow.codegen.newton.commands import Affine, Command, Comp, GAct, GWrite, Item, Loop, count_commands
from pimflow.records import dataclass

Ints = npt.NDArray[np.int64]
GWRITE, G_ACT, COMP, READRES = range(4)
_ROW, _COLUMN = 0, 1  # of `_Block.values`: first operand, second operand


@dataclass(frozen=True)
class FlatCommands:
    """Commands in order; each array has one element per command.

    `first` is the pixel of a GWRITE or READRES, the row of a G_ACT, the column of a COMP; `second` is the k of a
    GWRITE, the bank group of a G_ACT, the slot of a COMP, the channel of a READRES. `leaf` indexes `leaves`, the
    commands of the nest, for everything else.
    """

    kind: Ints
    first: Ints
    second: Ints
    leaf: Ints
    leaves: tuple[Command, ...]


@dataclass(frozen=True)
class _Block:
    """Expanded commands whose enclosing loops are not yet expanded; `slopes` are the operands' strides in those."""

    leaf: Ints
    values: Ints  # [2, commands]
    slopes: Mapping[str, Ints]  # by variable, [2, commands]


def flatten(items: tuple[Item, ...], limit: int = 1 << 18) -> Iterator[FlatCommands]:
    """A nest's commands in order, in pieces of at most about `limit`."""
    leaves: list[Command] = []
    index: dict[int, int] = {}
    for leaf in _leaves(items):
        if id(leaf) not in index:
            index[id(leaf)] = len(leaves)
            leaves.append(leaf)
    kinds = np.array([_kind(leaf) for leaf in leaves], np.int64)
    for block in _pieces(items, {}, index, limit):
        yield FlatCommands(kinds[block.leaf], block.values[_ROW], block.values[_COLUMN], block.leaf, tuple(leaves))


def _leaves(items: tuple[Item, ...]) -> Iterator[Command]:
    for item in items:
        if isinstance(item, Loop):
            yield from _leaves(item.body)
        else:
            yield item


def _kind(command: Command) -> int:
    if isinstance(command, GWrite):
        return GWRITE
    if isinstance(command, GAct):
        return G_ACT
    return COMP if isinstance(command, Comp) else READRES


def _size(items: tuple[Item, ...]) -> int:
    counts = count_commands(items)
    return counts.gwrite + counts.g_act + counts.comp + counts.readres


def _pieces(items: tuple[Item, ...], bound: dict[str, int], index: Mapping[int, int], limit: int) -> Iterator[_Block]:
    if _size(items) <= limit:
        yield _join([_expand(item, bound, index) for item in items])
        return
    for item in items:
        if not isinstance(item, Loop):
            yield _expand(item, bound, index)
            continue
        size = _size(item.body)
        if size > limit:
            for value in range(item.count):
                yield from _pieces(item.body, {**bound, item.var: value}, index, limit)
            continue
        step = max(1, limit // max(size, 1))
        for start in range(0, item.count, step):
            part = Loop(item.var, min(step, item.count - start), item.body)
            yield _expand(part, {**bound, item.var: start}, index)


def _expand(item: Item, bound: Mapping[str, int], index: Mapping[int, int]) -> _Block:
    if not isinstance(item, Loop):
        return _leaf_block(item, bound, index)
    body = _join([_expand(inner, bound, index) for inner in item.body])
    slopes = dict(body.slopes)
    own = slopes.pop(item.var, None)
    values = np.tile(body.values, item.count)
    if own is not None:
        steps = np.arange(item.count)[None, :, None] * own[:, None, :]
        values = values + steps.reshape(2, -1)
    tiled = {name: np.tile(slope, item.count) for name, slope in slopes.items()}
    return _Block(np.tile(body.leaf, item.count), values, tiled)


def _leaf_block(command: Command, bound: Mapping[str, int], index: Mapping[int, int]) -> _Block:
    operands = _operands(command)
    values = np.array([[operand.base] for operand in operands], np.int64)
    slopes: dict[str, Ints] = {}
    for position, operand in enumerate(operands):
        for name, stride in operand.terms:
            values[position, 0] += stride * bound.get(name, 0)
            slopes.setdefault(name, np.zeros((2, 1), np.int64))[position, 0] += stride
    return _Block(np.array([index[id(command)]], np.int64), values, slopes)


def _operands(command: Command) -> tuple[Affine, Affine]:
    if isinstance(command, GWrite):
        return command.pixel, command.k
    if isinstance(command, GAct):
        return command.row, Affine(command.group)
    if isinstance(command, Comp):
        return command.column, command.slot
    return command.pixel, command.channel


def _join(blocks: list[_Block]) -> _Block:
    if len(blocks) == 1:
        return blocks[0]
    names = {name for block in blocks for name in block.slopes}
    slopes = {
        name: np.concatenate([block.slopes.get(name, np.zeros_like(block.values)) for block in blocks], axis=1)
        for name in sorted(names)
    }
    leaf = np.concatenate([block.leaf for block in blocks])
    return _Block(leaf, np.concatenate([block.values for block in blocks], axis=1), slopes)
