"""A calibration as rows: the errors of modelled times relative to measured ones, per class of operation."""

from __future__ import annotations

from typing import Any

from pimflow.errors import counted
from pimflow.records import dataclass
from pimflow.report.records import Records, Row
from pimflow.runtime.gpu.calibrate import Calibration, ClassError
from pimflow.runtime.gpu.determination import Determination
from pimflow.targets import Target


@dataclass(frozen=True, repr=False)
class CalibrationReport(Records):
    """A fitted target, or the errors of an unchanged target: one row per class of operation, "all" last.

    Args:
        calibration: the fit.
    """

    calibration: Calibration

    @property
    def target(self) -> Target:
        """The fitted target."""
        return self.calibration.target

    @property
    def parameters(self) -> tuple[tuple[str, float, float], ...]:
        """The fitted parameters: name, value before, value after."""
        return self.calibration.parameters

    @property
    def errors(self) -> tuple[ClassError, ...]:
        """Errors per class of operation, with those over all rows last."""
        return self.calibration.errors

    @property
    def determined(self) -> Determination | None:
        """Which of the parameters the rows determine; None if nothing was fitted."""
        return self.calibration.determined

    @property
    def title(self) -> str:
        """The target and its error."""
        held_out = self.errors[-1].held_out or self.errors[-1].before
        rows = counted(self.errors[-1].rows, "row")
        return f"{self.target.name}, off by {100 * held_out.median:.1f} % at the median of {rows}"

    def records(self) -> list[Row]:
        """A row per class of operation."""
        return [{"class": error.name, **error.as_json()} for error in self.errors]

    def toml(self) -> str:
        """The fitted target as the text of a file, with comments and sources."""
        return self.calibration.toml()

    def as_json(self) -> dict[str, Any]:
        """One JSON object."""
        return self.calibration.as_json()

    def text(self) -> str:
        """Two human-readable tables; one if nothing was fitted."""
        return self.calibration.text()
