"""Random graphs on random machines under random policies: every plan computes what ONNX Runtime computes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Literal

import onnx

from fuzz.apart import apart
from fuzz.graphs import drawn_model
from fuzz.oracle import difference, drawn_inputs, run, session, values_differ
from fuzz.verdict import Verdict
from pimflow import CompiledModel, Target, compile, load, load_target, policies, target_names
from pimflow.ir import OnDevice
from pimflow.targets import override

ObjectiveName = Literal["latency", "throughput", "energy"]
MACHINES = tuple(name for name in target_names() if "pim" in load_target(name).units)
"""Machines with Newton-style channels, which every model can use."""


def case(seed: int, folder: Path) -> Verdict:
    """Compile, run, verify and sometimes save one graph."""
    return judged(lambda: checked(seed, folder, objectives=("latency", "latency", "energy", "throughput")))


def judged(trial: Callable[[], list[str]]) -> Verdict:
    """The verdict of a trial that returns its outcome and finding, in a process of its own."""
    ended = apart(trial)
    if ended.code != 0 or ended.result is None:
        return Verdict("fails", ended.problem or ended.err[-300:])
    return Verdict(*ended.result)


def checked(
    seed: int,
    folder: Path,
    kept: onnx.ModelProto | None = None,
    among: Sequence[str] = tuple(policies()),
    objectives: Sequence[ObjectiveName] = ("latency",),
) -> list[str]:
    """The outcome and finding of one compilation, under one of some policies for one of some objectives, and of all
    checks on it."""
    rng = Random(seed)
    model = drawn_model(rng) if kept is None else kept
    policy, target = rng.choice(among), machine(rng)
    grid, stages = rng.choice((None, 5, 10, 25, 50)), rng.choice((None, (2,), (2, 3), (3, 5)))
    objective = rng.choice(objectives)
    compiled = compile(
        model,
        policy=policy,
        objective=objective,
        target=target,
        grid=grid,
        stages=stages,
        use_cache=False,
        seed=seed,
    )
    label = f"{policy} for {objective} on {target.name}, grid {grid}, stages {stages}"
    finding = _finding(compiled, model, rng, seed, folder)
    plan = compiled.plan
    us = {"latency": plan.predicted_us, "throughput": plan.interval_us or math.inf, "energy": 0.0}[objective]
    if not finding and policy != "pim" and kept is None and us > plan.baseline_us + 1e-6:
        finding = f"slower than the host alone: {us} > {plan.baseline_us}"
    return [outcome(compiled), f"{label}: {finding}" if finding else ""]


def machine(rng: Random) -> Target:
    """A shipped machine, or one with fewer channels, free launches, or a slow or fast host."""
    target = override(load_target(rng.choice(MACHINES)), pim_channels=rng.choice((None, None, 3, 8)))
    gpu, pim = target.any_gpu, target.pim
    kind = rng.choice(("shipped", "shipped", "slow host", "fast host", "one buffer", "no launch"))
    if kind == "one buffer":
        pim = replace(pim, buffers=1, buffers_per_channel=1)
    if kind == "no launch":
        pim = replace(pim, launch_us=0.0)
    if kind == "slow host":
        gpu = replace(gpu, clock_mhz=gpu.clock_mhz / 40, channel_gb_per_s=gpu.channel_gb_per_s / 40)
    if kind == "fast host":
        gpu = replace(gpu, clock_mhz=gpu.clock_mhz * 10, channel_gb_per_s=gpu.channel_gb_per_s * 10)
    return target.with_units(**{target.host: gpu, "pim": pim})


def outcome(compiled: CompiledModel) -> str:
    """The kinds of decisions in the plan."""
    kinds = Counter(type(decision).__name__ for decision in compiled.plan.decisions)
    placed = [item for item in compiled.plan.decisions if isinstance(item, OnDevice)]
    words = ["PIM"] if any(item.device != compiled.plan.host for item in placed) else []
    words += sorted(set(kinds) - {"OnDevice"})
    return "right: " + (", ".join(words) or "host alone")


def _finding(compiled: CompiledModel, model: onnx.ModelProto, rng: Random, seed: int, folder: Path) -> str:
    original = session(model.SerializeToString())
    feeds = drawn_inputs(original, seed)
    problem = values_differ(run(original, feeds), compiled.run(feeds))
    if problem:
        return problem
    for asked in ({"arena": True}, {"pim": "values", "operand": "fp32"}):
        if rng.random() < 0.5:
            verified = compiled.verify(**asked)
            if not verified.passed:
                return f"verify {asked}: {verified.text()}"
    return _saved(compiled, model, seed, folder) if rng.random() < 0.25 else ""


def _saved(compiled: CompiledModel, model: onnx.ModelProto, seed: int, folder: Path) -> str:
    out = compiled.save(folder / "out")
    if not load(out).verify(arena=True).passed:
        return "verify fails after save and load"
    return difference(model.SerializeToString(), str(out / "model.onnx"), seed)
