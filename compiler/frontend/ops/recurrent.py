"""Converters of ONNX's RNN, GRU and LSTM, and of ONNX Runtime's DynamicQuantizeLSTM.

The inputs of all steps are multiplied with their weights at once. Then all steps of RNN, GRU and LSTM are one operator
and kernel, `recurrent` (`retune.compiler.ops.recurrence`). The LSTM of bytes is unrolled, since the range of a state
decides how that state is quantized: a step is a product and two `cell` operators (`retune.compiler.ops.recurrent`).

Shapes: T steps, B sequences, I inputs, D directions, H columns of a state; the gates of a cell lie side by side.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from retune.compiler.frontend.ops.attributes import OnnxNode
from retune.compiler.frontend.ops.elementwise import Converter, Formula, formula_of
from retune.compiler.frontend.ops.indexing import cut, take
from retune.compiler.frontend.ops.quantized import Matrix
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.ops import Attribute
from retune.compiler.ops.recurrence import FUNCTIONS, GATES

_DEFAULT_ACTIVATIONS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
_CELL_PROGRAMS = {"sigmoid": "sigmoid", "tanh": "tanh", "relu": "#0 maximum"}
"""Activations in the postfix language of `cell`."""

State = tuple[str, ...]
"""Of an LSTM: its visible state and its memory (B, H)."""


def _read_activations(node: OnnxNode, direction: int) -> tuple[str, ...]:
    """The activations of a direction in lower case. Raises: UnsupportedOperatorError for unknown names."""
    defaults = _DEFAULT_ACTIVATIONS[node.op_type]
    activations = node.texts("activations") or (*defaults, *defaults)
    own = activations[direction * len(defaults) : (direction + 1) * len(defaults)]
    unknown = [activation for activation in own if activation.lower() not in FUNCTIONS]
    if unknown:
        raise node.unsupported(f"activations {', '.join(unknown)}; known: {', '.join(FUNCTIONS)}")
    return tuple(activation.lower() for activation in own)


@dataclass(frozen=True, slots=True)
class _Layer:
    """A node and its operands: `data` (T, B, I), `starts` the first states (D, B, H), `lengths` (B) or "".

    `reverse` says of each direction whether it runs from the last input to the first.
    """

    builder: GraphBuilder
    node: OnnxNode
    data: str
    starts: tuple[str, ...]
    lengths: str
    reverse: tuple[bool, ...]

    @property
    def hidden(self) -> int:
        return self.builder.value(self.starts[0]).shape[2]

    def take_gates(self, name: str, directions: Sequence[int], first: int = 0, last: int | None = None) -> str:
        """Take some directions of an operand, and of these the gates `first` to `last` - 1 along the second axis."""
        chosen = take(self.builder, name, 0, directions)
        rows = range(self.builder.value(chosen).shape[1])
        return take(self.builder, chosen, 1, rows[first * self.hidden : last if last is None else last * self.hidden])

    def emit_scan(self, directions: Sequence[int], finals: int) -> str:
        """Emit `recurrent` for some directions: (T + finals, D, B, H), the visible states after every step, then the
        last visible state if `finals` is at least 1, and the last memory if it is 2.
        """
        builder, node = self.builder, self.node
        resets_inside = node.op_type == "GRU" and bool(node.integer("linear_before_reset", 0))
        operands = {"x": self.multiply_inputs(directions, resets_inside)}
        gates = self.take_gates(node.inputs[2], directions)
        if node.op_type == "GRU" and not resets_inside:
            operands["hidden_weight"] = self.transpose_gates(self.take_gates(gates, range(len(directions)), 2))
            gates = self.take_gates(gates, range(len(directions)), 0, 2)
        operands["weight"] = self.transpose_gates(gates)
        operands |= {name: take(builder, start, 0, directions) for name, start in zip("hc", self.starts, strict=False)}
        if resets_inside and node.has_input(3):
            operands["inside"] = self.take_gates(node.inputs[3], directions, 5)
        elif resets_inside:
            operands["inside"] = builder.filled(0, builder.value(self.data).dtype, (len(directions), self.hidden))
        if node.has_input(7):
            operands["peepholes"] = take(builder, node.inputs[7], 0, directions)
        if self.lengths:
            operands["lengths"] = self.lengths
        attrs: dict[str, Attribute] = {
            "cell": node.op_type,
            "operands": " ".join(list(operands)[1:]),
            "functions": " ".join(_read_activations(node, directions[0])),
            "clip": node.number("clip", 0.0),
            "reverse": tuple(int(self.reverse[direction]) for direction in directions),
            "finals": finals,
        }
        return builder.emit("recurrent", list(operands.values()), attrs, name=node.name)

    def transpose_gates(self, weight: str) -> str:
        """Transpose a weight (D, gates * H, H) to columns of gates."""
        return self.builder.emit("transpose", [weight], {"perm": (0, 2, 1)})

    def multiply_inputs(self, directions: Sequence[int], resets_inside: bool) -> str:
        """Emit the products of all inputs with their weights, plus the biases: (T, B, D, gates * H)."""
        builder, node, count = self.builder, self.node, len(directions)
        write, _ = formula_of(builder, node)
        steps, batch, inputs = builder.value(self.data).shape
        gates = GATES[node.op_type]
        size = gates * self.hidden
        weight = write("reshape", self.take_gates(node.inputs[1], directions), shape=(count * size, inputs))
        flat = write("reshape", self.data, shape=(steps * batch, inputs))
        product = builder.emit("dense", [flat, builder.emit("transpose", [weight], {"perm": (1, 0)})], name=node.name)
        if node.has_input(3):
            first, second = (self.take_gates(node.inputs[3], directions, gate, gate + gates) for gate in (0, gates))
            if resets_inside:
                # The reset gate scales the second bias of the hidden gate, too.
                kept = self.take_gates(node.inputs[3], directions, 3, 5)
                zeros = builder.filled(0, builder.value(kept).dtype, (count, self.hidden))
                second = builder.emit("concat", [kept, zeros], {"axis": 1})
            bias = write("reshape", builder.emit("add", [first, second]), shape=(1, count * size))
            product = builder.emit("add", [product, bias])
        return write("reshape", product, shape=(steps, batch, count, size))


def _convert_recurrent(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    """Convert a node, with weights of floats or bytes."""
    write, x = formula_of(builder, node)
    batch_first = bool(node.integer("layout", 0))
    data = write("transpose", x, perm=(1, 0, 2)) if batch_first else x
    length, batch, _ = builder.value(data).shape
    directions, *sizes = node.operand(builder, 2).shape
    hidden = min(sizes)  # of hidden and gates times hidden, in either order
    reverses = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
    reverse = reverses[node.text("direction", "forward")]
    # As in ONNX Runtime the last state of a sequence without steps is 0, whatever its first state.
    if length == 0:
        states_shape = (batch, 0, directions, hidden) if batch_first else (0, directions, batch, hidden)
        last_shape = (batch, directions, hidden) if batch_first else (directions, batch, hidden)
        return [builder.filled(0, builder.value(x).dtype, shape) for shape in (states_shape, last_shape, last_shape)]
    lengths = write("cast", node.inputs[4], dtype="int64") if node.has_input(4) else ""
    zeros = builder.filled(0, builder.value(x).dtype, (directions, batch, hidden))
    starts = [node.inputs[i] if node.has_input(i) else zeros for i in ((5, 6) if node.op_type == "LSTM" else (5,))]
    if batch_first:
        starts = [start if start == zeros else write("transpose", start, perm=(1, 0, 2)) for start in starts]
    layer = _Layer(builder, node, data, tuple(starts), lengths, reverse)
    is_of_bytes = builder.value(node.operand(builder, 2).name).dtype in ("int8", "uint8")
    results = _unroll(layer) if is_of_bytes else _scan(layer)
    if batch_first:
        results[0] = write("transpose", results[0], perm=(2, 0, 1, 3))
        results[1:] = [write("transpose", result, perm=(1, 0, 2)) for result in results[1:]]
    return results


def _scan(layer: _Layer) -> list[str]:
    """All steps in a kernel. Returns the states after every step (T, D, B, H), and the last states (D, B, H) up to
    the last that is an output of the node.
    """
    builder, node = layer.builder, layer.node
    steps, count = builder.value(layer.data).shape[0], len(layer.reverse)
    finals = max((number for number, name in enumerate(node.outputs) if name), default=0)
    # Both directions run in one kernel unless they differ in more than the order.
    is_joint = len({_read_activations(node, direction) for direction in range(count)}) == 1
    groups = [list(range(count))] if is_joint else [[direction] for direction in range(count)]
    states = _stack(builder, [layer.emit_scan(group, finals) for group in groups], 1)
    shape = builder.value(states).shape
    last = [cut(builder, states, 0, steps + number, steps + number + 1) for number in range(finals)]
    return [
        cut(builder, states, 0, 0, steps) if finals else states,
        *(builder.emit("reshape", [row], {"shape": shape[1:]}) for row in last),
    ]


@dataclass(frozen=True, slots=True)
class _Cell:
    """One direction of an LSTM of bytes: `x` are the steps' inputs times their weights, each (B, gates * H).

    A program is text in the postfix language of `cell`: `2.1` is gate 1 of operand 2.
    """

    builder: GraphBuilder
    node: OnnxNode
    write: Formula
    hidden: int
    x: tuple[str, ...]
    recurrence: Matrix
    bias: str
    peepholes: tuple[str, ...]
    functions: tuple[str, ...]

    def activate(self, number: int, program: str) -> str:
        """Append an activation of the node to a program, after its clip, if any."""
        bound = self.node.number("clip", 0.0)
        clip = f"#{bound!r} minimum #{-bound!r} maximum " if bound else ""
        return f"{program} {clip}{self.functions[number]}"

    def multiply_state(self, state: str) -> str:
        """Emit the product of a state (B, H) with the recurrence: (B, gates * H)."""
        return self.recurrence.after(self.builder, self.node, state)

    def emit(self, program: str, *operands: str) -> str:
        """Emit `cell`, which computes a program (B, H)."""
        return self.write("cell", *operands, program=program, hidden=self.hidden)


def _take_element(builder: GraphBuilder, name: str, index: int) -> str:
    """Take element `index` of the first axis, without that axis."""
    shape = builder.value(name).shape
    return builder.emit("reshape", [take(builder, name, 0, [index])], {"shape": shape[1:]})


def _write_gate_sum(cell: _Cell, gate: int) -> str:
    """Write the program that adds a gate's input product (operand 0), state product (1) and two biases (2)."""
    return f"0.{gate} 1.{gate} 2.{gate} 2.{gate + GATES[cell.node.op_type]} add add add"


