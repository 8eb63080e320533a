"""Converters of RNN, GRU and LSTM: the steps one after another, so their number is static.

All steps' input products are one matrix product; the state's product is one per step.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from retune.compiler.frontend.ops.attributes import OnnxNode
from retune.compiler.frontend.ops.elementwise import Converter, Formula, formula_of
from retune.compiler.frontend.ops.indexing import cut, taken
from retune.compiler.frontend.ops.quantized import Matrix
from retune.compiler.graph.builder import GraphBuilder

_FUNCTIONS = {"sigmoid": "sigmoid", "tanh": "tanh", "relu": "#0 maximum"}
_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_DEFAULTS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}

State = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Cell:
    """One direction of a node: `x` are the steps' inputs times their weights, each (B, gates * H)."""

    builder: GraphBuilder
    node: OnnxNode
    write: Formula
    hidden: int
    x: tuple[str, ...]
    recurrence: Matrix
    bias: str
    peepholes: tuple[str, ...]
    functions: tuple[str, ...]

    def apply(self, which: int, program: str) -> str:
        """The program that applies the node's function `which` to a value, clipped if the node says so."""
        bound = self.node.number("clip", 0.0)
        clip = f"#{bound!r} minimum #{-bound!r} maximum " if bound else ""
        return f"{program} {clip}{self.functions[which]}"

    def of_state(self, state: str) -> str:
        """The product of a state with the recurrence."""
        return self.recurrence.after(self.builder, self.node, state)

    def run(self, program: str, *operands: str) -> str:
        """The value of a program, see `retune.compiler.ops.recurrent`."""
        return self.write("cell", *operands, program=program, hidden=self.hidden)


def _split(builder: GraphBuilder, name: str, index: int) -> str:
    """Element `index` of the first axis, without that axis."""
    shape = builder.value(name).shape
    return builder.emit("reshape", [taken(builder, name, 0, [index])], {"shape": shape[1:]})


def _sum(cell: _Cell, gate: int) -> str:
    """The program of a gate's input, product of the state and two biases, operands 0 to 2."""
    return f"0.{gate} 1.{gate} 2.{gate} 2.{gate + _GATES[cell.node.op_type]} add add add"


def _rnn_step(cell: _Cell, step: int, state: State) -> State:
    side = cell.of_state(state[0])
    return (cell.run(cell.apply(0, _sum(cell, 0)), cell.x[step], side, cell.bias),)


def _gru_step(cell: _Cell, step: int, state: State) -> State:
    (h,), x, bias = state, cell.x[step], cell.bias
    operands: State = (x,)
    # ONNX's order of gates is update, reset, hidden.
    update, reset = cell.apply(0, _sum(cell, 0)), cell.apply(0, _sum(cell, 1))
    if cell.node.integer("linear_before_reset", 0):
        # cuDNN's and PyTorch's form, in which one product gives all three gates; the original form needs the reset
        # state first.
        operands += (cell.of_state(h), bias, h)
        inner = f"{reset} 1.2 2.5 add multiply"
    else:
        split = 2 * cell.hidden
        gates, last = (
            taken(cell.builder, cell.recurrence.name, 1, part) for part in (range(split), range(split, 3 * cell.hidden))
        )
        side = cell.write("dense", h, gates)
        kept = cell.run(f"{reset} 3.0 multiply", x, side, bias, h)
        operands += (side, bias, h, cell.write("dense", kept, last))
        inner = "4.0 2.5 add"
    fresh = cell.apply(1, f"0.2 2.2 add {inner} add")
    return (cell.run(f"#1 {update} subtract {fresh} multiply {update} 3.0 multiply add", *operands),)


def _lstm_step(cell: _Cell, step: int, state: State) -> State:
    h, c = state
    operands = (cell.x[step], cell.of_state(h), cell.bias)

    def seen(gate: int, peephole: int) -> str:
        return f"{_sum(cell, gate)} 4.{peephole} 3.0 multiply add" if cell.peepholes else _sum(cell, gate)

    # ONNX's order of gates is input, output, forget, cell; of peepholes input, output, forget.
    entry, forget, fresh = cell.apply(0, seen(0, 0)), cell.apply(0, seen(2, 2)), cell.apply(1, _sum(cell, 3))
    memory = cell.run(f"{forget} 3.0 multiply {entry} {fresh} multiply add", *operands, c, *cell.peepholes)
    # The output gate's peephole sees the new memory, the others the old one.
    output = f"{cell.apply(0, seen(1, 1))} 3.0 {cell.functions[2]} multiply"
    return cell.run(output, *operands, memory, *cell.peepholes), memory


_STEPS: Mapping[str, Callable[[_Cell, int, State], State]] = {"RNN": _rnn_step, "GRU": _gru_step, "LSTM": _lstm_step}


def _functions(node: OnnxNode, direction: int) -> tuple[str, ...]:
    defaults = _DEFAULTS[node.op_type]
    names = node.texts("activations") or (*defaults, *defaults)
    chosen = names[direction * len(defaults) : (direction + 1) * len(defaults)]
    unknown = [name for name in chosen if name.lower() not in _FUNCTIONS]
    if unknown:
        raise node.unsupported(f"activations {', '.join(unknown)}; known: {', '.join(_FUNCTIONS)}")
    return tuple(_FUNCTIONS[name.lower()] for name in chosen)


