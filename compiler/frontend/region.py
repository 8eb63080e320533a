"""Regions of ONNX nodes without run-time control flow, and their symbolic regions.

The nodes alone define a region's computation; constants are the program's, and are not copied. The importer makes a
graph for given shapes, or once for symbolic dimensions.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from retune.compiler.core.errors import (
    ArtifactError,
    ModelError,
    ModelFormatError,
    ShapeMismatchError,
    UnknownValueError,
)
from retune.compiler.frontend.dependence import check_bodies, read_names
from retune.compiler.frontend.importer import CONVERTERS
from retune.compiler.frontend.ops.attributes import TensorSequence
from retune.compiler.frontend.ops.conversion import Conversion
from retune.compiler.frontend.ops.elementwise import DTYPES
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.evaluate import evaluate
from retune.compiler.graph.ir import Array, Graph, Value
from retune.compiler.graph.region import Dimension, Dims, Region, RuntimeValue, Shape, check_results, names_in
from retune.compiler.graph.symbolic import SymbolicBuilder, SymbolicGraph, element_symbols, variants
from retune.compiler.graph.symbolic_region import RegionBytes, SymbolicRegion
from retune.compiler.ir.dims import Dim
from retune.compiler.ir.guards import Assumptions, Guard
from retune.compiler.runtime.archive import DAMAGE, damage_text

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False, kw_only=True)
class OnnxRegion(Region):
    """The nodes of an ONNX graph. `dtypes` are the inputs' dtypes, "" if unknown."""

    kind: ClassVar[str] = "onnx"

    graph: onnx.GraphProto
    opset: int
    dtypes: tuple[str, ...]

    def _content(self) -> bytes:
        return json.dumps(self._description()).encode() + bytes(self.graph.SerializeToString(deterministic=True))

    def specialize(
        self, shapes: Mapping[str, Shape], values: Mapping[str, Array], constants: Mapping[str, Array]
    ) -> Graph:
        """The graph for inputs of these shapes: see `Region`.

        Raises: UnknownValueError that names further inputs whose values are needed; ShapeMismatchError, with the names
        of nodes, for invalid shapes.
        """
        fed = []
        for name, dtype in zip(self.inputs, self.dtypes, strict=True):
            if name in values:
                continue
            if not dtype:
                message = f"nothing says which elements {name!r} has"
                raise UnknownValueError(message, (name,))
            fed.append(Value(name, shapes[name], dtype))
        return self._convert(fed, values, constants)

    def evaluate(self, inputs: Mapping[str, Any], constants: Mapping[str, Array]) -> tuple[RuntimeValue, ...]:
        """The outputs. Raises: ShapeMismatchError, with the names of nodes, for invalid values."""
        builder, names = self._conversion((), inputs, constants)
        parts = [_tensors(names[name]) for name in self.outputs]
        named = {f"{index}.{part}": name for index, group in enumerate(parts) for part, name in enumerate(group)}
        arrays = iter(evaluate(builder.finish(named), {}))
        results = [tuple(next(arrays) for _ in group) for group in parts]
        return tuple(
            tensors if isinstance(names[name], TensorSequence) else next(iter(tensors), None)
            for name, tensors in zip(self.outputs, results, strict=True)
        )

    def symbolic(
        self, dims: Mapping[str, Dims | None], fixed: Mapping[str, Array], constants: Mapping[str, Array]
    ) -> Region:
        """The symbolic region; the region itself if types are unknown, data decides, or converters need numbers."""
        described = self._describe(dims, fixed, constants)
        if described is None:
            return self
        inputs, known = described
        elements = [item for array in known.values() if array.dtype == object for item in array.flat]
        extents = [dim for value in inputs for dim in value.shape if isinstance(dim, Dim)]
        symbols = dict.fromkeys(map(str, [*extents, *elements]))
        graphs = variants(lambda numbers: self._symbolic_graph(inputs, known, numbers), tuple(symbols))
        if not graphs:
            return self
        return SymbolicRegion(
            name=self.name,
            inputs=self.inputs,
            constants=self.constants,
            determining=self.determining,
            results=self.results,
            variants=graphs,
            origin=RegionBytes(self.kind, self.to_bytes()),
            read=lambda _, data: OnnxRegion.from_bytes(data),
        )

    def _describe(
        self, dims: Mapping[str, Dims | None], fixed: Mapping[str, Array], constants: Mapping[str, Array]
    ) -> tuple[list[Value], dict[str, Array]] | None:
        """The inputs with symbolic dimensions, and the elements of constant ones; None if too little is known."""
        known = {name: constants[name] for name in self.constants} | dict(fixed)
        inputs = [Value(name, array.shape, array.dtype.name) for name, array in known.items()]
        for name, dtype in zip(self.inputs, self.dtypes, strict=True):
            if name in fixed:
                continue
            input_dims = dims.get(name)
            if not dtype or input_dims is None:
                return None
            shape = tuple(_extent(f"{name}.{axis}", dim) for axis, dim in enumerate(input_dims))
            value = Value(name, shape, dtype)
            if name in self.determining:
                elements = element_symbols(value)
                if elements is None:
                    return None
                known[name] = elements
            inputs.append(value)
        return inputs, known

    def _symbolic_graph(
        self, inputs: Sequence[Value], known: Mapping[str, Array], numbers: Mapping[str, int]
    ) -> SymbolicGraph | tuple[Guard, ...]:
        """The graph, with `numbers` for the symbols where decisions need them; if it fails the decisions."""
        builder = SymbolicBuilder(self.name, inputs, known)
        with Assumptions(numbers) as assumed:
            conversion = Conversion(builder, CONVERTERS, self.opset)
            try:
                names = conversion.convert(self.graph, {value.name: value.name for value in inputs})
            except ModelError as error:  # too large for these numbers, which only stand for others
                _log.debug("region %s has no symbolic graph for %s: %s", self.name, numbers, error)
                return assumed.guards
            if conversion.problems:
                _log.debug("region %s has no symbolic graph for %s: %s", self.name, numbers, conversion.problems)
                return assumed.guards
            graph = builder.finish({name: names[name] for name in self.outputs})
        return SymbolicGraph(graph, assumed.guards, frozenset(known))

    def _convert(self, fed: Sequence[Value], values: Mapping[str, Array], constants: Mapping[str, Array]) -> Graph:
        builder, names = self._conversion(fed, values, constants)
        graph = builder.finish({name: names[name] for name in self.outputs})
        check_results(self, graph)
        return graph

    def _conversion(
        self, fed: Sequence[Value], values: Mapping[str, RuntimeValue], constants: Mapping[str, Array]
    ) -> tuple[GraphBuilder, dict[str, str]]:
        """The nodes in a builder, and the names there of the region's values; if nothing is fed, the importer has
        computed everything, node by node.
        """
        builder = GraphBuilder(self.name, fed)
        known = {value.name: value.name for value in fed}
        known |= {name: builder.constant(constants[name], name) for name in self.constants}
        known |= {name: _constant(builder, name, values[name]) for name in self.inputs if name in values}
        conversion = Conversion(builder, CONVERTERS, self.opset)
        names = conversion.convert(self.graph, known)
        if conversion.problems:
            shapes = ", ".join(f"{value.name} of {list(value.shape)}" for value in fed)
            message = f"{'; '.join(conversion.problems)}{', for ' if shapes else ''}{shapes}"
            if conversion.solvable == len(conversion.problems):
                raise UnknownValueError(message, tuple(conversion.unknown))
            raise ShapeMismatchError(message)
        return builder, names

    def _description(self) -> dict[str, object]:
        return {"opset": self.opset, "inputs": self.inputs, "dtypes": self.dtypes, **super()._description()}

    def to_bytes(self) -> bytes:
        """The region as an ONNX graph with its head as documentation."""
        head = json.dumps({"name": self.name, **self._description()})
        graph = onnx.GraphProto(doc_string=head)
        graph.MergeFrom(self.graph)
        return bytes(graph.SerializeToString(deterministic=True))

    @classmethod
    def from_bytes(cls, data: bytes) -> "OnnxRegion":
        """The inverse of `to_bytes`. Raises: ArtifactError for anything else."""
        graph = onnx.GraphProto()
        try:
            graph.ParseFromString(data)
            head = json.loads(graph.doc_string)
            graph.ClearField("doc_string")
            region = cls(
                **cls._fields(head),
                graph=graph,
                opset=int(head["opset"]),
                dtypes=names_in(head["dtypes"]),
            )
            check_bodies(graph)
        except (*DAMAGE, DecodeError, ModelFormatError) as error:
            raise ArtifactError(f"these bytes are not a region: {damage_text(error)}") from None
        fault = region._fault()
        if fault:
            raise ArtifactError(f"these bytes are not a region: {fault}")
        return region

    def _fault(self) -> str:
        """A sentence about an invalid region that was read; "" for a valid region."""
        sources = {*self.inputs, *self.constants}
        if len(sources) != len(self.inputs) + len(self.constants) or len(self.dtypes) != len(self.inputs):
            return "its inputs are not described, or twice"
        if not set(self.determining) <= set(self.inputs):
            return "what determines it is no input"
        if not {*self.dtypes, *(result.dtype or "" for result in self.results)} <= {"", *DTYPES}:
            return "it has elements of an unknown type"
        defined = sources.union(*(node.output for node in self.graph.node))
        unknown = set[str]().union(*map(read_names, self.graph.node)) - defined
        if unknown:
            return f"nothing computes {min(map(repr, unknown))}"  # a name in broken bytes may be no text
        absent = [name for name in self.outputs if name not in defined or name in sources]
        return f"nothing computes its result {absent[0]!r}" if absent else ""


def region_from_bytes(kind: str, data: bytes) -> Region:
    """The inverse of `to_bytes`. Used only for regions without a symbolic graph that fits the shapes at hand.
    Raises: ArtifactError for anything else.
    """
    if kind != OnnxRegion.kind:
        raise ArtifactError(f"a region is of the kind {kind!r}; this Retune knows {OnnxRegion.kind}")
    return OnnxRegion.from_bytes(data)


def _constant(builder: GraphBuilder, name: str, value: RuntimeValue) -> str:
    """The name of a known value in a builder: that of an absent value is empty, as of an omitted operand."""
    if value is None:
        return ""
    if isinstance(value, tuple):
        return TensorSequence([builder.constant(array, f"{name}.{index}") for index, array in enumerate(value)])
    return builder.constant(value, name)


def _tensors(name: str) -> tuple[str, ...]:
    """The tensors of a value in a builder."""
    if isinstance(name, TensorSequence):
        return name.parts
    return (name,) if name else ()


def _extent(symbol: str, dim: Dimension) -> int:
    """A dimension; without a symbol, `symbol`."""
    return dim if isinstance(dim, int) else Dim.symbol(dim or symbol)
