"""The forms of GPU cost model, by the kind of GPU: what a kernel takes, and how its parameters are fitted."""

from __future__ import annotations

from functools import cache
from typing import Any

from pimflow.runtime.gpu.form import Form
from pimflow.runtime.gpu.simulated_form import SimulatedForm
from pimflow.targets import Gpu, MeasuredGpuSpec


def form_of(gpu: Gpu) -> Form[Any]:
    """The form that prices a GPU's kernels."""
    return _library_form() if isinstance(gpu, MeasuredGpuSpec) else _SIMULATED


_SIMULATED = SimulatedForm()


@cache
def _library_form() -> Form[Any]:
    from pimflow.runtime.gpu.library_form import LibraryForm  # not above: most machines have no such GPU

    return LibraryForm()
