"""Coordinate search over the logarithms of parameters, with decreasing steps.

Tile choices and rooflines make the losses of GPU cost models continuous but kinked, so that gradients would
mislead. Deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

Bounds = tuple[float, float]

_FIRST_STEP = math.log(2.0)
_LAST_STEP = math.log(1.01)


def coordinate_search(
    start: Mapping[str, float], bounds: Mapping[str, Bounds], loss: Callable[[Mapping[str, float]], float]
) -> dict[str, float]:
    """Changes one parameter at a time by a factor, as long as that lowers the loss; then halves the step.

    Args:
        start: parameters by name.
        bounds: lowest and highest value of each.
        loss: the function to minimise.
    """
    values = dict(start)
    best = loss(values)
    step = _FIRST_STEP
    while step > _LAST_STEP:
        improved = False
        for name, (low, high) in bounds.items():
            for factor in (math.exp(step), math.exp(-step)):
                changed = min(high, max(low, values[name] * factor))
                if changed == values[name]:  # at its bound
                    continue
                moved = values | {name: changed}
                value = loss(moved)
                if value < best - 1e-12:
                    values, best, improved = moved, value, True
                    break
        if not improved:
            step /= 2
    return values
