"""Models whose features are not in GPU memory: plans that fit, the cheapest of them, and why there is none."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from scipy.optimize import linprog

import pimflow
from pimflow.compiled import CompiledModel
from pimflow.errors import OptionError, TargetError
from pimflow.ir import Builder, GatherRows, Graph, OnDevice, Parallel, Plan
from pimflow.ir.analysis.host_tables import fetches, in_host
from pimflow.ir.analysis.tensor_layout import element_bytes
from pimflow.options import Options
from pimflow.passes import PlaceFeatures
from pimflow.runtime.costs import CostModel
from pimflow.runtime.features import FeatureAccess, TableRead
from pimflow.runtime.memory import MemoryPlan
from pimflow.runtime.memory.tiers import gigabytes
from pimflow.runtime.timeline import regions
from pimflow.search.feature_places import MARKS, feature_places, has_room
from pimflow.search.room import memory_in_order, needed_bytes
from pimflow.sparse.generate import power_law
from pimflow.sparse.host_rows import HostRows
from pimflow.targets import Target, override
from support.onnx_models import model_of

EDGES = power_law(1000, 6_000, 100)
MIB = 1 << 20


def machine(mib: float) -> Target:
    return override("rtx3090", {"memory.gpu.capacity_gib": mib / 1024, "memory.gpu.reserved_gib": 0})


@cache
def compiled(model: str, mib: float, tables: str = "auto", policy: str = "gpu") -> CompiledModel:
    return pimflow.compile(
        model, graph=EDGES, target=machine(mib), tables=tables, policy=policy, use_cache=False, check=False
    )


def replayed(graph: Graph) -> int:
    """The peak of GPU memory when nodes run one after the other: values that exist and are still to be read."""
    steps, held = [node for nodes in regions(graph) for node in nodes], in_host(graph)
    last = {name: at for at, node in enumerate(steps) for name in node.inputs if name}
    last.update(dict.fromkeys(graph.outputs, len(steps)))
    size = {
        name: value.elements * (element_bytes(value.dtype) or 0)
        for name, value in graph.values.items()
        if name not in held
    }
    weights = sum(size[name] for name in graph.constants if name not in held)
    there, most = {name for name in graph.inputs if name in size}, 0
    for at, node in enumerate(steps):
        if node.placement.movement is None or not node.placement.movement.free:
            there |= {name for name in node.outputs if name}
        most = max(most, sum(size[name] for name in there))
        there = {name for name in there if last.get(name, -1) > at}
    return most + weights


@pytest.mark.parametrize("model", ["zoo:gcn", "zoo:sage"])
def test_features_that_do_not_fit_get_a_plan_that_does(model: str) -> None:
    whole = compiled(model, 1000)
    assert not fetches(whole.graph)
    tight = compiled(model, 3)
    needed = tight.memory.arena_bytes + tight.memory.weight_bytes
    assert needed <= 3 * MIB < whole.memory.arena_bytes
    assert replayed(tight.graph) <= needed
    assert "x" in in_host(tight.graph)
    assert tight.verify().passed
    assert tight.verify(arena=True).passed


def test_the_plan_keeps_the_promise_made_before_the_search() -> None:
    """With a mean that starts from the smallest feature, plans run its branches in another order than the export."""
    model = str(Path(__file__).parents[1] / "data" / "gnn" / "sage-min-ts.onnx")
    made = compiled(model, 1000, "aligned")
    (note,) = (note for note in made.notes if note.startswith("place-features: x: "))
    needed = made.memory.arena_bytes + made.memory.weight_bytes
    assert note.startswith(f"place-features: x: zero-copy: {gigabytes(needed)} of ")


def test_parts_add_up_and_the_link_is_on_the_timeline() -> None:
    tight = compiled("zoo:gcn", 3)
    timeline, (table,) = tight.timeline, tight.host_tables
    assert sum(timeline.busy_us.values()) == pytest.approx(timeline.makespan_us)
    assert timeline.busy_us["pcie"] == pytest.approx(table.time_us)
    assert sum(row.time_us for row in tight.report.nodes) == pytest.approx(timeline.makespan_us)
    access = FeatureAccess(machine(3), tight.machine.costs.host)
    rows = [tight.graph.constants[node.inputs[1]].astype(np.int64) for node in fetches(tight.graph)]
    assert np.array_equal(np.concatenate(rows), np.arange(1000))
    priced = [access.cost("gather", TableRead(index, 4 * 1433, is_run=True)).time_us for index in rows]
    assert table.time_us == pytest.approx(sum(priced))
    assert dict(tight.about)["tables"] == table.text
    assert tight.document()["memory"]["in_host"] == [table.as_json()]


def test_a_folder_stores_the_places_of_tables(tmp_path: Path) -> None:
    tight = compiled("zoo:gcn", 3)
    again = pimflow.load(tight.save(tmp_path / "out"))
    assert again.host_tables == tight.host_tables
    assert again.timeline.busy_us == tight.timeline.busy_us
    assert again.memory.arena_bytes == tight.memory.arena_bytes


def test_the_cheapest_way_is_chosen() -> None:
    prices = {way: compiled("zoo:sage", 3, way).report.result.time_us for way in ("host", "zero-copy", "aligned")}
    assert compiled("zoo:sage", 3).report.result.time_us == pytest.approx(min(prices.values()))
    assert prices["aligned"] < prices["zero-copy"]


def test_a_plan_that_exceeds_the_memory_is_replaced() -> None:
    tight = compiled("zoo:gcn", 3, policy="auto")
    assert tight.memory.arena_bytes + tight.memory.weight_bytes <= 3 * MIB
    assert tight.report.result.time_us <= compiled("zoo:gcn", 3).report.result.time_us
    graph = tight.graph
    names = [node.name for node in graph.nodes]
    one_by_one = Plan("auto", tuple(OnDevice(name, "gpu") for name in names), 0.0, 0.0)
    at_once = Plan("auto", (Parallel(tuple((OnDevice(name, "gpu"),) for name in names)),), 0.0, 0.0)
    assert has_room(one_by_one, graph, tight.machine.costs)
    assert not has_room(at_once, graph, tight.machine.costs)


def test_features_can_be_forced_onto_the_host() -> None:
    explicit = compiled("zoo:gcn", 1000, "aligned")
    (table,) = explicit.host_tables
    assert (table.access, table.reads) == ("zero-copy", 1)
    assert table.requests == HostRows(4 * 1433).requests(np.arange(1000)).requests
    assert not fetches(compiled("zoo:gcn", 3, "gpu").graph)


def test_if_nothing_fits_one_line_states_what_is_missing() -> None:
    about = dict(compiled("zoo:gcn", 0.1).about)
    assert about["GPU memory"].startswith("DOES NOT FIT")
    assert "short; largest there: " in about["GPU memory"]
    assert about["tables"].startswith("with tables in the host's memory the GPU needs 0.")
    with pytest.raises(TargetError, match="more than it has; choose a larger machine"):
        compiled("zoo:gcn", 0.1, "host")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"tables": "aligned", "target": "pimflow"}, TargetError, "does not describe its memory tiers"),
        ({"tables": "host", "target": "rtx3090"}, OptionError, "reads no table by rows"),
        ({"tables": "disk"}, OptionError, "'tables' is 'disk'"),
    ],
)
def test_invalid_requests_are_one_line_errors(options: dict[str, str], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        pimflow.compile("zoo:toy", policy="gpu", check=False, **options)  # type: ignore[arg-type]


def test_embedding_tables_can_be_on_the_host() -> None:
    random = np.random.default_rng(0)
    weights = {
        "table": random.standard_normal((20_000, 64)).astype(np.float32),
        "w": random.standard_normal((64, 8)).astype(np.float32),
    }
    nodes = [helper.make_node("Gather", ["table", "ids"], ["rows"]), helper.make_node("MatMul", ["rows", "w"], ["y"])]
    graph = helper.make_graph(
        nodes,
        "lookup",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [50])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [50, 8])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    found = pimflow.compile(model, target=machine(1), policy="gpu", use_cache=False)
    (table,) = found.host_tables
    assert (table.table, table.bytes, table.bytes_read) == ("table", 20_000 * 256, 50 * 256)
    assert found.memory.arena_bytes + found.memory.weight_bytes < MIB
    assert found.verify(arena=True).passed


def test_as_many_tables_as_necessary_leave_the_largest_first() -> None:
    """As in a recommendation model, which has dozens of them."""
    tables = {f"t{at}": np.ones((1000 + 10 * at, 16), np.float32) for at in range(12)}
    nodes = [helper.make_node("Gather", [name, f"ids{name}"], [f"rows{name}"]) for name in tables]
    nodes.append(helper.make_node("Concat", [f"rows{name}" for name in tables], ["y"], axis=1))
    model = model_of(nodes, {f"ids{name}": (4,) for name in tables}, ["y"], tables)
    for info in model.graph.input:
        info.type.tensor_type.elem_type = TensorProto.INT64
    for staying in (11, 2, 0):
        room = sum(array.nbytes for array in [*tables.values()][:staying]) + 16_384
        found = pimflow.compile(model, target=machine(room / MIB), policy="gpu", use_cache=False, check=False)
        assert sorted(table.table for table in found.host_tables) == sorted([*tables][staying:])
        assert found.memory.arena_bytes + found.memory.weight_bytes <= room


def lookups(sizes: Sequence[int], ids: int, given: Collection[int] = ()) -> Graph:
    """Tables of 16 columns with their numbers of rows, constants or (those in `given`) inputs, and rows of each,
    picked by ids that are constants for every second one, side by side."""
    build, random = Builder("lookups"), np.random.default_rng(0)
    picked = []
    for at, rows in enumerate(sizes):
        array = np.ones((rows, 16), np.float32)
        table = build.input(*array.shape, name=f"t{at}") if at in given else build.constant(array, f"t{at}")
        index = random.integers(0, rows, ids)
        by = build.constant(index, f"ids{at}") if at % 2 else build.input(ids, name=f"ids{at}", dtype="int64")
        picked.append(build.relu(build.op(GatherRows(), table, by)))
    return build.graph(build.concat(1, *picked))


def placed(graph: Graph, mib: float) -> tuple[list[str], str]:
    """The tables that leave, and what a record says."""
    options = Options.of(target=machine(mib), policy="gpu")
    chosen = feature_places(graph, CostModel(options.target), options)
    notes = [note for record in chosen.records for note in record.notes]
    return [step.table for step in chosen.passes if isinstance(step, PlaceFeatures)], "".join(notes)


def least_bytes(graph: Graph, tables: Sequence[str]) -> int:
    """The least that the GPU needs with some tables in the host's memory, in one of the ways to fetch rows."""
    forms = []
    for access in ("gather", "zero-copy"):
        form = graph
        for step in (*(PlaceFeatures(name, access) for name in tables), *MARKS):
            form = step.run(form).graph
        forms.append(form)
    return min(needed_bytes(form, CostModel(machine(1000))) for form in forms)


