"""Runs a symbolic plan on arrays of any shape that its guards allow, and returns its outputs as new arrays.

A new shape costs the evaluation of a few formulas: nothing is compiled, and nothing is kept of earlier shapes.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from retune.compiler.core.dtype import item_bytes
from retune.compiler.core.errors import MachineError, RowLengthError
from retune.compiler.ir.dims import Dim, dim_to_json, substitute
from retune.compiler.runtime.artifact import ALIGNMENT, MOST_SIZE, Array
from retune.compiler.runtime.buffers import address
from retune.compiler.runtime.executor.plan import BufferKind
from retune.compiler.runtime.loader import Kernel
from retune.compiler.runtime.sized_sequence import SizedSequence
from retune.compiler.vm.kernel_run import Note, Workspace
from retune.compiler.vm.plan_run import Callee
from retune.compiler.vm.resources import Resources
from retune.compiler.vm.symbolic_plan import SymbolicPlan
from retune.compiler.vm.values import describe

_log = logging.getLogger(__name__)

_MOST_BYTES = float(1 << 62)


class PlanShapes:
    """The shapes of a plan's buffers, as formulas, and their values for one set of input shapes."""

    def __init__(self, symbolic: SymbolicPlan, kernels: Mapping[str, Kernel]) -> None:
        plan = symbolic.plan
        self._guards = symbolic.guards
        self._formulas: list[int] = []
        self._numbers: dict[str, int] = {}
        self._inputs = [tuple(map(self._add, plan.buffers[number].shape)) for number in plan.inputs]
        rank = max((len(spec.shape) for spec in plan.buffers), default=0)
        unit = self._add(1)
        shapes = [tuple(map(self._add, spec.shape)) for spec in plan.buffers]
        self._extents = np.array([[*shape, *[unit] * (rank - len(shape))] for shape in shapes], np.intp)
        self._ranks = [len(spec.shape) for spec in plan.buffers]
        self._items = np.array([item_bytes(spec.dtype) for spec in plan.buffers], np.int64)
        self._storages = np.array([spec.storage for spec in plan.buffers], np.intp)
        self._slots = np.array(symbolic.slots, np.intp)
        self._slot_count = max(symbolic.slots, default=-1) + 1
        for call in plan.calls:  # whose range is checked, too
            if call.kernel in kernels:
                for arg in kernels[call.kernel].artifact.args:
                    list(map(self._add, arg.shape))
        self._workspaces = np.array(
            [self._add(kernel.artifact.workspace_bytes) for kernel in kernels.values()], np.intp
        )
        self.symbols = symbolic.symbols
        self.values: Array = np.zeros(len(self._formulas), np.int64)
        self.nbytes: Array = np.zeros(len(plan.buffers), np.int64)
        self.offsets: Array = np.zeros(len(plan.buffers), np.int64)
        """Where buffers with a slot begin in the arena."""
        self.arena_bytes = self.workspace_bytes = 0
        self.sizes: Array = np.zeros(len(self.symbols), np.int64)
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
            self._fits = self._evaluate(shapes)
            self._known = shapes
        return self._fits

    def shape(self, number: int) -> tuple[int, ...]:
        """The shape of a buffer."""
        return tuple(self.values[self._extents[number, : self._ranks[number]]].tolist())

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
        if not all(0 <= number < MOST_SIZE for number in numbers):
            return False
        for formulas, shape in zip(self._inputs, shapes, strict=True):
            if any(numbers[number] != extent for number, extent in zip(formulas, shape, strict=True)):
                return False
        self.values[:] = numbers
        self.sizes[:] = list(sizes.values())
        return self._place()

    def _place(self) -> bool:
        """Lay out the arena. Whether all buffers can be counted, and views are no larger than their owners."""
        extents = self.values[self._extents]
        if np.prod(extents, axis=1, dtype=np.float64).max(initial=0.0) * 8 > _MOST_BYTES:
            return False
        self.nbytes[:] = np.prod(extents, axis=1) * self._items
        if (self.nbytes > self.nbytes[self._storages]).any():
            return False
        slots = np.zeros(self._slot_count + 1, np.int64)  # the last is of all buffers without a slot
        np.maximum.at(slots, self._slots, -(-self.nbytes // ALIGNMENT) * ALIGNMENT)
        begins = np.cumsum(slots[:-1]) - slots[:-1]
        has_slot = self._slots >= 0
        self.offsets[has_slot] = begins[self._slots[has_slot]]
        self.arena_bytes = int(slots[:-1].sum())
        self.workspace_bytes = int(self.values[self._workspaces].max(initial=0))
        return True


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


class SymbolicRun:
    """A symbolic plan, on arrays of the caller."""

    def __init__(
        self,
        symbolic: SymbolicPlan,
        kernels: Mapping[str, Kernel],
        constants: Mapping[int, Array],
        groups: Mapping[str, Callee],
        resources: Resources,
    ) -> None:
        """`kernels` and `groups` are by the names that calls have, `constants` by number of the buffer.

        Raises: ArtifactError when these do not fit the plan.
        """
        symbolic.verify({name: kernel.artifact for name, kernel in kernels.items()}, constants)
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
        self._in_arena = np.array([n for n, s in enumerate(symbolic.slots) if s >= 0], np.intp)
        self._owners = {plan.buffers[number].storage: index for index, number in reversed([*enumerate(plan.outputs)])}
        self._steps = list(self._link(kernels, groups, resources.threads))

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
        """The outputs, new arrays, for inputs that the plan `takes`. With `note` kernels run in turn, and it is told
        how many seconds each took.
        """
        shapes, bases = self._shapes, self._bases
        for number, array in zip(self._plan.inputs, inputs, strict=True):
            bases[number] = address(array)
        outputs = []
        for index, number in enumerate(self._plan.outputs):
            array, begin = self._array_of(shapes.shape(number), self._dtypes[number], int(shapes.nbytes[number]))
            outputs.append(array)
            root = self._plan.root(number)
            if root.kind is BufferKind.OUTPUT and self._owners[root.storage] == index:
                bases[root.storage] = begin
        bases[self._in_arena] = shapes.offsets[self._in_arena] + self._arena.address(shapes.arena_bytes)
        bases[-1] = self._workspace.address(shapes.workspace_bytes)
        for step in self._steps:
            if isinstance(step, _Kernels):
                np.take(bases, step.arguments, out=step.sequence.addresses)
                np.take(shapes.sizes, step.symbols, out=step.sequence.sizes)
                step.sequence(note)
            else:
                self._run_group(step, inputs, outputs)
        for index, number in enumerate(self._plan.outputs):
            root = self._plan.root(number)
            if root.kind is not BufferKind.OUTPUT or self._owners[root.storage] != index:
                np.copyto(outputs[index], self._view(root.storage, inputs, outputs).reshape(outputs[index].shape))
        return outputs

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
                begin, nbytes = int(self._shapes.offsets[number]), int(self._shapes.nbytes[number])
                arena = self._arena.array(self._shapes.arena_bytes)
                return arena[begin : begin + nbytes].view(self._dtypes[number]).reshape(shape)
        return whole.reshape(-1)[: int(np.prod(shape))].reshape(shape)


class SymbolicCallee:
    """A plan for all shapes that its guards allow; other shapes are compiled when they are seen."""

    def __init__(self, run: SymbolicRun, otherwise: Callable[[], Callee]) -> None:
        """`otherwise` makes what computes the other shapes."""
        self._run = run
        self._make = otherwise
        self._otherwise: Callee | None = None

    def __call__(self, inputs: Sequence[Array], note: Note | None = None) -> Sequence[Array]:
        """The outputs, new arrays. Raises: an error of ours when the inputs do not fit."""
        if self._run.takes(inputs):
            try:
                return self._run(inputs, note)
            except RowLengthError as error:
                _log.debug("compiled for this shape: %s", error)
        if self._otherwise is None:
            self._otherwise = self._make()
        return self._otherwise(inputs)
