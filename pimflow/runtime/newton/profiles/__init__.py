"""Timing profiles by name."""

from __future__ import annotations

from pimflow.errors import choice
from pimflow.ir.registry import Registry
from pimflow.runtime.newton.profiles.artifact import ArtifactProfile
from pimflow.runtime.newton.profiles.base import GWRITE_LATENCIES, LeastGaps, TimingProfile, VisitCosts
from pimflow.runtime.newton.profiles.strict import StrictProfile
from pimflow.targets import PimSpec

__all__ = ["GWRITE_LATENCIES", "PROFILES", "LeastGaps", "TimingProfile", "VisitCosts", "timing_profile"]

PROFILES: Registry[str, type[TimingProfile]] = Registry("timing profiles")
"""Every profile by name; targets, the search and the command line look profiles up here."""

for _profile in (ArtifactProfile, StrictProfile):
    PROFILES.add(_profile.name, _profile)


def timing_profile(pim: PimSpec, name: str | None = None) -> TimingProfile:
    """The timing profile with a name (case-insensitive) on a machine; the machine's default if `name` is None.

    Raises:
        OptionError: there is no profile of that name.
    """
    return PROFILES[choice("timing profile", (name or pim.timing.default).lower(), tuple(PROFILES))](pim)
