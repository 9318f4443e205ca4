"""LSTM, GRU and RNN in float64, a step at a time as ONNX's specification has them: ONNX Runtime knows float32 alone."""

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


class Recurrence(OpRun):
    """What the three have in common."""

    gates = 1

    @abstractmethod
    def step(self, w: Floats, r: Floats, b: Floats, activation: str, given: dict[str, Any]) -> Step:
        """From inputs, state and cell the next state and cell."""

    def _run(self, x: Floats, w: Floats, r: Floats, *others: Any, **given: Any) -> tuple[Floats, ...]:
        bias, lengths, first, cell = (*others, None, None, None, None)[:4]
        directions, rows, hidden = r.shape
        none = np.zeros((directions, x.shape[1], hidden))
        bias = np.zeros((directions, 2 * rows)) if bias is None else bias
        made = np.zeros((x.shape[0], directions, x.shape[1], hidden))
        last, last_cell = none.copy(), none.copy()
        names = [str(name) for name in given.get("activations") or ("Tanh",)]
        for direction in range(directions):
            state = (none if first is None else first)[direction]
            inner = (none if cell is None else cell)[direction]
            backward = direction == 1 or given.get("direction") == "reverse"
            step = self.step(w[direction], r[direction], bias[direction], names[-1 if backward else 0], given)
            for one in range(x.shape[1]):  # each sequence by itself, as if there were no other
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

    def step(self, w: Floats, r: Floats, b: Floats, activation: str, given: dict[str, Any]) -> Step:
        def next_of(x: Floats, state: Floats, cell: Floats) -> tuple[Floats, Floats]:
            i, o, f, c = np.split(x @ w.T + state @ r.T + b[: len(w)] + b[len(w) :], 4, axis=1)
            cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(c)
            return np.asarray(sigmoid(o) * np.tanh(cell)), np.asarray(cell)

        return next_of


class GRU(Recurrence):
    """Gates z, r, h."""

    gates = 3

    def step(self, w: Floats, r: Floats, b: Floats, activation: str, given: dict[str, Any]) -> Step:
        def next_of(x: Floats, state: Floats, cell: Floats) -> tuple[Floats, Floats]:
            z, reset, new = np.split(x @ w.T + b[: len(w)], 3, axis=1)
            of_z, of_reset, of_new = np.split(r, 3)
            own_z, own_reset, own_new = np.split(b[len(w) :], 3)
            z, reset = sigmoid(z + state @ of_z.T + own_z), sigmoid(reset + state @ of_reset.T + own_reset)
            if given.get("linear_before_reset"):
                new = np.tanh(new + reset * (state @ of_new.T + own_new))
            else:
                new = np.tanh(new + (reset * state) @ of_new.T + own_new)
            return np.asarray((1 - z) * new + z * state), cell

        return next_of


class RNN(Recurrence):
    """One gate."""

    def step(self, w: Floats, r: Floats, b: Floats, activation: str, given: dict[str, Any]) -> Step:
        def next_of(x: Floats, state: Floats, cell: Floats) -> tuple[Floats, Floats]:
            return ACTIVATIONS[activation](x @ w.T + state @ r.T + b[: len(w)] + b[len(w) :]), cell

        return next_of


RECURRENCES: tuple[type[Recurrence], ...] = (LSTM, GRU, RNN)
