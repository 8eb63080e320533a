"""In: ONNX nodes without control flow at run time. Out: a region, of which the importer makes a graph for given shapes.

Always: what the region computes is said by its nodes alone; constants are the program's, and are not copied.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from retune.compiler.errors import ArtifactError, ModelFormatError, ShapeMismatchError, UnknownValueError
from retune.compiler.frontend.onnx.conversion import Conversion
from retune.compiler.frontend.onnx.dependence import check_bodies, read_names
from retune.compiler.frontend.onnx.elementwise import DTYPES
from retune.compiler.frontend.onnx.importer import CONVERTERS
from retune.compiler.graph.builder import GraphBuilder
from retune.compiler.graph.evaluate import evaluate
from retune.compiler.graph.ir import Array, Graph, Value
from retune.compiler.graph.region import Dimension, Param, Shape
from retune.compiler.runtime.archive import DAMAGE

KIND = "onnx"


@dataclass(frozen=True, eq=False)
class OnnxRegion:
    """The nodes of an ONNX graph. `dtypes` are those of the inputs, "" where nothing says it."""

    name: str
    graph: onnx.GraphProto
    opset: int
    inputs: tuple[str, ...]
    dtypes: tuple[str, ...]
    constants: tuple[str, ...]
    determining: tuple[str, ...]
    results: tuple[Param, ...]

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the results."""
        return tuple(result.name for result in self.results)

    @property
    def kind(self) -> str:
        """Read by `OnnxRegion.from_bytes`."""
        return KIND

    @cached_property
    def key(self) -> str:
        """The hash of all but the name."""
        digest = hashlib.sha256(json.dumps(self._head()).encode())
        digest.update(self.graph.SerializeToString(deterministic=True))
        return digest.hexdigest()[:32]

    def specialise(
        self, shapes: Mapping[str, Shape], values: Mapping[str, Array], constants: Mapping[str, Array]
    ) -> Graph:
        """The graph for inputs of these shapes: see `Region`.

        Raises: UnknownValueError that names inputs whose values are needed too; ShapeMismatchError, with the names of
        nodes, when the shapes do not fit.
        """
        fed = []
        for name, dtype in zip(self.inputs, self.dtypes, strict=True):
            if name in values:
                continue
            if not dtype:
                message = f"region {self.name}: nothing says which elements {name!r} has"
                raise UnknownValueError(message, (name,))
            fed.append(Value(name, shapes[name], dtype))
        return self._converted(fed, values, constants)

    def evaluate(self, inputs: Mapping[str, Array], constants: Mapping[str, Array]) -> tuple[Array, ...]:
        """The outputs. Raises: ShapeMismatchError, with the names of nodes, when the arrays do not fit."""
        return evaluate(self._converted((), inputs, constants), {})

    def _converted(self, fed: Sequence[Value], values: Mapping[str, Array], constants: Mapping[str, Array]) -> Graph:
        """The graph; if nothing is fed, the importer has computed all there is, node by node."""
        builder = GraphBuilder(self.name, fed)
        known = {value.name: value.name for value in fed}
        known |= {name: builder.constant(constants[name], name) for name in self.constants}
        known |= {name: builder.constant(values[name], name) for name in self.inputs if name in values}
        conversion = Conversion(builder, CONVERTERS, self.opset)
        names = conversion.convert(self.graph, known)
        if conversion.problems:
            given = ", ".join(f"{value.name} of {list(value.shape)}" for value in fed)
            message = f"region {self.name}{' for ' if given else ''}{given}: {'; '.join(conversion.problems)}"
            if conversion.solvable == len(conversion.problems):
                raise UnknownValueError(message, tuple(conversion.unknown))
            raise ShapeMismatchError(message)
        graph = builder.finish({name: names[name] for name in self.outputs})
        self._check(graph)
        return graph

    def _check(self, graph: Graph) -> None:
        """Whoever makes room for results, or compiles what reads them, relies on what is known of them."""
        for result, found in zip(self.results, graph.output_values(), strict=True):
            known = result.dims if result.dims is not None else (None,) * len(found.shape)
            fits = len(known) == len(found.shape) and result.dtype in (None, found.dtype)
            numbers = [(dim, extent) for dim, extent in zip(known, found.shape, strict=False) if isinstance(dim, int)]
            if not fits or any(dim != extent for dim, extent in numbers):
                raise ShapeMismatchError(f"region {self.name}: {result}, as ONNX infers, turns out to be {found}")

    def _head(self) -> dict[str, object]:
        return {
            "opset": self.opset,
            "inputs": self.inputs,
            "dtypes": self.dtypes,
            "constants": self.constants,
            "determining": self.determining,
            "results": [[result.name, result.dtype, result.dims] for result in self.results],
        }

    def to_bytes(self) -> bytes:
        """The region as an ONNX graph with its head as documentation."""
        head = json.dumps({"name": self.name, **self._head()})
        graph = onnx.GraphProto(doc_string=head)
        graph.MergeFrom(self.graph)
        return bytes(graph.SerializeToString(deterministic=True))

    @classmethod
    def from_bytes(cls, data: bytes) -> "OnnxRegion":
        """The region that these bytes were made of. Raises: ArtifactError when there is none."""
        graph = onnx.GraphProto()
        try:
            graph.ParseFromString(data)
            head = json.loads(graph.doc_string)
            graph.ClearField("doc_string")
            lists = {key: _names(head[key]) for key in ("inputs", "dtypes", "constants", "determining")}
            results = tuple(_param(*row) for row in head["results"])
            region = cls(name=str(head["name"]), graph=graph, opset=int(head["opset"]), results=results, **lists)
            check_bodies(graph)
        except (*DAMAGE, DecodeError, ModelFormatError) as error:
            raise ArtifactError(f"these bytes are not a region: {type(error).__name__}: {error}") from None
        fault = region._fault()
        if fault:
            raise ArtifactError(f"these bytes are not a region: {fault}")
        return region

    def _fault(self) -> str:
        """What is wrong with a region that was read; "" when nothing is."""
        given = {*self.inputs, *self.constants}
        if len(given) != len(self.inputs) + len(self.constants) or len(self.dtypes) != len(self.inputs):
            return "its inputs are not described, or twice"
        if not set(self.determining) <= set(self.inputs):
            return "what determines it is no input"
        if not {*self.dtypes, *(result.dtype or "" for result in self.results)} <= {"", *DTYPES}:
            return "it has elements of an unknown type"
        made = given.union(*(node.output for node in self.graph.node))
        unknown = set[str]().union(*map(read_names, self.graph.node)) - made
        if unknown:
            return f"nothing computes {min(map(repr, unknown))}"  # a name in broken bytes may be no text
        absent = [name for name in self.outputs if name not in made or name in given]
        return f"nothing computes its result {absent[0]!r}" if absent else ""


def _names(given: object) -> tuple[str, ...]:
    """The names in a list. Raises: TypeError when there is anything else."""
    names = tuple(name for name in given if isinstance(name, str)) if isinstance(given, list) else None
    if names is None or not isinstance(given, list) or len(names) != len(given):
        raise TypeError(f"{given!r} is no list of names")
    return names


def _param(name: object, dtype: object, dims: object) -> Param:
    """What is known of a value. Raises: TypeError when that is something else."""
    if not isinstance(name, str) or not isinstance(dtype, str | None) or not isinstance(dims, list | None):
        raise TypeError(f"{name!r} is not described")
    extents: list[Dimension] = [dim for dim in dims or () if isinstance(dim, int | str | None)]
    if len(extents) != len(dims or ()):
        raise TypeError(f"{name!r} has other dimensions than numbers and symbols")
    return Param(name, dtype, None if dims is None else tuple(extents))
