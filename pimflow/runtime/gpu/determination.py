"""Which of the parameters that a fit moved its rows determine: by the rank of the Jacobian, not by counting.

The Jacobian is that of log(time) by log(parameter) at the fit, a row per kernel and a column per parameter, by central
differences. As many directions in the space of parameters are determined as it has singular values that count; whatever
moves along another leaves every modelled time as it is.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from pimflow.data import encode
from pimflow.records import dataclass
from pimflow.runtime.gpu.form import Form, Sample

_STEP = 0.01
"""Of the logarithm of a parameter; costs are kinked, so that smaller steps would see one side of a kink alone."""
_LEAST = 1e-3
"""Singular values below this share of the largest do not count: measurements scatter more than times would change."""
_PART = 0.1
"""A parameter is undetermined if directions that are not have this share of it."""


@dataclass(frozen=True)
class Determination:
    """How far the rows of a fit determine its parameters.

    Args:
        rows: that the fit used.
        parameters: that it moved, or that any of the rows depends on.
        rank: how many of them the rows determine, singly or together.
        undetermined: the names of those that could as well have other values, some of them together.
    """

    rows: int
    parameters: int
    rank: int
    undetermined: tuple[str, ...]

    @property
    def warning(self) -> str:
        """One line; "" if all are determined."""
        if not self.undetermined:
            return ""
        rows = f"{self.rows} rows determine" if self.rows != 1 else "1 row determines"
        return (
            f"{rows} {self.rank} of the {self.parameters} parameters that were fitted; "
            f"{', '.join(self.undetermined)} could as well have other values: measure more kinds of kernels"
        )

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        data: dict[str, Any] = encode(self)
        return data


def determination(form: Form[Any], gpu: Any, samples: Sequence[Sample], moved: Collection[str]) -> Determination:
    """Looks at a fit.

    Args:
        form: the form of the GPU's cost model.
        gpu: the fitted GPU.
        samples: the kernels that it was fitted to.
        moved: the names of the parameters that the fit changed.
    """
    values = {name: value for name, value in form.parameters(gpu).items() if value > 0}
    columns = {name: _column(form, gpu, samples, name, value) for name, value in values.items()}
    names = [name for name, column in columns.items() if name in moved or np.abs(column).max() > _LEAST]
    if not names:
        return Determination(len(samples), 0, 0, ())
    jacobian = np.array([columns[name] for name in names]).T
    _, sizes, directions = np.linalg.svd(jacobian)
    rank = int((sizes > _LEAST * max(sizes[0], _LEAST)).sum())
    free = np.square(directions[rank:]).sum(axis=0)  # of every parameter, how much of it lies in what is free
    undetermined = tuple(name for name, share in zip(names, free, strict=True) if share > _PART)
    return Determination(len(samples), len(names), rank, undetermined)


def _column(form: Form[Any], gpu: Any, samples: Sequence[Sample], name: str, value: float) -> Any:
    """The derivative of every sample's log(time) by the log of one parameter."""
    changed: Sequence[Mapping[str, float]] = [{name: value * math.exp(step)} for step in (_STEP, -_STEP)]
    up, down = (np.array(form.times_us(form.with_parameters(gpu, values), samples)) for values in changed)
    return (np.log(np.maximum(up, 1e-12)) - np.log(np.maximum(down, 1e-12))) / (2 * _STEP)
