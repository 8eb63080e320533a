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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from retune.compiler.codegen.cpu import compile_module
from retune.compiler.codegen.cpu_guard import cpu_guard
from retune.compiler.codegen.custom_op_support import FIELDS, SHARED, VERSION, support_text
from retune.compiler.errors import ArtifactError
from retune.compiler.executor.network import CompiledNetwork
from retune.compiler.executor.plan import BufferKind, BufferSpec, Plan
from retune.compiler.runtime.artifact import ALIGNMENT
from retune.compiler.target import Target

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
        for place, op in enumerate(ops):
            for number, array in op.network.constants.items():
                table.offsets[place, number] = table.nbytes
                table.nbytes += _aligned(array.nbytes)
        if table.nbytes > _MOST_BYTES:
            raise ArtifactError(f"the constants take {table.nbytes / 2**30:.1f} GiB, and a shared library has room for "
                                f"{_MOST_BYTES / 2**30:.1f} GiB")  # fmt: skip
        return table

    def write(self, ops: Sequence[CustomOp], path: Path) -> None:
        """Write the block into a file."""
        with path.open("wb") as file:
            for place, op in enumerate(ops):
                for number, array in op.network.constants.items():
                    file.seek(self.offsets[place, number])
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
    return [compile_module(library_text(ops, table), target), compile_module(_constants_text(file), target), *kernels]


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
    return "\n".join(f'module asm "{escaped(line.encode())}"' for line in lines)


def library_text(ops: Sequence[CustomOp], table: ConstantTable) -> str:
    """The LLVM text of the library, apart from kernels and constants."""
    texts = Texts()
    parts = [_operator(place, op, table, texts) for place, op in enumerate(ops)]
    register = _register(len(ops), cpu_message(ops), texts)
    return "\n".join([support_text(), guard_text(ops), *parts, register, *texts.lines])


def guard_text(ops: Sequence[CustomOp]) -> str:
    """The function `i1 retune.has_features()`: whether this CPU can run the operators."""
    metadata = ops[0].network.metadata
    return cpu_guard("retune.has_features", str(metadata.get("triple", "")), list(metadata.get("needs", ())))


def cpu_message(ops: Sequence[CustomOp]) -> str:
    """What a library says on a CPU that cannot run its operators."""
    cpu = ops[0].network.metadata.get("cpu", "another CPU")
    return f"the library was compiled for {cpu}; this machine lacks instructions that it uses: export the network here"


@dataclass(slots=True)
class Texts:
    """Strings of the module that end with a zero, each kept once."""

    lines: list[str] = field(default_factory=list)
    _names: dict[str, str] = field(default_factory=dict)

    def name(self, text: str) -> str:
        if text not in self._names:
            data = text.encode() + b"\0"
            self._names[text] = f"@retune.text{len(self._names)}"
            kind = f"[{len(data)} x i8]"
            self.lines.append(f'{self._names[text]} = private unnamed_addr constant {kind} c"{escaped(data)}"')
        return self._names[text]


