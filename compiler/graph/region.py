"""Regions: subgraphs without run-time control flow that yield a `Graph` for each set of input shapes.

A `Graph` is valid for all inputs of its shapes that have the same values of the determining inputs.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar

from retune.compiler.core.errors import ShapeMismatchError
from retune.compiler.core.json_reader import JsonObject
from retune.compiler.graph.ir import Array, Graph
from retune.compiler.ir.attributes import Shape as Shape

Dimension = int | str | None
"""A number; a symbol, equal for all of a function's parameters that use it; None if unknown."""
Dims = tuple[Dimension, ...]
RuntimeValue = Array | tuple[Array, ...] | None
"""A value of a function: a tensor, a sequence of tensors, or an optional value that is absent."""

TENSOR, SEQUENCE, OPTIONAL, OPTIONAL_SEQUENCE = "tensor", "sequence", "optional tensor", "optional sequence"
FORMS = (TENSOR, SEQUENCE, OPTIONAL, OPTIONAL_SEQUENCE)


@dataclass(frozen=True, slots=True)
class Param:
    """The static type of a value: `dims` is None if the rank is unknown, `dtype` is None if the dtype is. A value of
    another `form` than a tensor has the dtype of its tensors, and no dims.
    """

    name: str
    dtype: str | None
    dims: tuple[Dimension, ...] | None = None
    form: str = TENSOR

    @property
    def is_tensor(self) -> bool:
        return self.form == TENSOR

    @property
    def shape(self) -> Shape | None:
        dims = () if self.dims is None else self.dims
        numbers = tuple(extent for extent in dims if isinstance(extent, int))
        return numbers if self.dims is not None and len(numbers) == len(dims) else None

    def to_json(self) -> list[object]:
        return [self.name, self.dtype, self.dims, *([] if self.form == TENSOR else [self.form])]

    @classmethod
    def from_json(cls, name: object, dtype: object, dims: object, form: object = TENSOR) -> "Param":
        """The inverse of `to_json`. Raises: TypeError for anything else."""
        if not isinstance(form, str) or form not in FORMS or (form != TENSOR and dims is not None):
            raise TypeError(f"{name!r:.40} has the form {form!r:.40}")
        if not isinstance(name, str) or not isinstance(dtype, str | None) or not isinstance(dims, list | None):
            raise TypeError(f"{name!r} is not described")
        extents: list[Dimension] = [dim for dim in dims or () if isinstance(dim, int | str | None)]
        if len(extents) != len(dims or ()):
            raise TypeError(f"{name!r} has other dimensions than numbers and symbols")
        return cls(name, dtype, None if dims is None else tuple(extents), form)

    def __str__(self) -> str:
        if self.form != TENSOR:
            return f"{self.name}: {self.form} of {self.dtype or '?'}"
        inner = "..." if self.dims is None else ", ".join("?" if dim is None else str(dim) for dim in self.dims)
        return f"{self.name}: {self.dtype or '?'}[{inner}]"


@dataclass(frozen=True, eq=False, kw_only=True)
class Region(ABC):
    """A subgraph of a network without run-time control flow.

    `inputs` and `constants` are the region's names for the arrays it reads: call arguments, in order, and the program's
    constants of those names. `determining` are the inputs whose values, not only their shapes, determine the shapes of
    results: a `Graph` is valid only for inputs with the same values of these. `results` are the static types of the
    outputs, in order; a virtual machine needs at least their dtypes.
    """

    kind: ClassVar[str]
    """The key of the function that reads `to_bytes`."""

    name: str
    inputs: tuple[str, ...]
    constants: tuple[str, ...]
    determining: tuple[str, ...]
    results: tuple[Param, ...]

    @property
    def outputs(self) -> tuple[str, ...]:
        """The results of a call, in order; the outputs of every `Graph` of the region have these names."""
        return tuple(result.name for result in self.results)

    @cached_property
    def key(self) -> str:
        """A hash (32 hex digits), equal for regions that compute the same from the same constants, in every process."""
        # 128 bits: no two regions of a process collide in practice.
        return hashlib.sha256(self._content()).hexdigest()[:32]

    @abstractmethod
    def _content(self) -> bytes:
        """The hashed content of `key`."""

    @abstractmethod
    def specialize(
        self, shapes: Mapping[str, Shape], values: Mapping[str, Array], constants: Mapping[str, Array]
    ) -> Graph:
        """The unoptimized graph for inputs of these shapes.

        `shapes` has every input, `values` at least the determining ones; inputs in `values` are constants of the graph,
        so the graph's inputs are the others, in the region's order, and `constants` are the program's.
        Raises: UnknownValueError that names further inputs whose values are needed: call again with these;
        ShapeMismatchError, with the node's name, when the shapes do not fit.
        """

    @abstractmethod
    def evaluate(self, inputs: Mapping[str, Any], constants: Mapping[str, Array]) -> tuple[Any, ...]:
        """The outputs, each a `RuntimeValue`, by NumPy: correct for all inputs, slow.

        Raises: ShapeMismatchError for invalid inputs.
        """

    def symbolic(
        self, dims: Mapping[str, Dims | None], fixed: Mapping[str, Array], constants: Mapping[str, Array]
    ) -> "Region":
        """The region with symbolic dimensions, whose `specialize` does not need the front end; the region itself if it
        does not need it already, or has no symbolic form. `dims` are the inputs' most likely dimensions, `fixed` the
        inputs that are the same array in every call.
        """
        del dims, fixed, constants
        return self

    @abstractmethod
    def to_bytes(self) -> bytes:
        """The region as data, without the program's constants."""

    def _description(self) -> dict[str, object]:
        """The fields except the name, as JSON."""
        return {
            "inputs": self.inputs,
            "constants": self.constants,
            "determining": self.determining,
            "results": [result.to_json() for result in self.results],
        }

    @staticmethod
    def _fields(head: JsonObject) -> dict[str, Any]:
        """The inverse of `_description`, with the name. Raises: KeyError or TypeError for anything else."""
        names = {key: names_in(head[key]) for key in ("inputs", "constants", "determining")}
        return {"name": str(head["name"]), **names, "results": tuple(Param.from_json(*row) for row in head["results"])}


