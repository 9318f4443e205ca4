"""Conversion of placements to ONNX node metadata and back: the only place where they are strings.

Every field that is set is an entry "pimflow.FIELD". The verdict on a movement is "free: REASON", "kept: REASON", "kept
0,2: REASON" if only some inputs of a Concat are copied, or "composed: REASON" if the copies after it read its inputs
instead. Narrow operands are "TYPE STEP". Tags are entries "pimflow.TAG".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any

from pimflow.ir.placement import MovementVerdict, NarrowOperands, Placement

PREFIX = "pimflow."
"""The prefix of our entries in a node's `metadata_props`."""

_NAMES = tuple(sorted(field.name for field in fields(Placement)))
_NUMBERS = ("region", "stage")
_VERDICTS = ("movement", "padding")


def metadata_of(placement: Placement, tags: Collection[tuple[str, str]] = ()) -> dict[str, str]:
    """Entries for `metadata_props`, sorted by key."""
    fields = ((name, getattr(placement, name)) for name in _NAMES)
    entries = {name: _text(value) for name, value in fields if value is not None}
    if tags:
        entries = dict(sorted({**dict(tags), **entries}.items()))
    return {PREFIX + key: text for key, text in entries.items()}


def placement_of(metadata: Mapping[str, str]) -> tuple[Placement, tuple[tuple[str, str], ...]]:
    """The placement and the tags that `metadata_of` wrote; foreign entries are ignored.

    Raises:
        ValueError: one of our entries is malformed.
    """
    entries = {key.removeprefix(PREFIX): text for key, text in metadata.items() if key.startswith(PREFIX)}
    texts = {field.name: entries.pop(field.name, None) for field in fields(Placement)}
    verdicts = {name: None if (text := texts.pop(name)) is None else _verdict(text) for name in _VERDICTS}
    numbers = {name: None if (text := texts.pop(name)) is None else int(text) for name in _NUMBERS}
    placement = Placement(
        device=texts["device"],
        region=numbers["region"],
        stage=numbers["stage"],
        choice=texts["choice"],
        origin=texts["origin"],
        fused_into=texts["fused_into"],
        movement=verdicts["movement"],
        padding=verdicts["padding"],
        narrow=None if texts["narrow"] is None else _narrow(texts["narrow"]),
        access=texts["access"],
    )
    return placement, tuple(sorted(entries.items()))


def _text(value: Any) -> str:
    if isinstance(value, NarrowOperands):
        return f"{value.dtype} {value.step!r}"
    return _verdict_text(value) if isinstance(value, MovementVerdict) else str(value)


def _narrow(text: str) -> NarrowOperands:
    dtype, _, step = text.partition(" ")
    return NarrowOperands(dtype, float(step))


def _verdict_text(verdict: MovementVerdict) -> str:
    if verdict.composed:
        return f"composed: {verdict.reason}"
    if verdict.free:
        return f"free: {verdict.reason}"
    operands = ",".join(map(str, verdict.copied))
    return f"kept {operands}: {verdict.reason}" if operands else f"kept: {verdict.reason}"


def _verdict(text: str) -> MovementVerdict:
    head, _, reason = text.partition(": ")
    word, _, operands = head.partition(" ")
    if word not in ("free", "kept", "composed"):
        raise ValueError(f"{text!r} is not the verdict on a movement")
    copied = tuple(map(int, operands.split(","))) if operands else ()
    return MovementVerdict(word != "kept", reason, copied, composed=word == "composed")
