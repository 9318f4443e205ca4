"""The passes by name, and the pipelines that every compilation runs, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_args, get_type_hints

from pimflow import plugins
from pimflow.data import is_readable
from pimflow.errors import OptionError, choose_one
from pimflow.ir import Plan
from pimflow.ir.readout import Readout
from pimflow.ir.registry import Registry
from pimflow.passes.apply_plan import ApplyPlan
from pimflow.passes.base import Pass
from pimflow.passes.column_split import ColumnSplit
from pimflow.passes.device_placement import DevicePlacement
from pimflow.passes.edge_split import EdgeSplit
from pimflow.passes.explicit_padding import ExplicitPadding
from pimflow.passes.fold_batch_norm import FoldBatchNorm
from pimflow.passes.fold_constants import FoldConstants
from pimflow.passes.fold_no_edges import FoldNoEdges
from pimflow.passes.fuse_epilogues import FuseEpilogues
from pimflow.passes.k_split import KSplit
from pimflow.passes.manager import PassManager
from pimflow.passes.md_dp_split import MdDpSplit
from pimflow.passes.movement_elimination import MovementElimination
from pimflow.passes.narrow_products import NarrowProducts
from pimflow.passes.order_aggregation import OrderAggregation
from pimflow.passes.pipelining import Pipelining
from pimflow.passes.place_features import PlaceFeatures
from pimflow.passes.remove_dead_code import RemoveDeadCode
from pimflow.passes.remove_identity import RemoveIdentity
from pimflow.passes.spec import Spec, read_specs
from pimflow.passes.unfuse_attention import UnfuseAttention
from pimflow.passes.unfuse_epilogues import UnfuseEpilogues

CLEANUP: tuple[Pass, ...] = (
    RemoveDeadCode(),  # most computations of shapes: the loader knows their results
    FoldNoEdges(),
    FoldConstants(),
    RemoveIdentity(),
    UnfuseAttention(),
    FoldBatchNorm(),
    RemoveDeadCode(),  # values that were only computed for their shapes
    FuseEpilogues(residual=True),  # as cuDNN does; what other devices cannot do is undone once nodes are placed
    MovementElimination(),
)
"""The passes that turn a loaded model into the graph that the search sees."""


def place(plan: Plan, readouts: tuple[Readout, ...], symmetric_padding: tuple[str, ...]) -> tuple[Pass, ...]:
    """The passes that turn that graph into the one that runs according to a plan.

    Args:
        plan: decisions that cover the graph.
        readouts: devices that apply functions as their results are read out.
        symmetric_padding: devices whose convolutions pad opposite sides equally.
    """
    return (ApplyPlan(plan), UnfuseEpilogues(readouts, plan.host), ExplicitPadding(symmetric_padding))


def passes_of_compilation() -> tuple[type[Pass], ...]:
    """The passes of a compilation, in order."""
    from pimflow.passes.relational import RELATIONAL  # they take long to import, and few compilations run them

    relational, places = (*RELATIONAL, OrderAggregation), (PlaceFeatures, NarrowProducts)
    return (*map(type, CLEANUP), *relational, *places, ApplyPlan, UnfuseEpilogues, ExplicitPadding)


PIPELINES: Mapping[str, tuple[Pass, ...]] = {"cleanup": CLEANUP}
"""Pipelines that may be used like a pass in other pipelines, by name."""

PASSES: Registry[str, type[Pass]] = Registry("passes")
"""Every pass by its name."""

for _kind in (
    MdDpSplit,
    ColumnSplit,
    KSplit,
    EdgeSplit,
    Pipelining,
    DevicePlacement,
    MovementElimination,
    ApplyPlan,
    FoldNoEdges,
    FoldConstants,
    FoldBatchNorm,
    FuseEpilogues,
    UnfuseEpilogues,
    UnfuseAttention,
    OrderAggregation,
    PlaceFeatures,
    NarrowProducts,
    ExplicitPadding,
    RemoveIdentity,
    RemoveDeadCode,
):
    PASSES.add(_kind.name, _kind)

for _name, _place in {  # few compilations run them
    "segment-gemm": "pimflow.passes.segment_gemm:SegmentGemm",
    "reorder-linear": "pimflow.passes.reorder_linear:ReorderLinear",
    "compact-materialization": "pimflow.passes.compact_materialization:CompactMaterialization",
    "fuse-traversal": "pimflow.passes.fuse_traversal:FuseTraversal",
    "scatter-products": "pimflow.passes.scatter_products:ScatterProducts",
    "group-products": "pimflow.passes.group_products:GroupProducts",
    "differentiate": "pimflow.passes.differentiate:Differentiate",
}.items():
    PASSES.add_by_place(_name, _place)


def parse_pipeline(text: str) -> tuple[Pass, ...]:
    """The passes that a text like `cleanup,md-dp-split{node=conv1 gpu_rows=28}` asks for; `spec` defines the grammar.

    Raises:
        OptionError: the text is malformed, there is no such pass, or an option is unknown, missing or of another type.
    """
    return tuple(map(_pass_of, read_specs(text)))


def _pass_of(spec: Spec) -> Pass:
    if spec.name in PIPELINES:
        if spec.options:
            raise OptionError(f"the pipeline {spec.name!r} has no options", "give them to its passes, one by one")
        return PassManager(PIPELINES[spec.name])
    kind = PASSES.get(spec.name) or _pass_of_plugin(spec.name)
    if kind is None:
        known = (*PASSES, *plugins.names(plugins.PASSES, own_names()), *PIPELINES)
        raise OptionError(f"unknown pass {spec.name!r}", choose_one(spec.name, known))
    return kind.of(_as_meant(kind, spec.options))


def _as_meant(kind: type[Pass], options: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options, where the word `none` is text if that is one of an option's choices."""
    if None not in options.values():
        return options
    choices = {name: get_args(hint) for name, hint in get_type_hints(kind).items()}
    return {
        name: "none" if value is None and "none" in choices.get(name, ()) else value for name, value in options.items()
    }


def every_pass() -> tuple[type[Pass], ...]:
    """All passes, those from other packages last; those that cannot be loaded are left out with a warning."""
    return (*PASSES.values(), *filter(None, plugins.load_all(plugins.PASSES, _pass_of_plugin, own_names())))


def own_names() -> tuple[str, ...]:
    """The names of passes and pipelines that no other package can take."""
    return (*PASSES, *PIPELINES)


def _pass_of_plugin(name: str) -> type[Pass] | None:
    """The pass that another package offers under a name; None if none does.

    Raises:
        PluginError: it cannot be loaded, or is not a pass of that name.
    """
    plugin = plugins.find(plugins.PASSES, name)
    if plugin is None:
        return None
    kind = plugin.load(type)
    if not issubclass(kind, Pass) or kind.name != plugin.name:
        raise plugin.problem("is not a pass of that name")
    try:
        forms = get_type_hints(kind)
    except NameError as error:
        raise plugin.problem(f"has an option of an unknown type: {error}") from None
    for option in fields(kind):
        if not is_readable(forms[option.name]):
            raise plugin.problem(f"has an option {option.name!r} of a type that no text can give")
    return kind
