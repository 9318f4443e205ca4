"""Everything that one compilation can be asked for, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pimflow.data import NOT_DATA
from pimflow.runtime.gpu.measured import MeasuredTable, read_table
from pimflow.targets import DEFAULT_TARGET, Target, load_target

DEFAULT_POLICY = "auto"
Shapes = Mapping[str, "tuple[int, ...] | int"]


@dataclass(frozen=True)
class Debug:
    """What to show and check between passes.

    Args:
        print_before: names of passes before which the graph is printed.
        print_after: names of passes after which it is.
        print_after_all: print the graph after every pass.
        print_times: print how long every pass took.
        verify_each: run ONNX Runtime after every pass on a seeded input and name the first pass that changed a value.
        show: receives the printed text (default: stderr).
    """

    print_before: tuple[str, ...] = ()
    print_after: tuple[str, ...] = ()
    print_after_all: bool = False
    print_times: bool = False
    verify_each: bool = False
    show: Callable[[str], None] | None = None


@dataclass(frozen=True)
class Options:
    """One compilation's options. Numbers are None where the policy's or the target's own default holds.

    An output folder keeps them all but the target, which has a file of its own, and what does not change the result.

    Args:
        target: the machine.
        policy: the search policy's name.
        shapes: shapes by input name, or sizes by symbolic dimension.
        grid: step of the MD-DP ratio grid in percent.
        stages: pipeline stage counts to try.
        time_budget_s: stop searching after so many seconds with the best plan so far.
        disabled_passes: clean-up passes to leave out, by name.
        seed: seed of the inputs that checks make up.
        use_cache: whether the profile table on disk is read and written.
        profile: a CSV file of measured kernel times that stand in for the GPU cost model.
        debug: what to show and check between passes.
    """

    target: Target = field(default_factory=lambda: load_target(DEFAULT_TARGET), metadata=NOT_DATA)
    policy: str = DEFAULT_POLICY
    shapes: Shapes = field(default_factory=dict)
    grid: int | None = None
    stages: tuple[int, ...] | None = None
    time_budget_s: float | None = None
    disabled_passes: tuple[str, ...] = ()
    seed: int = 0
    use_cache: bool = field(default=True, metadata=NOT_DATA)
    profile: str | None = None
    debug: Debug = field(default_factory=Debug, metadata=NOT_DATA)

    def measured_table(self) -> MeasuredTable | None:
        """The table that `profile` names.

        Raises:
            InputDataError: it cannot be read.
        """
        return None if self.profile is None else MeasuredTable(read_table(self.profile))
