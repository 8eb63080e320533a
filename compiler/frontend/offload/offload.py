"""Cuts an ONNX model into parts that Retune compiles and nodes that stay with ONNX Runtime, and writes it back.

A node stays if its operator has no converter, it cannot be converted, or it reads an unknown shape. Its level is the
number of parts that must run before it; the converted nodes of one level form a part. So parts are convex, and there
are as few as the nodes between them allow.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

from retune.compiler.core.errors import ModelFormatError, UnsupportedOperatorError
from retune.compiler.frontend.dependence import read_names
from retune.compiler.frontend.importer import CONVERTERS, Shapes, load_model, open_model, read_inputs
from retune.compiler.frontend.model_file import check_model, inferred_graph, operator_of, without_large_weights
from retune.compiler.frontend.ops.conversion import Conversion, missing_operator
from retune.compiler.frontend.ops.elementwise import DTYPES
from retune.compiler.frontend.partition import alive_nodes
from retune.compiler.frontend.types import param_of, write_dims
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.ir import Array, Graph, Node, Value
from retune.compiler.graph.verify import verify

_IR_VERSION = 8
"""IR version of the files: ONNX Runtime 1.17 reads it."""
_OPSET = 17
"""Operator set of a file without standard operators."""


@dataclass(frozen=True, slots=True)
class CustomNode:
    """A node of a custom operator with its input and output tensors."""

    op_type: str
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class OffloadedModel:
    """A model in parts: `parts` are graphs to compile, in order; `staying[i]` are the nodes that run before part i (the
    last ones after all parts), `constants` their constant operands from the parts.
    """

    name: str
    parts: tuple[Graph, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[onnx.ValueInfoProto, ...]
    staying: tuple[tuple[onnx.NodeProto, ...], ...]
    constants: Mapping[str, Array]
    weights: tuple[onnx.TensorProto, ...]
    types: tuple[onnx.ValueInfoProto, ...]
    opsets: tuple[onnx.OperatorSetIdProto, ...]
    ir_version: int

    @property
    def remaining(self) -> tuple[str, ...]:
        """The names in messages of the nodes that stay."""
        return tuple(missing_operator(node) for nodes in self.staying for node in nodes)

    def with_custom_nodes(self, domain: str, op_types: Sequence[str]) -> onnx.ModelProto:
        """The model with a custom node in place of each part."""
        nodes: list[onnx.NodeProto] = []
        types = list(self.types)
        outputs = {entry.name for entry in self.outputs}
        for index, staying in enumerate(self.staying):
            nodes += staying
            if index < len(self.parts):
                part = self.parts[index]
                nodes.append(_custom_node(domain, CustomNode(op_types[index], part.inputs, part.output_values())))
                types += [_entry(value) for value in part.output_values() if value.name not in outputs]
        weights = [*self.weights, *(numpy_helper.from_array(array, name) for name, array in self.constants.items())]
        inputs = [_entry(value) for value in self.inputs]
        graph = helper.make_graph(nodes, self.name, inputs, list(self.outputs), weights, value_info=types)
        return _model(graph, domain, self.opsets, self.ir_version)


def custom_model(name: str, domain: str, node: CustomNode) -> onnx.ModelProto:
    inputs, outputs = map(_entry, node.inputs), map(_entry, node.outputs)
    graph = helper.make_graph([_custom_node(domain, node)], name, list(inputs), list(outputs))
    return _model(graph, domain, (helper.make_opsetid("", _OPSET),), _IR_VERSION)


def _custom_node(domain: str, node: CustomNode) -> onnx.NodeProto:
    inputs, outputs = ([value.name for value in values] for values in (node.inputs, node.outputs))
    return helper.make_node(node.op_type, inputs, outputs, name=node.op_type, domain=domain)


def _model(
    graph: onnx.GraphProto, domain: str, opsets: Sequence[onnx.OperatorSetIdProto], ir_version: int
) -> onnx.ModelProto:
    model = helper.make_model(graph, producer_name="retune", opset_imports=[*opsets, helper.make_opsetid(domain, 1)])
    model.ir_version = ir_version
    return model


def _entry(value: Value) -> onnx.ValueInfoProto:
    shape = [extent if isinstance(extent, int) else str(extent) for extent in value.shape]
    return helper.make_tensor_value_info(value.name, helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype)), shape)


def offload_model(
    source: str | Path | bytes | onnx.ModelProto, *, name: str | None = None, shapes: Shapes | None = None
) -> OffloadedModel:
    """Import as much of a model as possible, whole if possible; `name` and `shapes` as for `load_model`.

    Raises: ModelFormatError, DynamicShapeError like `load_model`; UnsupportedOperatorError when no node can be
    imported.
    """
    try:
        graph = load_model(source, name=name, shapes=shapes)
    except UnsupportedOperatorError as error:
        return _Cut(source, name, shapes or {}, error).model()
    outputs = tuple(map(_entry, graph.output_values()))
    opsets = (helper.make_opsetid("", _OPSET),)
    return OffloadedModel(graph.name, (graph,), graph.inputs, outputs, ((), ()), {}, (), (), opsets, _IR_VERSION)


class _Cut:
    """Finds the nodes that stay, imports the others as one graph, and cuts that by level."""

    def __init__(
        self,
        source: str | Path | bytes | onnx.ModelProto,
        name: str | None,
        shapes: Shapes,
        error: UnsupportedOperatorError,
    ) -> None:
        opened = open_model(source, name, None)
        check_model(opened.original)
        self._name, self._opset, self._model, self._error = opened.name, opened.opset, opened.model, error
        self._inputs = read_inputs(self._model, shapes)
        self._outputs = [entry.name for entry in self._model.graph.output]
        self._nodes = alive_nodes(self._model.graph.node, self._outputs)
        self._weights = {tensor.name: tensor for tensor in self._model.graph.initializer}
        self._types = {entry.name: entry for entry in self._infer_types()}
        self._static = dict(self._known_types())

    def _infer_types(self) -> Iterator[onnx.ValueInfoProto]:
        """ONNX's inferred types for inputs of these shapes."""
        light = onnx.ModelProto()
        light.CopyFrom(without_large_weights(self._model))
        values = {value.name: value for value in self._inputs}
        for entry in light.graph.input:
            if entry.name in values:
                write_dims(entry, values[entry.name].shape)
        graph = inferred_graph(light)
        yield from graph.value_info
        yield from graph.output

    def _known_types(self) -> Iterator[tuple[str, Value]]:
        for name, entry in self._types.items():
            param = param_of(entry)
            if param.dtype in DTYPES and param.shape is not None:
                yield name, Value(name, param.shape, str(param.dtype))

    def model(self) -> OffloadedModel:
        stays = {_key(node) for node in self._nodes if operator_of(node) not in CONVERTERS}
        # Ends because `stays` only grows: every round except the last adds a node to it.
        while True:
            stays = self._with_untyped(stays)
            graph, constants, failed = self._import(stays)
            if not failed - stays:
                break
            stays |= failed
        if graph is None or not graph.nodes:
            raise self._error
        return self._in_parts(graph, constants, stays)

    def _with_untyped(self, stays: Collection[str]) -> set[str]:
        """`stays` plus every node that reads a result of it whose shape is unknown."""
        extended, unknown = set(stays), set[str]()
        for node in self._nodes:
            if _key(node) in extended or unknown.intersection(read_names(node)):
                extended.add(_key(node))
                unknown.update(name for name in node.output if name and name not in self._static)
        return extended

    def _import(self, stays: Collection[str]) -> tuple[Graph | None, dict[str, Array], set[str]]:
        """The other nodes as one graph, whose inputs include results of nodes in `stays`; constants that those read;
        and nodes that could not be converted.
        """
        converted = [node for node in self._nodes if _key(node) not in stays]
        kept = [node for node in self._nodes if _key(node) in stays]
        read = {name for node in converted for name in read_names(node)}
        received = [self._static[name] for node in kept for name in node.output if name in read]
        builder = GraphBuilder(self._name, [*self._inputs, *received])
        conversion = Conversion(builder, CONVERTERS, self._opset)
        subgraph = onnx.GraphProto()
        subgraph.initializer.extend(tensor for name, tensor in self._weights.items() if name in read)
        subgraph.node.extend(converted)
        names = conversion.convert(subgraph, {value.name: value.name for value in (*self._inputs, *received)})
        if conversion.failed:
            return None, {}, set(conversion.failed)
        if conversion.problems:  # of constants
            raise self._error
        computed = {name for node in converted for name in node.output if name}
        wanted = dict.fromkeys(name for name in self._outputs if name in computed)
        wanted.update((name, None) for node in kept for name in read_names(node) if name in computed)
        absent = {_key(node) for node in converted for name in node.output if name in wanted and name not in names}
        if absent:  # a result without a conversion
            return None, {}, absent
        constants = {}
        for name in wanted:
            array = builder.array(names[name])
            if array is not None and name not in self._outputs:
                constants[name] = array
        results = {name: names[name] for name in wanted if name not in constants}
        graph = builder.finish(results)
        verify(graph)
        return graph, constants, set()

    def _in_parts(self, graph: Graph, constants: Mapping[str, Array], stays: Collection[str]) -> OffloadedModel:
        others = [node for node in self._nodes if _key(node) in stays]
        part_of, ready = self._levels(graph, others)
        count = 1 + max(part_of.values())
        made = {name for node in others for name in node.output}
        read = {name for node in others for name in read_names(node)}
        outputs = [
            _entry(graph.values[entry.name]) if entry.name in graph.values else entry
            for entry in self._model.graph.output
        ]
        levels = [min(ready[_key(node)], count) for node in others]
        return OffloadedModel(
            name=self._name,
            parts=tuple(_part(graph, part_of, level) for level in range(count)),
            inputs=tuple(self._inputs),
            outputs=tuple(outputs),
            staying=tuple(
                tuple(node for node, own in zip(others, levels, strict=True) if own == level)
                for level in range(count + 1)
            ),
            constants=constants,
            weights=tuple(tensor for name, tensor in self._weights.items() if name in read),
            types=tuple(entry for name, entry in self._types.items() if name in made - set(self._outputs)),
            opsets=tuple(self._model.opset_import),
            ir_version=max(_IR_VERSION, self._model.ir_version),
        )

    def _levels(self, graph: Graph, others: Sequence[onnx.NodeProto]) -> tuple[dict[str, int], dict[str, int]]:
        """The part that computes each value of the graph, without values computed from constants alone; and the first
        part that can read each value.
        """
        makers = {name: node for node in others for name in node.output if name}
        own = graph.producers()
        follows = {name: node.inputs for name, node in own.items()}
        follows |= {name: read_names(node) for name, node in makers.items()}
        part_of: dict[str, int] = {}
        ready = {value.name: 0 for value in self._inputs}
        # Longest paths in a directed acyclic graph, counted in parts: a converted node joins the part of its latest
        # operand, a staying one waits for it.
        for name in TopologicalSorter(follows).static_order():
            if name in makers:
                before = [part_of[read] + 1 if read in part_of else ready.get(read, 0) for read in follows[name]]
                ready[name] = max(before, default=0)
            elif name in own:
                known = [ready[read] for read in follows[name] if read in ready]
                if known or name in graph.outputs:
                    part_of[name] = ready[name] = max(known, default=0)
        return part_of, ready


