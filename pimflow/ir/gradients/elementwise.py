"""Gradients of elementwise ops: of unary functions, and of functions of several inputs, which undo the broadcast."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from pimflow.ir.gradients.tape import GRADIENTS, Gradients, Tape, number, writes_out
from pimflow.ir.graph import Node
from pimflow.ir.ops.elementwise import PREDICATES, Elementwise
from pimflow.ir.ops.opaque import Attributes, OnnxOp
from pimflow.ir.refusal import Refusal
from pimflow.ir.registry import Registry

Unary = Callable[[Tape, str, str, str, Attributes], str]
"""Computes dx from dy, x, y and the attributes."""
Several = Callable[[Tape, Node, str], Gradients]

UNARY: Registry[str, Unary] = Registry("gradients of functions")
"""By ONNX op_type. Each reads x or y, but not both if avoidable: values read are kept until the backward pass."""
SEVERAL: Registry[str, Several] = Registry("gradients of elementwise ops of several inputs")
"""By ONNX op_type."""

STEPS = frozenset({"Sign", "Floor", "Ceil", "Round"}) | PREDICATES
"""Kinds whose derivative is 0 wherever it exists."""


@GRADIENTS.register(Elementwise)
def _elementwise(tape: Tape, node: Node, op: Elementwise, gradients: tuple[str, ...]) -> Gradients:
    if op.kind in STEPS:
        return ("",) * len(node.inputs)
    unary = UNARY.get(op.kind)
    if unary is not None:
        return (unary(tape, gradients[0], node.inputs[0], node.output, op.attributes),)
    several = SEVERAL.get(op.kind)
    return Refusal(f"{op.kind} has no gradient rule") if several is None else several(tape, node, gradients[0])


# ---- one input


@UNARY.register("Relu")
def _relu(tape: Tape, dy: str, x: str, y: str, given: Attributes) -> str:
    return tape.masked(tape.above(y, 0), dy)


@UNARY.register("LeakyRelu")
def _leaky_relu(tape: Tape, dy: str, x: str, y: str, given: Attributes) -> str:
    return tape.where(tape.above(x, 0), dy, tape.scaled(dy, number(given, "alpha", 0.01)))


@UNARY.register("ThresholdedRelu")
def _thresholded_relu(tape: Tape, dy: str, x: str, y: str, given: Attributes) -> str:
    return tape.masked(tape.above(x, number(given, "alpha", 1.0)), dy)


@UNARY.register("Elu")
def _elu(tape: Tape, dy: str, x: str, y: str, given: Attributes) -> str:
    return tape.where(tape.above(x, 0), dy, tape.mul(dy, tape.plus(y, number(given, "alpha", 1.0))))


@UNARY.register("Selu")
def _selu(tape: Tape, dy: str, x: str, y: str, given: Attributes) -> str:
    alpha = number(given, "alpha", 1.67326319217681884765625)
    gamma = number(given, "gamma", 1.05070102214813232421875)
    slope = tape.plus(y, alpha * gamma)
    return tape.where(tape.above(x, 0), tape.scaled(dy, gamma), tape.mul(dy, slope))


@UNARY.register("Celu")
def _celu(tape: Tape, dy: str, x: str, y: str, given: Attributes) -> str:
    slope = tape.plus(tape.scaled(y, 1 / number(given, "alpha", 1.0)), 1)
    return tape.where(tape.above(x, 0), dy, tape.mul(dy, slope))


@UNARY.register("Sigmoid")
def _sigmoid(tape: Tape, dy: str, x: str, y: str, given: Attributes) -> str:
    return tape.mul(dy, tape.mul(y, tape.sub(tape.number(1, y), y)))


@UNARY.register("Tanh")
def _tanh(tape: Tape, dy: str, x: str, y: str, given: Attributes) -> str:
    return tape.mul(dy, tape.sub(tape.number(1, y), tape.mul(y, y)))


@UNARY.register("Softplus")
def _softplus(tape: Tape, dy: str, x: str, y: str, given: Attributes) -> str:
    return tape.mul(dy, tape.elementwise("Sigmoid", x))


@UNARY.register("Softsign")
def _softsign(tape: Tape, dy: str, x: str, y: str, given: Attributes) -> str:
    below = tape.plus(tape.elementwise("Abs", x), 1)
    return tape.div(dy, tape.mul(below, below))


@UNARY.register("Exp")
def _exp(tape: Tape, dy: str, x: str, y: str, given: Attributes) -> str:
    return tape.mul(dy, y)


@UNARY.register("Log")
def _log(tape: Tape, dy: str, x: str, y: str, given: Attributes) -> str:
    return tape.div(dy, x)


@UNARY.register("Sqrt")
def _sqrt(tape: Tape, dy: str, x: str, y: str, given: Attributes) -> str:
    return tape.scaled(tape.div(dy, y), 0.5)


@UNARY.register("Abs")
def _abs(tape: Tape, dy: str, x: str, y: str, given: Attributes) -> str:
    return tape.mul(dy, tape.elementwise("Sign", x))


@UNARY.register("Neg")
def _neg(tape: Tape, dy: str, x: str, y: str, given: Attributes) -> str:
    return tape.neg(dy)


@UNARY.register("Reciprocal")
def _reciprocal(tape: Tape, dy: str, x: str, y: str, given: Attributes) -> str:
    return tape.neg(tape.mul(dy, tape.mul(y, y)))


@UNARY.register("Erf")
def _erf(tape: Tape, dy: str, x: str, y: str, given: Attributes) -> str:
    return tape.mul(dy, _gaussian(tape, x, 2 / math.sqrt(math.pi), 1.0))


def _gaussian(tape: Tape, x: str, height: float, width: float) -> str:
    """height exp(-width x^2)."""
    return tape.scaled(tape.elementwise("Exp", tape.scaled(tape.mul(x, x), -width)), height)


@UNARY.register("Gelu")
def _gelu(tape: Tape, dy: str, x: str, y: str, given: Attributes) -> str:
    """y = x P(x), whose derivative is P(x) + x p(x); the tanh approximation likewise."""
    if dict(given).get("approximate") == "tanh":
        root, cubic = math.sqrt(2 / math.pi), 0.044715
        square = tape.mul(x, x)
        inner = tape.scaled(tape.mul(x, tape.plus(tape.scaled(square, cubic), 1)), root)
        bend = tape.elementwise("Tanh", inner)
        slope = tape.scaled(tape.plus(tape.scaled(square, 3 * cubic), 1), root)
        curve = tape.mul(tape.mul(x, slope), tape.sub(tape.number(1, x), tape.mul(bend, bend)))
        return tape.mul(dy, tape.scaled(tape.add(tape.plus(bend, 1), curve), 0.5))
    z = tape.scaled(x, math.sqrt(0.5))  # both terms are functions of it, so one kernel can compute them
    share = tape.scaled(tape.plus(tape.elementwise("Erf", z), 1), 0.5)
    return tape.mul(dy, tape.add(share, tape.mul(z, _gaussian(tape, z, 1 / math.sqrt(math.pi), 1.0))))


@UNARY.register("Mish")
def _mish(tape: Tape, dy: str, x: str, y: str, given: Attributes) -> str:
    bend = tape.elementwise("Tanh", tape.elementwise("Softplus", x))
    curve = tape.mul(tape.sub(tape.number(1, x), tape.mul(bend, bend)), tape.elementwise("Sigmoid", x))
    return tape.mul(dy, tape.add(bend, tape.mul(x, curve)))


@UNARY.register("Swish")
def _swish(tape: Tape, dy: str, x: str, y: str, given: Attributes) -> str:
    alpha = number(given, "alpha", 1.0)
    gate = tape.elementwise("Sigmoid", tape.scaled(x, alpha))
    curve = tape.mul(tape.scaled(x, alpha), tape.mul(gate, tape.sub(tape.number(1, x), gate)))
    return tape.mul(dy, tape.add(gate, curve))


@UNARY.register("HardSwish")
def _hard_swish(tape: Tape, dy: str, x: str, y: str, given: Attributes) -> str:
    sloped = tape.mul(dy, tape.plus(tape.scaled(x, 1 / 3), 0.5))
    return tape.masked(tape.above(x, -3), tape.where(tape.above(x, 3), dy, sloped))


@UNARY.register("HardSigmoid")
def _hard_sigmoid(tape: Tape, dy: str, x: str, y: str, given: Attributes) -> str:
    inside = tape.elementwise("And", tape.above(y, 0), tape.elementwise("Less", y, tape.number(1, y)))
    return tape.masked(inside, tape.scaled(dy, number(given, "alpha", 0.2)))


@UNARY.register("Clip")
def _clip(tape: Tape, dy: str, x: str, y: str, given: Attributes) -> str:
    """dy where y lies strictly between the bounds, else 0."""
    bounds = dict(given)
    kinds = {"min": "Greater", "max": "Less"}
    tests = [
        tape.elementwise(kind, y, tape.number(number(given, name, 0.0), y))
        for name, kind in kinds.items()
        if name in bounds
    ]
    for test in tests:
        dy = tape.masked(test, dy)
    return dy


@UNARY.register("Sin")
def _sin(tape: Tape, dy: str, x: str, y: str, given: Attributes) -> str:
    return tape.mul(dy, tape.elementwise("Cos", x))


@UNARY.register("Cos")
def _cos(tape: Tape, dy: str, x: str, y: str, given: Attributes) -> str:
    return tape.neg(tape.mul(dy, tape.elementwise("Sin", x)))


@UNARY.register("Tan")
def _tan(tape: Tape, dy: str, x: str, y: str, given: Attributes) -> str:
    return tape.mul(dy, tape.plus(tape.mul(y, y), 1))


@UNARY.register("Sinh")
def _sinh(tape: Tape, dy: str, x: str, y: str, given: Attributes) -> str:
    return tape.mul(dy, tape.elementwise("Cosh", x))


@UNARY.register("Cosh")
def _cosh(tape: Tape, dy: str, x: str, y: str, given: Attributes) -> str:
    return tape.mul(dy, tape.elementwise("Sinh", x))


@UNARY.register("Asin")
def _asin(tape: Tape, dy: str, x: str, y: str, given: Attributes) -> str:
    return tape.div(dy, _root(tape, x, 1.0, -1.0))


@UNARY.register("Acos")
def _acos(tape: Tape, dy: str, x: str, y: str, given: Attributes) -> str:
    return tape.neg(tape.div(dy, _root(tape, x, 1.0, -1.0)))


@UNARY.register("Asinh")
def _asinh(tape: Tape, dy: str, x: str, y: str, given: Attributes) -> str:
    return tape.div(dy, _root(tape, x, 1.0, 1.0))


@UNARY.register("Acosh")
def _acosh(tape: Tape, dy: str, x: str, y: str, given: Attributes) -> str:
    return tape.div(dy, _root(tape, x, -1.0, 1.0))


def _root(tape: Tape, x: str, offset: float, factor: float) -> str:
    """The square root of offset + factor x^2."""
    return tape.elementwise("Sqrt", tape.plus(tape.scaled(tape.mul(x, x), factor), offset))


@UNARY.register("Atan")
def _atan(tape: Tape, dy: str, x: str, y: str, given: Attributes) -> str:
    return tape.div(dy, tape.plus(tape.mul(x, x), 1))


@UNARY.register("Atanh")
def _atanh(tape: Tape, dy: str, x: str, y: str, given: Attributes) -> str:
    return tape.div(dy, tape.sub(tape.number(1, x), tape.mul(x, x)))


# ---- several inputs, which broadcast


def _wanted_gradients(tape: Tape, node: Node, parts: dict[int, Callable[[], str]]) -> Gradients:
    """The gradients of the wanted inputs, each summed over the axes that its broadcast added."""
    return [
        tape.sum_to(parts[position](), tape.shape(name)) if position in parts and tape.wants(name) else ""
        for position, name in enumerate(node.inputs)
    ]


@SEVERAL.register("Add", "Sum")
def _add(tape: Tape, node: Node, dy: str) -> Gradients:
    return _wanted_gradients(tape, node, {position: lambda: dy for position in range(len(node.inputs))})


@SEVERAL.register("Mean")
def _mean(tape: Tape, node: Node, dy: str) -> Gradients:
    count = len(node.inputs)
    return _wanted_gradients(tape, node, {position: lambda: tape.scaled(dy, 1 / count) for position in range(count)})


@SEVERAL.register("Sub")
def _sub(tape: Tape, node: Node, dy: str) -> Gradients:
    return _wanted_gradients(tape, node, {0: lambda: dy, 1: lambda: tape.neg(dy)})


@SEVERAL.register("Mul")
def _mul(tape: Tape, node: Node, dy: str) -> Gradients:
    a, b = node.inputs
    return _wanted_gradients(tape, node, {0: lambda: tape.mul(dy, b), 1: lambda: tape.mul(dy, a)})


@SEVERAL.register("Div")
def _div(tape: Tape, node: Node, dy: str) -> Gradients:
    _, b = node.inputs
    return _wanted_gradients(
        tape, node, {0: lambda: tape.div(dy, b), 1: lambda: tape.neg(tape.div(tape.mul(dy, node.output), b))}
    )


@SEVERAL.register("Pow")
def _pow(tape: Tape, node: Node, dy: str) -> Gradients:
    base, exponent = node.inputs
    given = tape.array(exponent)

    def of_base() -> str:
        if given is not None and given.size == 1:
            power = float(given.reshape(()))
            return tape.mul(dy, tape.scaled(_power(tape, base, power - 1), power))
        one_less = tape.elementwise("Sub", exponent, tape.number(1, exponent))
        return tape.mul(dy, tape.mul(_like(tape, exponent, base), tape.elementwise("Pow", base, one_less)))

    def of_exponent() -> str:
        return tape.mul(dy, tape.mul(node.output, tape.elementwise("Log", base)))

    return _wanted_gradients(tape, node, {0: of_base, 1: of_exponent})


def _power(tape: Tape, base: str, power: float) -> str:
    if power == 1:
        return base
    if power == 2:
        return tape.mul(base, base)
    return tape.elementwise("Pow", base, tape.number(power, base))


def _like(tape: Tape, x: str, like: str) -> str:
    """`x` in the element type of another value."""
    dtype = tape.dtype(like)
    return x if tape.dtype(x) == dtype else tape.cast(x, dtype)


@SEVERAL.register("PRelu")
def _prelu(tape: Tape, node: Node, dy: str) -> Gradients:
    x, slope = node.inputs
    zero = tape.number(0.0, dy)
    return _wanted_gradients(
        tape,
        node,
        {
            0: lambda: tape.where(tape.above(x, 0), dy, tape.mul(dy, slope)),
            1: lambda: tape.where(tape.above(x, 0), zero, tape.mul(dy, x)),
        },
    )


@SEVERAL.register("Min", "Max")
def _extreme(tape: Tape, node: Node, dy: str) -> Gradients:
    """The gradient goes to the first of the inputs that equal the result."""
    gradients, left = [], dy
    for name in node.inputs:
        hit = tape.elementwise("Equal", name, node.output)
        gradients.append(tape.sum_to(tape.masked(hit, left), tape.shape(name)) if tape.wants(name) else "")
        left = tape.where(hit, tape.number(0.0, dy), left)
    return gradients


@SEVERAL.register("Where")
def _where(tape: Tape, node: Node, dy: str) -> Gradients:
    condition, zero = node.inputs[0], tape.number(0.0, dy)
    return _wanted_gradients(
        tape, node, {1: lambda: tape.where(condition, dy, zero), 2: lambda: tape.where(condition, zero, dy)}
    )


@SEVERAL.register("Mod")
def _mod(tape: Tape, node: Node, dy: str) -> Gradients:
    """y = a - b trunc(a / b) of floats; the last factor is constant wherever a derivative exists."""

    def of_divisor() -> str:
        ratio = tape.div(*node.inputs)
        whole = tape.mul(tape.elementwise("Sign", ratio), tape.elementwise("Floor", tape.elementwise("Abs", ratio)))
        return tape.neg(tape.mul(dy, whole))

    return _wanted_gradients(tape, node, {0: lambda: dy, 1: of_divisor})


@writes_out("Clip")
def _clip_computed(tape: Tape, node: Node, op: OnnxOp) -> Sequence[str]:
    """min(max(x, low), high) with computed bounds, which have gradients too."""
    y = node.inputs[0]
    for position, kind in ((1, "Max"), (2, "Min")):
        bound = tape.operand(node, position)
        if bound:
            y = tape.elementwise(kind, y, bound)
    return [y]
