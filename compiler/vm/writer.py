"""In: what functions of an executable are to do. Out: their instructions, and the tables that these name.

Always: every value gets a register of its own; what is not needed any longer is killed by whoever wrote it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from retune.compiler.dtype import item_bytes
from retune.compiler.errors import DefinitionError
from retune.compiler.graph.region import Param
from retune.compiler.runtime.artifact import ALIGNMENT, Array
from retune.compiler.vm.contents import Contents, Primitive, VMFunction
from retune.compiler.vm.instructions import (
    AllocStorage,
    AllocTensor,
    AllocTensorReg,
    Goto,
    If,
    Instruction,
    InvokePacked,
    KillRegister,
    LoadConst,
    LoadConsti,
)

_SHAPE_BYTES = 512
"""Room for a shape: NumPy has no arrays of more than 64 dimensions."""


@dataclass(slots=True)
class Tables:
    """Constants, primitives and functions, as they are asked for."""

    constants: list[Array] = field(default_factory=list)
    primitives: list[Primitive] = field(default_factory=list)
    functions: list[VMFunction | None] = field(default_factory=list)
    _constants: dict[int, int] = field(default_factory=dict)
    _primitives: dict[tuple[str, tuple[tuple[str, str], ...]], int] = field(default_factory=dict)

    def constant(self, array: Array) -> int:
        """The number of a constant."""
        if id(array) not in self._constants:
            self._constants[id(array)] = len(self.constants)
            self.constants.append(array)  # which keeps it alive, and its id its own
        return self._constants[id(array)]

    def primitive(self, name: str, attrs: Mapping[str, str]) -> int:
        """The number of a primitive."""
        key = (name, tuple(sorted(attrs.items())))
        if key not in self._primitives:
            self._primitives[key] = len(self.primitives)
            self.primitives.append(Primitive(name, dict(attrs)))
        return self._primitives[key]

    def contents(self) -> Contents:
        """All of it. Raises: ArtifactError when something does not fit."""
        functions = tuple(each for each in self.functions if each is not None)
        assert len(functions) == len(self.functions), "every function that is called is written"
        return Contents(functions, tuple(self.constants), tuple(self.primitives))


class FunctionWriter:
    """One function while it is written."""

    def __init__(self, tables: Tables, name: str, params: Sequence[str]) -> None:
        self.tables = tables
        self.name = name
        self.params = tuple(params)
        self.instructions: list[Instruction] = []
        self._registers = len(self.params)

    def finished(self) -> VMFunction:
        """The function."""
        devices = (0,) * len(self.params)
        return VMFunction(self.name, self.params, self._registers, tuple(self.instructions), devices)

    def fresh(self) -> int:
        """A register that nothing uses."""
        self._registers += 1
        return self._registers - 1

    def emit(self, instruction: Instruction) -> None:
        """Append an instruction."""
        self.instructions.append(instruction)

    @property
    def here(self) -> int:
        """Where the next instruction will stand."""
        return len(self.instructions)

    def hold(self) -> int:
        """Leave room for a jump, to be written when it is known where it leads."""
        self.instructions.append(Goto(1))
        return self.here - 1

    def branch(self, held: int, test: int, target: int, otherwise: int) -> None:
        """Write a jump: on to the next instruction if the two registers are equal, else to the place `otherwise`."""
        self.instructions[held] = If(test, target, 1, otherwise - held)

    def jump(self, held: int, there: int) -> None:
        """Write a jump to a place."""
        self.instructions[held] = Goto(there - held)

    def kill(self, *registers: int) -> None:
        """Forget what registers hold."""
        for register in registers:
            self.emit(KillRegister(register))

    def number(self, value: int) -> int:
        """A register with a number, int64[1]."""
        register = self.fresh()
        self.emit(LoadConsti(value, register))
        return register

    def constant(self, array: Array) -> int:
        """A register with a constant."""
        register = self.fresh()
        self.emit(LoadConst(self.tables.constant(array), 0, register))
        return register

    def storage(self, nbytes: int, dtype: str = "uint8") -> int:
        """A register with new memory."""
        size, register = self.number(nbytes), self.fresh()
        self.emit(AllocStorage(size, ALIGNMENT, dtype, 0, register))
        self.kill(size)
        return register

    def invoke(self, primitive: int, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Call a primitive."""
        self.emit(InvokePacked(primitive, len(outputs), (*inputs, *outputs)))


