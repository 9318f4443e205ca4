"""Frozen dataclasses (streams, programs, mappings, plans) as plain JSON values and back, byte-stable.

A dataclass becomes {"type": its name, field: value, ...}; a tuple becomes a list. Reading takes the classes that may
occur, so that a file can make nothing else.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from pimflow.codegen.newton.commands import Affine, CommandStream, Comp, GAct, GWrite, Loop, ReadRes
from pimflow.codegen.newton.lowering import PimProgram, lower
from pimflow.codegen.newton.mapping import ChannelGroup, ChunkRun, Mapping, Share
from pimflow.codegen.work import ConvProblem, MatmulProblem
from pimflow.ir import Refusal
from pimflow.targets import PimSpec

_CLASSES = (
    *(Affine, Comp, CommandStream, GAct, GWrite, Loop, ReadRes),
    *(ChannelGroup, ChunkRun, Mapping, Share),
    *(ConvProblem, MatmulProblem),
)


def encode(item: Any) -> Any:
    """JSON values for a tree of dataclasses, tuples and plain values.

    Raises:
        TypeError: something else is in the tree.
    """
    if item is None or isinstance(item, (bool, int, float, str)):
        return item
    if isinstance(item, (tuple, list)):
        return [encode(entry) for entry in item]
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        fields = {f.name: encode(getattr(item, f.name)) for f in dataclasses.fields(item) if f.init}
        return {"type": type(item).__name__, **fields}
    raise TypeError(f"cannot archive a {type(item).__name__}")


def decode(data: Any, classes: Iterable[type[Any]]) -> Any:
    """The tree that `encode` was given.

    Raises:
        ValueError: a class that is not among `classes`, or fields that it does not have.
    """
    return _decode(data, {cls.__name__: cls for cls in classes})


def _decode(data: Any, classes: dict[str, type[Any]]) -> Any:
    if isinstance(data, list):
        return tuple(_decode(entry, classes) for entry in data)
    if not isinstance(data, dict):
        return data
    fields = dict(data)
    name = fields.pop("type", None)
    if name not in classes:
        raise ValueError(f"{name!r} is nothing that can be read back here")
    try:
        return classes[name](**{key: _decode(value, classes) for key, value in fields.items()})
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from None


def archive_program(program: PimProgram) -> Any:
    """A program as JSON values: problem, mapping and the streams of all channels as loop nests."""
    return {name: encode(getattr(program, name)) for name in ("problem", "mapping", "streams")}


def restore_program(data: Any, pim: PimSpec) -> PimProgram:
    """The program that `archive_program` was given, with the streams that were archived.

    Raises:
        ValueError: the data are not a program for this machine.
    """
    problem, mapping, streams = (decode(data[name], _CLASSES) for name in ("problem", "mapping", "streams"))
    program = lower(problem, mapping, pim)
    if isinstance(program, Refusal):
        raise ValueError(program.reason)
    return program.with_streams(streams)
