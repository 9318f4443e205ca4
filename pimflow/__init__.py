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

    from pimflow.api.machines import calibrate as calibrate
    from pimflow.api.machines import layer as layer
    from pimflow.api.machines import list_passes as list_passes
    from pimflow.api.machines import list_targets as list_targets
    from pimflow.api.machines import simulate as simulate
    from pimflow.api.machines import zoo as zoo
    from pimflow.api.machines import zoo_model as zoo_model
    from pimflow.api.models import compare as compare
    from pimflow.api.models import front as front
    from pimflow.api.models import inspect as inspect
    from pimflow.api.models import profile as profile
    from pimflow.api.outputs import diff as diff
    from pimflow.api.outputs import explain as explain
    from pimflow.api.reports import HtmlReport as HtmlReport
    from pimflow.api.reports import html_report as html_report
    from pimflow.api.sweeps import sweep as sweep
    from pimflow.api.training import train as train
    from pimflow.codegen import ConvProblem as ConvProblem
    from pimflow.codegen import MatmulProblem as MatmulProblem
    from pimflow.compiled import CompiledModel as CompiledModel
    from pimflow.compiled import load as load
    from pimflow.compiler import compile as compile
    from pimflow.compiler import opt as opt
    from pimflow.errors import PimflowError as PimflowError
    from pimflow.ir import Graph as Graph
    from pimflow.ir import Plan as Plan
    from pimflow.options import Debug as Debug
    from pimflow.report.calibration import CalibrationReport as CalibrationReport
    from pimflow.report.difference import Difference as Difference
    from pimflow.report.explanation import Explanation as Explanation
    from pimflow.report.front import Front as Front
    from pimflow.report.inspection import Inspection as Inspection
    from pimflow.report.layer import LayerReport as LayerReport
    from pimflow.report.policies import Comparison as Comparison
    from pimflow.report.profile import Profile as Profile
    from pimflow.report.records import Listing as Listing
    from pimflow.report.traces import TracesReport as TracesReport
    from pimflow.report.training import Training as Training
    from pimflow.search import policies as policies
    from pimflow.search.price_cache import cache_clear as cache_clear
    from pimflow.search.price_cache import cache_info as cache_info
    from pimflow.sweeps.result import SweepResult as SweepResult
    from pimflow.targets import Target as Target
    from pimflow.targets import load_target as load_target
    from pimflow.targets import override as override
    from pimflow.targets import target_names as target_names
    from pimflow.targets import target_text as target_text
    from pimflow.verify.verification import Verification as Verification

_HOME = {
    "CalibrationReport": "pimflow.report.calibration",
    "Comparison": "pimflow.report.policies",
    "CompiledModel": "pimflow.compiled",
    "ConvProblem": "pimflow.codegen",
    "Debug": "pimflow.options",
    "Difference": "pimflow.report.difference",
    "Explanation": "pimflow.report.explanation",
    "Front": "pimflow.report.front",
    "Graph": "pimflow.ir",
    "HtmlReport": "pimflow.api.reports",
    "Inspection": "pimflow.report.inspection",
    "LayerReport": "pimflow.report.layer",
    "Listing": "pimflow.report.records",
    "MatmulProblem": "pimflow.codegen",
    "PimflowError": "pimflow.errors",
    "Plan": "pimflow.ir",
    "Profile": "pimflow.report.profile",
    "SweepResult": "pimflow.sweeps.result",
    "Target": "pimflow.targets",
    "TracesReport": "pimflow.report.traces",
    "Training": "pimflow.report.training",
    "Verification": "pimflow.verify.verification",
    "cache_clear": "pimflow.search.price_cache",
    "cache_info": "pimflow.search.price_cache",
    "calibrate": "pimflow.api.machines",
    "compare": "pimflow.api.models",
    "compile": "pimflow.compiler",
    "diff": "pimflow.api.outputs",
    "explain": "pimflow.api.outputs",
    "front": "pimflow.api.models",
    "html_report": "pimflow.api.reports",
    "inspect": "pimflow.api.models",
    "layer": "pimflow.api.machines",
    "list_passes": "pimflow.api.machines",
    "list_targets": "pimflow.api.machines",
    "load": "pimflow.compiled",
    "load_target": "pimflow.targets",
    "opt": "pimflow.compiler",
    "override": "pimflow.targets",
    "policies": "pimflow.search",
    "profile": "pimflow.api.models",
    "simulate": "pimflow.api.machines",
    "sweep": "pimflow.api.sweeps",
    "target_names": "pimflow.targets",
    "target_text": "pimflow.targets",
    "train": "pimflow.api.training",
    "zoo": "pimflow.api.machines",
    "zoo_model": "pimflow.api.machines",
}

__all__ = [
    "CalibrationReport",
    "Comparison",
    "CompiledModel",
    "ConvProblem",
    "Debug",
    "Difference",
    "Explanation",
    "Front",
    "Graph",
    "HtmlReport",
    "Inspection",
    "LayerReport",
    "Listing",
    "MatmulProblem",
    "PimflowError",
    "Plan",
    "Profile",
    "SweepResult",
    "Target",
    "TracesReport",
    "Training",
    "Verification",
    "__version__",
    "cache_clear",
    "cache_info",
    "calibrate",
    "compare",
    "compile",
    "diff",
    "explain",
    "front",
    "html_report",
    "inspect",
    "layer",
    "list_passes",
    "list_targets",
    "load",
    "load_target",
    "opt",
    "override",
    "policies",
    "profile",
    "simulate",
    "sweep",
    "target_names",
    "target_text",
    "train",
    "zoo",
    "zoo_model",
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
