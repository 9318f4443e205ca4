"""UPMEM machines for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pimflow.targets import load_target
from pimflow.targets.schema.upmem import UpmemSpec


def machine(**changes: Any) -> UpmemSpec:
    """The shipped modules with some keys changed."""
    spec = load_target("upmem").units["dpu"]
    assert isinstance(spec, UpmemSpec)
    return replace(spec, **changes)
