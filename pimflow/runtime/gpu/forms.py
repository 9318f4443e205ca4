"""The forms of GPU cost model, by the kind of GPU: what a kernel takes, and how its parameters are fitted."""

from __future__ import annotations

from typing import Any

from pimflow.ir.registry import Registry
from pimflow.runtime.gpu.form import Form
from pimflow.runtime.gpu.library_form import LibraryForm
from pimflow.runtime.gpu.simulated_form import SimulatedForm
from pimflow.targets import Gpu

FORMS: Registry[str, Form[Any]] = Registry("forms of GPU cost model")
"""Kinds of GPU, each with its form."""

FORMS.add("gpu", SimulatedForm())
FORMS.add("measured-gpu", LibraryForm())


def form_of(gpu: Gpu) -> Form[Any]:
    """The form that prices a GPU's kernels."""
    return FORMS[gpu.kind]
