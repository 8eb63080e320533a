"""A library of custom operators for ONNX Runtime: each runs the plan of a compiled network.

The library exports `RegisterCustomOps`, which a session calls with the table of ONNX Runtime's C functions. Its object
is linked with those of the kernels and with one of their constants. An operator checks how many elements its inputs
have, takes memory for intermediates from the session's allocator, and calls the kernels in the order of the plan, so
runs may overlap. An input that is not aligned as kernels need it, such as most of NumPy's arrays, is copied first.

Kernels call libgomp's functions for their parallel loops. The library has functions of its own by these names, hidden
from others, which give the loops to the threads of the session: `intra_op_num_threads` counts, and no second pool of
threads competes for the cores.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from llvmlite import ir

from retune.compiler.codegen.abi.c_module import INT, LONG, NULL, POINTER, CFunction, array_of, record, signature
from retune.compiler.codegen.abi.cpu_guard import cpu_guard
from retune.compiler.codegen.abi.custom_op_support import FIELDS, VERSION, OrtModule
from retune.compiler.codegen.cpu import compile_module
from retune.compiler.codegen.scan_loop import BARRIER
from retune.compiler.core.errors import ArtifactError
from retune.compiler.core.target import Target
from retune.compiler.runtime.artifact import ALIGNMENT
from retune.compiler.runtime.executor.network import CompiledNetwork
from retune.compiler.runtime.executor.plan import BufferKind, Plan

DOMAIN = "retune"
"""The domain of the operators."""

ENTRY = "RegisterCustomOps"

TYPES = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9, "float16": 10,
    "float64": 11, "uint32": 12, "uint64": 13, "bfloat16": 16,
}  # fmt: skip
"""ONNX's numbers of element types."""

_MOST_BYTES = 2**31 - 2**26
"""Of constants: kernels and data of a library are at most 2 GiB apart, so that 32-bit offsets reach all of it."""


@dataclass(frozen=True, slots=True)
class CustomOp:
    """An operator: the name of its type, and the network that it runs."""

    name: str
    network: CompiledNetwork


def custom_op(network: CompiledNetwork) -> CustomOp:
    """The operator that runs a network; its name ends in a hash of all that it computes with.

    Raises: ArtifactError when the network is not one for a CPU, has no object code, or has inputs or outputs of a type
    that ONNX Runtime lacks.
    """
    plan = network.plan
    for number in (*plan.inputs, *plan.outputs):
        if plan.buffers[number].dtype not in TYPES:
            raise ArtifactError(f"ONNX Runtime has no tensors of {plan.buffers[number].dtype} for the network's "
                                f"{plan.buffers[number].name}")  # fmt: skip
    network.require_cpu_code("a library for ONNX Runtime")
    digest = hashlib.sha256(plan.dumps().encode())
    for kernel in network.kernels:
        digest.update(kernel.object_code)
    for _, array in sorted(network.constants.items()):
        digest.update(array.data)
    # A readable beginning; the hash tells operators apart.
    label = re.sub(r"\W+", "_", plan.name)[:40]
    return CustomOp(f"{label}_{digest.hexdigest()[:16]}", network)


@dataclass(slots=True)
class ConstantTable:
    """The constants of all operators in one block of memory, each at a multiple of 64 bytes."""

    offsets: dict[tuple[int, int], int] = field(default_factory=dict)
    """Where a constant begins, by the numbers of its operator and its buffer."""
    nbytes: int = 0

    @classmethod
    def of(cls, ops: Sequence[CustomOp]) -> "ConstantTable":
        """Place the constants. Raises: ArtifactError when they are too large for a library."""
        table = cls()
        for index, op in enumerate(ops):
            for number, array in op.network.constants.items():
                table.offsets[index, number] = table.nbytes
                table.nbytes += _align(array.nbytes)
        if table.nbytes > _MOST_BYTES:
            raise ArtifactError(f"the constants take {table.nbytes / 2**30:.1f} GiB, and a shared library has room for "
                                f"{_MOST_BYTES / 2**30:.1f} GiB")  # fmt: skip
        return table

    def write(self, ops: Sequence[CustomOp], path: Path) -> None:
        with path.open("wb") as file:
            for index, op in enumerate(ops):
                for number, array in op.network.constants.items():
                    file.seek(self.offsets[index, number])
                    file.write(array.reshape(-1).view("uint8").data)
            # At least one unit, so that `retune.constants` has a place in a library without constants too.
            file.truncate(max(self.nbytes, ALIGNMENT))


