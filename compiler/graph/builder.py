"""Builds a `Graph` of operators in order; shape rules describe every result, and `finish` drops dead nodes."""

import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

import numpy as np

from retune.compiler.core.errors import DefinitionError
from retune.compiler.graph.evaluate import evaluate_node
from retune.compiler.graph.ir import Array, Attribute, Graph, Node, Value
from retune.compiler.graph.partition.memoize import memoize
from retune.compiler.graph.verify import call_of, infer_value
from retune.compiler.ir.dims import Dim, integers, same_shape
from retune.compiler.ops import OPS, FusionKind

_log = logging.getLogger(__name__)

WEIGHTS = ("dequantize", "dequantize_bits")
"""Weights with few bits for a number."""
KEPT = ("identity", *WEIGHTS)
"""Nodes on constants that are not folded: bytes of a weight cost less memory traffic than its numbers."""


# A visitor uses several frames per level of Python's thousand; 64 levels leave room for fused operators around them.
_MOST_JOINED = 64
"""Most operands of a concatenation; more are concatenated in a tree, since operands nest in its expression."""
_MOST_ELEMENTS, _MOST_FOLDED = 2**32, 2**28
"""Most elements of a tensor, and of a constant of small constants; a broken network may ask for any number."""


class GraphBuilder:
    """Collects nodes. Names of values are made unique. A node on constants alone becomes a constant, the same as an
    equal node before it, like a node whose result or operands have no elements.
    """

    def __init__(self, name: str, inputs: Iterable[Value] = ()) -> None:
        self.name = name
        self._inputs: list[Value] = []
        self._nodes: list[Node] = []
        self._constants: dict[str, Array] = {}
        self._values: dict[str, Value] = {}
        self._wishes: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._producers: dict[str, Node] = {}
        self._folded: dict[tuple[object, ...], str] = {}
        for value in inputs:
            self.input(value)

    def input(self, value: Value) -> str:
        self._inputs.append(value)
        self._values[value.name] = value
        return value.name

    def constant(self, array: Array, name: str = "constant") -> str:
        """Add a constant (copied only if not contiguous) and return its name."""
        name = self._fresh(name)
        view = np.ascontiguousarray(array).reshape(array.shape).view()
        # Passes share constants between graphs: a write would change them all.
        view.flags.writeable = False
        self._constants[name] = view
        self._values[name] = Value(name, view.shape, view.dtype.name)
        return name

    def scalar(self, number: float, dtype: str) -> str:
        return self.constant(integers(number) if isinstance(number, Dim) else np.asarray(number, dtype=dtype), "scalar")

    def arange(self, count: int, shape: Sequence[int] | None = None, *, start: int = 0, step: int = 1) -> str:
        """The constant start, start + step, ... of `count` integers, reshaped to `shape` if given."""
        line = self.emit("arange", [], {"start": start, "count": count, "step": step})
        return line if shape is None else self.emit("reshape", [line], {"shape": tuple(shape)})

    def emit(
        self,
        op: str,
        inputs: Sequence[str],
        attrs: Mapping[str, Attribute] | None = None,
        *,
        name: str = "",
        output: str = "",
        known: Value | None = None,
    ) -> str:
        """Append a node and return the name of its result.

        `name` is the node's name for messages, `output` the preferred name of the result; `known` is a checked result
        of the same operator for operands of the same shapes and types. Raises: DefinitionError when operands or
        attributes do not fit the operator.
        """
        wish = output or name or op
        key = (op, *inputs, *sorted((attrs or {}).items()))
        if key in self._folded:
            return self._folded[key]
        if op == "concat" and len(inputs) > _MOST_JOINED:
            # A tree of concatenations: expressions are walked recursively, with one level per operand.
            chunks = [inputs[start : start + _MOST_JOINED] for start in range(0, len(inputs), _MOST_JOINED)]
            inputs = [self.emit(op, chunk, attrs, name=name, output=wish) for chunk in chunks]
            return self.emit(op, inputs, attrs, name=name, output=wish)
        node = Node(op, tuple(inputs), (self._fresh(wish),), dict(attrs or {}), name)
        described = [self._values[operand] for operand in inputs]
        value = infer_value(node, described) if known is None else Value(node.output, known.shape, known.dtype)
        if op == "slice" and set(node.ints("steps")) <= {1} and same_shape(value.shape, described[0].shape):
            return inputs[0]
        # Before anything of that size is allocated or folded.
        # A `Dim` is no int, and may be any number.
        if all(isinstance(extent, int) for extent in value.shape) and value.size > _MOST_ELEMENTS:
            raise call_of(node, described).misfit(f"{value} has too many elements")
        constant = self._fold(node, value, described)
        if constant is not None:
            return self._folded.setdefault(key, self.constant(constant, wish))
        self._nodes.append(node)
        self._values[node.output] = value
        self._producers[node.output] = node
        return node.output

    def _fold(self, node: Node, value: Value, described: Sequence[Value]) -> Array | None:
        """The constant that replaces a node, if there is one. Raises: DefinitionError."""
        if any(isinstance(extent, Dim) for extent in value.shape):
            return None
        if value.size == 0:
            return np.empty(value.shape, value.dtype)
        if any(map(_has_dims, node.attrs.values())):
            return None
        # Constant folding on construction, so every pass folds the nodes it emits.
        is_known = node.op not in KEPT and all(operand in self._constants for operand in node.inputs)
        empty = [operand.size == 0 for operand in described]
        is_empty_sum = any(empty) and OPS[node.op].kind is FusionKind.COMPLEX and "pad_value" not in node.attrs
        if not (is_known or all(empty) or is_empty_sum):
            return None
        # A constant far larger than its operands is an error: a broken network may ask for any size.
        if value.size > max([_MOST_FOLDED, *(operand.size for operand in described)]):
            raise call_of(node, described).misfit(f"{value} has too many elements for a constant")
        if is_empty_sum:
            return np.zeros(value.shape, value.dtype)
        if not is_known:
            return evaluate_node(node, [np.empty(v.shape, v.dtype) for v in described])
        known = [self._constants[operand] for operand in node.inputs]
        return memoize((node.op, tuple(sorted(node.attrs.items()))), known, lambda: evaluate_node(node, known))

    def filled(self, number: float, dtype: str, shape: Sequence[int]) -> str:
        """A constant of this shape whose elements all equal `number`."""
        return self.emit("broadcast_to", [self.scalar(number, dtype)], {"shape": tuple(shape)}, output="filled")

    def value(self, name: str) -> Value:
        return self._values[name]

    def array(self, name: str) -> Array | None:
        """The content of a constant, dequantized if needed; None for any other value."""
        node = self._producers.get(name)
        if node is None or node.op not in WEIGHTS:
            return self._constants.get(name)
        arrays = [self._constants[operand] for operand in node.inputs if operand in self._constants]
        return evaluate_node(node, arrays) if len(arrays) == len(node.inputs) else None

    def is_constant(self, name: str) -> bool:
        """Whether the content of a value is known at compile time: `array` has it."""
        return self.array(name) is not None

    def producer(self, name: str) -> Node | None:
        """The node that computes a value; None for inputs and constants."""
        return self._producers.get(name)

    def inputs_of(self, name: str) -> tuple[str, ...]:
        """The inputs that a value depends on, in order."""
        reached, stack = {name}, [name]
        while stack:
            producer = self._producers.get(stack.pop())
            fresh = [] if producer is None else [operand for operand in producer.inputs if operand not in reached]
            reached.update(fresh)
            stack += fresh
        return tuple(value.name for value in self._inputs if value.name in reached)

    def finish(self, outputs: Mapping[str, str]) -> Graph:
        """The graph with the outputs `outputs`, from name to value.

        Nodes that no output needs are dropped; the other values keep their emitted names, numbered on clashes.
        """
        alive = set(outputs.values())
        live_nodes: list[Node] = []
        # Dead code elimination by one backward sweep: nodes are in topological order, so all readers come before a
        # node.
        for node in reversed(self._nodes):
            if alive.intersection(node.outputs):
                live_nodes.append(node)
                alive.update(node.inputs)
        alive.update(value.name for value in self._inputs)
        final, copies = self._final_names(outputs, alive)
        nodes = [
            Node(node.op, _rename(final, node.inputs), _rename(final, node.outputs), node.attrs, node.name)
            for node in reversed(live_nodes)
        ]
        nodes += [Node("identity", (final[source],), (wanted,)) for wanted, source in copies.items()]
        described = {final[name]: value for name, value in self._values.items() if name in alive}
        described.update({wanted: self._values[source] for wanted, source in copies.items()})
        return Graph(
            name=self.name,
            inputs=tuple(self._inputs),
            outputs=tuple(outputs),
            nodes=tuple(nodes),
            constants={final[name]: array for name, array in self._constants.items() if name in alive},
            values={
                name: value if value.name == name else Value(name, value.shape, value.dtype)
                for name, value in described.items()
            },
        )

    def _final_names(self, outputs: Mapping[str, str], alive: set[str]) -> tuple[dict[str, str], dict[str, str]]:
        """The final name of every value, and the outputs (final name: value) that need a copy."""
        final = {value.name: value.name for value in self._inputs}
        clash = sorted(wanted for wanted, source in outputs.items() if wanted in final and wanted != source)
        if clash:
            raise DefinitionError(f"graph {self.name}: an output has the name of the input {clash[0]}")
        copies: dict[str, str] = {}
        for wanted, source in outputs.items():
            if final.get(source) == wanted:  # an input that is an output
                continue
            if source in final or source in self._constants:
                copies[wanted] = source
            else:
                final[source] = wanted
        taken = {*final.values(), *outputs}
        counts: dict[str, int] = {}
        for name, wish in self._wishes.items():
            if name in alive and name not in final:
                final[name] = _unused_name(wish, taken, counts)
                taken.add(final[name])
        return final, copies

    def _fresh(self, wish: str) -> str:
        name = _unused_name(wish, self._values, self._counts)
        self._wishes[name] = wish
        return name


