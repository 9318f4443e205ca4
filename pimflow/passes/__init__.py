"""Graph rewrites, one per file and named by what they do; the manager that runs them; the pipelines as data."""

from pimflow.passes.apply_plan import ApplyPlan, why_not
from pimflow.passes.base import Pass, PassResult
from pimflow.passes.column_split import ColumnSplit
from pimflow.passes.compact_materialization import CompactMaterialization
from pimflow.passes.device_placement import DevicePlacement
from pimflow.passes.edge_split import EdgeSplit
from pimflow.passes.explicit_padding import ExplicitPadding
from pimflow.passes.fold_batch_norm import FoldBatchNorm
from pimflow.passes.fold_constants import FoldConstants
from pimflow.passes.fold_no_edges import FoldNoEdges
from pimflow.passes.fuse_epilogues import FuseEpilogues
from pimflow.passes.fuse_traversal import FuseTraversal
from pimflow.passes.group_products import GroupProducts
from pimflow.passes.k_split import KSplit
from pimflow.passes.manager import ManagerResult, PassManager, PassRecord, notes_of, times_table
from pimflow.passes.md_dp_split import MdDpSplit
from pimflow.passes.movement_elimination import MovementElimination
from pimflow.passes.narrow_products import NarrowProducts
from pimflow.passes.order_aggregation import OrderAggregation
from pimflow.passes.pipelines import (
    CLEANUP,
    COMPILATION,
    PASSES,
    PIPELINES,
    RELATIONAL,
    RelationalPass,
    every_pass,
    parse_pipeline,
    place,
)
from pimflow.passes.pipelining import Pipelining
from pimflow.passes.place_features import PlaceFeatures
from pimflow.passes.remove_dead_code import RemoveDeadCode
from pimflow.passes.remove_identity import RemoveIdentity
from pimflow.passes.reorder_linear import ReorderLinear
from pimflow.passes.scatter_products import ScatterProducts
from pimflow.passes.segment_gemm import SegmentGemm
from pimflow.passes.unfuse_epilogues import UnfuseEpilogues

__all__ = [
    "CLEANUP",
    "COMPILATION",
    "PASSES",
    "PIPELINES",
    "RELATIONAL",
    "ApplyPlan",
    "ColumnSplit",
    "CompactMaterialization",
    "DevicePlacement",
    "EdgeSplit",
    "ExplicitPadding",
    "FoldBatchNorm",
    "FoldConstants",
    "FoldNoEdges",
    "FuseEpilogues",
    "FuseTraversal",
    "GroupProducts",
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
    "RelationalPass",
    "RemoveDeadCode",
    "RemoveIdentity",
    "ReorderLinear",
    "ScatterProducts",
    "SegmentGemm",
    "UnfuseEpilogues",
    "every_pass",
    "notes_of",
    "parse_pipeline",
    "place",
    "times_table",
    "why_not",
]
