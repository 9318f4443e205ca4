"""A machine whose PIM channels also multiply 8-bit operands."""

from __future__ import annotations

from dataclasses import replace

import pimflow
from pimflow.targets.schema.newton import Int8


def with_int8(name: str = "pimflow", timing: str | None = None) -> pimflow.Target:
    """A shipped machine with twice as many multipliers for 8-bit operands, and 32-bit results."""
    target = pimflow.override(name, timing=timing)
    multipliers = target.pim.multipliers * target.pim.element_bytes
    return target.with_units(pim=replace(target.pim, int8=Int8(multipliers, 4, 0.2, 0.1)))
