"""Times of all nodes as Model Explorer's node data: numbers and colours over the nodes of a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pimflow.ir import Graph
from pimflow.runtime.timeline import NO_RESOURCE, Timeline

COLOURS = ("#56b4e9", "#e69f00", "#009e73", "#cc79a7")
"""Colours of devices, the host first (by Okabe and Ito, distinguishable for colour-blind people)."""


def node_data(graph: Graph, timeline: Timeline, titles: Mapping[str, str]) -> dict[str, Any]:
    """Node data for model.onnx of an output folder: microseconds, coloured by device.

    The form is `GraphNodeData` of Model Explorer (github.com/google-ai-edge/model-explorer). Its ONNX adapter
    identifies nodes by name.

    Args:
        graph: the rewritten graph.
        timeline: its schedule; copies that a node waits for count towards it.
        titles: devices, the host first.
    """
    colours = {device: COLOURS[min(index, len(COLOURS) - 1)] for index, device in enumerate(titles)}
    host = next(iter(titles))
    times_us: dict[str, float] = {}
    for event in timeline.events:
        if event.resource != NO_RESOURCE:
            times_us[event.node] = times_us.get(event.node, 0.0) + event.end_us - event.start_us
    results = {
        name: {"value": round(time_us, 3), "bgColor": colours[graph.node(name).device or host]}
        for name, time_us in times_us.items()
    }
    return {"results": results}
