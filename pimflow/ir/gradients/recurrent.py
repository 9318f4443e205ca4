"""Gradients of LSTM, GRU and RNN, back through time.

Gates are recomputed from the inputs and states of all steps at once; products of gradients with inputs and states also
cover all steps. Only what a step needs from the following one runs step by step: a product and a few elementwise ops
(Appleyard et al., Optimizing Performance of Recurrent Neural Networks on GPUs, 2016). There are steps times batch rows,
and G gates of H elements each. If sequences have individual lengths, a step after the end of a sequence leaves its
state unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import reduce

import numpy as np

from pimflow.ir.gradients.tape import (
    ONNX_TRAINING_FORMS,
    TRAINED_INPUTS,
    Gradients,
    Tape,
    attributes_of,
    differentiates,
    integer,
    number,
    text,
)
from pimflow.ir.graph import Node
from pimflow.ir.ops.contraction import Gemm
from pimflow.ir.ops.movement import Concat
from pimflow.ir.ops.opaque import OnnxOp
from pimflow.ir.refusal import Refusal
from pimflow.records import dataclass

MAX_STEPS = 1024
"""The maximum number of steps of all directions together; each takes at most nine nodes, twenty-two with peepholes."""

_ACTIVATIONS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
_ONE_GATE = frozenset({"Tanh", "Relu", "Sigmoid"})
_KEYS = tuple(("", kind) for kind in _ACTIVATIONS)
_BY_WEIGHTS, _BY_ROWS = Gemm(trans_b=True), Gemm(trans_a=True)

TRAINED_INPUTS.register(*_KEYS)((1, 2, 3, 7))

INITIAL_STATES = dict.fromkeys(_KEYS, (5, 6))
"""Which inputs of recurrent operators are the states that they begin with: parameters if they were learnt."""


@dataclass(frozen=True)
class _Direction:
    """One direction of a recurrence: x [rows, I], w [G H, I], r [G H, H], biases [G H] or "", first state and cell
    [batch, H], all states [rows, H]; the gradients of these states, and of the last state and cell ("" if there are
    none); whether a row lies within its sequence [rows, 1], "" if all do; peepholes of gates i, o, f [3 H] or "".
    """

    tape: Tape
    op: OnnxOp
    x: str
    w: str
    r: str
    bias: str
    state_bias: str
    first: str
    first_cell: str
    states: str
    d_states: str
    d_last: str
    d_last_cell: str
    activation: str
    backward: bool
    within: str
    peepholes: str

    @property
    def batch(self) -> int:
        """Rows of a step."""
        return self.tape.shape(self.first)[0]

    @property
    def hidden(self) -> int:
        """Elements of a state."""
        return self.tape.shape(self.r)[1]

    def in_order(self, rows: str) -> list[str]:
        """Each step's rows, in the order in which the recurrence takes the steps."""
        steps = self.tape.split(rows, 0, self.tape.shape(rows)[0] // self.batch)
        return list(reversed(steps)) if self.backward else list(steps)

    def all_rows(self, steps: Sequence[str]) -> str:
        """The inverse of `in_order`: all rows from each step's."""
        return self.joined(reversed(steps) if self.backward else steps, 0)

    def joined(self, parts: Iterable[str], axis: int) -> str:
        """The parts concatenated along an axis."""
        names = tuple(parts)
        return names[0] if len(names) == 1 else self.tape.op(Concat(axis), *names)

    def before(self, first: str, rows: str) -> str:
        """For every step, the rows that the step before it computed: [rows, H]."""
        count = self.tape.shape(rows)[0]
        if count == self.batch:
            return first
        if self.backward:
            ahead = self.tape.slice(rows, 0, self.batch, count)
            if self.within:  # the last step of a sequence starts from the first state
                inside = self.tape.slice(self.within, 0, self.batch, count)
                firsts = self.joined((first,) * (count // self.batch - 1), 0)
                ahead = self.tape.where(inside, ahead, firsts)
            return self.joined((ahead, first), 0)
        return self.joined((first, self.tape.slice(rows, 0, 0, count - self.batch)), 0)

    def gates(self, x: str, first: int, last: int) -> str:
        """The columns of gates first .. last-1."""
        return self.tape.slice(x, 1, first * self.hidden, last * self.hidden)

    def weights(self, first: int, last: int) -> str:
        """The rows of r for gates first .. last-1."""
        return self.tape.slice(self.r, 0, first * self.hidden, last * self.hidden)

    def biases(self, bias: str, first: int, last: int) -> str:
        """The biases of gates first .. last-1; "" if there are none."""
        return self.tape.slice(bias, 0, first * self.hidden, last * self.hidden) if bias else ""

    def product(self, rows: str, weights: str, added: str = "") -> str:
        """rows weights^T + added."""
        return self.tape.op(_BY_WEIGHTS, rows, weights, *filter(None, (added,)))

    def back(self, d_gates: str, weights: str, added: str = "") -> str:
        """d_gates weights + added."""
        return self.tape.op(Gemm(), d_gates, weights, *filter(None, (added,)))

    def sum(self, *parts: str) -> str:
        """The sum of the parts that are not ""; "" if all are."""
        given = [part for part in parts if part]
        return reduce(self.tape.add, given) if given else ""

    @property
    def is_coupled(self) -> bool:
        """Whether gate f is 1 minus gate i."""
        return bool(integer(self.op, "input_forget"))

    @property
    def bound(self) -> float:
        """The magnitude to which sums are clipped before activations are applied."""
        return number(self.op.attributes, "clip", math.inf)

    def activated(self, kind: str, sums: str) -> str:
        """The result of an activation applied to (clipped) sums."""
        if self.bound < math.inf:
            low, high = (self.tape.number(end, sums) for end in (-self.bound, self.bound))
            sums = self.tape.elementwise("Min", self.tape.elementwise("Max", sums, low), high)
        return self.tape.elementwise(kind, sums)

    def slope(self, kind: str, y: str, sums: str) -> str:
        """The derivative of an activation, from its result; 0 where the sums are clipped."""
        slope = _slope(self.tape, kind, y)
        if self.bound == math.inf:
            return slope
        beyond = self.tape.above(self.tape.elementwise("Abs", sums), self.bound)
        return self.tape.where(beyond, self.tape.number(0, slope), slope)

    def peephole(self, gate: int) -> str:
        """The peephole weights of gate i, o or f: [1, H]."""
        return self.gates(self.tape.reshape(self.peepholes, (1, 3 * self.hidden)), gate, gate + 1)

    def incoming_gradients(self) -> tuple[list[str], str]:
        """The gradient of each step's state from the readers of all states, and that of the last state."""
        count = self.tape.shape(self.states)[0] // self.batch
        return self.in_order(self.masked_rows(self.d_states)) if self.d_states else [""] * count, self.d_last

    def masked_rows(self, rows: str, otherwise: float = 0.0) -> str:
        """The rows, with those after the end of their sequence replaced by a number."""
        return self.tape.where(self.within, rows, self.tape.number(otherwise, rows)) if self.within else rows

    def ended(self) -> list[str]:
        """For each step, the mask of sequences that have ended before it; "" if sequences have no lengths."""
        count = self.tape.shape(self.states)[0] // self.batch
        return self.in_order(self.tape.elementwise("Not", self.within)) if self.within else [""] * count

    def passed_through(self, ended: str, d_state: str) -> str:
        """The state gradient that a step after the end of a sequence passes unchanged to the state before it."""
        return self.tape.masked(ended, d_state) if ended else ""


@dataclass(frozen=True)
class _DirectionGradients:
    """Gradients of one direction: of the gates' input and recurrent contributions [rows, G H], of r, of the first
    state, of the first cell ("" except for LSTM) and of peepholes ("" if there are none)."""

    entering: str
    recurrent: str
    r: str
    first: str
    first_cell: str = ""
    peepholes: str = ""


def _slope(tape: Tape, kind: str, y: str) -> str:
    """The derivative of an activation, from its result."""
    if kind == "Relu":
        return tape.masked(tape.above(y, 0), tape.broadcast_to(tape.number(1, y), tape.shape(y)))
    if kind == "Sigmoid":
        return tape.mul(y, tape.sub(tape.number(1, y), y))
    return tape.sub(tape.number(1, y), tape.mul(y, y))


def _rnn(own: _Direction) -> _DirectionGradients:
    """h = act(x + h' r)."""
    tape = own.tape
    before, sums = own.before(own.first, own.states), ""
    if own.bound < math.inf:
        sums = own.product(before, own.r, own.product(own.x, own.w, own.sum(own.bias, own.state_bias)))
    slopes = own.in_order(own.masked_rows(own.slope(own.activation, own.states, sums)))
    incoming, d_last = own.incoming_gradients()
    d_gate_steps, passed = list[str](), ""
    for slope, dy, ended in reversed(list(zip(slopes, incoming, own.ended(), strict=True))):
        d_state = own.back(d_gate_steps[-1], own.r, own.sum(dy, passed)) if d_gate_steps else own.sum(dy, d_last)
        d_gate_steps.append(tape.mul(d_state, slope))
        passed = own.passed_through(ended, d_state)
    d_gates = own.all_rows(d_gate_steps[::-1])
    r = tape.op(_BY_ROWS, d_gates, before)
    return _DirectionGradients(d_gates, d_gates, r, own.back(d_gate_steps[-1], own.r, passed))


def _lstm(own: _Direction) -> _DirectionGradients:
    """Gates i, o, f, c: cell = f cell' + i tanh(c), state = o tanh(cell); if coupled, f = 1 - i. Through peepholes, i
    and f see the previous cell, o the new one."""
    tape, before = own.tape, own.before(own.first, own.states)
    sums = own.product(before, own.r, own.product(own.x, own.w, own.sum(own.bias, own.state_bias)))
    sums = _with_peepholes(own, sums) if own.peepholes else sums
    iof, candidate = own.activated("Sigmoid", own.gates(sums, 0, 3)), own.activated("Tanh", own.gates(sums, 3, 4))
    input_gate, output_gate, forget_gate = (own.gates(iof, gate, gate + 1) for gate in range(3))
    forget_gate = tape.sub(tape.number(1, input_gate), input_gate) if own.is_coupled else forget_gate
    input_gate, forget_gate = own.masked_rows(input_gate), own.masked_rows(forget_gate, 1.0)
    carry_factors, cells = own.in_order(forget_gate), [own.first_cell]
    for forget, entered in zip(carry_factors, own.in_order(tape.mul(input_gate, candidate)), strict=True):
        cells.append(tape.add(tape.mul(forget, cells[-1]), entered))
    all_cells = own.all_rows(cells[1:])
    tanh_cells, cells_before = tape.elementwise("Tanh", all_cells), own.before(own.first_cell, all_cells)
    by_cell = own.joined(_by_gate(own, candidate, tanh_cells, cells_before), 1)
    of_iof = tape.mul(by_cell, own.slope("Sigmoid", iof, own.gates(sums, 0, 3)))
    of_candidate = tape.mul(input_gate, own.slope("Tanh", candidate, own.gates(sums, 3, 4)))
    all_factors = own.masked_rows(own.joined((of_iof, of_candidate), 1))
    all_of_cell = own.masked_rows(tape.mul(output_gate, _slope(tape, "Tanh", tanh_cells)))
    if own.peepholes:
        of_gates = [tape.mul(own.gates(all_factors, gate, gate + 1), own.peephole(gate)) for gate in range(3)]
        all_of_cell = tape.add(all_of_cell, of_gates[1])
        carry_factors = own.in_order(tape.add(forget_gate, tape.add(of_gates[0], of_gates[2])))
    d_gates, d_first, d_cell = _lstm_back(own, carry_factors, own.in_order(all_factors), own.in_order(all_of_cell))
    peepholes = ""
    if own.peepholes:
        peephole_cells = own.joined((cells_before, all_cells, cells_before), 1)
        peepholes = tape.sum(tape.mul(own.gates(d_gates, 0, 3), peephole_cells), (0,), keepdims=False)
    return _DirectionGradients(d_gates, d_gates, tape.op(_BY_ROWS, d_gates, before), d_first, d_cell, peepholes)


def _lstm_back(
    own: _Direction, carry_factors: Sequence[str], factors: Sequence[str], of_cell: Sequence[str]
) -> tuple[str, str, str]:
    """The gradients of the gates' sums, of the first state and of the first cell.

    Args:
        own: the direction.
        carry_factors: by step, the factor from the gradient of the cell to that of the previous cell.
        factors: by step, the factors from the gradient of the cell (for gate o, of the state) to those of the gates'
            sums.
        of_cell: by step, the factor from the gradient of the state to that of the cell.
    """
    tape, (incoming, d_last) = own.tape, own.incoming_gradients()
    d_cell, d_gate_steps, passed = own.d_last_cell, list[str](), ""
    steps = zip(carry_factors, factors, of_cell, incoming, own.ended(), strict=True)
    for carry, factor, slope, dy, ended in reversed(list(steps)):
        d_state = own.back(d_gate_steps[-1], own.r, own.sum(dy, passed)) if d_gate_steps else own.sum(dy, d_last)
        d_state = d_state or tape.zeros(tape.shape(slope), slope)
        total = own.sum(tape.mul(d_state, slope), d_cell)
        d_gate_steps.append(tape.mul(own.joined((total, d_state, total, total), 1), factor))
        d_cell = tape.mul(total, carry)
        passed = own.passed_through(ended, d_state)
    return own.all_rows(d_gate_steps[::-1]), own.back(d_gate_steps[-1], own.r, passed), d_cell


def _by_gate(own: _Direction, candidate: str, tanh_cells: str, cells_before: str) -> tuple[str, str, str]:
    """The derivative of the cell (for gate o, of the state) with respect to each gate."""
    if own.is_coupled:
        return own.tape.sub(candidate, cells_before), tanh_cells, own.tape.zeros(own.tape.shape(candidate), candidate)
    return candidate, tanh_cells, cells_before


def _with_peepholes(own: _Direction, sums: str) -> str:
    """The sums of all gates with the peephole terms added, for which the cells are computed step by step."""
    tape, candidates = own.tape, own.activated("Tanh", own.gates(sums, 3, 4))
    cell, cells, pairs = own.first_cell, list[str](), list[str]()
    weights = own.joined((own.peephole(0), own.peephole(2)), 1)
    both = own.in_order(own.joined((own.gates(sums, 0, 1), own.gates(sums, 2, 3)), 1))
    within = own.in_order(own.within) if own.within else [""] * len(both)
    for pair, candidate, inside in zip(both, own.in_order(candidates), within, strict=True):
        pairs.append(tape.add(pair, tape.mul(own.joined((cell, cell), 1), weights)))
        gates = own.activated("Sigmoid", pairs[-1])
        input_gate = own.gates(gates, 0, 1)
        forget_gate = tape.sub(tape.number(1, input_gate), input_gate) if own.is_coupled else own.gates(gates, 1, 2)
        next_cell = tape.add(tape.mul(forget_gate, cell), tape.mul(input_gate, candidate))
        cell = tape.where(inside, next_cell, cell) if inside else next_cell
        cells.append(cell)
    pair_sums = own.all_rows(pairs)
    output_sums = tape.add(own.gates(sums, 1, 2), tape.mul(own.all_rows(cells), own.peephole(1)))
    return own.joined((own.gates(pair_sums, 0, 1), output_sums, own.gates(pair_sums, 1, 2), own.gates(sums, 3, 4)), 1)


def _gru(own: _Direction) -> _DirectionGradients:
    """Gates z, r, h: state = (1 - z) n + z state', where r resets state' or, with linear_before_reset, its product."""
    return _reset_after(own) if integer(own.op, "linear_before_reset") else _reset_before(own)


def _gate_factors(
    own: _Direction, before: str, update_gate: str, candidate: str, sums: tuple[str, str]
) -> tuple[str, str]:
    """The factors of a state's gradient for gate z and for gate h, given their sums."""
    tape = own.tape
    of_candidate = tape.mul(tape.sub(tape.number(1, update_gate), update_gate), own.slope("Tanh", candidate, sums[1]))
    return tape.mul(tape.sub(before, candidate), own.slope("Sigmoid", update_gate, sums[0])), of_candidate


def _reset_after(own: _Direction) -> _DirectionGradients:
    """n = tanh(x_h + r q), q = state' r_h + b."""
    tape, before = own.tape, own.before(own.first, own.states)
    input_sums, recurrent_sums = own.product(own.x, own.w, own.bias), own.product(before, own.r, own.state_bias)
    gate_sums = tape.add(own.gates(input_sums, 0, 2), own.gates(recurrent_sums, 0, 2))
    gates = own.activated("Sigmoid", gate_sums)
    update_gate, reset_gate = own.masked_rows(own.gates(gates, 0, 1), 1.0), own.gates(gates, 1, 2)
    reset_sums = own.gates(recurrent_sums, 2, 3)
    candidate_sums = tape.add(own.gates(input_sums, 2, 3), tape.mul(reset_gate, reset_sums))
    candidate = own.activated("Tanh", candidate_sums)
    update_sums = own.gates(gate_sums, 0, 1)
    of_update, of_candidate = _gate_factors(own, before, update_gate, candidate, (update_sums, candidate_sums))
    of_reset = tape.mul(of_candidate, reset_sums)
    of_reset = tape.mul(of_reset, own.slope("Sigmoid", reset_gate, own.gates(gate_sums, 1, 2)))
    factors = own.in_order(own.joined((of_update, of_reset, tape.mul(of_candidate, reset_gate)), 1))
    incoming, d_next = own.incoming_gradients()
    d_gate_steps, d_states = list[str](), list[str]()
    for factor, update, dy in reversed(list(zip(factors, own.in_order(update_gate), incoming, strict=True))):
        d_state = own.sum(dy, d_next)
        d_gate_steps.append(tape.mul(own.joined((d_state,) * 3, 1), factor))
        d_states.append(d_state)
        d_next = own.back(d_gate_steps[-1], own.r, tape.mul(d_state, update))
    d_gates, d_candidate = own.all_rows(d_gate_steps[::-1]), tape.mul(own.all_rows(d_states[::-1]), of_candidate)
    d_input_sums = own.joined((own.gates(d_gates, 0, 2), d_candidate), 1)
    return _DirectionGradients(d_input_sums, d_gates, tape.op(_BY_ROWS, d_gates, before), d_next)


def _reset_before(own: _Direction) -> _DirectionGradients:
    """n = tanh(x_h + (r state') r_h + b)."""
    tape, before = own.tape, own.before(own.first, own.states)
    input_sums = own.product(own.x, own.w, own.sum(own.bias, own.state_bias))
    gate_sums = own.product(before, own.weights(0, 2), own.gates(input_sums, 0, 2))
    gates = own.activated("Sigmoid", gate_sums)
    update_gate, reset_gate = own.masked_rows(own.gates(gates, 0, 1), 1.0), own.gates(gates, 1, 2)
    reset_states = tape.mul(reset_gate, before)
    candidate_sums = own.product(reset_states, own.weights(2, 3), own.gates(input_sums, 2, 3))
    candidate = own.activated("Tanh", candidate_sums)
    update_sums = own.gates(gate_sums, 0, 1)
    of_update, of_candidate = _gate_factors(own, before, update_gate, candidate, (update_sums, candidate_sums))
    of_reset = tape.mul(before, own.slope("Sigmoid", reset_gate, own.gates(gate_sums, 1, 2)))
    factors = own.in_order(own.joined((of_update, of_reset), 1))
    incoming, d_next = own.incoming_gradients()
    d_gate_steps, d_candidate_steps = list[str](), list[str]()
    rows = zip(
        factors, own.in_order(of_candidate), own.in_order(update_gate), own.in_order(reset_gate), incoming, strict=True
    )
    for factor, slope, update, reset, dy in reversed(list(rows)):
        d_state = own.sum(dy, d_next)
        d_candidate_steps.append(tape.mul(d_state, slope))
        d_reset = own.back(d_candidate_steps[-1], own.weights(2, 3))
        d_gate_steps.append(tape.mul(own.joined((d_state, d_reset), 1), factor))
        direct = tape.add(tape.mul(d_state, update), tape.mul(d_reset, reset))
        d_next = own.back(d_gate_steps[-1], own.weights(0, 2), direct)
    d_update_reset, d_candidate = own.all_rows(d_gate_steps[::-1]), own.all_rows(d_candidate_steps[::-1])
    r = own.joined((tape.op(_BY_ROWS, d_update_reset, before), tape.op(_BY_ROWS, d_candidate, reset_states)), 0)
    d_gates = own.joined((d_update_reset, d_candidate), 1)
    return _DirectionGradients(d_gates, d_gates, r, d_next)


_RULES: dict[str, Callable[[_Direction], _DirectionGradients]] = {"LSTM": _lstm, "GRU": _gru, "RNN": _rnn}


@ONNX_TRAINING_FORMS.register(*_KEYS)
def _with_states(tape: Tape, node: Node, op: OnnxOp) -> tuple[Node, ...]:
    """Outputs the states of all steps even if nothing else reads them."""
    if _refusal(tape, node, op) is not None:
        return (node,)
    states = node.outputs[0]
    if not states:
        (steps, batch, _), (directions, _, hidden) = tape.shape(node.inputs[0]), tape.shape(node.inputs[2])
        shape = (steps, directions, batch, hidden)
        states = tape.new_value(f"{node.name}.states", shape, tape.dtype(node.inputs[0]))
    tape.save_for_backward(node, states)
    return (Node(op, node.inputs, (states, *node.outputs[1:]), node.name, node.placement, node.tags),)


@differentiates(*_ACTIVATIONS)
def _recurrent(tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...]) -> Gradients:
    refusal = _refusal(tape, node, op)
    if refusal is not None:
        return refusal
    count = tape.shape(node.inputs[1])[0]
    within = _within(tape, node)
    found = [_of_one(tape, node, op, gradients, direction, within) for direction in range(count)]

    def joined(place: int) -> str:
        parts = [made[place] for made in found]
        return parts[0] if len(parts) == 1 else tape.op(Concat(0), *parts)

    x = tape.reshape(reduce(tape.add, (made[0] for made in found)), tape.shape(node.inputs[0]))
    places = {1: 1, 2: 2, 3: 3, 5: 4, 6: 5, 7: 6}
    made = {0: x, **{place: joined(index) for place, index in places.items() if tape.operand(node, place)}}
    return [made.get(place, "") if tape.wants(name) else "" for place, name in enumerate(node.inputs)]


def _within(tape: Tape, node: Node) -> str:
    """Whether a row lies within its sequence [rows, 1]; "" if all do."""
    (steps, batch, _), lengths = tape.shape(node.inputs[0]), tape.operand(node, 4)
    known = tape.array(lengths)
    if not lengths or (known is not None and (known == steps).all()):
        return ""
    place = tape.constant(np.arange(steps).astype(tape.dtype(lengths)).reshape(steps, 1), "steps")
    return tape.reshape(tape.elementwise("Less", place, lengths), (steps * batch, 1))


def _of_one(
    tape: Tape, node: Node, op: OnnxOp, gradients: tuple[str, ...], direction: int, within: str
) -> tuple[str, ...]:
    """Gradients of x [rows, I], and of weights, biases, first states and peepholes, each with a leading axis of 1 for
    the direction."""

    def part(name: str, axis: int = 0) -> str:
        if not name:
            return ""
        shape = tape.shape(name)
        one = tape.slice(name, axis, direction, direction + 1)
        return tape.reshape(one, (*shape[:axis], *shape[axis + 1 :]))

    def rows(name: str) -> str:
        return tape.rows_of(part(name, 1)) if name else ""

    x, w, r, both, _, first, cell, peepholes = (tape.operand(node, place) for place in range(8))
    (batch, *_), gates = tape.shape(x)[1:], tape.shape(r)[1]
    none, bias = tape.zeros((batch, tape.shape(r)[2]), x), part(both)
    d_states, d_last, d_cell, *_ = (*gradients, "", "")
    backward = direction == 1 or text(op, "direction", "forward") == "reverse"

    def last(name: str) -> str:
        """The gradient of a last state or cell; the last one of an empty sequence is 0, so it has none."""
        mask = within and name and tape.slice(within, 0, 0, batch)
        return tape.masked(mask, part(name)) if mask else part(name)

    own = _Direction(
        tape,
        op,
        tape.rows_of(x),
        part(w),
        part(r),
        tape.slice(bias, 0, 0, gates) if bias else "",
        tape.slice(bias, 0, gates, 2 * gates) if bias else "",
        part(first) or none,
        part(cell) or none,
        rows(tape.saved(node)[0]),
        rows(d_states),
        last(d_last),
        last(d_cell),
        _activations(op)[-1 if backward else 0],
        backward,
        within,
        part(peepholes),
    )
    made = _RULES[op.op_type](own)
    biases = tuple(tape.sum(of, (0,), keepdims=False) for of in (made.entering, made.recurrent)) if bias else ()
    found = (tape.op(_BY_ROWS, made.entering, own.x), made.r, *([own.joined(biases, 0)] if biases else [""]))
    whole = (*found, made.first, made.first_cell, made.peepholes)
    return own.back(made.entering, own.w), *(
        tape.reshape(name, (1, *tape.shape(name))) if name else "" for name in whole
    )


def _refusal(tape: Tape, node: Node, op: OnnxOp) -> Refusal | None:
    """Why a recurrence has no gradient, or None."""
    if any(name and tape.value(name).shape is None for name in (*node.inputs, *node.outputs)):
        return Refusal(f"{op.op_type}: the sizes of its operands or results depend on data")
    steps, batch, _ = tape.shape(node.inputs[0])
    if integer(op, "layout"):
        return Refusal(f"{op.op_type} with the batch axis first has no gradient rule", remedy="export it with layout 0")
    usual, activations = _ACTIVATIONS[op.op_type], _activations(op)
    if not (set(activations) <= _ONE_GATE if op.op_type == "RNN" else activations in (usual, 2 * usual)):
        return Refusal(f"{op.op_type} with activations {', '.join(activations)} has no gradient rule")
    total = steps * tape.shape(node.inputs[1])[0]
    if total > MAX_STEPS or not total * batch:
        return Refusal(
            f"{op.op_type} of {total} steps: gradients go back through {MAX_STEPS} at most", remedy="train on fewer"
        )
    return None


def _activations(op: OnnxOp) -> tuple[str, ...]:
    """The activations of the first direction, then of the second."""
    given = attributes_of(op).get("activations")
    return tuple(map(str, given)) if isinstance(given, tuple) and given else _ACTIVATIONS[op.op_type]
