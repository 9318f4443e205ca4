"""Two compiled models side by side: their options, their results, and where they differ node by node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pimflow.data import encode
from pimflow.errors import counted
from pimflow.records import dataclass
from pimflow.report.node_rows import NodeRow
from pimflow.report.page.markup import Markup
from pimflow.report.page.waterfall import Step, grouped_steps, waterfall
from pimflow.report.plan_report import PlanReport
from pimflow.report.records import Records, Row
from pimflow.report.tables import number, render_fields, render_table, wrapped
from pimflow.targets import Target
from pimflow.targets.schema.origin import differences, spelled

NODES_SHOWN = 20
_MIN_US, _MIN_MJ = 1e-9, 1e-12
"""The smallest difference that counts; smaller ones are due to the rounding of sums."""


@dataclass(frozen=True)
class Side:
    """One of the two models.

    Args:
        label: the name that it was given.
        model, model_sha256: the original.
        target: the machine.
        options: the options of the compilation, by name.
        report: the report on its plan.
        peak_bytes: peak memory of the activations.
        programs: by node of the original, how the units' programs for it are arranged: mappings, strategies.
    """

    label: str
    model: str
    model_sha256: str
    target: Target
    options: Mapping[str, Any]
    report: PlanReport
    peak_bytes: int
    programs: Mapping[str, str]

    @property
    def title(self) -> str:
        """The model, its machine and its policy as one clause."""
        return f"{self.label}: {self.model} on {self.target.name}, policy {self.options['policy']}"

    def as_json(self) -> dict[str, Any]:
        """Plain values, without its nodes."""
        return {
            "name": self.label,
            "model": self.model,
            "model_sha256": self.model_sha256,
            "target": self.target.name,
            "policy": self.options["policy"],
        }

    @property
    def totals(self) -> dict[str, float]:
        """Its totals, by quantity."""
        result = self.report.result
        return {
            "time_us": result.time_us,
            "conv_us": result.conv_us,
            "energy_mj": result.energy_mj,
            "speedup": self.report.speedup,
            "peak_bytes": self.peak_bytes,
        }


@dataclass(frozen=True)
class Change:
    """A key that differs; None if one of the two lacks it."""

    key: str
    a: Any
    b: Any


@dataclass(frozen=True)
class NodeChange:
    """A node of the original as both run it; None if one of the two models has no such node.

    Args:
        a, b: the node's row in each report.
        program_a, program_b: how the units' programs for it are arranged; "" if it runs on the host alone.
    """

    a: NodeRow | None
    b: NodeRow | None
    program_a: str = ""
    program_b: str = ""

    @property
    def row(self) -> NodeRow:
        """The first row that exists."""
        found = self.a or self.b
        assert found is not None
        return found

    @property
    def change_us(self) -> float:
        """The change of its share of the run's time; the changes of all nodes add up to that of the run."""
        return _quantity(self.b, "share_us") - _quantity(self.a, "share_us")

    @property
    def change_mj(self) -> float:
        """The change of its energy, likewise."""
        return _quantity(self.b, "energy_mj") - _quantity(self.a, "energy_mj")

    @property
    def differs(self) -> bool:
        """Whether anything differs except names."""
        moved = (
            self.a is None or self.b is None or place_of(self.a) != place_of(self.b) or self.program_a != self.program_b
        )
        return moved or abs(self.change_us) > _MIN_US or abs(self.change_mj) > _MIN_MJ

    def as_json(self) -> dict[str, Any]:
        """One object of "nodes"."""
        return {
            "op": self.row.op,
            "change_us": self.change_us,
            "change_mj": self.change_mj,
            "differs": self.differs,
            "a": _node_json(self.a, self.program_a),
            "b": _node_json(self.b, self.program_b),
        }


