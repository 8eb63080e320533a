"""Runs a plan on arrays of any shape that its guards allow, and returns its outputs as new arrays.

A new shape costs the evaluation of a few formulas: nothing is compiled, and nothing is kept of earlier shapes.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import prod

import numpy as np

from retune.compiler.core.dtype import DType, item_bytes
from retune.compiler.core.errors import MachineError, RowLengthError
from retune.compiler.ir.attributes import Shape
from retune.compiler.ir.dims import Dim, dim_to_json, substitute
from retune.compiler.runtime.artifact import ALIGNMENT, MOST_SIZE, Array
from retune.compiler.runtime.buffers import address
from retune.compiler.runtime.executor.plan import BufferKind, BufferSpec
from retune.compiler.runtime.loader import Kernel
from retune.compiler.runtime.sized_sequence import SizedSequence
from retune.compiler.vm.resources import Resources, Workspace
from retune.compiler.vm.symbolic_plan import SymbolicPlan
from retune.compiler.vm.values import describe

_log = logging.getLogger(__name__)

_MOST_BYTES = 1 << 62

Callee = Callable[[Sequence[Array]], Sequence[Array]]
"""Computes new arrays of the arrays that a call of a region passes."""
Note = Callable[[str, float], None]
"""Told the name of something that ran and the seconds that it took."""


class PlanShapes:
    """The shapes of a plan's buffers, as formulas, and their values for one set of input shapes."""

    def __init__(self, symbolic: SymbolicPlan, kernels: Mapping[str, Kernel]) -> None:
        plan, buffers = symbolic.plan, symbolic.plan.buffers
        self.symbols = symbolic.symbols
        self._guards = symbolic.guards
        self._formulas: list[int] = []
        self._numbers: dict[str, int] = {}
        self._extents = [tuple(map(self._add, spec.shape)) for spec in buffers]
        self._inputs = [self._extents[number] for number in plan.inputs]
        for call in plan.calls:  # whose range is checked, too
            if call.kernel in kernels:
                for arg in kernels[call.kernel].artifact.args:
                    list(map(self._add, arg.shape))
        self._workspaces = {self._add(kernel.artifact.workspace_bytes) for kernel in kernels.values()}
        self._extent_count = len(self._formulas)
        self._bytes = [self._add(prod(spec.shape) * item_bytes(spec.dtype)) for spec in buffers]
        self._views = {(self._bytes[number], self._bytes[spec.storage]) for number, spec in enumerate(buffers)}
        self._slots = np.array([slot for slot in symbolic.slots if slot >= 0], np.intp)
        self._slot_bytes: list[set[int]] = [set() for _ in range(max(symbolic.slots, default=-1) + 1)]
        for slot, nbytes in zip(symbolic.slots, self._bytes, strict=False):
            if slot >= 0:
                self._slot_bytes[slot].add(nbytes)
        self._values: list[int] = []
        self.in_arena = np.array([n for n, spec in enumerate(buffers) if spec.kind is BufferKind.INTERMEDIATE], np.intp)
        """The buffers in the arena."""
        self.begins: Array = np.array([plan.root(number).offset for number in self.in_arena], np.uint64)
        """Where these begin there."""
        self.arena_bytes, self.workspace_bytes = plan.arena_bytes, 0
        self.sizes: Array = np.zeros(len(self.symbols), np.int64)
        self.evaluations = 0
        """How often the values have changed."""
        self._known: list[tuple[int, ...]] | None = None
        self._fits = False

    def _add(self, extent: int) -> int:
        """The number of an extent's formula."""
        key = repr(dim_to_json(extent))  # by structure: whether two formulas are equal depends on the symbols
        if key not in self._numbers:
            self._numbers[key] = len(self._formulas)
            self._formulas.append(extent)
        return self._numbers[key]

    def fit(self, shapes: list[tuple[int, ...]]) -> bool:
        """Evaluate all formulas for input shapes; whether the plan holds for these."""
        if shapes != self._known:
            self._fits, self._known = False, None
            self.evaluations += 1
            self._fits = self._evaluate(shapes)
            self._known = shapes
        return self._fits

    def shape(self, number: int) -> tuple[int, ...]:
        """The shape of a buffer."""
        return tuple([self._values[extent] for extent in self._extents[number]])

    def nbytes(self, number: int) -> int:
        """The size of a buffer."""
        return self._values[self._bytes[number]]

    def _evaluate(self, shapes: list[tuple[int, ...]]) -> bool:
        sizes: dict[str, int] = {}
        for formulas, shape in zip(self._inputs, shapes, strict=True):
            if len(formulas) != len(shape):
                return False
            pairs = ((self._formulas[number], extent) for number, extent in zip(formulas, shape, strict=True))
            sizes |= {str(dim): extent for dim, extent in pairs if isinstance(dim, Dim)}
        sizes = {symbol: sizes[symbol] for symbol in self.symbols}
        if not all(guard.fits(sizes) for guard in self._guards):
            return False
        try:
            numbers = [substitute(extent, sizes) for extent in self._formulas]
        except ZeroDivisionError:
            return False
        if not all(0 <= number < MOST_SIZE for number in numbers[: self._extent_count]) or max(numbers) > _MOST_BYTES:
            return False
        if any(numbers[view] > numbers[owner] for view, owner in self._views):
            return False
        for formulas, shape in zip(self._inputs, shapes, strict=True):
            if tuple([numbers[number] for number in formulas]) != shape:
                return False
        self._values = numbers
        self.sizes[:] = list(sizes.values())
        self._place()
        return True

    def _place(self) -> None:
        """Lay out the arena, if the plan has no offsets."""
        if self._slot_bytes:
            begin, begins = 0, []
            for sizes in self._slot_bytes:
                begins.append(begin)
                nbytes = max([self._values[number] for number in sizes], default=0)
                begin += -(-nbytes // ALIGNMENT) * ALIGNMENT
            self.begins, self.arena_bytes = np.array(begins, np.uint64)[self._slots], begin
        self.workspace_bytes = max([self._values[number] for number in self._workspaces], default=0)


@dataclass(frozen=True, slots=True)
class _Kernels:
    """Neighboring kernels of a plan: the buffer of each argument, and the symbol of each size."""

    sequence: SizedSequence
    arguments: Array
    symbols: Array


@dataclass(frozen=True, slots=True)
class _Group:
    """A group that is compiled for each shape, and the buffers that it reads and writes."""

    callee: Callee
    buffers: tuple[int, ...]


class PlanRun:
    """A plan, on arrays of the caller."""

    def __init__(
        self,
        symbolic: SymbolicPlan,
        kernels: Mapping[str, Kernel],
        constants: Mapping[int, Array],
        groups: Mapping[str, Callee],
        resources: Resources,
    ) -> None:
        """`kernels` and `groups` are by the names that calls have, `constants` by number of the buffer; the caller has
        verified that these fit the plan. Raises: ArtifactError when an output has no memory of its own.
        """
        symbolic.verify_outputs()
        self._plan = plan = symbolic.plan
        self._shapes = PlanShapes(symbolic, kernels)
        # A group runs kernels in the shared arena.
        self._arena = Workspace() if groups else resources.arena
        self._array_of = resources.allocator.array
        self._workspace = resources.workspace
        self._dtypes = [np.dtype(spec.dtype) for spec in plan.buffers]
        self._constants = dict(constants)
        self._bases: Array = np.zeros(len(plan.buffers) + 1, np.uint64)
        for number, array in constants.items():
            self._bases[number] = address(array)
        self._owners = {plan.buffers[number].storage: index for index, number in reversed([*enumerate(plan.outputs)])}
        self._steps = list(self._link(kernels, groups, resources.threads))
        self._outputs: list[tuple[Shape, DType, int, int]] = []
        """Shape, type and bytes of each output, and the buffer whose memory it is, -1 where it is copied."""
        self._has_elements = False
        self._layout = (0, 0)
        """The evaluation of the shapes, and the address of the arena, that `_lay_out` was for."""

    def _link(
        self, kernels: Mapping[str, Kernel], groups: Mapping[str, Callee], threads: int
    ) -> "list[_Kernels | _Group]":
        steps: list[_Kernels | _Group] = []
        roots = [spec.storage for spec in self._plan.buffers]
        workspace = len(roots)
        order = {symbol: number for number, symbol in enumerate(self._shapes.symbols)}
        for is_group, calls in groupby(self._plan.calls, lambda call: call.kernel in groups):
            if is_group:
                steps += [_Group(groups[call.kernel], call.buffers) for call in calls]
                continue
            run = list(calls)
            loaded = [kernels[call.kernel] for call in run]
            arguments = [number for call in run for number in (*(roots[buffer] for buffer in call.buffers), workspace)]
            symbols = [order[symbol] for kernel in loaded for symbol in kernel.artifact.symbols]
            sequence = SizedSequence(loaded, threads)
            steps.append(_Kernels(sequence, np.array(arguments, np.intp), np.array(symbols, np.intp)))
        return steps

    def takes(self, inputs: Sequence[Array]) -> bool:
        """Whether the plan holds for inputs of these shapes. Raises: MachineError when an element type differs."""
        for number, array in zip(self._plan.inputs, inputs, strict=True):
            if type(array) is not np.ndarray or array.dtype != self._dtypes[number]:
                spec = self._plan.buffers[number]
                raise MachineError(f"{spec.name} is {spec.dtype}, not {describe(array)}")
        return self._shapes.fit([array.shape for array in inputs])

    def __call__(self, inputs: Sequence[Array], note: Note | None = None) -> list[Array]:
        """As `run`. Raises: MachineError for inputs that the plan does not take."""
        if not self.takes(inputs):
            for number, array in zip(self._plan.inputs, inputs, strict=True):
                check_array(self._plan.buffers[number], array)
        return self.run(inputs, note)

    def run(self, inputs: Sequence[Array], note: Note | None = None) -> list[Array]:
        """The outputs, new arrays, for inputs that the plan `takes`. With `note` kernels run in turn, and it is told
        how many seconds each took.
        """
        shapes, bases = self._shapes, self._bases
        layout = shapes.evaluations, self._arena.address(shapes.arena_bytes)
        if layout != self._layout:
            self._lay_out(layout[1])
            self._layout = layout
        for number, array in zip(self._plan.inputs, inputs, strict=True):
            bases[number] = address(array)
        outputs = []
        for shape, dtype, nbytes, owner in self._outputs:
            array, begin = self._array_of(shape, dtype, nbytes)
            outputs.append(array)
            if owner >= 0:
                bases[owner] = begin
        for step in self._steps if self._has_elements else ():
            if isinstance(step, _Kernels):
                bases[-1] = self._workspace.address(shapes.workspace_bytes)  # a group may have moved it
                bases.take(step.arguments, out=step.sequence.addresses, mode="clip")
                step.sequence(note)
            else:
                self._run_group(step, inputs, outputs)
        for output, number, (_, _, _, owner) in zip(outputs, self._plan.outputs, self._outputs, strict=True):
            if owner < 0:
                np.copyto(output, self._view(self._plan.root(number).storage, inputs, outputs).reshape(output.shape))
        return outputs

    def _lay_out(self, arena: int) -> None:
        """Prepare calls for the shapes that were evaluated last, with an arena at this address."""
        shapes = self._shapes
        self._bases[shapes.in_arena] = shapes.begins + np.uint64(arena)
        self._outputs = []
        for index, number in enumerate(self._plan.outputs):
            root = self._plan.root(number)
            is_owner = root.kind is BufferKind.OUTPUT and self._owners[root.storage] == index
            kind = shapes.shape(number), self._dtypes[number], shapes.nbytes(number)
            self._outputs.append((*kind, root.storage if is_owner else -1))
        self._has_elements = any(nbytes for _, _, nbytes, _ in self._outputs)
        for step in self._steps:
            if isinstance(step, _Kernels):
                shapes.sizes.take(step.symbols, out=step.sequence.sizes, mode="clip")

    def _run_group(self, group: _Group, inputs: Sequence[Array], outputs: Sequence[Array]) -> None:
        *arrays, result = (self._view(number, inputs, outputs) for number in group.buffers)
        np.copyto(result, group.callee([*arrays, self._shapes.sizes])[0])

    def _view(self, number: int, inputs: Sequence[Array], outputs: Sequence[Array]) -> Array:
        """A buffer as an array."""
        spec, shape = self._plan.buffers[number], self._shapes.shape(number)
        match spec.kind:
            case BufferKind.CONSTANT:
                return self._constants[spec.storage].reshape(shape)
            case BufferKind.INPUT:
                whole = inputs[self._plan.inputs.index(spec.storage)]
            case BufferKind.OUTPUT:
                whole = outputs[self._owners[spec.storage]]
            case BufferKind.INTERMEDIATE:
                arena, nbytes = self._arena.array(self._shapes.arena_bytes), self._shapes.nbytes(number)
                begin = int(self._bases[number]) - self._arena.address(0)
                return arena[begin : begin + nbytes].view(self._dtypes[number]).reshape(shape)
        return whole.reshape(-1)[: int(np.prod(shape))].reshape(shape)


def check_array(spec: BufferSpec, array: Array) -> None:
    """Check that `array` has the shape and type of a buffer. Raises: MachineError."""
    if type(array) is not np.ndarray or array.dtype != spec.dtype or array.shape != spec.shape:
        raise MachineError(f"{spec.name} is {spec.dtype}{list(spec.shape)}, not {describe(array)}")


class SymbolicCallee:
    """A plan for all shapes that its guards allow; other shapes are compiled when they are seen."""

    def __init__(self, run: PlanRun, otherwise: Callable[[], Callee]) -> None:
        """`otherwise` makes what computes the other shapes."""
        self._run = run
        self._make = otherwise
        self._otherwise: Callee | None = None

    def __call__(self, inputs: Sequence[Array], note: Note | None = None) -> Sequence[Array]:
        """The outputs, new arrays. Raises: an error of ours when the inputs do not fit."""
        if self._run.takes(inputs):
            try:
                return self._run.run(inputs, note)
            except RowLengthError as error:
                _log.debug("compiled for this shape: %s", error)
        if self._otherwise is None:
            self._otherwise = self._make()
        return self._otherwise(inputs)
