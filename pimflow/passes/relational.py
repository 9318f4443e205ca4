"""The passes on relational layers, which few models have."""

from __future__ import annotations

from pimflow.passes.compact_materialization import CompactMaterialization
from pimflow.passes.fuse_traversal import FuseTraversal
from pimflow.passes.group_products import GroupProducts
from pimflow.passes.reorder_linear import ReorderLinear
from pimflow.passes.scatter_products import ScatterProducts
from pimflow.passes.segment_gemm import SegmentGemm

RelationalPass = SegmentGemm | ReorderLinear | CompactMaterialization | FuseTraversal | ScatterProducts | GroupProducts
RELATIONAL: tuple[type[RelationalPass], ...] = (
    SegmentGemm,
    ReorderLinear,
    CompactMaterialization,
    FuseTraversal,
    ScatterProducts,
    GroupProducts,
)
"""In an order in which each helps the later ones."""