def _emit_lstm_step(cell: _Cell, step: int, state: State) -> State:
    """Emit a step. Operands of its programs: 0 to 2 as in `_write_gate_sum`, 3 the memory, 4 the peepholes."""
    h, c = state
    operands = (cell.x[step], cell.multiply_state(h), cell.bias)

    def sum_with_peephole(gate: int, peephole: int) -> str:
        program = _write_gate_sum(cell, gate)
        return f"{program} 4.{peephole} 3.0 multiply add" if cell.peepholes else program

    # ONNX's order of gates is input, output, forget, cell; of peepholes input, output, forget.
    input_gate, forget_gate = (cell.activate(0, sum_with_peephole(gate, gate)) for gate in (0, 2))
    candidate = cell.activate(1, _write_gate_sum(cell, 3))
    program = f"{forget_gate} 3.0 multiply {input_gate} {candidate} multiply add"
    memory = cell.emit(program, *operands, c, *cell.peepholes)
    # The output gate's peephole sees the new memory, the others the old one.
    visible = f"{cell.activate(0, sum_with_peephole(1, 1))} 3.0 {cell.functions[2]} multiply"
    return cell.emit(visible, *operands, memory, *cell.peepholes), memory


def _make_cell(builder: GraphBuilder, node: OnnxNode, data: str, direction: int) -> _Cell:
    """Prepare a direction for `data` of shape (T, B, I)."""
    write, _ = formula_of(builder, node)
    steps, batch, inputs = builder.value(data).shape
    gates = GATES[node.op_type]
    weight, recurrence = (_read_matrix(builder, node, index, direction) for index in (1, 2))
    hidden = builder.value(recurrence.name).shape[0]
    size = gates * hidden
    bias = take(builder, node.inputs[3], 0, [direction]) if node.has_input(3) else ""
    bias = bias or builder.constant(np.zeros((1, 2 * size), builder.value(data).dtype), "no_bias")
    peepholes = (take(builder, node.inputs[7], 0, [direction]),) if node.has_input(7) else ()
    flat = write("reshape", data, shape=(steps * batch, inputs))
    # Inputs of all steps are known beforehand: one large product instead of a product per step.
    product = weight.after(builder, node, flat)
    x = tuple(cut(builder, product, 0, step * batch, (step + 1) * batch) for step in range(steps))
    functions = tuple(_CELL_PROGRAMS[name] for name in _read_activations(node, direction))
    return _Cell(builder, node, write, hidden, x, recurrence, bias, peepholes, functions)


