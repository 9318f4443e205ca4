"""Turns a model into its training step: forward pass, loss, the gradients of its parameters, and the optimiser."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

from pimflow.errors import ModelError, OptionError, did_you_mean
from pimflow.ir import (
    UNPLACED,
    Graph,
    Node,
    OnnxOp,
    Refusal,
)
from pimflow.ir.analysis.tensor_layout import is_float
from pimflow.ir.gradients import (
    GRADIENTS,
    TRAINING_FORMS,
    Gradients,
    Tape,
    renamed,
)
from pimflow.passes.base import Pass, PassResult
from pimflow.passes.embedding_bags import without_bag_loops
from pimflow.passes.parameters import parameters
from pimflow.records import dataclass

Loss = Literal["sum", "mean-squared", "cross-entropy"]
Optimiser = Literal["none", "sgd", "momentum", "adam"]

RATE, MOMENTUM, SECOND_MOMENT, TINY = 1e-3, 0.9, 0.999, 1e-8
"""Parameters of the optimisers, with the names and defaults of Kingma and Ba ("Adam", 2015). Bias correction is a
factor of the rate."""


@dataclass(frozen=True)
class Differentiate(Pass):
    """Turns a graph into its training step.

    The step's outputs are the loss, then for every parameter its gradient, or the optimiser's update of parameter and
    state. Parameters are the float constants that contractions, norms, lookups and additions or products of vectors
    read, except masks; batch normalisation uses the statistics of the batch. The nodes after the forward pass are in
    the order in which gradients become available.

    Args:
        loss: "sum" of all float outputs, each times a gradient that becomes an input (`NAME.gradient`); "mean-squared"
            difference from inputs `NAME.target`; or "cross-entropy" of the first float output [..., C] as logits
            against classes (`NAME.target`, int64 [...]).
        wrt: names of the constants and inputs whose gradients to compute; none: all parameters.
        inputs: whether to compute the gradients of all float inputs as well.
        optimiser: "none", "sgd", "momentum" or "adam"; its state is in inputs and outputs.
        frozen_statistics: whether batch normalisation uses the statistics stored in the model, as in fine-tuning.
    """

    name: ClassVar[str] = "differentiate"
    keeps_values: ClassVar[bool] = False

    loss: Loss = "sum"
    wrt: tuple[str, ...] = ()
    inputs: bool = False
    optimiser: Optimiser = "none"
    frozen_statistics: bool = False

    def run(self, graph: Graph) -> PassResult:
        """Append the loss and the backward pass.

        Raises:
            ModelError: the model has no float output or no parameter, or an op on the way has no gradient.
            OptionError: `wrt` names something that has no gradient.
        """
        return PassResult(training_step(graph, self).graph, True)


@dataclass(frozen=True)
class TrainingStep:
    """A training step.

    Args:
        graph: the step.
        loss: the name of its loss, a scalar.
        gradients: the name of the gradient of every requested parameter or input.
        forward: names of the nodes of the forward pass, including the loss; all others run after it.
    """

    graph: Graph
    loss: str
    gradients: dict[str, str]
    forward: frozenset[str]


def training_step(graph: Graph, options: Differentiate) -> TrainingStep:
    """The training step of a model with the options of `Differentiate`.

    Raises:
        ModelError, OptionError: as in `Differentiate.run`.
    """
    targets = _targets(graph, options)
    return _Writer(without_bag_loops(graph), options, targets).write()


def _is_foldable(graph: Graph, name: str) -> bool:
    """Whether a value is computed, but only from constants and sizes."""
    waiting, seen = [name], {name}
    while waiting:
        producer = graph.producer(waiting.pop())
        reads = () if producer is None or producer.kind in ("Shape", "Size") else producer.inputs
        waiting += [read for read in reads if read and read not in seen]
        seen.update(waiting)
    return seen.isdisjoint(graph.inputs) and not graph.is_constant(name)


def _targets(graph: Graph, options: Differentiate) -> tuple[str, ...]:
    """The names whose gradients are requested."""
    known = [*graph.inputs, *graph.constants]
    for name in options.wrt:
        if name not in known or not is_float(graph.value(name).dtype):
            raise OptionError(f"{name!r} is not an input or constant of floats", did_you_mean(name, known))
    names = list(options.wrt or parameters(graph))
    if options.inputs:
        names += [name for name in graph.inputs if is_float(graph.value(name).dtype) and name not in names]
    if not names:
        raise ModelError(f"{graph.name!r} has no parameters to train", "ask for the gradients of its inputs")
    return tuple(names)


def _reached(graph: Graph, targets: tuple[str, ...]) -> set[str]:
    """The targets, and the float values that depend on one of them."""
    reached = set(targets)
    for node in graph.nodes:
        if reached.intersection(node.inputs):
            reached.update(name for name in node.outputs if name and _holds_floats(graph.value(name).dtype))
    return reached


def _holds_floats(dtype: str) -> bool:
    """Whether a value holds floats, or is a sequence or optional, through which gradients are refused rather than
    lost."""
    return is_float(dtype) or "(" in dtype


class _Writer:
    """Writes one training step."""

    def __init__(self, graph: Graph, options: Differentiate, targets: tuple[str, ...]) -> None:
        self.graph = graph
        self.options = options
        self.targets = targets
        self.tape = Tape(graph, _reached(graph, targets), options.frozen_statistics)
        self.inputs = list(graph.inputs)
        self._taken: set[str] = set()

    def write(self) -> TrainingStep:
        """Forward, loss, backward, optimiser."""
        forward = [new for node in self.graph.nodes for new in self._training_form(node)]
        self.tape.set_scope("loss")
        loss = self._loss()
        count = len(forward) + len(self.tape.nodes)
        self._backward(forward)
        self.tape.set_scope("step")
        gradients = {name: self._as_output(self._gradient(name), f"{name}.gradient") for name in self.targets}
        results = {f"{name}.gradient": gradient for name, gradient in gradients.items()}
        if self.options.optimiser != "none":
            results = self._optimiser_step(gradients)
        names = {made: wanted for wanted, made in {"loss": loss, **results}.items() if wanted not in self.tape.values}
        nodes = [renamed(node, names) for node in (*forward, *self.tape.nodes)]
        step = self._graph(nodes, names, [names.get(name, name) for name in (loss, *results.values())])
        given = {name: names.get(gradient, gradient) for name, gradient in gradients.items()}
        return TrainingStep(step, step.outputs[0], given, frozenset(node.name for node in nodes[:count]))

    def _graph(self, nodes: list[Node], names: dict[str, str], outputs: list[str]) -> Graph:
        used = {*self.inputs, *outputs}
        for node in nodes:
            used.update(filter(None, (*node.inputs, *node.outputs)))
        renamed = (replace(value, name=names.get(name, name)) for name, value in self.tape.values.items())
        return self.graph.replace(
            nodes=nodes,
            inputs=self.inputs,
            outputs=outputs,
            values={value.name: value for value in renamed if value.name in used},
            constants={name: array for name, array in self.tape.constants.items() if name in used},
            packed={name: packed for name, packed in self.graph.packed.items() if name in used},
        )

    def _training_form(self, node: Node) -> tuple[Node, ...]:
        """The nodes that make a node's outputs in training, not yet placed."""
        node = replace(node, placement=UNPLACED)
        form = TRAINING_FORMS.get(type(node.op))
        reached = any(map(self.tape.wants, node.outputs))
        return form(self.tape, node, node.op) if form is not None and reached else (node,)

    # ---- loss

    def _loss(self) -> str:
        """Write the loss; afterwards the gradients of the model's outputs are known."""
        outputs = [name for name in self.graph.outputs if is_float(self.graph.value(name).dtype)]
        if not outputs:
            raise ModelError(f"{self.graph.name!r} has no float output, so its loss has no gradient")
        for name in outputs:
            if self.graph.value(name).shape is None:
                sizes = "whose sizes depend on data, so its loss has no gradient"
                raise ModelError(f"{self.graph.name!r} has the output {name!r}, {sizes}", "train the part before it")
        if self.options.loss == "cross-entropy":
            return self._cross_entropy(outputs[0])
        term = self._inner_product if self.options.loss == "sum" else self._mean_squared_error
        total = ""
        for name in dict.fromkeys(outputs):
            made = term(name)
            total = self.tape.add(total, made) if total else made
        return total

    def _input(self, name: str, shape: tuple[int, ...], dtype: str) -> str:
        made = self.tape.new_value(name, shape, dtype)
        self.inputs.append(made)
        return made

    def _total(self, x: str, kind: str = "ReduceSum") -> str:
        """Reduce over all axes, to a scalar."""
        tape = self.tape
        axes = tuple(range(len(tape.shape(x))))
        return tape.reduce(kind, x, axes, keepdims=False) if axes else tape.onnx("Identity", (x,), ())

    def _inner_product(self, name: str) -> str:
        tape = self.tape
        given = self._input(f"{name}.gradient", tape.shape(name), tape.dtype(name))
        tape.add_gradient(name, given)
        return self._total(tape.mul(name, given))

    def _mean_squared_error(self, name: str) -> str:
        tape = self.tape
        target = self._input(f"{name}.target", tape.shape(name), tape.dtype(name))
        difference = tape.sub(name, target)
        tape.add_gradient(name, tape.scaled(difference, 2 / max(1, tape.value(name).elements)))
        return self._total(tape.mul(difference, difference), "ReduceMean")

    def _cross_entropy(self, name: str) -> str:
        """-mean of log softmax at the classes; its gradient is (softmax - 1 at the class) over the number of rows."""
        tape, shape = self.tape, self.tape.shape(name)
        if len(shape) < 2:
            raise ModelError(f"output {name!r} of shape {shape} is not a matrix of logits", "choose another loss")
        axis, rows = len(shape) - 1, tape.value(name).elements // max(1, shape[-1])
        target = self._input(f"{name}.target", shape[:-1], "int64")
        index = tape.reshape(target, (*shape[:-1], 1))
        log_probabilities = tape.onnx("LogSoftmax", (name,), shape, axis=axis)
        loss = tape.neg(
            self._total(
                tape.onnx("GatherElements", (log_probabilities, index), (*shape[:-1], 1), axis=axis), "ReduceMean"
            )
        )
        probabilities = tape.elementwise("Exp", log_probabilities)
        shifted = tape.plus(tape.onnx("GatherElements", (probabilities, index), (*shape[:-1], 1), axis=axis), -1)
        residual = tape.onnx("ScatterElements", (probabilities, index, shifted), shape, axis=axis)
        tape.add_gradient(name, tape.scaled(residual, 1 / max(1, rows)))
        return loss

    # ---- backward

    def _backward(self, forward: list[Node]) -> None:
        """Propagate gradients from the last node to the first, through nodes that receive gradients and pass some
        on."""
        for node in reversed(forward):
            if not any(map(self.tape.wants, node.inputs)):
                continue
            self.tape.set_scope(f"{node.name}.gradient")
            output_gradients = tuple(self.tape.gradient(name) if name else "" for name in node.outputs)
            if any(output_gradients):
                self._propagate(node, output_gradients)

    def _propagate(self, node: Node, gradients: tuple[str, ...]) -> None:
        made = self._gradients(node, gradients)
        if isinstance(made, Refusal):
            raise ModelError(f"{node.name!r} has no gradient: {made.reason}", made.remedy or self._remedy(node))
        for name, gradient in zip(node.inputs, made, strict=False):
            self.tape.add_gradient(name, gradient)

    def _gradients(self, node: Node, gradients: tuple[str, ...]) -> Gradients:
        rule = GRADIENTS.find(node.op)
        if rule is None:
            return Refusal(f"{node.kind} has no gradient rule")
        unsized = None if isinstance(node.op, OnnxOp) else self.tape.unsized(node)  # of an OnnxOp, its rule says more
        return unsized or rule(self.tape, node, node.op, gradients)

    def _remedy(self, node: Node) -> str:
        """What to do about a node without a gradient."""
        graph = self.tape.graph
        if any(_is_foldable(graph, name) for name in node.inputs[1:] if name in graph.values):
            return "run fold-constants first: an operand is computed from constants"
        return (
            "train only what comes after it: name the parameters there, as `differentiate{wrt=[...]}` of `pimflow opt`"
        )

    def _gradient(self, name: str) -> str:
        """A target's gradient; zeros if the loss does not depend on it."""
        return self.tape.gradient(name) or self.tape.zeros(self.tape.shape(name), name)

    def _as_output(self, value: str, name: str) -> str:
        """A value that is made by a node and is no other output; a copy if the given one is not."""
        made = {output for node in self.tape.nodes for output in node.outputs}
        if value in made and value not in self._taken:
            self._taken.add(value)
            return value
        return self.tape.onnx("Identity", (value,), self.tape.shape(value))

    # ---- optimiser

    def _optimiser_step(self, gradients: dict[str, str]) -> dict[str, str]:
        """The new parameters, and the state for the next step, by name."""
        made: dict[str, str] = {}
        for name, gradient in gradients.items():
            if self.graph.is_constant(name):
                made |= self._update(name, gradient)
        return made

    def _update(self, name: str, gradient: str) -> dict[str, str]:
        tape, state = self.tape, {}
        direction = gradient
        if self.options.optimiser == "momentum":
            direction = tape.add(tape.scaled(self._state(name, "momentum"), MOMENTUM), gradient)
            state = {f"{name}.momentum.next": direction}
        if self.options.optimiser == "adam":
            first = self._moment(name, "first", gradient, MOMENTUM)
            second = self._moment(name, "second", tape.mul(gradient, gradient), SECOND_MOMENT)
            state = {f"{name}.first.next": first, f"{name}.second.next": second}
            direction = tape.div(first, tape.plus(tape.elementwise("Sqrt", second), TINY))
        return {f"{name}.next": tape.sub(name, tape.scaled(direction, RATE)), **state}

    def _state(self, name: str, what: str) -> str:
        return self._input(f"{name}.{what}", self.tape.shape(name), self.tape.dtype(name))

    def _moment(self, name: str, what: str, sample: str, decay: float) -> str:
        tape = self.tape
        return tape.add(tape.scaled(self._state(name, what), decay), tape.scaled(sample, 1 - decay))
