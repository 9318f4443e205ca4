"""What long benchmarks keep in build/, piece by piece: a run that was cut off goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from pimflow.search.price_cache import code_fingerprint

BUILD = Path(__file__).resolve().parent.parent / "build"


def kept_file(study: str, name: str, asked: Any) -> Path:
    """Where a piece of a study is kept: under a name made of what it depends on, code and data of costs included.

    Args:
        study: a folder of `build/`.
        name: for readers.
        asked: all else that the piece depends on, as plain data.
    """
    text = json.dumps(asked, sort_keys=True) + _fingerprint()
    return BUILD / study / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def kept(path: Path, make: Callable[[], Any]) -> Any:
    """What a file keeps; where there is none, plain data that are made, and kept."""
    if path.exists():
        return json.loads(path.read_text(encoding="utf-8"))
    made = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(f".{os.getpid()}.tmp")
    scratch.write_text(json.dumps(made), encoding="utf-8")
    scratch.replace(path)
    return made


@cache
def _fingerprint() -> str:
    return code_fingerprint(("frontend",))
