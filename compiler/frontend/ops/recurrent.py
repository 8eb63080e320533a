"""Converters of RNN, GRU and LSTM, whose steps run in one kernel, and of the LSTM with matrices of bytes.

All steps' input products are one matrix product. The LSTM of bytes is unrolled: the range of every state decides how it
is quantized, and its products are those of the quantized operators.
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

_DEFAULTS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
_IN_PROGRAMS = {"sigmoid": "sigmoid", "tanh": "tanh", "relu": "#0 maximum"}

State = tuple[str, ...]


def _functions(node: OnnxNode, direction: int) -> tuple[str, ...]:
    """The activations of a direction."""
    defaults = _DEFAULTS[node.op_type]
    names = node.texts("activations") or (*defaults, *defaults)
    chosen = names[direction * len(defaults) : (direction + 1) * len(defaults)]
    unknown = [name for name in chosen if name.lower() not in FUNCTIONS]
    if unknown:
        raise node.unsupported(f"activations {', '.join(unknown)}; known: {', '.join(FUNCTIONS)}")
    return tuple(name.lower() for name in chosen)


@dataclass(frozen=True, slots=True)
class _Layer:
    """A node with its operands: `data` (T, B, I), `starts` the first states (D, B, H), `lengths` (B) or ""."""

    builder: GraphBuilder
    node: OnnxNode
    data: str
    starts: tuple[str, ...]
    lengths: str
    reverse: tuple[bool, ...]

    @property
    def hidden(self) -> int:
        return self.builder.value(self.starts[0]).shape[2]

    def part(self, name: str, directions: Sequence[int], first: int = 0, last: int | None = None) -> str:
        """Some directions of an operand, and of them the gates `first` to `last` along the second axis."""
        chosen = take(self.builder, name, 0, directions)
        rows = range(self.builder.value(chosen).shape[1])
        return take(self.builder, chosen, 1, rows[first * self.hidden : last if last is None else last * self.hidden])

    def recurrent(self, directions: Sequence[int], finals: int) -> str:
        """The visible states of some directions after every step, and the last states: (T + finals, D, B, H)."""
        builder, node = self.builder, self.node
        resets_inside = node.op_type == "GRU" and bool(node.integer("linear_before_reset", 0))
        operands = {"x": self.products(directions, resets_inside)}
        gates = self.part(node.inputs[2], directions)
        if node.op_type == "GRU" and not resets_inside:
            operands["hidden_weight"] = self.columns(self.part(gates, range(len(directions)), 2))
            gates = self.part(gates, range(len(directions)), 0, 2)
        operands["weight"] = self.columns(gates)
        operands |= {name: take(builder, start, 0, directions) for name, start in zip("hc", self.starts, strict=False)}
        if resets_inside and node.has_input(3):
            operands["inside"] = self.part(node.inputs[3], directions, 5)
        elif resets_inside:
            operands["inside"] = builder.filled(0, builder.value(self.data).dtype, (len(directions), self.hidden))
        if node.has_input(7):
            operands["peepholes"] = take(builder, node.inputs[7], 0, directions)
        if self.lengths:
            operands["lengths"] = self.lengths
        attrs: dict[str, Attribute] = {
            "cell": node.op_type,
            "operands": " ".join(list(operands)[1:]),
            "functions": " ".join(_functions(node, directions[0])),
            "clip": node.number("clip", 0.0),
            "reverse": tuple(int(self.reverse[direction]) for direction in directions),
            "finals": finals,
        }
        return builder.emit("recurrent", list(operands.values()), attrs, name=node.name)

    def columns(self, weight: str) -> str:
        """Rows of gates as columns."""
        return self.builder.emit("transpose", [weight], {"perm": (0, 2, 1)})

    def products(self, directions: Sequence[int], resets_inside: bool) -> str:
        """The products of all inputs with their weights, plus the biases: (T, B, D, gates * H)."""
        builder, node, count = self.builder, self.node, len(directions)
        write, _ = formula_of(builder, node)
        steps, batch, inputs = builder.value(self.data).shape
        size = GATES[node.op_type] * self.hidden
        weight = write("reshape", self.part(node.inputs[1], directions), shape=(count * size, inputs))
        flat = write("reshape", self.data, shape=(steps * batch, inputs))
        product = builder.emit("dense", [flat, builder.emit("transpose", [weight], {"perm": (1, 0)})], name=node.name)
        if node.has_input(3):
            first, second = (
                self.part(node.inputs[3], directions, part * GATES[node.op_type], (part + 1) * GATES[node.op_type])
                for part in (0, 1)
            )
            if resets_inside:
                # The reset gate scales the second bias of the hidden gate, too.
                kept = self.part(node.inputs[3], directions, 3, 5)
                zeros = builder.filled(0, builder.value(kept).dtype, (count, self.hidden))
                second = builder.emit("concat", [kept, zeros], {"axis": 1})
            bias = write("reshape", builder.emit("add", [first, second]), shape=(1, count * size))
            product = builder.emit("add", [product, bias])
        return write("reshape", product, shape=(steps, batch, count, size))


def _recurrent(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    write, x = formula_of(builder, node)
    batch_first = bool(node.integer("layout", 0))
    data = write("transpose", x, perm=(1, 0, 2)) if batch_first else x
    length, batch, _ = builder.value(data).shape
    directions, *sizes = node.operand(builder, 2).shape
    hidden = min(sizes)  # of hidden and gates times hidden, in either order
    reverse = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[
        node.text("direction", "forward")
    ]
    # As in ONNX Runtime the last state of a sequence without steps is 0, whatever its first state.
    if length == 0:
        every = (batch, 0, directions, hidden) if batch_first else (0, directions, batch, hidden)
        final = (batch, directions, hidden) if batch_first else (directions, batch, hidden)
        return [builder.filled(0, builder.value(x).dtype, shape) for shape in (every, final, final)]
    lengths = write("cast", node.inputs[4], dtype="int64") if node.has_input(4) else ""
    zeros = builder.filled(0, builder.value(x).dtype, (directions, batch, hidden))
    starts = [node.inputs[i] if node.has_input(i) else zeros for i in ((5, 6) if node.op_type == "LSTM" else (5,))]
    if batch_first:
        starts = [s if s == zeros else write("transpose", s, perm=(1, 0, 2)) for s in starts]
    layer = _Layer(builder, node, data, tuple(starts), lengths, reverse)
    is_of_bytes = builder.value(node.operand(builder, 2).name).dtype in ("int8", "uint8")
    results = _unroll(layer) if is_of_bytes else _scanned(layer)
    if batch_first:
        results[0] = write("transpose", results[0], perm=(2, 0, 1, 3))
        results[1:] = [write("transpose", result, perm=(1, 0, 2)) for result in results[1:]]
    return results


def _scanned(layer: _Layer) -> list[str]:
    """The states after every step (T, D, B, H), and the last states (D, B, H) up to the last that is an output."""
    builder, node = layer.builder, layer.node
    steps, count = builder.value(layer.data).shape[0], len(layer.reverse)
    finals = max((number for number, name in enumerate(node.outputs) if name), default=0)
    # Both directions run in one kernel unless they differ in more than the order.
    is_joint = len({_functions(node, direction) for direction in range(count)}) == 1
    groups = [list(range(count))] if is_joint else [[direction] for direction in range(count)]
    rows = _stack(builder, [layer.recurrent(group, finals) for group in groups], 1)
    shape = builder.value(rows).shape
    last = [cut(builder, rows, 0, steps + number, steps + number + 1) for number in range(finals)]
    return [
        cut(builder, rows, 0, 0, steps) if finals else rows,
        *(builder.emit("reshape", [row], {"shape": shape[1:]}) for row in last),
    ]


@dataclass(frozen=True, slots=True)
class _Cell:
    """One direction of an LSTM of bytes: `x` are the steps' inputs times their weights, each (B, gates * H)."""

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
    return builder.emit("reshape", [take(builder, name, 0, [index])], {"shape": shape[1:]})


