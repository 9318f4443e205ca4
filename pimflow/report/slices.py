"""Entries of a Chrome trace: names of processes and tracks, slices, and levels of a counter."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any


def named(kind: str, process: int, track: int | None, name: str) -> dict[str, Any]:
    """The name of a process or a track."""
    tid = {} if track is None else {"tid": track}
    return {"ph": "M", "pid": process, **tid, "name": kind, "args": {"name": name}}


def complete(
    name: str, category: str, track: tuple[int, int], start_us: float, end_us: float, args: Mapping[str, Any]
) -> dict[str, Any]:
    """A slice on a track of a process; starts and ends are rounded to the same grid of one nanosecond."""
    process, thread = track
    start, length = _on_grid(start_us, end_us)
    return {
        "ph": "X", "pid": process, "tid": thread, "name": name, "cat": category, "ts": start, "dur": length,
        "args": args,
    }  # fmt: skip


@lru_cache(maxsize=64, typed=True)  # most channels of a unit begin and end together
def _on_grid(start_us: float, end_us: float) -> tuple[float, float]:
    """A slice's start and length, rounded."""
    start = round(start_us, 3)
    return start, round(round(end_us, 3) - start, 3)


def steps(name: str, process: int, levels: Iterable[tuple[float, float]]) -> Iterator[dict[str, Any]]:
    """The values of a counter, each with the time from which it holds."""
    for when, level in levels:
        value = level if isinstance(level, int) else round(max(level, 0.0), 6)
        yield {"ph": "C", "pid": process, "name": name, "ts": round(when, 3), "args": {"value": value}}
