"""One layer on PIM, without a model: what `pimflow layer` answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pimflow.codegen import MatrixProblem
from pimflow.codegen.backend import WorkReport
from pimflow.codegen.matrix import MatrixBackend
from pimflow.errors import OptionError
from pimflow.ir import Refusal
from pimflow.runtime.backends import units_of
from pimflow.targets import Target


@dataclass(frozen=True)
class LayerReport:
    """A layer on the first device that multiplies matrices."""

    target: str
    device: str
    detail: WorkReport

    def as_json(self) -> dict[str, Any]:
        """Plain values; counters and energy are sums over all parts of the unit, cycles those of the slowest."""
        return {"target": self.target, **self.detail.as_json()}

    def text(self) -> str:
        """Human-readable."""
        lines = [("target", ", ".join(filter(None, (self.target, self.detail.setting)))), *self.detail.lines()]
        return "\n".join(f"{what:<13} {value}" for what, value in lines)


def report_layer(work: MatrixProblem, target: Target, choice: str = "") -> LayerReport:
    """Prices one layer on the first device that multiplies matrices, and says what its time is spent on.

    Args:
        work: the layer.
        target: the machine.
        choice: one of the backend's choices (a mapping policy); "" is its best.

    Raises:
        OptionError: there is no such device, it does not offer the choice, or the layer cannot run on it.
    """
    units = [unit for unit in units_of(target).values() if isinstance(unit, MatrixBackend)]
    if not units:
        raise OptionError(f"no unit of target {target.name!r} multiplies matrices", "choose another target")
    unit, device = units[0], units[0].device
    report = unit.explain(work, unit.resolve(choice or unit.choices[-1]))
    if isinstance(report, Refusal):
        gap = f" ({report.gap} too many)" if report.gap is not None else ""
        hint = f"choose another layer, or {report.remedy or 'another target'}"
        raise OptionError(f"the layer cannot run on {device.upper()}: {report.reason}{gap}", hint)
    return LayerReport(target.name, device, report)
