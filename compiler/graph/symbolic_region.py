"""Regions whose shapes are symbolic: a front end's conversion of a part of a network, for all shapes at once.

The guards of its symbolic graphs select the valid graph. For shapes without a valid graph the front end's own region,
the `origin`, is read on demand.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from retune.compiler.core.json_reader import JsonObject
from retune.compiler.graph.evaluate import evaluate
from retune.compiler.graph.graph_bytes import graph_from_parts, graph_to_parts
from retune.compiler.graph.ir import Array, Graph
from retune.compiler.graph.region import Dimension, Dims, Region, Shape, check_results, names_in
from retune.compiler.graph.symbolic import SymbolicGraph
from retune.compiler.ir.dims import Dim
from retune.compiler.ir.guards import Guard
from retune.compiler.runtime.archive import Archive, archive_bytes, reject_damage

_ARCHIVE, _VERSION = "region", 1

ReadRegion = Callable[[str, bytes], Region]
"""Reads the region of a kind from bytes. Raises: ArtifactError."""


@dataclass(frozen=True, slots=True)
class RegionBytes:
    kind: str
    data: bytes


@dataclass(frozen=True, eq=False, kw_only=True)
class SymbolicRegion(Region):
    """A region as symbolic graphs; the first valid graph is used."""

    kind: ClassVar[str] = "symbolic"

    variants: tuple[SymbolicGraph, ...]
    origin: RegionBytes
    read: ReadRegion

    def _content(self) -> bytes:
        return json.dumps([self.origin.kind, self.inputs]).encode() + self.origin.data

    @cached_property
    def original(self) -> Region:
        """The front end's region. Raises: ArtifactError."""
        return self.read(self.origin.kind, self.origin.data)

    def specialize(
        self, shapes: Mapping[str, Shape], values: Mapping[str, Array], constants: Mapping[str, Array]
    ) -> Graph:
        """The graph for inputs of these shapes: see `Region`. Raises: like the original if no variant is valid."""
        every = {**{name: constants[name] for name in self.constants}, **values}
        for variant in self.variants:
            numbers = variant.numbers(shapes, every) if variant.constants <= set(every) else None
            if numbers is not None:
                try:
                    graph = variant.static(numbers, every)
                except (LookupError, ArithmeticError, ValueError):  # of NumPy, for shapes that fit no operator
                    break  # the original reports what is wrong with them
                # Readers of the results were compiled for the inferred shapes.
                check_results(self, graph)
                return graph
        return self.original.specialize(shapes, values, constants)

    def evaluate(self, inputs: Mapping[str, Array], constants: Mapping[str, Array]) -> tuple[Array, ...]:
        """The outputs. Raises: like `specialize`."""
        values = {name: array for name, array in inputs.items() if name in self.determining}
        graph = self.specialize({name: array.shape for name, array in inputs.items()}, values, constants)
        return evaluate(graph, {name: array for name, array in inputs.items() if name not in values})

    @property
    def likely_dims(self) -> tuple[Dims, ...]:
        """The dimensions of the outputs of the most general graph: numbers and symbols of inputs."""
        graph = self.variants[0].graph
        return tuple(tuple(map(_likely, value.shape)) for value in graph.output_values())

    def to_bytes(self) -> bytes:
        rows: list[object] = []
        arrays: dict[str, object] = {}
        for number, variant in enumerate(self.variants):
            head, constants = graph_to_parts(variant.graph)
            guards = [guard.to_json() for guard in variant.guards]
            rows.append({"graph": head, "guards": guards, "constants": sorted(variant.constants)})
            arrays |= {f"variants/{number}/{index}.npy": array for index, array in enumerate(constants)}
        head = {"name": self.name, **self._description(), "origin": self.origin.kind, "variants": rows}
        parts = {"region.json": head, "origin": self.origin.data, **arrays}
        return archive_bytes(_ARCHIVE, _VERSION, parts, compress=True)

    @classmethod
    def from_bytes(cls, data: bytes, read: ReadRegion) -> "SymbolicRegion":
        """The inverse of `to_bytes`; `read` reads the original. Raises: ArtifactError."""
        with reject_damage("region", "these bytes"):
            archive = Archive(data, _ARCHIVE, _VERSION)
            head = archive.json("region.json")
            rows = enumerate(head["variants"])
            return cls(
                **cls._fields(head),
                variants=tuple(_variant(row, archive, f"variants/{number}/{{}}.npy") for number, row in rows),
                origin=RegionBytes(str(head["origin"]), archive.blob("origin")),
                read=read,
            )


def _likely(dim: int) -> Dimension:
    if not isinstance(dim, Dim):
        return dim
    return str(dim) if str(dim) in dim.symbols else None


def _variant(row: JsonObject, archive: Archive, part: str) -> SymbolicGraph:
    count = len(row["graph"]["constants"])
    graph = graph_from_parts(row["graph"], [archive.array(part.format(index)) for index in range(count)])
    guards = tuple(Guard.of(*guard) for guard in row["guards"])
    return SymbolicGraph(graph, guards, frozenset(names_in(row["constants"])))
