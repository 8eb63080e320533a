"""The instructions of the virtual machine, and the numbers that they are written as.

The first 21 are TVM's. A class says all of its instruction: its text, and by the types of its fields what it reads and
writes and how it is written as numbers.

The numbers are the fields in their order, an element type three of them; a list stands last, its length before the
number before it. Opcodes count the classes. Registers are places of a frame, counted from 0; arguments lie in the
first ones. Offsets of jumps count from the instruction itself.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from hashlib import blake2b
from typing import Annotated, Any, ClassVar, TypeVar, dataclass_transform, get_args, get_origin

from retune.compiler.errors import ArtifactError
from retune.compiler.vm.element_types import dtype_name, dtype_numbers


class _Use(Enum):
    """What becomes of a register."""

    READ = "read"
    WRITTEN = "written"


Source = Annotated[int, _Use.READ]
Sources = Annotated[tuple[int, ...], _Use.READ]
Target = Annotated[int, _Use.WRITTEN]


@dataclass(frozen=True, slots=True)
class _Part:
    """One field; `width` is how many numbers it is written as, besides those of a list."""

    name: str
    use: _Use | None
    many: bool
    is_dtype: bool

    @property
    def width(self) -> int:
        return 3 if self.is_dtype else 1


class Instruction:
    """One instruction; `str` of it is its text."""

    __slots__ = ()
    opcode: ClassVar[int]
    text: ClassVar[str]
    parts: ClassVar[tuple[_Part, ...]]

    def __str__(self) -> str:
        return self.text.format_map(_words(self))


K = TypeVar("K", bound=Instruction)
_KINDS: list[type[Instruction]] = []
"""Every instruction at the place of its opcode."""


@dataclass_transform(frozen_default=True)
def _instruction(text: str) -> Callable[[type[K]], type[K]]:
    """Declare the next instruction, a frozen dataclass."""

    def declared(kind: type[K]) -> type[K]:
        made = dataclass(frozen=True, slots=True)(kind)
        made.opcode, made.text = len(_KINDS), text
        made.parts = tuple(_part(each.name, each.type) for each in fields(made))  # type: ignore[arg-type]
        _KINDS.append(made)
        return made

    return declared


def _part(name: str, kind: Any) -> _Part:
    bare, *uses = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    return _Part(name, uses[0] if uses else None, get_origin(bare) is tuple, bare is str)


@_instruction("move {dst} {source}")
class Move(Instruction):
    """dst = source"""

    source: Source
    dst: Target


@_instruction("ret {result}")
class Ret(Instruction):
    """Give `result` to the caller."""

    result: Source


@_instruction("invoke {dst} function[{function}]({args})")
class Invoke(Instruction):
    """dst = the function with the number `function`, of the arguments"""

    function: int
    dst: Target
    args: Sources


@_instruction("invoke_closure {dst} {closure}({args})")
class InvokeClosure(Instruction):
    """dst = the closure's function, of its free variables and then the arguments"""

    closure: Source
    dst: Target
    args: Sources


class PrimitiveCall(Instruction):
    """Calls the primitive with the number `packed`; the last `output_size` of `args` are outputs."""

    __slots__ = ()
    packed: int
    output_size: int
    args: tuple[int, ...]

    @property
    def inputs(self) -> tuple[int, ...]:
        """The registers of what the primitive takes."""
        return self.args[: len(self.args) - self.output_size]

    @property
    def outputs(self) -> tuple[int, ...]:
        """The registers of what the primitive gives."""
        return self.args[len(self.args) - self.output_size :]


@_instruction("invoke_packed primitive[{packed}] (in: {inputs}, out: {outputs})")
class InvokePacked(PrimitiveCall):
    """Have the primitive fill the arrays in the output registers. Structures among the arguments stand for their
    fields. Nothing is called for a single output without elements.
    """

    packed: int
    output_size: int
    args: Sources


@_instruction("alloc_tensor {dst} {storage} {offset} {shape} {dtype}")
class AllocTensor(Instruction):
    """dst = an array of a shape that is known, in a storage from the byte in `offset` on"""

    storage: Source
    offset: Source
    dtype: str
    dst: Target
    shape: tuple[int, ...]


@_instruction("alloc_tensor_reg {dst} {storage} {offset} {shape} {dtype}")
class AllocTensorReg(Instruction):
    """dst = an array of the shape that another one holds, in a storage from the byte in `offset` on"""

    storage: Source
    offset: Source
    shape: Source
    dtype: str
    dst: Target


@_instruction("alloc_adt {dst} tag({tag}) [{fields}]")
class AllocADT(Instruction):
    """dst = a structure: a tag and fields"""

    tag: int
    dst: Target
    fields: Sources


@_instruction("alloc_closure {dst} function[{function}]({free})")
class AllocClosure(Instruction):
    """dst = a function with values for its first parameters"""

    function: int
    dst: Target
    free: Sources


@_instruction("get_field {dst} {object}[{index}]")
class GetField(Instruction):
    """dst = field number `index` of a structure"""

    object: Source
    index: int
    dst: Target


@_instruction("if {test} {target} {true_offset} {false_offset}")
class If(Instruction):
    """Go `true_offset` on if two integers are equal, else `false_offset`; neither is 0."""

    test: Source
    target: Source
    true_offset: int
    false_offset: int


@_instruction("load_const {dst} constant[{constant}] device[{device}]")
class LoadConst(Instruction):
    """dst = a constant of the executable"""

    constant: int
    device: int
    dst: Target


@_instruction("goto {offset}")
class Goto(Instruction):
    """Go on elsewhere."""

    offset: int


