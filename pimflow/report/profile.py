"""Measured kernels as rows."""

from __future__ import annotations

from pimflow.errors import counted
from pimflow.records import dataclass
from pimflow.report.records import Records, Row
from pimflow.runtime.gpu.measured import MeasuredRow, cells, table_text


@dataclass(frozen=True, repr=False)
class Profile(Records):
    """Times of a model's kernels, one row per kernel.

    Args:
        model: the name it was given by.
        kernels: the measured kernels.
    """

    model: str
    kernels: tuple[MeasuredRow, ...]

    @property
    def title(self) -> str:
        """The model, the number of its kernels, and the machine that they were timed on."""
        machine = self.kernels[0].machine if self.kernels else ""
        return f"{self.model}, {counted(len(self.kernels), 'kernel')}{f' timed on {machine}' if machine else ''}"

    def records(self) -> list[Row]:
        """A row per kernel, with the columns of the CSV file."""
        return [cells(kernel) for kernel in self.kernels]

    def csv(self) -> str:
        """The rows as the text of a CSV file, which `compile --profile` and `calibrate` read."""
        return table_text(self.kernels)
