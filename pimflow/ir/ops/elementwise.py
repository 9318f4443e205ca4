"""Ops that work element by element, with broadcasting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pimflow.errors import GraphError, counted, did_you_mean
from pimflow.ir.analysis.rows import Shape, Shapes, Span, row_count
from pimflow.ir.ops.base import Op, RowPart, register_op
from pimflow.ir.ops.opaque import Attributes
from pimflow.ir.refusal import Refusal
from pimflow.records import dataclass

PREDICATES = frozenset(
    {"Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual", "And", "Or", "Xor", "Not", "IsNaN", "IsInf"}
)
"""Elementwise kinds with a boolean result for any inputs."""


_ONE = """
    Relu LeakyRelu ThresholdedRelu Elu Selu Celu Gelu Mish Swish HardSwish HardSigmoid Sigmoid Tanh
    Softplus Softsign Exp Log Sqrt Abs Neg Reciprocal Sign Floor Ceil Round Erf Sin Cos Tan Asin Acos
    Atan Sinh Cosh Asinh Acosh Atanh Not IsNaN IsInf BitwiseNot Clip
"""
_TWO = """
    Add Sub Mul Div Pow Mod PRelu And Or Xor Equal Greater Less GreaterOrEqual LessOrEqual BitShift
    BitwiseAnd BitwiseOr BitwiseXor
"""
_MANY = "Min Max Mean Sum"

ARITIES: Mapping[str, int] = {
    **dict.fromkeys(_ONE.split(), 1),
    **dict.fromkeys(_TWO.split(), 2),
    "Where": 3,
    **dict.fromkeys(_MANY.split(), 0),
}
"""The elementwise kinds, and how many inputs each has; 0: any number from 1 on."""

_ATTRIBUTE_FORMS: Mapping[str, tuple[tuple[type, ...], str]] = {
    **dict.fromkeys(("alpha", "beta", "gamma", "min", "max"), ((int, float), "a number")),
    **dict.fromkeys(("fmod", "detect_negative", "detect_positive"), ((int,), "a whole number")),
    **dict.fromkeys(("approximate", "direction"), ((str, bytes), "text")),
}
"""The types of the attributes that elementwise kinds have, and their names in messages."""


def broadcast(*shapes: Shape) -> Shape:
    """numpy's broadcast of shapes.

    Raises:
        GraphError: they do not broadcast.
    """
    if shapes and shapes.count(shapes[0]) == len(shapes):
        return shapes[0]
    rank = max((len(shape) for shape in shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    out = []
    for dims in zip(*padded, strict=True):
        sizes = set(dims) - {1}
        if len(sizes) > 1:
            raise GraphError(f"shapes {', '.join(map(str, shapes))} do not broadcast")
        out.append(sizes.pop() if sizes else 1)
    return tuple(out)


@register_op
@dataclass(frozen=True)
class Elementwise(Op):
    """One output element from the same element of every (broadcast) input: Relu, Add, Mul, Sigmoid, Clip, ...

    `kind` is the ONNX op_type. Clip has its constant bounds as attributes "min" and "max" (either may be absent)
    and one input, whatever the opset; a Clip with computed bounds stays an `OnnxOp`.
    """

    is_elementwise = True

    kind: str
    attributes: Attributes = ()

    @property
    def onnx_name(self) -> str:
        """The kind."""
        return self.kind

    def shape_rule(self, shapes: Shapes) -> Shape:
        """The broadcast of all inputs."""
        self._check(len(shapes))
        return broadcast(*(shape for shape in shapes if shape is not None))

    def _check(self, inputs: int) -> None:
        """Check the kind, its number of inputs, and the types of its attributes.

        Raises:
            GraphError: one of them is wrong.
        """
        if self.kind not in ARITIES:
            hint = did_you_mean(self.kind, ARITIES)
            raise GraphError(f"Elementwise has no kind {self.kind!r}" + (f"; {hint}" if hint else ""))
        needed = ARITIES[self.kind]
        if needed and inputs != needed:
            self.refuse(f"needs {counted(needed, 'input')}, has {inputs}")
        for name, value in self.attributes:
            forms, words = _ATTRIBUTE_FORMS.get(name, ((), ""))
            if forms and type(value) not in forms:
                self.refuse(f"the attribute {name!r} is {value!r}; it must be {words}")

    def dtype_rule(self, dtypes: Sequence[str]) -> str:
        """The operands' type; bool for predicates."""
        if self.kind in PREDICATES:
            return "bool"
        return dtypes[1] if self.kind == "Where" else dtypes[0]

    def row_rule(self, in_shapes: Shapes, out_shape: Shape, start: int, stop: int) -> RowPart | Refusal:
        """The same rows of every input that has them; others are broadcast along the rows."""
        spans: list[Span | None] = []
        for shape in in_shapes:
            rows = row_count(shape)
            if rows == out_shape[-2]:
                spans.append((start, stop))
            elif rows <= 1:  # broadcast along the rows, or without such an axis
                spans.append(None)
            else:
                return Refusal(f"{self.kind} reads {rows} rows and makes {out_shape[-2]}")
        return RowPart(self, tuple(spans))


@register_op
@dataclass(frozen=True)
class BatchNorm(Op):
    """Inference-mode batch normalisation. Inputs: X, scale, bias, mean, variance."""

    onnx_names = ("BatchNormalization",)

    epsilon: float = 1e-5

    def shape_rule(self, shapes: Shapes) -> Shape:
        """The first input's shape."""
        x = shapes[0]
        if x is None or len(x) < 2:
            raise GraphError(f"BatchNormalization needs an input of rank 2 or more, has {x}")
        if len(shapes) != 5:
            self.refuse(f"needs five inputs, has {len(shapes)}")
        if any(shape != (x[1],) for shape in shapes[1:]):
            self.refuse(f"statistics {shapes[1:]} do not fit {x[1]} channels")
        return x

    def row_rule(self, in_shapes: Shapes, out_shape: Shape, start: int, stop: int) -> RowPart | Refusal:
        """The same rows of the first input, unless its rows are its channels."""
        if len(out_shape) < 4:
            return Refusal("the rows of a batch norm's input are its channels")
        return RowPart(self, ((start, stop), *(None,) * (len(in_shapes) - 1)))


_ACTIVATIONS: Mapping[str, tuple[str, ...]] = {
    "Relu": (),
    "Sigmoid": (),
    "Tanh": (),
    "Softplus": (),
    "Softsign": (),
    "LeakyRelu": ("alpha",),
    "Elu": ("alpha",),
    "ThresholdedRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "HardSwish": (),
    "Clip": ("min", "max"),
}
"""Activations that ONNX Runtime fuses into products and convolutions, with their parameters in its order."""


def fused_activation(kind: str, parameters: Sequence[float]) -> tuple[Elementwise, ...] | None:
    """The activation that ONNX Runtime fused into a product: () if none (`kind` is ""), None if it is unknown."""
    if not kind:
        return ()
    names = _ACTIVATIONS.get(kind)
    if names is None or len(parameters) < len(names):
        return None
    return (Elementwise(kind, tuple(sorted(zip(names, parameters, strict=False)))),)
