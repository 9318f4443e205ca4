"""Models of the zoo as the search sees them."""

from __future__ import annotations

from functools import cache

import pimflow_zoo
from pimflow.frontend import load_model
from pimflow.ir import Graph
from pimflow.passes import CLEANUP, PassManager


@cache
def clean_model(name: str) -> Graph:
    """A model of the zoo, loaded and cleaned up; cached."""
    return PassManager(CLEANUP).run(load_model(pimflow_zoo.build(name))).graph
