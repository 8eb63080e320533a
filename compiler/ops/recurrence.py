"""Recurrent layers (RNN, GRU, LSTM) as one operator: a scan over the steps, of both directions at once.

The products of all inputs with their weights, and the biases, are an operand. A step multiplies the last state with the
recurrent weights, which are packed once, and computes the gates.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from retune.compiler import te
from retune.compiler.ir.expr import Expr, Var, select
from retune.compiler.ops.op import Array, FusionKind, Lowered, Op, OpCall, summed_product
from retune.compiler.te.evaluate import evaluate
from retune.compiler.te.scan import scan_steps
from retune.compiler.te.tensor import Tensor

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
"""The gates of each cell; GRU: update, reset, hidden; LSTM: input, output, forget, cell (ONNX's order)."""
_FUNCTIONS: Mapping[str, Callable[[Expr], Expr]] = {
    "sigmoid": te.sigmoid,
    "tanh": te.tanh,
    "relu": lambda value: te.maximum(value, te.const(0, value.dtype)),
}
FUNCTIONS = tuple(_FUNCTIONS)
"""The activations of gates."""

Point = tuple[Expr, Expr, Expr]
"""Direction, row of the batch and column of the state."""


@dataclass(frozen=True, slots=True)
class _Layer:
    """The tensors of a call while its expressions are written.

    `operands` are `x` (T, B, D, gates * H), `weight` (D, H, gates * H), the first states `h` and `c` (D, B, H), and if
    the call has them `lengths` (B), `peepholes` (D, 3 * H), the bias `inside` (D, H) of GRU's hidden gate, and
    `hidden_weight` (D, H, H), by which GRU multiplies the reset state. `h` and `c` are the states' placeholders.
    """

    call: OpCall
    operands: Mapping[str, Tensor]
    step: Var
    h: Tensor
    c: Tensor

    @property
    def shape(self) -> tuple[int, int, int]:
        directions, batch, hidden = self.operands["h"].shape
        return directions, batch, hidden

    @property
    def steps(self) -> int:
        return self.operands["x"].shape[0]

    def compute(self, name: str, body: Callable[[Expr, Expr, Expr], Expr], columns: int = 0, **attrs: object) -> Tensor:
        directions, batch, hidden = self.shape
        return te.compute((directions, batch, columns or hidden), body, f"{self.call.name}_{name}", attrs)

    def input_index(self, direction: Expr) -> Expr:
        """The number of the input that the step reads; the steps of a reverse direction begin at the last input."""
        return _by_direction(self.call, direction, self.step - 1, self.steps - self.step)

    def last(self, state: Tensor, point: Sequence[Expr]) -> Expr:
        return state[(self.step - 1, *point)]

    def product(self, name: str, weight: Tensor, factor: Callable[[Expr, Expr, Expr], Expr]) -> Tensor:
        """Elements of a state times a weight of each direction."""
        k = te.reduce_axis(self.shape[2], "k")
        return self.compute(
            name,
            lambda d, b, j: summed_product(weight.dtype, factor(d, b, k), weight[d, k, j], [k]),
            weight.shape[2],
            **self.call.layout_free(weight),
        )

    def gate(self, number: int, point: Point, product: Tensor | None, offset: Expr | None = None) -> Expr:
        """The input of a gate: that of the step, the product with the state, and an offset."""
        d, b, j = point
        column = j + number * self.shape[2]
        value: Expr = self.operands["x"][self.input_index(d), b, d, column]
        value = value if product is None else value + product[d, b, column]
        return value if offset is None else value + offset

    def apply(self, which: int, value: Expr, *, clips: bool = True) -> Expr:
        """Activation `which` of a value, clipped before."""
        bound = self.call.number("clip") if clips else 0.0
        if bound:
            low, high = (te.const(end, value.dtype) for end in (-bound, bound))
            value = te.maximum(te.minimum(value, high), low)
        return te.cast(self.h.dtype, _FUNCTIONS[self.call.text("functions").split()[which]](value))

    def next_state(self, state: Tensor, point: Point, value: Expr) -> Expr:
        """The new value of a state; beyond its length a sequence keeps the old value."""
        if "lengths" not in self.operands:
            return value
        inside = self.input_index(point[0]) < self.operands["lengths"][point[1]]
        return select(inside, value, self.last(state, point))


def _rnn(layer: _Layer) -> list[Tensor]:
    product = layer.product("product", layer.operands["weight"], lambda *point: layer.last(layer.h, point))
    return [layer.compute("h", lambda *p: layer.next_state(layer.h, p, layer.apply(0, layer.gate(0, p, product))))]


def _gru(layer: _Layer) -> list[Tensor]:
    operands = layer.operands
    product = layer.product("product", operands["weight"], lambda *point: layer.last(layer.h, point))

    def reset(point: Point) -> Expr:
        return layer.apply(0, layer.gate(1, point, product))

    if "hidden_weight" in operands:
        kept = layer.compute("reset", lambda *point: reset(point) * layer.last(layer.h, point))
        inner = layer.product("inner", operands["hidden_weight"], lambda *point: kept[point])

    def hidden_element(*point: Expr) -> Expr:
        d, b, j = point
        at = (d, b, j)
        if "hidden_weight" in operands:
            offset: Expr = inner[at]
        else:
            # cuDNN's and PyTorch's form, in which one product gives all three gates.
            offset = reset(at) * (product[d, b, j + 2 * layer.shape[2]] + operands["inside"][d, j])
        fresh = layer.apply(1, layer.gate(2, at, None, offset))
        update = layer.apply(0, layer.gate(0, at, product))
        share = te.const(1, layer.h.dtype) - update
        return layer.next_state(layer.h, at, share * fresh + update * layer.last(layer.h, at))

    return [layer.compute("h", hidden_element)]


def _lstm(layer: _Layer) -> list[Tensor]:
    product = layer.product("product", layer.operands["weight"], lambda *point: layer.last(layer.h, point))

    def gate(number: int, peephole: int, point: Point, memory: Expr) -> Expr:
        if "peepholes" not in layer.operands:
            return layer.gate(number, point, product)
        offset = layer.operands["peepholes"][point[0], point[2] + peephole * layer.shape[2]] * memory
        return layer.gate(number, point, product, offset)

    def cell(*point: Expr) -> Expr:
        at = (point[0], point[1], point[2])
        memory = layer.last(layer.c, at)
        entry, forget = (layer.apply(0, gate(number, peephole, at, memory)) for number, peephole in ((0, 0), (2, 2)))
        return layer.next_state(layer.c, at, forget * memory + entry * layer.apply(1, layer.gate(3, at, product)))

    c = layer.compute("c", cell)

    def hidden_element(*point: Expr) -> Expr:
        at = (point[0], point[1], point[2])
        # The output gate's peephole sees the new memory, the others the old memory.
        shown = layer.apply(0, gate(1, 1, at, c[at])) * layer.apply(2, c[at], clips=False)
        return layer.next_state(layer.h, at, shown)

    return [layer.compute("h", hidden_element), c]


def _by_direction(call: OpCall, direction: Expr, ahead: Expr, back: Expr) -> Expr:
    """`back` in reverse directions, `ahead` in the others."""
    reverse = call.ints("reverse")
    if len(set(reverse)) == 1:
        return back if reverse[0] else ahead
    return select(te.equal(direction, reverse.index(0)), ahead, back)


_CELLS = {"RNN": _rnn, "GRU": _gru, "LSTM": _lstm}


def _lower(call: OpCall) -> Lowered:
    """The states of a recurrent layer, (T + finals, directions, B, H), from the products of its inputs (T, B,
    directions, gates * H); the last rows are the final states.
    """
    names = ("x", *call.text("operands").split())
    call.require(len(names) == len(call.types) and call.text("cell") in GATES, "operands do not fit the cell")
    types = dict(zip(names, call.types, strict=True))
    steps, batch, directions, columns = types["x"].shape
    shape = directions, batch, columns // GATES[call.text("cell")]
    fits = types["h"].shape == shape and len(call.ints("reverse")) == directions
    call.require(fits and types["weight"].shape[:2] == (directions, shape[2]), "the states do not fit the inputs")
    count = steps + call.integer("finals")

    def build(*operands: Tensor) -> Tensor:
        step = Var(f"{call.name}.step")
        state_shape = (steps + 1, *shape)
        h, c = (te.placeholder(state_shape, types["x"].dtype, f"{call.name}_last_{name}") for name in "hc")
        layer = _Layer(call, dict(zip(names, operands, strict=True)), step, h, c)
        updates = _CELLS[call.text("cell")](layer)
        firsts = [layer.operands[name] for name in "hc"[: len(updates)]]
        inits = [with_axis(first, f"{call.name}_{name}_0") for first, name in zip(firsts, "hc", strict=False)]
        states = scan_steps(step, inits, updates, [h, c][: len(updates)], f"{call.name}_states")
        return te.compute((count, *shape), lambda t, *point: _result(layer, states, t, point), call.name)

    return Lowered((count, *shape), types["x"].dtype, build)


def with_axis(tensor: Tensor, name: str) -> Tensor:
    """The tensor as the only element along a new first axis."""
    return te.compute((1, *tensor.shape), lambda _, *point: tensor[point], name)


def _result(layer: _Layer, states: Sequence[Tensor], t: Expr, point: Sequence[Expr]) -> Expr:
    """Row `t`: the visible state of input `t`, 0 beyond its sequence; after all inputs the last states."""
    steps, (d, b, _) = layer.steps, point
    row = _by_direction(layer.call, d, t + 1, steps - t)
    shown: Expr = states[0][(row, *point)]
    zero = te.const(0, shown.dtype)
    lengths = layer.operands.get("lengths")
    if lengths is not None:
        shown = select(t < lengths[b], shown, zero)
    # As in ONNX Runtime the last state of a sequence without steps is 0, whatever its first state.
    ends: list[Expr] = [state[(steps, *point)] for state in states[: layer.call.integer("finals")]]
    ends = ends if lengths is None else [select(lengths[b] > 0, end, zero) for end in ends]
    value = shown
    for number, end in enumerate(ends):
        value = te.if_then_else(t < steps + number, value, end)
    return value


def _evaluate(call: OpCall, arrays: Sequence[Array]) -> Array:
    operands = [te.placeholder(array.shape, array.dtype.name, f"p{number}") for number, array in enumerate(arrays)]
    values = {operand: np.asarray(array) for operand, array in zip(operands, arrays, strict=True)}
    named = replace(call, name=call.name or call.op)
    return evaluate([_lower(named).build(*operands)], values)[0]


OPERATORS = (
    Op(
        "recurrent",
        None,
        FusionKind.OPAQUE,
        _lower,
        _evaluate,
        {"cell": str, "operands": str, "functions": str, "clip": float, "reverse": tuple, "finals": int},
    ),
)
