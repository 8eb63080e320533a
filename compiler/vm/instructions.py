"""In: numbers. Out: typed instructions of the virtual machine, and back. Always: one table, `_LAYOUT`, says how each is
written as numbers, what it reads and what it writes; nothing else does.

Registers are places of a frame, counted from 0; arguments lie in the first ones. Offsets of jumps count from the
instruction itself. What an instruction does stands at its class.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, ClassVar

from compiler.errors import ArtifactError
from compiler.vm.element_types import dtype_name, dtype_numbers


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction; `str` of it is its text."""

    opcode: ClassVar[int]
    text: ClassVar[str]

    def __str__(self) -> str:
        return self.text.format_map(_words(self))


@dataclass(frozen=True, slots=True)
class Move(Instruction):
    """dst = source"""

    text = "move {dst} {source}"
    source: int
    dst: int


@dataclass(frozen=True, slots=True)
class Ret(Instruction):
    """Give `result` to the caller."""

    text = "ret {result}"
    result: int


@dataclass(frozen=True, slots=True)
class Invoke(Instruction):
    """dst = the function with the number `function`, of the arguments"""

    text = "invoke {dst} function[{function}]({args})"
    function: int
    dst: int
    args: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class InvokeClosure(Instruction):
    """dst = the closure's function, of its free variables and then the arguments"""

    text = "invoke_closure {dst} {closure}({args})"
    closure: int
    dst: int
    args: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class InvokePacked(Instruction):
    """Call the primitive with the number `packed`; the last `output_size` arguments are written. Structures among the
    arguments stand for their fields. Nothing is called for a single output without elements.
    """

    text = "invoke_packed primitive[{packed}] (in: {inputs}, out: {outputs})"
    packed: int
    output_size: int
    args: tuple[int, ...]

    @property
    def inputs(self) -> tuple[int, ...]:
        """The registers that are only read."""
        return self.args[: len(self.args) - self.output_size]

    @property
    def outputs(self) -> tuple[int, ...]:
        """The registers whose arrays are written."""
        return self.args[len(self.args) - self.output_size :]


@dataclass(frozen=True, slots=True)
class AllocTensor(Instruction):
    """dst = an array of a shape that is known, in a storage from the byte in `offset` on"""

    text = "alloc_tensor {dst} {storage} {offset} {shape} {dtype}"
    storage: int
    offset: int
    dtype: str
    dst: int
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AllocTensorReg(Instruction):
    """dst = an array of the shape that another one holds, in a storage from the byte in `offset` on"""

    text = "alloc_tensor_reg {dst} {storage} {offset} {shape} {dtype}"
    storage: int
    offset: int
    shape: int
    dtype: str
    dst: int


@dataclass(frozen=True, slots=True)
class AllocADT(Instruction):
    """dst = a structure: a tag and fields"""

    text = "alloc_adt {dst} tag({tag}) [{fields}]"
    tag: int
    dst: int
    fields: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AllocClosure(Instruction):
    """dst = a function with values for its first parameters"""

    text = "alloc_closure {dst} function[{function}]({free})"
    function: int
    dst: int
    free: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class GetField(Instruction):
    """dst = field number `index` of a structure"""

    text = "get_field {dst} {object}[{index}]"
    object: int
    index: int
    dst: int


@dataclass(frozen=True, slots=True)
class If(Instruction):
    """Go `true_offset` on if two whole numbers are equal, else `false_offset`; neither is 0."""

    text = "if {test} {target} {true_offset} {false_offset}"
    test: int
    target: int
    true_offset: int
    false_offset: int


@dataclass(frozen=True, slots=True)
class LoadConst(Instruction):
    """dst = a constant of the executable"""

    text = "load_const {dst} constant[{constant}] device[{device}]"
    constant: int
    device: int
    dst: int


@dataclass(frozen=True, slots=True)
class Goto(Instruction):
    """Go on elsewhere."""

    text = "goto {offset}"
    offset: int


@dataclass(frozen=True, slots=True)
class GetTag(Instruction):
    """dst = the tag of a structure, int32[1]"""

    text = "get_tag {dst} {object}"
    object: int
    dst: int


@dataclass(frozen=True, slots=True)
class LoadConsti(Instruction):
    """dst = a number, int64[1]"""

    text = "load_consti {dst} {value}"
    value: int
    dst: int


@dataclass(frozen=True, slots=True)
class Fatal(Instruction):
    """End with an error: no case of a match was met."""

    text = "fatal"


@dataclass(frozen=True, slots=True)
class AllocStorage(Instruction):
    """dst = new memory of so many bytes, for arrays of `dtype` at first; `shape` is for memory of two dimensions"""

    text = "alloc_storage {dst} {size} {alignment} {dtype} device[{device}]"
    size: int
    alignment: int
    dtype: str
    device: int
    dst: int
    shape: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ShapeOf(Instruction):
    """dst = the shape of an array, int64[its rank]"""

    text = "shape_of {dst} {tensor}"
    tensor: int
    dst: int


@dataclass(frozen=True, slots=True)
class ReshapeTensor(Instruction):
    """dst = the same memory in the shape that another array holds, which is of int64"""

    text = "reshape_tensor {dst} {tensor} {shape}"
    tensor: int
    shape: int
    dst: int


