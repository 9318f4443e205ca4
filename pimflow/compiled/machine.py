"""`Machine`: a target with the cost model that prices graphs for it."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from pimflow.options import Options
from pimflow.records import dataclass
from pimflow.runtime.costs import CostModel
from pimflow.runtime.gpu.measured import MeasuredTable, read_table
from pimflow.search.policy import spill_way
from pimflow.targets import Target
from pimflow.targets.overrides import with_convolutions


@dataclass(frozen=True)
class Machine:
    """A target with the cost model that prices graphs for it."""

    target: Target
    measured: MeasuredTable | None = None

    @classmethod
    def of(cls, options: Options) -> Machine:
        """The target of the options, with the measured kernel times that they name.

        Raises:
            InputDataError: these cannot be read.
            OptionError: it has no GPU whose convolutions could be run by other algorithms, or activations are to be
                offloaded with several inferences in flight.
            TargetError: it has no SSDs for offloaded activations.
        """
        if spill_way(options) == "offload":
            from pimflow.runtime.offload.spill import require_drives

            require_drives(options.target)
        measured = None if options.profile is None else MeasuredTable(read_table(options.profile))
        return cls(with_convolutions(options.target, options.convolutions, options.workspace_mib), measured)

    def __getstate__(self) -> dict[str, Any]:
        """For copy and pickle: without the cost model and its prices, which are made again on demand."""
        return {"target": self.target, "measured": self.measured}

    @cached_property
    def costs(self) -> CostModel:
        """The machine with all units in use; `costs.host_only()` is the baseline."""
        return CostModel(self.target, measured=self.measured)
