"""Passes as text: every pass prints in a form that can be parsed; errors name the pass, the option and the choices."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pimflow.errors import OptionError
from pimflow.ir import Graph, OnDevice, Parallel, Pipeline, Plan, SplitRows
from pimflow.ir.registry import scratch_registrations
from pimflow.passes import (
    CLEANUP,
    PASSES,
    ApplyPlan,
    DevicePlacement,
    FoldConstants,
    FuseEpilogues,
    MdDpSplit,
    Pass,
    PassManager,
    PassResult,
    Pipelining,
    parse_pipeline,
)

NAMES = st.text(min_size=1, max_size=8) | st.sampled_from(["conv1", "a/b:0", "28", "1e5", "true", "none", 'a"b', "-"])
TUPLES = st.lists(NAMES, max_size=3).map(tuple)
COUNTS = st.lists(st.integers()).map(tuple)
HOST_ROWS = st.lists(COUNTS, max_size=3).map(tuple)
PLACED = st.builds(OnDevice, NAMES, NAMES, NAMES)
DECISIONS = st.one_of(
    PLACED,
    st.builds(SplitRows, NAMES, st.integers(), NAMES, TUPLES, NAMES),
    st.builds(Pipeline, TUPLES, TUPLES, COUNTS, NAMES, st.booleans(), HOST_ROWS),
    st.builds(Parallel, st.lists(st.lists(PLACED, max_size=2).map(tuple), max_size=2).map(tuple)),
)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
PLANS = st.builds(Plan, NAMES, st.lists(DECISIONS, max_size=3).map(tuple), FLOATS, FLOATS, host=NAMES)
SOME_PASSES = st.one_of(
    st.sampled_from(CLEANUP),
    st.builds(MdDpSplit, NAMES, st.integers(), NAMES, TUPLES, NAMES, NAMES),
    st.builds(Pipelining, TUPLES, TUPLES, COUNTS, NAMES, st.booleans(), HOST_ROWS, NAMES),
    st.builds(DevicePlacement, TUPLES, NAMES, NAMES, NAMES),
    st.builds(FoldConstants, st.integers()),
    st.builds(FuseEpilogues, st.booleans()),
    st.builds(ApplyPlan, PLANS),
)


@given(st.lists(SOME_PASSES, min_size=1, max_size=4).map(tuple))
def test_printed_passes_parse_back(passes: tuple[Pass, ...]) -> None:
    assert parse_pipeline(str(PassManager(passes))) == passes


@pytest.mark.parametrize("kind", PASSES.values(), ids=lambda kind: kind.name)
def test_every_pass_is_in_kebab_case_and_registered_under_its_name(kind: type[Pass]) -> None:
    assert kind.name == re.sub(r"(?<!^)(?=[A-Z])", "-", kind.__name__).lower()
    assert PASSES.get(kind.name) is kind


def test_options_are_read_by_the_types_of_the_fields() -> None:
    assert parse_pipeline("fold-constants,md-dp-split{node=conv1 gpu_rows=28},fuse-epilogues{residual=true}") == (
        FoldConstants(), MdDpSplit("conv1", 28), FuseEpilogues(residual=True)
    )  # fmt: skip
    text = """
        pipelining{nodes=["a b", c/d:0], devices=[pim gpu], stage_rows=[3 4],
                   choice=newton++ bottom_first=true}
    """
    assert parse_pipeline(text) == (Pipelining(("a b", "c/d:0"), ("pim", "gpu"), (3, 4), "newton++", True),)
    text = "apply-plan{plan=Plan{policy=p decisions=[OnDevice{node=a device=gpu}] predicted_us=1 baseline_us=2.5}}"
    assert parse_pipeline(text) == (ApplyPlan(Plan("p", (OnDevice("a", "gpu"),), 1.0, 2.5)),)


def test_none_is_a_word_where_it_is_one_of_the_choices() -> None:
    plain, *others = parse_pipeline('differentiate,differentiate{optimiser=none},differentiate{optimiser="none"}')
    assert others == [plain, plain]
    with pytest.raises(OptionError, match="'loss' is None"):
        parse_pipeline("differentiate{loss=none}")


def test_an_empty_text_is_no_pass() -> None:
    assert parse_pipeline(" \n") == ()


def test_defaults_are_not_printed() -> None:
    assert str(MdDpSplit("conv", 3)) == "md-dp-split{node=conv gpu_rows=3}"
    assert str(FuseEpilogues(residual=False)) == "fuse-epilogues"
    assert str(MdDpSplit("28", 3, "", ("a", 'b"'))) == r'md-dp-split{node="28" gpu_rows=3 followers=[a, "b\""]}'


def test_a_pipeline_may_stand_for_a_pass() -> None:
    (manager, fold) = parse_pipeline("cleanup,fold-constants")
    assert isinstance(manager, PassManager)
    assert manager.passes == CLEANUP
    assert fold == FoldConstants()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("md-dp-splt{node=a}", "unknown pass 'md-dp-splt'; did you mean 'md-dp-split'? choose one of md-dp-split, "),
        ("md-dp-split{node=a}", "pass 'md-dp-split': missing key 'gpu_rows'"),
        ("md-dp-split{node=a gpu_row=2}", "unknown key 'gpu_row'; did you mean 'gpu_rows'? choose one of node, gpu_r"),
        ("md-dp-split{node=a gpu_rows=x}", "pass 'md-dp-split': 'gpu_rows' is 'x'; it must be a whole number"),
        ("md-dp-split{node=28 gpu_rows=1}", "pass 'md-dp-split': 'node' is 28; it must be text"),
        ("fuse-epilogues{residual=1}", "'residual' is 1; it must be true or false"),
        ("pipelining{nodes=a devices=[] stage_rows=[]}", "'nodes' is 'a'; it must be a list"),
        ("pipelining{nodes=[a] devices=[] stage_rows=[1 b]}", "'stage_rows[1]' is 'b'; it must be a whole number"),
        ("apply-plan{plan={decisions=[]}}", "missing key 'plan.type'; it is one of Plan"),
        ("cleanup{a=1}", "the pipeline 'cleanup' has no options"),
        ("fold-constants,", "the pipeline has the end where the name of a pass should be"),
        ("fold-constants remove-identity", "has 'remove-identity' at column 16 where a comma or the end should be"),
        ("md-dp-split{node a}", "has 'a' at column 18 where '=' should be"),
        ("md-dp-split{node=}", "has '}' at column 18 where a value should be"),
        ("md-dp-split{", "the pipeline has the end where an option or '}' should be"),
        ("md-dp-split{node=a node=b}", "gives the option 'node' twice (column 20)"),
        ('md-dp-split{node="a}', "an unterminated string at column 18"),
        (r'md-dp-split{node="\q"}', r'"\q" at column 18 is not a valid string'),
    ],
)
def test_syntax_errors_name_the_place(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        parse_pipeline(text)


@dataclass(frozen=True)
class Rename(Pass):
    """Gives the graph a name."""

    name: ClassVar[str] = "rename"

    to: str

    def run(self, graph: Graph) -> PassResult:
        return PassResult(graph.replace(name=self.to), True)


def test_a_pass_from_elsewhere_is_read_like_any_other() -> None:
    with scratch_registrations():
        PASSES.add(Rename.name, Rename)
        assert parse_pipeline("rename{to=new}") == (Rename("new"),)
    with pytest.raises(OptionError, match="unknown pass 'rename'"):
        parse_pipeline("rename{to=new}")