@_instruction("get_tag {dst} {object}")
class GetTag(Instruction):
    """dst = the tag of a structure, int32[1]"""

    object: Source
    dst: Target


@_instruction("load_consti {dst} {value}")
class LoadConsti(Instruction):
    """dst = a number, int64[1]"""

    value: int
    dst: Target


@_instruction("fatal")
class Fatal(Instruction):
    """End with an error: no case of a match was met."""


@_instruction("alloc_storage {dst} {size} {alignment} {dtype} device[{device}]")
class AllocStorage(Instruction):
    """dst = new memory of so many bytes, for arrays of `dtype` at first; `shape` is for memory of two dimensions"""

    size: Source
    alignment: int
    dtype: str
    device: int
    dst: Target
    shape: tuple[int, ...] = ()


@_instruction("shape_of {dst} {tensor}")
class ShapeOf(Instruction):
    """dst = the shape of an array, int64[its rank]"""

    tensor: Source
    dst: Target


@_instruction("reshape_tensor {dst} {tensor} {shape}")
class ReshapeTensor(Instruction):
    """dst = the same memory, or the beginning of it, in the shape that another array holds, which is of int64"""

    tensor: Source
    shape: Source
    dst: Target


@_instruction("device_copy {dst} {tensor} device[{source_device}] device[{target_device}]")
class DeviceCopy(Instruction):
    """dst = a copy of an array on another device"""

    tensor: Source
    source_device: int
    target_device: int
    dst: Target


@_instruction("kill_register {dst}")
class KillRegister(Instruction):
    """Forget what a register holds."""

    dst: Target


@_instruction("run_plan primitive[{packed}] (in: {inputs}, out: {outputs})")
class RunPlan(PrimitiveCall):
    """outputs = new arrays, what a compiled network of known shapes makes of the inputs"""

    packed: int
    output_size: int
    args: tuple[int, ...]


@_instruction("run_region primitive[{packed}] (in: {inputs}, out: {outputs})")
class RunRegion(PrimitiveCall):
    """outputs = new arrays, what a region whose shapes depend on the inputs makes of them"""

    packed: int
    output_size: int
    args: tuple[int, ...]


def encode(instruction: Instruction) -> tuple[int, ...]:
    """The fields of an instruction as numbers, without its opcode."""
    numbers: list[int] = []
    for part in instruction.parts:
        value = getattr(instruction, part.name)
        if part.many:
            # TVM's order: the length of a list stands before the last of the other fields.
            numbers.insert(-1, len(value))
            numbers += value
        elif part.is_dtype:
            numbers += dtype_numbers(value)
        else:
            numbers.append(value)
    return tuple(numbers)


def decode(opcode: int, numbers: Sequence[int]) -> Instruction:
    """The instruction with this opcode and these fields. Raises: ArtifactError when there is none."""
    if not 0 <= opcode < len(_KINDS):
        raise ArtifactError(f"no instruction has the opcode {opcode}")
    kind = _KINDS[opcode]
    left, values = list(numbers), []
    width = sum(part.width for part in kind.parts)
    listed = any(part.many for part in kind.parts)  # its length is the one number that the width counts for it
    if len(left) < width or (left.pop(width - 2) if listed else 0) != len(numbers) - width:
        raise ArtifactError(f"an instruction {kind.__name__} has {len(numbers)} fields, which are not its own")
    for part in kind.parts:
        taken = left if part.many else left[: part.width]
        left = left[len(taken) :]
        values.append(tuple(taken) if part.many else dtype_name(*taken) if part.is_dtype else taken[0])
    return kind(*values)


def reads(instruction: Instruction) -> Iterator[int]:
    """The registers that an instruction reads."""
    for part in instruction.parts:
        if part.use is _Use.READ:
            value = getattr(instruction, part.name)
            yield from value if part.many else (value,)
    if isinstance(instruction, RunPlan | RunRegion):
        yield from instruction.inputs


def writes(instruction: Instruction) -> Iterator[int]:
    """The registers that an instruction sets."""
    for part in instruction.parts:
        if part.use is _Use.WRITTEN:
            yield getattr(instruction, part.name)
    if isinstance(instruction, RunPlan | RunRegion):
        yield from instruction.outputs


def jumps(instruction: Instruction) -> tuple[int, ...]:
    """Where execution may go on, relative to the instruction: nowhere after a return."""
    match instruction:
        case If():
            return instruction.true_offset, instruction.false_offset
        case Goto():
            return (instruction.offset,)
        case Ret() | Fatal():
            return ()
    return (1,)


def checksum(opcode: int, numbers: Sequence[int]) -> int:
    """A number, of 63 bits, that another opcode or other fields would hardly have."""
    digest = blake2b(struct.pack(f"<{1 + len(numbers)}q", opcode, *numbers), digest_size=8).digest()
    # Shifted: the checksum is written as a signed int64.
    return int.from_bytes(digest, "little") >> 1


def _words(instruction: Instruction) -> dict[str, str]:
    """The fields as they stand in strings."""
    words: dict[str, str] = {}
    for part in instruction.parts:
        value = getattr(instruction, part.name)
        if part.many:
            words[part.name] = _registers(value) if part.use else str(list(value))
        else:
            words[part.name] = f"${value}" if part.use else str(value)
    if isinstance(instruction, PrimitiveCall):
        words["inputs"], words["outputs"] = _registers(instruction.inputs), _registers(instruction.outputs)
    return words


def _registers(numbers: Sequence[int]) -> str:
    return ", ".join(f"${number}" for number in numbers)
