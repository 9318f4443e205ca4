"""Whole compiled models in the arena: added movements are free, values are kept, plan and timeline agree."""

from __future__ import annotations

import pytest

from pimflow.compiler import compile
from pimflow.frontend import load_model
from pimflow.ir import Concat, Pad, Slice
from pimflow.ir.analysis.movement import movement
from pimflow.passes import FoldConstants, PassManager, RemoveIdentity
from pimflow.runtime.execute.arena import run_in_arena
from pimflow.runtime.execute.ort import random_inputs
from pimflow.runtime.memory import plan_memory
from support.golden import Golden, text_table
from support.light_models import randomised_light_model
from support.values import assert_close, run_in_ort


@pytest.mark.parametrize("policy", ["mddp", "pimflow"])
def test_mobilenet_loses_all_movements_that_the_rewrites_added(policy: str, golden: Golden) -> None:
    compiled = compile("zoo:mobilenet-v2", policy=policy, use_cache=False)
    movements = [node for node in compiled.graph.nodes if isinstance(node.op, Slice | Pad | Concat)]
    assert len(movements) > 20
    plan = compiled.memory
    plan.check()
    kept = {node.name for node in movements} - set(plan.eliminated)
    (stem,) = [node.name for node in movements if isinstance(node.op, Pad) and node.inputs[0].startswith("input")]
    assert kept == {stem}, "around the model's input there is no space to reserve"
    assert compiled.verify(arena=True, rtol=1e-4).passed
    assert compiled.timeline.makespan_us == pytest.approx(compiled.plan.predicted_us, rel=1e-9)
    assert plan.live_bytes <= plan.arena_bytes < plan.bytes_without_reuse
    sizes = [(name, getattr(plan, name)) for name in ("arena_bytes", "live_bytes", "bytes_without_reuse")]
    golden.check(f"mobilenet_v2_{policy}.txt", text_table(("what", "bytes"), sizes))


@pytest.mark.parametrize(
    ("name", "kept"),
    [("squeezenet", 0), ("inception_v1", 0), ("densenet121", 0), ("shufflenet", 16)],
)
def test_models_with_concats_and_shuffles(name: str, kept: int) -> None:
    """Each of the 16 channel shuffles needs one copy; all other movements are places in regions."""
    graph = PassManager((FoldConstants(), RemoveIdentity())).run(load_model(randomised_light_model(name, seed=1))).graph
    plan = plan_memory(graph)
    plan.check()
    assert len(plan.kept) == kept
    assert len(plan.movements) > kept
    assert plan.arena_bytes == plan.live_bytes
    inputs = random_inputs(graph, 0)
    expected = run_in_ort(graph, inputs)
    actual = run_in_arena(graph, plan, inputs).outputs
    for output, array in expected.items():
        assert_close(actual[output], array, 1e-4, output)


def test_predicted_time_holds_where_the_model_itself_moves_data() -> None:
    """Verdicts on the model's own Concats, made for the whole graph, are those that the search priced."""
    compiled = compile(randomised_light_model("squeezenet", seed=1), use_cache=False)
    assert compiled.timeline.makespan_us == pytest.approx(compiled.plan.predicted_us, rel=1e-9)
    told = {name: (verdict.free, verdict.bytes) for name, verdict in movement(compiled.graph).items()}
    assert told == {name: (verdict.free, verdict.bytes) for name, verdict in compiled.memory.movements.items()}
    assert compiled.verify(arena=True, rtol=1e-4).passed
