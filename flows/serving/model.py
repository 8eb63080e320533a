"""A compiled network as a model that is served: what its tensors are, and runs on an executor for each instance."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from queue import SimpleQueue

from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.device import cpu
from retune.compiler.runtime.executor.graph_executor import GraphExecutor
from retune.compiler.runtime.executor.library import Library

ANY = -1
"""The protocol's sign for a dimension that differs from request to request."""
MOST_ELEMENTS = 1 << 22
"""Elements that a request may have of an input without bounds: 128 MiB as JSON."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or an output of a network; a dimension of the shape that differs from request to request is `ANY`, and
    `most` has its largest extent, None without bound.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    most: tuple[int | None, ...]

    @property
    def most_elements(self) -> int:
        """How many elements a request may have of it."""
        known = [extent for extent in self.most if extent is not None]
        return prod(known) if len(known) == len(self.most) else MOST_ELEMENTS

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether an array of this shape may be it."""
        pairs = zip(shape, self.shape, strict=False)
        return len(shape) == len(self.shape) and all(known in (ANY, extent) for extent, known in pairs)


class Model:
    """A network of known shapes. `instances` threads may call `run` at a time, by default as many as it was tuned for;
    they share kernels and weights.
    """

    def __init__(self, library: Library, instances: int | None = None) -> None:
        self.instances = instances or library.instances
        # A queue and no lock for each: whichever instance is idle takes the next run.
        self._idle: SimpleQueue[GraphExecutor] = SimpleQueue()
        executors: list[GraphExecutor] = [library["default"](cpu()) for _ in range(self.instances)]
        for executor in executors:
            self._idle.put(executor)
        self.inputs = _specs(executors[0].get_input_info())
        self.outputs = _specs(executors[0].get_output_info())

    @classmethod
    def load(cls, path: str | Path, instances: int | None = None) -> "Model":
        """The model of a file, .retune or .so. Raises: ArtifactError as `Library.load`, also for dynamic shapes."""
        return cls(Library.load(path), instances)

    def check(self, inputs: Mapping[str, Array]) -> None:
        """Check shapes further than their specs say. Raises: OptionError."""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs by name, for an array of the right shape and type for every input."""
        # An executor has one set of inputs: the queue hands each to one thread at a time.
        executor = self._idle.get()
        try:
            executor.run(**inputs)
            return {spec.name: executor.get_output(index) for index, spec in enumerate(self.outputs)}
        finally:
            self._idle.put(executor)


def _specs(info: tuple[dict[str, tuple[int, ...]], dict[str, str]]) -> tuple[TensorSpec, ...]:
    shapes, dtypes = info
    return tuple(TensorSpec(name, shape, dtypes[name], shape) for name, shape in shapes.items())
