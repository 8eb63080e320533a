"""In: the primitives of an executable. Out: for each what `InvokePacked` calls.

What a primitive is says its attribute `kind`:

    kernel      (or none) a kernel of the library
    loop        `goes_on`, `next_turn`, `rank_of_stack`, `shape_of_stack`, `stack`: what a loop needs besides its body
    rank_func   the rank of a result of a region, which nothing says beforehand
    shape_func  shapes and bytes of the results of a region, of its inputs
    region      the region itself, compiled when its shapes are known
    host_shape_func, host    the same of a region that NumPy computes, because its data decides on shapes

Always: a primitive fills the arrays that it is given, or raises.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from retune.compiler.errors import ArtifactError, MachineError
from retune.compiler.runtime.artifact import ArgSpec, Array
from retune.compiler.runtime.buffers import address
from retune.compiler.runtime.device import Device
from retune.compiler.runtime.loader import Kernel
from retune.compiler.vm.contents import Primitive
from retune.compiler.vm.kernel_run import KernelRun, Place, Workspace
from retune.compiler.vm.library import VMLibrary
from retune.compiler.vm.options import VMOptions
from retune.compiler.vm.steps import Callee
from retune.compiler.vm.values import ADT, described, whole_number

Shape = tuple[int, ...]
KERNEL, LOOP = "kernel", "loop"
RANK_FUNC, SHAPE_FUNC, REGION = "rank_func", "shape_func", "region"
HOST_SHAPE_FUNC, HOST = "host_shape_func", "host"
UNKNOWN = "?"
"""A dimension that is no number, in the attribute `dims`."""


class KernelPrimitive:
    """One kernel on the arrays of a call."""

    def __init__(self, kernel: Kernel, threads: int, workspace: Workspace) -> None:
        self.kernel = kernel
        self.threads = threads
        self.workspace = workspace
        self.specs: tuple[ArgSpec, ...] = kernel.artifact.args
        places = [Place(number) for number in range(len(self.specs))]
        self._run = KernelRun([(kernel, places)], threads, workspace)

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Array]) -> None:
        """Run it. Raises: MachineError for arrays that are not the kernel's; ArtifactError when it fails."""
        given = [*inputs, *outputs]
        if len(given) != len(self.specs):
            raise MachineError(f"kernel {self.kernel.artifact.name} takes {len(self.specs)} arrays, not {len(given)}")
        for number, (array, spec) in enumerate(zip(given, self.specs, strict=True)):
            check(array, spec, f"kernel {self.kernel.artifact.name}, argument {spec.name}")
            if spec.is_output != (number >= len(inputs)):
                raise MachineError(f"kernel {self.kernel.artifact.name} has {len(outputs)} outputs in another place")
        self._run([address(array) for array in given])


def check(array: Any, spec: ArgSpec, where: str) -> None:
    """See that an array has the elements of an argument. Raises: MachineError."""
    if not isinstance(array, np.ndarray) or array.dtype != np.dtype(spec.dtype) or array.size != spec.size:
        raise MachineError(f"{where} is {spec.dtype}{list(spec.shape)}, not {described(array)}")


class LazyRegion(Protocol):
    """A region that is made ready for the shapes that turn up."""

    def shapes(self, inputs: Sequence[Array]) -> Sequence[Shape]:
        """The shapes of the results. Raises: an error of ours when the shapes of the inputs do not fit."""
        ...

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        """Fill the results."""
        ...


@dataclass(frozen=True, slots=True)
class RankFunction:
    """outputs[i] = the rank of result i"""

    region: LazyRegion

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Array]) -> None:
        for shape, out in zip(self.region.shapes(inputs), outputs, strict=True):
            out[...] = len(shape)


@dataclass(frozen=True, slots=True)
class ShapeFunction:
    """outputs = shape and bytes of every result, in turn"""

    region: LazyRegion
    item_bytes: tuple[int, ...]

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Array]) -> None:
        shapes = self.region.shapes(inputs)
        for number, (shape, item) in enumerate(zip(shapes, self.item_bytes, strict=True)):
            _write_shape(shape, item, outputs[2 * number], outputs[2 * number + 1])


@dataclass(frozen=True, slots=True)
class RegionFunction:
    """outputs = the results of a region"""

    region: LazyRegion

    def __call__(self, inputs: Sequence[Any], outputs: Sequence[Array]) -> None:
        self.region.run(inputs, outputs)


def _write_shape(shape: Shape, item: int, extents: Array, nbytes: Array) -> None:
    if extents.shape != (len(shape),):
        raise MachineError(f"a result has the shape {list(shape)}, and its rank was said to be {extents.size}")
    extents[...] = shape
    for extent in shape:
        item *= extent
    nbytes[...] = item


def _goes_on(attrs: Mapping[str, str]) -> Callee:
    """Whether a loop makes another turn: of the turn and the count, if it has one, and the condition."""
    counts = attrs.get("counts") == "1"

    def call(inputs: Sequence[Any], outputs: Sequence[Array]) -> None:
        if len(inputs) != 1 + 2 * counts:
            raise MachineError(f"a loop's test takes {1 + 2 * counts} values, not {len(inputs)}")
        holds = whole_number(inputs[-1], "the condition of a loop") != 0
        outputs[0][...] = holds and (
            not counts or whole_number(inputs[0], "the turn") < whole_number(inputs[1], "the number of turns")
        )

    return call