def escaped(data: bytes) -> str:
    return "".join(f"\\{byte:02X}" for byte in data)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _register(count: int, why: str, texts: Texts) -> str:
    """The exported function. All sessions share one domain, which the first of them makes."""
    old = texts.name(f"a library by Retune needs ONNX Runtime 1.{VERSION} or newer")
    foreign = texts.name(why)
    lines = [
        f"define ptr @{ENTRY}(ptr %options, ptr %base) {{",
        "  %domain.at = alloca ptr, align 8",
        "  %get = load ptr, ptr %base",
        f"  %api = call ptr %get(i32 {VERSION})",
        "  %known = icmp ne ptr %api, null",
        "  br i1 %known, label %begin, label %old",
        # Every ONNX Runtime knows version 1 of the table, whose CreateStatus is enough to say what is wrong.
        "old:",
        "  %first = call ptr %get(i32 1)",
        "  store ptr %first, ptr @retune.api",
        f"  %too_old = call ptr @ort.CreateStatus(i32 1, ptr {old})",
        "  ret ptr %too_old",
        "begin:",
        "  store ptr %api, ptr @retune.api",
        "  %has = call i1 @retune.has_features()",
        "  br i1 %has, label %fits, label %foreign",
        "foreign:",
        f"  %unfit = call ptr @ort.CreateStatus(i32 1, ptr {foreign})",
        "  ret ptr %unfit",
        "fits:",
        "  %before = load atomic ptr, ptr @retune.domain acquire, align 8",
        "  %fresh = icmp eq ptr %before, null",
        "  br i1 %fresh, label %make, label %add",
        "make:",
        f"  %s.domain = call ptr @ort.CreateCustomOpDomain(ptr {texts.name(DOMAIN)}, ptr %domain.at)",
        *_unless("s.domain", "made"),
        "  %made.domain = load ptr, ptr %domain.at",
    ]
    for place in range(count):
        lines += [
            f"  %s.op{place} = call ptr @ort.CustomOpDomain_Add(ptr %made.domain, ptr @retune.op{place})",
            *_unless(f"s.op{place}", f"added{place}"),
        ]
    return "\n".join(
        [
            *lines,
            # Two sessions may register at once: the first exchange wins, and the other domain is released (compare and
            # swap).
            "  %exchange = cmpxchg ptr @retune.domain, ptr null, ptr %made.domain acq_rel acquire",
            "  %winner = extractvalue { ptr, i1 } %exchange, 0",
            "  %ours = extractvalue { ptr, i1 } %exchange, 1",
            "  br i1 %ours, label %add, label %late",
            "late:",
            "  call void @ort.ReleaseCustomOpDomain(ptr %made.domain)",
            "  br label %add",
            "add:",
            f"  %domain = phi ptr [ %before, %fits ], [ %made.domain, %added{count - 1} ], [ %winner, %late ]",
            "  %status = call ptr @ort.AddCustomOpDomain(ptr %options, ptr %domain)",
            "  ret ptr %status",
            "}",
        ]
    )


def _unless(status: str, following: str) -> list[str]:
    """The lines that return a status which is not null, and otherwise go on in the block `following`."""
    return [
        f"  %{status}.bad = icmp ne ptr %{status}, null",
        f"  br i1 %{status}.bad, label %{status}.return, label %{following}",
        f"{status}.return:",
        f"  ret ptr %{status}",
        f"{following}:",
    ]


def _operator(place: int, op: CustomOp, table: ConstantTable, texts: Texts) -> str:
    """The description of one operator, and the function that computes it."""
    plan = op.network.plan
    functions = {**SHARED, "KernelComputeV2": f"@retune.custom{place}"}
    listed = ", ".join(f"ptr {functions.get(name, 'null')}" for name in FIELDS)
    inputs = _numbers([TYPES[plan.buffers[number].dtype] for number in plan.inputs], "i32")
    outputs = _numbers([TYPES[plan.buffers[number].dtype] for number in plan.outputs], "i32")
    fields = (
        f"i32 {VERSION}",
        f"[{len(FIELDS)} x ptr] [{listed}]",
        f"ptr {texts.name(op.name)}",
        f"i64 {len(plan.inputs)}",
        f"ptr @retune.inputs{place}",
        f"i64 {len(plan.outputs)}",
        f"ptr @retune.outputs{place}",
    )
    kinds = ", ".join(each.rpartition(" ")[0] for each in fields[2:])
    lines = [
        f"@retune.inputs{place} = internal constant {inputs}",
        f"@retune.outputs{place} = internal constant {outputs}",
        f"@retune.op{place} = internal constant {{ i32, [{len(FIELDS)} x ptr], {kinds} }} {{ {', '.join(fields)} }}",
    ]
    order = [*range(len(plan.inputs)), *range(len(plan.outputs))]
    lines += [
        f"@retune.order{place} = internal constant {_numbers(order, 'i64')}",
        f"define internal ptr @retune.custom{place}(ptr %kernel, ptr %context) {{",
        f"  %status = call ptr @retune.compute{place}(ptr @retune.order{place}, ptr %context)",
        "  ret ptr %status",
        "}",
    ]
    return "\n".join([*lines, compute_text(place, op, table, texts)])


