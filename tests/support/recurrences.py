"""LSTM, GRU and RNN in float64, step by step as in ONNX's specification: ONNX Runtime only has them in float32."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx.reference.op_run import OpRun

Floats = npt.NDArray[np.float64]
Step = Callable[[Floats, Floats, Floats], tuple[Floats, Floats]]


def sigmoid(x: Floats) -> Floats:
    return np.asarray(1 / (1 + np.exp(-x)))


ACTIVATIONS: dict[str, Callable[[Floats], Floats]] = {
    "Tanh": np.tanh,
    "Sigmoid": sigmoid,
    "Relu": lambda x: np.maximum(x, 0),
}


def clipped(x: Floats, given: dict[str, Any]) -> Floats:
    """The clipped input of an activation."""
    bound = given.get("clip") or np.inf
    return np.asarray(np.clip(x, -bound, bound))


class Recurrence(OpRun):
    """The common part of the three."""

    gates = 1

    @abstractmethod
    def step(self, w: Floats, r: Floats, b: Floats, p: Floats, activation: str, given: dict[str, Any]) -> Step:
        """The next state and cell from inputs, state and cell."""

    def _run(self, x: Floats, w: Floats, r: Floats, *others: Any, **given: Any) -> tuple[Floats, ...]:
        bias, lengths, first, cell, peepholes = (*others, *(None,) * 5)[:5]
        directions, rows, hidden = r.shape
        none = np.zeros((directions, x.shape[1], hidden))
        bias = np.zeros((directions, 2 * rows)) if bias is None else bias
        peepholes = np.zeros((directions, 3 * hidden)) if peepholes is None else peepholes
        made = np.zeros((x.shape[0], directions, x.shape[1], hidden))
        last, last_cell = none.copy(), none.copy()
        names = [str(name) for name in given.get("activations") or ("Tanh",)]
        for direction in range(directions):
            state = (none if first is None else first)[direction]
            inner = (none if cell is None else cell)[direction]
            backward = direction == 1 or given.get("direction") == "reverse"
            weights = w[direction], r[direction], bias[direction], peepholes[direction]
            step = self.step(*weights, names[-1 if backward else 0], given)
            for one in range(x.shape[1]):  # each sequence on its own
                own = slice(one, one + 1)
                places = range(len(x) if lengths is None else int(lengths[one]))
                at, at_cell = (state[own], inner[own]) if places else (none[direction, own],) * 2
                for place in places[:: -1 if backward else 1]:
                    at, at_cell = step(x[place, own], at, at_cell)
                    made[place, direction, own] = at
                last[direction, own], last_cell[direction, own] = at, at_cell
        return (made, last, last_cell)[: 3 if self.gates == 4 else 2]


class LSTM(Recurrence):
    """Gates i, o, f, c."""

    gates = 4

    def step(self, w: Floats, r: Floats, b: Floats, p: Floats, activation: str, given: dict[str, Any]) -> Step:
        def next_of(x: Floats, state: Floats, cell: Floats) -> tuple[Floats, Floats]:
            i, o, f, c = np.split(x @ w.T + state @ r.T + b[: len(w)] + b[len(w) :], 4, axis=1)
            of_i, of_o, of_f = np.split(p, 3)
            enters = sigmoid(clipped(i + of_i * cell, given))
            stays = 1 - enters if given.get("input_forget") else sigmoid(clipped(f + of_f * cell, given))
            cell = stays * cell + enters * np.tanh(clipped(c, given))
            return np.asarray(sigmoid(clipped(o + of_o * cell, given)) * np.tanh(cell)), np.asarray(cell)

        return next_of


class GRU(Recurrence):
    """Gates z, r, h."""

    gates = 3

    def step(self, w: Floats, r: Floats, b: Floats, p: Floats, activation: str, given: dict[str, Any]) -> Step:
        def next_of(x: Floats, state: Floats, cell: Floats) -> tuple[Floats, Floats]:
            z, reset, new = np.split(x @ w.T + b[: len(w)], 3, axis=1)
            of_z, of_reset, of_new = np.split(r, 3)
            own_z, own_reset, own_new = np.split(b[len(w) :], 3)
            z = sigmoid(clipped(z + state @ of_z.T + own_z, given))
            reset = sigmoid(clipped(reset + state @ of_reset.T + own_reset, given))
            if given.get("linear_before_reset"):
                new = new + reset * (state @ of_new.T + own_new)
            else:
                new = new + (reset * state) @ of_new.T + own_new
            new = np.tanh(clipped(new, given))
            return np.asarray((1 - z) * new + z * state), cell

        return next_of


class RNN(Recurrence):
    """One gate."""

    def step(self, w: Floats, r: Floats, b: Floats, p: Floats, activation: str, given: dict[str, Any]) -> Step:
        def next_of(x: Floats, state: Floats, cell: Floats) -> tuple[Floats, Floats]:
            return ACTIVATIONS[activation](clipped(x @ w.T + state @ r.T + b[: len(w)] + b[len(w) :], given)), cell

        return next_of


RECURRENCES: tuple[type[Recurrence], ...] = (LSTM, GRU, RNN)
