"""In: a straight run of instructions. Out: one step that carries all of them out, its kernels without the interpreter.

Always: the same registers hold the same values afterwards as after the instructions one by one. A run ends before an
instruction that jumps, calls, or works with what is known only when it is met, and where a jump may lead to.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from compiler.dtype import item_bytes
from compiler.runtime.artifact import ALIGNMENT, Array
from compiler.runtime.buffers import aligned_copy
from compiler.vm.instructions import (
    AllocStorage,
    AllocTensor,
    Instruction,
    InvokePacked,
    KillRegister,
    LoadConst,
    LoadConsti,
    Move,
    ReshapeTensor,
    jumps,
)
from compiler.vm.kernel_run import KernelRun, Operand, Place
from compiler.vm.memory import Storage
from compiler.vm.primitives import KernelPrimitive
from compiler.vm.steps import Registers, Step, Surroundings, array_in, fixed, reshaped
from compiler.vm.values import address


@dataclass(frozen=True, slots=True)
class _Outside:
    """What a register held before the run, perhaps in another shape."""

    register: int
    shape: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class _Known:
    """An array that is always the same."""

    array: Array


@dataclass(frozen=True, slots=True)
class _Memory:
    """Storage number `storage` of those that the run allocates."""

    storage: int


@dataclass(frozen=True, slots=True)
class _Tensor:
    """An array in such a storage."""

    storage: int
    offset: int
    shape: tuple[int, ...]
    dtype: str


_Symbol = _Outside | _Known | _Memory | _Tensor


@dataclass(frozen=True, slots=True)
class _Need:
    """What a kernel takes from outside: elements of a type, writable or not."""

    register: int
    size: int
    dtype: Any
    is_written: bool


@dataclass(slots=True)
class _Run:
    """A run while it is followed, instruction by instruction."""

    around: Surroundings
    symbols: dict[int, _Symbol] = field(default_factory=dict)
    killed: dict[int, None] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    needs: dict[_Need, None] = field(default_factory=dict)
    calls: list[tuple[KernelPrimitive, list[_Symbol]]] = field(default_factory=list)

    def read(self, register: int) -> _Symbol | None:
        """What a register holds; None for nothing."""
        if register in self.killed:
            return None
        return self.symbols.get(register, _Outside(register))

    def write(self, register: int, symbol: _Symbol | None) -> bool:
        if symbol is None:
            return False
        self.symbols[register] = symbol
        self.killed.pop(register, None)
        return True

    def takes(self, instruction: Instruction) -> bool:
        """Follow an instruction; False when the run ends before it."""
        match instruction:
            case Move():
                return self.write(instruction.dst, self.read(instruction.source))
            case LoadConst():
                constant = self.around.constants[instruction.constant]
                return constant is not None and self.write(instruction.dst, _Known(constant))
            case LoadConsti():
                return self.write(instruction.dst, _Known(fixed(aligned_copy(np.array([instruction.value], np.int64)))))
            case AllocStorage():
                return self._storage(instruction)
            case AllocTensor():
                return self._tensor(instruction)
            case ReshapeTensor():
                return self._reshape(instruction)
            case InvokePacked():
                return self._invoke(instruction)
            case KillRegister():
                self.symbols.pop(instruction.dst, None)
                self.killed[instruction.dst] = None
                return True
        return False

    def number(self, register: int) -> int | None:
        """The whole number in a register, when it is always the same."""
        match self.read(register):
            case _Known(array=array) if array.size == 1 and array.dtype.kind in "iu":
                return int(array.item())
        return None

    def _storage(self, i: AllocStorage) -> bool:
        size = self.number(i.size)
        if size is None or size < 0 or i.shape or i.alignment > ALIGNMENT:
            return False
        self.sizes.append(size)
        return self.write(i.dst, _Memory(len(self.sizes) - 1))

    def _tensor(self, i: AllocTensor) -> bool:
        storage, offset = self.read(i.storage), self.number(i.offset)
        if not isinstance(storage, _Memory) or offset is None or min(i.shape, default=0) < 0:
            return False
        tensor = _Tensor(storage.storage, offset, i.shape, i.dtype)
        fits = 0 <= offset <= offset + _nbytes(tensor) <= self.sizes[storage.storage]
        return fits and self.write(i.dst, tensor)

    def _reshape(self, i: ReshapeTensor) -> bool:
        shape = self.read(i.shape)
        if not isinstance(shape, _Known) or shape.array.dtype != np.int64 or shape.array.ndim != 1:
            return False
        extents = tuple(shape.array.tolist())
        match self.read(i.tensor):
            case _Outside(register=register):
                return self.write(i.dst, _Outside(register, extents))
            case _Tensor() as tensor if min(extents, default=0) >= 0:
                other = _Tensor(tensor.storage, tensor.offset, extents, tensor.dtype)
                return _nbytes(other) == _nbytes(tensor) and self.write(i.dst, other)
        return False

    def _invoke(self, i: InvokePacked) -> bool:
        primitive = self.around.primitives[i.packed]
        if not isinstance(primitive, KernelPrimitive):
            return False
        specs = primitive.specs
        outputs = [spec for spec in specs if spec.is_output]
        if len(specs) != len(i.args) or len(outputs) != i.output_size or any(not spec.size for spec in outputs):
            return False
        symbols = [self.read(register) for register in i.args]
        given = [symbol for symbol in symbols if symbol is not None and not isinstance(symbol, _Memory)]
        if len(given) != len(symbols) or not all(map(self._fits, given, specs)):
            return False
        for symbol, spec in zip(given, specs, strict=True):
            if isinstance(symbol, _Outside):
                need = _Need(symbol.register, spec.size, np.dtype(spec.dtype), spec.is_output)
                self.needs[need] = None
        self.calls.append((primitive, list(given)))
        return True

    @staticmethod
    def _fits(symbol: _Symbol, spec: Any) -> bool:
        match symbol:
            case _Tensor():
                return symbol.dtype == spec.dtype and _nbytes(symbol) == spec.nbytes and symbol.offset % ALIGNMENT == 0
            case _Known(array=array):
                return not spec.is_output and array.dtype == np.dtype(spec.dtype) and array.size == spec.size
        return True


def _nbytes(tensor: _Tensor) -> int:
    count = item_bytes(tensor.dtype)
    for extent in tensor.shape:
        count *= extent
    return count


def link(instructions: Sequence[Instruction], singles: Sequence[Step], around: Surroundings) -> list[Step]:
    """The steps of a function, at the places of its instructions: `singles`, and where a run with kernels begins the
    one step of that run.
    """
    steps = list(singles)
    for start, end in _straight(instructions):
        place = start
        while place < end:
            run = _Run(around)
            stop = place
            while stop < end and run.takes(instructions[stop]):
                stop += 1
            if run.calls:
                steps[place] = _step(run, singles, place, stop)
            place = max(stop, place + 1)
    return steps


def _straight(instructions: Sequence[Instruction]) -> Iterator[tuple[int, int]]:
    """Where instructions begin and end that always follow each other."""
    entries = {0}
    for here, instruction in enumerate(instructions):
        targets = jumps(instruction)
        if targets != (1,):
            entries.update(here + offset for offset in targets)
            entries.add(here + 1)
    ordered = [*sorted(place for place in entries if place < len(instructions)), len(instructions)]
    yield from pairwise(ordered)


def _step(run: _Run, singles: Sequence[Step], start: int, stop: int) -> Step:
    """The run as a step. What comes from outside and does not fit goes through the instructions one by one."""
    around = run.around
    needs = tuple(run.needs)
    sizes, offsets, arena_bytes = _split(run)
    registers_in = list(dict.fromkeys(need.register for need in needs))
    slots = {register: number for number, register in enumerate(registers_in)}
    places = _places(sizes, offsets, len(registers_in))
    calls = [
        (primitive.kernel, [_operand(symbol, slots, places) for symbol in symbols]) for primitive, symbols in run.calls
    ]
    kernels = KernelRun(calls, run.calls[0][0].threads, run.calls[0][0].workspace)
    left = tuple((register, _maker(symbol)) for register, symbol in run.symbols.items())
    killed = tuple(run.killed)
    one_by_one = tuple(singles[start:stop])

    def step(registers: Registers) -> int:
        for need in needs:
            array = registers[need.register]
            fits = type(array) is np.ndarray and array.dtype == need.dtype and array.size == need.size
            if not fits or (need.is_written and not array.flags.writeable):
                for each in one_by_one:
                    each(registers)
                return stop
        memory = {storage: around.allocator.allocate(size) for storage, size in sizes.items()}
        addresses = [address(registers[register]) for register in registers_in]
        addresses += [each.address for each in memory.values()]
        addresses.append(around.arena.address(arena_bytes))
        kernels(addresses)
        values = [(register, make(registers, memory)) for register, make in left]
        for register in killed:
            registers[register] = None
        for register, value in values:
            registers[register] = value
        return stop

    return step


def _split(run: _Run) -> tuple[dict[int, int], dict[int, int], int]:
    """The sizes of those storages that something is left in; where in the arena the others begin; the arena's bytes."""
    left = {each.storage for each in run.symbols.values() if isinstance(each, _Memory | _Tensor)}
    offsets: dict[int, int] = {}
    end = 0
    for storage, size in enumerate(run.sizes):
        if storage not in left:
            offsets[storage] = end
            end += size + -size % ALIGNMENT
    return {storage: size for storage, size in enumerate(run.sizes) if storage in left}, offsets, end