@dataclass(frozen=True, repr=False)
class Difference(Records):
    """The differences between two compiled models, a row per node of either.

    Args:
        a, b: the two models.
        options: the options that differ.
        machine: the keys of the target that differ.
        nodes: nodes of the originals, in the order of the first; those that only the second has come last.
        renamed: how many nodes were matched by what they compute, because their names differ.
    """

    a: Side
    b: Side
    options: tuple[Change, ...]
    machine: tuple[Change, ...]
    nodes: tuple[NodeChange, ...]
    renamed: int = 0

    @property
    def title(self) -> str:
        """The two models, and how many nodes differ."""
        differing = sum(node.differs for node in self.nodes)
        return f"{self.a.label} and {self.b.label}, {counted(differing, 'node differs', 'nodes differ')}"

    def records(self) -> list[Row]:
        """A row per node."""
        rows = []
        for node in self.nodes:
            sides = {"a": _node_json(node.a, node.program_a), "b": _node_json(node.b, node.program_b)}
            row: Row = {"name": node.row.name, "op": node.row.op}
            for key in _NODE_KEYS:
                row |= {f"{key}_{side}": None if found is None else found[key] for side, found in sides.items()}
            rows.append(row | {"change_us": node.change_us, "change_mj": node.change_mj})
        return rows

    def as_json(self) -> dict[str, Any]:
        """One JSON object."""
        before, after = self.a.totals, self.b.totals
        return {
            "a": self.a.as_json(),
            "b": self.b.as_json(),
            "options": [encode(change) for change in self.options],
            "machine": [encode(change) for change in self.machine],
            "totals": {key: {"a": value, "b": after[key]} for key, value in before.items()},
            "renamed": self.renamed,
            "nodes": [node.as_json() for node in self.nodes],
        }

    def charts(self) -> str:
        """The chart of `waterfall`."""
        from pimflow.report.page.notebook import in_notebook

        return in_notebook(self.waterfall())

    def waterfall(self) -> Markup:
        """The change from the time of A to that of B, node by node, as SVG."""
        steps = [
            Step("slower" if node.change_us > 0 else "faster", node.row.name, node.change_us, (number,))
            for number, node in enumerate(self.nodes)
        ]
        first, second = (side.totals["time_us"] for side in (self.a, self.b))
        return waterfall(("A", first), grouped_steps(steps), ("B", second))

    def text(self, *, verbose: bool = False) -> str:
        """The differences, most expensive nodes first; `verbose` shows all nodes that differ."""
        parts = [render_fields([("A", self.a.title), ("B", self.b.title)]), self._totals()]
        if self.a.model_sha256 != self.b.model_sha256:
            parts.append(wrapped("the models are not the same file"))
        parts += [_changes(what, changes) for what, changes in (("option", self.options), ("machine", self.machine))]
        return "\n\n".join(part for part in (*parts, self._nodes(verbose)) if part)

    def _totals(self) -> str:
        units = {"time_us": "time, us", "conv_us": "convolutions, us", "energy_mj": "energy, mJ"}
        units |= {"speedup": "speedup", "peak_bytes": "activations, KiB at most"}
        lines = []
        after = self.b.totals
        for key, before in self.a.totals.items():
            scale, digits = (1 / 1024, 1) if key == "peak_bytes" else (1, 3)
            cells = (number(before * scale, digits), number(after[key] * scale, digits))
            lines.append((units[key], *cells, _percent(before, after[key])))
        return render_table(("total", "A", "B", "change"), lines, right=(1, 2, 3))

    def _nodes(self, verbose: bool) -> str:
        changed = sorted((node for node in self.nodes if node.differs), key=lambda node: -abs(node.change_us))
        alike = len(self.nodes) - len(changed)
        if not changed:
            return wrapped("the only node is alike" if alike == 1 else f"all {alike} nodes are alike")
        shown = changed if verbose else changed[:NODES_SHOWN]
        header = ("node", "op", "A runs on", "B runs on", "A us", "B us", "change us", "change mJ", "what else")
        table = render_table(header, [_line(node) for node in shown], right=range(4, 8), prose=True)
        rest = changed[len(shown) :]
        notes = []
        if rest:
            more = sum(node.change_us for node in rest)
            others = counted(len(rest), "more node differs", "more nodes differ")
            notes.append(f"{others}, by {more:+,.2f} us together (-v shows them)")
        if alike:
            notes.append(counted(alike, "node is alike", "nodes are alike"))
        if self.renamed:
            notes.append(f"{counted(self.renamed, 'node')} of different names, matched by what they compute")
        notes.append("times are shares of the run: those of all nodes add up to it")
        return "\n".join([table, *(wrapped(f"({note})") for note in notes)])


