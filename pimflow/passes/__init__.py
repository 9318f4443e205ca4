"""Graph rewrites, one per file and named by what they do; the manager that runs them; the pipelines as data."""

from pimflow.passes.apply_plan import ApplyPlan, why_not
from pimflow.passes.base import Pass, PassResult
from pimflow.passes.column_split import ColumnSplit
from pimflow.passes.device_placement import DevicePlacement
from pimflow.passes.edge_split import EdgeSplit
from pimflow.passes.explicit_padding import ExplicitPadding
from pimflow.passes.fold_batch_norm import FoldBatchNorm
from pimflow.passes.fold_constants import FoldConstants
from pimflow.passes.fold_no_edges import FoldNoEdges
from pimflow.passes.fuse_epilogues import FuseEpilogues
from pimflow.passes.k_split import KSplit
from pimflow.passes.manager import ManagerResult, PassManager, PassRecord, notes_of, times_table
from pimflow.passes.md_dp_split import MdDpSplit
from pimflow.passes.movement_elimination import MovementElimination
from pimflow.passes.narrow_products import NarrowProducts
from pimflow.passes.order_aggregation import OrderAggregation
from pimflow.passes.pipelines import (
    CLEANUP,
    PASSES,
    PIPELINES,
    every_pass,
    parse_pipeline,
    passes_of_compilation,
    place,
)
from pimflow.passes.pipelining import Pipelining
from pimflow.passes.place_features import PlaceFeatures
from pimflow.passes.remove_dead_code import RemoveDeadCode
from pimflow.passes.remove_identity import RemoveIdentity
from pimflow.passes.unfuse_epilogues import UnfuseEpilogues

__all__ = [
    "CLEANUP",
    "PASSES",
    "PIPELINES",
    "ApplyPlan",
    "ColumnSplit",
    "DevicePlacement",
    "EdgeSplit",
    "ExplicitPadding",
    "FoldBatchNorm",
    "FoldConstants",
    "FoldNoEdges",
    "FuseEpilogues",
    "KSplit",
    "ManagerResult",
    "MdDpSplit",
    "MovementElimination",
    "NarrowProducts",
    "OrderAggregation",
    "Pass",
    "PassManager",
    "PassRecord",
    "PassResult",
    "Pipelining",
    "PlaceFeatures",
    "RemoveDeadCode",
    "RemoveIdentity",
    "UnfuseEpilogues",
    "every_pass",
    "notes_of",
    "parse_pipeline",
    "passes_of_compilation",
    "place",
    "times_table",
    "why_not",
]