@dataclass(frozen=True, slots=True)
class DeviceCopy(Instruction):
    """dst = a copy of an array on another device"""

    text = "device_copy {dst} {tensor} device[{source_device}] device[{target_device}]"
    tensor: int
    source_device: int
    target_device: int
    dst: int


@dataclass(frozen=True, slots=True)
class KillRegister(Instruction):
    """Forget what a register holds."""

    text = "kill_register {dst}"
    dst: int


_LAYOUT: tuple[tuple[type[Instruction], str], ...] = (
    (Move, "$source >dst"),
    (Ret, "$result"),
    (Invoke, "function #args >dst $args*"),
    (InvokeClosure, "$closure #args >dst $args*"),
    (InvokePacked, "packed #args output_size $args*"),
    (AllocTensor, "$storage $offset dtype! #shape >dst shape*"),
    (AllocTensorReg, "$storage $offset $shape dtype! >dst"),
    (AllocADT, "tag #fields >dst $fields*"),
    (AllocClosure, "function #free >dst $free*"),
    (GetField, "$object index >dst"),
    (If, "$test $target true_offset false_offset"),
    (LoadConst, "constant device >dst"),
    (Goto, "offset"),
    (GetTag, "$object >dst"),
    (LoadConsti, "value >dst"),
    (Fatal, ""),
    (AllocStorage, "$size alignment dtype! device #shape >dst shape*"),
    (ShapeOf, "$tensor >dst"),
    (ReshapeTensor, "$tensor $shape >dst"),
    (DeviceCopy, "$tensor source_device target_device >dst"),
    (KillRegister, ">dst"),
)
"""Every instruction at the place of its opcode, and its fields in the order in which they are written. $ marks
registers that are read, > the one that is written; # is the number of entries of a field, * the entries; ! an element
type, three numbers.
"""


@dataclass(frozen=True, slots=True)
class _Part:
    """One word of a layout."""

    name: str
    reads: bool = False
    writes: bool = False
    counts: bool = False
    many: bool = False
    is_dtype: bool = False


def _part(word: str) -> _Part:
    bare = word.strip("$>#*!")
    return _Part(bare, word[0] == "$", word[0] == ">", word[0] == "#", word[-1] == "*", word[-1] == "!")


_PARTS = {kind: tuple(map(_part, layout.split())) for kind, layout in _LAYOUT}
for _number, (_kind, _) in enumerate(_LAYOUT):
    _kind.opcode = _number


def encode(instruction: Instruction) -> tuple[int, ...]:
    """The fields of an instruction as numbers, without its opcode."""
    numbers: list[int] = []
    for part in _PARTS[type(instruction)]:
        value = getattr(instruction, part.name)
        if part.counts:
            numbers.append(len(value))
        elif part.many:
            numbers.extend(value)
        elif part.is_dtype:
            numbers.extend(dtype_numbers(value))
        else:
            numbers.append(value)
    return tuple(numbers)


def decode(opcode: int, numbers: Sequence[int]) -> Instruction:
    """The instruction with this opcode and these fields. Raises: ArtifactError when there is none."""
    if not 0 <= opcode < len(_LAYOUT):
        raise ArtifactError(f"no instruction has the opcode {opcode}")
    kind = _LAYOUT[opcode][0]
    left = iter(numbers)
    fields: dict[str, Any] = {}
    counts: dict[str, int] = {}
    try:
        for part in _PARTS[kind]:
            if part.counts:
                counts[part.name] = next(left)
            elif part.many:
                fields[part.name] = tuple(next(left) for _ in range(min(counts[part.name], len(numbers) + 1)))
            elif part.is_dtype:
                fields[part.name] = dtype_name(next(left), next(left), next(left))
            else:
                fields[part.name] = next(left)
    except (StopIteration, RuntimeError):  # the latter is what a generator makes of the former
        raise ArtifactError(f"an instruction {kind.__name__} has only {len(numbers)} fields") from None
    short = any(len(fields[name]) != count for name, count in counts.items())
    if short or next(left, None) is not None:
        raise ArtifactError(f"an instruction {kind.__name__} has {len(numbers)} fields, which are not its own")
    return kind(**fields)


def reads(instruction: Instruction) -> Iterator[int]:
    """The registers that an instruction reads."""
    for part in _PARTS[type(instruction)]:
        if part.reads:
            value = getattr(instruction, part.name)
            yield from value if part.many else (value,)


def written(instruction: Instruction) -> int | None:
    """The register that an instruction sets, if it sets one."""
    names = [part.name for part in _PARTS[type(instruction)] if part.writes]
    return int(getattr(instruction, names[0])) if names else None


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
    return int.from_bytes(digest, "little") >> 1


def _words(instruction: Instruction) -> dict[str, str]:
    """The fields as they stand in texts."""
    words: dict[str, str] = {}
    for part in _PARTS[type(instruction)]:
        value = getattr(instruction, part.name)
        if part.many:
            words[part.name] = _registers(value) if part.reads else str(list(value))
        elif not part.counts:
            words[part.name] = f"${value}" if part.reads or part.writes else str(value)
    if isinstance(instruction, InvokePacked):
        words["inputs"], words["outputs"] = _registers(instruction.inputs), _registers(instruction.outputs)
    return words


def _registers(numbers: Sequence[int]) -> str:
    return ", ".join(f"${number}" for number in numbers)