def _read_matrix(builder: GraphBuilder, node: OnnxNode, index: int, direction: int) -> Matrix:
    """Operand `index` of a direction as the second factor of a product: rows of inputs, columns of gates."""
    name = _take_element(builder, node.operand(builder, index).name, direction)
    if builder.value(name).dtype not in ("int8", "uint8"):
        return Matrix(builder.emit("transpose", [name], {"perm": (1, 0)}))
    # Those of DynamicQuantizeLSTM: transposed already, with scale and zero point among the last four operands.
    scale, zero = (_take_element(builder, node.operand(builder, 2 * index + i).name, direction) for i in (6, 7))
    return Matrix(name, scale, zero)


def _run_steps(cell: _Cell, start: State, lengths: str, backwards: bool) -> tuple[list[str], State]:
    """Emit all steps. Returns the visible state after every step, and the last state; beyond its length a sequence
    keeps its state, and 0 is visible.
    """
    write, state, count = cell.write, start, len(cell.x)
    visible_states = [""] * count
    # Backwards, a shorter sequence begins at its own end: steps beyond keep the start.
    for step in reversed(range(count)) if backwards else range(count):
        new_state = _emit_lstm_step(cell, step, state)
        visible = new_state[0]
        if lengths:
            has_step = cell.builder.emit("less", [cell.builder.scalar(step, "int64"), lengths])
            new_state = tuple(write("where", has_step, new, old) for new, old in zip(new_state, state, strict=True))
            visible = write("where", has_step, visible, 0)
        state, visible_states[step] = new_state, visible
    return visible_states, state


