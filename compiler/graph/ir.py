"""The graph of a network: an immutable `Graph` of nodes in topological order, with a deterministic text.

Graph     = inputs, nodes, outputs, constants, values
Node      = outputs <- op(inputs) {attrs}          op: a name of `retune.compiler.ops.OPS`
Value     = name: dtype[shape]                     every input, constant and node output has one
Attribute = int | float | bool | str | (int, ...)
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from retune.compiler.core.dtype import Array, item_bytes
from retune.compiler.core.errors import DefinitionError
from retune.compiler.ir.attributes import Attribute, Attributed

__all__ = ["Array", "Attribute", "Graph", "Node", "Value"]


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor that flows through the graph: its name, static shape and NumPy dtype name."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def size(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def nbytes(self) -> int:
        """Number of bytes of a dense row-major buffer."""
        return self.size * item_bytes(self.dtype)

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Node(Attributed):
    """One operation. `name` is for people (messages, reports); identity of data is by value names."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Attribute] = field(default_factory=dict)
    name: str = ""

    @property
    def output(self) -> str:
        (name,) = self.outputs
        return name

    def __str__(self) -> str:
        attrs = ", ".join(f"{key}={self.attrs[key]!r}" for key in sorted(self.attrs))
        call = f"{', '.join(self.outputs)} = {self.op}({', '.join(self.inputs)})"
        return f"{call} {{{attrs}}}" if attrs else call


# Passes compare graphs by their text: constants of shapes, which they rewrite, must show in it.
_PRINTED_INTEGERS = 8


def _contents(array: Array) -> str:
    """Printed contents of a constant: one number, or a few integers such as a shape."""
    if array.size == 1 or (0 < array.size <= _PRINTED_INTEGERS and array.dtype.kind in "iu"):
        return f" = {array.tolist()}"
    return ""


@dataclass(frozen=True, slots=True, eq=False)
class Graph:
    """A network. Compared by identity; `fingerprint()` compares content.

    `inputs` are the fed values, `outputs` the names of the results, `nodes` are in topological order, `constants` hold
    read-only arrays, and `values` describes every name. Every output is an input or computed by a node: an `identity`
    node for a constant or for an input under another name.
    """

    name: str
    inputs: tuple[Value, ...]
    outputs: tuple[str, ...]
    nodes: tuple[Node, ...]
    constants: dict[str, Array]
    values: Mapping[str, Value]

    def producers(self) -> dict[str, Node]:
        """The node that computes each value; inputs and constants have none."""
        return {output: node for node in self.nodes for output in node.outputs}

    def consumers(self) -> dict[str, tuple[Node, ...]]:
        """The distinct nodes that read each value, in order."""
        readers: dict[str, list[Node]] = {name: [] for name in self.values}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                readers[name].append(node)
        return {name: tuple(nodes) for name, nodes in readers.items()}

    def output_values(self) -> tuple[Value, ...]:
        return tuple(self.values[name] for name in self.outputs)

    def verify(self) -> None:
        """Check the structure: single assignment, topological order, described values, constants as described.

        Raises: DefinitionError that names the node or value at fault.
        """
        defined = {value.name for value in self.inputs}
        if len(defined) != len(self.inputs):
            raise DefinitionError(f"graph {self.name}: two inputs have the same name")
        for value in self.inputs:
            if self.values.get(value.name) != value:
                raise DefinitionError(f"graph {self.name}: input {value} is not described alike in its values")
        for name, array in self.constants.items():
            if name in defined:
                raise DefinitionError(f"graph {self.name}: {name} is both an input and a constant")
            described = self.values.get(name)
            if described is None or described.shape != array.shape or described.dtype != array.dtype.name:
                raise DefinitionError(
                    f"graph {self.name}: constant {name} is {array.dtype.name}{list(array.shape)}, not {described}"
                )
        defined.update(self.constants)
        for node in self.nodes:
            for name in node.inputs:
                if name not in defined:
                    raise DefinitionError(f"graph {self.name}: {node} reads {name} before it is defined")
            for name in node.outputs:
                if name in defined:
                    raise DefinitionError(f"graph {self.name}: {node} defines {name} a second time")
                if name not in self.values:
                    raise DefinitionError(f"graph {self.name}: {node} defines {name}, which has no description")
            defined.update(node.outputs)
        self._verify_outputs(defined - set(self.constants))
        if len(self.values) != len(defined):
            extra = sorted(set(self.values) - defined)
            raise DefinitionError(f"graph {self.name}: described but never defined: {', '.join(extra)}")

    def _verify_outputs(self, defined: set[str]) -> None:
        if len(set(self.outputs)) != len(self.outputs):
            raise DefinitionError(f"graph {self.name}: the same value is an output twice")
        for name in self.outputs:
            if name not in defined:
                raise DefinitionError(f"graph {self.name}: output {name} is not computed by a node")

    def fingerprint(self) -> str:
        """A hash (32 hex digits) of structure, attributes, shapes and constants; names do not matter."""
        digest = hashlib.sha256()
        # Numbers instead of names: two exports of one network differ in names alone.
        number: dict[str, int] = {}

        def describe(name: str) -> str:
            if name in number:
                return f"%{number[name]}"
            number[name] = len(number)
            array = np.ascontiguousarray(self.constants[name])
            # The bytes in place: copying all weights would cost as much as hashing them.
            content = hashlib.sha256(array.reshape(-1).view(np.uint8).data).hexdigest()
            return f"const {array.dtype.name}{list(array.shape)} {content}"

        for value in self.inputs:
            number[value.name] = len(number)
            digest.update(f"input {value.dtype}{list(value.shape)}\n".encode())
        for node in self.nodes:
            reads = ", ".join(describe(name) for name in node.inputs)
            attrs = sorted(node.attrs.items())
            results = [(self.values[name].dtype, self.values[name].shape) for name in node.outputs]
            digest.update(f"{node.op}({reads}) {attrs} -> {results}\n".encode())
            for name in node.outputs:
                number[name] = len(number)
        digest.update(f"outputs {[number[name] for name in self.outputs]}\n".encode())
        return digest.hexdigest()[:32]

    def __str__(self) -> str:
        lines = [f"graph {self.name}({', '.join(map(str, self.inputs))})"]
        lines += [f"  const {self.values[name]}{_contents(array)}" for name, array in self.constants.items()]
        for node in self.nodes:
            types = ", ".join(str(self.values[name]).partition(": ")[2] for name in node.outputs)
            lines.append(f"  {node} : {types}")
        lines.append(f"  return {', '.join(self.outputs)}")
        return "\n".join(lines)
