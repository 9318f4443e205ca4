"""A description of the machine that a benchmark runs on, to put its seconds into context."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def here() -> str:
    """Processor, cores and Python of this machine, as text."""
    cores = os.cpu_count() or 1
    return f"{_processor()}, {cores} core{'s' if cores > 1 else ''}, Python {platform.python_version()}"


def _processor() -> str:
    """The processor's name if Linux knows it, otherwise the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
