"""Stores intermediate results of long benchmarks in build/, so that an interrupted run continues where it stopped."""

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


def cache_path(study: str, name: str, key: Any) -> Path:
    """The file of an intermediate result, named after everything that it depends on, including the code and data of
    costs.

    Args:
        study: a folder of `build/`.
        name: for readers.
        key: everything else that the result depends on, as plain data.
    """
    text = json.dumps(key, sort_keys=True) + _fingerprint()
    return BUILD / study / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def cached(path: Path, make: Callable[[], Any]) -> Any:
    """The content of a file; if it does not exist, plain data that `make` computes, which are then stored."""
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
