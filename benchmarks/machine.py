"""What a benchmark runs on, so that its seconds can be read."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def here() -> str:
    """Processor, cores and Python of this machine, as text."""
    cores = os.cpu_count() or 1
    return f"{_processor()}, {cores} core{'s' if cores > 1 else ''}, Python {platform.python_version()}"


def _processor() -> str:
    """The processor's name where Linux tells it, else the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
