"""The models that cases start from: exported by other tools, or drawn."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random

import onnx

import pimflow_zoo
from fuzz.graphs import drawn_model

_EXPORTED = Path(__file__).parent.parent / "data" / "exported"


@cache
def kept_models() -> dict[str, onnx.ModelProto]:
    """Models of the zoo and of other tools' exporters, by name, with static shapes; copy them before changing them."""
    found = {path.stem: onnx.load(path) for path in sorted(_EXPORTED.glob("*.onnx"))}
    for model in found.values():
        _bind(model)
    return {**found, "toy": pimflow_zoo.build("toy")}


def _bind(model: onnx.ModelProto) -> None:
    for value in model.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if not dim.dim_value:
                dim.dim_value = 64 if axis > 1 else 1


def any_model(rng: Random) -> tuple[str, onnx.ModelProto]:
    """A drawn model three times out of four, as they are small; otherwise a stored one. Also returns its name."""
    if rng.random() < 0.75:
        return "drawn", drawn_model(rng)
    name = rng.choice(sorted(kept_models()))
    return name, kept_models()[name]
