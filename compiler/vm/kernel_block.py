"""In: a straight run of instructions with kernels. Out: one step that carries all of them out, its kernels without the
interpreter.

Always: the same registers hold the same values afterwards as after the instructions one by one. A run ends before an
instruction that works with what is known only when it is met.
"""

import math
import weakref
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from retune.compiler.dtype import item_bytes
from retune.compiler.runtime.artifact import ALIGNMENT, Array
from retune.compiler.runtime.buffers import address, aligned_copy
from retune.compiler.vm.instructions import (
    AllocStorage,
    AllocTensor,
    Instruction,
    InvokePacked,
    KillRegister,
    LoadConst,
    LoadConsti,
    Move,
    ReshapeTensor,
)
from retune.compiler.vm.kernel_run import KernelRun, Operand, Place
from retune.compiler.vm.memory import Storage
from retune.compiler.vm.primitives import KernelPrimitive
from retune.compiler.vm.steps import Registers, Step, Stretch, Surroundings, array_in, fixed, reshaped


@dataclass(frozen=True, slots=True)
class _Outside:
    """What a register held before the run, or its first elements in another shape."""

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
    """What a kernel takes from outside: so many elements of a type, or the first of more, writable or not."""

    register: int
    size: int
    is_part: bool
    dtype: Any
    is_written: bool


@dataclass(slots=True)
class Run:
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
            case _Outside(register=register, shape=before):
                fits = before is None or math.prod(extents) <= math.prod(before)
                return fits and min(extents, default=0) >= 0 and self.write(i.dst, _Outside(register, extents))
            case _Tensor() as tensor if min(extents, default=0) >= 0:
                other = _Tensor(tensor.storage, tensor.offset, extents, tensor.dtype)
                return _nbytes(other) <= _nbytes(tensor) and self.write(i.dst, other)
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
                is_part = symbol.shape is not None
                need = _Need(symbol.register, spec.size, is_part, np.dtype(spec.dtype), spec.is_output)
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
            case _Outside(shape=shape):
                return shape is None or math.prod(shape) == spec.size
        return True


def _nbytes(tensor: _Tensor) -> int:
    count = item_bytes(tensor.dtype)
    for extent in tensor.shape:
        count *= extent
    return count


def follow_kernels(
    instructions: Sequence[Instruction], start: int, end: int, around: Surroundings
) -> tuple[Run, int]:
    """The run that begins at an instruction, perhaps without kernels, and where it ends."""
    run, stop = Run(around), start
    while stop < end and run.takes(instructions[stop]):
        stop += 1
    return run, stop


def step_of_kernels(run: Run, stretch: Stretch) -> Step:
    """The run as a step. What comes from outside and does not fit goes through the instructions one by one."""
    around = run.around
    needs = {need.register: [each for each in run.needs if each.register == need.register] for need in run.needs}
    memory = _Memories.of(run)
    slots = {register: number for number, register in enumerate(needs)}
    places = memory.places(len(needs))
    calls = [
        (primitive.kernel, [_operand(symbol, slots, places) for symbol in symbols]) for primitive, symbols in run.calls
    ]
    kernels = KernelRun(calls, run.calls[0][0].threads, run.calls[0][0].workspace)
    direct = {register: memory.array_of(symbol) for register, symbol in run.symbols.items()}
    arrays = [(register, number) for register, number in direct.items() if number is not None]
    makers = [
        (register, _maker(symbol, memory)) for register, symbol in run.symbols.items() if direct[register] is None
    ]
    killed = [register for register in run.killed if register not in stretch.inside]
    array_of, arena, arena_bytes, wanted = around.allocator.array, around.arena, memory.arena_bytes, memory.wanted
    stop, tail = stretch.stop, stretch.tail
    sources = [_Source(register, tuple(kinds)) for register, kinds in needs.items()]

    def step(registers: Registers) -> int:
        addresses = []
        for source in sources:
            array = registers[source.register]
            if (array is None or source.known() is not array) and not source.takes(array):
                for each in stretch.singles:
                    each(registers)
                return stop
            addresses.append(source.address)
        made = []
        for shape, kind, nbytes in wanted:
            array, place = array_of(shape, kind, nbytes)
            made.append(array)
            addresses.append(place)
        if arena_bytes:
            addresses.append(arena.address(arena_bytes))
        kernels(addresses)
        values = [(register, make(registers, made, addresses)) for register, make in makers]
        for register in killed:
            registers[register] = None
        for register, number in arrays:
            registers[register] = made[number]
        for register, value in values:
            registers[register] = value
        return stop if tail is None else tail(registers)

    return step