def difference_of(a: Side, b: Side, pairs: Mapping[str, str]) -> Difference:
    """Compares two compiled models.

    Args:
        a, b: the two models.
        pairs: nodes of the originals that are the same, by name.
    """
    rows_a, rows_b = ({row.name: row for row in side.report.nodes} for side in (a, b))
    nodes = [
        NodeChange(
            row, rows_b.get(pairs.get(name, "")), a.programs.get(name, ""), b.programs.get(pairs.get(name, ""), "")
        )
        for name, row in rows_a.items()
    ]
    taken = set(pairs.values())
    nodes += [NodeChange(None, row, "", b.programs.get(name, "")) for name, row in rows_b.items() if name not in taken]
    return Difference(
        a,
        b,
        _changed(a.options, b.options),
        _changed(a.target.values, b.target.values),
        tuple(nodes),
        sum(first != second for first, second in pairs.items()),
    )


def _changed(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[Change, ...]:
    return tuple(Change(found.key, found.before, found.after) for found in differences(a, b))


_NODE_KEYS = ("name", "runs_on", "program", "time_us", "share_us", "energy_mj", "why")


def _node_json(row: NodeRow | None, program: str) -> dict[str, Any] | None:
    if row is None:
        return None
    values = (row.name, place_of(row), program, row.time_us, row.share_us, row.energy_mj, row.why)
    return dict(zip(_NODE_KEYS, values, strict=True))


def _quantity(row: NodeRow | None, quantity: str) -> float:
    return 0.0 if row is None else float(getattr(row, quantity))


def place_of(row: NodeRow) -> str:
    """Where a node runs: "GPU", "60 % PIM", "PIM, pipelined"."""
    parts = [
        device.upper() if fraction == 1 else f"{100 * fraction:.3g} % {device.upper()}"
        for device, fraction in row.fractions.items()
        if fraction
    ]
    host = next(iter(row.busy_us)).upper()
    return (" + ".join(parts) or host) + (", pipelined" if row.mode == "pipeline" else "")


def _line(node: NodeChange) -> tuple[str, ...]:
    a, b = node.a, node.b
    name = node.row.name if a is None or b is None or a.name == b.name else f"{a.name} / {b.name}"
    return (
        name,
        node.row.op,
        "-" if a is None else place_of(a),
        "-" if b is None else place_of(b),
        number(_quantity(a, "share_us") or None, 2),
        number(_quantity(b, "share_us") or None, 2),
        f"{node.change_us:+,.2f}",
        f"{node.change_mj:+,.4f}",
        "; ".join(notes_of(node)),
    )


def notes_of(node: NodeChange) -> Iterable[str]:
    """Remarks on a node in addition to where it runs and what it costs."""
    if node.a is None:
        yield "only in B"
    elif node.b is None:
        yield "only in A"
    elif node.program_a and node.program_b and node.program_a != node.program_b:
        yield f"A: {node.program_a}"
        yield f"B: {node.program_b}"


def _changes(what: str, changes: Sequence[Change]) -> str:
    lines = [
        (change.key, *("-" if side is None else spelled(side) for side in (change.a, change.b))) for change in changes
    ]
    return render_table((what, "A", "B"), lines) if changes else ""


def _percent(before: float, after: float) -> str:
    return f"{100 * (after / before - 1):+.1f} %" if before else "-"
