"""Checks which parameters of a fit its rows determine: by the rank of the Jacobian, not by counting.

The Jacobian of log(time) with respect to log(parameter) at the fit has a row per kernel and a column per parameter, and
is computed by central differences. The number of its significant singular values is the number of directions in
parameter space that are determined; a change along any other direction leaves all modelled times unchanged.
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
"""Step in the logarithm of a parameter. Costs have kinks; smaller steps would see only one side of a kink."""
_TOLERANCE = 1e-3
"""Singular values below this fraction of the largest do not count: measurements scatter more than times change."""
_PART = 0.1
"""A parameter is undetermined if more than this fraction of it lies in undetermined directions."""


@dataclass(frozen=True)
class Determination:
    """To what extent the rows of a fit determine its parameters.

    Args:
        rows: number of rows that the fit used.
        parameters: number of parameters that it changed, or that any of the rows depends on.
        rank: how many of them the rows determine, individually or in combination.
        undetermined: the names of the parameters that could have other values, some only in combination.
    """

    rows: int
    parameters: int
    rank: int
    undetermined: tuple[str, ...]

    @property
    def warning(self) -> str:
        """A warning of one line; "" if all parameters are determined."""
        if not self.undetermined:
            return ""
        rows = f"{self.rows} rows determine" if self.rows != 1 else "1 row determines"
        return (
            f"{rows} {self.rank} of the {self.parameters} parameters that were fitted; "
            f"{', '.join(self.undetermined)} could have other values: measure more kinds of kernels"
        )

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        data: dict[str, Any] = encode(self)
        return data


def determination(form: Form[Any], gpu: Any, samples: Sequence[Sample], moved: Collection[str]) -> Determination:
    """Checks a fit.

    Args:
        form: the form of the GPU's cost model.
        gpu: the fitted GPU.
        samples: the kernels that it was fitted to.
        moved: the names of the parameters that the fit changed.
    """
    values = {name: value for name, value in form.parameters(gpu).items() if value > 0}
    columns = {name: _column(form, gpu, samples, name, value) for name, value in values.items()}
    names = [name for name, column in columns.items() if name in moved or np.abs(column).max() > _TOLERANCE]
    if not names:
        return Determination(len(samples), 0, 0, ())
    jacobian = np.array([columns[name] for name in names]).T
    _, sizes, directions = np.linalg.svd(jacobian)
    rank = int((sizes > _TOLERANCE * max(sizes[0], _TOLERANCE)).sum())
    free = np.square(directions[rank:]).sum(axis=0)  # for each parameter, its fraction in undetermined directions
    undetermined = tuple(name for name, share in zip(names, free, strict=True) if share > _PART)
    return Determination(len(samples), len(names), rank, undetermined)


def _column(form: Form[Any], gpu: Any, samples: Sequence[Sample], name: str, value: float) -> Any:
    """The derivative of each sample's log(time) with respect to the log of one parameter."""
    changed: Sequence[Mapping[str, float]] = [{name: value * math.exp(step)} for step in (_STEP, -_STEP)]
    up, down = (np.array(form.times_us(form.with_parameters(gpu, values), samples)) for values in changed)
    return (np.log(np.maximum(up, 1e-12)) - np.log(np.maximum(down, 1e-12))) / (2 * _STEP)
