"""The program image of an executable: its functions, constants and primitives.

After `verify` every register, constant, function, primitive and jump target of an instruction exists.

    Image     = functions, constants with a device each, primitives, virtual devices, the host first
    Function  = name, parameters with a device each, number of registers, instructions
    Constant  = an array, or the description of one that is bound later
    Primitive = name and attributes, all strings; the library holds its code
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from retune.compiler.errors import ArtifactError
from retune.compiler.runtime.artifact import Array
from retune.compiler.runtime.device import Device, cpu
from retune.compiler.vm.instructions import (
    AllocClosure,
    AllocStorage,
    DeviceCopy,
    Instruction,
    Invoke,
    LoadConst,
    PrimitiveCall,
    jumps,
    reads,
    writes,
)

MAIN = "main"
KERNEL, PLAN, REGION, HOST, LOOP = "kernel", "plan", "region", "host", "loop"
"""Kinds of primitives, see `retune.compiler.vm.primitives`."""
# A frame has one list entry a register: a damaged number must not ask for gigabytes.
_MOST_REGISTERS = 1 << 24


@dataclass(frozen=True, slots=True)
class VMFunction:
    """A function in bytecode. Its arguments are in the first registers; `param_devices` are indices of virtual
    devices.
    """

    name: str
    params: tuple[str, ...]
    registers: int
    instructions: tuple[Instruction, ...]
    param_devices: tuple[int, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.name}({', '.join(self.params)})  # {self.registers} registers"]
        lines += [f"  {number:4d}: {each}" for number, each in enumerate(self.instructions)]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Primitive:
    """The callee of an `InvokePacked`. `attrs` maps strings to strings; `kind` classifies it, see
    `retune.compiler.vm.primitives`.
    """

    name: str
    attrs: Mapping[str, str] = field(default_factory=dict)


def plan_constants(attrs: Mapping[str, str]) -> dict[int, int]:
    """The constants of a plan: their numbers by the numbers of the plan's buffers. Raises: ArtifactError."""
    text = attrs.get("constants", "")
    pairs = (pair.partition(":") for pair in text.split())
    try:
        return {int(buffer): int(constant) for buffer, _, constant in pairs}
    except ValueError as error:
        raise ArtifactError(f"the constants of a plan make no sense: {text!r:.80}") from error


@dataclass(frozen=True, slots=True)
class LateBound:
    """A constant that is not part of the executable: it gets its array by this name before it is used. The others say
    which array that is; without a digest any will do.
    """

    name: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    digest: str = ""

    @classmethod
    def of(cls, name: str, array: Array) -> "LateBound":
        """What stands for an array that is taken out."""
        return cls(name, array.dtype.name, array.shape, _digest(array))

    def check(self, array: Array) -> None:
        """Check that this is the array that was taken out. Raises: ArtifactError."""
        if not self.digest:
            return
        if (array.dtype.name, array.shape) != (self.dtype, self.shape):
            given = f"{array.dtype.name}{list(array.shape)}"
            raise ArtifactError(f"the constant {self.name} is {self.dtype}{list(self.shape)}, not {given}")
        if _digest(array) != self.digest:
            raise ArtifactError(
                f"the constant {self.name} has other values than the one that was taken out of this executable: "
                "bind the constants that were moved out of the very same one"
            )


def _digest(array: Array) -> str:
    content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return hashlib.sha256(content.data).hexdigest()


Constant = Array | LateBound


@dataclass(frozen=True, slots=True, eq=False)
class ProgramImage:
    """What an executable holds, apart from its library."""

    functions: tuple[VMFunction, ...]
    constants: tuple[Constant, ...] = ()
    primitives: tuple[Primitive, ...] = ()
    devices: tuple[Device, ...] = (cpu(0),)
    constant_devices: tuple[int, ...] = ()

    def verify(self) -> None:
        """Check that everything that instructions name is there. Raises: ArtifactError that names what is not."""
        titles = [function.name for function in self.functions]
        if len(set(titles)) != len(titles):
            raise ArtifactError(f"two functions of the executable have one name: {', '.join(titles)}")
        if not self.devices or self.devices[0] != cpu(0):
            raise ArtifactError("the first virtual device of an executable must be the host, cpu(0)")
        if self.constant_devices and len(self.constant_devices) != len(self.constants):
            raise ArtifactError("there is not one device for every constant")
        names = [each.name for each in self.constants if isinstance(each, LateBound)]
        if len(set(names)) != len(names):
            raise ArtifactError("two late-bound constants have one name")
        self._check(self.constant_devices, len(self.devices), "constants", "device")
        for function in self.functions:
            self._verify_function(function)

    def _verify_function(self, function: VMFunction) -> None:
        where = f"function {function.name}"
        if not len(function.params) <= function.registers <= _MOST_REGISTERS:
            raise ArtifactError(f"{where}: {function.registers} registers for {len(function.params)} parameters")
        if len(set(function.params)) != len(function.params):
            raise ArtifactError(f"{where}: two parameters have one name")
        if function.param_devices and len(function.param_devices) != len(function.params):
            raise ArtifactError(f"{where}: there is not one device for every parameter")
        self._check(function.param_devices, len(self.devices), where, "device")
        for number, instruction in enumerate(function.instructions):
            here = f"{where}, instruction {number} ({instruction})"
            self._verify_tables(instruction, here)
            self._check((*reads(instruction), *writes(instruction)), function.registers, here, "register")
            for offset in jumps(instruction):
                if not offset or not 0 <= number + offset < len(function.instructions):
                    raise ArtifactError(f"{here}: it leads to no instruction")
        if not function.instructions:
            raise ArtifactError(f"{where} has no instructions")

    def _verify_tables(self, instruction: Instruction, here: str) -> None:
        match instruction:
            case Invoke(function=number, args=args) | AllocClosure(function=number, free=args):
                self._check((number,), len(self.functions), here, "function")
                wanted = len(self.functions[number].params)
                # A closure may hold fewer values than the function takes: the rest comes with the call.
                if len(args) != wanted and (isinstance(instruction, Invoke) or len(args) > wanted):
                    raise ArtifactError(f"{here}: {self.functions[number].name} takes {wanted} arguments")
            case PrimitiveCall():
                self._check((instruction.packed,), len(self.primitives), here, "primitive")
                if not 0 <= instruction.output_size <= len(instruction.args):
                    raise ArtifactError(f"{here}: {instruction.output_size} of its arguments are outputs")
            case LoadConst():
                self._check((instruction.constant,), len(self.constants), here, "constant")
                self._check((instruction.device,), len(self.devices), here, "device")
            case AllocStorage():
                self._check((instruction.device,), len(self.devices), here, "device")
            case DeviceCopy():
                devices = (instruction.source_device, instruction.target_device)
                self._check(devices, len(self.devices), here, "device")

    @staticmethod
    def _check(numbers: Sequence[int], count: int, where: str, what: str) -> None:
        for number in numbers:
            if not 0 <= number < count:
                raise ArtifactError(f"{where}: there is no {what} {number}")