@dataclass(frozen=True, slots=True)
class Shaped:
    """Primitives: the ranks of results, where one is not known; their shapes and bytes; the results."""

    rank: int | None
    shape: int
    run: int


def write_shaped(writer: FunctionWriter, shaped: Shaped, inputs: Sequence[int], results: Sequence[Param]) -> list[int]:
    """Call something whose results have shapes that are known only when it is called: ask for the shapes, make room,
    and call it. The registers of the results.

    Raises: DefinitionError when nothing says which elements a result has.
    """
    scratch = _Scratch(writer, len(results))
    ranks: list[int] = []
    if shaped.rank is not None:
        ranks = [scratch.small(number, "int64", (1,)) for number in range(len(results))]
        writer.invoke(shaped.rank, inputs, ranks)
    told = []
    for number, result in enumerate(results):
        known = result.dims is not None and not ranks
        shape = scratch.shape(number, len(result.dims or ())) if known else scratch.shape_by_rank(number, ranks[number])
        told += [shape, scratch.small(number, "int64", (1,), 1)]
    writer.invoke(shaped.shape, inputs, told)
    outputs = []
    zero = writer.number(0)
    for result, shape, size in zip(results, told[::2], told[1::2], strict=True):
        if result.dtype is None:
            raise DefinitionError(f"nothing says which elements {result.name} has, so no room can be made for it")
        storage, output = writer.fresh(), writer.fresh()
        writer.emit(AllocStorage(size, ALIGNMENT, result.dtype, 0, storage))
        writer.emit(AllocTensorReg(storage, zero, shape, result.dtype, output))
        writer.kill(storage)
        outputs.append(output)
    writer.invoke(shaped.run, inputs, outputs)
    writer.kill(zero, *told, *ranks)
    scratch.end()
    return outputs


class _Scratch:
    """Small memory for ranks, shapes and sizes of results: a stretch for each result, in one storage."""

    _STRETCH = _SHAPE_BYTES + 2 * ALIGNMENT

    def __init__(self, writer: FunctionWriter, results: int) -> None:
        self._writer = writer
        self._storage = writer.storage(self._STRETCH * results, "int64")

    def small(self, result: int, dtype: str, shape: tuple[int, ...], place: int = 0) -> int:
        """The first or second small array of a result."""
        return self._tensor(self._STRETCH * result + ALIGNMENT * place, dtype, shape)

    def shape(self, result: int, rank: int) -> int:
        """Room for the shape of a result."""
        return self._tensor(self._STRETCH * result + 2 * ALIGNMENT, "int64", (rank,))

    def shape_by_rank(self, result: int, rank: int) -> int:
        """The same, of a rank that a register holds."""
        offset, register = self._writer.number(self._STRETCH * result + 2 * ALIGNMENT), self._writer.fresh()
        self._writer.emit(AllocTensorReg(self._storage, offset, rank, "int64", register))
        self._writer.kill(offset)
        return register

    def end(self) -> None:
        """The memory is not needed any longer."""
        self._writer.kill(self._storage)

    def _tensor(self, offset: int, dtype: str, shape: tuple[int, ...]) -> int:
        place, register = self._writer.number(offset), self._writer.fresh()
        self._writer.emit(AllocTensor(self._storage, place, dtype, register, shape))
        self._writer.kill(place)
        return register


def sizes_of(results: Sequence[Param]) -> str:
    """Bytes of an element of every result, as an attribute. Raises: DefinitionError as `write_shaped`."""
    for result in results:
        if result.dtype is None:
            raise DefinitionError(f"nothing says which elements {result.name} has, so no room can be made for it")
    return " ".join(str(item_bytes(result.dtype or "")) for result in results)


def scalar(value: int | bool) -> Array:
    """An array without dimensions."""
    return np.asarray(value, np.bool_ if isinstance(value, bool) else np.int64)
