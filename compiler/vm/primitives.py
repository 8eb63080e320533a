"""Binds the primitives of an executable: says for each what the instructions that name it call.

What a primitive is says its attribute `kind`:

    kernel    (or none) a kernel of the library, for `invoke_packed`
    plan      a compiled network of known shapes, for `run_plan`: the region that holds its plan, and its constants by
              number of the plan's buffer and number of the executable's constant, such as "3:0 5:1"
    region    a region that is compiled when its shapes are known, for `run_region`
    host      a region that NumPy computes, because its data decides on shapes, for `run_region`
    loop      `goes_on`, `next_turn`, `stack`: what a loop needs besides its body, for `run_region`

Bytecode of version 2 calls regions and parts of loops by `invoke_packed`, and has the kinds rank_func, shape_func and
host_shape_func, and the loop functions `rank_of_stack` and `shape_of_stack`: see `StoredCall`.
"""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from retune.compiler.errors import ArtifactError, MachineError
from retune.compiler.executor.network import CompiledNetwork
from retune.compiler.executor.plan import Plan
from retune.compiler.runtime.artifact import ArgSpec, Array
from retune.compiler.runtime.buffers import address
from retune.compiler.runtime.loader import Kernel
from retune.compiler.vm.allocator import Allocator
from retune.compiler.vm.kernel_run import KernelRun, Place
from retune.compiler.vm.library import StoredRegion
from retune.compiler.vm.plan_run import PlanRun
from retune.compiler.vm.program_image import HOST, KERNEL, Primitive, plan_constants
from retune.compiler.vm.resources import Resources
from retune.compiler.vm.steps import BoundPrimitive, Callee, unbound
from retune.compiler.vm.stored_calls import StoredCall
from retune.compiler.vm.values import ADT, TUPLE, described, whole_number

UNKNOWN = "?"
"""A dimension that is no number, in the attribute `dims`."""
_BOOL, _INT64 = np.dtype(np.bool_), np.dtype(np.int64)


class KernelPrimitive:
    """One kernel on the arrays of a call."""

    def __init__(self, kernel: Kernel, resources: Resources) -> None:
        self.kernel = kernel
        self.specs: tuple[ArgSpec, ...] = kernel.artifact.args
        places = [Place(number) for number in range(len(self.specs))]
        self._run = KernelRun([(kernel, places)], resources.threads, resources.workspace)

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
    """Check that an array has the elements of an argument. Raises: MachineError."""
    if not isinstance(array, np.ndarray) or array.dtype != np.dtype(spec.dtype) or array.size != spec.size:
        raise MachineError(f"{where} is {spec.dtype}{list(spec.buffer_shape)}, not {described(array)}")


def _goes_on(inputs: Sequence[Any], *, allocator: Allocator, counts: bool) -> Sequence[Array]:
    """Whether a loop makes another iteration: of the iteration and the count, if it has one, and the condition."""
    if len(inputs) != 1 + 2 * counts:
        raise MachineError(f"a loop's test takes {1 + 2 * counts} values, not {len(inputs)}")
    goes_on = whole_number(inputs[-1], "the condition of a loop") != 0
    if goes_on and counts:
        goes_on = whole_number(inputs[0], "the iteration") < whole_number(inputs[1], "the number of iterations")
    array, _ = allocator.array((), _BOOL, 1)
    array[...] = goes_on
    return (array,)


def _next_iteration(inputs: Sequence[Any], *, allocator: Allocator) -> Sequence[Array]:
    array, _ = allocator.array((), _INT64, 8)
    array[...] = whole_number(inputs[0], "the iteration") + 1
    return (array,)


def _stack(inputs: Sequence[Any], *, allocator: Allocator, dims: str, dtype: "np.dtype[Any]") -> Sequence[Array]:
    """The arrays of a list, whose last one comes first, as rows of one array.

    Raises: MachineError when they differ in shape or type.
    """
    rows = list(_rows(inputs[0]))[::-1]
    if not rows:
        shape = (0, *(0 if dim == UNKNOWN else int(dim) for dim in dims.split()))
        return (allocator.array(shape, dtype, 0)[0],)
    kinds = sorted({described(row) for row in rows})
    if len(kinds) != 1:
        raise MachineError(f"a loop collects arrays of different shapes: {', '.join(kinds)}")
    stacked, _ = allocator.array((len(rows), *rows[0].shape), rows[0].dtype, len(rows) * rows[0].nbytes)
    for number, row in enumerate(rows):
        stacked[number] = row
    return (stacked,)


def _rows(cell: Any) -> Iterator[Array]:
    """The heads of a list."""
    while True:
        if not isinstance(cell, ADT):
            raise MachineError(f"the rest of a list is {described(cell)}")
        if not cell.fields:
            return
        head, cell = cell.fields
        yield head


