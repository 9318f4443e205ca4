"""Conversion of ONNX operators to typed ops: one family per file, conversions registered by op_type."""

from pimflow.frontend.convert import contraction, elementwise, movement, window
from pimflow.frontend.convert.graph import TypedForm, convert_graph, typed_form
from pimflow.frontend.convert.site import CONVERSIONS, Conversion, Site, Typed, converts

__all__ = [
    "CONVERSIONS",
    "Conversion",
    "Site",
    "Typed",
    "TypedForm",
    "contraction",
    "convert_graph",
    "converts",
    "elementwise",
    "movement",
    "typed_form",
    "window",
]
