"""The passes by name, and the pipelines that every compilation runs, as data."""

from __future__ import annotations

from pimflow.ir import Plan
from pimflow.ir.registry import Registry
from pimflow.passes.apply_plan import ApplyPlan
from pimflow.passes.base import Pass
from pimflow.passes.device_placement import DevicePlacement
from pimflow.passes.fold_batch_norm import FoldBatchNorm
from pimflow.passes.fold_constants import FoldConstants
from pimflow.passes.fuse_epilogues import FuseEpilogues
from pimflow.passes.md_dp_split import MdDpSplit
from pimflow.passes.movement_elimination import MovementElimination
from pimflow.passes.pipelining import Pipelining
from pimflow.passes.remove_dead_code import RemoveDeadCode
from pimflow.passes.remove_dropout import RemoveDropout
from pimflow.passes.remove_identity import RemoveIdentity

CLEANUP: tuple[Pass, ...] = (
    RemoveIdentity(),
    RemoveDropout(),
    FoldConstants(),
    FoldBatchNorm(),
    RemoveDeadCode(),
    FuseEpilogues(residual=True),  # as cuDNN does; behind PIM the cost model charges the Add as a kernel
    MovementElimination(),
)
"""What makes a loaded model the graph that the search sees."""


def place(plan: Plan) -> tuple[Pass, ...]:
    """What makes of that graph the one that runs as the plan says."""
    return (ApplyPlan(plan),)


COMPILATION: tuple[type[Pass], ...] = (*map(type, CLEANUP), ApplyPlan)
"""The passes of a compilation, in order."""

PASSES: Registry[str, type[Pass]] = Registry("passes")
"""Every pass by its name."""

for _kind in (
    MdDpSplit,
    Pipelining,
    DevicePlacement,
    MovementElimination,
    ApplyPlan,
    FoldConstants,
    FoldBatchNorm,
    FuseEpilogues,
    RemoveIdentity,
    RemoveDropout,
    RemoveDeadCode,
):
    PASSES.add(_kind.name, _kind)