class Primitives:
    """What the primitives of an executable stand for, for one machine."""

    def __init__(self, resources: Resources, constants: Sequence[Array | None]) -> None:
        """`constants` are None where one is not bound yet."""
        self._resources = resources
        self._constants = constants
        self._regions: dict[str, Callee] = {}
        self._stored: dict[str, StoredCall] = {}
        self._compiler: Any = None

    @property
    def regions(self) -> Mapping[str, Any]:
        """The regions by name."""
        return self._regions

    def bound(self, primitive: Primitive) -> BoundPrimitive:
        """What a primitive stands for. Raises: ArtifactError when the library does not have it."""
        attrs = primitive.attrs
        kind = attrs.get("kind", KERNEL)
        try:
            match kind:
                case "kernel":
                    return BoundPrimitive(fill=KernelPrimitive(self._kernel(primitive.name), self._resources))
                case "plan":
                    return self._plan(primitive.name, attrs)
                case "loop":
                    return self._loop(attrs)
                case "region" | "host":
                    region = self._region(attrs["region"], is_host=kind == HOST)
                    return BoundPrimitive(run=region, fill=self._stored_call(attrs).fill)
                case "rank_func":
                    return BoundPrimitive(fill=self._stored_call(attrs).ranks)
                case "shape_func" | "host_shape_func":
                    return BoundPrimitive(fill=self._stored_call(attrs).shapes)
        except (KeyError, ValueError, TypeError) as error:
            raise ArtifactError(f"primitive {primitive.name}: its attributes make no sense: {error}") from error
        raise ArtifactError(f"primitive {primitive.name} is of an unknown kind, {kind!r}")

    def _kernel(self, name: str) -> Kernel:
        if name not in self._resources.kernels:
            raise ArtifactError(f"the library has no kernel {name!r}")
        return self._resources.kernels[name]

    def _stored_region(self, name: str) -> StoredRegion:
        regions = self._resources.library.regions
        if name not in regions:
            raise ArtifactError(f"the library has no region {name!r}")
        return regions[name]

    def _plan(self, name: str, attrs: Mapping[str, str]) -> BoundPrimitive:
        """A network of known shapes. Raises: ArtifactError when plan, kernels and constants do not fit each other."""
        plan = Plan.loads(self._stored_region(attrs["region"]).data.decode())
        numbers = plan_constants(attrs)
        if any(not 0 <= constant < len(self._constants) for constant in numbers.values()):
            raise ArtifactError(f"primitive {name} names constants that the executable does not have")
        missing = [f"constant[{constant}]" for constant in numbers.values() if self._constants[constant] is None]
        if missing:
            return BoundPrimitive(unbound(name, missing))
        arrays = {buffer: self._constants[constant] for buffer, constant in numbers.items()}
        kernels = [self._kernel(each) for each in dict.fromkeys(call.kernel for call in plan.calls)]
        constants = {buffer: array for buffer, array in arrays.items() if array is not None}
        network = CompiledNetwork(plan, tuple(kernel.artifact for kernel in kernels), constants)
        network.verify()
        run = PlanRun(network, kernels, self._resources)
        return BoundPrimitive(run, timed=run)

    def _loop(self, attrs: Mapping[str, str]) -> BoundPrimitive:
        name, allocator = attrs["function"], self._resources.allocator
        callee: Callee
        if name == "goes_on":
            callee = partial(_goes_on, allocator=allocator, counts=attrs.get("counts") == "1")
        elif name == "next_turn":
            callee = partial(_next_iteration, allocator=allocator)
        else:
            dtype = np.dtype(attrs.get("dtype", "float32"))  # version 2 gives none, and allocates empty lists itself
            callee = partial(_stack, allocator=allocator, dims=attrs["dims"], dtype=dtype)
            stored = StoredCall(lambda fields: callee([ADT(TUPLE, tuple(fields))]))
            fills = {"stack": stored.fill, "rank_of_stack": stored.ranks, "shape_of_stack": stored.shapes}
            return BoundPrimitive(callee, fills[name])
        return BoundPrimitive(callee, StoredCall(callee).fill)

    def _stored_call(self, attrs: Mapping[str, str]) -> StoredCall:
        """What the primitives of a region share in bytecode of version 2."""
        name, is_host = attrs["region"], attrs["kind"] in (HOST, "host_shape_func")
        if name not in self._stored:
            self._stored[name] = StoredCall(self._region(name, is_host=is_host))
        return self._stored[name]

    def _region(self, name: str, *, is_host: bool) -> Callee:
        """A region; one object for all primitives that are about it."""
        if name not in self._regions:
            stored = self._stored_region(name)
            if self._compiler is None:  # a static network needs no compiler to run
                module = importlib.import_module("retune.compiler.vm.specialize")
                self._compiler = module.RegionCompiler(self._resources)
            self._regions[name] = self._compiler.region(name, stored, is_host=is_host)
        return self._regions[name]
