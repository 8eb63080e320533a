"""Converters of ONNX's RNN, GRU and LSTM.

The inputs of all steps are multiplied with their weights at once. Then all steps are one operator and kernel,
`recurrent` (`retune.compiler.ops.recurrence`).
"""

from collections.abc import Mapping, Sequence

from retune.compiler.frontend.ops.attributes import OnnxNode
from retune.compiler.frontend.ops.elementwise import Converter, formula_of
from retune.compiler.frontend.ops.indexing import cut, take
from retune.compiler.frontend.ops.loops.recurrent_layer import Layer, convert_layer, stack
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.ops import Attribute
from retune.compiler.ops.recurrence import GATES


def _emit_scan(layer: Layer, directions: Sequence[int], finals: int) -> str:
    """Emit `recurrent` for some directions: (T + finals, D, B, H), the visible states after every step, then the
    last visible state if `finals` is at least 1, and the last memory if it is 2.
    """
    builder, node = layer.builder, layer.node
    resets_inside = node.op_type == "GRU" and bool(node.integer("linear_before_reset", 0))
    operands = {"x": _multiply_inputs(layer, directions, resets_inside)}
    gates = layer.take_gates(node.inputs[2], directions)
    if node.op_type == "GRU" and not resets_inside:
        operands["hidden_weight"] = _transpose_gates(layer, layer.take_gates(gates, range(len(directions)), 2))
        gates = layer.take_gates(gates, range(len(directions)), 0, 2)
    operands["weight"] = _transpose_gates(layer, gates)
    operands |= {name: take(builder, start, 0, directions) for name, start in zip("hc", layer.starts, strict=False)}
    if resets_inside and node.has_input(3):
        operands["inside"] = layer.take_gates(node.inputs[3], directions, 5)
    elif resets_inside:
        operands["inside"] = builder.filled(0, builder.value(layer.data).dtype, (len(directions), layer.hidden))
    if node.has_input(7):
        operands["peepholes"] = take(builder, node.inputs[7], 0, directions)
    if layer.lengths:
        operands["lengths"] = layer.lengths
    attrs: dict[str, Attribute] = {
        "cell": node.op_type,
        "operands": " ".join(list(operands)[1:]),
        "functions": " ".join(layer.activations(directions[0])),
        "clip": node.number("clip", 0.0),
        "reverse": tuple(int(layer.reverse[direction]) for direction in directions),
        "finals": finals,
    }
    return builder.emit("recurrent", list(operands.values()), attrs, name=node.name)


def _transpose_gates(layer: Layer, weight: str) -> str:
    """Transpose a weight (D, gates * H, H) to columns of gates."""
    return layer.builder.emit("transpose", [weight], {"perm": (0, 2, 1)})


def _multiply_inputs(layer: Layer, directions: Sequence[int], resets_inside: bool) -> str:
    """Emit the products of all inputs with their weights, plus the biases: (T, B, D, gates * H)."""
    builder, node, count = layer.builder, layer.node, len(directions)
    write, _ = formula_of(builder, node)
    steps, batch, inputs = builder.value(layer.data).shape
    gates = GATES[node.op_type]
    size = gates * layer.hidden
    weight = write("reshape", layer.take_gates(node.inputs[1], directions), shape=(count * size, inputs))
    flat = write("reshape", layer.data, shape=(steps * batch, inputs))
    product = builder.emit("dense", [flat, builder.emit("transpose", [weight], {"perm": (1, 0)})], name=node.name)
    if node.has_input(3):
        first, second = (layer.take_gates(node.inputs[3], directions, gate, gate + gates) for gate in (0, gates))
        if resets_inside:
            # The reset gate scales the second bias of the hidden gate, too.
            kept = layer.take_gates(node.inputs[3], directions, 3, 5)
            zeros = builder.filled(0, builder.value(kept).dtype, (count, layer.hidden))
            second = builder.emit("concat", [kept, zeros], {"axis": 1})
        bias = write("reshape", builder.emit("add", [first, second]), shape=(1, count * size))
        product = builder.emit("add", [product, bias])
    return write("reshape", product, shape=(steps, batch, count, size))


def _scan(layer: Layer) -> list[str]:
    """All steps in a kernel. Returns the states after every step (T, D, B, H), and the last states (D, B, H) up to
    the last that is an output of the node.
    """
    builder, node = layer.builder, layer.node
    steps, count = builder.value(layer.data).shape[0], len(layer.reverse)
    finals = max((number for number, name in enumerate(node.outputs) if name), default=0)
    # Both directions run in one kernel unless they differ in more than the order.
    is_joint = len({layer.activations(direction) for direction in range(count)}) == 1
    groups = [list(range(count))] if is_joint else [[direction] for direction in range(count)]
    states = stack(builder, [_emit_scan(layer, group, finals) for group in groups], 1)
    shape = builder.value(states).shape
    last = [cut(builder, states, 0, steps + number, steps + number + 1) for number in range(finals)]
    return [
        cut(builder, states, 0, 0, steps) if finals else states,
        *(builder.emit("reshape", [row], {"shape": shape[1:]}) for row in last),
    ]


def _convert_recurrent(builder: GraphBuilder, node: OnnxNode) -> Sequence[str]:
    return convert_layer(builder, node, _scan)


CONVERTERS: Mapping[str, Converter] = dict.fromkeys(GATES, _convert_recurrent)