@pytest.mark.parametrize("seed", range(8))
def test_no_fewer_tables_would_do(seed: int) -> None:
    """All numbers of tables are tried here, the largest first."""
    random = np.random.default_rng(seed)
    sizes = random.integers(20, 3000, 7).tolist()
    graph = lookups(sizes, int(random.integers(1, 300)), random.choice(7, 3, replace=False).tolist())
    order = sorted(range(7), key=lambda at: (-sizes[at], graph.is_constant(f"t{at}"), at))
    needed = [least_bytes(graph, [f"t{at}" for at in order[:count]]) for count in range(8)]
    for room in (needed[0] - 1, *random.integers(needed[-1] // 2, needed[0], 5).tolist()):
        fewest = next((count for count, size in enumerate(needed) if size <= room), 0)
        names, note = placed(graph, room / MIB)
        assert names == [f"t{at}" for at in order[:fewest]]
        assert fewest or f"the GPU needs {gigabytes(min(needed))}" in note


@pytest.mark.parametrize("share", [0.97, 1.05])
def test_numbers_of_tables_that_cannot_be_enough_are_not_tried(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 150 tables, rows that are picked take most of the memory, so each number of tables could be tried."""
    graph = lookups(range(100, 250), 800)
    least = least_bytes(graph, [f"t{at}" for at in range(150)])
    planned: list[Graph] = []

    def counted(graph: Graph, costs: CostModel) -> MemoryPlan:
        planned.append(graph)
        return memory_in_order(graph, costs)

    monkeypatch.setattr("pimflow.search.feature_places.memory_in_order", counted)
    names, _ = placed(graph, share * least / MIB)
    assert (0 < len(names) < 150) == (share > 1)
    assert len(planned) < 12


def test_a_quantised_table_frees_the_bytes_that_it_took() -> None:
    """On the GPU it takes 8 bits an element; its rows are fetched as the numbers that the model reads."""
    random = np.random.default_rng(0)
    constants = {
        "quantised": random.integers(0, 255, (2000, 64), np.uint8),
        "scale": np.array(0.1, np.float32),
        "w": random.standard_normal((64, 8)).astype(np.float32),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["quantised", "scale"], ["table"]),
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("MatMul", ["rows", "w"], ["y"]),
    ]
    model = model_of(nodes, {"ids": (4,)}, ["y"], constants)
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    resident, away = (
        pimflow.compile(model, target="rtx3090", tables=tables, policy="gpu", use_cache=False)
        for tables in ("gpu", "host")
    )
    assert resident.memory.weight_bytes == 2000 * 64 + 4 + 64 * 8 * 4
    assert away.memory.weight_bytes == 64 * 8 * 4
    (table,) = away.host_tables
    assert (table.bytes, table.bytes_read) == (2000 * 256, 4 * 256)


def least_transfer_us(model: CompiledModel) -> float:
    """The minimum time to transfer rows, by a linear program: for each row of a table, the bytes by each way."""
    memory = model.machine.target.memory
    assert memory is not None
    assert memory.pcie is not None
    rates = (memory.pcie.copy_gb_per_s, memory.pcie.pageable_gb_per_s, memory.pcie.zero_copy_gb_per_s)
    rows: dict[str, set[int]] = {}
    for node in fetches(model.graph):
        rows.setdefault(node.inputs[0], set()).update(model.graph.constants[node.inputs[1]].reshape(-1).tolist())
    sizes = []
    for table, read in rows.items():
        value = model.graph.value(table)
        sizes.append(len(read) * (element_bytes(value.dtype) or 0) * value.elements // model.graph.shape(table)[0])
    of_table = np.kron(np.eye(len(rows)), np.ones(len(rates)))
    spent = np.tile([1 / (rate * 1e3) for rate in rates], len(rows))
    return float(linprog(spent, A_eq=of_table, b_eq=sizes).fun)


@pytest.mark.parametrize(("model", "mib"), [("zoo:gcn", 3), ("zoo:sage", 3), ("zoo:sage", 4)])
@pytest.mark.parametrize("tables", ["host", "zero-copy", "aligned"])
def test_the_bound_has_every_row_over_the_link_once(model: str, mib: float, tables: str) -> None:
    made = compiled(model, mib, tables)
    bound = made.report.bound
    assert fetches(made.graph)
    assert bound.transfer_us == pytest.approx(least_transfer_us(made))
    assert bound.time_us == min(bound.host_us, max(bound.load_us, bound.path_us, bound.meeting_us) + bound.transfer_us)
    assert 0.3 < 1 / made.report.bound_ratio <= 1 + 1e-9
    assert compiled(model, 1000).report.bound.transfer_us == 0
