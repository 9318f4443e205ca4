"""Random problems and machines for tests, and ONNX Runtime's answer to a problem."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from pimflow.codegen import ConvProblem, MatmulProblem, MatrixProblem
from pimflow.codegen.newton import Mapping, newton_mappings
from pimflow.codegen.newton.im2col import geometry
from pimflow.codegen.newton.published import channel_loads
from pimflow.ir import Array
from pimflow.runtime.newton.cost import PimCost
from pimflow.targets import PimSpec, Target, load_target
from support.newton.timing import choose_mapping
from support.onnx_models import run_plain, single
from support.values import assert_varies, relative_error

PIM = load_target("pimflow").pim
Floats = npt.NDArray[np.float32]


@st.composite
def convolutions(draw: st.DrawFn) -> ConvProblem:
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    dilations = draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    pads = draw(st.tuples(*[st.integers(0, 2)] * 4))
    least = [max(1, d * (k - 1) + 1 - before - after) for d, k, before, after in
             zip(dilations, kernel, pads[:2], pads[2:], strict=True)]  # fmt: skip
    return ConvProblem(
        batch=draw(st.integers(1, 2)),
        in_channels=groups * draw(st.sampled_from([2, 3, 8, 16, 20, 48, 130])),
        out_channels=groups * draw(st.sampled_from([1, 5, 16, 24, 40, 100])),
        in_h=draw(st.integers(least[0], least[0] + 9)),
        in_w=draw(st.integers(least[1], least[1] + 9)),
        kernel=kernel,
        strides=draw(st.tuples(st.integers(1, 3), st.integers(1, 3))),
        pads=pads,
        dilations=dilations,
        groups=groups,
    )


@st.composite
def products(draw: st.DrawFn) -> MatmulProblem:
    batch = draw(st.sampled_from([1, 1, 3]))
    return MatmulProblem(
        m=draw(st.integers(1, 40)),
        k=draw(st.integers(1, 1300)),
        n=draw(st.integers(1, 150)),
        batch=batch,
        batched_rhs=batch > 1 and draw(st.booleans()),
        constant_rhs=draw(st.booleans()),
    )


def problems() -> st.SearchStrategy[MatrixProblem]:
    return st.one_of(convolutions(), convolutions(), products())


@st.composite
def machines(draw: st.DrawFn) -> PimSpec:
    """The PIMFlow machine, or one with other banks, rows, columns, multipliers, buffers and features."""
    if draw(st.booleans()):
        return PIM
    channels = draw(st.sampled_from([1, 4, 6, 16]))
    return replace(
        PIM,
        channels=channels,
        banks=draw(st.sampled_from([8, 16])),
        bank_groups=draw(st.sampled_from([2, 4])),
        columns=draw(st.sampled_from([16, 32, 64])),
        multipliers=draw(st.sampled_from([8, 16])),
        buffer_columns=draw(st.sampled_from([16, 32, 64])),
        buffers=draw(st.integers(1, min(channels, 5))),
        buffers_per_channel=draw(st.integers(1, 3)),
        buffer_parts=draw(st.sampled_from([1, 1, 2, 4])),
        buffer_pool=draw(st.booleans()),
        any_slot_any_column=draw(st.booleans()),
        gwrite_latency=draw(st.sampled_from(["hidden", "exposed"])),
    )


@st.composite
def timed_machines(draw: st.DrawFn) -> PimSpec:
    """A machine that also has other latencies, including refreshes that are long, or short relative to a fill."""
    pim = draw(machines())
    strict = replace(
        pim.timing.strict,
        t_faw=draw(st.integers(4, 30)),
        t_rcd=draw(st.integers(2, 20)),
        t_rp=draw(st.integers(2, 20)),
        t_rtp=draw(st.integers(1, 6)),
        t_ccd_l=draw(st.integers(2, 6)),
        t_drain=draw(st.integers(0, 12)),
        t_cwl=draw(st.integers(0, 12)),
        burst_bytes=draw(st.sampled_from([32, 64])),
        t_rfc=draw(st.integers(1, 300)),
        t_refi=draw(st.integers(600, 4000)),
        max_postponed_refreshes=draw(st.integers(0, 8)),
    )
    return replace(pim, timing=pim.timing.with_tables(strict=strict))


def tensors(problem: MatrixProblem, seed: int) -> tuple[Floats, Floats]:
    """(source, weights) of a problem, seeded."""
    rng = np.random.default_rng(seed)
    source, weights = (rng.standard_normal(shape).astype(np.float32) for shape in _shapes(problem))
    return source, weights


def _shapes(problem: MatrixProblem) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if isinstance(problem, ConvProblem):
        source = (problem.batch, problem.in_channels, problem.in_h, problem.in_w)
        return source, (problem.out_channels, problem.in_channels // problem.groups, *problem.kernel)
    batches = (problem.batch,) if problem.batched_rhs else ()
    return (problem.batch, problem.m, problem.k), (*batches, problem.k, problem.n)


def reference(problem: MatrixProblem, source: Floats, weights: Floats) -> Floats:
    """ONNX Runtime's result."""
    if isinstance(problem, ConvProblem):
        model = single(
            "Conv", source.shape, [weights], group=problem.groups, kernel_shape=problem.kernel,
            strides=problem.strides, pads=problem.pads, dilations=problem.dilations,
        )  # fmt: skip
    else:
        model = single("MatMul", source.shape, [weights])
    return np.asarray(run_plain(model, {"x": source})["y"], np.float32)


def checked_error(result: Array, expected: Array) -> float:
    """`relative_error` against a reference of any shape, which must vary unless it is one element or all zeros."""
    expected = expected.reshape(result.shape)
    if expected.size > 1 and expected.any():
        assert_varies(expected)
    return relative_error(result, expected)


def chosen(problem: MatrixProblem, target: Target, policy: str, timing: str | None = None) -> PimCost:
    """The best mapping under a policy, for a problem that fits the machine."""
    cost = choose_mapping(problem, target.pim, policy, timing)
    assert isinstance(cost, PimCost), cost
    return cost


def published_mapping(problem: MatrixProblem, pim: PimSpec) -> Mapping:
    """Newton++'s mapping with the published choice: fewest G_ACTs on the slowest channel, then fewest groups."""
    shape = geometry(problem, pim)
    return min(newton_mappings(problem, pim, "newton++"), key=lambda mapping: max(channel_loads(mapping, shape)))
