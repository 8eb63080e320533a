"""Converts the nodes of an ONNX graph into our operators, in a `GraphBuilder`.

A failing node does not stop the others; the problems are collected.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import onnx

from retune.compiler.core.errors import DefinitionError, ModelError, UnknownValueError, UnsupportedOperatorError
from retune.compiler.frontend.dependence import free_names
from retune.compiler.frontend.model_file import MOST_NODES, name_of, operator_of, tensor_array
from retune.compiler.frontend.ops.attributes import OnnxNode, ReportedError, TensorSequence, read_attributes
from retune.compiler.frontend.ops.elementwise import Converter
from retune.compiler.graph.builder import GraphBuilder

_MISFITS = (DefinitionError, ArithmeticError, LookupError, TypeError, ValueError, AssertionError)
"""Errors of converters for nodes that ONNX's checker accepts: attributes of another length, excessive sizes."""


class Conversion:
    """Converts nodes by a table of converters, and likewise the bodies of loops and conditions.

    `problems` are sentences about nodes that could not be converted; `solvable` of them would be solved by the values
    of the inputs in `unknown`. `failed` are the first results of these nodes.
    """

    def __init__(self, builder: GraphBuilder, converters: Mapping[str, Converter], opset: int) -> None:
        self._builder = builder
        self._converters = converters
        self._opset = opset
        self._count = 0
        self._lost: set[str] = set()
        self.problems: list[str] = []
        self.failed: list[str] = []
        self.unknown: dict[str, None] = {}
        self.solvable = 0

    def convert(self, graph: onnx.GraphProto, known: Mapping[str, str]) -> dict[str, str]:
        """Convert all nodes of `graph`, which may read the values `known` (its names to ours).

        Returns all known names; names computed from a failed node are missing.
        Raises: ModelError when there is too little memory.
        """
        names = {"": "", **known}
        lost = self._lost
        for tensor in graph.initializer:
            try:
                names[tensor.name] = self._builder.constant(tensor_array(tensor), tensor.name)
            except MemoryError as error:
                raise ModelError(f"the constant {tensor.name!r} does not fit into the free memory") from error
            except _MISFITS as error:
                self.problems.append(f"the constant {tensor.name!r} cannot be read: {error}")
                lost.add(tensor.name)
        for proto in graph.node:
            # Nodes that read a lost value are not at fault: only the first node of a chain is reported.
            if lost.intersection(proto.input):
                lost.update(filter(None, proto.output))
                continue
            if not self._takes(proto, names):
                self._lose(proto)
                continue
            before, solvable = len(self.problems), self.solvable
            try:
                self._count_node(proto)
                results = self._converters[operator_of(proto)](self._builder, self.node(proto, names))
            except UnsupportedOperatorError as error:
                if isinstance(error, UnknownValueError):  # the value also decides whether a branch matters
                    del self.problems[before:]
                    self.solvable = solvable
                self._note(error)
                self._lose(proto)
            except MemoryError as error:
                raise ModelError(f"{missing_operator(proto)} does not fit into the free memory") from error
            except _MISFITS as error:
                why = str(error) or type(error).__name__
                self.problems.append(f"{missing_operator(proto)}: its operands do not fit: {why}")
                self._lose(proto)
            else:
                # An omitted result has no name: the empty one stands for omitted operands.
                names.update(pair for pair in zip(proto.output, results, strict=False) if pair[0])
                lost.difference_update(proto.output)
        return names

    def _lose(self, proto: onnx.NodeProto) -> None:
        self._lost.update(filter(None, proto.output))
        self.failed += [name for name in proto.output if name][:1]

    def node(self, proto: onnx.NodeProto, names: Mapping[str, str]) -> OnnxNode:
        """A node as converters see it, whose operands are among `names`."""

        def body(graph: onnx.GraphProto, operands: Sequence[str]) -> Sequence[str]:
            self._count_node(proto)  # a body without nodes costs time too
            parameters = [entry.name for entry in graph.input]
            values = self.convert(graph, {**names, **dict(zip(parameters, operands, strict=True))})
            # Not reported again: otherwise each level of nesting would add a sentence.
            if any(entry.name not in values for entry in graph.output):
                raise ReportedError
            return [values[entry.name] for entry in graph.output]

        return OnnxNode(
            op_type=proto.op_type,
            name=name_of(proto),
            inputs=tuple(names[operand] for operand in proto.input),
            outputs=tuple(proto.output),
            attributes=read_attributes(proto),
            opset=self._opset,
            convert_body=body,
            convert_step=partial(self._convert_step, names),
        )

    def _convert_step(
        self,
        names: Mapping[str, str],
        body: onnx.GraphProto,
        builder: GraphBuilder,
        capture: Callable[[str], str],
        inputs: Sequence[str],
    ) -> Sequence[str]:
        """Convert a body into the graph of a step; `names` are known around it. Returns the results there.

        Raises: UnsupportedOperatorError for the first node that cannot be converted.
        """
        known = dict(zip((entry.name for entry in body.input), inputs, strict=True))
        for name in free_names(body):
            outer = names.get(name)
            if outer is None or isinstance(outer, TensorSequence):
                raise UnsupportedOperatorError(f"the body reads {name!r}, which is no tensor of the graph around it")
            known[name] = capture(outer)
        inner = Conversion(builder, self._converters, self._opset)
        inner._count = self._count  # attempts count too: those of nested loops grow exponentially with their depth
        made = inner.convert(body, known)
        self._count = inner._count
        lost = [entry.name for entry in body.output if entry.name not in made]
        if inner.problems or lost:
            raise UnsupportedOperatorError((inner.problems or [f"nothing computes {lost[0]!r}"])[0])
        if any(isinstance(made[entry.name], TensorSequence) for entry in body.output):
            raise UnsupportedOperatorError("the body makes a sequence of tensors")
        return [made[entry.name] for entry in body.output]

    def _count_node(self, proto: onnx.NodeProto) -> None:
        # Counted across bodies, which multiply: nested loops grow exponentially with their depth.
        self._count += 1
        if self._count > MOST_NODES:
            why = f"more than {MOST_NODES:,} nodes once loops are unrolled"
            raise UnsupportedOperatorError(f"{name_of(proto)!r}: {why}")

    def _takes(self, proto: onnx.NodeProto, names: Mapping[str, str]) -> bool:
        """Whether the node can be converted; if not, adds a problem."""
        if operator_of(proto) not in self._converters:
            self.problems.append(missing_operator(proto))
            return False
        absent = [operand for operand in proto.input if operand not in names]
        if absent:
            self.problems.append(f"{name_of(proto)!r} ({proto.op_type}): nothing computes its operand {absent[0]!r}")
        return not absent

    def _note(self, error: UnsupportedOperatorError) -> None:
        if isinstance(error, ReportedError):
            return
        self.problems.append(str(error))
        if isinstance(error, UnknownValueError):
            self.unknown.update(dict.fromkeys(error.inputs))
            self.solvable += 1


def missing_operator(proto: onnx.NodeProto) -> str:
    """The name in messages of a node whose operator has no converter."""
    return f"{name_of(proto)!r} ({operator_of(proto)})"
