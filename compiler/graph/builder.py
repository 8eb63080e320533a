"""In: operators in order. Out: a `Graph`. Always: shape rules describe every result, and dead nodes are left out."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from compiler.errors import DefinitionError
from compiler.graph.evaluate import evaluate_node
from compiler.graph.ir import Array, Attribute, Graph, Node, Value
from compiler.graph.ops import infer_value


class GraphBuilder:
    """Collects nodes. Names of values are made unique, and what is emitted on constants alone becomes a constant."""

    def __init__(self, name: str, inputs: Iterable[Value] = ()) -> None:
        self.name = name
        self._inputs: list[Value] = []
        self._nodes: list[Node] = []
        self._constants: dict[str, Array] = {}
        self._values: dict[str, Value] = {}
        self._producers: dict[str, Node] = {}
        for value in inputs:
            self.input(value)

    def input(self, value: Value) -> str:
        """Declare something the caller feeds."""
        self._inputs.append(value)
        self._values[value.name] = value
        return value.name

    def constant(self, array: Array, name: str = "constant") -> str:
        """Add a constant (copied only when it is not contiguous) and return its name."""
        name = self._fresh(name)
        held = np.ascontiguousarray(array).reshape(array.shape).view()
        held.flags.writeable = False
        self._constants[name] = held
        self._values[name] = Value(name, held.shape, held.dtype.name)
        return name

    def scalar(self, number: float, dtype: str) -> str:
        """A constant of rank 0."""
        return self.constant(np.asarray(number, dtype=dtype), "scalar")

    def emit(
        self,
        op: str,
        inputs: Sequence[str],
        attrs: Mapping[str, Attribute] | None = None,
        *,
        name: str = "",
        output: str = "",
    ) -> str:
        """Append a node and return the name of its result.

        `name` is the node's name for messages, `output` the wished name of the result. Raises: DefinitionError when
        operands or attributes do not fit the operator.
        """
        output = self._fresh(output or name or op)
        node = Node(op, tuple(inputs), (output,), dict(attrs or {}), name)
        value = infer_value(node, tuple(self._values[operand] for operand in inputs))
        if op != "identity" and all(operand in self._constants for operand in inputs):
            return self.constant(evaluate_node(node, [self._constants[operand] for operand in inputs]), output)
        self._nodes.append(node)
        self._values[output] = value
        self._producers[output] = node
        return output

    def value(self, name: str) -> Value:
        """The description of a value."""
        return self._values[name]

    def array(self, name: str) -> Array | None:
        """The content of a constant, None for anything else."""
        return self._constants.get(name)

    def producer(self, name: str) -> Node | None:
        """The node that computes a value; None for inputs and constants."""
        return self._producers.get(name)

    def finish(self, outputs: Mapping[str, str]) -> Graph:
        """The graph whose outputs have the names of the keys and are the values that they map to."""
        taken: dict[str, str] = {}
        for wanted, source in outputs.items():
            if source in self._producers and source not in taken and (source == wanted or source not in outputs):
                taken[source] = wanted
        rename = dict(taken)
        for wanted in outputs:
            if wanted in self._values and wanted not in taken:
                rename[wanted] = self._fresh(f"{wanted}_inner")
        copies = {wanted: source for wanted, source in outputs.items() if taken.get(source) != wanted}
        return self._renamed(rename, copies, tuple(outputs))

    def _renamed(self, rename: Mapping[str, str], copies: Mapping[str, str], outputs: tuple[str, ...]) -> Graph:
        """The finished graph after `rename`; `copies` are outputs that need an `identity` of a value (old name)."""
        for value in self._inputs:
            if value.name in rename:
                raise DefinitionError(f"graph {self.name}: an output has the name of the input {value.name}")
        nodes = [
            replace(
                node,
                inputs=tuple(rename.get(name, name) for name in node.inputs),
                outputs=tuple(rename.get(name, name) for name in node.outputs),
            )
            for node in self._nodes
        ]
        nodes += [Node("identity", (rename.get(old, old),), (new,)) for new, old in copies.items()]
        values = {rename.get(name, name): replace(v, name=rename.get(name, name)) for name, v in self._values.items()}
        for new, old in copies.items():
            values[new] = replace(self._values[old], name=new)
        alive = set(outputs)
        kept: list[Node] = []
        for node in reversed(nodes):
            if alive.intersection(node.outputs):
                kept.append(node)
                alive.update(node.inputs)
        constants = {rename.get(name, name): array for name, array in self._constants.items()}
        alive.update(value.name for value in self._inputs)
        return Graph(
            name=self.name,
            inputs=tuple(self._inputs),
            outputs=outputs,
            nodes=tuple(reversed(kept)),
            constants={name: array for name, array in constants.items() if name in alive},
            values={name: value for name, value in values.items() if name in alive},
        )

    def _fresh(self, wish: str) -> str:
        if wish not in self._values:
            return wish
        count = 1
        while f"{wish}_{count}" in self._values:
            count += 1
        return f"{wish}_{count}"


Convert = Callable[[GraphBuilder, Node], str | None]


def rewrite(graph: Graph, convert: Convert) -> Graph:
    """Rebuild `graph` node by node.

    `convert(builder, node)` sees a node with its operands already renamed to the builder's values and returns the value
    that takes the place of its result, or None to keep the node. Inputs and the names and order of outputs stay.
    """
    builder = GraphBuilder(graph.name, graph.inputs)
    new_name = {value.name: value.name for value in graph.inputs}
    for name, array in graph.constants.items():
        new_name[name] = builder.constant(array, name)
    for node in graph.nodes:
        renamed = replace(node, inputs=tuple(new_name[name] for name in node.inputs))
        result = convert(builder, renamed)
        if result is None:
            result = builder.emit(node.op, renamed.inputs, node.attrs, name=node.name, output=node.output)
        new_name[node.output] = result
    return builder.finish({name: new_name[name] for name in graph.outputs})
