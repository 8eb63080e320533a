"""Writes the functions of an executable: their instructions, and the tables that these name.

Every value gets its own register; what is not needed any longer is killed by its writer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from retune.compiler.runtime.artifact import ALIGNMENT, Array
from retune.compiler.vm.instructions import (
    AllocStorage,
    Goto,
    If,
    Instruction,
    InvokePacked,
    KillRegister,
    LoadConst,
    LoadConsti,
    RunPlan,
    RunRegion,
)
from retune.compiler.vm.program_image import Primitive, ProgramImage, VMFunction


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

    def image(self) -> ProgramImage:
        """All of it. Raises: ArtifactError when something does not fit."""
        functions = tuple(each for each in self.functions if each is not None)
        assert len(functions) == len(self.functions), "every function that is called is written"
        return ProgramImage(functions, tuple(self.constants), tuple(self.primitives))


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
        # A jump to the next instruction: valid bytecode even if it were never patched.
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
        """Have a primitive fill arrays."""
        self.emit(InvokePacked(primitive, len(outputs), (*inputs, *outputs)))

    def run(self, kind: type[RunPlan | RunRegion], primitive: int, inputs: Sequence[int], results: int) -> list[int]:
        """Call a primitive that makes so many new arrays. Their registers."""
        outputs = [self.fresh() for _ in range(results)]
        self.emit(kind(primitive, results, (*inputs, *outputs)))
        return outputs


def scalar(value: int | bool) -> Array:
    """An array without dimensions."""
    return np.asarray(value, np.bool_ if isinstance(value, bool) else np.int64)
