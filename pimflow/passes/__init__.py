"""Rewrites of graphs: clean-ups, and carrying out a plan. One pass per file, and the manager that runs them."""

from pimflow.passes.apply_plan import ApplyPlan, why_not
from pimflow.passes.base import Pass, PassResult
from pimflow.passes.fold_batch_norm import FoldBatchNorm
from pimflow.passes.fold_constants import Evaluate, FoldConstants
from pimflow.passes.fuse_activations import FuseActivations
from pimflow.passes.manager import ManagerResult, PassManager, PassRecord
from pimflow.passes.remove_dead_code import RemoveDeadCode
from pimflow.passes.remove_dropout import RemoveDropout
from pimflow.passes.remove_identity import RemoveIdentity

__all__ = [
    "ApplyPlan",
    "FoldBatchNorm",
    "FoldConstants",
    "FuseActivations",
    "ManagerResult",
    "Pass",
    "PassManager",
    "PassRecord",
    "PassResult",
    "RemoveDeadCode",
    "RemoveDropout",
    "RemoveIdentity",
    "cleanup_passes",
    "why_not",
]


def cleanup_passes(evaluate: Evaluate | None = None) -> tuple[Pass, ...]:
    """The clean-ups that every compilation starts with, in order.

    Args:
        evaluate: runs one node on arrays, for folding what numpy does not do to the last bit alike.
    """
    return (
        RemoveIdentity(),
        RemoveDropout(),
        FoldConstants(evaluate),
        FoldBatchNorm(),
        RemoveDeadCode(),
        FuseActivations(residual=True),  # as cuDNN does; behind PIM the cost model charges the Add as a kernel
    )