def check_results(region: Region, graph: Graph) -> None:
    """Check a graph's outputs against the static types of the region's results, which buffers and compiled readers rely
    on. Raises: ShapeMismatchError.
    """
    for result, output in zip(region.results, graph.output_values(), strict=True):
        known = result.dims if result.dims is not None else (None,) * len(output.shape)
        fits = len(known) == len(output.shape) and result.dtype in (None, output.dtype)
        numbers = [(dim, extent) for dim, extent in zip(known, output.shape, strict=False) if isinstance(dim, int)]
        if not fits or any(dim != extent for dim, extent in numbers):
            raise ShapeMismatchError(f"{result}, as was inferred, turns out to be {output}")


def names_in(names: object) -> tuple[str, ...]:
    """The names in a list that was read. Raises: TypeError for anything else."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"{names!r:.80} is no list of names")
    return tuple(names)


def bind(
    params: Sequence[Param],
    values: Mapping[str, RuntimeValue],
    ranges: Mapping[str, tuple[int, int]] = MappingProxyType({}),
) -> dict[str, int]:
    """The value of each symbol of `params`, from the shapes of `values`.

    Raises: ShapeMismatchError that names the input when a value is missing or has another form, dtype, rank or extent,
    when two extents of one symbol differ, and when an extent is out of its range in `ranges`.
    """
    bound: dict[str, tuple[int, str, int]] = {}  # and where: texts are for errors, and each call comes here
    for param in params:
        array = values.get(param.name)
        if not param.is_tensor:
            _check_form(param, array)
            continue
        if array is None:
            raise ShapeMismatchError(f"no array is given for the input {param}")
        if isinstance(array, tuple):
            raise ShapeMismatchError(f"the input {param} is a tensor, and is given a sequence of arrays")
        if param.dtype is not None and array.dtype != param.dtype:
            raise ShapeMismatchError(f"the input {param} is given elements of {array.dtype.name}")
        if param.dims is None:
            continue
        if array.ndim != len(param.dims):
            raise ShapeMismatchError(
                f"the input {param} has rank {len(param.dims)}, and is given an array of rank {array.ndim}, "
                f"{list(array.shape)}"
            )
        for axis, (dim, extent) in enumerate(zip(param.dims, array.shape, strict=True)):
            if isinstance(dim, int) and dim != extent:
                raise ShapeMismatchError(f"the input {param} is given an array of {list(array.shape)}")
            if isinstance(dim, str):
                first, name, at = bound.setdefault(dim, (extent, param.name, axis))
                if first != extent:
                    raise ShapeMismatchError(
                        f"{dim} is {first} in dimension {at} of {name} and {extent} in dimension {axis} of "
                        f"{param.name}; these must be equal"
                    )
    for symbol, (low, high) in ranges.items():
        extent, name, axis = bound.get(symbol, (low, "", 0))
        if not low <= extent <= high:
            raise ShapeMismatchError(
                f"{symbol} is {extent} in dimension {axis} of {name}; the network takes {low} to {high}"
            )
    return {symbol: extent for symbol, (extent, _, _) in bound.items()}


def _check_form(param: Param, value: RuntimeValue) -> None:
    """Check a value of another form than a tensor. Raises: ShapeMismatchError."""
    if value is None:
        if param.form == SEQUENCE:
            raise ShapeMismatchError(f"the input {param} is not optional, and is given None")
        return
    if isinstance(value, tuple) != (param.form in (SEQUENCE, OPTIONAL_SEQUENCE)):
        kind = "a sequence of arrays" if isinstance(value, tuple) else "an array"
        raise ShapeMismatchError(f"the input {param} is given {kind}")
    for index, array in enumerate(value if isinstance(value, tuple) else (value,)):
        if param.dtype not in (None, array.dtype.name):
            which = f"array {index} of the input" if isinstance(value, tuple) else "the input"
            raise ShapeMismatchError(f"{which} {param} has elements of {array.dtype.name}")
