"""pimflow: a deep-learning compiler, profiler and simulator for processing-in-memory DRAM.

    import pimflow
    compiled = pimflow.compile("zoo:mobilenet-v2", policy="md-dp")
    print(compiled.summary())
    compiled.save("out")

Names are loaded on first use, so that importing the package costs nothing.
"""

from __future__ import annotations

from pimflow.version import __version__

TYPE_CHECKING = False  # typing takes long to import, and until pimflow.__main__ runs, a signal is a traceback
if TYPE_CHECKING:
    from typing import Any

    from pimflow.compiled import CompiledModel as CompiledModel
    from pimflow.compiled import load as load
    from pimflow.compiler import compile as compile
    from pimflow.compiler import opt as opt
    from pimflow.errors import PimflowError as PimflowError
    from pimflow.ir import Graph as Graph
    from pimflow.ir import Plan as Plan
    from pimflow.options import Debug as Debug
    from pimflow.search import policies as policies
    from pimflow.targets import Target as Target
    from pimflow.targets import load_target as load_target
    from pimflow.targets import target_names as target_names
    from pimflow.verify.compare import Verification as Verification

_HOME = {
    "CompiledModel": "pimflow.compiled",
    "Debug": "pimflow.options",
    "Graph": "pimflow.ir",
    "PimflowError": "pimflow.errors",
    "Plan": "pimflow.ir",
    "Target": "pimflow.targets",
    "Verification": "pimflow.verify.compare",
    "compile": "pimflow.compiler",
    "load": "pimflow.compiled",
    "load_target": "pimflow.targets",
    "opt": "pimflow.compiler",
    "policies": "pimflow.search",
    "target_names": "pimflow.targets",
}

__all__ = [
    "CompiledModel",
    "Debug",
    "Graph",
    "PimflowError",
    "Plan",
    "Target",
    "Verification",
    "__version__",
    "compile",
    "load",
    "load_target",
    "opt",
    "policies",
    "target_names",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'pimflow' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