def _sum(cell: _Cell, gate: int) -> str:
    """The program of a gate's input, product of the state and two biases, operands 0 to 2."""
    return f"0.{gate} 1.{gate} 2.{gate} 2.{gate + GATES[cell.node.op_type]} add add add"


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


def _cell(builder: GraphBuilder, node: OnnxNode, data: str, number: int) -> _Cell:
    """Direction `number`, for `data` of shape (T, B, I)."""
    write, _ = formula_of(builder, node)
    steps, batch, inputs = builder.value(data).shape
    gates = GATES[node.op_type]
    weight, recurrence = (_matrix(builder, node, index, number) for index in (1, 2))
    hidden = builder.value(recurrence.name).shape[0]
    size = gates * hidden
    bias = take(builder, node.inputs[3], 0, [number]) if node.has_input(3) else ""
    bias = bias or builder.constant(np.zeros((1, 2 * size), builder.value(data).dtype), "no_bias")
    peepholes: tuple[str, ...] = ()
    if node.has_input(7):
        peepholes = (take(builder, node.inputs[7], 0, [number]),)
    flat = write("reshape", data, shape=(steps * batch, inputs))
    # Inputs of all steps are known beforehand: one large product instead of a product per step.
    product = weight.after(builder, node, flat)
    x = tuple(cut(builder, product, 0, step * batch, (step + 1) * batch) for step in range(steps))
    return _Cell(
        builder,
        node,
        write,
        hidden,
        x,
        recurrence,
        bias,
        peepholes,
        tuple(_IN_PROGRAMS[name] for name in _functions(node, number)),
    )


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
        fresh = _lstm_step(cell, step, state)
        visible = fresh[0]
        if lengths:
            here = cell.builder.emit("less", [cell.builder.scalar(step, "int64"), lengths])
            fresh = tuple(write("where", here, new, old) for new, old in zip(fresh, state, strict=True))
            visible = write("where", here, visible, 0)
        state, shown[step] = fresh, visible
    return shown, state


def _unroll(layer: _Layer) -> list[str]:
    """As `_scanned`, a kernel or more for each step."""
    builder, node, reverse = layer.builder, layer.node, layer.reverse
    write, _ = formula_of(builder, node)
    steps, batch, _ = builder.value(layer.data).shape
    node.check_iterations(steps)
    lengths = builder.emit("reshape", [layer.lengths], {"shape": (batch, 1)}) if layer.lengths else ""
    shown, last = [], []
    for number, backward in enumerate(reverse):
        state = tuple(_split(builder, start, number) for start in layer.starts)
        rows, ends = _run(_cell(builder, node, layer.data, number), state, lengths, backward)
        shown.append(write("reshape", _stack(builder, rows, 0), shape=(steps, 1, batch, layer.hidden)))
        if lengths:
            has_steps = builder.emit("less", [builder.scalar(0, "int64"), lengths])
            ends = tuple(write("where", has_steps, part, 0) for part in ends)
        last.append([write("reshape", part, shape=(1, batch, layer.hidden)) for part in ends])
    results = [_stack(builder, shown, 1)]
    return results + [_stack(builder, [parts[i] for parts in last], 0) for i in range(len(layer.starts))]


def _stack(builder: GraphBuilder, names: Sequence[str], axis: int) -> str:
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


CONVERTERS: Mapping[str, Converter] = dict.fromkeys(GATES, _recurrent)