def _nothing() -> None:
    """A reference to no array."""


class _Source:
    """A register whose array kernels read or write, and the array that was there last: nobody changes the type, shape
    or place of an array that a register held, so it fits again and is where it was.
    """

    __slots__ = ("_needs", "address", "known", "register")

    def __init__(self, register: int, needs: tuple[_Need, ...]) -> None:
        self.register = register
        self.known: Callable[[], Array | None] = _nothing
        self.address = 0
        self._needs = needs

    def takes(self, array: Any) -> bool:
        """Whether the kernels can take this array; then it is the last one."""
        if type(array) is not np.ndarray:
            return False
        for need in self._needs:
            fits = array.size >= need.size if need.is_part else array.size == need.size
            if not fits or array.dtype != need.dtype or (need.is_written and not array.flags.writeable):
                return False
        self.known, self.address = weakref.ref(array), address(array)
        return True


@dataclass(frozen=True, slots=True)
class _Memories:
    """The storages of a run. Those in which something is left are arrays of their own: of what is left, when that is
    one array from the beginning on, else of bytes. The others lie in the arena.
    """

    wanted: tuple[tuple[tuple[int, ...], "np.dtype[Any]", int], ...]
    numbers: Mapping[int, int]
    """Which of these arrays each storage is."""
    offsets: Mapping[int, int]
    """Where in the arena each other storage begins."""
    arena_bytes: int

    @classmethod
    def of(cls, run: Run) -> "_Memories":
        """The storages of a run that was followed."""
        left: dict[int, set[_Symbol]] = {}
        for symbol in run.symbols.values():
            if isinstance(symbol, _Memory | _Tensor):
                left.setdefault(symbol.storage, set()).add(symbol)
        offsets: dict[int, int] = {}
        end = 0
        for storage, size in enumerate(run.sizes):
            if storage not in left:
                offsets[storage] = end
                end += size + -size % ALIGNMENT
        wanted = tuple(_array_for(symbols, run.sizes[storage]) for storage, symbols in left.items())
        return cls(wanted, {storage: number for number, storage in enumerate(left)}, offsets, end)

    def array_of(self, symbol: _Symbol) -> int | None:
        """Which of the arrays a value is, if it is one as it stands."""
        if not isinstance(symbol, _Tensor):
            return None
        number = self.numbers[symbol.storage]
        return number if self.wanted[number][:2] == (symbol.shape, np.dtype(symbol.dtype)) else None

    def places(self, first: int) -> dict[int, Place]:
        """Where every storage begins: slots for registers from outside come first, then one for each storage in which
        something is left, then that of the arena.
        """
        places = {storage: Place(first + number) for storage, number in self.numbers.items()}
        return places | {storage: Place(first + len(places), offset) for storage, offset in self.offsets.items()}


def _array_for(left: Set[_Symbol], size: int) -> tuple[tuple[int, ...], "np.dtype[Any]", int]:
    """The shape, element type and bytes of the array that is made for a storage."""
    match tuple(left):
        case (_Tensor(offset=0, shape=shape, dtype=dtype),):
            return shape, np.dtype(dtype), size
    return (size,), np.dtype(np.uint8), size


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


def _maker(symbol: _Symbol, memory: _Memories) -> Callable[[Registers, Sequence[Array], Sequence[int]], Any]:
    """What makes the value that a register holds after the run, of the registers before it, and of the arrays that were
    made and all addresses.
    """
    match symbol:
        case _Outside(register=register, shape=None):
            return lambda registers, _, __: registers[register]
        case _Outside(register=register, shape=shape):
            extents = np.array(shape, np.int64)
            return lambda registers, _, __: reshaped(array_in(registers, register), extents)
        case _Known(array=array):
            return lambda _, __, ___: array
        case _Memory(storage=storage):
            number = memory.numbers[storage]
            back = number - len(memory.wanted) - bool(memory.arena_bytes)
            return lambda _, made, addresses: Storage(made[number], addresses[back])
        case _Tensor(storage=storage, offset=offset, shape=shape):
            number, dtype = memory.numbers[storage], np.dtype(symbol.dtype)
            return lambda _, made, __: np.ndarray(shape, dtype, made[number], offset)
