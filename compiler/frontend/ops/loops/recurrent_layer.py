"""Recurrent nodes of ONNX as their converters see them: operands, directions, activations and layout.

Shapes: T steps, B sequences, I inputs, D directions, H columns of a state; the gates of a cell lie side by side.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from retune.compiler.frontend.ops.attributes import OnnxNode
from retune.compiler.frontend.ops.elementwise import formula_of
from retune.compiler.frontend.ops.indexing import take
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.ir.dims import Dim
from retune.compiler.ops.recurrence import FUNCTIONS

_DEFAULT_ACTIVATIONS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}


@dataclass(frozen=True, slots=True)
class Layer:
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

    def activations(self, direction: int) -> tuple[str, ...]:
        """The activations of a direction in lower case. Raises: UnsupportedOperatorError for unknown names."""
        defaults = _DEFAULT_ACTIVATIONS[self.node.op_type]
        activations = self.node.texts("activations") or (*defaults, *defaults)
        own = activations[direction * len(defaults) : (direction + 1) * len(defaults)]
        unknown = [activation for activation in own if activation.lower() not in FUNCTIONS]
        if unknown:
            raise self.node.unsupported(f"activations {', '.join(unknown)}; known: {', '.join(FUNCTIONS)}")
        return tuple(activation.lower() for activation in own)


def convert_layer(builder: GraphBuilder, node: OnnxNode, run: Callable[[Layer], list[str]]) -> Sequence[str]:
    """Convert a node. `run` emits its steps: states after every step (T, D, B, H), and last states (D, B, H)."""
    write, x = formula_of(builder, node)
    batch_first = bool(node.integer("layout", 0))
    data = write("transpose", x, perm=(1, 0, 2)) if batch_first else x
    length, batch, _ = builder.value(data).shape
    directions, *sizes = node.operand(builder, 2).shape
    hidden = min(sizes)  # of hidden and gates times hidden, in either order
    reverses = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
    reverse = reverses[node.text("direction", "forward")]
    # As in ONNX Runtime the last state of a sequence without steps is 0, whatever its first state. From zeros that is
    # what the steps give, too, and nothing is decided about a symbolic number of them.
    has_starts = any(map(node.has_input, (5, 6)))
    if (has_starts or not isinstance(length, Dim)) and length == 0:
        states_shape = (batch, 0, directions, hidden) if batch_first else (0, directions, batch, hidden)
        last_shape = (batch, directions, hidden) if batch_first else (directions, batch, hidden)
        return [builder.filled(0, builder.value(x).dtype, shape) for shape in (states_shape, last_shape, last_shape)]
    lengths = write("cast", node.inputs[4], dtype="int64") if node.has_input(4) else ""
    zeros = builder.filled(0, builder.value(x).dtype, (directions, batch, hidden))
    starts = [node.inputs[i] if node.has_input(i) else zeros for i in ((5, 6) if node.op_type == "LSTM" else (5,))]
    if batch_first:
        starts = [start if start == zeros else write("transpose", start, perm=(1, 0, 2)) for start in starts]
    layer = Layer(builder, node, data, tuple(starts), lengths, reverse)
    results = run(layer)
    if batch_first:
        results[0] = write("transpose", results[0], perm=(2, 0, 1, 3))
        results[1:] = [write("transpose", result, perm=(1, 0, 2)) for result in results[1:]]
    return results


def stack(builder: GraphBuilder, names: Sequence[str], axis: int) -> str:
    """Concatenate values along an axis that they have already."""
    return names[0] if len(names) == 1 else builder.emit("concat", names, {"axis": axis})