def library_objects(ops: Sequence[CustomOp], folder: Path) -> list[bytes]:
    """The object code of a library of `ops`. Temporary files are written into `folder`.

    Raises: ArtifactError when the constants are too large for a library.
    """
    table = ConstantTable.of(ops)
    file = folder / "constants"
    table.write(ops, file)
    target = Target(str(ops[0].network.metadata.get("target", "llvm")))
    kernels = [kernel.object_code for op in ops for kernel in op.network.kernels]
    return [compile_module(_library(ops, table), target), compile_module(_constants_text(file), target), *kernels]


def _constants_text(file: Path) -> str:
    """The module with the content of a file as `retune.constants`; the assembler reads it."""
    # The assembler copies the file as it is; as LLVM text each byte would take three characters to write and parse.
    lines = (
        ".section .rodata",
        f".balign {ALIGNMENT}",
        ".globl retune.constants",
        ".hidden retune.constants",
        "retune.constants:",
        f'.incbin "{file}"',
    )
    hexadecimal = ("".join(f"\\{byte:02X}" for byte in line.encode()) for line in lines)
    return "\n".join(f'module asm "{line}"' for line in hexadecimal)


def _library(ops: Sequence[CustomOp], table: ConstantTable) -> str:
    """The LLVM text of the library, apart from kernels and constants."""
    module = OrtModule()
    metadata = ops[0].network.metadata
    needs = list(metadata.get("needs", ()))
    has_features = cpu_guard(module, "retune.has_features", str(metadata.get("triple", "")), needs)
    descriptions = []
    for number, op in enumerate(ops):
        constants = {buffer: table.offsets[number, buffer] for buffer in op.network.constants}
        descriptions.append(_description(module, op, _Compute(module, op, constants).write(f"retune.compute{number}")))
    cpu = metadata.get("cpu", "another CPU")
    _write_entry(module, descriptions, has_features, f"the library was compiled for {cpu}; this machine lacks "
                 "instructions that it uses: export the network here")  # fmt: skip
    return str(module)


