"""The programs of all units in one file: every distinct program once, and which node executes which.

Nodes whose programs differ only in where their weights begin share one: a long model has few distinct layers.
"""

from __future__ import annotations

import gzip
from collections.abc import Hashable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from pimflow.bundle.files import parse_json, read_packed
from pimflow.codegen.backend import Backend
from pimflow.data import Limits, decode, json_text, pick
from pimflow.errors import DataError
from pimflow.records import dataclass

Units = Mapping[str, Backend[Any, Any]]
"""The backends of a machine, by device."""

_COMPRESSION = 3
"""The level of gzip. Level 6 takes two and a half times as long for files that are a third smaller (55 instead of 83 kB
for MobileNetV2)."""


@dataclass(frozen=True)
class _Use:
    """The program that a node executes, and where its data begin in the unit's memory."""

    program: int
    first: Annotated[int, Limits(least=0)]


@dataclass(frozen=True)
class _Stored:
    """A program as its unit's backend encodes it."""

    device: str
    content: Any


class ProgramTable:
    """The distinct programs of a compiled model, in the order of the first nodes that execute them.

    Args:
        programs: by node.
        devices: where the nodes run, by node.
        units: the backends of these devices.
    """

    def __init__(self, programs: Mapping[str, Any], devices: Mapping[str, str], units: Units) -> None:
        self._distinct: list[tuple[str, Any]] = []
        self._uses: dict[str, _Use] = {}
        self._units = units
        numbers: dict[tuple[str, Hashable], int] = {}
        for name, program in programs.items():
            device = devices[name]
            unit = units[device]
            number = numbers.setdefault((device, unit.identity_key(program)), len(self._distinct))
            if number == len(self._distinct):
                self._distinct.append((device, program))
            self._uses[name] = _Use(number, unit.data_start(program))

    @cached_property
    def content_key(self) -> str:
        """All that the file depends on, apart from its format and the code, as text; "" if a program cannot say."""
        keys = [(device, self._units[device].content_key(program)) for device, program in self._distinct]
        return "" if any(text is None for _, text in keys) else f"{keys} {list(self._uses.items())}"

    def packed(self, form: str) -> bytes:
        """The file, byte-stable. Programs with the same encoding are stored once, even if they were made in different
        ways.

        Args:
            form: its format.
        """
        numbers: dict[str, int] = {}
        renumbered = []
        for device, program in self._distinct:
            text = f'{{"device":{json_text(device)},"content":{self._units[device].encode_text(program)}}}'
            renumbered.append(numbers.setdefault(text, len(numbers)))
        nodes = {name: {"program": renumbered[use.program], "first": use.first} for name, use in self._uses.items()}
        document = f'{{"format":{json_text(form)},"programs":[{",".join(numbers)}],"nodes":{json_text(nodes)}}}'
        return gzip.compress(document.encode(), compresslevel=_COMPRESSION, mtime=0)


def read_programs(path: Path, devices: Mapping[str, str], units: Units) -> dict[str, Any]:
    """Read the programs in a file that `ProgramTable.packed` made, by node.

    Args:
        path: of the file.
        devices: where the nodes of the model run, by node, without those on the host.
        units: the backends of these devices.

    Raises:
        OSError, ValueError: it cannot be read, or is damaged.
        DataError: its content does not match these nodes and units.
    """
    stored, nodes = pick(parse_json(read_packed(path)), "programs", "nodes")
    uses = decode(Mapping[str, _Use], nodes, path="nodes")
    distinct = [_program(entry, units) for entry in decode(tuple[_Stored, ...], stored, path="programs")]
    programs = {}
    for name, use in uses.items():
        if name not in devices:
            raise DataError(f"{name!r} is not a node that runs on a unit beside the host")
        if not 0 <= use.program < len(distinct):
            raise DataError(f"{name!r} executes program {use.program}, and there are {len(distinct)}")
        device, program = distinct[use.program]
        if device != devices[name]:
            raise DataError(f"{name!r} runs on {devices[name]}, and program {use.program} is of {device}")
        programs[name] = units[device].placed_at(program, use.first) if use.first else program
    return programs


def _program(stored: _Stored, units: Units) -> tuple[str, Any]:
    if stored.device not in units:
        raise DataError(f"the machine has no unit {stored.device!r}")
    return stored.device, units[stored.device].decode(stored.content)
