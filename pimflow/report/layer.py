"""One layer on PIM without a model: the report of `pimflow layer`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from pimflow.codegen import ConvProblem, MatrixProblem
from pimflow.codegen.answers import WorkReport
from pimflow.codegen.matrix import MatrixBackend
from pimflow.codegen.work import MAX_MACS
from pimflow.data import encode, read_argument
from pimflow.errors import ArgumentError, OptionError, kind_of
from pimflow.ir import Builder, Conv2d, Graph, Refusal
from pimflow.ir.ops.contraction import PRODUCT
from pimflow.records import dataclass
from pimflow.report.records import Records, Row, flat
from pimflow.report.tables import energies, render_fields
from pimflow.runtime.costs import CostModel
from pimflow.search.pricing import alone_times_us
from pimflow.targets import Target, TargetRecord
from pimflow.targets.schema.origin import by_key


@dataclass(frozen=True, repr=False)
class LayerReport(Records):
    """A single layer on the first device that multiplies matrices, as one row.

    Args:
        machine: the machine.
        device: the device.
        work: the layer.
        detail: the report of the device.
        host: the host device.
        baseline_us: time of the host alone, with all memory channels.
    """

    machine: TargetRecord
    device: str
    work: MatrixProblem
    detail: WorkReport
    host: str
    baseline_us: float

    @property
    def title(self) -> str:
        """The layer and the machine."""
        return f"{self.work} on {self.device.upper()} of {self.machine.name}"

    def records(self) -> list[Row]:
        """One row, without values per channel."""
        found = {key: value for key, value in self.detail.as_json().items() if not isinstance(value, list)}
        return [flat({"target": self.machine.name, "device": self.device, **found, "baseline_us": self.baseline_us})]

    def as_json(self) -> dict[str, Any]:
        """Plain values; counters and energy are sums over all parts of the unit, cycles those of the slowest."""
        machine = self.machine
        return {
            "target": machine.name,
            "machine": machine.as_json(),
            **self.detail.as_json(),
            "baseline_us": self.baseline_us,
        }

    def text(self) -> str:
        """The report as human-readable text."""
        cost = self.detail.cost
        (energy,) = energies(cost.energy_mj)
        speedup = f"; {self.device.upper()} is {self.baseline_us / cost.time_us:.2f}x as fast" if cost.time_us else ""
        lines = [
            ("target", ", ".join(filter(None, (self.machine.name, self.detail.setting)))),
            *self.machine.lines(),
            *self.detail.lines(),
            ("energy", energy),
            (f"{self.host.upper()} alone", f"{self.baseline_us:,.2f} us{speedup}"),
        ]
        return render_fields(lines)


def report_layer(work: MatrixProblem, target: Target, choice: str = "", operand: str = "") -> LayerReport:
    """Prices one layer on the first device that multiplies matrices, with a breakdown of its time.

    Args:
        work: the layer.
        target: the machine.
        choice: one of the backend's choices (a mapping policy); "" is the best one.
        operand: the element type of its operands: the device's own ("") or one of its `narrow_operands`.

    Raises:
        ArgumentError: `work` is not a layer.
        OptionError: its sizes are invalid, there is no such device, it does not offer the choice or the operands, or
            the layer cannot run on it.
    """
    work = _checked(work)
    costs = CostModel(target)
    units = [unit for unit in costs.units.values() if isinstance(unit, MatrixBackend)]
    if not units:
        raise OptionError(f"no unit of target {target.name!r} multiplies matrices", "choose another target")
    unit, device = units[0], units[0].device
    report = unit.explain(unit.of_operand(work, operand), unit.resolve(choice or unit.choices[-1]))
    if isinstance(report, Refusal):
        gap = f" ({report.gap} too many)" if report.gap is not None else ""
        hint = f"choose another layer, or {report.remedy or 'another target'}"
        raise OptionError(f"the layer cannot run on {device.upper()}: {report.reason}{gap}", hint)
    graph = _graph_of(work)
    (baseline_us,) = alone_times_us(graph, costs).values()
    return LayerReport(TargetRecord.of(target), device, work, report, target.host, baseline_us)


def _checked(given: Any) -> MatrixProblem:
    """The layer, with tuples for lists and Python's numbers for others; refuses other objects, and invalid sizes."""
    if not isinstance(given, MatrixProblem):
        raise ArgumentError(f"'work' is {kind_of(given)}", "give a ConvProblem or a MatmulProblem")
    parts = {item.name: getattr(given, item.name) for item in fields(given)}
    work: MatrixProblem = read_argument("work", type(given), parts)
    for key, value in by_key(encode(work)).items():
        least = 0 if key == "pads" else 1
        for size in value if isinstance(value, tuple) else (value,):
            if type(size) is not bool and (type(size) is not int or size < least):
                raise OptionError(f"{key!r} of the layer is {value!r}", f"it must be whole numbers of {least} or more")
    if isinstance(work, ConvProblem):
        if work.in_channels % work.groups or work.out_channels % work.groups:
            raise OptionError("the channels of the layer are not multiples of its groups", "correct them")
        if work.out_h < 1 or work.out_w < 1:
            raise OptionError("the kernel of the layer is larger than its padded input", "correct them")
    if work.macs > MAX_MACS:
        raise OptionError(f"the layer has more than {MAX_MACS:.0e} multiplications", "make its sizes smaller")
    return work


def _graph_of(work: MatrixProblem) -> Graph:
    """A graph with only the layer; its weights are zeros that take no memory."""
    build = Builder("layer")
    if isinstance(work, ConvProblem):
        source = build.input(work.batch, work.in_channels, work.in_h, work.in_w)
        conv = Conv2d(work.kernel, work.strides, work.pads, work.dilations, work.groups)
        weights = _zeros(build, work.out_channels, work.in_channels // work.groups, *work.kernel)
        return build.graph(build.op(conv, source, weights))
    source = build.input(work.batch, work.m, work.k)
    shape = (*((work.batch,) if work.batched_rhs else ()), work.k, work.n)
    right = _zeros(build, *shape) if work.constant_rhs else build.input(*shape, name="right")
    return build.graph(build.op(PRODUCT, source, right))


def _zeros(build: Builder, *shape: int) -> str:
    return build.constant(np.broadcast_to(np.float32(0), shape))