def _key(node: onnx.NodeProto) -> str:
    """The identity of a node: its first result."""
    name: str = next(filter(None, node.output))
    return name


def _part(graph: Graph, part_of: Mapping[str, int], level: int) -> Graph:
    """The nodes of one level as a graph, with the nodes on constants alone that they read."""
    later = {name for node in graph.nodes if part_of.get(node.output, level) > level for name in node.inputs}
    nodes: list[Node] = []
    needed: set[str] = set()
    # Backward, so that the readers of a node on constants are known before it: such nodes are copied into every reading
    # part.
    for node in reversed(graph.nodes):
        if part_of.get(node.output) == level or (node.output not in part_of and node.output in needed):
            nodes.insert(0, node)
            needed.update(node.inputs)
    made = [node.output for node in nodes]
    read = [name for name in dict.fromkeys(name for node in nodes for name in node.inputs) if name not in made]
    part = Graph(
        name=f"{graph.name}_{level}",
        inputs=tuple(graph.values[name] for name in read if name not in graph.constants),
        outputs=tuple(name for name in made if name in part_of and (name in graph.outputs or name in later)),
        nodes=tuple(nodes),
        constants={name: graph.constants[name] for name in read if name in graph.constants},
        values={name: graph.values[name] for name in (*read, *made)},
    )
    verify(part)
    return part


def write_model(model: onnx.ModelProto, path: Path) -> None:
    """Write a model into a file, deterministically. Raises: ModelFormatError when it is too large."""
    try:
        path.write_bytes(model.SerializeToString(deterministic=True))
    except ValueError as error:  # of protobuf, beyond 2 GiB
        raise ModelFormatError("what stays with ONNX Runtime is larger than the 2 GiB of an ONNX file") from error