def _unroll(layer: _Layer) -> list[str]:
    """As `_scan`, a kernel or more for each step."""
    builder, node, reverse = layer.builder, layer.node, layer.reverse
    write, _ = formula_of(builder, node)
    steps, batch, _ = builder.value(layer.data).shape
    node.check_iterations(steps)
    lengths = builder.emit("reshape", [layer.lengths], {"shape": (batch, 1)}) if layer.lengths else ""
    states, last = [], []
    for direction, backward in enumerate(reverse):
        state = tuple(_take_element(builder, start, direction) for start in layer.starts)
        rows, ends = _run_steps(_make_cell(builder, node, layer.data, direction), state, lengths, backward)
        states.append(write("reshape", _stack(builder, rows, 0), shape=(steps, 1, batch, layer.hidden)))
        if lengths:
            has_steps = builder.emit("less", [builder.scalar(0, "int64"), lengths])
            ends = tuple(write("where", has_steps, value, 0) for value in ends)
        last.append([write("reshape", value, shape=(1, batch, layer.hidden)) for value in ends])
    results = [_stack(builder, states, 1)]
    return results + [_stack(builder, [finals[i] for finals in last], 0) for i in range(len(layer.starts))]


def _stack(builder: GraphBuilder, names: Sequence[str], axis: int) -> str:
    """Concatenate values along an axis that they have already."""
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
    return _convert_recurrent(builder, replace(node, op_type="LSTM"))


CONVERTERS: Mapping[str, Converter] = dict.fromkeys(GATES, _convert_recurrent)
