"""Converter of ONNX Runtime's DynamicQuantizeLSTM: an LSTM with matrices of bytes.

The inputs of all steps, and every state, are quantized by their own range, which decides the numbers of the product. So
the step is a graph with a quantization and a product of bytes, whose steps are the operator `scan`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from retune.compiler.frontend.ops.attributes import OnnxNode
from retune.compiler.frontend.ops.elementwise import Formula, formula_of
from retune.compiler.frontend.ops.indexing import cut, take
from retune.compiler.frontend.ops.loops.recurrent_layer import Layer, convert_layer, stack
from retune.compiler.frontend.ops.loops.step_graph import Rows, StepBuilder
from retune.compiler.frontend.ops.quantized import Matrix
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.ops.recurrence import GATES

_GATES = GATES["LSTM"]


@dataclass(frozen=True, slots=True)
class _Direction:
    """The operands of a direction: inputs of its gates from outside (T, B, 4 * H), matrix of states."""

    products: str
    recurrence: Matrix
    peepholes: str
    functions: tuple[str, ...]
    is_reversed: bool


def _take_element(builder: GraphBuilder, name: str, index: int) -> str:
    """Take element `index` of the first axis, without that axis."""
    shape = builder.value(name).shape
    return builder.emit("reshape", [take(builder, name, 0, [index])], {"shape": shape[1:]})


def _read_direction(layer: Layer, direction: int) -> _Direction:
    builder, node = layer.builder, layer.node
    write, _ = formula_of(builder, node)
    steps, batch, inputs = builder.value(layer.data).shape
    weight, recurrence = (_read_matrix(builder, node, index, direction) for index in (1, 2))
    size = _GATES * layer.hidden
    bias = _take_element(builder, node.inputs[3], direction) if node.has_input(3) else ""
    bias = bias or builder.constant(np.zeros(2 * size, builder.value(layer.data).dtype), "no_bias")
    peepholes = _take_element(builder, node.inputs[7], direction) if node.has_input(7) else ""
    # Inputs of all steps are known beforehand: one large product instead of a product per step.
    product = weight.after(builder, node, write("reshape", layer.data, shape=(steps * batch, inputs)))
    product = write("add", product, write("add", cut(builder, bias, 0, 0, size), cut(builder, bias, 0, size, 2 * size)))
    products = write("reshape", product, shape=(steps, batch, size))
    return _Direction(products, recurrence, peepholes, layer.activations(direction), layer.reverse[direction])


def _read_matrix(builder: GraphBuilder, node: OnnxNode, index: int, direction: int) -> Matrix:
    """Operand `index` of a direction, with its scale and zero point; rows of inputs, columns of gates."""
    name = _take_element(builder, node.operand(builder, index).name, direction)
    scale, zero = (_take_element(builder, node.operand(builder, 2 * index + i).name, direction) for i in (6, 7))
    return Matrix(name, scale, zero)


@dataclass(frozen=True, slots=True)
class _Cell:
    """A direction in the graph of a step: `sums` (B, 4 * H) are the inputs of its gates, `peepholes` (3 * H) or ""."""

    layer: Layer
    builder: GraphBuilder
    sums: str
    peepholes: str
    functions: tuple[str, ...]

    @property
    def write(self) -> Formula:
        return Formula(self.builder, self.layer.node, self.builder.value(self.sums).dtype)

    def gate(self, number: int, peephole: int = 0, memory: str = "") -> str:
        """The input of a gate, plus the memory times a peephole, clipped."""
        write, hidden, builder = self.write, self.layer.hidden, self.builder
        value = cut(builder, self.sums, 1, number * hidden, (number + 1) * hidden)
        if memory and self.peepholes:
            factor = cut(builder, self.peepholes, 0, peephole * hidden, (peephole + 1) * hidden)
            value = write("add", value, write("mul", factor, memory))
        bound = self.layer.node.number("clip", 0.0)
        return write("maximum", write("minimum", value, bound), -bound) if bound else value

    def states(self, memory: str) -> tuple[str, str]:
        """The next states: what is visible, and the memory."""
        write, (outer, inner, shown) = self.write, self.functions
        # ONNX's order of gates is input, output, forget, cell; of peepholes input, output, forget.
        entry, forget = (write(outer, self.gate(number, number, memory)) for number in (0, 2))
        candidate = write(inner, self.gate(3))
        fresh = write("add", write("mul", forget, memory), write("mul", entry, candidate))
        # The output gate's peephole sees the new memory, the others the old memory.
        return write("mul", write(outer, self.gate(1, 1, fresh)), write(shown, fresh)), fresh


def _scan(layer: Layer) -> list[str]:
    """All steps of all directions in one `scan`."""
    builder, node = layer.builder, layer.node
    write, _ = formula_of(builder, node)
    steps, batch, _ = builder.value(layer.data).shape
    directions = [_read_direction(layer, number) for number in range(len(layer.reverse))]
    places = builder.arange(steps)
    starts = [_take_element(builder, start, number) for number in range(len(directions)) for start in layer.starts]
    rows = [Rows(name, 0, direction.is_reversed) for direction in directions for name in (direction.products, places)]
    inside = StepBuilder(builder, starts, rows)
    results = [_emit_step(layer, inside, direction, 2 * number) for number, direction in enumerate(directions)]
    states, shown = [name for *pair, _ in results for name in pair], [row for *_, row in results]
    backward = [direction.is_reversed for direction in directions]
    names = inside.finish(states, shown, backward, steps, node.name).emit(builder, [True] * 3 * len(directions))
    shape = (steps, 1, batch, layer.hidden)
    all_rows = [write("reshape", name, shape=shape) for name in names[2 * len(directions) :]]
    last = [names[first : 2 * len(directions) : 2] for first in (0, 1)]
    if layer.lengths:
        # As in ONNX Runtime the last state of a sequence without steps is 0, whatever its first state.
        has_steps = builder.emit("less", [builder.scalar(0, "int64"), _as_column(builder, layer.lengths)])
        last = [[write("where", has_steps, name, 0) for name in group] for group in last]
    last = [[write("reshape", name, shape=shape[1:]) for name in group] for group in last]
    return [stack(builder, all_rows, 1), *(stack(builder, group, 0) for group in last)]


def _as_column(builder: GraphBuilder, lengths: str) -> str:
    return builder.emit("reshape", [lengths], {"shape": (*builder.value(lengths).shape, 1)})


def _emit_step(layer: Layer, inside: StepBuilder, direction: _Direction, number: int) -> tuple[str, str, str]:
    """Emit the step of a direction, whose first state and row have `number`. Returns the next states and what is
    visible; beyond its length a sequence keeps its states, and 0 is visible.
    """
    builder, (h, c) = inside.builder, inside.states[number : number + 2]
    product, position = inside.rows[number : number + 2]
    write = Formula(builder, layer.node, builder.value(h).dtype)
    matrix = direction.recurrence
    matrix = Matrix(*(inside.capture(name) for name in (matrix.name, matrix.scale, matrix.zero)))
    sums = write("add", product, matrix.after(builder, layer.node, h))
    peepholes = inside.capture(direction.peepholes) if direction.peepholes else ""
    states = _Cell(layer, builder, sums, peepholes, direction.functions).states(c)
    visible = states[0]
    if layer.lengths:
        has_step = builder.emit("less", [position, _as_column(builder, inside.capture(layer.lengths))])
        visible = write("where", has_step, visible, 0)
        states = (write("where", has_step, states[0], h), write("where", has_step, states[1], c))
    return *states, visible


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
    return convert_layer(builder, replace(node, op_type="LSTM"), _scan)