def _places(sizes: Mapping[int, int], offsets: Mapping[int, int], first: int) -> dict[int, Place]:
    """Where every storage begins: slots for registers from outside come first, then one for each storage in which
    something is left, then that of the arena.
    """
    places = {storage: Place(first + number) for number, storage in enumerate(sizes)}
    return places | {storage: Place(first + len(sizes), offset) for storage, offset in offsets.items()}


def _operand(symbol: _Symbol, slots: Mapping[int, int], places: Mapping[int, Place]) -> Operand:
    """Where a kernel's argument lies."""
    match symbol:
        case _Outside():
            return Place(slots[symbol.register])
        case _Tensor():
            place = places[symbol.storage]
            return Place(place.slot, place.offset + symbol.offset)
        case _Known():
            return symbol.array
    raise AssertionError("memory itself is no argument of a kernel")


def _maker(symbol: _Symbol) -> Callable[[Registers, Mapping[int, Storage]], Any]:
    """What makes the value that a register holds after the run, of the registers before it and its storages."""
    match symbol:
        case _Outside(register=register, shape=None):
            return lambda registers, _: registers[register]
        case _Outside(register=register, shape=shape):
            extents = np.array(shape, np.int64)
            return lambda registers, _: reshaped(array_in(registers, register), extents)
        case _Known(array=array):
            return lambda _, __: array
        case _Memory(storage=storage):
            return lambda _, memory: memory[storage]
        case _Tensor(storage=storage, offset=first, shape=shape):
            end, dtype = first + _nbytes(symbol), np.dtype(symbol.dtype)
            return lambda _, memory: memory[storage].array[first:end].view(dtype).reshape(shape)
