"""Canonicalizes an ONNX graph and its subgraphs: removes constants, copies and conditions with a known value.

The constants of all graphs end up in one table of read-only arrays, under names that are unique in the model.
"""

from collections import Counter
from collections.abc import Container, Iterable, Mapping

import numpy as np
import onnx
from onnx import numpy_helper

from retune.compiler.core.errors import ModelError, ModelFormatError, UnsupportedOperatorError
from retune.compiler.frontend.dependence import bodies, body
from retune.compiler.frontend.model_file import is_standard
from retune.compiler.frontend.ops.attributes import OnnxNode, read_attributes
from retune.compiler.frontend.ops.shape import constant_array
from retune.compiler.graph.ir import Array


def definitions(graph: onnx.GraphProto) -> Counter[str]:
    """Number of definitions of each name in a graph and its sub-graphs."""
    weights = {tensor.name for tensor in graph.initializer}
    # An initializer may also be listed as an input: that is one definition, not two.
    counts = Counter(dict.fromkeys(weights.union(entry.name for entry in graph.input), 1))
    for node in graph.node:
        counts.update(node.output)
        for inner in bodies(node):
            counts += definitions(inner)
    return counts


class Canonicalize:
    """Canonicalizes graphs of one model; `defined` counts the definitions of its names."""

    def __init__(self, defined: Counter[str]) -> None:
        self.constants: dict[str, Array] = {}
        self._defined = defined
        self._taken = set(defined)

    def fresh(self, wish: str) -> str:
        name, count = wish, 0
        while name in self._taken:
            count += 1
            name = f"{wish}_{count}"
        self._taken.add(name)
        return name

    def constant(self, array: Array, wish: str) -> str:
        """Add a constant, in place of a value named `wish` if any, and return its name."""
        # Bodies may use one name for different values; only a name with a single definition can stay.
        return self._keep(array, wish if self._defined[wish] == 1 else self.fresh(wish))

    def weights(self, tensors: Iterable[onnx.TensorProto]) -> None:
        """Add the model's own initializers, which keep their names."""
        for tensor in tensors:
            self._keep(_array(tensor), tensor.name)

    def graph(self, source: onnx.GraphProto, outer: Mapping[str, str], weights: Container[str] = ()) -> onnx.GraphProto:
        """The canonical graph; `outer` renames names from enclosing graphs, `weights` are initializers to keep."""
        defined = {entry.name for entry in source.input}.union(*(node.output for node in source.node))
        # A local name hides the outer one.
        names = {old: new for old, new in outer.items() if old not in defined}
        for tensor in source.initializer:
            name = tensor.name
            names[name] = name if name in weights else self.constant(_array(tensor), name)
        result = onnx.GraphProto(name=source.name)
        result.input.extend(entry for entry in source.input if entry.name not in names)
        result.value_info.extend(entry for entry in source.value_info if entry.name not in names)
        self._nodes(source.node, names, result, spliced=False)
        for entry in source.output:
            result.output.add().CopyFrom(entry)
            result.output[-1].name = names.get(entry.name, entry.name)
        return result

    def _keep(self, array: Array, name: str) -> str:
        # Reshaped because NumPy turns a scalar into an array of one dimension here; a view, so that the caller's array
        # stays writable.
        view = np.ascontiguousarray(array).reshape(array.shape).view()
        view.flags.writeable = False
        self.constants[name] = view
        return name

    def _nodes(
        self, nodes: Iterable[onnx.NodeProto], names: dict[str, str], result: onnx.GraphProto, *, spliced: bool
    ) -> None:
        """Append nodes to `result`; `names` gets their new names, which are fresh for `spliced` nodes."""
        for node in nodes:
            operands = [names.get(name, name) for name in node.input]
            if is_standard(node.domain) and self._is_replaced(node, operands, names, result):
                continue
            # The other branch, or a second copy of a function, may have the same names.
            if spliced:
                names.update((name, self.fresh(name)) for name in node.output if name)
            copy = result.node.add()
            copy.CopyFrom(node)
            copy.input[:] = operands
            copy.output[:] = [names.get(name, name) for name in node.output]
            for attribute in copy.attribute:
                if attribute.HasField("g"):
                    attribute.g.CopyFrom(self.graph(attribute.g, names))

    def _is_replaced(
        self, node: onnx.NodeProto, operands: list[str], names: dict[str, str], result: onnx.GraphProto
    ) -> bool:
        """Replace the node by names, or by nodes, if possible."""
        if node.op_type == "Identity" and len(operands) == len(node.output) == 1:
            names[node.output[0]] = operands[0]
            return True
        if node.op_type == "Constant" and len(node.output) == 1:
            return self._is_constant(node, names)
        if node.op_type == "If" and operands and operands[0] in self.constants:
            condition = self.constants[operands[0]]
            if condition.size == 1:
                self._splice(node, body(node, "then_branch" if condition.item() else "else_branch"), names, result)
                return True
        return False

    def _is_constant(self, node: onnx.NodeProto, names: dict[str, str]) -> bool:
        (output,) = node.output
        described = OnnxNode(node.op_type, node.name or output, (), (output,), read_attributes(node), 0)
        try:
            array = constant_array(described)
        except UnsupportedOperatorError:
            return False  # its own converter reports it, if the node is needed
        names[output] = self.constant(array, output)
        return True

    def _splice(
        self, node: onnx.NodeProto, branch: onnx.GraphProto, names: dict[str, str], result: onnx.GraphProto
    ) -> None:
        """Replace the condition by the nodes of a branch."""
        inner = dict(names)
        for tensor in branch.initializer:
            inner[tensor.name] = self.constant(_array(tensor), tensor.name)
        self._nodes(branch.node, inner, result, spliced=True)
        for entry in branch.value_info:
            result.value_info.add().CopyFrom(entry)
            result.value_info[-1].name = inner.get(entry.name, entry.name)
        names.update(
            (name, inner.get(entry.name, entry.name)) for name, entry in zip(node.output, branch.output, strict=False)
        )


def _array(tensor: onnx.TensorProto) -> Array:
    try:
        return numpy_helper.to_array(tensor)
    except MemoryError as error:
        raise ModelError(f"the constant {tensor.name!r} does not fit into the free memory") from error
    except (TypeError, ValueError, LookupError) as error:
        raise ModelFormatError(f"the constant {tensor.name!r} cannot be read: {error}") from None
