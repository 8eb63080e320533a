"""In: the instructions of one call of a region: ranks and shapes of its results, room for them, the region. Out: one
step that asks for the shapes, makes the results and has them filled.

Always: the same registers hold the same values afterwards as after the instructions one by one; ranks, shapes and
sizes, of which nothing is left then, are never written anywhere.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from retune.compiler.runtime.artifact import ALIGNMENT
from retune.compiler.vm.instructions import (
    AllocStorage,
    AllocTensor,
    AllocTensorReg,
    Instruction,
    InvokePacked,
    KillRegister,
    LoadConsti,
)
from retune.compiler.vm.primitives import LazyRegion, RankFunction, RegionFunction, ShapeFunction
from retune.compiler.vm.steps import Registers, Step, Stretch, Surroundings, flattened

_LONGEST_SHAPE = 64 * 8
"""Bytes of the shape of an array of as many dimensions as NumPy has."""


@dataclass(frozen=True, slots=True)
class _Number:
    value: int


@dataclass(frozen=True, slots=True)
class _Scratch:
    """Memory for what is told of the results."""

    size: int


@dataclass(frozen=True, slots=True)
class _Small:
    """An array in it, not written yet."""


@dataclass(frozen=True, slots=True)
class _Rank:
    result: int


@dataclass(frozen=True, slots=True)
class _Shape:
    result: int


@dataclass(frozen=True, slots=True)
class _Bytes:
    result: int


@dataclass(frozen=True, slots=True)
class _Memory:
    """Room for a result."""

    result: int


@dataclass(frozen=True, slots=True)
class _Result:
    result: int


_Symbol = _Number | _Scratch | _Small | _Rank | _Shape | _Bytes | _Memory | _Result


@dataclass(slots=True)
class RegionCall:
    """A call of a region while it is followed, instruction by instruction."""

    around: Surroundings
    symbols: dict[int, _Symbol] = field(default_factory=dict)
    killed: dict[int, None] = field(default_factory=dict)
    region: LazyRegion | None = None
    inputs: tuple[int, ...] = ()
    item_bytes: tuple[int, ...] = ()
    dtypes: dict[int, "np.dtype[Any]"] = field(default_factory=dict)
    is_done: bool = False

    def takes(self, instruction: Instruction) -> bool:
        """Follow an instruction; False when it is none of the call."""
        match instruction:
            case KillRegister(dst=register):
                self.symbols.pop(register, None)
                self.killed[register] = None
                return True
            case _ if self.is_done:
                return False
            case LoadConsti(value=value, dst=dst):
                return self._set(dst, _Number(value))
            case AllocStorage():
                return self._storage(instruction)
            case AllocTensor(storage=storage, offset=offset, dst=dst, shape=shape):
                nbytes = np.dtype(instruction.dtype).itemsize * math.prod(shape)
                fits = min(shape, default=0) >= 0 and self._in_scratch(storage, offset, nbytes)
                return fits and self._set(dst, _Small())
            case AllocTensorReg():
                return self._tensor(instruction)
            case InvokePacked():
                return self._invoke(instruction)
        return False

    @property
    def leaves_results_only(self) -> bool:
        """Whether the call was made, and nothing is left of what led to it."""
        return self.is_done and all(isinstance(symbol, _Result) for symbol in self.symbols.values())

    def _set(self, register: int, symbol: _Symbol) -> bool:
        self.symbols[register] = symbol
        self.killed.pop(register, None)
        return True

    def _in_scratch(self, storage: int, offset: int, nbytes: int) -> bool:
        memory, first = self.symbols.get(storage), self.symbols.get(offset)
        if not isinstance(memory, _Scratch) or not isinstance(first, _Number):
            return False
        return 0 <= first.value <= first.value + nbytes <= memory.size

    def _storage(self, i: AllocStorage) -> bool:
        if i.shape or i.alignment > ALIGNMENT:
            return False
        match self.symbols.get(i.size):
            case _Number(value=size) if size >= 0:
                return self._set(i.dst, _Scratch(size))
            case _Bytes(result=result):
                return self._set(i.dst, _Memory(result))
        return False

    def _tensor(self, i: AllocTensorReg) -> bool:
        dtype = np.dtype(i.dtype)
        match self.symbols.get(i.storage), self.symbols.get(i.offset), self.symbols.get(i.shape):
            case _Scratch(), _, _Rank():
                return self._in_scratch(i.storage, i.offset, _LONGEST_SHAPE) and self._set(i.dst, _Small())
            case _Memory(result=room), _Number(value=0), _Shape(result=result) if room == result:
                self.dtypes[result] = dtype
                return dtype.itemsize == self.item_bytes[result] and self._set(i.dst, _Result(result))
        return False

    def _invoke(self, i: InvokePacked) -> bool:
        callee, outputs = self.around.primitives[i.packed], [self.symbols.get(number) for number in i.outputs]
        if not isinstance(callee, RankFunction | ShapeFunction | RegionFunction):
            return False
        if self.region is None and not any(number in self.symbols or number in self.killed for number in i.inputs):
            self.region, self.inputs = callee.region, i.inputs
        if callee.region is not self.region or i.inputs != self.inputs:
            return False
        if isinstance(callee, RegionFunction):
            self.is_done = bool(outputs) and outputs == [_Result(number) for number in range(len(self.item_bytes))]
            return self.is_done
        if not all(isinstance(each, _Small) for each in outputs):
            return False
        if isinstance(callee, RankFunction):
            return all(self._set(register, _Rank(number)) for number, register in enumerate(i.outputs))
        self.item_bytes = callee.item_bytes
        told = [kind(number) for number in range(len(self.item_bytes)) for kind in (_Shape, _Bytes)]
        return len(told) == len(outputs) and all(map(self._set, i.outputs, told))


def follow_region(
    instructions: Sequence[Instruction], start: int, end: int, around: Surroundings
) -> tuple[RegionCall, int] | None:
    """The call of a region that begins at an instruction, and where it ends; None when none begins there."""
    call, stop = RegionCall(around), start
    if not isinstance(instructions[start], LoadConsti):
        return None
    while stop < end and call.takes(instructions[stop]):
        stop += 1
    return (call, stop) if call.leaves_results_only else None


def step_of_region(call: RegionCall, stretch: Stretch) -> Step:
    """The call as a step."""
    region, inputs, array_of = call.region, call.inputs, call.around.allocator.array
    assert region is not None, "a call that was followed to its end is one of a region"
    kinds = [(call.dtypes[number], item) for number, item in enumerate(call.item_bytes)]
    left = [(register, symbol.result) for register, symbol in call.symbols.items() if isinstance(symbol, _Result)]
    killed = [register for register in call.killed if register not in stretch.inside]
    stop, tail = stretch.stop, stretch.tail

    def step(registers: Registers) -> int:
        given = flattened([registers[number] for number in inputs])
        results = []
        for shape, (dtype, nbytes) in zip(region.shapes(given), kinds, strict=True):
            for extent in shape:
                nbytes *= extent
            results.append(array_of(shape, dtype, nbytes)[0])
        if len(results) != 1 or results[0].size:
            region.run(given, results)
        for register in killed:
            registers[register] = None
        for register, number in left:
            registers[register] = results[number]
        return stop if tail is None else tail(registers)

    return step
