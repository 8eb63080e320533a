"""Regions of static shapes, and the program of one graph."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from retune.compiler.core.errors import ShapeMismatchError
from retune.compiler.graph.evaluate import evaluate
from retune.compiler.graph.graph_bytes import graph_from_bytes, graph_to_bytes
from retune.compiler.graph.ir import Array, Graph
from retune.compiler.graph.program import MAIN, Call, Function, Program
from retune.compiler.graph.region import Param, Region, Shape


@dataclass(frozen=True, eq=False, kw_only=True)
class GraphRegion(Region):
    """A region of static shapes: a `Graph`, which holds its constants itself."""

    kind: ClassVar[str] = "graph"

    graph: Graph

    @classmethod
    def of(cls, graph: Graph) -> "GraphRegion":
        return cls(
            name=graph.name,
            inputs=tuple(value.name for value in graph.inputs),
            constants=(),
            determining=(),
            results=tuple(Param(value.name, value.dtype, value.shape) for value in graph.output_values()),
            graph=graph,
        )

    def _content(self) -> bytes:
        return self.graph.fingerprint().encode()

    def specialize(
        self, shapes: Mapping[str, Shape], values: Mapping[str, Array], constants: Mapping[str, Array]
    ) -> Graph:
        """The graph itself. Raises: ShapeMismatchError for other shapes than the graph's."""
        del values, constants
        for value in self.graph.inputs:
            if shapes.get(value.name) != value.shape:
                raise ShapeMismatchError(f"graph {self.name}: input {value} got the shape {shapes.get(value.name)}")
        return self.graph

    def evaluate(self, inputs: Mapping[str, Array], constants: Mapping[str, Array]) -> tuple[Array, ...]:
        """The outputs for arrays of the graph's inputs. Raises: DefinitionError for invalid inputs."""
        del constants
        return evaluate(self.graph, inputs)

    def to_bytes(self) -> bytes:
        return graph_to_bytes(self.graph)

    @classmethod
    def from_bytes(cls, data: bytes) -> "GraphRegion":
        """The inverse of `to_bytes`. Raises: ArtifactError for anything else."""
        return cls.of(graph_from_bytes(data))


def of_graph(graph: Graph) -> Program:
    region = GraphRegion.of(graph)
    params = tuple(Param(value.name, value.dtype, value.shape) for value in graph.inputs)
    results = tuple(Param(value.name, value.dtype, value.shape) for value in graph.output_values())
    call = Call(region, region.inputs, region.outputs)
    return Program(graph.name, {MAIN: Function(MAIN, params, (call,), results)}, {}, graph.outputs)