def _cell(builder: GraphBuilder, node: OnnxNode, data: str, number: int) -> _Cell:
    """Direction `number`, for `data` of shape (T, B, I)."""
    write, _ = formula_of(builder, node)
    steps, batch, inputs = builder.value(data).shape
    gates = _GATES[node.op_type]
    weight, recurrence = (_matrix(builder, node, index, number) for index in (1, 2))
    hidden = builder.value(recurrence.name).shape[0]
    size = gates * hidden
    bias = taken(builder, node.inputs[3], 0, [number]) if node.has_input(3) else ""
    bias = bias or builder.constant(np.zeros((1, 2 * size), builder.value(data).dtype), "no_bias")
    peepholes: tuple[str, ...] = ()
    if node.has_input(7):
        peepholes = (taken(builder, node.inputs[7], 0, [number]),)
    flat = write("reshape", data, shape=(steps * batch, inputs))
    # Inputs of all steps are known beforehand: one large product instead of a product per step.
    product = weight.after(builder, node, flat)
    x = tuple(cut(builder, product, 0, step * batch, (step + 1) * batch) for step in range(steps))
    return _Cell(builder, node, write, hidden, x, recurrence, bias, peepholes, _functions(node, number))


def _matrix(builder: GraphBuilder, node: OnnxNode, index: int, number: int) -> Matrix:
    """Operand `index` of direction `number` as the second factor of a product: rows of inputs, columns of gates."""
    name = _split(builder, node.operand(builder, index).name, number)
    if builder.value(name).dtype not in ("int8", "uint8"):
        return Matrix(builder.emit("transpose", [name], {"perm": (1, 0)}))
    # Those of DynamicQuantizeLSTM: transposed already, with scale and zero point among the last four operands.
    scale, zero = (_split(builder, node.operand(builder, 6 + 2 * index + part).name, number) for part in (0, 1))
    return Matrix(name, scale, zero)


def _run(cell: _Cell, start: State, lengths: str, backwards: bool) -> tuple[list[str], State]:
    """The visible state after every step, and the last state; beyond its length a sequence keeps its state."""
    write, state, count = cell.write, start, len(cell.x)
    shown = [""] * count
    # Backwards, a shorter sequence begins at its own end: steps beyond keep the start.
    for step in reversed(range(count)) if backwards else range(count):
        fresh = _STEPS[cell.node.op_type](cell, step, state)
        visible = fresh[0]
        if lengths:
            here = cell.builder.emit("less", [cell.builder.scalar(step, "int64"), lengths])
            fresh = tuple(write("where", here, new, old) for new, old in zip(fresh, state, strict=True))
            visible = write("where", here, visible, 0)
        state, shown[step] = fresh, visible
    return shown, state


def _recurrent(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    batch_first = bool(node.integer("layout", 0))
    data = write("transpose", x, perm=(1, 0, 2)) if batch_first else x
    length, batch, _ = builder.value(data).shape
    node.check_iterations(length)
    directions, *sizes = node.operand(builder, 2).shape
    hidden = min(sizes)  # of hidden and gates times hidden, in either order
    backwards = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[
        node.text("direction", "forward")
    ]
    # As in ONNX Runtime the last state of a sequence without steps is 0, whatever its first one.
    if length == 0:
        every = (batch, 0, directions, hidden) if batch_first else (0, directions, batch, hidden)
        final = (batch, directions, hidden) if batch_first else (directions, batch, hidden)
        return [builder.filled(0, builder.value(x).dtype, shape) for shape in (every, final, final)]
    lengths = ""
    if node.has_input(4):
        wide = write("cast", node.inputs[4], dtype="int64")
        lengths = builder.emit("reshape", [wide], {"shape": (batch, 1)})
    zeros = builder.filled(0, builder.value(x).dtype, (directions, batch, hidden))
    starts = [node.inputs[i] if node.has_input(i) else zeros for i in ((5, 6) if node.op_type == "LSTM" else (5,))]
    if batch_first:
        starts = [s if s == zeros else write("transpose", s, perm=(1, 0, 2)) for s in starts]
    shown, last = [], []
    for number, backward in enumerate(backwards):
        state = tuple(_split(builder, start, number) for start in starts)
        steps, ends = _run(_cell(builder, node, data, number), state, lengths, backward)
        shown.append(write("reshape", _stacked(builder, steps, 0), shape=(length, 1, batch, hidden)))
        if lengths:
            has_steps = builder.emit("less", [builder.scalar(0, "int64"), lengths])
            ends = tuple(write("where", has_steps, part, 0) for part in ends)
        last.append([write("reshape", part, shape=(1, batch, hidden)) for part in ends])
    results = [_stacked(builder, shown, 1)]
    results += [_stacked(builder, [parts[i] for parts in last], 0) for i in range(len(starts))]
    if batch_first:
        results[0] = write("transpose", results[0], perm=(2, 0, 1, 3))
        results[1:] = [write("transpose", result, perm=(1, 0, 2)) for result in results[1:]]
    return results


def _stacked(builder: GraphBuilder, names: Sequence[str], axis: int) -> str:
    return names[0] if len(names) == 1 else builder.emit("concat", names, {"axis": axis})


def dynamic_quantize_lstm(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    """LSTM with matrices of bytes: the inputs of all steps, and every state, are quantized by their own range."""
    if node.integer("input_forget", 0):
        raise node.unsupported("attribute input_forget is 1; only 0 is supported")
    if node.has_input(4):
        # Steps beyond all sequences must not widen the range; 0 is always in it.
        data = node.operand(builder, 0)
        longest = builder.emit("reduce_max", [node.inputs[4]], {"axes": (0,), "keepdims": False})
        steps = builder.arange(data.shape[0], (data.shape[0], 1, 1))
        used = builder.emit("less", [steps, builder.emit("cast", [longest], {"dtype": "int64"})])
        kept = builder.emit("where", [used, data.name, builder.scalar(0, data.dtype)])
        node = replace(node, inputs=(kept, *node.inputs[1:]))
    return _recurrent(builder, replace(node, op_type="LSTM"))


CONVERTERS: Mapping[str, Converter] = dict.fromkeys(_GATES, _recurrent)