def _next_turn(_: Mapping[str, str]) -> Callee:
    def call(inputs: Sequence[Any], outputs: Sequence[Array]) -> None:
        outputs[0][...] = whole_number(inputs[0], "the turn") + 1

    return call


def _stacked(inputs: Sequence[Any], attrs: Mapping[str, str]) -> tuple[list[Array], Shape]:
    """The rows of a list, whose last one comes first, and the shape of all of them together.

    Raises: MachineError when they differ in shape.
    """
    rows = list(_rows(inputs))[::-1]
    if not rows:
        dims = attrs["dims"].split() if attrs.get("dims") else []
        return [], (0, *(0 if dim == UNKNOWN else int(dim) for dim in dims))
    if any(row.shape != rows[0].shape for row in rows):
        shapes = sorted({str(list(row.shape)) for row in rows})
        raise MachineError(f"a loop collects arrays of different shapes: {', '.join(shapes)}")
    return rows, (len(rows), *rows[0].shape)


def _rows(inputs: Sequence[Any]) -> Iterator[Array]:
    """The heads of a list of which the first cell was taken apart."""
    while inputs:
        head, tail = inputs
        yield head
        if not isinstance(tail, ADT):
            raise MachineError(f"the rest of a list is {described(tail)}")
        inputs = tail.fields


def _rank_of_stack(attrs: Mapping[str, str]) -> Callee:
    def call(inputs: Sequence[Any], outputs: Sequence[Array]) -> None:
        outputs[0][...] = len(_stacked(inputs, attrs)[1])

    return call


def _shape_of_stack(attrs: Mapping[str, str]) -> Callee:
    item = int(attrs["item_bytes"])

    def call(inputs: Sequence[Any], outputs: Sequence[Array]) -> None:
        _write_shape(_stacked(inputs, attrs)[1], item, *outputs)

    return call


def _stack(attrs: Mapping[str, str]) -> Callee:
    def call(inputs: Sequence[Any], outputs: Sequence[Array]) -> None:
        rows, shape = _stacked(inputs, attrs)
        if rows and (rows[0].dtype != outputs[0].dtype or shape != outputs[0].shape):
            raise MachineError(f"a loop collects {described(rows[0])} into {described(outputs[0])}")
        for number, row in enumerate(rows):
            outputs[0][number] = row

    return call


_LOOPS: Mapping[str, Callable[[Mapping[str, str]], Callee]] = {
    "goes_on": _goes_on,
    "next_turn": _next_turn,
    "rank_of_stack": _rank_of_stack,
    "shape_of_stack": _shape_of_stack,
    "stack": _stack,
}


class Primitives:
    """What the primitives of an executable stand for, for one machine."""

    def __init__(
        self,
        library: VMLibrary,
        kernels: Mapping[str, Kernel],
        threads: int,
        arena: Workspace,
        options: VMOptions,
        devices: Sequence[Device],
    ) -> None:
        """`arena` is memory for what lies between kernels; `devices` are those that regions run on."""
        self._library = library
        self._kernels = kernels
        self._threads = threads
        self._arena = arena
        self._options = options
        self._devices = devices
        self._workspace = Workspace()
        self._regions: dict[str, LazyRegion] = {}
        self._compiler: Any = None

    @property
    def regions(self) -> Mapping[str, Any]:
        """The regions by name."""
        return self._regions

    def callee(self, primitive: Primitive) -> Callee:
        """What a primitive calls. Raises: ArtifactError when the library does not have it."""
        attrs = primitive.attrs
        try:
            match attrs.get("kind", KERNEL):
                case "kernel":
                    return KernelPrimitive(self._kernel(primitive.name), self._threads, self._workspace)
                case "loop":
                    return _LOOPS[attrs["function"]](attrs)
                case "rank_func":
                    return RankFunction(self._region(attrs))
                case "shape_func" | "host_shape_func":
                    return ShapeFunction(self._region(attrs), tuple(map(int, attrs["item_bytes"].split())))
                case "region" | "host":
                    return RegionFunction(self._region(attrs))
                case kind:
                    raise ArtifactError(f"primitive {primitive.name} is of an unknown kind, {kind!r}")
        except (KeyError, ValueError) as error:
            raise ArtifactError(f"primitive {primitive.name}: its attributes make no sense: {error}") from error

    def _kernel(self, name: str) -> Kernel:
        if name not in self._kernels:
            raise ArtifactError(f"the library has no kernel {name!r}")
        return self._kernels[name]

    def _region(self, attrs: Mapping[str, str]) -> LazyRegion:
        """The region of a primitive; one object for all primitives that are about it and read the same constants."""
        name = attrs["region"]
        if name not in self._regions:
            if name not in self._library.regions:
                raise ArtifactError(f"the library has no region {name!r}")
            if self._compiler is None:  # a static network needs no compiler to run
                module = importlib.import_module("retune.compiler.vm.specialise")
                self._compiler = module.RegionCompiler(
                    self._library, self._threads, self._arena, self._workspace, self._options, self._devices
                )
            self._regions[name] = self._compiler.region(name, attrs)
        return self._regions[name]
