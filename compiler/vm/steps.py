"""Makes a step of each instruction: a function that carries it out on the registers of a frame and says where to go on.

A register holds what its instruction expects, or the step ends in a `MachineError`; constants stay as they are.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import numpy as np

from retune.compiler.errors import MachineError
from retune.compiler.runtime.artifact import ALIGNMENT, Array
from retune.compiler.runtime.buffers import aligned_copy
from retune.compiler.runtime.device import Device
from retune.compiler.vm.allocator import Allocator, Storage
from retune.compiler.vm.instructions import (
    AllocADT,
    AllocClosure,
    AllocStorage,
    AllocTensor,
    AllocTensorReg,
    DeviceCopy,
    Fatal,
    GetField,
    GetTag,
    Goto,
    If,
    Instruction,
    Invoke,
    InvokeClosure,
    InvokePacked,
    KillRegister,
    LoadConst,
    LoadConsti,
    Move,
    PrimitiveCall,
    ReshapeTensor,
    Ret,
    RunPlan,
    RunRegion,
    ShapeOf,
)
from retune.compiler.vm.kernel_run import Note
from retune.compiler.vm.values import ADT, Closure, described, whole_number

Registers = list[Any]
Step = Callable[[Registers], int]
# Negative: places of instructions are not, so the interpreter's usual case is one comparison.
CALL, RETURN = -1, -2
"""Where to go on: into a function, or back."""


Callee = Callable[[Sequence[Any]], Sequence[Array]]
"""What `run_plan` and `run_region` call: it takes values and returns new arrays."""
TimedCallee = Callable[[Sequence[Any], Note], Sequence[Array]]
"""The same, and tells how many seconds each kernel took."""
PackedFunction = Callable[[Sequence[Any], Sequence[Array]], None]
"""What `invoke_packed` calls: it takes values and fills arrays."""


def _cannot_run(_: Sequence[Any]) -> Sequence[Array]:
    raise MachineError("this primitive fills arrays that it is given; it must be called by invoke_packed")


def _cannot_fill(_: Sequence[Any], __: Sequence[Array]) -> None:
    raise MachineError("this primitive makes new arrays; it must be called by run_plan or run_region")


def unbound(name: str, missing: Sequence[str]) -> Callee:
    """What stands for a callee that reads constants which are bound late and are not bound yet."""

    def refuse(_: Sequence[Any]) -> Sequence[Array]:
        raise MachineError(f"{name} reads {', '.join(missing)}, which is bound late, and no array was given for it")

    return refuse


@dataclass(frozen=True, slots=True)
class BoundPrimitive:
    """What the calls of one primitive do."""

    run: Callee = _cannot_run
    fill: PackedFunction = _cannot_fill
    timed: TimedCallee | None = None
    """As `run`; None of what does not run kernel by kernel."""


@dataclass(slots=True)
class Control:
    """What a step that calls or returns leaves for the interpreter."""

    function: int = 0
    args: tuple[Any, ...] = ()
    dst: int = 0
    back: int = 0
    value: Any = None


@dataclass(slots=True)
class VMContext:
    """What steps work with. A constant is None while it is not bound; the allocator has memory for values."""

    constants: Sequence[Array | None]
    primitives: Sequence[BoundPrimitive]
    allocator: Allocator
    devices: Sequence[Device]
    parameters: Sequence[int]
    """How many every function has."""
    control: Control = field(default_factory=Control)


def carve(storage: Storage, offset: int, shape: tuple[int, ...], dtype: "np.dtype[Any]") -> Array:
    """An array in a storage. Raises: MachineError when it does not fit there."""
    # Bytecode is data from a file: every size is checked before memory is touched.
    nbytes = dtype.itemsize
    for extent in shape:
        if extent < 0:
            raise MachineError(f"an array cannot have the shape {list(shape)}")
        nbytes *= extent
    if not 0 <= offset <= offset + nbytes <= storage.nbytes:
        raise MachineError(f"{dtype.name}{list(shape)} at byte {offset} does not fit into {storage.nbytes} bytes")
    return np.ndarray(shape, dtype, storage.array, offset)


def reshaped(array: Array, shape: Array) -> Array:
    """The same memory, from its beginning on, in another shape. Raises: MachineError when that has more elements."""
    if shape.dtype != np.int64 or shape.ndim != 1:
        raise MachineError(f"a shape is an array of int64 of rank 1, not {described(shape)}")
    extents = shape.tolist()
    count = math.prod(extents)
    try:
        return (array.reshape(-1)[:count] if 0 <= count < array.size else array).reshape(extents)
    except ValueError:
        raise MachineError(f"{described(array)} has no shape {shape.tolist()}") from None


def flattened(values: Sequence[Any]) -> list[Any]:
    """The values with structures replaced by their fields."""
    flat: list[Any] = []
    for value in values:
        if type(value) is ADT:  # which costs a tenth of what `isinstance` does: it is an abstract Sequence
            flat += value.fields
        else:
            flat.append(value)
    return flat


def array_in(registers: Registers, number: int) -> Array:
    """The array in a register. Raises: MachineError when it holds something else."""
    value = registers[number]
    if not isinstance(value, np.ndarray):
        raise MachineError(f"register ${number} must hold an array, not {described(value)}")
    return value


def _kind_in(registers: Registers, number: int, kind: type[Any], what: str) -> Any:
    value = registers[number]
    if type(value) is not kind:
        raise MachineError(f"register ${number} must hold {what}, not {described(value)}")
    return value


def fixed(array: Array) -> Array:
    """An array that steps may hand out more than once: it cannot be written."""
    array.flags.writeable = False
    return array


def _move(i: Move, here: int, _: VMContext) -> Step:
    def step(registers: Registers) -> int:
        registers[i.dst] = registers[i.source]
        return here + 1

    return step


def _ret(i: Ret, _: int, context: VMContext) -> Step:
    def step(registers: Registers) -> int:
        context.control.value = registers[i.result]
        return RETURN

    return step


def _invoke(i: Invoke, here: int, context: VMContext) -> Step:
    # A local of the closure saves an attribute lookup in every call.
    control = context.control

    def step(registers: Registers) -> int:
        control.function, control.dst, control.back = i.function, i.dst, here + 1
        control.args = tuple(registers[number] for number in i.args)
        return CALL

    return step


def _invoke_closure(i: InvokeClosure, here: int, context: VMContext) -> Step:
    control = context.control

    def step(registers: Registers) -> int:
        closure = _kind_in(registers, i.closure, Closure, "a closure")
        args = (*closure.free, *(registers[number] for number in i.args))
        if len(args) != context.parameters[closure.function]:
            raise MachineError(f"a closure is given {len(i.args)} arguments, which is not what it takes")
        control.function, control.args, control.dst, control.back = closure.function, args, i.dst, here + 1
        return CALL

    return step


def _invoke_packed(i: InvokePacked, here: int, context: VMContext) -> Step:
    fill, inputs, outputs = context.primitives[i.packed].fill, i.inputs, i.outputs

    def step(registers: Registers) -> int:
        results = flattened([registers[number] for number in outputs])
        for each in results:
            if not isinstance(each, np.ndarray) or not each.flags.writeable:
                raise MachineError(f"what a primitive writes must be an array that may change, not {described(each)}")
        # As in TVM: a single result without elements needs no call.
        if len(results) != 1 or results[0].size:
            fill(flattened([registers[number] for number in inputs]), results)
        return here + 1

    return step


def run_step(i: PrimitiveCall, here: int, callee: Callee) -> Step:
    """The step of `run_plan` or `run_region`."""
    inputs, outputs, count, following = i.inputs, i.outputs, i.output_size, here + 1
    # Between small kernels these lines are most of the time: a comprehension and `zip` would take a microsecond more.
    if len(inputs) == len(outputs) == 1:
        ((source,), (target,)) = inputs, outputs

        def step_of_one(registers: Registers) -> int:
            results = callee((registers[source],))
            if len(results) != 1:
                raise MachineError(f"a primitive has {len(results)} results, not 1")
            registers[target] = results[0]
            return following

        return step_of_one
    places = tuple(enumerate(outputs))
    several = itemgetter(*inputs) if len(inputs) > 1 else None

    def step(registers: Registers) -> int:
        results = callee(several(registers) if several else [registers[number] for number in inputs])
        if len(results) != count:
            raise MachineError(f"a primitive has {len(results)} results, not {count}")
        for place, number in places:
            registers[number] = results[place]
        return following

    return step


def _run(i: PrimitiveCall, here: int, context: VMContext) -> Step:
    return run_step(i, here, context.primitives[i.packed].run)


def _alloc_tensor(i: AllocTensor, here: int, _: VMContext) -> Step:
    dtype = np.dtype(i.dtype)

    def step(registers: Registers) -> int:
        storage = _kind_in(registers, i.storage, Storage, "memory")
        registers[i.dst] = carve(storage, whole_number(registers[i.offset], "an offset"), i.shape, dtype)
        return here + 1

    return step


def _alloc_tensor_reg(i: AllocTensorReg, here: int, _: VMContext) -> Step:
    dtype = np.dtype(i.dtype)

    def step(registers: Registers) -> int:
        storage = _kind_in(registers, i.storage, Storage, "memory")
        shape = array_in(registers, i.shape)
        if shape.dtype.kind not in "iu" or shape.ndim > 1:
            raise MachineError(f"a shape is an array of integers of rank 1, not {described(shape)}")
        extents = tuple(shape.reshape(-1).tolist())
        registers[i.dst] = carve(storage, whole_number(registers[i.offset], "an offset"), extents, dtype)
        return here + 1

    return step


def _alloc_adt(i: AllocADT, here: int, _: VMContext) -> Step:
    def step(registers: Registers) -> int:
        registers[i.dst] = ADT(i.tag, tuple(registers[number] for number in i.fields))
        return here + 1

    return step


def _alloc_closure(i: AllocClosure, here: int, _: VMContext) -> Step:
    def step(registers: Registers) -> int:
        registers[i.dst] = Closure(i.function, tuple(registers[number] for number in i.free))
        return here + 1

    return step


def _get_field(i: GetField, here: int, _: VMContext) -> Step:
    def step(registers: Registers) -> int:
        structure = _kind_in(registers, i.object, ADT, "a structure")
        if not 0 <= i.index < len(structure):
            raise MachineError(f"{described(structure)} has no field {i.index}")
        registers[i.dst] = structure[i.index]
        return here + 1

    return step


def _if(i: If, here: int, _: VMContext) -> Step:
    yes, no = here + i.true_offset, here + i.false_offset

    def step(registers: Registers) -> int:
        test = whole_number(registers[i.test], "what a branch tests")
        return yes if test == whole_number(registers[i.target], "what a branch compares with") else no

    return step


def _load_const(i: LoadConst, here: int, context: VMContext) -> Step:
    def step(registers: Registers) -> int:
        constant = context.constants[i.constant]
        if constant is None:
            raise MachineError(f"constant[{i.constant}] is bound late, and no array was given for it")
        registers[i.dst] = constant
        return here + 1

    return step


def _goto(i: Goto, here: int, _: VMContext) -> Step:
    target = here + i.offset
    return lambda _: target


def _get_tag(i: GetTag, here: int, _: VMContext) -> Step:
    def step(registers: Registers) -> int:
        structure = _kind_in(registers, i.object, ADT, "a structure")
        registers[i.dst] = aligned_copy(np.array([structure.tag], np.int32))
        return here + 1

    return step


def _load_consti(i: LoadConsti, here: int, _: VMContext) -> Step:
    # Made once, when the step is: a loop loads the same constant each time.
    number = fixed(aligned_copy(np.array([i.value], np.int64)))

    def step(registers: Registers) -> int:
        registers[i.dst] = number
        return here + 1

    return step


def _fatal(_: Fatal, here: int, __: VMContext) -> Step:
    def step(_: Registers) -> int:
        raise MachineError(f"instruction {here}: no case of a match was met")

    return step


def _alloc_storage(i: AllocStorage, here: int, context: VMContext) -> Step:
    def step(registers: Registers) -> int:
        if i.shape:
            raise MachineError("memory of two dimensions is asked for; a CPU has none")
        if i.alignment > ALIGNMENT:
            raise MachineError(f"memory at multiples of {i.alignment} bytes is asked for; there is some at {ALIGNMENT}")
        registers[i.dst] = context.allocator.allocate(whole_number(registers[i.size], "a size"))
        return here + 1

    return step


def _shape_of(i: ShapeOf, here: int, _: VMContext) -> Step:
    def step(registers: Registers) -> int:
        registers[i.dst] = aligned_copy(np.array(array_in(registers, i.tensor).shape, np.int64))
        return here + 1

    return step


def _reshape(i: ReshapeTensor, here: int, _: VMContext) -> Step:
    def step(registers: Registers) -> int:
        registers[i.dst] = reshaped(array_in(registers, i.tensor), array_in(registers, i.shape))
        return here + 1

    return step


def _device_copy(i: DeviceCopy, here: int, context: VMContext) -> Step:
    host = context.devices[0]

    def step(registers: Registers) -> int:
        for number in (i.source_device, i.target_device):
            if context.devices[number] != host:
                there = context.devices[number]
                raise MachineError(f"arrays cannot be copied to or from {there}: there is only {host}")
        registers[i.dst] = aligned_copy(array_in(registers, i.tensor))
        return here + 1

    return step


def _kill(i: KillRegister, here: int, _: VMContext) -> Step:
    def step(registers: Registers) -> int:
        registers[i.dst] = None
        return here + 1

    return step


_MAKERS: Mapping[type[Instruction], Callable[[Any, int, VMContext], Step]] = {
    Move: _move,
    Ret: _ret,
    Invoke: _invoke,
    InvokeClosure: _invoke_closure,
    InvokePacked: _invoke_packed,
    AllocTensor: _alloc_tensor,
    AllocTensorReg: _alloc_tensor_reg,
    AllocADT: _alloc_adt,
    AllocClosure: _alloc_closure,
    GetField: _get_field,
    If: _if,
    LoadConst: _load_const,
    Goto: _goto,
    GetTag: _get_tag,
    LoadConsti: _load_consti,
    Fatal: _fatal,
    AllocStorage: _alloc_storage,
    ShapeOf: _shape_of,
    ReshapeTensor: _reshape,
    DeviceCopy: _device_copy,
    KillRegister: _kill,
    RunPlan: _run,
    RunRegion: _run,
}


def step_of(instruction: Instruction, here: int, context: VMContext) -> Step:
    """The step of an instruction that stands at the place `here` of its function."""
    return _MAKERS[type(instruction)](instruction, here, context)
