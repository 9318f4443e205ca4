"""Policies by name: which candidates the search may choose from, as data.

A policy is one or more spaces; its candidates are the union of theirs. A policy that includes the spaces of another can
therefore never find a worse plan: `auto` includes `pimflow`, which includes `md-dp`, `pipeline` and `newton++`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

from pimflow import plugins
from pimflow.codegen.backend import Backend
from pimflow.errors import OptionError, choice
from pimflow.options import Options
from pimflow.records import dataclass

if TYPE_CHECKING:
    from pimflow.runtime.offload.spill import SpillWay

EVERY_ROW = Fraction(0)
TENTHS = Fraction(1, 10)


@dataclass(frozen=True)
class Space:
    """A set of candidates.

    Args:
        choice: the choice to request from the backends of devices other than the host, or "" for the default of each. A
            backend that does not have this choice uses its default.
        host: whether a node that can run elsewhere may stay on the host; False moves all of them to other devices.
        split: MD-DP at multiples of this share of the rows (ceil(share * rows) of them on the host); 0 is every row
            count, None no MD-DP.
        columns: whether products, and convolutions with few rows, may also be divided along their columns.
        inner: whether the dimension that they sum over may be divided (split-K).
        edges: whether the edges of sums over a graph may be divided.
        runs: pipelines: none, PIMFlow's three patterns, or any run of fusible neighbours.
        stages: the allowed numbers of stages of a pipeline.
        max_run: the maximum number of anchors (nodes that are not fused into another) in a pipeline of `runs="any"`.
        concurrent: whether branches may run on the GPU and on PIM at the same time.
    """

    choice: str = ""
    host: bool = True
    split: Fraction | None = None
    columns: bool = False
    inner: bool = False
    edges: bool = False
    runs: Literal["none", "patterns", "any"] = "none"
    stages: tuple[int, ...] = (2,)
    max_run: int = 12
    concurrent: bool = False


@dataclass(frozen=True)
class Objective:
    """What a plan minimises: a weighted sum of the microseconds and the millijoules of one inference."""

    name: str
    us: float
    mj: float

    def cost(self, time_us: float, energy_mj: float) -> float:
        """The cost of a run with this time and energy."""
        return self.us * time_us + self.mj * energy_mj


LATENCY = Objective("latency", 1.0, 0.0)
ENERGY = Objective("energy", 0.0, 1.0)
THROUGHPUT = Objective("throughput", 0.0, 0.0)
"""Neither weight counts: inferences overlap, and the time between two of them is minimised."""
_OBJECTIVES = {objective.name: objective for objective in (LATENCY, THROUGHPUT, ENERGY)}


@dataclass(frozen=True)
class Policy:
    """A named set of spaces.

    `pim_mode` forces the machine into PIM mode; without it, the GPU alone with all memory channels replaces a plan that
    is slower.

    `objective` defines "slower" and "cheapest".
    """

    name: str
    summary: str
    spaces: tuple[Space, ...]
    pim_mode: bool = False
    objective: Objective = LATENCY


_NEWTON_PP = Space("newton++")
_MD_DP = Space(split=TENTHS)
_PIPELINE = Space(runs="patterns")
_PIMFLOW = Space(split=TENTHS, runs="patterns")
_AUTO = Space(
    "auto", split=EVERY_ROW, columns=True, inner=True, edges=True, runs="any", stages=(2, 3, 4, 5), concurrent=True
)

_POLICIES = (
    Policy("gpu", "every node on the GPU, with all memory channels: the baseline", ()),
    Policy("newton+", "each convolution or product on the GPU or on PIM, mapping of Newton+", (Space("newton+"),)),
    Policy("newton++", "each convolution or product on the GPU or on PIM, mapping of Newton++", (_NEWTON_PP,)),
    Policy("pim", "everything that can run on PIM runs there, faster or not", (Space("auto", host=False),), True),
    Policy("md-dp", "newton++, and rows split over GPU and PIM on a grid of 10 %", (_MD_DP,)),
    Policy("pipeline", "newton++, and PIMFlow's three pipeline patterns in two stages", (_PIPELINE,)),
    Policy("pimflow", "PIMFlow's whole space: md-dp and pipeline together", (_PIMFLOW,)),
    Policy(
        "auto",
        "everything: best mappings, any row count, columns, sums or edges split, longer and deeper pipelines, "
        "concurrent branches, pimflow's space",
        (_PIMFLOW, _AUTO),
    ),
)
_ALIASES = {"mddp": "md-dp"}
_BY_NAME = {policy.name: policy for policy in _POLICIES}
_OWN_NAMES = (*_BY_NAME, *_ALIASES)


def policies() -> dict[str, str]:
    """Every policy with a one-line summary, ordered from the most restricted to the least; policies from other packages
    come last."""
    return {policy.name: policy.summary for policy in _every_policy()}


def policy_names() -> tuple[str, ...]:
    """The names of all policies; those from other packages are listed without importing them."""
    return (*_BY_NAME, *plugins.names(plugins.POLICIES, _OWN_NAMES))


def find_policy(name: str) -> Policy:
    """The policy with a name or alias, case-insensitive.

    Raises:
        OptionError: there is no such policy.
        PluginError: another package offers it, but it cannot be loaded or is not a policy of that name.
    """
    wanted = name.strip().lower()
    wanted = _ALIASES.get(wanted, wanted)
    return _BY_NAME[wanted] if wanted in _BY_NAME else _policy_of_plugin(choice("policy", name, policy_names()))


def _policy_of_plugin(name: str) -> Policy:
    plugin = plugins.find(plugins.POLICIES, name)
    assert plugin is not None
    policy = plugin.load(Policy)
    if policy.name != plugin.name:
        raise plugin.problem(f"calls itself {policy.name!r}")
    return policy


def _every_policy() -> tuple[Policy, ...]:
    """All policies; those from other packages that cannot be loaded are left out with a warning."""
    return (*_POLICIES, *plugins.load_all(plugins.POLICIES, _policy_of_plugin, _OWN_NAMES))


def offered_policies(units: Mapping[str, Backend[Any, Any]]) -> tuple[str, ...]:
    """The names of the policies that a machine with these units (other than the host, by device) can follow."""
    return tuple(policy.name for policy in _every_policy() if not _lacking(policy, units))


def require_offered(policy: Policy, units: Mapping[str, Backend[Any, Any]]) -> None:
    """Refuse a policy that asks for a choice that no unit other than the host has.

    Raises:
        OptionError: names the choice and the available policies.
    """
    lacking = _lacking(policy, units)
    if lacking:
        raise OptionError(
            f"policy {policy.name!r} asks for {lacking[0]!r}, which no unit of the target offers",
            f"choose one of {', '.join(offered_policies(units))}, or another target",
        )


def spill_way(options: Options) -> SpillWay:
    """How to handle activations that do not fit into memory: never spill if several inferences are in flight.

    Raises:
        OptionError: the options ask for both.
    """
    if _OBJECTIVES[options.objective] != THROUGHPUT:
        return options.spill
    if options.spill in ("offload", "recompute"):
        raise OptionError(
            f"{options.spill} is for one inference after the other, and with this objective several are in flight",
            "leave out --spill, or choose another --objective",
        )
    return "never"


def _lacking(policy: Policy, units: Mapping[str, Backend[Any, Any]]) -> list[str]:
    offered = {"", *(choice for unit in units.values() for choice in unit.choices)}
    return [space.choice for space in policy.spaces if units and space.choice not in offered]


def policy_of(options: Options) -> Policy:
    """The policy that options ask for, with their objective, their row grid for MD-DP and their stage counts for
    pipelines.

    Raises:
        OptionError: there is no such policy.
    """
    policy = find_policy(options.policy)
    spaces = policy.spaces
    if options.grid is not None:
        step = Fraction(options.grid, 100)
        spaces = tuple(space if space.split is None else replace(space, split=step) for space in spaces)
    if options.stages is not None:
        counts = tuple(sorted(set(options.stages)))
        spaces = tuple(replace(space, stages=counts) for space in spaces)
    return replace(policy, spaces=spaces, objective=_OBJECTIVES[options.objective])
