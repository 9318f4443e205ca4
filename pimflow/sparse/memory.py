"""The amount of memory that a graph may take."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def available_bytes() -> int:
    """Bytes of memory available to this process; a very large number if no limit is known."""
    limits = [limit for limit in (_machine_bytes(), _cgroup_bytes(), _process_bytes()) if limit is not None]
    return min(limits, default=sys.maxsize)


def size_text(count: int) -> str:
    """A number of bytes in a readable unit."""
    power = max(min((count.bit_length() - 1) // 10, len(_UNITS) - 1), 0)
    return f"{count / 1024**power:,.{1 if power else 0}f} {_UNITS[power]}"


def _machine_bytes() -> int | None:
    """The memory that Linux reports as available, including caches that it can drop; elsewhere the machine's total."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _cgroup_bytes() -> int | None:
    """The memory left in the container (version 2 of Linux's control groups)."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit, used = ((folder / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return None
    return None if limit == "max" else max(int(limit) - int(used) + _reclaimable_bytes(folder), 0)


def _reclaimable_bytes(folder: Path) -> int:
    """Bytes of the file cache, which count as used but can be reclaimed."""
    try:
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(("inactive_file ", "active_file ")))


def _process_bytes() -> int | None:
    """The memory left under `ulimit -v`."""
    try:
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit == resource.RLIM_INFINITY:
            return None
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except (ImportError, OSError):
        return None
    return max(limit - used, 0)
