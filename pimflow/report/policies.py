"""Policies side by side on one model and machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pimflow.ir import Graph, Plan, SplitColumns, SplitEdges, SplitK, SplitRows
from pimflow.ir.analysis.regions import node_columns, node_k, node_rows
from pimflow.ir.plan import singles
from pimflow.options import Options
from pimflow.passes import PassManager
from pimflow.records import dataclass
from pimflow.report.basis import gpu_basis
from pimflow.report.fitted_cost import FITTED, HEADER, FittedCost
from pimflow.report.measures import Costs
from pimflow.report.plan_report import PlanCosts, cost_plan
from pimflow.report.records import Records, Row, flat
from pimflow.report.summary import CUT_SHORT, without
from pimflow.report.tables import number, render_table, significant, wrapped
from pimflow.runtime.gpu.kept import multiplies
from pimflow.runtime.spending import Spending
from pimflow.search.policy import find_policy, offered_policies, require_offered, spill_way
from pimflow.search.price_cache import PriceCache
from pimflow.search.pricing import rewrites
from pimflow.search.progress import Tell, silent
from pimflow.search.solver import open_cache, solve
from pimflow.targets import Target, TargetRecord

_SHARED = ("md-dp", "pipeline")
"""Modes of nodes that run on several devices."""


@dataclass(frozen=True)
class PolicyResult:
    """The result of one policy.

    Args:
        policy: its name.
        time_us, energy_mj, conv_us: of the plan; `conv_us` as defined by `report.measures.Measure`.
        baseline_us, baseline_energy_mj, baseline_conv_us: of the GPU alone with all memory channels.
        fitted: the plan's cost after its activations are made to fit; all other figures are with all of them kept.
        interval_us: the time between two inferences; without overlap (all objectives except throughput) that of one.
        speedup, conv_speedup: baseline over plan, end to end and for convolutions alone.
        rate_speedup: in inferences per second: baseline over interval.
        energy_change: plan over baseline, minus one: -0.26 saves 26 %.
        spent, baseline_spent: breakdowns of time and energy.
        mode_share: share of the convolutions and matrix products by mode (a device, "md-dp", "pipeline").
        ratio_histogram: number of MD-DP nodes by share of rows on PIM, in percent to the nearest ten.
        candidates, search_seconds: the number of priced candidates, and the duration of the search.
        gpu_basis: what the GPU's times are based on.
        unknown_nodes: the number of nodes with something missing from times and energies.
    """

    policy: str
    time_us: float
    energy_mj: float
    conv_us: float
    fitted: FittedCost
    baseline_us: float
    baseline_energy_mj: float
    baseline_conv_us: float
    interval_us: float
    speedup: float
    conv_speedup: float
    rate_speedup: float
    energy_change: float
    spent: Spending
    baseline_spent: Spending
    mode_share: Mapping[str, float]
    ratio_histogram: Mapping[int, int]
    candidates: int
    search_seconds: float
    gpu_basis: str
    unknown_nodes: int
    plan: Plan

    def as_json(self) -> dict[str, Any]:
        """One JSON object without the plan and the GPU's basis; breakdowns are by part."""
        apart = ("plan", "gpu_basis", "spent", "baseline_spent", "fitted")
        data = {name: value for name, value in vars(self).items() if name not in apart} | self.fitted.figures()
        for front, spent in (("", self.spent), ("baseline_", self.baseline_spent)):
            data[f"{front}time_parts_us"] = spent.share_parts_us
            data[f"{front}energy_parts_mj"] = spent.energy_parts_mj
        data["complete"] = self.plan.complete
        data["ratio_histogram"] = {str(ratio): count for ratio, count in self.ratio_histogram.items()}
        return data | {"mode_share": dict(self.mode_share)}


