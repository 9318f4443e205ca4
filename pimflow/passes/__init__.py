"""Rewrites of graphs: clean-ups, and carrying out a plan. One pass per file, and the manager that runs them."""

from pimflow.passes.apply_plan import ApplyPlan, why_not
from pimflow.passes.base import Pass, PassResult
from pimflow.passes.regions import can_pipeline, can_split, cut_region, followers_of

__all__ = [
    "ApplyPlan",
    "Pass",
    "PassResult",
    "can_pipeline",
    "can_split",
    "cut_region",
    "followers_of",
    "why_not",
]