def _align(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _write_entry(module: OrtModule, ops: Sequence[ir.Value], has_features: ir.Function, foreign: str) -> None:
    """The exported function. All sessions share one domain, which the first of them makes."""
    entry = module.define(ENTRY, "ptr", "ptr, ptr", linkage="")
    options, base = entry.args
    domain, made = entry.slot(POINTER), entry.slot(POINTER)
    get = entry.load(signature("ptr", "i32").as_pointer(), base)
    api = entry.call(get, VERSION)
    with entry.when(entry.is_null(api)):
        # Every ONNX Runtime knows version 1 of the table, whose CreateStatus is enough to say what is wrong.
        entry.store(entry.call(get, 1), module.api)
        old = f"a library by Retune needs ONNX Runtime 1.{VERSION} or newer"
        entry.ret(module.ort(entry, "CreateStatus", 1, module.text(old)))
    entry.store(api, module.api)
    with entry.unless(entry.call(has_features)):
        entry.ret(module.ort(entry, "CreateStatus", 1, module.text(foreign)))
    before = entry.builder.load_atomic(module.domain, "acquire", 8, typ=POINTER)
    entry.store(before, domain)
    with entry.when(entry.is_null(before)):
        entry.ret_error(module.ort(entry, "CreateCustomOpDomain", module.text(DOMAIN), made))
        own = entry.load(POINTER, made)
        for op in ops:
            entry.ret_error(module.ort(entry, "CustomOpDomain_Add", own, op))
        # Two sessions may register at once: the first exchange wins, and the other domain is released.
        exchange = entry.builder.cmpxchg(module.domain, NULL, own, "acq_rel", "acquire")
        is_first = entry.builder.extract_value(exchange, 1)
        with entry.unless(is_first):
            module.ort(entry, "ReleaseCustomOpDomain", own)
        entry.store(entry.builder.select(is_first, own, entry.builder.extract_value(exchange, 0)), domain)
    entry.ret(module.ort(entry, "AddCustomOpDomain", options, entry.load(POINTER, domain)))


def _description(module: OrtModule, op: CustomOp, compute: ir.Function) -> ir.Value:
    """The `OrtCustomOp` of an operator, with our fields behind it."""
    plan = op.network.plan
    functions = {**module.shared, "KernelComputeV2": compute}
    fields: list[ir.Value] = [INT(VERSION), array_of(POINTER, [functions.get(name, NULL) for name in FIELDS])]
    fields.append(module.text(op.name))
    for buffers in (plan.inputs, plan.outputs):
        kinds = array_of(INT, [TYPES[plan.buffers[number].dtype] for number in buffers])
        fields += [LONG(len(buffers)), module.constant(kinds)]
    return module.constant(record(*fields))


@dataclass(slots=True)
class _Compute:
    """Writes the function that runs a plan once, an operator's `KernelComputeV2`.

    Tensors of ONNX Runtime that kernels cannot use where they lie are copied to memory behind that of intermediates.
    """

    module: OrtModule
    op: CustomOp
    constants: Mapping[int, int]
    _run: CFunction = field(init=False)
    _context: ir.Value = field(init=False)
    _owners: dict[int, int] = field(init=False)
    """The output in whose tensor the kernels write a buffer that owns memory."""
    _extra: dict[int, int] = field(init=False)
    """Where in the memory of a run a buffer lies that no tensor of ONNX Runtime holds whole."""
    _workspace: int = field(init=False)
    _nbytes: int = field(init=False)
    _memory: ir.Value = field(init=False)

    def __post_init__(self) -> None:
        plan = self._plan
        self._owners, self._extra = {}, {}
        size = _align(plan.arena_bytes)
        for number, output in enumerate(plan.outputs):
            # An output that is a view of a part cannot be the memory of the whole buffer.
            root = plan.buffers[output].storage
            is_whole = plan.buffers[output].nbytes == plan.buffers[root].nbytes
            if plan.buffers[root].kind is BufferKind.OUTPUT and is_whole:
                self._owners.setdefault(root, number)
        for number, buffer in enumerate(plan.buffers):
            if buffer.kind is BufferKind.OUTPUT and buffer.storage == number and number not in self._owners:
                self._extra[number] = size
                size += _align(buffer.nbytes)
        self._workspace = size
        room = max((kernel.workspace_bytes for kernel in self.op.network.kernels), default=0)
        self._nbytes = size + _align(room)

    @property
    def _plan(self) -> Plan:
        return self.op.network.plan

    def write(self, name: str) -> ir.Function:
        self._run = run = self.module.define(name, "ptr", "ptr, ptr")
        self._context = run.args[1]
        width = max((len(call.buffers) for call in self._plan.calls), default=0) + 1
        arguments, allocator_slot, memory_slot = run.slot(POINTER, width), run.slot(POINTER), run.slot(POINTER)
        tensors = self._tensors()
        apart = self._allocate(tensors, allocator_slot, memory_slot)
        buffers = self._buffers(tensors, apart)
        code = self._calls(arguments, buffers)
        self._copy_outputs(tensors, apart, buffers)
        allocator = run.load(POINTER, allocator_slot)
        run.call(self.module.fail, self.module.ort(run, "AllocatorFree", allocator, run.load(POINTER, memory_slot)))
        self.module.ort(run, "ReleaseAllocator", allocator)
        with run.unless(run.equals(code, 0)):
            message = self.module.text(f"a kernel of {self.op.name} failed")
            run.call(self.module.fail, self.module.ort(run, "CreateStatus", 1, message))
        failure = run.load(POINTER, self.module.failure)
        run.store(NULL, self.module.failure)
        run.ret(failure)
        return run.function

    def _tensors(self) -> dict[int, ir.Value]:
        """Where the tensors of ONNX Runtime lie, by buffer."""
        run, module, plan = self._run, self.module, self._plan
        slots = {number: run.slot(POINTER) for number in (*plan.inputs, *plan.outputs)}
        for index, number in enumerate(plan.inputs):
            spec = plan.buffers[number]
            message = module.text(f"the input {spec.name} must be {spec.dtype}{list(spec.shape)}")
            kind, dims, rank = TYPES[spec.dtype], module.constant(array_of(LONG, spec.shape)), len(spec.shape)
            run.ret_error(run.call(module.input, self._context, index, kind, dims, rank, message, slots[number]))
        for index, number in enumerate(plan.outputs):
            shape = plan.buffers[number].shape
            dims = module.constant(array_of(LONG, shape))
            run.ret_error(run.call(module.output, self._context, index, dims, len(shape), slots[number]))
        return {number: run.load(POINTER, slot) for number, slot in slots.items()}

    def _allocate(
        self, tensors: Mapping[int, ir.Value], allocator: ir.Value, memory: ir.Value
    ) -> dict[int, tuple[ir.Value, ir.Value]]:
        """Allocate memory. For each tensor that kernels use in place of a buffer: whether it is not aligned as they
        need it, and the address of memory that they use then.
        """
        run, builder, plan = self._run, self._run.builder, self._plan
        total, begins = LONG(self._nbytes), {}
        for number in (*plan.inputs, *(plan.outputs[index] for index in self._owners.values())):
            rest = builder.and_(builder.ptrtoint(tensors[number], LONG), LONG(ALIGNMENT - 1))
            is_apart = builder.not_(run.equals(rest, 0))
            begins[number] = is_apart, total
            total = builder.add(total, builder.select(is_apart, LONG(_align(plan.buffers[number].nbytes)), LONG(0)))
        # The allocator need not align to 64 bytes: one unit more, and the address is rounded up.
        nbytes = builder.add(total, LONG(ALIGNMENT))
        run.ret_error(run.call(self.module.allocate, self._context, nbytes, allocator, memory))
        raised = builder.add(builder.ptrtoint(run.load(POINTER, memory), LONG), LONG(ALIGNMENT - 1))
        self._memory = builder.inttoptr(builder.and_(raised, LONG(-ALIGNMENT)), POINTER)
        return {number: (is_apart, run.at(self._memory, begin)) for number, (is_apart, begin) in begins.items()}

    def _buffers(
        self, tensors: Mapping[int, ir.Value], apart: Mapping[int, tuple[ir.Value, ir.Value]]
    ) -> dict[int, ir.Value]:
        """Copy inputs that are not aligned, and say where each buffer that owns memory lies."""
        run, plan = self._run, self._plan
        for number in plan.inputs:
            is_apart, spare = apart[number]
            with run.when(is_apart):
                run.call(self.module.copy, spare, tensors[number], plan.buffers[number].nbytes)
        used = {number: run.builder.select(*places, tensors[number]) for number, places in apart.items()}
        roots = {plan.buffers[number].storage for call in plan.calls for number in call.buffers}
        roots |= {plan.buffers[number].storage for number in plan.outputs}
        return {number: self._address(number, used) for number in sorted(roots)}

    def _address(self, number: int, used: Mapping[int, ir.Value]) -> ir.Value:
        spec = self._plan.buffers[number]
        if spec.kind is BufferKind.INPUT:
            return used[number]
        if spec.kind is BufferKind.CONSTANT:
            return self._run.at(self.module.constants, self.constants[number])
        if number in self._owners:
            return used[self._plan.outputs[self._owners[number]]]
        return self._run.at(self._memory, self._extra.get(number, spec.offset))

    def _calls(self, arguments: ir.Value, buffers: Mapping[int, ir.Value]) -> ir.Value:
        """Run the kernels; zero where none failed."""
        run, plan = self._run, self._plan
        kernels = {
            kernel.name: (self.module.declare(kernel.name, "i32", "ptr, i32", "hidden"), kernel.workspace_bytes)
            for kernel in self.op.network.kernels
        }
        waiting = {kernel.name for kernel in self.op.network.kernels if BARRIER.encode() in kernel.object_code}
        threads = int(self.op.network.metadata.get("threads", 1))
        # Thread-local, and restored at the end: the run may be nested in another operator's on this thread.
        outer = run.load(POINTER, self.module.context)
        run.store(self._context, self.module.context)
        workspace = run.at(self._memory, self._workspace)
        # Codes are joined and tested once at the end, so that a failing kernel does not skip freeing the memory.
        code = INT(0)
        for call in plan.calls:
            kernel, nbytes = kernels[call.kernel]
            addresses = [buffers[plan.buffers[number].storage] for number in call.buffers]
            for slot, address in enumerate([*addresses, workspace if nbytes else NULL]):
                run.store(address, arguments, 8 * slot)
            # Shares of ONNX Runtime's threads may run one after another, so they cannot wait for each other.
            code = run.builder.or_(code, run.call(kernel, arguments, 1 if call.kernel in waiting else threads))
        run.store(outer, self.module.context)
        return code

    def _copy_outputs(
        self,
        tensors: Mapping[int, ir.Value],
        apart: Mapping[int, tuple[ir.Value, ir.Value]],
        buffers: Mapping[int, ir.Value],
    ) -> None:
        """Copy outputs that no kernel wrote into the tensor of ONNX Runtime."""
        run, plan = self._run, self._plan
        for index, number in enumerate(plan.outputs):
            spec = plan.buffers[number]
            if self._owners.get(spec.storage) != index:
                run.call(self.module.copy, tensors[number], buffers[spec.storage], spec.nbytes)
                continue
            is_apart, spare = apart[number]
            with run.when(is_apart):
                run.call(self.module.copy, tensors[number], spare, spec.nbytes)