def compare_graph(
    graph: Graph,
    options: Options,
    policies: Sequence[str] | None = None,
    *,
    costs: Costs,
    measured: bool = False,
    prices: PriceCache | None = None,
    progress: Tell = silent,
) -> list[PolicyResult]:
    """Plans for several policies (by default all that the machine offers) on one graph after the clean-up passes.

    `measured` says whether profiled kernels take precedence over the host's model. The other arguments are those of
    `solve`; the options' own policy is not used. Policies share one price cache, so that each benefits from the others.

    Raises:
        OptionError: a policy is unknown, or the machine does not offer it.
    """
    asked = [find_policy(name) for name in policies or offered_policies(costs.units)]
    for policy in asked:  # all checks come before the first search
        require_offered(policy, costs.units)
    names = [policy.name for policy in asked]
    prices = open_cache(options, costs) if prices is None else prices
    results: list[PolicyResult] = []
    for name in names:
        plan = solve(graph, replace(options, policy=name), costs=costs, prices=prices, progress=progress)
        rewritten = PassManager(rewrites(plan, costs)).run(graph).graph
        cost = cost_plan(graph, plan, rewritten, costs)
        fit = FittedCost.of(rewritten, costs, spill_way(options), cost.result)
        results.append(policy_result(graph, plan, cost, fit, costs.target, measured=measured))
    return results


def policy_result(
    graph: Graph, plan: Plan, cost: PlanCosts, fit: FittedCost, target: Target, *, measured: bool = False
) -> PolicyResult:
    """A plan and its cost as one row of a comparison."""
    before, after = cost.baseline, cost.result
    interval_us = after.time_us if plan.interval_us is None else plan.interval_us
    return PolicyResult(
        policy=plan.policy,
        time_us=after.time_us,
        energy_mj=after.energy_mj,
        conv_us=after.conv_us,
        fitted=fit,
        baseline_us=before.time_us,
        baseline_energy_mj=before.energy_mj,
        baseline_conv_us=before.conv_us,
        interval_us=interval_us,
        speedup=cost.speedup,
        conv_speedup=cost.conv_speedup,
        rate_speedup=before.time_us / interval_us if interval_us else 1.0,
        energy_change=after.energy_mj / before.energy_mj - 1 if before.energy_mj else 0.0,
        spent=after.spent,
        baseline_spent=before.spent,
        mode_share=_mode_share(graph, cost, target.devices),
        ratio_histogram=_ratio_histogram(graph, plan, cost),
        candidates=plan.candidates,
        search_seconds=plan.search_seconds,
        gpu_basis=gpu_basis(target, measured=measured),
        unknown_nodes=len(cost.unknown),
        plan=plan,
    )


def _mode_share(graph: Graph, cost: PlanCosts, devices: Sequence[str]) -> dict[str, float]:
    ops = {row.name: graph.node(row.name).op for row in cost.nodes}
    products = [row for row in cost.nodes if ops[row.name].is_contraction or multiplies(ops[row.name])]
    counts = Counter(row.mode for row in products)
    return {mode: counts[mode] / max(1, len(products)) for mode in (*devices, *_SHARED)}


def _ratio_histogram(graph: Graph, plan: Plan, cost: PlanCosts) -> dict[int, int]:
    counts: Counter[int] = Counter()
    fractions = {row.name: row.fractions for row in cost.nodes}
    for decision in (item for some in plan.decisions for item in singles(some)):
        if isinstance(decision, SplitRows):
            rows = node_rows(graph, graph.node(decision.node))
            counts[10 * round(10 * (rows - decision.gpu_rows) / rows)] += 1
        if isinstance(decision, SplitColumns):
            columns = node_columns(graph, graph.node(decision.node))
            counts[10 * round(10 * (columns - decision.gpu_columns) / columns)] += 1
        if isinstance(decision, SplitK):
            inner = node_k(graph, graph.node(decision.node))
            counts[10 * round(10 * (inner - decision.gpu_k) / inner)] += 1
        if isinstance(decision, SplitEdges):
            counts[10 * round(10 * fractions[decision.node][decision.device])] += 1
    return dict(sorted(counts.items()))


