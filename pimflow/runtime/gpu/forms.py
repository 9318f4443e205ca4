"""The GPU cost models by kind of GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from pimflow.ir.registry import Registry
from pimflow.runtime.gpu.form import Form
from pimflow.runtime.gpu.simulated_form import SimulatedForm
from pimflow.targets import Gpu

FORMS: Registry[str, Callable[[], Form[Any]]] = Registry("forms of GPU cost model")
"""Constructors of the cost models, by kind of GPU."""

FORMS.add("gpu", SimulatedForm)


# Few machines have such a GPU: imported when one is priced.
@FORMS.register("measured-gpu")
def _library() -> Form[Any]:
    from pimflow.runtime.gpu.library_form import LibraryForm

    return LibraryForm()


def form_of(gpu: Gpu) -> Form[Any]:
    """The form that prices a GPU's kernels."""
    return _form(gpu.kind)


@cache
def _form(kind: str) -> Form[Any]:
    return FORMS[kind]()