# Below that, searching for a free number is cheaper than remembering the next.
_MANY = 100
"""Values of one name from which on `_unused` counts."""


def _unused_name(wish: str, taken: Container[str], counts: dict[str, int]) -> str:
    """`wish`, or `wish` with the first free number. An unrolled loop asks for the same names again and again: `counts`
    then keeps the next number.
    """
    if wish not in taken:
        return wish
    count = counts.get(wish, 1)
    while f"{wish}_{count}" in taken:
        count += 1
    if count > _MANY:
        counts[wish] = count
    return f"{wish}_{count}"


def _rename(final: Mapping[str, str], names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple([final[name] for name in names])


def _has_dims(attr: Attribute) -> bool:
    return any(isinstance(item, Dim) for item in (attr if isinstance(attr, tuple) else (attr,)))


Convert = Callable[[GraphBuilder, Node], str | None]


def rewrite(graph: Graph, convert: Convert) -> Graph:
    """Rebuild `graph` node by node.

    `convert(builder, node)` gets a node whose operands are values of the builder, and returns the value that replaces
    its result, or None to keep the node. Inputs and the names and order of outputs stay.
    """
    builder = GraphBuilder(graph.name, graph.inputs)
    new_name = {value.name: value.name for value in graph.inputs}
    for name, array in graph.constants.items():
        new_name[name] = builder.constant(array, name)
    for node in graph.nodes:
        renamed = Node(node.op, _rename(new_name, node.inputs), node.outputs, node.attrs, node.name)
        # Without operands: a sequence of symbolic numbers, which no rule changes.
        result = convert(builder, renamed) if node.inputs else None
        if result is None:
            known = graph.values[node.output] if _has_same_types(graph, node, builder, renamed) else None
            result = builder.emit(node.op, renamed.inputs, node.attrs, name=node.name, output=node.output, known=known)
        new_name[node.output] = result
    return builder.finish({name: new_name[name] for name in graph.outputs})


def rewrite_until_stable(graph: Graph, step: Callable[[Graph], Graph], rounds: int) -> Graph:
    """Apply the rewrite `step` until it changes nothing, at most `rounds` times."""
    # The text shows a fixpoint: rewrites rebuild nodes, so identity says nothing.
    text = str(graph)
    for _ in range(rounds):
        graph, before = step(graph), text
        text = str(graph)
        if text == before:
            return graph
    _log.info("%s: %s still changes something after %d rounds", graph.name, step, rounds)
    return graph


def _has_same_types(graph: Graph, node: Node, builder: GraphBuilder, renamed: Node) -> bool:
    """Whether the operands of a node with static shapes kept their shapes and types."""
    for name, new in zip(node.inputs, renamed.inputs, strict=True):
        before, now = graph.values[name], builder.value(new)
        if before.shape != now.shape or before.dtype != now.dtype:
            return False
    return True