@dataclass(frozen=True, repr=False)
class Comparison(Records):
    """A comparison of policies, a row each.

    Args:
        model: the name it was given by.
        model_sha256: digest of its bytes.
        machine: the machine that the plans are for.
        gpu_basis: what the GPU's times are based on.
        policies: the result of each policy.
    """

    model: str
    model_sha256: str
    machine: TargetRecord
    gpu_basis: str
    policies: tuple[PolicyResult, ...]

    @property
    def title(self) -> str:
        """Model, machine, and the number of policies."""
        return f"{self.model} on {self.machine.name}, {len(self.policies)} policies"

    def records(self) -> list[Row]:
        """A row per policy."""
        return [flat(result.as_json()) for result in self.policies]

    def as_json(self) -> dict[str, Any]:
        """One JSON object: the model, the machine, and an object per policy."""
        return {
            "model": self.model,
            "model_sha256": self.model_sha256,
            "target": self.machine.name,
            "machine": self.machine.as_json(),
            "gpu_basis": self.gpu_basis,
            "policies": [result.as_json() for result in self.policies],
        }

    def charts(self) -> str:
        """Time and energy by part for every policy, next to the host alone."""
        from pimflow.report.page.notebook import in_notebook, spent_charts
        from pimflow.report.page.parts import Bar

        devices = [mode for mode in self.policies[0].mode_share if mode not in _SHARED]
        alone = (f"{devices[0].upper()} alone", self.policies[0].baseline_spent)
        spent = [alone, *((result.policy, result.spent) for result in self.policies)]
        time = [Bar(label, found.share_parts_us) for label, found in spent]
        return in_notebook(*spent_charts(time, [Bar(label, found.energy_parts_mj) for label, found in spent], devices))

    def text(self) -> str:
        """The machine, a table with a line per policy, and how rows of MD-DP nodes are divided."""
        about = "\n".join(f"{what:<9} {text}" for what, text in (("model", self.model), *self.machine.lines()))
        return f"{about}\n\n{_table(self.policies)}"


def _table(results: Sequence[PolicyResult]) -> str:
    """A table with a line per policy, and how rows of MD-DP nodes are divided."""
    modes = tuple(dict.fromkeys(mode for result in results for mode in result.mode_share))
    overlapping = any(result.plan.interval_us is not None for result in results)
    rates = ("interval (us)", "rate") if overlapping else ()
    moved = any(result.fitted.differs(result.time_us) for result in results)
    header = (
        "policy",
        "time (us)",
        "energy (mJ)",
        *(HEADER if moved else ()),
        *rates,
        "speedup",
        "CONV speedup",
        *modes,
    )
    rows = [
        (
            result.policy,
            number(result.time_us),
            significant(result.energy_mj),
            *(result.fitted.cells() if moved else ()),
            *((number(result.interval_us), f"{number(result.rate_speedup, 3)}x") if overlapping else ()),
            number(result.speedup, 3),
            number(result.conv_speedup, 3),
            *(f"{100 * result.mode_share[mode]:.0f} %" for mode in modes),
        )
        for result in results
    ]
    table = render_table(header, rows, right=range(1, len(header)))
    lines = []
    for result in results:
        if result.ratio_histogram:
            parts = ", ".join(f"{ratio} %: {count}" for ratio, count in result.ratio_histogram.items())
            lines.append(f"{result.policy}: share of rows on PIM in MD-DP nodes: {parts}")
    if overlapping:
        lines.append(
            "interval: time between inferences; rate: inferences per second over the host's; time, energy: of one alone"
        )
    lines += [FITTED] if moved else []
    lines += [f"speedups are over the {basis}" for basis in dict.fromkeys(r.gpu_basis for r in results) if basis]
    lines += [f"{result.policy}: search{CUT_SHORT}" for result in results if not result.plan.complete]
    unknown = max((result.unknown_nodes for result in results), default=0)
    if unknown:
        lines.append(f"speedups are{without(unknown)}; `pimflow inspect` says which")
    return "\n".join([table, *(wrapped(line, "  ") for line in lines)])