def compute_text(place: int, op: CustomOp, table: ConstantTable, texts: Texts) -> str:
    """The function that computes one operator, `retune.computeN`, with what it reads."""
    plan = op.network.plan
    lines = [
        f"@retune.{kind}{place}.{number} = internal constant {_numbers(plan.buffers[buffer].shape, 'i64')}"
        for kind, buffers in (("given", plan.inputs), ("dims", plan.outputs))
        for number, buffer in enumerate(buffers)
    ]
    lines += [f"declare hidden i32 @{kernel.name}(ptr, i32)" for kernel in op.network.kernels]
    constants = {number: table.offsets[place, number] for number in op.network.constants}
    return "\n".join([*lines, *_Compute(place, op, constants, texts).lines()])


def _numbers(numbers: Sequence[int], kind: str) -> str:
    """An array as a constant; one that would be empty has an element."""
    body = ", ".join(f"{kind} {number}" for number in numbers or (0,))
    return f"[{max(1, len(numbers))} x {kind}] [{body}]"


@dataclass(slots=True)
class _Compute:
    """Writes the function that runs a plan once: `ptr retune.computeN(ptr order, ptr context)`.

    `order` has the places of the plan's inputs, then those of its outputs, among the tensors of the context.
    """

    place: int
    op: CustomOp
    constants: Mapping[int, int]
    texts: Texts
    _owners: dict[int, int] = field(init=False)
    """The output in whose tensor the kernels write a buffer that owns memory."""
    _extra: dict[int, int] = field(init=False)
    """Where in the memory of a run a buffer lies that no tensor of ONNX Runtime holds whole."""
    _workspace: int = field(init=False)
    _nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        plan = self._plan
        self._owners, self._extra = {}, {}
        size = _aligned(plan.arena_bytes)
        for number, output in enumerate(plan.outputs):
            # An output that is a view of a part cannot be the memory of the whole buffer.
            root = plan.buffers[output].storage
            is_whole = plan.buffers[output].nbytes == plan.buffers[root].nbytes
            if plan.buffers[root].kind is BufferKind.OUTPUT and is_whole:
                self._owners.setdefault(root, number)
        for number, buffer in enumerate(plan.buffers):
            if buffer.kind is BufferKind.OUTPUT and buffer.storage == number and number not in self._owners:
                self._extra[number] = size
                size += _aligned(buffer.nbytes)
        self._workspace = size
        room = max((kernel.workspace_bytes for kernel in self.op.network.kernels), default=0)
        self._nbytes = size + _aligned(room)

    @property
    def _plan(self) -> Plan:
        return self.op.network.plan

    def lines(self) -> Iterator[str]:
        """The lines of the function."""
        plan = self._plan
        width = max((len(call.buffers) for call in plan.calls), default=0) + 1
        yield f"define internal ptr @retune.compute{self.place}(ptr %order, ptr %context) {{"
        yield f"  %args = alloca [{width} x ptr], align 8"
        yield from ("  %allocator.at = alloca ptr, align 8", "  %memory.at = alloca ptr, align 8")
        for number in range(len(plan.inputs)):
            yield f"  %i{number}.at = alloca ptr, align 8"
        for number in range(len(plan.outputs)):
            yield f"  %o{number}.at = alloca ptr, align 8"
        yield from self._tensors()
        yield from self._memory()
        yield from self._calls()
        yield from self._copies()
        yield from self._ending()

    def _tensors(self) -> Iterator[str]:
        """Where the tensors of ONNX Runtime lie, and whether kernels can use them there."""
        plan = self._plan
        for number, source in enumerate(plan.inputs):
            spec = plan.buffers[source]
            message = self.texts.name(f"the input {spec.name} must be {spec.dtype}{list(spec.shape)}")
            yield from _place(f"i{number}", number)
            yield (
                f"  %s.i{number} = call ptr @retune.input(ptr %context, i64 %i{number}.place, i32 {TYPES[spec.dtype]}, "
                f"ptr @retune.given{self.place}.{number}, i64 {len(spec.shape)}, ptr {message}, ptr %i{number}.at)"
            )
            yield from _unless(f"s.i{number}", f"input{number}")
            yield from _misaligned(f"i{number}")
        for number, output in enumerate(plan.outputs):
            yield from _place(f"o{number}", len(plan.inputs) + number)
            yield (
                f"  %s.o{number} = call ptr @retune.output(ptr %context, i64 %o{number}.place, "
                f"ptr @retune.dims{self.place}.{number}, i64 {len(plan.buffers[output].shape)}, ptr %o{number}.at)"
            )
            yield from _unless(f"s.o{number}", f"output{number}")
            yield from _misaligned(f"o{number}")

    def _memory(self) -> Iterator[str]:
        """Memory for intermediates, and for tensors that do not lie where kernels can use them."""
        plan = self._plan
        tensors = [(f"i{number}", plan.buffers[source]) for number, source in enumerate(plan.inputs)]
        tensors += [(f"o{number}", plan.buffers[plan.outputs[number]]) for number in self._owners.values()]
        total = f"{self._nbytes}"
        for name, spec in tensors:
            yield f"  %{name}.begin = add i64 {total}, 0"
            yield f"  %{name}.room = select i1 %{name}.apart, i64 {_aligned(spec.nbytes)}, i64 0"
            yield f"  %{name}.end = add i64 %{name}.begin, %{name}.room"
            total = f"%{name}.end"
        # The allocator need not align to 64 bytes: one unit more, and the address is rounded up below.
        yield f"  %bytes = add i64 {total}, {ALIGNMENT}"
        yield ("  %s.memory = call ptr @retune.allocate(ptr %context, i64 %bytes, ptr %allocator.at, ptr %memory.at)")
        yield from _unless("s.memory", "allocated")
        yield "  %memory = load ptr, ptr %memory.at"
        yield "  %memory.number = ptrtoint ptr %memory to i64"
        yield f"  %memory.raised = add i64 %memory.number, {ALIGNMENT - 1}"
        yield f"  %memory.aligned = and i64 %memory.raised, {-ALIGNMENT}"
        yield "  %base = inttoptr i64 %memory.aligned to ptr"
        for name, _ in tensors:
            yield f"  %{name}.spare = getelementptr i8, ptr %base, i64 %{name}.begin"
            yield f"  %{name}.used = select i1 %{name}.apart, ptr %{name}.spare, ptr %{name}"
        for number, source in enumerate(plan.inputs):
            yield f"  br i1 %i{number}.apart, label %i{number}.copy, label %i{number}.done"
            yield f"i{number}.copy:"
            yield _copy(f"%i{number}.spare", f"%i{number}", plan.buffers[source])
            yield f"  br label %i{number}.done"
            yield f"i{number}.done:"

    def _calls(self) -> Iterator[str]:
        plan = self._plan
        threads = int(self.op.network.metadata.get("threads", 1))
        workspaces = {kernel.name: kernel.workspace_bytes for kernel in self.op.network.kernels}
        # Thread-local, and restored at the end: the run may be nested in another operator's on this thread.
        yield "  %outer = load ptr, ptr @retune.context"
        yield "  store ptr %context, ptr @retune.context"
        used = {plan.buffers[number].storage for call in plan.calls for number in call.buffers}
        used |= {plan.buffers[number].storage for number in plan.outputs}
        for number in sorted(used):
            yield self._address(number)
        yield f"  %workspace = getelementptr i8, ptr %base, i64 {self._workspace}"
        yield "  %code.0 = add i32 0, 0"
        for step, call in enumerate(plan.calls):
            names = [f"%b{plan.buffers[number].storage}" for number in call.buffers]
            for slot, name in enumerate([*names, "%workspace" if workspaces[call.kernel] else "null"]):
                yield f"  %c{step}.{slot} = getelementptr ptr, ptr %args, i64 {slot}"
                yield f"  store ptr {name}, ptr %c{step}.{slot}"
            yield f"  %c{step} = call i32 @{call.kernel}(ptr %args, i32 {threads})"
            # Codes are joined and tested once at the end, so that a failing kernel does not skip freeing the memory.
            yield f"  %code.{step + 1} = or i32 %code.{step}, %c{step}"

    def _address(self, number: int) -> str:
        """The line that defines where a buffer that owns memory lies."""
        spec = self._plan.buffers[number]
        if spec.kind is BufferKind.INPUT:
            source = f"getelementptr i8, ptr %i{self._plan.inputs.index(number)}.used, i64 0"
        elif spec.kind is BufferKind.CONSTANT:
            source = f"getelementptr i8, ptr @retune.constants, i64 {self.constants[number]}"
        elif number in self._owners:
            source = f"getelementptr i8, ptr %o{self._owners[number]}.used, i64 0"
        else:
            source = f"getelementptr i8, ptr %base, i64 {self._extra.get(number, spec.offset)}"
        return f"  %b{number} = {source}"

    def _copies(self) -> Iterator[str]:
        """Copy outputs that no kernel wrote into the tensor of ONNX Runtime."""
        plan = self._plan
        for number, output in enumerate(plan.outputs):
            spec = plan.buffers[output]
            if self._owners.get(spec.storage) != number:
                yield _copy(f"%o{number}", f"%b{spec.storage}", spec)
                continue
            yield f"  br i1 %o{number}.apart, label %o{number}.copy, label %o{number}.done"
            yield f"o{number}.copy:"
            yield _copy(f"%o{number}", f"%o{number}.spare", spec)
            yield f"  br label %o{number}.done"
            yield f"o{number}.done:"

    def _ending(self) -> Iterator[str]:
        """Give the memory back, and return what failed."""
        message = self.texts.name(f"a kernel of {self.op.name} failed")
        yield "  store ptr %outer, ptr @retune.context"
        yield "  %allocator = load ptr, ptr %allocator.at"
        yield "  %freed = call ptr @ort.AllocatorFree(ptr %allocator, ptr %memory)"
        yield "  call void @retune.fail(ptr %freed)"
        yield "  call void @ort.ReleaseAllocator(ptr %allocator)"
        yield f"  %good = icmp eq i32 %code.{len(self._plan.calls)}, 0"
        yield "  br i1 %good, label %finish, label %failed"
        yield "failed:"
        yield f"  %code.status = call ptr @ort.CreateStatus(i32 1, ptr {message})"
        yield "  call void @retune.fail(ptr %code.status)"
        yield "  br label %finish"
        yield "finish:"
        yield "  %failure = load ptr, ptr @retune.failure"
        yield "  store ptr null, ptr @retune.failure"
        yield "  ret ptr %failure"
        yield "}"


def _place(name: str, number: int) -> Iterator[str]:
    """The lines that read the place of a tensor from `%order`."""
    yield f"  %{name}.entry = getelementptr i64, ptr %order, i64 {number}"
    yield f"  %{name}.place = load i64, ptr %{name}.entry"


def _misaligned(name: str) -> Iterator[str]:
    """The lines that read where a tensor lies, and whether that is no multiple of 64 bytes."""
    yield f"  %{name} = load ptr, ptr %{name}.at"
    yield f"  %{name}.number = ptrtoint ptr %{name} to i64"
    yield f"  %{name}.rest = and i64 %{name}.number, {ALIGNMENT - 1}"
    yield f"  %{name}.apart = icmp ne i64 %{name}.rest, 0"


def _copy(to: str, source: str, spec: BufferSpec) -> str:
    return f"  call void @llvm.memcpy.p0.p0.i64(ptr {to}, ptr {source}, i64 {spec.nbytes}, i1 false)"
